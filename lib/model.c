/* model.c - forward read down, backward read up: blocks on a stack that backward pops. */
#include "layer.h"
#include "model.h"
#include "model_learn.h"
#include "model_parts.h"
#include "op_step.h"

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
    op_rmsnorm_bwd(m->dev, tensor_heads(g, 1), w->grad, (struct tensor){ 0 }, tensor_heads(dy, 1),
                   tensor_heads(x, 1), w->value, (struct tensor){ 0 }, rstd, GATE_NONE, true);
}

static struct tensor gate_of(const struct model_block *b)
{
    return tensor_cols(b->gate_up, 0, b->gate_up.dim[1] / 2);
}

static struct tensor up_of(const struct model_block *b)
{
    return tensor_cols(b->gate_up, b->gate_up.dim[1] / 2, b->gate_up.dim[1] / 2);
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
    b->gate_up = arena_push(a, SHAPE(d->type, T, 2 * (int64_t)m->cfg.ffn));
    act = arena_push(&d->temp, SHAPE(d->type, T, m->cfg.ffn));
    out = arena_push(&d->temp, SHAPE(d->type, T, m->cfg.width));
    linears_forward(d, b->gate_up, b->mid_normed, model_param(m, i, MLP_GATE), 2);
    op_swiglu(d, act, gate_of(b), up_of(b));
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
    struct tensor gate = gate_of(b), up = up_of(b);
    struct tensor act = arena_push(&d->temp, tensor_like(gate)), dact = arena_push(&d->temp, tensor_like(gate));
    struct tensor dn = arena_push(&d->temp, tensor_like(b->mid_normed));

