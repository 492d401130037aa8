/* model.c - forward read down, backward read up: blocks on a stack that backward pops. */
#include "layer.h"
#include "model.h"
#include "model_parts.h"

/* y = normed input of the next piece, in the storage type; the residual stream itself is F32. */
static void norm_forward(struct model *m, struct arena *a, const struct param *w, struct tensor x,
                         struct tensor *y, struct tensor *rstd)
{
    int64_t T = x.dim[0];

    *y = arena_push(a, SHAPE(m->dev->type, T, m->cfg.width));
    *rstd = arena_push(a, SHAPE(F32, T, 1));
    op_rmsnorm(m->dev, tensor_heads(*y, 1), *rstd, tensor_heads(x, 1), w->value, (struct tensor){ 0 }, GATE_NONE,
               m->cfg.eps);
}

/* g += the gradient at x of norm(x), given that at its output. */
static void norm_backward(struct model *m, struct tensor g, const struct param *w, struct tensor dy,
                          struct tensor x, struct tensor rstd)
{
    size_t mark = arena_mark(&m->dev->temp);
    struct tensor dx = arena_push(&m->dev->temp, tensor_like(x));

    op_rmsnorm_bwd(m->dev, tensor_heads(dx, 1), w->grad, (struct tensor){ 0 }, tensor_heads(dy, 1),
                   tensor_heads(x, 1), w->value, (struct tensor){ 0 }, rstd, GATE_NONE);
    op_add(m->dev, g, g, dx);
    arena_pop(&m->dev->temp, mark);
}

/* y = x + down(silu(gate n) * up n), n = norm(x) */
static void mlp_forward(struct model *m, const struct pass *p, int i, struct tensor y, struct tensor x)
{
    struct dev *d = m->dev;
    struct model_block *b = &m->block[i];
    struct arena *a = p->train ? &d->keep : &d->temp;
    size_t mark = arena_mark(&d->temp);
    int64_t T = x.dim[0];
    struct tensor act, out;

    norm_forward(m, a, model_param(m, i, MLP_NORM), x, &b->mid_normed, &b->mid_rstd);
    b->gate = arena_push(a, SHAPE(d->type, T, m->cfg.ffn));
    b->up = arena_push(a, SHAPE(d->type, T, m->cfg.ffn));
    act = arena_push(&d->temp, tensor_like(b->gate));
    out = arena_push(&d->temp, SHAPE(d->type, T, m->cfg.width));
    linear_forward(d, b->gate, b->mid_normed, model_param(m, i, MLP_GATE));
    linear_forward(d, b->up, b->mid_normed, model_param(m, i, MLP_UP));
    op_swiglu(d, act, b->gate, b->up);
    linear_forward(d, out, act, model_param(m, i, MLP_DOWN));
    op_add(d, y, x, out);
    arena_pop(&d->temp, mark);
}

static void mlp_backward(struct model *m, int i, struct tensor g)
{
    struct dev *d = m->dev;
    struct model_block *b = &m->block[i];
    size_t mark = arena_mark(&d->temp);
    struct tensor dy = as_type(d, g, d->type);
    struct tensor act = arena_push(&d->temp, tensor_like(b->gate)), dact = arena_push(&d->temp, tensor_like(b->gate));
    struct tensor dn = arena_push(&d->temp, tensor_like(b->mid_normed));

    op_swiglu(d, act, b->gate, b->up);
    linear_backward(d, dact, dy, act, model_param(m, i, MLP_DOWN), false);
    op_swiglu_bwd(d, b->gate, b->up, dact, b->gate, b->up);      /* in place: this block is done with them */
    linear_backward(d, dn, b->gate, b->mid_normed, model_param(m, i, MLP_GATE), false);
    linear_backward(d, dn, b->up, b->mid_normed, model_param(m, i, MLP_UP), true);
    norm_backward(m, g, model_param(m, i, MLP_NORM), dn, b->mid, b->mid_rstd);
    arena_pop(&d->temp, mark);
}

/* y = mid + mlp(norm(mid)), mid = x + mixer(norm(x)); y may be x when nothing is kept. */
static void block_forward(struct model *m, const struct pass *p, int i, struct tensor y, struct tensor x)
{
    struct dev *d = m->dev;
    struct model_block *b = &m->block[i];
    struct layer *l = &m->layer[i];
    struct arena *a = p->train ? &d->keep : &d->temp;
    size_t mark = arena_mark(&d->temp);
    struct tensor out;

    b->x = x;
    b->mark = arena_mark(&d->keep);
    b->mid = y;
    if (m->cfg.ffn)
        b->mid = arena_push(a, tensor_like(x));
    norm_forward(m, a, model_param(m, i, MIX_NORM), x, &b->normed, &b->rstd);
    out = arena_push(&d->temp, tensor_like(b->normed));
    l->mixer->forward(l, p, out, b->normed, b->saved);
    op_add(d, b->mid, x, out);
    if (m->cfg.ffn)
        mlp_forward(m, p, i, y, b->mid);
    arena_pop(&d->temp, mark);
}

