/* layer.c - the pieces every layer shares: linear maps across storage types, parameters, carried state. */
#include "layer.h"

struct tensor as_type(struct dev *d, struct tensor t, enum dtype type)
{
    struct tensor y;

    if (t.type == type)
        return t;
    y = tensor_like(t);
    y.type = type;
    y = arena_push(&d->temp, y);
    op_cast(d, y, t);
    return y;
}

void linear_forward(struct dev *d, struct tensor y, struct tensor x, const struct param *w)
{
    op_matmul(d, y, x, w->value, MM_TB);
}

void linear_backward(struct dev *d, struct tensor dx, struct tensor dy, struct tensor x, const struct param *w,
                     bool add)
{
    size_t mark = arena_mark(&d->temp);

    dy = as_type(d, dy, w->value.type);
    if (dx.ndim)
        op_matmul(d, dx, dy, w->value, add ? MM_ADD : 0);
    if (!(w->flags & PARAM_FROZEN))
        op_matmul(d, w->grad, dy, x, MM_TA | MM_ADD);
    arena_pop(&d->temp, mark);
}

int layer_add(struct layer *l, const char *prefix, const char *name, struct tensor shape, unsigned flags,
              draw_fn *draw, float a, float b)
{
    struct param p = { .value = shape, .flags = flags, .bucket = BUCKET_LAYER + l->index, .draw = draw, .a = a, .b = b };

    REQUIRE(str_format(p.name, sizeof p.name, "%s%s", prefix, name));
    return params_add(l->params, p);
}

void layer_carry(const struct layer *l, const struct pass *p, struct scan_io *x, int states)
{
    for (int i = 0; p->state && i < states; i++) {
        if (!p->fresh)
            x->state[i] = p->state[l->index][i];
        x->next[i] = p->state[l->index][i];
    }
}

struct tensor layer_tail_in(const struct layer *l, const struct pass *p, int i)
{
    return p->state && !p->fresh ? p->state[l->index][SCAN_STATES + i] : (struct tensor){ 0 };
}

struct tensor layer_tail_out(const struct layer *l, const struct pass *p, int i)
{
    return p->state ? p->state[l->index][SCAN_STATES + i] : (struct tensor){ 0 };
}
