/* ops_cpu_rows.c - norms and the loss on host cores: a row stays in cache between its passes.
 * ops_naive_rows.c has the formulas. */
#include "ops_cpu.h"
#include <math.h>

static float rms_row(float *y, const float *x, const float *w, const float *z, int64_t n, enum gate g, float eps)
{
    float sum = 0, r;

    if (g == GATE_BEFORE_NORM) {
        #pragma omp simd reduction(+:sum)
        for (int64_t c = 0; c < n; c++) {
            y[c] = x[c] * v_silu(z[c]);
            sum += y[c] * y[c];
        }
        x = y;
    } else {
        #pragma omp simd reduction(+:sum)
        for (int64_t c = 0; c < n; c++)
            sum += x[c] * x[c];
    }
    r = 1.f / sqrtf(sum / (float)n + eps);
    if (g == GATE_AFTER_NORM) {
        #pragma omp simd
        for (int64_t c = 0; c < n; c++)
            y[c] = w[c] * x[c] * r * v_silu(z[c]);
    } else {
        #pragma omp simd
        for (int64_t c = 0; c < n; c++)
            y[c] = w[c] * x[c] * r;
    }
    return r;
}

void rmsnorm_cpu(struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                 struct tensor z, enum gate g, float eps)
{
    int64_t G = x.dim[1], C = x.dim[2], step = w.dim[0] == C ? 0 : C;

    #pragma omp parallel for num_threads(crew(d, tensor_count(x)))
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t k = 0; k < G; k++)
        row(rstd, t)[k] = rms_row(row2(y, t, k), row2(x, t, k), (float *)w.data + k * step,
                                  g == GATE_NONE ? NULL : row2(z, t, k), C, g, eps);
}

/* dx and dz of one row. The first pass leaves dn (AFTER) or sigmoid(z) (BEFORE) in dx for the second; so only
 * without a gate can it add to dx. */
static void rms_bwd_row(float *dx, float *dz, const float *dy, const float *x, const float *w, const float *z,
                        float r, int64_t n, enum gate g, bool add)
{
    float dot = 0, k;

    if (g == GATE_AFTER_NORM) {
        #pragma omp simd reduction(+:dot)
        for (int64_t c = 0; c < n; c++) {
            float s = v_sigmoid(z[c]), e = dy[c] * w[c], dn = e * z[c] * s;
            dz[c] = e * x[c] * r * v_silu_slope(z[c], s);
            dx[c] = dn;
            dot  += dn * x[c];
        }
        k = dot * r * r * r / (float)n;
        #pragma omp simd
        for (int64_t c = 0; c < n; c++)
            dx[c] = r * dx[c] - x[c] * k;
    } else if (g == GATE_BEFORE_NORM) {
        #pragma omp simd reduction(+:dot)
        for (int64_t c = 0; c < n; c++) {
            dx[c] = v_sigmoid(z[c]);
            dot  += dy[c] * w[c] * x[c] * z[c] * dx[c];
        }
        k = dot * r * r * r / (float)n;
        #pragma omp simd
        for (int64_t c = 0; c < n; c++) {
            float s = dx[c], gate = z[c] * s, du = r * dy[c] * w[c] - x[c] * gate * k;
            dx[c] = du * gate;
            dz[c] = du * x[c] * v_silu_slope(z[c], s);
        }
    } else {
        #pragma omp simd reduction(+:dot)
        for (int64_t c = 0; c < n; c++)
            dot += dy[c] * w[c] * x[c];
        k = dot * r * r * r / (float)n;
        #pragma omp simd
        for (int64_t c = 0; c < n; c++)
            dx[c] = (add ? dx[c] : 0.f) + (r * dy[c] * w[c] - x[c] * k);
    }
}

/* dw[c] += sum over tokens [from,to), and over groups when they share w, of dy x rstd (silu(z)). */
static void rms_bwd_weight(struct tensor dw, struct tensor dy, struct tensor x, struct tensor z, struct tensor rstd,
                           enum gate g, int64_t from, int64_t to, struct range c)
{
    enum { BLOCK = 256 };
    int64_t n = dw.dim[0], C = x.dim[2], G = n == C ? x.dim[1] : 1, m;

    for (int64_t c0 = c.from; c0 < c.to; c0 += m) {
        float sum[BLOCK] = { 0 }, *out = (float *)dw.data + c0;

        m = least(least(BLOCK, c.to - c0), C - c0 % C);         /* within one group */
        for (int64_t t = from; t < to; t++)
        for (int64_t k = 0; k < G; k++) {
            const float *pg = row(dy, t) + k * C + c0, *px = row(x, t) + k * C + c0;
            float r = row(rstd, t)[k + c0 / C];

            if (g == GATE_NONE) {
                #pragma omp simd
                for (int64_t i = 0; i < m; i++)
                    sum[i] += pg[i] * px[i] * r;
            } else {
                const float *pz = row(z, t) + k * C + c0;
                #pragma omp simd
                for (int64_t i = 0; i < m; i++)
                    sum[i] += pg[i] * px[i] * r * v_silu(pz[i]);
            }
        }
        #pragma omp simd
        for (int64_t i = 0; i < m; i++)
            out[i] += sum[i];
    }
}

