/* check_op_rows.c - how the verbs over rows and sequences, and those of the optimizer, are called. */
#include "check_op_plan.h"

static const float EPS = 1e-5f, LOSS_SCALE = 0.25f, ROPE_BASE = 10000;

/* Documents of all awkward lengths, then one for the rest; of 752 tokens in large rows. */
static void documents(struct op_plan *p, const struct op_case *c)
{
    static const int32_t odd[] = { 5, 0, 1, 64, 2, 0, 3, 65, 7, 130, 0 };
    int32_t left = (int32_t)c->n[0];

    while (p->nseq < OP_SEQS - 1 && left) {
        int32_t length = c->flags & CASE_LARGE ? 752 : odd[p->nseq % (int)LEN(odd)];
        if (length > left)
            length = left;
        p->start[p->nseq + 1] = p->start[p->nseq] + length;
        p->nseq++;
        left -= length;
    }
    p->start[p->nseq + 1] = p->start[p->nseq] + left;
    p->nseq++;
}

/* [T,G,C]; the weight is per group, or of one group for all when CASE_WEIGHT. The residual x may be F32. */
static void rmsnorm_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t T = c->n[0], G = c->n[1], C = c->n[2];
    enum dtype X = c->flags & CASE_MIXED ? F32 : p->type;

    out(p, "y", SHAPE(p->type, T, G, C));
    out(p, "rstd", SHAPE(F32, T, G));
    in(p, "x", SHAPE(X, T, G, C));
    weight(p, "w", SHAPE(F32, c->flags & CASE_WEIGHT ? C : G * C));
    if (c->flags & CASE_GATE)
        in(p, "z", SHAPE(p->type, T, G, C));
    else
        none(p, "z");
}
static void rmsnorm_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_rmsnorm(d, a[0], a[1], a[2], a[3], a[4], (enum gate)(c->flags & CASE_GATE), EPS);
}

static void rmsnorm_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t T = c->n[0], G = c->n[1], C = c->n[2];
    bool gate = c->flags & CASE_GATE;
    enum dtype X = c->flags & CASE_MIXED ? F32 : p->type;

    arg(p, "dx", c->flags & CASE_ADD ? ARG_ACC : ARG_OUT, SHAPE(X, T, G, C));
    grad(p, "dw", SHAPE(F32, c->flags & CASE_WEIGHT ? C : G * C));
    if (gate)
        out(p, "dz", SHAPE(p->type, T, G, C));
    else
        none(p, "dz");
    in(p, "dy", SHAPE(p->type, T, G, C));
    in(p, "x", SHAPE(X, T, G, C));
    weight(p, "w", SHAPE(F32, c->flags & CASE_WEIGHT ? C : G * C));
    if (gate)
        in(p, "z", SHAPE(p->type, T, G, C));
    else
        none(p, "z");
    in(p, "rstd", SHAPE(F32, T, G));
}
static void rmsnorm_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_rmsnorm_bwd(d, a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], (enum gate)(c->flags & CASE_GATE),
                   c->flags & CASE_ADD);
}

static void l2norm_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(A, T, H, V));
    out(p, "rnorm", SHAPE(F32, T, H));
    in(p, "x", SHAPE(A, T, H, V));
}
static void l2norm_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_l2norm(d, a[0], a[1], a[2]);
}

static void l2norm_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "dx", SHAPE(A, T, H, V));
    in(p, "dy", SHAPE(A, T, H, V));
    in(p, "y", SHAPE(A, T, H, V));
    in(p, "rnorm", SHAPE(F32, T, H));
}
static void l2norm_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_l2norm_bwd(d, a[0], a[1], a[2], a[3]);
}

static void xent_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    arg(p, "loss", ARG_OUT, SHAPE(F32, T))->dense = true;
    if (c->flags & CASE_SCALE)
        out(p, "grad", SHAPE(A, T, H));
    else
        none(p, "grad");
    in(p, "logits", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
    p->arg[2].low = -8, p->arg[2].high = 8;
    ids(p, "target", T, -1, H);
}
static void xent_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_xent(d, a[0], a[1], a[2], a[3].data, LOSS_SCALE);
}

