/* op_step.c - the door of the fused verbs, and the verbs that op_products stands for. */
#include "op_step.h"

static void check(struct dev *d, struct tensor t, int64_t rows, int64_t cols)
{
    REQUIRE(t.ndim == 2 && t.dim[0] == rows && t.dim[1] == cols && (d->dry || t.data || !tensor_count(t)));
    op_trace(d, t);
}

static void one_by_one(struct dev *d, const struct products *p)
{
    size_t mark = arena_mark(&d->temp);
    struct tensor u = p->x;

    if (p->before != BEFORE_NONE) {
        u = tensor_like(p->x);
        u.type = p->w[0].type;
        u = arena_push(&d->temp, u);
    }
    if (p->before == BEFORE_NORM) {
        struct tensor rstd = arena_push(&d->temp, SHAPE(F32, u.dim[0], 1));
        op_rmsnorm(d, u, rstd, p->x, p->norm, (struct tensor){ 0 }, GATE_NONE, p->eps);
    } else if (p->before == BEFORE_SWIGLU)
        op_swiglu(d, u, p->x, p->up);
    for (int i = 0; i < p->n; i++)
        op_matmul(d, p->y[i], u, p->w[i], MM_TB | (p->add ? MM_ADD : 0));
    arena_pop(&d->temp, mark);
}

void op_products(struct dev *d, const struct products *p)
{
    int64_t T = p->x.dim[0], K = p->x.dim[1];

    REQUIRE(p->n >= 1 && p->n <= PRODUCTS);
    if (!d->ops->products || !products_few(T, K) || d->alone) {
        one_by_one(d, p);
        return;
    }
    check(d, p->x, T, K);
    if (p->before == BEFORE_SWIGLU)
        check(d, p->up, T, K);
    if (p->before == BEFORE_NORM)
        REQUIRE(p->x.type == F32 && p->norm.type == F32 && tensor_count(p->norm) == K);
    else
        REQUIRE(p->x.type == p->w[0].type && (p->before == BEFORE_NONE || p->up.type == p->w[0].type));
    for (int i = 0; i < p->n; i++) {
        check(d, p->w[i], p->w[i].dim[0], K);
        check(d, p->y[i], T, p->w[i].dim[0]);
        REQUIRE(p->w[i].type == p->w[0].type && (p->y[i].type == F32 || p->y[i].type == p->w[0].type));
    }
    if (T && !d->dry)
        d->ops->products(d, p);
}

/* Sizes for which a block has threads and shared memory enough. */
bool op_recall_fits(const struct dev *d, const struct recall *r, const struct seqs *s)
{
    return d->ops->recall && s->longest == 1 && r->K <= 256 && r->V <= 256 && r->W <= 16 && s->tokens < 65536;
}

void op_recall(struct dev *d, const struct recall *r, const struct seqs *s)
{
    int64_t T = s->tokens, H = r->dt.dim[1], channels = 2 * r->K + r->V;

    REQUIRE(op_recall_fits(d, r, s));
    check(d, r->y, T, H * r->V);
    check(d, r->qkv, T, H * channels);
    check(d, r->dt, T, H);
    check(d, r->s, T, H);
    if (r->gate.ndim)
        check(d, r->gate, T, H * r->V);
    if (r->B.ndim) {
        check(d, r->rank, T, r->B.dim[1]);
        check(d, r->B, H * r->V, r->B.dim[1]);
    }
    for (int i = 0; i < STEP_TAILS; i++) {
        op_trace(d, r->tail[i]);
        REQUIRE(tensor_count(r->conv[i]) == H * (i == 2 ? r->V : r->K) * r->W);
    }
    for (int i = 0; i < 2; i++)
        op_trace(d, r->state[i]);
    if (!d->dry)
        d->ops->recall(d, r, s);
}
