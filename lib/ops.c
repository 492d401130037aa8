/* ops.c - the door of every verb: shapes and types are checked here, once for all backends. */
#include "op.h"
#include <math.h>

enum { F = 1 << F32, B = 1 << BF16, I = 1 << I32, DENSE = 8 };

/* On a dry device nothing has data, so there a tensor is absent when it was never given a shape. */
static bool present(const struct dev *d, struct tensor t)
{
    return d->dry ? t.ndim > 0 : t.data != NULL;
}

static void describe(char *out, size_t size, const int64_t *dim, int ndim)
{
    size_t n = (size_t)snprintf(out, size, "[");

    for (int i = 0; i < ndim && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, i ? ",%lld" : "%lld", (long long)dim[i]);
    if (n < size)
        snprintf(out + n, size - n, "]");
}

void op_trace(struct dev *d, struct tensor t)
{
    if (!d->tracing)
        return;
    d->trace = (d->trace ^ (uint64_t)(uintptr_t)t.data) * 0x9e3779b97f4a7c15u;
    for (int i = 0; i < 3; i++)
        d->trace = (d->trace ^ (uint64_t)t.dim[i]) * 0x9e3779b97f4a7c15u;
}

static void check_shape(struct dev *d, const char *op, const char *name, struct tensor t,
                        int types, int ndim, const int64_t *dim)
{
    char found[96], wanted[96];
    bool same = t.ndim == ndim;

    for (int i = 0; same && i < ndim; i++)
        same = t.dim[i] == dim[i];
    if (!same) {
        describe(found, sizeof found, t.dim, t.ndim);
        describe(wanted, sizeof wanted, dim, ndim);
        BUG("%s: %s is %s, expected %s", op, name, found, wanted);
    }
    if (!(types & 1 << t.type))
        BUG("%s: %s is %s", op, name, dtype_name(t.type));
    if (t.type == BF16 && d->kind != DEV_CUDA && strcmp(op, "op_cast"))
        BUG("%s: %s is bf16 on a host device", op, name);
    if (types & DENSE ? !tensor_dense(t) : t.dim[0] > 1 && t.row < t.dim[1] * t.dim[2] * t.dim[3])
        BUG("%s: %s has a row stride of %lld elements", op, name, (long long)t.row);
    if (!t.data && !d->dry && tensor_count(t))
        BUG("%s: %s has no data", op, name);
    op_trace(d, t);
}

