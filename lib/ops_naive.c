/* ops_naive.c - the definition of every verb: plain loops in the order of the maths, double inside,
 * float outside. This file has the memory, the dense and the elementwise verbs. */
#include "half.h"
#include "ops_naive.h"

static void *alloc_naive(struct dev *d, size_t bytes)
{
    (void)d;
    return aligned_alloc(ARENA_ALIGN, (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN);
}

static void release_naive(struct dev *d, void *p)
{
    (void)d;
    free(p);
}

static void put_naive(struct dev *d, void *dev, const void *host, size_t bytes)
{
    (void)d;
    memcpy(dev, host, bytes);
}

static void get_naive(struct dev *d, void *host, const void *dev, size_t bytes)
{
    (void)d;
    memcpy(host, dev, bytes);
}

static void sync_naive(struct dev *d)
{
    (void)d;
}

static void fill_naive(struct dev *d, struct tensor y, float value)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t i = 0; i < row_size(y); i++)
        if (y.type == F32)
            ((float *)y.data)[t * y.row + i] = value;
        else if (y.type == BF16)
            ((uint16_t *)y.data)[t * y.row + i] = bf16_of(value);
        else
            ((int32_t *)y.data)[t * y.row + i] = (int32_t)value;
}

/* The one verb that meets BF16 on the host: files and devices store it. */
static void cast_naive(struct dev *d, struct tensor y, struct tensor x)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++) {
        const char *xr = (const char *)x.data + t * x.row * (int64_t)dtype_size(x.type);
        char       *yr = (char *)y.data + t * y.row * (int64_t)dtype_size(y.type);

        if (x.type == y.type)
            memmove(yr, xr, (size_t)row_size(x) * dtype_size(x.type));
        else
            for (int64_t i = 0; i < row_size(x); i++)
                if (y.type == BF16)
                    ((uint16_t *)yr)[i] = bf16_of(((const float *)xr)[i]);
                else
                    ((float *)yr)[i] = float_of_bf16(((const uint16_t *)xr)[i]);
    }
}

/* c[i,j] (+)= sum_p a[i,p] b[p,j] */
static void matmul_naive(struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags)
{
    bool ta = flags & MM_TA, tb = flags & MM_TB;
    int64_t K = a.dim[ta ? 0 : 1];
    (void)d;

    for (int64_t i = 0; i < c.dim[0]; i++)
    for (int64_t j = 0; j < c.dim[1]; j++) {
        double sum = 0;
        for (int64_t p = 0; p < K; p++)
            sum += (double)(ta ? row(a, p)[i] : row(a, i)[p]) * (tb ? row(b, j)[p] : row(b, p)[j]);
        row(c, i)[j] = (float)(flags & MM_ADD ? row(c, i)[j] + sum : sum);
    }
}

/* y[t] = w[token[t]] */
static void embed_naive(struct dev *d, struct tensor y, struct tensor w, const int32_t *token)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++) {
        REQUIRE(token[t] >= 0 && token[t] < w.dim[0]);
        memcpy(row(y, t), row(w, token[t]), (size_t)w.dim[1] * sizeof(float));
    }
}

/* dw[v] += sum of dy[t] over the t whose token is v: the first of them collects for all. */
static void embed_bwd_naive(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token)
{
    int64_t T = dy.dim[0];
    (void)d;

    for (int64_t t = 0; t < T; t++) {
        int64_t first = 0;

        REQUIRE(token[t] >= 0 && token[t] < dw.dim[0]);
        while (token[first] != token[t])
            first++;
        for (int64_t c = 0; first == t && c < dy.dim[1]; c++) {
            double sum = 0;
            for (int64_t u = t; u < T; u++)
                if (token[u] == token[t])
                    sum += row(dy, u)[c];
            row(dw, token[t])[c] += (float)sum;
        }
    }
}

static void add_naive(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t i = 0; i < row_size(y); i++)
        row(y, t)[i] = row(a, t)[i] + row(b, t)[i];
}

