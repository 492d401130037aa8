/* check_op_plain.c - how the dense and the elementwise verbs are called. */
#include "check_op_plan.h"
#include "op_step.h"
#include <math.h>

static void fill_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(A, T, H));
}
static void fill_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_fill(d, a[0], 1.5f);
}

static void cast_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(c->flags & CASE_BACK ? F32 : A, T, H));
    in(p, "x", SHAPE(c->flags & CASE_BACK ? A : F32, T, H));
}
static void cast_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_cast(d, a[0], a[1]);
}

static void matmul_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t m = c->n[0], n = c->n[1], k = c->n[2];
    bool add = c->flags & MM_ADD, ta = c->flags & MM_TA, tb = c->flags & MM_TB;

    arg(p, "c", add ? ARG_ACC : ARG_OUT, SHAPE(c->flags & CASE_MIXED ? F32 : p->type, m, n));
    in(p, "a", SHAPE(p->type, ta ? k : m, ta ? m : k));
    in(p, "b", SHAPE(p->type, tb ? n : k, tb ? k : n));
    p->flops = 2.0 * (double)m * (double)n * (double)k;
}
static void matmul_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_matmul(d, a[0], a[1], a[2], c->flags & (MM_TA | MM_TB | MM_ADD));
}

static void products_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t T = c->n[0], n = c->n[1], K = c->n[2];
    enum before before = (enum before)(c->flags & CASE_GATE);
    enum op_role role = c->flags & CASE_ADD ? ARG_ACC : ARG_OUT;

    arg(p, "y", role, SHAPE(p->type, T, n));
    arg(p, "y2", role, SHAPE(p->type, T, 2 * n));
    in(p, "x", SHAPE(before == BEFORE_NORM ? F32 : p->type, T, K));
    weight(p, "norm", SHAPE(F32, K));
    in(p, "up", SHAPE(p->type, T, K));
    in(p, "w", SHAPE(p->type, n, K));
    in(p, "w2", SHAPE(p->type, 2 * n, K));
}
static void products_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    struct arena was = d->temp;          /* where the verb is several, they need a place for what is between them */
    size_t room = (size_t)(c->n[0] * (c->n[2] + 1)) * 4 + 4 * ARENA_ALIGN;

    (void)s;
    d->temp = (struct arena){ .base = op_alloc(d, room), .size = room };
    op_products(d, &(struct products){ .n = 2, .y = { a[0], a[1] }, .w = { a[5], a[6] }, .x = a[2], .norm = a[3],
                                       .up = a[4], .before = (enum before)(c->flags & CASE_GATE),
                                       .add = c->flags & CASE_ADD, .eps = 1e-6f });
    op_release(d, d->temp.base);
    d->temp = was;
}

static void embed_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, V));
    weight(p, "w", SHAPE(A, H, V));
    ids(p, "token", T, 0, H);
    p->bytes = (double)(T * V) * (double)(dtype_size(A) + dtype_size(p->arg[0].shape.type));
}
static void embed_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_embed(d, a[0], a[1], a[2].data);
}

static void embed_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    grad(p, "dw", SHAPE(F32, H, V));
    in(p, "dy", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, V));
    ids(p, "token", T, 0, H);
    p->bytes = (double)(T * V) * (double)(8 + dtype_size(p->arg[1].shape.type));
}
static void embed_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_embed_bwd(d, a[0], a[1], a[2].data);
}

static void add_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
    in(p, "a", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
    in(p, "b", SHAPE(A, T, H));
}
static void add_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_add(d, a[0], a[1], a[2]);
}

static void map_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(A, T, H));
    in(p, "x", SHAPE(A, T, H));
    p->arg[1].low = -12, p->arg[1].high = 12;
}
static void map_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_map(d, (enum map)(c->flags & CASE_GATE), a[0], a[1]);
}

static void map_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "dx", SHAPE(A, T, H));
    in(p, "dy", SHAPE(A, T, H));
    in(p, "x", SHAPE(A, T, H));
}
static void map_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_map_bwd(d, (enum map)(c->flags & CASE_GATE), a[0], a[1], a[2]);
}

