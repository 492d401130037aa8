/* optim.c - clip by the global norm, then AdamW on this rank's slice of every bucket.
 *
 * Within a bucket [0,decayed) gets weight decay, [decayed,trained) none, the rest is frozen; [gain[0],gain[1])
 * has its own rate. */
#include "op.h"
#include "optim.h"
#include <math.h>

static struct tensor slice_of(const struct comm *c, const struct bucket *b, struct tensor whole)
{
    return tensor_rows(whole, c->rank * b->slice, b->slice);
}

/* All slices of the bucket: what is trained. */
static struct tensor slices_of(const struct comm *c, const struct bucket *b, struct tensor whole)
{
    return tensor_rows(whole, 0, c->world * b->slice);
}

void optim_reduce(struct comm *c, struct bucket *b)
{
    if (b->slice)
        c->scatter(c, slice_of(c, b, b->grad), slices_of(c, b, b->grad));
}

/* Elements [lo,hi) of the bucket as far as this rank owns them; *from is relative to its slice. */
static int64_t owned(const struct comm *c, const struct bucket *b, int64_t lo, int64_t hi, int64_t *from)
{
    int64_t first = c->rank * b->slice, last = first + b->slice;

    lo = lo > first ? lo : first;
    hi = hi < last ? hi : last;
    *from = lo - first;
    return hi > lo ? hi - lo : 0;
}

static float grad_norm(struct params *p, struct dev *d, struct comm *c)
{
    size_t mark = arena_mark(&d->temp);
    struct tensor sum = arena_push(&d->temp, SHAPE(F32, 1));
    float total;

    op_fill(d, sum, 0);
    for (int i = 0; i < p->nbucket; i++) {
        struct bucket *b = &p->bucket[i];
        int64_t from, n = owned(c, b, 0, b->trained, &from);
        if (n)
            op_sumsq(d, sum, tensor_rows(slice_of(c, b, b->grad), from, n));
    }
    c->sum(c, sum);
    op_get(d, &total, sum.data, sizeof total);
    arena_pop(&d->temp, mark);
    return sqrtf(total);
}

static void update(struct dev *d, struct comm *c, struct bucket *b, int64_t lo, int64_t hi, const struct adamw *h)
{
    int64_t from, n = owned(c, b, lo, hi, &from);

    if (n)
        op_adamw(d, tensor_rows(slice_of(c, b, b->value), from, n), tensor_rows(b->master, from, n),
                 tensor_rows(b->m, from, n), tensor_rows(b->v, from, n),
                 tensor_rows(slice_of(c, b, b->grad), from, n), h);
}

float optim_step(struct optim *o, struct params *p, struct dev *d, struct comm *c)
{
    float norm = grad_norm(p, d, c) * o->unit;
    struct adamw h = o->h, bare, gain, bare_gain;

    if (!isfinite(norm))
        return norm;
    h.scale = o->unit * (o->clip > 0 && norm > o->clip ? o->clip / (norm + 1e-6f) : 1);
    bare = gain = h;
    bare.decay = 0;
    gain.lr *= o->gain_rate > 0 ? o->gain_rate : 1;
    bare_gain = gain;
    bare_gain.decay = 0;
    for (int i = 0; i < p->nbucket; i++) {
        struct bucket *b = &p->bucket[i];
        update(d, c, b, 0, b->gain[0], &h);
        update(d, c, b, b->gain[0], b->decayed, &gain);
        update(d, c, b, b->decayed, b->gain[1], &bare_gain);
        update(d, c, b, b->gain[1], b->trained, &bare);
        if (b->slice)
            c->gather(c, slices_of(c, b, b->value), slice_of(c, b, b->value));
    }
    return norm;
}

const struct param *optim_culprit(struct params *p, struct dev *d)
{
    const struct param *found = NULL;
    size_t mark = arena_mark(&d->temp);
    struct tensor sum = arena_push(&d->temp, SHAPE(F32, 1));

    for (int i = 0; i < p->n && !found; i++) {
        float x;
        if (p->at[i].flags & PARAM_FROZEN)
            continue;
        op_fill(d, sum, 0);
        op_sumsq(d, sum, tensor_flat(p->at[i].grad));
        op_get(d, &x, sum.data, sizeof x);
        if (!isfinite(x))
            found = &p->at[i];
    }
    arena_pop(&d->temp, mark);
    return found;
}
