/* model_right.c - whether the likeliest next token is the target, at few of many tokens.
 *
 *   right  <=>  -log softmax(2^30 logits)[target] < log 2
 *
 * A power of two scales a float exactly, and two different logits that matter differ by more than 2^-23, so that the
 * sharpened softmax is 1 at the greatest logit and 0 elsewhere. Logits that are equal to the last bit share it. */
#include "layer.h"
#include "model.h"
#include <math.h>

static void right_head(struct model *m, struct tensor x, const int32_t *target, struct tensor loss)
{
    struct dev *d = m->dev;
    int64_t n = x.dim[0], step = ((int64_t)1 << (d->kind == DEV_CUDA ? 27 : 22)) / m->cfg.vocab;
    size_t mark = arena_mark(&d->temp);
    struct tensor normed = arena_push(&d->temp, SHAPE(d->type, n, 1, m->cfg.width));
    struct tensor rstd = arena_push(&d->temp, SHAPE(F32, n, 1)), sharp = arena_push(&d->temp, SHAPE(F32, 1)), part;

    step = step < 16 ? 16 : step;
    step = step < n ? step : n;
    part = arena_push(&d->temp, SHAPE(F32, step, m->cfg.vocab));
    op_fill(d, sharp, 0x1p30f);
    op_rmsnorm(d, normed, rstd, tensor_heads(x, 1), m->params.at[m->norm].value, (struct tensor){ 0 }, GATE_NONE,
               m->cfg.eps);
    for (int64_t t = 0; t < n; t += step) {
        int64_t rows = t + step < n ? step : n - t;
        struct tensor logits = tensor_rows(part, 0, rows);
        linear_forward(d, logits, tensor_flat(tensor_rows(normed, t, rows)), &m->params.at[m->head]);
        op_mul(d, tensor_heads(logits, 1), tensor_heads(logits, 1), sharp, false);
        op_xent(d, tensor_rows(loss, t, rows), (struct tensor){ 0 }, logits, target + t, 0);
    }
    arena_pop(&d->temp, mark);
}

int64_t model_right(struct model *m, const struct batch *b, const int32_t *at, int64_t n, bool *right)
{
    struct dev *d = m->dev;
    size_t base = arena_mark(&d->keep);
    struct tensor x = arena_push(&d->keep, SHAPE(F32, b->seqs.tokens, m->cfg.width));
    struct tensor some = arena_push(&d->keep, SHAPE(F32, n, m->cfg.width)), loss = arena_push(&d->keep, SHAPE(F32, n));
    struct tensor id = arena_push(&d->keep, SHAPE(I32, n));
    int32_t *target = mem_new((size_t)n + 1, sizeof *target);
    float *host = mem_new((size_t)n + 1, sizeof *host);
    int64_t total = 0;

    model_enter(m, b, x);
    for (int i = 0; i < m->cfg.layers; i++)
        model_pass(m, b, NULL, i, x);
    op_put(d, id.data, at, (size_t)n * 4);
    op_embed(d, some, x, id.data);                   /* the rows of x are a table */
    for (int64_t i = 0; i < n; i++)
        target[i] = b->target[at[i]];
    op_put(d, id.data, target, (size_t)n * 4);
    right_head(m, some, id.data, loss);
    op_get(d, host, loss.data, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        bool yes = host[i] < 0.6931f;
        total += yes;
        if (right)
            right[i] = yes;
    }
    free(target);
    free(host);
    arena_pop(&d->keep, base);
    return total;
}