static void conv_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t T = c->n[0], C = c->n[1], W = c->n[2];

    documents(p, c);
    out(p, "y", SHAPE(p->type, T, C));
    if (c->flags & CASE_NEXT)
        arg(p, "next", ARG_OUT, SHAPE(F32, p->nseq, W - 1, C))->dense = true;
    else
        none(p, "next");
    in(p, "x", SHAPE(p->type, T, C));
    weight(p, "w", SHAPE(F32, C, W));
    if (c->flags & CASE_BIAS)
        weight(p, "bias", SHAPE(F32, C));
    else
        none(p, "bias");
    if (c->flags & CASE_STATE)
        weight(p, "state", SHAPE(F32, p->nseq, W - 1, C));
    else
        none(p, "state");
    p->flops = 2.0 * (double)T * (double)C * (double)W;
}
static void conv_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c;
    op_conv(d, a[0], a[1], a[2], a[3], a[4], a[5], s);
}

static void conv_bwd_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t T = c->n[0], C = c->n[1], W = c->n[2];

    documents(p, c);
    out(p, "dx", SHAPE(p->type, T, C));
    grad(p, "dw", SHAPE(F32, C, W));
    if (c->flags & CASE_BIAS)
        grad(p, "dbias", SHAPE(F32, C));
    else
        none(p, "dbias");
    in(p, "dy", SHAPE(p->type, T, C));
    in(p, "x", SHAPE(p->type, T, C));
    weight(p, "w", SHAPE(F32, C, W));
    if (c->flags & CASE_BIAS)
        weight(p, "bias", SHAPE(F32, C));
    else
        none(p, "bias");
    p->flops = 6.0 * (double)T * (double)C * (double)W;
}
static void conv_bwd_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c;
    op_conv_bwd(d, a[0], a[1], a[2], a[3], a[4], a[5], a[6], s);
}

static void rope_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    out(p, "y", SHAPE(A, T, H, V));
    in(p, "x", SHAPE(A, T, H, V));
    ids(p, "pos", T, 0, 5000);
}
static void rope_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)s;
    op_rope(d, a[0], a[1], a[2].data, ROPE_BASE, c->flags & CASE_BACK ? -1 : 1);
}

static void sumsq_plan(struct op_plan *p, const struct op_case *c)
{
    SIZES;
    grad(p, "sum", SHAPE(F32, 1));
    in(p, "x", SHAPE(c->flags & CASE_MIXED ? F32 : A, T, H));
}
static void sumsq_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    (void)c, (void)s;
    op_sumsq(d, a[0], a[1]);
}

static void adamw_plan(struct op_plan *p, const struct op_case *c)
{
    int64_t n = c->n[0];

    arg(p, "w", ARG_OUT, SHAPE(c->flags & CASE_MIXED ? F32 : p->type, n))->dense = true;
    grad(p, "master", SHAPE(F32, n));
    grad(p, "m", SHAPE(F32, n));
    grad(p, "v", SHAPE(F32, n));
    p->arg[3].low = 0;
    weight(p, "g", SHAPE(F32, n));
}
static void adamw_call(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s)
{
    struct adamw h = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-15f, .decay = 0.1f, .scale = 0.7f,
                       .step = c->flags & CASE_BACK ? 100000 : 3 };
    (void)s;
    op_adamw(d, a[0], a[1], a[2], a[3], a[4], &h);
}

#define ROW(x) { #x, x##_plan, x##_call }
const struct op_row op_rows_more[] = {
    ROW(rmsnorm), ROW(rmsnorm_bwd), ROW(l2norm), ROW(l2norm_bwd), ROW(xent), ROW(conv), ROW(conv_bwd), ROW(rope),
    ROW(sumsq), ROW(adamw),
    { NULL, NULL, NULL },
};
