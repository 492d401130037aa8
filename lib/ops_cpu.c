/* ops_cpu.c - the verbs on host cores: OpenBLAS for matmul, SIMD loops shared out by OpenMP for the rest.
 * ops_naive.c has the formulas. */
#include "ops_cpu.h"
#include "tile_rows.h"
#include <cblas.h>
#include <limits.h>
#include <math.h>

struct cut cut_of(const struct tensor *t, int n)
{
    struct cut k = { .flat = true };
    int64_t count = tensor_count(t[0]);

    for (int i = 0; i < n; i++)
        k.flat = k.flat && tensor_dense(t[i]);
    k.n    = k.flat ? (count + PIECE - 1) / PIECE : t[0].dim[0];
    k.size = k.flat ? PIECE : row_size(t[0]);
    k.last = k.flat ? count - (k.n - 1) * PIECE : k.size;
    return k;
}

#define CUT(...) cut_of((struct tensor[]){ __VA_ARGS__ }, (int)LEN(((struct tensor[]){ __VA_ARGS__ })))

static void fill_cpu(struct dev *d, struct tensor y, float value)
{
    struct cut k = CUT(y);

    if (y.type != F32) {
        ops_naive.fill(d, y, value);
        return;
    }
    #pragma omp parallel for num_threads(crew(d, tensor_count(y)))
    for (int64_t i = 0; i < k.n; i++) {
        float *py = cut_at(y, &k, i);
        #pragma omp simd
        for (int64_t j = 0; j < cut_size(&k, i); j++)
            py[j] = value;
    }
}

static void cast_cpu(struct dev *d, struct tensor y, struct tensor x)
{
    struct cut k = CUT(y, x);

    if (y.type != F32 || x.type != F32) {
        ops_naive.cast(d, y, x);
        return;
    }
    #pragma omp parallel for num_threads(crew(d, tensor_count(y)))
    for (int64_t i = 0; i < k.n; i++)
        memmove(cut_at(y, &k, i), cut_at(x, &k, i), (size_t)cut_size(&k, i) * sizeof(float));
}

static blasint leading(struct tensor t)
{
    return (blasint)(t.row > t.dim[1] ? t.row : t.dim[1]);
}

/* One row or column of c is a matrix times a vector, which reads the matrix once. OpenBLAS adds a row up in an order
 * that depends on how many rows there are. */
static void matmul_cpu(struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags)
{
    CBLAS_TRANSPOSE ta = flags & MM_TA ? CblasTrans : CblasNoTrans;
    CBLAS_TRANSPOSE tb = flags & MM_TB ? CblasTrans : CblasNoTrans;
    int64_t k = a.dim[flags & MM_TA ? 0 : 1];
    float beta = flags & MM_ADD ? 1 : 0;

    if (d->alone && (flags & (MM_TA | MM_TB)) == MM_TB) {
        tile_rows_mul(d->threads, c, a, b, flags & MM_ADD);
        return;
    }
    REQUIRE(a.row <= INT_MAX && b.row <= INT_MAX && c.row <= INT_MAX && c.dim[0] <= INT_MAX && k <= INT_MAX);
    if (c.dim[0] == 1)
        cblas_sgemv(CblasRowMajor, flags & MM_TB ? CblasNoTrans : CblasTrans, (blasint)b.dim[0], (blasint)b.dim[1],
                    1, b.data, leading(b), a.data, flags & MM_TA ? (blasint)a.row : 1, beta, c.data, 1);
    else if (c.dim[1] == 1)
        cblas_sgemv(CblasRowMajor, ta, (blasint)a.dim[0], (blasint)a.dim[1], 1, a.data, leading(a),
                    b.data, flags & MM_TB ? 1 : (blasint)b.row, beta, c.data, (blasint)c.row);
    else
        cblas_sgemm(CblasRowMajor, ta, tb, (blasint)c.dim[0], (blasint)c.dim[1], (blasint)k,
                    1, a.data, leading(a), b.data, leading(b), beta, c.data, leading(c));
}

static void embed_cpu(struct dev *d, struct tensor y, struct tensor w, const int32_t *token)
{
    #pragma omp parallel for num_threads(crew(d, tensor_count(y)))
    for (int64_t t = 0; t < y.dim[0]; t++) {
        REQUIRE(token[t] >= 0 && token[t] < w.dim[0]);
        memcpy(row(y, t), row(w, token[t]), (size_t)w.dim[1] * sizeof(float));
    }
}

