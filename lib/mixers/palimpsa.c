/* palimpsa.c - Palimpsa-D: gated linear attention whose memory knows how sure it is.
 *
 *   q,k,v = silu(conv(W x));  q,k normalised per head;  s = sigmoid(Wbs x)
 *   dt = softplus(Wdt x + dt_bias), decay = -exp(A_log) dt;  b = sigmoid(Wb Wr x) softplus(b_scale) s
 *   o = scan(q, k, s*v, decay, b, Ip_log) + D v;  y = Wo (RMSNorm(o) * silu(Wg x))
 *
 * scale = K^-1/2. With metaplasticity off the scan is the plain one and b_* stay unused.
 * Source: arXiv 2602.09075 and its released layers; docs/math.md. */
#include "layer.h"
#include "op_step.h"
#include <math.h>

extern const struct scan scan_palimpsa, scan_linear;
extern const struct mixer mixer_palimpsa;

/* The order of declaration: projections that are one product lie side by side. */
enum { Q, K_, V_, G, QCONV, KCONV, VCONV, DT, BS, DT_BIAS, A_LOG, D_SKIP, O_NORM, O, B_RANK, B, B_SCALE, IP_LOG };

struct palimpsa_saved {
    struct tensor qkvg;                    /* [T,2HK+2HV] q, k, v before the convolution, and the gate or not */
    struct tensor qk, v;                   /* [T,2H,K] normalised, [T,H,V]: columns of what the convolution gave */
    struct tensor rqk;                     /* [T,2H] 1/|q|, 1/|k| */
    struct tensor raw, dt, s;              /* F32 [T,2H] before their functions; [T,H] x2 */
    struct tensor rank, b_raw;             /* [T,R], [T,H,V] */
    struct tensor o, rstd, y;              /* [T,H,V] with the skip; [T,H]; [T,H*V] into o_proj */
    struct scan_io io;
};

struct sizes { int64_t H, K, V, R, D, W; };

static struct sizes sizes_of(const struct layer *l)
{
    const struct config *c = l->cfg;

    return (struct sizes){ c->heads, c->key, c->value, c->rank, c->width, c->conv };
}

static void add_conv(struct layer *l, const char *prefix, const char *name, int64_t channels)
{
    layer_add(l, prefix, name, SHAPE(F32, channels, 1, l->cfg->conv), PARAM_F32, draw_normal, 0, l->cfg->init_std);
}

static void palimpsa_init(struct layer *l, const char *prefix)
{
    const struct config *c = l->cfg;
    struct sizes z = sizes_of(l);
    unsigned gain = PARAM_GAIN | (c->meta[l->index] ? 0 : PARAM_UNUSED), small = PARAM_F32 | PARAM_NO_DECAY;
    float std = c->init_std, bound = 1 / sqrtf((float)z.R);
    int i;

    layer_add(l, prefix, "attn.q_proj.weight", SHAPE(F32, z.H * z.K, z.D), 0, draw_normal, 0, std);
    layer_add(l, prefix, "attn.k_proj.weight", SHAPE(F32, z.H * z.K, z.D), 0, draw_normal, 0, std);
    layer_add(l, prefix, "attn.v_proj.weight", SHAPE(F32, z.H * z.V, z.D), 0, draw_normal, 0, std);
    if (c->use_gate)
        layer_add(l, prefix, "attn.g_proj.weight", SHAPE(F32, z.H * z.V, z.D), 0, draw_normal, 0, std);
    add_conv(l, prefix, "attn.q_conv1d.weight", z.H * z.K);
    add_conv(l, prefix, "attn.k_conv1d.weight", z.H * z.K);
    add_conv(l, prefix, "attn.v_conv1d.weight", z.H * z.V);
    layer_add(l, prefix, "attn.dt_proj.weight", SHAPE(F32, z.H, z.D), 0, draw_normal, 0, std);
    layer_add(l, prefix, "attn.bs_proj.weight", SHAPE(F32, z.H, z.D), 0, draw_normal, 0, std);
    i = layer_add(l, prefix, "attn.dt_bias", SHAPE(F32, z.H), small, c->ramp ? draw_dt_ramp : draw_dt_bias, c->dt_min,
                  c->dt_max);
    l->params->at[i].c = c->dt_floor;
    layer_add(l, prefix, "attn.A_log", SHAPE(F32, z.H), small, c->ramp ? draw_log_ramp : draw_log_uniform, c->A_lo,
              c->A_hi);
    layer_add(l, prefix, "attn.D", SHAPE(F32, z.H), small, draw_const, 1, 0);
    layer_add(l, prefix, "attn.o_norm.weight", SHAPE(F32, z.V), small, draw_const, 1, 0);
    layer_add(l, prefix, "attn.o_proj.weight", SHAPE(F32, z.D, z.H * z.V), 0, draw_normal, 0, std);
    if (!c->gain[l->index])
        return;
    layer_add(l, prefix, "attn.b_rank_proj.weight", SHAPE(F32, z.R, z.D), gain, draw_normal, 0, std);
    layer_add(l, prefix, "attn.b_proj.weight", SHAPE(F32, z.H * z.V, z.R), gain, c->ramp ? draw_normal : draw_uniform,
              c->ramp ? 0 : -bound, c->ramp ? std : bound);
    layer_add(l, prefix, "attn.b_scale", SHAPE(F32, z.H), small | gain, draw_const, 1, 0);
    layer_add(l, prefix, "attn.Ip_log", SHAPE(F32, z.H), small | gain | PARAM_FROZEN, draw_const, 0, 0);
}

