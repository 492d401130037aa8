/* ops_naive_rows.c - the definition, continued: norms, loss, convolution, rotation, optimizer. */
#include "ops_naive.h"

/* With n = u / sqrt(mean u^2 + eps) over each group: u = x, y = w n (NONE) or w n silu(z) (AFTER);
 * u = x silu(z), y = w n (BEFORE). rstd is the reciprocal of the root. */
void rmsnorm_naive(struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                   struct tensor z, enum gate g, float eps)
{
    int64_t G = x.dim[1], C = x.dim[2];
    (void)d;

    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t k = 0; k < G; k++) {
        const float *xr = row2(x, t, k), *zr = g == GATE_NONE ? NULL : row2(z, t, k);
        const float *wk = (float *)w.data + (w.dim[0] == C ? 0 : k * C);
        double sum = 0, r;

        for (int64_t c = 0; c < C; c++) {
            double u = g == GATE_BEFORE_NORM ? xr[c] * silu(zr[c]) : xr[c];
            sum += u * u;
        }
        r = 1 / sqrt(sum / (double)C + eps);
        row(rstd, t)[k] = (float)r;
        for (int64_t c = 0; c < C; c++)
            row2(y, t, k)[c] = (float)(wk[c] * xr[c] * r * (g == GATE_NONE ? 1 : silu(zr[c])));
    }
}

/* dn = dy w (times silu(z) when AFTER); du = rstd (dn - n mean(dn n)); dw += sum of dy n (silu(z));
 * AFTER: dx = du, dz = dy w n silu'(z). BEFORE: dx = du silu(z), dz = du x silu'(z). */
void rmsnorm_bwd_naive(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                       struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add)
{
    int64_t G = x.dim[1], C = x.dim[2], n = w.dim[0];
    double *sum_w = mem_new((size_t)n, sizeof *sum_w);
    (void)d;

    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t k = 0; k < G; k++) {
        const float *xr = row2(x, t, k), *gr = row2(dy, t, k), *zr = g == GATE_NONE ? NULL : row2(z, t, k);
        const float *wk = (float *)w.data + (n == C ? 0 : k * C);
        double r = row(rstd, t)[k], dot = 0;

        for (int64_t c = 0; c < C; c++) {
            double gate = g == GATE_NONE ? 1 : silu(zr[c]);
            dot += gr[c] * wk[c] * xr[c] * r * gate;
            sum_w[wk - (float *)w.data + c] += gr[c] * xr[c] * r * gate;
        }
        for (int64_t c = 0; c < C; c++) {
            double gate = g == GATE_NONE ? 1 : silu(zr[c]);
            double norm = xr[c] * r * (g == GATE_BEFORE_NORM ? gate : 1);
            double dn   = (double)gr[c] * wk[c] * (g == GATE_AFTER_NORM ? gate : 1);
            double du   = r * (dn - norm * dot / (double)C);

            row2(dx, t, k)[c] = (float)(du * (g == GATE_BEFORE_NORM ? gate : 1) + (add ? row2(dx, t, k)[c] : 0));
            if (g == GATE_AFTER_NORM)
                row2(dz, t, k)[c] = (float)((double)gr[c] * wk[c] * norm * silu_slope(zr[c]));
            else if (g == GATE_BEFORE_NORM)
                row2(dz, t, k)[c] = (float)(du * xr[c] * silu_slope(zr[c]));
        }
    }
    for (int64_t i = 0; i < n; i++)
        ((float *)dw.data)[i] += (float)sum_w[i];
    free(sum_w);
}

/* y = x rnorm, rnorm = 1 / max(|x|, 1e-12), along the last dim */
void l2norm_naive(struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x)
{
    (void)d;
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++) {
        double sum = 0, r;

        for (int64_t c = 0; c < x.dim[2]; c++)
            sum += (double)row2(x, t, h)[c] * row2(x, t, h)[c];
        r = 1 / fmax(sqrt(sum), 1e-12);
        row(rnorm, t)[h] = (float)r;
        for (int64_t c = 0; c < x.dim[2]; c++)
            row2(y, t, h)[c] = (float)(row2(x, t, h)[c] * r);
    }
}

/* dx = (dy - y <y,dy>) rnorm */
void l2norm_bwd_naive(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t h = 0; h < y.dim[1]; h++) {
        double dot = 0;

        for (int64_t c = 0; c < y.dim[2]; c++)
            dot += (double)row2(y, t, h)[c] * row2(dy, t, h)[c];
        for (int64_t c = 0; c < y.dim[2]; c++)
            row2(dx, t, h)[c] = (float)((row2(dy, t, h)[c] - row2(y, t, h)[c] * dot) * row(rnorm, t)[h]);
    }
}

/* p = softmax(logits[t]): loss = -log p[target], logits = scale (p - [target]); both 0 where target is -1 */
void xent_naive(struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits, const int32_t *target,
                float scale)
{
    int64_t V = logits.dim[1];
    (void)d;

    for (int64_t t = 0; t < logits.dim[0]; t++) {
        const float *l = row(logits, t);
        double top = -INFINITY, sum = 0;
        int32_t to = target[t];

        REQUIRE(to >= -1 && to < V);
        for (int64_t v = 0; v < V; v++)
            top = fmax(top, l[v]);
        for (int64_t v = 0; v < V; v++)
            sum += exp(l[v] - top);
        ((float *)loss.data)[t] = to < 0 ? 0 : (float)(log(sum) + top - l[to]);
        for (int64_t v = 0; grad.data && v < V; v++)
            row(grad, t)[v] = to < 0 ? 0 : (float)(scale * (exp(l[v] - top) / sum - (v == to)));
    }
}