/* Threads share out the columns, so each element of dw adds its tokens up in their order. */
static void embed_bwd_cpu(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token)
{
    for (int64_t t = 0; t < dy.dim[0]; t++)
        REQUIRE(token[t] >= 0 && token[t] < dw.dim[0]);
    #pragma omp parallel num_threads(crew(d, tensor_count(dy)))
    {
        struct range c = part(dw.dim[1], omp_get_thread_num(), omp_get_num_threads(), 16);

        for (int64_t t = 0; t < dy.dim[0]; t++) {
            float *to = row(dw, token[t]);
            const float *from = row(dy, t);
            #pragma omp simd
            for (int64_t j = c.from; j < c.to; j++)
                to[j] += from[j];
        }
    }
}

static void add_cpu(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    struct cut k = CUT(y, a, b);

    #pragma omp parallel for num_threads(crew(d, tensor_count(y)))
    for (int64_t i = 0; i < k.n; i++) {
        float *py = cut_at(y, &k, i);
        const float *pa = cut_at(a, &k, i), *pb = cut_at(b, &k, i);
        #pragma omp simd
        for (int64_t j = 0; j < cut_size(&k, i); j++)
            py[j] = pa[j] + pb[j];
    }
}

static void map_piece(enum map f, float *y, const float *x, int64_t n)
{
    if (f == MAP_SIGMOID) {
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            y[j] = v_sigmoid(x[j]);
    } else {
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            y[j] = v_silu(x[j]);
    }
}

static void map_cpu(struct dev *d, enum map f, struct tensor y, struct tensor x)
{
    struct cut k = CUT(y, x);

    #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(y)))
    for (int64_t i = 0; i < k.n; i++)
        map_piece(f, cut_at(y, &k, i), cut_at(x, &k, i), cut_size(&k, i));
}

static void map_bwd_piece(enum map f, float *dx, const float *dy, const float *x, int64_t n)
{
    if (f == MAP_SIGMOID) {
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] = dy[j] * v_sigmoid(x[j]) * v_sigmoid(-x[j]);
    } else {
        #pragma omp simd
        for (int64_t j = 0; j < n; j++)
            dx[j] = dy[j] * v_silu_slope(x[j], v_sigmoid(x[j]));
    }
}

static void map_bwd_cpu(struct dev *d, enum map f, struct tensor dx, struct tensor dy, struct tensor x)
{
    struct cut k = CUT(dx, dy, x);

    #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(x)))
    for (int64_t i = 0; i < k.n; i++)
        map_bwd_piece(f, cut_at(dx, &k, i), cut_at(dy, &k, i), cut_at(x, &k, i), cut_size(&k, i));
}

static float factor(struct tensor s, int64_t t, int64_t h)
{
    return s.ndim == 1 ? ((float *)s.data)[h] : row(s, t)[h];
}

static void mul_cpu(struct dev *d, struct tensor y, struct tensor x, struct tensor s, bool add)
{
    #pragma omp parallel for num_threads(crew(d, tensor_count(x)))
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++) {
        float *py = row2(y, t, h), f = factor(s, t, h);
        const float *px = row2(x, t, h);

        if (add) {
            #pragma omp simd
            for (int64_t v = 0; v < x.dim[2]; v++)
                py[v] += px[v] * f;
        } else {
            #pragma omp simd
            for (int64_t v = 0; v < x.dim[2]; v++)
                py[v] = px[v] * f;
        }
    }
}

/* dx (+)= dy f, if dx is wanted; returns <dy, x>. */
static float mul_bwd_piece(float *dx, const float *dy, const float *x, float f, bool add, int64_t n)
{
    float sum = 0;

    #pragma omp simd reduction(+:sum)
    for (int64_t v = 0; v < n; v++)
        sum += dy[v] * x[v];
    if (dx && add) {
        #pragma omp simd
        for (int64_t v = 0; v < n; v++)
            dx[v] += dy[v] * f;
    } else if (dx) {
        #pragma omp simd
        for (int64_t v = 0; v < n; v++)
            dx[v] = dy[v] * f;
    }
    return sum;
}