    op_swiglu(d, act, gate, up);
    linear_backward(d, dact, dy, act, model_param(m, i, MLP_DOWN), false);
    op_swiglu_bwd(d, gate, up, dact, gate, up);                  /* in place: this block is done with them */
    linears_backward(d, dn, b->gate_up, b->mid_normed, model_param(m, i, MLP_GATE), 2, false);
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

/* A block for single tokens, x += mixer(norm(x)), x += mlp(norm(x)), in few launches; false: there is no such way. */
static bool block_step(struct model *m, const struct pass *p, int i, struct tensor x)
{
    struct dev *d = m->dev;
    struct layer *l = &m->layer[i];
    size_t mark = arena_mark(&d->temp);

    if (!p->state || p->train || p->alone || p->want_var || p->watch || p->seqs->longest != 1 || !l->mixer->step)
        return false;
    if (!l->mixer->step(l, p, x, model_param(m, i, MIX_NORM)))
        return false;
    if (m->cfg.ffn) {
        struct tensor gate = arena_push(&d->temp, SHAPE(d->type, x.dim[0], m->cfg.ffn));
        struct tensor up = arena_push(&d->temp, tensor_like(gate));
        op_products(d, &(struct products){
            .n = 2, .y = { gate, up }, .w = { model_param(m, i, MLP_GATE)->value, model_param(m, i, MLP_UP)->value },
            .x = x, .norm = model_param(m, i, MLP_NORM)->value, .before = BEFORE_NORM, .eps = m->cfg.eps });
        op_products(d, &(struct products){
            .n = 1, .y = { x }, .w = { model_param(m, i, MLP_DOWN)->value }, .x = gate, .up = up,
            .before = BEFORE_SWIGLU, .add = true });
    }
    arena_pop(&d->temp, mark);
    return true;
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

/* What decides the verbs of a trip and their arguments, beside the arenas. */
enum work_kind { WORK_LEARN, WORK_LOSS, WORK_LOGITS, WORK_FEED };
struct work {
    const struct model *model;
    const void *state;
    int64_t     tokens, n, longest, rows, even;
    float       scale;
    int         kind;
    bool        fresh, want_var, alone, recompute;
};

/* A forward trip that carries memory depends on how many sequences there are and on whether they are single tokens;
 * one in which each is alone depends on where they begin. Scans cut a row differently when sequences begin evenly.
 * A recording of learning serves all rows with as much room for sequences and with a longest of about that length. */
static void record(struct model *m, enum work_kind kind, const struct seqs *s, const struct upload *u,
                   const struct pass *p, float scale)
{
    struct work w;

    if (p->watch || (p->alone && s->n > 1))
        return;
    memset(&w, 0, sizeof w);                     /* compared as bytes */
    w.model = m, w.kind = kind, w.scale = scale, w.state = p->state, w.fresh = p->fresh, w.want_var = p->want_var;
    w.alone = p->alone;
    w.tokens = s->tokens, w.n = s->n, w.longest = s->longest, w.rows = u->rows.ndim ? u->rows.dim[0] : 0;
    w.even = seqs_even(s);
    op_record(m->dev, &w, sizeof w);
}

/* Rows of logits that are held at once: the whole [T, vocabulary] never exists. */
static int64_t head_rows(const struct model *m, int64_t tokens)
{
    int64_t budget = m->dev->kind == DEV_CUDA ? (int64_t)1 << 27 : (int64_t)1 << 22;
    int64_t rows = budget / m->cfg.vocab;

    rows = rows < 16 ? 16 : rows;
    return rows < tokens ? rows : tokens;
}

/* The rows of x that predict, through an embedding lookup: the rows of x are a table. */
static struct tensor gather(struct model *m, struct arena *a, struct tensor x, struct tensor rows)
{
    struct tensor y = arena_push(a, SHAPE(F32, rows.dim[0], x.dim[1]));

    op_embed(m->dev, y, x, rows.data);
    return y;
}

/* Loss of each row of x; with dn also the gradient at its norm, and the weights' gradients accumulate. */
static void head_slices(struct model *m, struct tensor loss, struct tensor dn, struct tensor normed,
                        struct tensor target, float scale)
{
    struct dev *d = m->dev;
    const struct param *w = &m->params.at[m->head];
    int64_t T = normed.dim[0], step = head_rows(m, T);
    size_t mark = arena_mark(&d->temp);
    struct tensor logits = arena_push(&d->temp, SHAPE(F32, step, m->cfg.vocab)), grad = { 0 };

    if (dn.ndim)
        grad = d->type == F32 ? logits : arena_push(&d->temp, SHAPE(d->type, step, m->cfg.vocab));
    for (int64_t t = 0; t < T; t += step) {
        int64_t n = t + step < T ? step : T - t;
        struct tensor part = tensor_rows(logits, 0, n), in = tensor_rows(normed, t, n), g = grad;
        if (g.ndim)
            g = tensor_rows(grad, 0, n);
        linear_forward(d, part, in, w);
        op_xent(d, tensor_rows(loss, t, n), g, part, tensor_rows(target, t, n).data, scale);
        if (g.ndim)
            linear_backward(d, tensor_rows(dn, t, n), g, in, w, false);
    }
    arena_pop(&d->temp, mark);
}

/* Loss per token or per row of u, of logits times sharp; with g also its gradient: g = scale * dloss at x. */
static void head_pass(struct model *m, struct tensor loss, struct tensor g, struct tensor x, const struct upload *u,
                      float scale, float sharp)
{
    struct dev *d = m->dev;
    const struct param *norm = &m->params.at[m->norm];
    size_t mark = arena_mark(&d->temp);
    struct tensor in = u->rows.ndim ? gather(m, &d->temp, x, u->rows) : x, normed, rstd, dn = { 0 };
    struct tensor factor = arena_push(&d->temp, SHAPE(F32, 1));

    norm_forward(m, &d->temp, norm, in, &normed, &rstd);
    if (sharp != 1) {
        op_fill(d, factor, sharp);
        op_mul(d, tensor_heads(normed, 1), tensor_heads(normed, 1), factor, false);
    }
    if (g.ndim)
        dn = arena_push(&d->temp, tensor_like(normed));
    head_slices(m, loss, dn, normed, u->target, scale);
    if (g.ndim) {
        int64_t n = in.dim[0];
        struct tensor table = { 0 }, dx = g;
        if (u->rows.ndim) {                      /* the gradients are a table, with a row of zeros for the others */
            table = arena_push(&d->temp, SHAPE(F32, n + 1, in.dim[1]));
            dx = tensor_rows(table, 0, n);
            op_fill(d, tensor_rows(table, n, 1), 0);
        }
        op_rmsnorm_bwd(d, dx, norm->grad, (struct tensor){ 0 }, dn, in, norm->value, (struct tensor){ 0 }, rstd,
                       GATE_NONE, false);
        if (table.ndim)
            op_embed(d, g, table, u->place.data);
    }
    arena_pop(&d->temp, mark);
}

/* On a plan, where no labels are known: both ways of the head. */
static void plan_few(struct model *m, struct tensor g, struct tensor x)
{
    int64_t n = x.dim[0] / 2;
    struct upload u = { .rows = SHAPE(I32, n), .target = SHAPE(I32, n), .place = SHAPE(I32, x.dim[0]) };

    if (n)
        head_pass(m, SHAPE(F32, n), g, x, &u, 1, 1);
}

/* Down: blocks from the last to the first, then the embedding, where the recording ends; g is the gradient at the
 * last block's output. */
static void backward(struct model *m, const struct pass *p, struct tensor g, struct tensor spare,
                     const struct upload *u, void (*done)(void *arg, int bucket), void *arg)
{
    for (int i = m->cfg.layers - 1; i >= m->first; i--) {
        if (m->recompute)
            block_forward(m, p, i, spare, m->block[i].x);
        block_backward(m, p, i, g);
        if (m->recompute)
            arena_pop(&m->dev->keep, m->block[i].mark);
        if (done)
            done(arg, BUCKET_LAYER + i);         /* its gradients are final */
    }
    if (!(m->params.at[m->embed].flags & PARAM_FROZEN))
        op_embed_bwd(m->dev, m->params.at[m->embed].grad, g, u->token.data);
    op_recorded(m->dev);
    for (int i = m->first - 1; i >= 0 && done; i--)
        done(arg, BUCKET_LAYER + i);
    if (done)
        done(arg, BUCKET_EMBED), done(arg, BUCKET_F32);
}

/* The row on d->keep, behind room for the loss of those of its tokens that the head sees: there it is out of the way of
 * the row that comes next. */
static struct upload take_row(struct model *m, const struct batch *b, struct seqs *s, struct tensor *loss)
{
    struct tensor room = arena_push(&m->dev->keep, SHAPE(F32, b->seqs.tokens));
    struct upload u = upload(m, b, s, UPLOAD_LABELLED);

    *loss = tensor_rows(room, 0, u.target.dim[0]);
    return u;
}

void model_learn_begin(struct model *m, const struct batch *batch, float scale,
                       void (*done)(void *arg, int bucket), void *arg)
{
    struct dev *d = m->dev;
    struct arena *keep = &d->keep;
    size_t base = arena_mark(keep);
    struct seqs s;
    struct pass p = { .dev = d, .seqs = &s, .train = true }, still = { .dev = d, .seqs = &s };
    struct upload u = take_row(m, batch, &s, &m->loss);
    struct tensor x = arena_push(keep, SHAPE(F32, s.tokens, m->cfg.width)), y, g, spare = { 0 };
    struct work w;

    memset(&w, 0, sizeof w);                     /* compared as bytes */
    w.model = m, w.kind = WORK_LEARN, w.scale = scale, w.tokens = s.tokens, w.rows = u.target.dim[0];
    w.n = s.room, w.longest = seqs_about(s.longest), w.even = seqs_even(&s), w.recompute = m->recompute;
    if (!done)                                   /* what done starts, with other ranks, cannot be recorded */
        op_record(d, &w, sizeof w);
    op_embed(d, x, m->params.at[m->embed].value, u.token.data);
    for (int i = 0; i < m->first; i++)           /* nothing below learns: keep nothing of it */
        block_forward(m, &still, i, x, x);
    for (int i = m->first; i < m->cfg.layers; i++, x = y) {
        y = arena_push(keep, tensor_like(x));
        block_forward(m, &p, i, y, x);
        if (m->recompute)
            arena_pop(keep, m->block[i].mark);   /* keep x and y, forget the inside */
    }
    g = arena_push(keep, tensor_like(x));
    if (m->recompute)
        spare = arena_push(keep, tensor_like(x));
    head_pass(m, m->loss, g, x, &u, scale, 1);
    if (!batch->token)
        plan_few(m, g, x);
    backward(m, &p, g, spare, &u, done, arg);
    arena_pop(keep, base);                       /* the loss stays where it is: only a row ahead comes before end */
}

/* Into the place that the row will have, after all work that still needs what is there. A row that would come over the
 * loss, since it is shorter, is left for its own time. */
void model_ahead(struct model *m, const struct batch *b)
{
    size_t base = arena_mark(&m->dev->keep);
    const char *loss = m->loss.data, *end = loss ? loss + tensor_count(m->loss) * 4 : NULL;
    struct tensor room = arena_push(&m->dev->keep, SHAPE(F32, b->seqs.tokens));

    if (end && (const char *)room.data + b->seqs.tokens * 4 >= end) {
        struct ahead now = { .token = b->token };
        struct tensor next;
        arena_pop(&m->dev->keep, base);
        now.u = take_row(m, b, &now.s, &next);
        now.at = now.u.token.data;
        if (!m->ahead)
            m->ahead = mem_new(1, sizeof *m->ahead);
        *m->ahead = now;
    }
    arena_pop(&m->dev->keep, base);
}

double model_learn_end(struct model *m)
{
    struct tensor loss = m->loss;

    REQUIRE(loss.ndim);
    m->loss = (struct tensor){ 0 };
    return loss_sum(m, loss, &(struct upload){ 0 }, 0, NULL);
}

double model_learn(struct model *m, const struct batch *batch, float scale,
                   void (*done)(void *arg, int bucket), void *arg)
{
    model_learn_begin(m, batch, scale, done, arg);
    return model_learn_end(m);
}

void model_enter(struct model *m, const struct batch *b, struct tensor x)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s;
    struct upload u = upload(m, b, &s, UPLOAD_NO_ROWS);

    op_embed(m->dev, x, m->params.at[m->embed].value, u.token.data);
    arena_pop(&m->dev->keep, base);
}

/* The device stays as the pass wants it until leave. */
static struct pass pass_of(struct model *m, const struct seqs *s, const struct pass *like)
{
    struct pass p = like ? *like : (struct pass){ 0 };

