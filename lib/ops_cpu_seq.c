/* ops_cpu_seq.c - convolution, rotation and the optimizer on host cores.
 * ops_naive_rows.c has the formulas. */
#include "ops_cpu.h"
#include <math.h>

/* Widest window, columns and tokens of a tile, widest half head of rope. */
enum { TAPS = 16, COLS = 256, TILE = 64, PAIRS = 512 };

static const float silence[COLS];

/* w[c0..c0+m, W] as W rows of m, and the same of an absent bias. */
static void conv_weights(float taps[TAPS][COLS], float bias[COLS], struct tensor w, struct tensor b,
                         int64_t c0, int64_t m)
{
    for (int64_t c = 0; c < m; c++) {
        for (int64_t j = 0; j < w.dim[1]; j++)
            taps[j][c] = row(w, c0 + c)[j];
        bias[c] = b.data ? ((float *)b.data)[c0 + c] : 0;
    }
}

/* a = bias + sum_j taps[j] from[j] */
static void conv_row(float *a, float taps[TAPS][COLS], const float *bias, const float *const *from,
                     int64_t W, int64_t m)
{
    memcpy(a, bias, (size_t)m * sizeof *a);
    for (int64_t j = 0; j < W; j++) {
        const float *f = from[j], *tap = taps[j];
        #pragma omp simd
        for (int64_t c = 0; c < m; c++)
            a[c] += tap[c] * f[c];
    }
}

/* y = silu(a); the usual window of four in one pass. */
static void conv_token(float *y, float taps[TAPS][COLS], const float *bias, const float *const *from,
                       int64_t W, int64_t m)
{
    if (W == 4) {
        const float *f0 = from[0], *f1 = from[1], *f2 = from[2], *f3 = from[3];
        #pragma omp simd
        for (int64_t c = 0; c < m; c++)
            y[c] = v_silu(bias[c] + taps[0][c] * f0[c] + taps[1][c] * f1[c] + taps[2][c] * f2[c]
                          + taps[3][c] * f3[c]);
    } else {
        float a[COLS];

        conv_row(a, taps, bias, from, W, m);
        #pragma omp simd
        for (int64_t c = 0; c < m; c++)
            y[c] = v_silu(a[c]);
    }
}

/* The W inputs that token t sees, oldest first, at column c0. */
static void conv_inputs(const float *from[TAPS], struct tensor x, struct tensor state, int64_t W, int n,
                        int64_t start, int64_t t, int64_t c0)
{
    for (int64_t j = 0; j < W; j++) {
        int64_t u = t - (W - 1) + j;
        from[j] = u >= start ? row(x, u) + c0 : state.data ? row2(state, n, W - 1 + u - start) + c0 : silence;
    }
}

/* A strip of a row is too short for the processor to see where the next one begins. */
static void fetch_ahead(struct tensor x, int64_t t, int64_t c0, int64_t m)
{
    enum { AHEAD = 4, LINE = 16 };

    for (int64_t c = 0; t + AHEAD < x.dim[0] && c < m; c += LINE)
        __builtin_prefetch(row(x, t + AHEAD) + c0 + c);
}