static void mul_bwd_cpu(struct dev *d, struct tensor dx, struct tensor ds,
                        struct tensor dy, struct tensor x, struct tensor s, bool add)
{
    for (int64_t h0 = 0; h0 < x.dim[1]; h0 += HEADS) {
        int64_t heads = least(HEADS, x.dim[1] - h0);
        double  sum[PARTS][HEADS] = { { 0 } };

        #pragma omp parallel for num_threads(crew(d, tensor_count(x)))
        for (int p = 0; p < PARTS; p++) {
            struct range r = part(x.dim[0], p, PARTS, 1);

            for (int64_t t = r.from; t < r.to; t++)
            for (int64_t h = 0; h < heads; h++) {
                float dot = mul_bwd_piece(dx.data ? row2(dx, t, h0 + h) : NULL, row2(dy, t, h0 + h),
                                          row2(x, t, h0 + h), factor(s, t, h0 + h), add, x.dim[2]);
                sum[p][h] += dot;
                if (ds.data && s.ndim == 2)
                    row(ds, t)[h0 + h] = dot;
            }
        }
        for (int64_t h = 0; ds.data && s.ndim == 1 && h < heads; h++) {
            for (int p = 1; p < PARTS; p++)
                sum[0][h] += sum[p][h];
            ((float *)ds.data)[h0 + h] += (float)sum[0][h];
        }
    }
}

static void swiglu_cpu(struct dev *d, struct tensor y, struct tensor gate, struct tensor up)
{
    struct cut k = CUT(y, gate, up);

    #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(y)))
    for (int64_t i = 0; i < k.n; i++) {
        float *py = cut_at(y, &k, i);
        const float *pg = cut_at(gate, &k, i), *pu = cut_at(up, &k, i);
        #pragma omp simd
        for (int64_t j = 0; j < cut_size(&k, i); j++)
            py[j] = v_silu(pg[j]) * pu[j];
    }
}

static void swiglu_bwd_cpu(struct dev *d, struct tensor dgate, struct tensor dup,
                           struct tensor dy, struct tensor gate, struct tensor up)
{
    struct cut k = CUT(dgate, dup, dy, gate, up);

    #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(dy)))
    for (int64_t i = 0; i < k.n; i++) {
        float *pdg = cut_at(dgate, &k, i), *pdu = cut_at(dup, &k, i);
        const float *pdy = cut_at(dy, &k, i), *pg = cut_at(gate, &k, i), *pu = cut_at(up, &k, i);
        #pragma omp simd
        for (int64_t j = 0; j < cut_size(&k, i); j++) {
            float g = pg[j], u = pu[j], e = pdy[j], s = v_sigmoid(g);
            pdg[j] = e * u * v_silu_slope(g, s);
            pdu[j] = e * g * s;
        }
    }
}

static inline float clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

static void decay_cpu(struct dev *d, struct tensor dt, struct tensor decay, struct tensor x,
                      struct tensor bias, struct tensor A_log, struct dt_range r)
{
    const float *pb = bias.data, *pa = A_log.data;

    #pragma omp parallel for num_threads(crew(d, 8 * tensor_count(x)))
    for (int64_t t = 0; t < x.dim[0]; t++) {
        float *pt = row(dt, t), *pd = row(decay, t), low = r.lo, high = r.hi;
        const float *px = row(x, t);
        #pragma omp simd
        for (int64_t h = 0; h < x.dim[1]; h++) {
            float v = clamp(v_softplus(px[h] + pb[h]), low, high);
            pt[h] = v;
            pd[h] = -v_exp(pa[h]) * v;
        }
    }
}

static void decay_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dbias, struct tensor dA_log,
                          struct tensor ddt, struct tensor ddecay, struct tensor x,
                          struct tensor bias, struct tensor A_log, struct dt_range r)
{
    for (int64_t h0 = 0; h0 < x.dim[1]; h0 += HEADS) {
        const float *pb = (float *)bias.data + h0, *pa = (float *)A_log.data + h0;
        int64_t heads = least(HEADS, x.dim[1] - h0);
        float   sum_b[PARTS][HEADS] = { { 0 } }, sum_A[PARTS][HEADS] = { { 0 } }, A[HEADS];

        for (int64_t h = 0; h < heads; h++)
            A[h] = v_exp(pa[h]);

        #pragma omp parallel for num_threads(crew(d, 8 * tensor_count(x)))
        for (int p = 0; p < PARTS; p++) {
            struct range c = part(x.dim[0], p, PARTS, 1);
            float *qb = sum_b[p], *qA = sum_A[p], zero[HEADS] = { 0 }, low = r.lo, high = r.hi;

            for (int64_t t = c.from; t < c.to; t++) {
                const float *px = row(x, t) + h0, *pd = row(ddecay, t) + h0;
                const float *pt = ddt.data ? row(ddt, t) + h0 : zero;
                float *po = row(dx, t) + h0;
                #pragma omp simd
                for (int64_t h = 0; h < heads; h++) {
                    float z = px[h] + pb[h], sp = v_softplus(z), v = clamp(sp, low, high);
                    float g = v == sp ? (pt[h] - A[h] * pd[h]) * v_sigmoid(z) : 0;
                    po[h]  = g;
                    qb[h] += g;
                    qA[h] -= pd[h] * A[h] * v;
                }
            }
        }
        for (int64_t h = 0; h < heads; h++) {
            for (int p = 1; p < PARTS; p++) {
                sum_b[0][h] += sum_b[p][h];
                sum_A[0][h] += sum_A[p][h];
            }
            ((float *)dbias.data)[h0 + h]  += (float)sum_b[0][h];
            ((float *)dA_log.data)[h0 + h] += (float)sum_A[0][h];
        }
    }
}