    p.dev = m->dev;
    p.seqs = s;
    p.train = false;
    m->dev->alone = p.alone;
    return p;
}

static void leave(struct model *m, size_t base)
{
    arena_pop(&m->dev->keep, base);
    m->dev->alone = false;
}

void model_pass(struct model *m, const struct batch *b, const struct pass *like, int layer, struct tensor x)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s;
    struct pass p = pass_of(m, &s, like);

    upload(m, b, &s, UPLOAD_NO_ROWS);
    block_forward(m, &p, layer, x, x);
    leave(m, base);
}

/* Ends a recording that the caller began: what is copied to the host cannot be in it. */
void model_leave(struct model *m, struct tensor x, float *logits)
{
    struct dev *d = m->dev;
    size_t mark = arena_mark(&d->temp);
    int64_t rows = x.dim[0], step = head_rows(m, rows);
    struct tensor part = arena_push(&d->temp, SHAPE(F32, step, m->cfg.vocab));

    for (int64_t t = 0; t < rows; t += step) {
        int64_t n = t + step < rows ? step : rows - t;
        op_products(d, &(struct products){
            .n = 1, .y = { tensor_rows(part, 0, n) }, .w = { m->params.at[m->head].value }, .x = tensor_rows(x, t, n),
            .norm = m->params.at[m->norm].value, .before = BEFORE_NORM, .eps = m->cfg.eps });
        op_recorded(d);
        if (!d->dry)
            op_get(d, logits + t * m->cfg.vocab, part.data, (size_t)(n * m->cfg.vocab) * 4);
    }
    op_recorded(d);
    arena_pop(&d->temp, mark);
}