static void mul_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    arg(p, "y", c->flags & CASE_ADD ? ARG_ACC : ARG_OUT, SHAPE(A, T, H, V));
    in(p, "x", SHAPE(A, T, H, V));
    factor(p, c);
}
static void mul_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_mul(d, a[0], a[1], a[2], c->flags & CASE_ADD);
}

static void mul_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    if (c->flags & CASE_ABSENT)
        none(p, "dx");
    else
        arg(p, "dx", c->flags & CASE_ADD ? ARG_ACC : ARG_OUT, SHAPE(A, T, H, V));
    if (c->flags & CASE_WEIGHT)
        grad(p, "ds", SHAPE(F32, H));
    else if (c->flags & CASE_BACK)
        none(p, "ds");
    else
        out(p, "ds", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
    in(p, "dy", SHAPE(A, T, H, V));
    in(p, "x", SHAPE(A, T, H, V));
    factor(p, c);
}
static void mul_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_mul_bwd(d, a[0], a[1], a[2], a[3], a[4], c->flags & CASE_ADD);
}

static void swiglu_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(A, T, H));
    in(p, "gate", SHAPE(A, T, H));
    in(p, "up", SHAPE(A, T, H));
}
static void swiglu_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_swiglu(d, a[0], a[1], a[2]);
}

static void swiglu_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "dgate", SHAPE(A, T, H));
    out(p, "dup", SHAPE(A, T, H));
    in(p, "dy", SHAPE(A, T, H));
    in(p, "gate", SHAPE(A, T, H));
    in(p, "up", SHAPE(A, T, H));
}
static void swiglu_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_swiglu_bwd(d, a[0], a[1], a[2], a[3], a[4]);
}

static struct dt_range range(const struct op_case *c)
{
    return c->flags & CASE_CLAMP ? (struct dt_range){ 0.5f, 1.2f } : (struct dt_range){ 0, INFINITY };
}
static void decay_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "dt", SHAPE(F32, T, H));
    out(p, "decay", SHAPE(F32, T, H));
    in(p, "x", SHAPE(A, T, H));
    weight(p, "bias", SHAPE(F32, H));
    weight(p, "A_log", SHAPE(F32, H));
}
static void decay_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_decay(d, a[0], a[1], a[2], a[3], a[4], range(c));
}

static void decay_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "dx", SHAPE(A, T, H));
    grad(p, "dbias", SHAPE(F32, H));
    grad(p, "dA_log", SHAPE(F32, H));
    if (c->flags & CASE_ABSENT)
        none(p, "ddt");
    else
        in(p, "ddt", SHAPE(F32, T, H));
    in(p, "ddecay", SHAPE(F32, T, H));
    in(p, "x", SHAPE(A, T, H));
    weight(p, "bias", SHAPE(F32, H));
    weight(p, "A_log", SHAPE(F32, H));
}
static void decay_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_decay_bwd(d, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], range(c));
}

static void gain_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "b", SHAPE(A, T, H, V));
    in(p, "x", SHAPE(A, T, H, V));
    weight(p, "b_scale", SHAPE(F32, H));
    factor(p, c);
}
static void gain_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_gain(d, a[0], a[1], a[2], a[3]);
}

static void gain_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "dx", SHAPE(A, T, H, V));
    grad(p, "db_scale", SHAPE(F32, H));
    acc(p, "ds", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
    in(p, "db", SHAPE(A, T, H, V));
    in(p, "x", SHAPE(A, T, H, V));
    weight(p, "b_scale", SHAPE(F32, H));
    factor(p, c);
}
static void gain_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_gain_bwd(d, a[0], a[1], a[2], a[3], a[4], a[5], a[6]);
}

/* Every verb, by name: ROW(x) is { "x", x_plan, x_call }. */
#define ROW(x) { #x, x##_plan, x##_call }
const struct op_row op_rows_plain[] = {
    ROW(fill), ROW(cast), ROW(matmul), ROW(products), ROW(embed), ROW(embed_bwd), ROW(add), ROW(map),
    ROW(map_bwd), ROW(mul), ROW(mul_bwd), ROW(swiglu), ROW(swiglu_bwd), ROW(decay),
    ROW(decay_bwd), ROW(gain), ROW(gain_bwd),
    { NULL, NULL, NULL },
};