static void gain_cpu(struct dev *d, struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s)
{
    for (int64_t h0 = 0; h0 < x.dim[1]; h0 += HEADS) {
        int64_t heads = least(HEADS, x.dim[1] - h0);
        float   scale[HEADS];

        for (int64_t h = 0; h < heads; h++)
            scale[h] = v_softplus(((float *)b_scale.data)[h0 + h]);
        #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(x)))
        for (int64_t t = 0; t < x.dim[0]; t++)
        for (int64_t h = 0; h < heads; h++) {
            float *pb = row2(b, t, h0 + h), f = scale[h] * row(s, t)[h0 + h];
            const float *px = row2(x, t, h0 + h);
            #pragma omp simd
            for (int64_t v = 0; v < x.dim[2]; v++)
                pb[v] = v_sigmoid(px[v]) * f;
        }
    }
}

static void gain_bwd_cpu(struct dev *d, struct tensor dx, struct tensor db_scale, struct tensor ds,
                         struct tensor db, struct tensor x, struct tensor b_scale, struct tensor s)
{
    for (int64_t h0 = 0; h0 < x.dim[1]; h0 += HEADS) {
        const float *pb = (float *)b_scale.data + h0;
        int64_t heads = least(HEADS, x.dim[1] - h0);
        double  total[PARTS][HEADS] = { { 0 } };
        float   scale[HEADS];

        for (int64_t h = 0; h < heads; h++)
            scale[h] = v_softplus(pb[h]);
        #pragma omp parallel for num_threads(crew(d, 4 * tensor_count(x)))
        for (int p = 0; p < PARTS; p++) {
            struct range r = part(x.dim[0], p, PARTS, 1);

            for (int64_t t = r.from; t < r.to; t++)
            for (int64_t h = 0; h < heads; h++) {
                float *po = row2(dx, t, h0 + h), st = row(s, t)[h0 + h], f = scale[h] * st, sum = 0;
                const float *pg = row2(db, t, h0 + h), *px = row2(x, t, h0 + h);
                #pragma omp simd reduction(+:sum)
                for (int64_t v = 0; v < x.dim[2]; v++) {
                    float a = v_sigmoid(px[v]), ga = pg[v] * a;
                    po[v] = ga * (1.f - a) * f;
                    sum  += ga;
                }
                row(ds, t)[h0 + h] += sum * scale[h];
                total[p][h] += (double)sum * st;
            }
        }
        for (int64_t h = 0; h < heads; h++) {
            for (int p = 1; p < PARTS; p++)
                total[0][h] += total[p][h];
            ((float *)db_scale.data)[h0 + h] += (float)(total[0][h] * v_sigmoid(pb[h]));
        }
    }
}

/* Memory is the naive row's. */
const struct ops ops_cpu = {
    .name = "cpu", .fill = fill_cpu, .cast = cast_cpu, .matmul = matmul_cpu, .embed = embed_cpu,
    .embed_bwd = embed_bwd_cpu, .add = add_cpu, .map = map_cpu, .map_bwd = map_bwd_cpu, .mul = mul_cpu,
    .mul_bwd = mul_bwd_cpu, .swiglu = swiglu_cpu, .swiglu_bwd = swiglu_bwd_cpu, .decay = decay_cpu,
    .decay_bwd = decay_bwd_cpu, .gain = gain_cpu, .gain_bwd = gain_bwd_cpu, .rmsnorm = rmsnorm_cpu,
    .rmsnorm_bwd = rmsnorm_bwd_cpu, .l2norm = l2norm_cpu, .l2norm_bwd = l2norm_bwd_cpu, .xent = xent_cpu,
    .conv = conv_cpu, .conv_bwd = conv_bwd_cpu, .rope = rope_cpu, .sumsq = sumsq_cpu, .adamw = adamw_cpu,
};