/* The gate is the one optional parameter in the middle of the list. */
static struct param *param_at(const struct layer *l, int i)
{
    return layer_param(l, i > G && !l->cfg->use_gate ? i - 1 : i);
}

static struct tensor push_projected(const struct layer *l, struct arena *a, enum dtype type, int64_t T)
{
    struct sizes z = sizes_of(l);

    return arena_push(a, SHAPE(type, T, z.H * (2 * z.K + z.V + (l->cfg->use_gate ? z.V : 0))));
}

/* Columns of the fused projections, or of their gradient, by name. */
static struct tensor stream_of(struct tensor qkvg, int which, struct sizes z)
{
    return tensor_heads(tensor_cols(qkvg, which * z.H * z.K, z.H * (which == 2 ? z.V : z.K)), z.H);
}

static struct tensor qk_of(struct tensor qkvg, struct sizes z)
{
    return tensor_heads(tensor_cols(qkvg, 0, 2 * z.H * z.K), 2 * z.H);
}

static struct tensor gate_of(const struct layer *l, struct tensor qkvg, struct sizes z)
{
    if (!l->cfg->use_gate)
        return (struct tensor){ 0 };
    return tensor_heads(tensor_cols(qkvg, z.H * (2 * z.K + z.V), z.H * z.V), z.H);
}

static void palimpsa_state(const struct layer *l, int64_t nseq, struct tensor shape[MIXER_STATES])
{
    struct sizes z = sizes_of(l);
    int64_t tail = z.W - 1;

    shape[0] = SHAPE(F32, nseq, z.H, z.V, z.K);
    if (l->cfg->meta[l->index])
        shape[1] = shape[0];
    shape[SCAN_STATES] = shape[SCAN_STATES + 1] = SHAPE(F32, nseq, tail, z.H * z.K);
    shape[SCAN_STATES + 2] = SHAPE(F32, nseq, tail, z.H * z.V);
}

/* q, k and v through their convolutions: through one, where nothing is carried and the filters lie side by side. */
static void convolve(struct layer *l, const struct pass *p, struct tensor qkv, struct tensor qkvg)
{
    struct sizes z = sizes_of(l);
    struct joined w;

    for (int i = 0; i < 3; i += w.n) {
        int64_t from = i * z.H * z.K, n;
        w = params_join(param_at(l, QCONV + i), p->state ? 1 : 3 - i);
        n = w.value.dim[0];
        op_conv(p->dev, tensor_cols(qkv, from, n), layer_tail_out(l, p, i), tensor_cols(qkvg, from, n),
                tensor_flat(w.value), (struct tensor){ 0 }, layer_tail_in(l, p, i), p->seqs);
    }
}

static void convolve_backward(struct layer *l, const struct pass *p, struct tensor dqkvg, struct tensor dqkv,
                              struct tensor qkvg)
{
    struct sizes z = sizes_of(l);
    struct joined w;

    for (int i = 0; i < 3; i += w.n) {
        int64_t from = i * z.H * z.K, n;
        w = params_join(param_at(l, QCONV + i), 3 - i);
        n = w.value.dim[0];
        op_conv_bwd(p->dev, tensor_cols(dqkvg, from, n), tensor_flat(w.grad), (struct tensor){ 0 },
                    tensor_cols(dqkv, from, n), tensor_cols(qkvg, from, n), tensor_flat(w.value),
                    (struct tensor){ 0 }, p->seqs);
    }
}