static void map_naive(struct dev *d, enum map f, struct tensor y, struct tensor x)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t i = 0; i < row_size(y); i++) {
        double v = row(x, t)[i];
        row(y, t)[i] = (float)(f == MAP_SIGMOID ? sigmoid(v) : silu(v));
    }
}

/* sigmoid' = s (1 - s), silu' = s (1 + x (1 - s)) */
static void map_bwd_naive(struct dev *d, enum map f, struct tensor dx, struct tensor dy, struct tensor x)
{
    (void)d;
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t i = 0; i < row_size(x); i++) {
        double v = row(x, t)[i], slope = f == MAP_SIGMOID ? sigmoid(v) * sigmoid(-v) : silu_slope(v);
        row(dx, t)[i] = (float)(row(dy, t)[i] * slope);
    }
}

static float factor(struct tensor s, int64_t t, int64_t h)
{
    return s.ndim == 1 ? ((float *)s.data)[h] : row(s, t)[h];
}

/* y[t,h,v] (+)= x[t,h,v] s[t,h] */
static void mul_naive(struct dev *d, struct tensor y, struct tensor x, struct tensor s, bool add)
{
    (void)d;
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++)
        for (int64_t v = 0; v < x.dim[2]; v++) {
            double p = (double)row2(x, t, h)[v] * factor(s, t, h);
            row2(y, t, h)[v] = (float)(add ? row2(y, t, h)[v] + p : p);
        }
}

/* dx[t,h,v] (+)= dy s[t,h];  ds[t,h] = sum_v dy x, or over t as well and ds[h] += */
static void mul_bwd_naive(struct dev *d, struct tensor dx, struct tensor ds,
                          struct tensor dy, struct tensor x, struct tensor s, bool add)
{
    (void)d;
    for (int64_t h = 0; h < x.dim[1]; h++) {
        double total = 0;
        for (int64_t t = 0; t < x.dim[0]; t++) {
            double sum = 0;
            for (int64_t v = 0; v < x.dim[2]; v++) {
                double g = row2(dy, t, h)[v], p = g * factor(s, t, h);
                sum += g * row2(x, t, h)[v];
                if (dx.data)
                    row2(dx, t, h)[v] = (float)(add ? row2(dx, t, h)[v] + p : p);
            }
            total += sum;
            if (ds.data && s.ndim == 2)
                row(ds, t)[h] = (float)sum;
        }
        if (ds.data && s.ndim == 1)
            ((float *)ds.data)[h] += (float)total;
    }
}

/* y = silu(gate) up */
static void swiglu_naive(struct dev *d, struct tensor y, struct tensor gate, struct tensor up)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t i = 0; i < row_size(y); i++)
        row(y, t)[i] = (float)(silu(row(gate, t)[i]) * row(up, t)[i]);
}

static void swiglu_bwd_naive(struct dev *d, struct tensor dgate, struct tensor dup,
                             struct tensor dy, struct tensor gate, struct tensor up)
{
    (void)d;
    for (int64_t t = 0; t < dy.dim[0]; t++)
    for (int64_t i = 0; i < row_size(dy); i++) {
        double g = row(gate, t)[i], u = row(up, t)[i], dyi = row(dy, t)[i];
        row(dgate, t)[i] = (float)(dyi * u * silu_slope(g));
        row(dup, t)[i]   = (float)(dyi * silu(g));
    }
}

/* dt = clamp(softplus(x + bias)), decay = -exp(A_log) dt */
static void decay_naive(struct dev *d, struct tensor dt, struct tensor decay, struct tensor x,
                        struct tensor bias, struct tensor A_log, struct dt_range r)
{
    (void)d;
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++) {
        double v = fmin(fmax(softplus((double)row(x, t)[h] + ((float *)bias.data)[h]), r.lo), r.hi);
        row(dt, t)[h]    = (float)v;
        row(decay, t)[h] = (float)(-exp(((float *)A_log.data)[h]) * v);
    }
}