/* g: gradient at y becomes gradient at x. */
static void block_backward(struct model *m, const struct pass *p, int i, struct tensor g)
{
    struct dev *d = m->dev;
    struct model_block *b = &m->block[i];
    struct layer *l = &m->layer[i];
    size_t mark = arena_mark(&d->temp);
    struct tensor dn, dy;

    if (m->cfg.ffn)
        mlp_backward(m, i, g);
    dy = as_type(d, g, d->type);
    dn = arena_push(&d->temp, tensor_like(b->normed));
    l->mixer->backward(l, p, dn, dy, b->normed, b->saved);
    norm_backward(m, g, model_param(m, i, MIX_NORM), dn, b->x, b->rstd);
    arena_pop(&d->temp, mark);
}

static struct tensor push_ids(struct dev *d, const int32_t *ids, int64_t n)
{
    struct tensor t = arena_push(&d->keep, SHAPE(I32, n));

    if (ids && n)
        op_put(d, t.data, ids, (size_t)n * 4);
    return t;
}

struct pass pass_open(struct model *m, struct seqs *s, const struct pass *like)
{
    struct pass p = like ? *like : (struct pass){ 0 };
    int32_t *seq = mem_new((size_t)s->tokens + 1, sizeof *seq);

    if (!m->dev->dry)
        seqs_expand(s, seq, NULL);
    s->dstart = push_ids(m->dev, m->dev->dry ? NULL : s->start, s->n + 1).data;
    s->dseq = push_ids(m->dev, seq, s->tokens).data;
    free(seq);
    p.dev = m->dev;
    p.seqs = s;
    return p;
}

/* Rows of logits that are held at once: the whole [T, vocabulary] never exists. */
static int64_t head_rows(const struct model *m, int64_t tokens)
{
    int64_t budget = m->dev->kind == DEV_CUDA ? (int64_t)1 << 27 : (int64_t)1 << 22;
    int64_t rows = budget / m->cfg.vocab;

    rows = rows < 16 ? 16 : rows;
    return rows < tokens ? rows : tokens;
}

/* Loss per token; with g also its gradient: g = scale * dloss at x, weights' gradients accumulate. */
static void head_pass(struct model *m, struct tensor loss, struct tensor g, struct tensor x, const int32_t *target,
                      float scale)
{
    struct dev *d = m->dev;
    const struct param *w = &m->params.at[m->head];
    int64_t T = x.dim[0], step = head_rows(m, T);
    size_t mark = arena_mark(&d->temp);
    struct tensor logits = arena_push(&d->temp, SHAPE(F32, step, m->cfg.vocab)), normed, rstd;
    struct tensor dn = { 0 };

    norm_forward(m, &d->temp, &m->params.at[m->norm], x, &normed, &rstd);
    if (g.ndim)
        dn = arena_push(&d->temp, tensor_like(normed));
    for (int64_t t = 0; t < T; t += step) {
        int64_t n = t + step < T ? step : T - t;
        struct tensor part = tensor_rows(logits, 0, n), in = tensor_rows(normed, t, n);
        linear_forward(d, part, in, w);
        op_xent(d, tensor_rows(loss, t, n), part, target ? target + t : NULL, scale);
        if (g.ndim)
            linear_backward(d, tensor_rows(dn, t, n), part, in, w, false);
    }
    if (g.ndim) {
        op_fill(d, g, 0);
        norm_backward(m, g, &m->params.at[m->norm], dn, x, rstd);
    }
    arena_pop(&d->temp, mark);
}

static double loss_sum(struct model *m, struct tensor loss, float *nll)
{
    int64_t T = loss.dim[0];
    float *host = nll ? nll : mem_new((size_t)T, sizeof *host);
    double sum = 0;

    op_get(m->dev, host, loss.data, (size_t)T * 4);
    for (int64_t t = 0; t < T; t++)
        sum += host[t];
    if (!nll)
        free(host);
    return sum;
}

double model_learn(struct model *m, const struct batch *batch, float scale,
                   void (*done)(void *arg, int bucket), void *arg)
{
    struct dev *d = m->dev;
    struct arena *keep = &d->keep;
    size_t base = arena_mark(keep);
    struct seqs s = batch->seqs;
    struct pass p = pass_open(m, &s, &(struct pass){ .train = true });
    struct tensor token = push_ids(d, batch->token, s.tokens), target = push_ids(d, batch->target, s.tokens);
    struct tensor loss = arena_push(keep, SHAPE(F32, s.tokens));
    struct tensor x = arena_push(keep, SHAPE(F32, s.tokens, m->cfg.width)), y, g, spare = { 0 };
    struct pass still = p;
    int L = m->cfg.layers;
    double sum;

    still.train = false;
    op_embed(d, x, m->params.at[m->embed].value, token.data);
    for (int i = 0; i < m->first; i++)                       /* nothing below learns: keep nothing of it */
        block_forward(m, &still, i, x, x);
    for (int i = m->first; i < L; i++, x = y) {              /* up */
        y = arena_push(keep, tensor_like(x));
        block_forward(m, &p, i, y, x);
        if (m->recompute)
            arena_pop(keep, m->block[i].mark);               /* keep x and y, forget the inside */
    }
    g = arena_push(keep, tensor_like(x));
    if (m->recompute)
        spare = arena_push(keep, tensor_like(x));
    head_pass(m, loss, g, x, target.data, scale);
    for (int i = L - 1; i >= m->first; i--) {                /* down */
        if (m->recompute)
            block_forward(m, &p, i, spare, m->block[i].x);
        block_backward(m, &p, i, g);
        if (m->recompute)
            arena_pop(keep, m->block[i].mark);
        if (done)
            done(arg, BUCKET_LAYER + i);                     /* its gradients are final: start reducing them */
    }
    for (int i = m->first - 1; i >= 0 && done; i--)
        done(arg, BUCKET_LAYER + i);
    if (!(m->params.at[m->embed].flags & PARAM_FROZEN))
        op_embed_bwd(d, m->params.at[m->embed].grad, g, token.data);
    if (done)
        done(arg, BUCKET_EMBED), done(arg, BUCKET_F32);
    sum = loss_sum(m, loss, NULL);
    arena_pop(keep, base);
    return sum;
}