/* By blocks of tokens that fit in cache: first the rows are shared out, for dx and dz, then the columns, for dw. */
void rmsnorm_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                     struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add)
{
    int64_t T = x.dim[0], G = x.dim[1], C = x.dim[2], step = w.dim[0] == C ? 0 : C;
    int64_t block = (1 << 17) / (G * C) + 1;

    #pragma omp parallel num_threads(crew(d, tensor_count(x)))
    for (int64_t from = 0; from < T; from += block) {
        int64_t to = least(T, from + block);

        #pragma omp for nowait
        for (int64_t t = from; t < to; t++)
            for (int64_t k = 0; k < G; k++)
                rms_bwd_row(row2(dx, t, k), g == GATE_NONE ? NULL : row2(dz, t, k), row2(dy, t, k), row2(x, t, k),
                            (float *)w.data + k * step, g == GATE_NONE ? NULL : row2(z, t, k), row(rstd, t)[k], C, g,
                            add);
        rms_bwd_weight(dw, dy, x, z, rstd, g, from, to,
                       part(w.dim[0], omp_get_thread_num(), omp_get_num_threads(), 16));
    }
}

void l2norm_cpu(struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x)
{
    #pragma omp parallel for num_threads(crew(d, tensor_count(x)))
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++) {
        float *py = row2(y, t, h), sum = 0, r;
        const float *px = row2(x, t, h);

        #pragma omp simd reduction(+:sum)
        for (int64_t c = 0; c < x.dim[2]; c++)
            sum += px[c] * px[c];
        r = 1.f / fmaxf(sqrtf(sum), 1e-12f);
        row(rnorm, t)[h] = r;
        #pragma omp simd
        for (int64_t c = 0; c < x.dim[2]; c++)
            py[c] = px[c] * r;
    }
}

void l2norm_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm)
{
    #pragma omp parallel for num_threads(crew(d, tensor_count(y)))
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t h = 0; h < y.dim[1]; h++) {
        float *po = row2(dx, t, h), dot = 0, r = row(rnorm, t)[h];
        const float *py = row2(y, t, h), *pg = row2(dy, t, h);

        #pragma omp simd reduction(+:dot)
        for (int64_t c = 0; c < y.dim[2]; c++)
            dot += py[c] * pg[c];
        #pragma omp simd
        for (int64_t c = 0; c < y.dim[2]; c++)
            po[c] = (pg[c] - py[c] * dot) * r;
    }
}

/* sum of exp(l - top), in double over blocks; the terms stay in l when keep. */
static double exp_sum(float *l, int64_t n, float top, bool keep)
{
    enum { BLOCK = 2048 };
    double total = 0;

    for (int64_t from = 0; from < n; from += BLOCK) {
        float sum = 0, *p = l + from;
        int64_t m = least(BLOCK, n - from);

        if (keep) {
            #pragma omp simd reduction(+:sum)
            for (int64_t v = 0; v < m; v++) {
                p[v] = v_exp(p[v] - top);
                sum += p[v];
            }
        } else {
            #pragma omp simd reduction(+:sum)
            for (int64_t v = 0; v < m; v++)
                sum += v_exp(p[v] - top);
        }
        total += sum;
    }
    return total;
}

/* In lanes, because compilers keep the order of a maximum that might meet NaN. */
static float highest(const float *l, int64_t n)
{
    enum { LANES = 32 };
    float top[LANES], whole;
    int64_t v = 0;

    for (int i = 0; i < LANES; i++)
        top[i] = -INFINITY;
    for (; v + LANES <= n; v += LANES) {
        #pragma omp simd
        for (int i = 0; i < LANES; i++)
            top[i] = l[v + i] > top[i] ? l[v + i] : top[i];
    }
    whole = top[0];
    for (int i = 1; i < LANES; i++)
        whole = fmaxf(whole, top[i]);
    for (; v < n; v++)
        whole = fmaxf(whole, l[v]);
    return whole;
}

static float xent_row(float *l, int64_t V, int32_t target, bool grad, float scale)
{
    float top, wanted, f;
    double sum;

    if (target < 0) {
        if (grad)
            memset(l, 0, (size_t)V * sizeof *l);
        return 0;
    }
    top    = highest(l, V);
    wanted = l[target];
    sum    = exp_sum(l, V, top, grad);
    if (grad) {
        f = (float)(scale / sum);
        #pragma omp simd
        for (int64_t v = 0; v < V; v++)
            l[v] *= f;
        l[target] -= scale;
    }
    return (float)(log(sum) + top - wanted);
}

void xent_cpu(struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits, const int32_t *target,
              float scale)
{
    #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(logits)))
    for (int64_t t = 0; t < logits.dim[0]; t++) {
        REQUIRE(target[t] >= -1 && target[t] < logits.dim[1]);
        float *l = row(grad.data ? grad : logits, t);
        if (l != row(logits, t))
            memcpy(l, row(logits, t), (size_t)logits.dim[1] * sizeof *l);
        ((float *)loss.data)[t] = xent_row(l, logits.dim[1], target[t], grad.data != NULL, scale);
    }
}