/* The input `back` tokens before token t of the sequence that begins at token `start`; beyond its
 * beginning lies the carried state, or silence. */
static double conv_input(struct tensor x, struct tensor state, int64_t W, int64_t n, int64_t start,
                         int64_t t, int64_t back, int64_t c)
{
    if (t - back >= start)
        return row(x, t - back)[c];
    return state.data ? row2(state, n, W - 1 + t - back - start)[c] : 0;
}

/* a[t,c] = bias[c] + sum_j w[c,j] x[t-(W-1)+j,c], y = silu(a) */
void conv_naive(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
                struct tensor bias, struct tensor state, const struct seqs *s)
{
    int64_t C = x.dim[1], W = w.dim[1];
    (void)d;

    for (int64_t n = 0; n < s->n; n++)
    for (int64_t c = 0; c < C; c++) {
        for (int64_t t = s->start[n]; t < s->start[n + 1]; t++) {
            double a = bias.data ? ((float *)bias.data)[c] : 0;
            for (int64_t j = 0; j < W; j++)
                a += row(w, c)[j] * conv_input(x, state, W, n, s->start[n], t, W - 1 - j, c);
            row(y, t)[c] = (float)silu(a);
        }
        /* Oldest first, so a state that is its own next is read before it is overwritten. */
        for (int64_t i = 0; next.data && i < W - 1; i++)
            row2(next, n, i)[c] = (float)conv_input(x, state, W, n, s->start[n], s->start[n + 1], W - 1 - i, c);
    }
}

/* g = dy silu'(a): dx[t] = sum_j w[j] g[t+(W-1)-j] within the sequence, dw[j] += sum_t g[t] x[t-(W-1)+j],
 * dbias += sum_t g[t]. Sequences start from silence. */
void conv_bwd_naive(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                    struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s)
{
    int64_t C = x.dim[1], W = w.dim[1];
    struct tensor none = { 0 };
    double *g = mem_new((size_t)s->longest, sizeof *g), *sum_w = mem_new((size_t)W, sizeof *sum_w);
    (void)d;

    for (int64_t c = 0; c < C; c++) {
        double sum_bias = 0;

        for (int64_t j = 0; j < W; j++)
            sum_w[j] = 0;
        for (int64_t n = 0; n < s->n; n++) {
            int64_t from = s->start[n], to = s->start[n + 1];

            for (int64_t t = from; t < to; t++) {
                double a = bias.data ? ((float *)bias.data)[c] : 0;
                for (int64_t j = 0; j < W; j++)
                    a += row(w, c)[j] * conv_input(x, none, W, n, from, t, W - 1 - j, c);
                g[t - from] = row(dy, t)[c] * silu_slope(a);
                sum_bias += g[t - from];
                for (int64_t j = 0; j < W; j++)
                    sum_w[j] += g[t - from] * conv_input(x, none, W, n, from, t, W - 1 - j, c);
            }
            for (int64_t t = from; t < to; t++) {
                double sum = 0;
                for (int64_t j = 0; j < W && t + j < to; j++)
                    sum += row(w, c)[W - 1 - j] * g[t + j - from];
                row(dx, t)[c] = (float)sum;
            }
        }
        for (int64_t j = 0; j < W; j++)
            row(dw, c)[j] += (float)sum_w[j];
        if (bias.data)
            ((float *)dbias.data)[c] += (float)sum_bias;
    }
    free(g);
    free(sum_w);
}

/* With angle = sign pos base^(-2i/C), the pair (x[i], x[i+C/2]) turns by angle. */
void rope_naive(struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign)
{
    int64_t C = x.dim[2], half = C / 2;
    (void)d;

    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++)
        for (int64_t i = 0; i < half; i++) {
            double angle = sign * pos[t] * pow(base, -2.0 * (double)i / (double)C);
            double a = row2(x, t, h)[i], b = row2(x, t, h)[i + half];
            row2(y, t, h)[i]        = (float)(a * cos(angle) - b * sin(angle));
            row2(y, t, h)[i + half] = (float)(b * cos(angle) + a * sin(angle));
        }
}

void sumsq_naive(struct dev *d, struct tensor sum, struct tensor x)
{
    double total = 0;
    (void)d;

    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t i = 0; i < row_size(x); i++)
        total += (double)row(x, t)[i] * row(x, t)[i];
    ((float *)sum.data)[0] += (float)total;
}

/* G = scale g; m = b1 m + (1-b1) G; v = b2 v + (1-b2) G^2; with m and v corrected for their zero start,
 * master -= lr (m^ / (sqrt v^ + eps) + decay master) */
void adamw_naive(struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
                 struct tensor g, const struct adamw *h)
{
    double c1 = 1 - pow(h->beta1, (double)h->step), c2 = 1 - pow(h->beta2, (double)h->step);
    float *pw = w.data, *pp = master.data, *pm = m.data, *pv = v.data, *pg = g.data;
    (void)d;

    for (int64_t i = 0; i < master.dim[0]; i++) {
        double G = (double)h->scale * pg[i], p = pp[i];
        double mi = h->beta1 * (double)pm[i] + (1 - (double)h->beta1) * G;
        double vi = h->beta2 * (double)pv[i] + (1 - (double)h->beta2) * G * G;

        pm[i] = (float)mi;
        pv[i] = (float)vi;
        pp[i] = (float)(p - h->lr * (mi / c1 / (sqrt(vi / c2) + h->eps) + h->decay * p));
        pw[i] = pp[i];
    }
}