/* What the scan reads and D multiplies. */
static void streams(struct layer *l, const struct pass *p, struct arena *a, struct palimpsa_saved *f)
{
    struct sizes z = sizes_of(l);
    int64_t T = f->qkvg.dim[0];
    struct tensor qkv = arena_push(a, SHAPE(p->dev->type, T, z.H * (2 * z.K + z.V)));

    f->qk = qk_of(qkv, z);
    f->io.q = stream_of(qkv, 0, z);
    f->io.k = stream_of(qkv, 1, z);
    f->v = stream_of(qkv, 2, z);
    f->rqk = arena_push(a, SHAPE(F32, T, 2 * z.H));
    convolve(l, p, qkv, f->qkvg);
    op_l2norm(p->dev, f->qk, f->rqk, f->qk);
}

/* dt, decay, s and, in a metaplastic layer, the precision gain b. */
static void gates(struct layer *l, const struct pass *p, struct arena *a, struct palimpsa_saved *f, struct tensor x)
{
    struct dev *d = p->dev;
    struct sizes z = sizes_of(l);
    struct tensor gate = SHAPE(F32, x.dim[0], z.H);
    struct dt_range all = { l->cfg->dt_lo, l->cfg->dt_hi };

    f->raw = arena_push(a, SHAPE(F32, x.dim[0], 2 * z.H));
    f->dt = arena_push(a, gate);
    f->s = arena_push(a, gate);
    f->io.decay = arena_push(a, gate);
    linears_forward(d, f->raw, x, param_at(l, DT), 2);
    op_decay(d, f->dt, f->io.decay, tensor_cols(f->raw, 0, z.H), param_at(l, DT_BIAS)->value,
             param_at(l, A_LOG)->value, all);
    op_map(d, MAP_SIGMOID, f->s, tensor_cols(f->raw, z.H, z.H));
    if (!l->cfg->meta[l->index])
        return;
    f->rank = arena_push(a, SHAPE(d->type, x.dim[0], z.R));
    f->b_raw = arena_push(a, SHAPE(d->type, x.dim[0], z.H, z.V));
    f->io.beta = arena_push(a, tensor_like(f->b_raw));
    linear_forward(d, f->rank, x, param_at(l, B_RANK));
    linear_forward(d, tensor_flat(f->b_raw), f->rank, param_at(l, B));
    op_gain(d, f->io.beta, f->b_raw, param_at(l, B_SCALE)->value, f->s);
    f->io.prior[0] = param_at(l, IP_LOG)->value;
}

static void palimpsa_forward(struct layer *l, const struct pass *p, struct tensor y, struct tensor x, void *saved)
{
    struct dev *d = p->dev;
    struct arena *a = p->train ? &d->keep : &d->temp;
    struct palimpsa_saved *f = saved;
    struct sizes z = sizes_of(l);
    bool meta = l->cfg->meta[l->index];
    size_t mark = arena_mark(&d->temp);
    int64_t T = x.dim[0];

    *f = (struct palimpsa_saved){ .io.scale = 1 / sqrtf((float)z.K) };
    f->qkvg = push_projected(l, a, d->type, T);
    linears_forward(d, f->qkvg, x, param_at(l, Q), l->cfg->use_gate ? 4 : 3);
    streams(l, p, a, f);
    gates(l, p, a, f, x);
    f->io.v = arena_push(a, tensor_like(f->v));
    op_mul(d, f->io.v, f->v, f->s, false);
    f->io.o = f->o = arena_push(a, tensor_like(f->v));
    if (meta && p->want_var)
        f->io.var = arena_push(a, SHAPE(F32, T, z.H, z.V));
    layer_carry(l, p, &f->io, meta ? 2 : 1);
    scan_forward(d, meta ? &scan_palimpsa : &scan_linear, p->seqs, &f->io, p->train ? &d->keep : NULL);
    if (p->watch)
        p->watch(p->watch_arg, l, p->seqs, &f->io);
    op_mul(d, f->o, f->v, param_at(l, D_SKIP)->value, true);
    f->rstd = arena_push(a, SHAPE(F32, T, z.H));
    f->y = arena_push(a, SHAPE(d->type, T, z.H * z.V));
    op_rmsnorm(d, tensor_heads(f->y, z.H), f->rstd, f->o, param_at(l, O_NORM)->value, gate_of(l, f->qkvg, z),
               l->cfg->use_gate ? GATE_AFTER_NORM : GATE_NONE, l->cfg->eps);
    linear_forward(d, y, f->y, param_at(l, O));
    arena_pop(&d->temp, mark);
}