/* CHECK(x, types, dims...): x must have exactly these dims and one of these types. */
#define CHECK(t, types, ...) check_shape(d, __func__, #t, t, types, \
    (int)LEN(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
#define CHECK_LIKE(t, types, x) check_shape(d, __func__, #t, t, types, (x).ndim, (x).dim)

static int as(struct tensor t)
{
    return 1 << t.type;
}

/* On the host an absent verb is the naive one. */
#define RUN(member, ...) do { \
        if (d->dry) \
            break; \
        if (d->ops->member) \
            d->ops->member(d, __VA_ARGS__); \
        else if (d->kind == DEV_CUDA) \
            BUG("%s has no %s", d->ops->name, #member); \
        else \
            ops_naive.member(d, __VA_ARGS__); \
    } while (0)

void *op_alloc(struct dev *d, size_t bytes)
{
    if (d->dry)
        return NULL;
    return (d->ops->alloc ? d->ops->alloc : ops_naive.alloc)(d, bytes);
}

void op_release(struct dev *d, void *p)
{
    if (!d->dry && p)
        (d->ops->release ? d->ops->release : ops_naive.release)(d, p);
}

void op_put(struct dev *d, void *dev, const void *host, size_t bytes)
{
    if (bytes)
        RUN(put, dev, host, bytes);
}

void op_get(struct dev *d, void *host, const void *dev, size_t bytes)
{
    if (d->dry && host)
        memset(host, 0, bytes);
    else if (bytes)
        RUN(get, host, dev, bytes);
}

void op_sync(struct dev *d)
{
    if (!d->dry)
        (d->ops->sync ? d->ops->sync : ops_naive.sync)(d);
}

bool op_lane(struct dev *d, int lane)
{
    REQUIRE(lane >= -1 && lane < LANES_MOST);
    if (!d->dry && d->ops->lane)
        d->ops->lane(d, lane);
    return d->ops->lane;
}

void op_record(struct dev *d, const void *key, size_t bytes)
{
    struct { const void *keep, *temp; size_t keep_used, temp_used; unsigned char key[128]; } whole;

    if (d->dry || !d->ops->record)
        return;
    REQUIRE(!d->tracing && bytes <= sizeof whole.key);
    memset(&whole, 0, sizeof whole);
    whole.keep = d->keep.base, whole.keep_used = d->keep.used;
    whole.temp = d->temp.base, whole.temp_used = d->temp.used;
    memcpy(whole.key, key, bytes);
    d->tracing = true;
    d->trace = 0;
    d->dry = d->ops->record(d, &whole, sizeof whole);
}

void op_recorded(struct dev *d)
{
    if (!d->tracing)
        return;
    d->tracing = d->dry = false;
    d->ops->recorded(d, d->trace);
}

void op_fill(struct dev *d, struct tensor y, float value)
{
    CHECK_LIKE(y, F | B | I, y);
    if (tensor_count(y))
        RUN(fill, y, value);
}

void op_cast(struct dev *d, struct tensor y, struct tensor x)
{
    CHECK_LIKE(x, F | B | I, x);
    CHECK_LIKE(y, x.type == I32 ? I : F | B, x);
    if (tensor_count(y))
        RUN(cast, y, x);
}

void op_matmul(struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags)
{
    int64_t k = a.dim[flags & MM_TA ? 0 : 1];
    int64_t m = a.dim[flags & MM_TA ? 1 : 0], n = b.dim[flags & MM_TB ? 0 : 1];

    REQUIRE(a.ndim == 2 && b.ndim == 2 && !(flags & ~(MM_TA | MM_TB | MM_ADD)));
    CHECK_LIKE(a, F | B, a);
    if (flags & MM_TB)
        CHECK(b, as(a), n, k);
    else
        CHECK(b, as(a), k, n);
    CHECK(c, F | as(a), m, n);
    if (m == 0 || n == 0)
        return;
    if (k)
        RUN(matmul, c, a, b, flags);
    else if (!(flags & MM_ADD))
        op_fill(d, c, 0);
}

void op_embed(struct dev *d, struct tensor y, struct tensor w, const int32_t *token)
{
    CHECK(w, F | B | DENSE, w.dim[0], w.dim[1]);
    CHECK(y, F | as(w), y.dim[0], w.dim[1]);
    if (tensor_count(y))
        RUN(embed, y, w, token);
}

void op_embed_bwd(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token)
{
    CHECK(dw, F | DENSE, dw.dim[0], dw.dim[1]);
    CHECK(dy, F | B, dy.dim[0], dw.dim[1]);
    if (tensor_count(dy))
        RUN(embed_bwd, dw, dy, token);
}

void op_add(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    CHECK_LIKE(y, F | B, y);
    CHECK_LIKE(a, F | B, y);
    CHECK_LIKE(b, F | B, y);
    if (tensor_count(y))
        RUN(add, y, a, b);
}

void op_map(struct dev *d, enum map f, struct tensor y, struct tensor x)
{
    CHECK_LIKE(x, F | B, x);
    CHECK_LIKE(y, as(x), x);
    if (tensor_count(y))
        RUN(map, f, y, x);
}

void op_map_bwd(struct dev *d, enum map f, struct tensor dx, struct tensor dy, struct tensor x)
{
    CHECK_LIKE(x, F | B, x);
    CHECK_LIKE(dx, as(x), x);
    CHECK_LIKE(dy, as(x), x);
    if (tensor_count(x))
        RUN(map_bwd, f, dx, dy, x);
}

void op_mul(struct dev *d, struct tensor y, struct tensor x, struct tensor s, bool add)
{
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(y, as(x), x);
    if (s.ndim == 1)
        CHECK(s, F | DENSE, x.dim[1]);
    else
        CHECK(s, F | as(x), x.dim[0], x.dim[1]);
    if (tensor_count(x))
        RUN(mul, y, x, s, add);
}

void op_mul_bwd(struct dev *d, struct tensor dx, struct tensor ds,
                struct tensor dy, struct tensor x, struct tensor s, bool add)
{
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(dy, as(x), x);
    if (s.ndim == 1)
        CHECK(s, F | DENSE, x.dim[1]);
    else
        CHECK(s, F | as(x), x.dim[0], x.dim[1]);
    if (present(d, dx))
        CHECK_LIKE(dx, as(x), x);
    if (present(d, ds))
        CHECK_LIKE(ds, as(s) | (s.ndim == 1 ? DENSE : 0), s);
    if (tensor_count(x))
        RUN(mul_bwd, dx, ds, dy, x, s, add);
}

void op_swiglu(struct dev *d, struct tensor y, struct tensor gate, struct tensor up)
{
    CHECK_LIKE(y, F | B, y);
    CHECK_LIKE(gate, as(y), y);
    CHECK_LIKE(up, as(y), y);
    if (tensor_count(y))
        RUN(swiglu, y, gate, up);
}

void op_swiglu_bwd(struct dev *d, struct tensor dgate, struct tensor dup,
                   struct tensor dy, struct tensor gate, struct tensor up)
{
    CHECK_LIKE(dy, F | B, dy);
    CHECK_LIKE(dgate, as(dy), dy);
    CHECK_LIKE(dup, as(dy), dy);
    CHECK_LIKE(gate, as(dy), dy);
    CHECK_LIKE(up, as(dy), dy);
    if (tensor_count(dy))
        RUN(swiglu_bwd, dgate, dup, dy, gate, up);
}

void op_decay(struct dev *d, struct tensor dt, struct tensor decay, struct tensor x,
              struct tensor bias, struct tensor A_log, struct dt_range r)
{
    CHECK(x, F | B, x.dim[0], x.dim[1]);
    CHECK_LIKE(dt, F, x);
    CHECK_LIKE(decay, F, x);
    CHECK(bias, F | DENSE, x.dim[1]);
    CHECK(A_log, F | DENSE, x.dim[1]);
    if (tensor_count(x))
        RUN(decay, dt, decay, x, bias, A_log, r);
}

void op_decay_bwd(struct dev *d, struct tensor dx, struct tensor dbias, struct tensor dA_log,
                  struct tensor ddt, struct tensor ddecay, struct tensor x,
                  struct tensor bias, struct tensor A_log, struct dt_range r)
{
    CHECK(x, F | B, x.dim[0], x.dim[1]);
    CHECK_LIKE(dx, as(x), x);
    CHECK(dbias, F | DENSE, x.dim[1]);
    CHECK(dA_log, F | DENSE, x.dim[1]);
    if (present(d, ddt))
        CHECK_LIKE(ddt, F, x);
    CHECK_LIKE(ddecay, F, x);
    CHECK(bias, F | DENSE, x.dim[1]);
    CHECK(A_log, F | DENSE, x.dim[1]);
    if (tensor_count(x))
        RUN(decay_bwd, dx, dbias, dA_log, ddt, ddecay, x, bias, A_log, r);
}

void op_gain(struct dev *d, struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s)
{
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(b, as(x), x);
    CHECK(b_scale, F | DENSE, x.dim[1]);
    CHECK(s, F | as(x), x.dim[0], x.dim[1]);
    if (tensor_count(x))
        RUN(gain, b, x, b_scale, s);
}

void op_gain_bwd(struct dev *d, struct tensor dx, struct tensor db_scale, struct tensor ds,
                 struct tensor db, struct tensor x, struct tensor b_scale, struct tensor s)
{
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(dx, as(x), x);
    CHECK_LIKE(db, as(x), x);
    CHECK(b_scale, F | DENSE, x.dim[1]);
    CHECK(db_scale, F | DENSE, x.dim[1]);
    CHECK(s, F | as(x), x.dim[0], x.dim[1]);
    CHECK_LIKE(ds, as(s), s);
    if (tensor_count(x))
        RUN(gain_bwd, dx, db_scale, ds, db, x, b_scale, s);
}

/* A matrix is one group: [T,C] seen as [T,1,C]. */
static struct tensor grouped(struct tensor t)
{
    if (t.ndim == 2) {
        t.dim[2] = t.dim[1];
        t.dim[1] = 1;
        t.ndim = 3;
    }
    return t;
}

void op_rmsnorm(struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                struct tensor z, enum gate g, float eps)
{
    x = grouped(x), y = grouped(y), z = grouped(z);
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(y, F | B, x);
    CHECK(rstd, F, x.dim[0], x.dim[1]);
    CHECK(w, F | DENSE, w.dim[0] == x.dim[2] ? x.dim[2] : x.dim[1] * x.dim[2]);
    if (g != GATE_NONE)
        CHECK_LIKE(z, as(y), x);
    if (tensor_count(x))
        RUN(rmsnorm, y, rstd, x, w, z, g, eps);
}

void op_rmsnorm_bwd(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                    struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add)
{
    x = grouped(x), dx = grouped(dx), dz = grouped(dz), dy = grouped(dy), z = grouped(z);
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(dx, as(x), x);
    CHECK_LIKE(dy, F | B, x);
    CHECK(rstd, F, x.dim[0], x.dim[1]);
    CHECK(w, F | DENSE, w.dim[0] == x.dim[2] ? x.dim[2] : x.dim[1] * x.dim[2]);
    CHECK_LIKE(dw, F | DENSE, w);
    if (g != GATE_NONE) {
        REQUIRE(!add);
        CHECK_LIKE(z, as(dy), x);
        CHECK_LIKE(dz, as(dy), x);
    }
    if (tensor_count(x))
        RUN(rmsnorm_bwd, dx, dw, dz, dy, x, w, z, rstd, g, add);
}

void op_l2norm(struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x)
{
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(y, as(x), x);
    CHECK(rnorm, F, x.dim[0], x.dim[1]);
    if (tensor_count(x))
        RUN(l2norm, y, rnorm, x);
}

void op_l2norm_bwd(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm)
{
    CHECK(y, F | B, y.dim[0], y.dim[1], y.dim[2]);
    CHECK_LIKE(dx, as(y), y);
    CHECK_LIKE(dy, as(y), y);
    CHECK(rnorm, F, y.dim[0], y.dim[1]);
    if (tensor_count(y))
        RUN(l2norm_bwd, dx, dy, y, rnorm);
}

void op_xent(struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits, const int32_t *target,
             float scale)
{
    CHECK(logits, F | B, logits.dim[0], logits.dim[1]);
    CHECK(loss, F | DENSE, logits.dim[0]);
    if (present(d, grad))
        CHECK_LIKE(grad, F | B, logits);
    if (tensor_count(logits))
        RUN(xent, loss, grad, logits, target, scale);
}

void op_conv(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
             struct tensor bias, struct tensor state, const struct seqs *s)
{
    int64_t C = x.dim[1], W = w.dim[1];

    CHECK(x, F | B, s->tokens, C);
    CHECK_LIKE(y, as(x), x);
    CHECK(w, F | DENSE, C, W);
    REQUIRE(W >= 1);
    if (present(d, bias))
        CHECK(bias, F | DENSE, C);
    if (present(d, state))
        CHECK(state, F | DENSE, s->n, W - 1, C);
    if (present(d, next))
        CHECK(next, F | DENSE, s->n, W - 1, C);
    if (C && (s->tokens || (s->n && present(d, next))))
        RUN(conv, y, next, x, w, bias, state, s);
}

void op_conv_bwd(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                 struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s)
{
    int64_t C = x.dim[1];

    CHECK(x, F | B, s->tokens, C);
    CHECK_LIKE(dx, as(x), x);
    CHECK_LIKE(dy, as(x), x);
    CHECK(w, F | DENSE, C, w.dim[1]);
    CHECK_LIKE(dw, F | DENSE, w);
    REQUIRE(w.dim[1] >= 1);
    if (present(d, bias)) {
        CHECK(bias, F | DENSE, C);
        CHECK_LIKE(dbias, F | DENSE, bias);
    }
    if (tensor_count(x))
        RUN(conv_bwd, dx, dw, dbias, dy, x, w, bias, s);
}

void op_rope(struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign)
{
    CHECK(x, F | B, x.dim[0], x.dim[1], x.dim[2]);
    CHECK_LIKE(y, as(x), x);
    REQUIRE(x.dim[2] % 2 == 0 && (sign == 1 || sign == -1));
    if (tensor_count(x))
        RUN(rope, y, x, pos, base, sign);
}

void op_sumsq(struct dev *d, struct tensor sum, struct tensor x)
{
    CHECK(sum, F, 1);
    CHECK_LIKE(x, F | B, x);
    if (tensor_count(x))
        RUN(sumsq, sum, x);
}

void op_adamw(struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
              struct tensor g, const struct adamw *h)
{
    CHECK(master, F | DENSE, master.dim[0]);
    CHECK_LIKE(w, F | B | DENSE, master);
    CHECK_LIKE(m, F | DENSE, master);
    CHECK_LIKE(v, F | DENSE, master);
    CHECK_LIKE(g, F | DENSE, master);
    REQUIRE(h->step >= 1);
    if (tensor_count(master))
        RUN(adamw, w, master, m, v, g, h);
}