/* With g = ddt - exp(A_log) ddecay where the clamp does not act, else 0:
 * dx = g sigmoid(x + bias), dbias += sum_t dx, dA_log += sum_t ddecay decay. */
static void decay_bwd_naive(struct dev *d, struct tensor dx, struct tensor dbias, struct tensor dA_log,
                            struct tensor ddt, struct tensor ddecay, struct tensor x,
                            struct tensor bias, struct tensor A_log, struct dt_range r)
{
    (void)d;
    for (int64_t h = 0; h < x.dim[1]; h++) {
        double A = exp(((float *)A_log.data)[h]), sum_bias = 0, sum_A = 0;
        for (int64_t t = 0; t < x.dim[0]; t++) {
            double z = (double)row(x, t)[h] + ((float *)bias.data)[h], sp = softplus(z), gd = row(ddecay, t)[h];
            double g = sp >= r.lo && sp <= r.hi ? (ddt.data ? row(ddt, t)[h] : 0) - A * gd : 0;
            row(dx, t)[h] = (float)(g * sigmoid(z));
            sum_bias += g * sigmoid(z);
            sum_A    -= gd * A * fmin(fmax(sp, r.lo), r.hi);
        }
        ((float *)dbias.data)[h]  += (float)sum_bias;
        ((float *)dA_log.data)[h] += (float)sum_A;
    }
}

/* b = sigmoid(x) softplus(b_scale[h]) s[t,h] */
static void gain_naive(struct dev *d, struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s)
{
    (void)d;
    for (int64_t t = 0; t < x.dim[0]; t++)
    for (int64_t h = 0; h < x.dim[1]; h++)
        for (int64_t v = 0; v < x.dim[2]; v++)
            row2(b, t, h)[v] = (float)(sigmoid(row2(x, t, h)[v]) * softplus(((float *)b_scale.data)[h]) * row(s, t)[h]);
}

static void gain_bwd_naive(struct dev *d, struct tensor dx, struct tensor db_scale, struct tensor ds,
                           struct tensor db, struct tensor x, struct tensor b_scale, struct tensor s)
{
    (void)d;
    for (int64_t h = 0; h < x.dim[1]; h++) {
        double scale = ((float *)b_scale.data)[h], total = 0;
        for (int64_t t = 0; t < x.dim[0]; t++) {
            double sum = 0;
            for (int64_t v = 0; v < x.dim[2]; v++) {
                double a = row2(x, t, h)[v], g = row2(db, t, h)[v];
                row2(dx, t, h)[v] = (float)(g * sigmoid(a) * sigmoid(-a) * softplus(scale) * row(s, t)[h]);
                sum += g * sigmoid(a);
            }
            total += sum * row(s, t)[h];
            row(ds, t)[h] += (float)(sum * softplus(scale));
        }
        ((float *)db_scale.data)[h] += (float)(total * sigmoid(scale));
    }
}

const struct ops ops_naive = {
    .name = "naive",
    .alloc = alloc_naive, .release = release_naive, .put = put_naive, .get = get_naive, .sync = sync_naive,
    .fill = fill_naive, .cast = cast_naive, .matmul = matmul_naive, .embed = embed_naive, .embed_bwd = embed_bwd_naive,
    .add = add_naive, .map = map_naive, .map_bwd = map_bwd_naive, .mul = mul_naive, .mul_bwd = mul_bwd_naive,
    .swiglu = swiglu_naive, .swiglu_bwd = swiglu_bwd_naive, .decay = decay_naive, .decay_bwd = decay_bwd_naive,
    .gain = gain_naive, .gain_bwd = gain_bwd_naive, .rmsnorm = rmsnorm_naive, .rmsnorm_bwd = rmsnorm_bwd_naive,
    .l2norm = l2norm_naive, .l2norm_bwd = l2norm_bwd_naive, .xent = xent_naive, .conv = conv_naive,
    .conv_bwd = conv_bwd_naive, .rope = rope_naive, .sumsq = sumsq_naive, .adamw = adamw_naive,
};