/* What the layer projects its input to, in one buffer each. */
static struct products projections(const struct layer *l, const struct pass *p, struct recall *r, struct tensor x,
                                   const struct param *norm)
{
    struct dev *d = p->dev;
    struct arena *a = &d->temp;
    struct sizes z = sizes_of(l);
    int64_t T = x.dim[0];
    struct products in = { .x = x, .norm = norm->value, .before = BEFORE_NORM, .eps = l->cfg->eps };

    r->qkv = arena_push(a, SHAPE(d->type, T, z.H * (2 * z.K + z.V)));
    r->dt = arena_push(a, SHAPE(F32, T, z.H));
    r->s = arena_push(a, SHAPE(F32, T, z.H));
    for (int i = 0; i < STEP_TAILS; i++) {
        in.y[in.n] = tensor_cols(r->qkv, i * z.H * z.K, z.H * (i == 2 ? z.V : z.K));
        in.w[in.n++] = param_at(l, Q + i)->value;
        r->conv[i] = tensor_flat(param_at(l, QCONV + i)->value);
        r->tail[i] = p->state[l->index][SCAN_STATES + i];
    }
    in.y[in.n] = r->dt, in.w[in.n++] = param_at(l, DT)->value;
    in.y[in.n] = r->s, in.w[in.n++] = param_at(l, BS)->value;
    if (l->cfg->use_gate) {
        r->gate = arena_push(a, SHAPE(d->type, T, z.H * z.V));
        in.y[in.n] = r->gate, in.w[in.n++] = param_at(l, G)->value;
    }
    if (l->cfg->meta[l->index]) {
        r->rank = arena_push(a, SHAPE(d->type, T, z.R));
        in.y[in.n] = r->rank, in.w[in.n++] = param_at(l, B_RANK)->value;
        r->B = param_at(l, B)->value;
        r->b_scale = param_at(l, B_SCALE)->value;
        r->prior = param_at(l, IP_LOG)->value;
    }
    return in;
}

static bool palimpsa_step(struct layer *l, const struct pass *p, struct tensor x, const struct param *norm)
{
    struct dev *d = p->dev;
    struct sizes z = sizes_of(l);
    size_t mark = arena_mark(&d->temp);
    struct recall r = {
        .dt_bias = param_at(l, DT_BIAS)->value, .A_log = param_at(l, A_LOG)->value, .D = param_at(l, D_SKIP)->value,
        .norm = param_at(l, O_NORM)->value, .state = { p->state[l->index][0], p->state[l->index][1] },
        .fresh = p->fresh, .K = z.K, .V = z.V, .W = z.W, .scale = 1 / sqrtf((float)z.K), .eps = l->cfg->eps,
        .range = { l->cfg->dt_lo, l->cfg->dt_hi },
    };
    struct products in, out = { .n = 1, .y = { x }, .w = { param_at(l, O)->value }, .add = true };
    bool done;

    if (!d->ops->recall)
        return false;
    in = projections(l, p, &r, x, norm);
    r.y = arena_push(&d->temp, SHAPE(d->type, x.dim[0], z.H * z.V));
    done = op_recall_fits(d, &r, p->seqs);
    if (done) {
        op_products(d, &in);
        op_recall(d, &r, p->seqs);
        out.x = r.y;
        op_products(d, &out);
    }
    arena_pop(&d->temp, mark);
    return done;
}

/* From the gradient at the mixer's output to that at what the scan read, and at the gate; dv gets the skip's share. */
static void output_backward(struct layer *l, const struct pass *p, struct tensor dy, const struct palimpsa_saved *f,
                            struct tensor dout, struct tensor dv, struct tensor dqkvg)
{
    struct dev *d = p->dev;
    struct sizes z = sizes_of(l);
    size_t mark = arena_mark(&d->temp);
    struct tensor dn = arena_push(&d->temp, tensor_like(f->y));

    linear_backward(d, dn, dy, f->y, param_at(l, O), false);
    op_rmsnorm_bwd(d, dout, param_at(l, O_NORM)->grad, gate_of(l, dqkvg, z), tensor_heads(dn, z.H), f->o,
                   param_at(l, O_NORM)->value, gate_of(l, f->qkvg, z), f->rstd,
                   l->cfg->use_gate ? GATE_AFTER_NORM : GATE_NONE, false);
    op_mul_bwd(d, dv, param_at(l, D_SKIP)->grad, dout, f->v, param_at(l, D_SKIP)->value, false);
    arena_pop(&d->temp, mark);
}

