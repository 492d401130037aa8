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

struct joined params_join(const struct param *w, int n)
{
    struct joined r = { w->value, w->grad, 1 };

    for (const struct param *a = w + 1; r.n < n && a->bucket == w->bucket && a->flags == w->flags &&
                                        a->offset == w->offset + tensor_count(r.value); a++, r.n++) {
        REQUIRE(a->value.dim[1] == r.value.dim[1] && a->value.dim[2] == r.value.dim[2]);
        r.value.dim[0] += a->value.dim[0];
        r.grad.dim[0] = r.value.dim[0];
    }
    return r;
}

void linears_forward(struct dev *d, struct tensor y, struct tensor x, const struct param *w, int n)
{
    int64_t from = 0;
    struct joined r;

    for (int i = 0; i < n; i += r.n) {
        r = params_join(w + i, n - i);
        op_matmul(d, tensor_cols(y, from, r.value.dim[0]), x, r.value, MM_TB);
        from += r.value.dim[0];
    }
    REQUIRE(from == y.dim[1]);
}

void linears_backward(struct dev *d, struct tensor dx, struct tensor dy, struct tensor x, const struct param *w, int n,
                      bool add)
{
    size_t mark = arena_mark(&d->temp);
    int64_t from = 0;
    struct joined r;

    dy = as_type(d, dy, w->value.type);
    for (int i = 0; i < n; i += r.n) {
        struct tensor part;
        r = params_join(w + i, n - i);
        part = tensor_cols(dy, from, r.value.dim[0]);
        if (dx.ndim)
            op_matmul(d, dx, part, r.value, add || i ? MM_ADD : 0);
        if (!(w[i].flags & PARAM_FROZEN))
            op_matmul(d, r.grad, part, x, MM_TA | MM_ADD);
        from += r.value.dim[0];
    }
    REQUIRE(from == dy.dim[1]);
    arena_pop(&d->temp, mark);
}

void linear_forward(struct dev *d, struct tensor y, struct tensor x, const struct param *w)
{
    linears_forward(d, y, x, w, 1);
}

void linear_backward(struct dev *d, struct tensor dx, struct tensor dy, struct tensor x, const struct param *w,
                     bool add)
{
    linears_backward(d, dx, dy, x, w, 1, add);
}

int layer_add(struct layer *l, const char *prefix, const char *name, struct tensor shape, unsigned flags,
              draw_fn *draw, float a, float b)
{
    struct param p = { .value = shape, .flags = flags, .bucket = BUCKET_LAYER + l->index, .draw = draw, .a = a,
                       .b = b };

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