/* Forward only: x holds the residual stream and every block works in place. */
static struct tensor forward(struct model *m, const struct pass *p, const struct upload *u)
{
    struct tensor x = arena_push(&m->dev->keep, SHAPE(F32, p->seqs->tokens, m->cfg.width));

    op_embed(m->dev, x, m->params.at[m->embed].value, u->token.data);
    for (int i = 0; i < m->cfg.layers; i++)
        if (!block_step(m, p, i, x))
            block_forward(m, p, i, x, x);
    return x;
}

void model_feed(struct model *m, const struct batch *b, const struct pass *like)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s;
    struct pass p = pass_of(m, &s, like);
    struct upload u = upload(m, b, &s, UPLOAD_NO_ROWS);

    record(m, WORK_FEED, &s, &u, &p, 1);
    forward(m, &p, &u);
    op_recorded(m->dev);
    leave(m, base);
}

double model_sharp_loss(struct model *m, const struct batch *b, const struct pass *like, float sharp, float *nll)
{
    struct dev *d = m->dev;
    size_t base = arena_mark(&d->keep);
    struct seqs s;
    struct tensor loss, x;
    struct pass p = pass_of(m, &s, like);
    struct upload u = take_row(m, b, &s, &loss);
    double sum;

    record(m, WORK_LOSS, &s, &u, &p, sharp);
    x = forward(m, &p, &u);
    head_pass(m, loss, (struct tensor){ 0 }, x, &u, 0, sharp);
    if (!b->token)
        plan_few(m, (struct tensor){ 0 }, x);
    op_recorded(d);
    sum = loss_sum(m, loss, &u, s.tokens, nll);
    leave(m, base);
    return sum;
}

double model_loss(struct model *m, const struct batch *b, const struct pass *like, float *nll)
{
    return model_sharp_loss(m, b, like, 1, nll);
}

void model_logits(struct model *m, const struct batch *b, const struct pass *like, bool last, float *logits)
{
    size_t base = arena_mark(&m->dev->keep);
    struct seqs s;
    bool all = !last || (b->seqs.longest == 1 && b->seqs.tokens == b->seqs.n);   /* every row is a last one */
    struct pass p = pass_of(m, &s, like);
    struct upload u = upload(m, b, &s, all ? UPLOAD_NO_ROWS : UPLOAD_LAST);
    struct tensor x;

    record(m, WORK_LOGITS, &s, &u, &p, 1);
    x = forward(m, &p, &u);
    model_leave(m, all ? x : gather(m, &m->dev->keep, x, u.rows), logits);
    leave(m, base);
}