/* From the gradients at decay, beta and s back to x. */
static void gates_backward(struct layer *l, const struct pass *p, struct tensor dx, struct tensor x,
                           const struct palimpsa_saved *f, const struct scan_io *g, struct tensor ds)
{
    struct dev *d = p->dev;
    struct dt_range all = { l->cfg->dt_lo, l->cfg->dt_hi };
    int64_t H = l->cfg->heads;
    size_t mark = arena_mark(&d->temp);
    struct tensor draw = arena_push(&d->temp, tensor_like(f->raw));

    if (l->cfg->meta[l->index]) {
        struct tensor db = arena_push(&d->temp, tensor_like(f->b_raw));
        struct tensor dr = arena_push(&d->temp, tensor_like(f->rank));
        op_gain_bwd(d, db, param_at(l, B_SCALE)->grad, ds, g->beta, f->b_raw, param_at(l, B_SCALE)->value, f->s);
        linear_backward(d, dr, tensor_flat(db), f->rank, param_at(l, B), false);
        linear_backward(d, dx, dr, x, param_at(l, B_RANK), true);
    }
    op_map_bwd(d, MAP_SIGMOID, tensor_cols(draw, H, H), ds, tensor_cols(f->raw, H, H));
    op_decay_bwd(d, tensor_cols(draw, 0, H), param_at(l, DT_BIAS)->grad, param_at(l, A_LOG)->grad,
                 (struct tensor){ 0 }, g->decay, tensor_cols(f->raw, 0, H), param_at(l, DT_BIAS)->value,
                 param_at(l, A_LOG)->value, all);
    linears_backward(d, dx, draw, x, param_at(l, DT), 2, true);
    arena_pop(&d->temp, mark);
}

/* The gradients at q, k and the scan's output lie in the columns that the convolution's gradients take over. */
static void palimpsa_backward(struct layer *l, const struct pass *p, struct tensor dx, struct tensor dy,
                              struct tensor x, const void *saved)
{
    struct dev *d = p->dev;
    const struct palimpsa_saved *f = saved;
    struct sizes z = sizes_of(l);
    bool meta = l->cfg->meta[l->index];
    size_t mark = arena_mark(&d->temp);
    struct tensor dqkvg = push_projected(l, &d->temp, d->type, x.dim[0]);
    struct tensor dqkv = arena_push(&d->temp, SHAPE(d->type, x.dim[0], z.H * (2 * z.K + z.V)));
    struct tensor dv = stream_of(dqkv, 2, z), ds = arena_push(&d->temp, tensor_like(f->s));
    struct scan_io g = {
        .q = stream_of(dqkvg, 0, z), .k = stream_of(dqkvg, 1, z),
        .v = arena_push(&d->temp, tensor_like(f->v)), .decay = arena_push(&d->temp, tensor_like(f->dt)),
        .o = stream_of(dqkvg, 2, z),
    };

    if (meta) {
        g.beta = arena_push(&d->temp, tensor_like(f->b_raw));
        g.prior[0] = param_at(l, IP_LOG)->grad;
    }
    output_backward(l, p, dy, f, g.o, dv, dqkvg);
    scan_backward(d, meta ? &scan_palimpsa : &scan_linear, p->seqs, &f->io, &g);
    op_mul_bwd(d, dv, ds, g.v, f->v, f->s, true);
    op_l2norm_bwd(d, qk_of(dqkv, z), qk_of(dqkvg, z), f->qk, f->rqk);
    convolve_backward(l, p, dqkvg, dqkv, f->qkvg);
    linears_backward(d, dx, dqkvg, x, param_at(l, Q), l->cfg->use_gate ? 4 : 3, false);
    gates_backward(l, p, dx, x, f, &g, ds);
    arena_pop(&d->temp, mark);
}

const struct mixer mixer_palimpsa = {
    .name = "palimpsa", .brief = "Palimpsa-D: metaplastic gated linear attention",
    .saved = sizeof(struct palimpsa_saved), .init = palimpsa_init, .state = palimpsa_state,
    .forward = palimpsa_forward, .backward = palimpsa_backward, .step = palimpsa_step, .scan = &scan_palimpsa,
    .plain = &scan_linear,
};