/* The sequence that token t of the row is in: the last that starts at or before it and is not empty. */
static int seq_at(const struct seqs *s, int64_t t)
{
    int low = 0, high = s->n - 1;

    while (low < high) {
        int mid = (low + high) / 2;
        if (s->start[mid + 1] > t)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

static void conv_next(struct tensor next, struct tensor state, struct tensor x, int64_t W, int n,
                      const struct seqs *s)
{
    const float *from[TAPS];
    size_t bytes = (size_t)x.dim[1] * sizeof(float);

    conv_inputs(from, x, state, W, n, s->start[n], s->start[n + 1], 0);
    for (int64_t i = 0; i < W - 1; i++)
        if (from[i] == silence)
            memset(row2(next, n, i), 0, bytes);
        else
            memmove(row2(next, n, i), from[i], bytes);
}

void conv_cpu(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
              struct tensor bias, struct tensor state, const struct seqs *s)
{
    int64_t T = x.dim[0], C = x.dim[1], W = w.dim[1];
    int64_t tiles = (T + TILE - 1) / TILE, cols = (C + COLS - 1) / COLS;

    if (W > TAPS) {
        ops_naive.conv(d, y, next, x, w, bias, state, s);
        return;
    }
    #pragma omp parallel for num_threads(crew(d, 2 * T * C))
    for (int64_t i = 0; i < tiles * cols; i++) {
        float taps[TAPS][COLS], b[COLS];
        const float *from[TAPS];
        int64_t c0 = i % cols * COLS, m = least(COLS, C - c0), t = i / cols * TILE, to = least(T, t + TILE);

        conv_weights(taps, b, w, bias, c0, m);
        for (int n = seq_at(s, t); t < to; t++) {
            while (t >= s->start[n + 1])
                n++;
            fetch_ahead(x, t, c0, m);
            conv_inputs(from, x, state, W, n, s->start[n], t, c0);
            conv_token(row(y, t) + c0, taps, b, from, W, m);
        }
    }
    for (int n = 0; next.data && n < s->n; n++)
        conv_next(next, state, x, W, n, s);
}

/* Gradients of one strip of m columns. g holds dy silu'(a) of the last W tokens, in a ring. */
struct conv_strip {
    float taps[TAPS][COLS], bias[COLS], g[TAPS][COLS], dtaps[TAPS][COLS], dbias[COLS];
};

/* dx[u] = sum_j taps[j] g[u + (W-1) - j], of the g before token `to`. */
static void conv_bwd_input(struct conv_strip *p, float *dx, int64_t u, int64_t to, int64_t W, int64_t m)
{
    if (W == 4 && u + 3 < to) {
        const float *g0 = p->g[(u + 3) % 4], *g1 = p->g[(u + 2) % 4], *g2 = p->g[(u + 1) % 4], *g3 = p->g[u % 4];
        #pragma omp simd
        for (int64_t c = 0; c < m; c++)
            dx[c] = p->taps[0][c] * g0[c] + p->taps[1][c] * g1[c] + p->taps[2][c] * g2[c] + p->taps[3][c] * g3[c];
        return;
    }
    memset(dx, 0, (size_t)m * sizeof *dx);
    for (int64_t j = W - 1; j >= 0 && u + (W - 1) - j < to; j--) {
        const float *g = p->g[(u + (W - 1) - j) % W], *tap = p->taps[j];
        #pragma omp simd
        for (int64_t c = 0; c < m; c++)
            dx[c] += tap[c] * g[c];
    }
}

/* g of token t, and what it adds to the gradients of the weights. */
static void conv_bwd_token(struct conv_strip *p, const float *dy, const float *const *from, int64_t t,
                           int64_t W, int64_t m)
{
    float *g = p->g[t % W], a[COLS];

    if (W == 4) {
        const float *f0 = from[0], *f1 = from[1], *f2 = from[2], *f3 = from[3];
        #pragma omp simd
        for (int64_t c = 0; c < m; c++) {
            float z = p->bias[c] + p->taps[0][c] * f0[c] + p->taps[1][c] * f1[c] + p->taps[2][c] * f2[c]
                    + p->taps[3][c] * f3[c];
            float e = dy[c] * v_silu_slope(z, v_sigmoid(z));
            g[c] = e;
            p->dbias[c]    += e;
            p->dtaps[0][c] += e * f0[c];
            p->dtaps[1][c] += e * f1[c];
            p->dtaps[2][c] += e * f2[c];
            p->dtaps[3][c] += e * f3[c];
        }
        return;
    }
    conv_row(a, p->taps, p->bias, from, W, m);
    #pragma omp simd
    for (int64_t c = 0; c < m; c++) {
        g[c] = dy[c] * v_silu_slope(a[c], v_sigmoid(a[c]));
        p->dbias[c] += g[c];
    }
    for (int64_t j = 0; j < W; j++) {
        const float *f = from[j];
        float *dtap = p->dtaps[j];
        #pragma omp simd
        for (int64_t c = 0; c < m; c++)
            dtap[c] += g[c] * f[c];
    }
}

/* Adds the strip's sums to the gradients and clears them: every few tokens, so that float is enough. */
static void conv_bwd_flush(struct conv_strip *p, struct tensor dw, struct tensor dbias, int64_t c0, int64_t m)
{
    for (int64_t c = 0; c < m; c++) {
        for (int64_t j = 0; j < dw.dim[1]; j++)
            row(dw, c0 + c)[j] += p->dtaps[j][c];
        if (dbias.data)
            ((float *)dbias.data)[c0 + c] += p->dbias[c];
    }
    memset(p->dtaps, 0, sizeof p->dtaps);
    memset(p->dbias, 0, sizeof p->dbias);
}

static void conv_bwd_strip(struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy, struct tensor x,
                           struct tensor w, struct tensor bias, const struct seqs *s, int64_t c0, int64_t m)
{
    struct conv_strip p = { .dbias = { 0 } };
    const float *from[TAPS];
    int64_t W = w.dim[1];

    conv_weights(p.taps, p.bias, w, bias, c0, m);
    for (int n = 0; n < s->n; n++) {
        int64_t start = s->start[n], to = s->start[n + 1];

        for (int64_t t = start; t < to; t++) {
            fetch_ahead(x, t, c0, m);
            fetch_ahead(dy, t, c0, m);
            fetch_ahead(dx, t, c0, m);
            conv_inputs(from, x, (struct tensor){ 0 }, W, n, start, t, c0);
            conv_bwd_token(&p, row(dy, t) + c0, from, t, W, m);
            if (t - (W - 1) >= start)
                conv_bwd_input(&p, row(dx, t - (W - 1)) + c0, t - (W - 1), to, W, m);
            if (t % 256 == 255)
                conv_bwd_flush(&p, dw, dbias, c0, m);
        }
        for (int64_t u = to - (W - 1) > start ? to - (W - 1) : start; u < to; u++)
            conv_bwd_input(&p, row(dx, u) + c0, u, to, W, m);
    }
    conv_bwd_flush(&p, dw, dbias, c0, m);
}

/* Threads share out the columns: each goes through all tokens. */
void conv_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                  struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s)
{
    int64_t C = x.dim[1];
    struct tensor none = { 0 };

    if (w.dim[1] > TAPS) {
        ops_naive.conv_bwd(d, dx, dw, dbias, dy, x, w, bias, s);
        return;
    }
    #pragma omp parallel num_threads(crew(d, 4 * tensor_count(x)))
    {
        struct range c = part(C, omp_get_thread_num(), omp_get_num_threads(), 16);

        for (int64_t c0 = c.from; c0 < c.to; c0 += COLS)
            conv_bwd_strip(dx, dw, bias.data ? dbias : none, dy, x, w, bias, s, c0, least(COLS, c.to - c0));
    }
}

/* Angles in double: positions are large. Heads of a token share them. */
void rope_cpu(struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign)
{
    int64_t C = x.dim[2], half = C / 2;
    double  speed[PAIRS];

    if (half > PAIRS) {
        ops_naive.rope(d, y, x, pos, base, sign);
        return;
    }
    for (int64_t i = 0; i < half; i++)
        speed[i] = sign * pow(base, -2.0 * (double)i / (double)C);
    #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(x)))
    for (int64_t t = 0; t < x.dim[0]; t++) {
        float c[PAIRS], s[PAIRS];

        for (int64_t i = 0; i < half; i++) {
            c[i] = (float)cos(pos[t] * speed[i]);
            s[i] = (float)sin(pos[t] * speed[i]);
        }
        for (int64_t h = 0; h < x.dim[1]; h++) {
            const float *px = row2(x, t, h);
            float *py = row2(y, t, h);
            #pragma omp simd
            for (int64_t i = 0; i < half; i++) {
                float a = px[i], b = px[i + half];
                py[i]        = a * c[i] - b * s[i];
                py[i + half] = b * c[i] + a * s[i];
            }
        }
    }
}

void sumsq_cpu(struct dev *d, struct tensor sum, struct tensor x)
{
    struct cut k = cut_of(&x, 1);
    double total[PARTS] = { 0 };

    #pragma omp parallel for num_threads(crew(d, tensor_count(x)))
    for (int p = 0; p < PARTS; p++) {
        struct range r = part(k.n, p, PARTS, 1);

        for (int64_t i = r.from; i < r.to; i++) {
            const float *px = cut_at(x, &k, i);
            double s = 0;
            #pragma omp simd reduction(+:s)
            for (int64_t j = 0; j < cut_size(&k, i); j++)
                s += (double)px[j] * px[j];
            total[p] += s;
        }
    }
    for (int p = 1; p < PARTS; p++)
        total[0] += total[p];
    ((float *)sum.data)[0] += (float)total[0];
}

void adamw_cpu(struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
               struct tensor g, const struct adamw *h)
{
    struct cut k = cut_of(&master, 1);
    float b1 = h->beta1, b2 = h->beta2, a1 = 1 - b1, a2 = 1 - b2, eps = h->eps, scale = h->scale;
    float rate = (float)(h->lr / (1 - pow(b1, (double)h->step))), keep = (float)(1 - (double)h->lr * h->decay);
    float root = (float)(1 / sqrt(1 - pow(b2, (double)h->step)));

    #pragma omp parallel for num_threads(crew(d, tensor_count(master)))
    for (int64_t i = 0; i < k.n; i++) {
        float *pw = cut_at(w, &k, i), *pp = cut_at(master, &k, i), *pm = cut_at(m, &k, i), *pv = cut_at(v, &k, i);
        const float *pg = cut_at(g, &k, i);
        #pragma omp simd
        for (int64_t j = 0; j < cut_size(&k, i); j++) {
            float G = scale * pg[j];
            pm[j] = b1 * pm[j] + a1 * G;
            pv[j] = b2 * pv[j] + a2 * G * G;
            pp[j] = keep * pp[j] - rate * pm[j] / (sqrtf(pv[j]) * root + eps);
            pw[j] = pp[j];
        }
    }
}