void model_enter(struct model *m, const struct batch *b, struct tensor x)
{
    size_t base = arena_mark(&m->dev->keep);
    struct tensor token = push_ids(m->dev, b->token, b->seqs.tokens);

    op_embed(m->dev, x, m->params.at[m->embed].value, token.data);
    arena_pop(&m->dev->keep, base);
}

void model_pass(struct model *m, const struct batch *b, const struct pass *like, int layer, struct tensor x)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s = b->seqs;
    struct pass p = pass_open(m, &s, like);

    p.train = false;
    block_forward(m, &p, layer, x, x);
    arena_pop(&m->dev->keep, base);
}

void model_leave(struct model *m, struct tensor x, float *logits)
{
    struct dev *d = m->dev;
    size_t mark = arena_mark(&d->temp);
    int64_t rows = x.dim[0], step = head_rows(m, rows);
    struct tensor normed, rstd, part;

    norm_forward(m, &d->temp, &m->params.at[m->norm], x, &normed, &rstd);
    part = arena_push(&d->temp, SHAPE(F32, step, m->cfg.vocab));
    for (int64_t t = 0; t < rows; t += step) {
        int64_t n = t + step < rows ? step : rows - t;
        linear_forward(d, tensor_rows(part, 0, n), tensor_rows(normed, t, n), &m->params.at[m->head]);
        if (!d->dry)
            op_get(d, logits + t * m->cfg.vocab, part.data, (size_t)(n * m->cfg.vocab) * 4);
    }
    arena_pop(&d->temp, mark);
}

/* Forward only: x holds the residual stream and every block works in place. */
static struct tensor forward(struct model *m, const struct batch *b, struct seqs *s, const struct pass *like)
{
    struct dev *d = m->dev;
    struct pass p = pass_open(m, s, like);
    struct tensor token = push_ids(d, b->token, s->tokens);
    struct tensor x = arena_push(&d->keep, SHAPE(F32, s->tokens, m->cfg.width));

    p.train = false;
    op_embed(d, x, m->params.at[m->embed].value, token.data);
    for (int i = 0; i < m->cfg.layers; i++)
        block_forward(m, &p, i, x, x);
    return x;
}

void model_feed(struct model *m, const struct batch *b, const struct pass *p)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s = b->seqs;

    forward(m, b, &s, p);
    arena_pop(&m->dev->keep, base);
}

double model_loss(struct model *m, const struct batch *b, const struct pass *p, float *nll)
{
    struct dev *d = m->dev;
    size_t base = arena_mark(&d->keep);
    struct seqs s = b->seqs;
    struct tensor x = forward(m, b, &s, p), target = push_ids(d, b->target, s.tokens);
    struct tensor loss = arena_push(&d->keep, SHAPE(F32, s.tokens));
    double sum;

    head_pass(m, loss, (struct tensor){ 0 }, x, target.data, 0);
    sum = loss_sum(m, loss, nll);
    arena_pop(&d->keep, base);
    return sum;
}

/* The last row of every sequence, through an embedding lookup: the rows of x are a table. */
static struct tensor last_rows(struct model *m, const struct seqs *s, struct tensor x)
{
    struct dev *d = m->dev;
    int32_t *at = mem_new((size_t)s->n, sizeof *at);
    struct tensor y = arena_push(&d->keep, SHAPE(F32, s->n, m->cfg.width)), ids;

    for (int i = 0; !d->dry && i < s->n; i++)
        at[i] = s->start[i + 1] > 0 ? s->start[i + 1] - 1 : 0;
    ids = push_ids(d, at, s->n);
    op_embed(d, y, x, ids.data);
    free(at);
    return y;
}

void model_logits(struct model *m, const struct batch *b, const struct pass *p, bool last, float *logits)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s = b->seqs;
    struct tensor x = forward(m, b, &s, p);

    model_leave(m, last ? last_rows(m, &s, x) : x, logits);
    arena_pop(&m->dev->keep, base);
}
