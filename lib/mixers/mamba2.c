/* mamba2.c - Mamba2's layer, and Palimpsa-M: the same with a memory that knows how sure it is.
 *
 *   [z | xBC | dt] = in_proj u (+ bias);  [x | B | C] = silu(conv(xBC) + bias)
 *   dt = clamp(softplus(dt + dt_bias)), decay = -exp(A_log) dt;  b = sigmoid(Wb Wr u) softplus(b_scale) dt
 *   o = scan(q = C, k = B, v = dt*x, decay, b, Ip_log) + D x;  y = out_proj(RMSNorm(o * silu(z))) (+ bias)
 *
 * B and C are shared by heads/groups heads; scale 1; D is a number a head, or a channel. Layers outside `meta` use the
 * plain scan: Mamba2's SSD. Sources: arXiv 2405.21060, arXiv 2602.09075; docs/math.md. */
#include "layer.h"
#include <math.h>

extern const struct scan scan_palimpsa, scan_linear;
extern const struct mixer mixer_mamba2;

enum { IN, CONV, DT_BIAS, A_LOG, D_SKIP, NORM, OUT, CONV_BIAS };      /* then biases of IN and OUT, b_*, or not */
enum { B_RANK, B, B_SCALE, IP_LOG };

struct mamba2_saved {
    struct tensor zxbcdt, xbc;             /* [T,2I+2GS+H] in_proj's output; [T,I+2GS] after the convolution */
    struct tensor dt;                      /* [T,H] F32 */
    struct tensor rank, b_raw;             /* [T,R], [T,H,P] */
    struct tensor o, rstd, y;              /* [T,H,P] with the skip; [T,norm groups]; [T,I] into out_proj */
    struct scan_io io;
};

struct sizes { int64_t H, G, S, P, I, C, R, D; };      /* C: channels of the convolution */

static struct sizes sizes_of(const struct layer *l)
{
    const struct config *c = l->cfg;
    int64_t I = (int64_t)c->heads * c->value;

    return (struct sizes){ c->heads, c->groups, c->key, c->value, I, I + 2 * (int64_t)c->groups * c->key,
                           c->rank, c->width };
}

static void mamba2_init(struct layer *l, const char *prefix)
{
    const struct config *c = l->cfg;
    struct sizes z = sizes_of(l);
    unsigned gain = PARAM_GAIN | (c->meta[l->index] ? 0 : PARAM_UNUSED), small = PARAM_F32 | PARAM_NO_DECAY;
    float std = c->init_std, bound = 1 / sqrtf((float)z.R), out = 1 / sqrtf((float)z.I * (float)c->layers);
    int i;

    layer_add(l, prefix, "mixer.in_proj.weight", SHAPE(F32, z.I + z.C + z.H, z.D), 0, draw_normal, 0, std);
    layer_add(l, prefix, "mixer.conv1d.weight", SHAPE(F32, z.C, 1, c->conv), PARAM_F32, draw_normal, 0, std);
    i = layer_add(l, prefix, "mixer.dt_bias", SHAPE(F32, z.H), small, c->ramp ? draw_dt_ramp : draw_dt_bias, c->dt_min,
                  c->dt_max);
    l->params->at[i].c = c->dt_floor;
    layer_add(l, prefix, "mixer.A_log", SHAPE(F32, z.H), small, c->ramp ? draw_log_ramp : draw_log_uniform, c->A_lo,
              c->A_hi);
    layer_add(l, prefix, "mixer.D", SHAPE(F32, c->D_has_hdim ? z.I : z.H), small, draw_const, 1, 0);
    layer_add(l, prefix, "mixer.norm.weight", SHAPE(F32, z.I), small, draw_const, 1, 0);
    if (c->rescale_prenorm && !c->ramp)
        layer_add(l, prefix, "mixer.out_proj.weight", SHAPE(F32, z.D, z.I), 0, draw_uniform, -out, out);
    else
        layer_add(l, prefix, "mixer.out_proj.weight", SHAPE(F32, z.D, z.I), 0, draw_normal, 0, std);
    if (c->conv_bias)
        layer_add(l, prefix, "mixer.conv1d.bias", SHAPE(F32, z.C), small, draw_const, 0, 0);
    if (c->proj_bias) {
        layer_add(l, prefix, "mixer.in_proj.bias", SHAPE(F32, z.I + z.C + z.H), small, draw_const, 0, 0);
        layer_add(l, prefix, "mixer.out_proj.bias", SHAPE(F32, z.D), small, draw_const, 0, 0);
    }
    if (!c->gain[l->index])
        return;
    layer_add(l, prefix, "mixer.b_rank_proj.weight", SHAPE(F32, z.R, z.D), gain, draw_normal, 0, std);
    layer_add(l, prefix, "mixer.b_proj.weight", SHAPE(F32, z.I, z.R), gain, c->ramp ? draw_normal : draw_uniform,
              c->ramp ? 0 : -bound, c->ramp ? std : bound);
    layer_add(l, prefix, "mixer.b_scale", SHAPE(F32, z.H), small | gain, draw_const, 1, 0);
    layer_add(l, prefix, "mixer.Ip_log", SHAPE(F32, z.H), small | gain | PARAM_FROZEN, draw_const, 0, 0);
}

static struct param *gain_param(const struct layer *l, int i)
{
    return layer_param(l, CONV_BIAS + l->cfg->conv_bias + 2 * l->cfg->proj_bias + i);
}

static struct tensor conv_bias(const struct layer *l, bool grad)
{
    if (!l->cfg->conv_bias)
        return (struct tensor){ 0 };
    return grad ? layer_param(l, CONV_BIAS)->grad : layer_param(l, CONV_BIAS)->value;
}

/* What D multiplies, a number a head or a channel: x or o [T,I] as [T,I/n,n]. */
static struct tensor skip_of(const struct layer *l, struct tensor x, struct sizes z)
{
    return tensor_heads(x, l->cfg->D_has_hdim ? z.I : z.H);
}

enum { BIAS_IN, BIAS_OUT };

/* A bias is a weight on an input that is always 1: few models have one, so it needs no verb of its own. */
static struct tensor push_ones(struct dev *d, struct tensor like)
{
    struct tensor ones = arena_push(&d->temp, tensor_like(tensor_heads(like, like.dim[1])));

    op_fill(d, ones, 1);
    return ones;
}

static struct param *proj_bias(const struct layer *l, int which)
{
    return layer_param(l, CONV_BIAS + l->cfg->conv_bias + which);
}

/* y [T,C] += bias */
static void bias_forward(const struct layer *l, struct dev *d, struct tensor y, int which)
{
    size_t mark = arena_mark(&d->temp);

    if (l->cfg->proj_bias)
        op_mul(d, tensor_heads(y, y.dim[1]), push_ones(d, y), proj_bias(l, which)->value, true);
    arena_pop(&d->temp, mark);
}

static void bias_backward(const struct layer *l, struct dev *d, struct tensor dy, int which)
{
    size_t mark = arena_mark(&d->temp);

    if (l->cfg->proj_bias)
        op_mul_bwd(d, (struct tensor){ 0 }, proj_bias(l, which)->grad, tensor_heads(dy, dy.dim[1]), push_ones(d, dy),
                   proj_bias(l, which)->value, false);
    arena_pop(&d->temp, mark);
}

static void mamba2_state(const struct layer *l, int64_t nseq, struct tensor shape[MIXER_STATES])
{
    struct sizes z = sizes_of(l);

    shape[0] = SHAPE(F32, nseq, z.H, z.P, z.S);
    if (l->cfg->meta[l->index])
        shape[1] = shape[0];
    shape[SCAN_STATES] = SHAPE(F32, nseq, l->cfg->conv - 1, z.C);
}

/* Columns of the fused projection and of the convolution's output, by name. */
static struct tensor gate_of(struct tensor zxbcdt, struct sizes z) { return tensor_cols(zxbcdt, 0, z.I); }
static struct tensor xbc_of(struct tensor zxbcdt, struct sizes z)  { return tensor_cols(zxbcdt, z.I, z.C); }
static struct tensor dt_of(struct tensor zxbcdt, struct sizes z)   { return tensor_cols(zxbcdt, z.I + z.C, z.H); }
static struct tensor x_of(struct tensor xbc, struct sizes z)
{
    return tensor_heads(tensor_cols(xbc, 0, z.I), z.H);
}
static struct tensor B_of(struct tensor xbc, struct sizes z)
{
    return tensor_heads(tensor_cols(xbc, z.I, z.G * z.S), z.G);
}
static struct tensor C_of(struct tensor xbc, struct sizes z)
{
    return tensor_heads(tensor_cols(xbc, z.I + z.G * z.S, z.G * z.S), z.G);
}

static enum gate gate_order(const struct config *c)
{
    return c->norm_before_gate ? GATE_AFTER_NORM : GATE_BEFORE_NORM;
}

static void mamba2_forward(struct layer *l, const struct pass *p, struct tensor y, struct tensor u, void *saved)
{
    struct dev *d = p->dev;
    struct arena *a = p->train ? &d->keep : &d->temp;
    struct mamba2_saved *f = saved;
    struct sizes z = sizes_of(l);
    bool meta = l->cfg->meta[l->index];
    size_t mark = arena_mark(&d->temp);
    int64_t T = u.dim[0], N = l->cfg->norm_groups;
    struct tensor x;

    *f = (struct mamba2_saved){ .io.scale = 1 };
    f->zxbcdt = arena_push(a, SHAPE(d->type, T, z.I + z.C + z.H));
    f->xbc = arena_push(a, SHAPE(d->type, T, z.C));
    linear_forward(d, f->zxbcdt, u, layer_param(l, IN));
    bias_forward(l, d, f->zxbcdt, BIAS_IN);
    op_conv(d, f->xbc, layer_tail_out(l, p, 0), xbc_of(f->zxbcdt, z), tensor_flat(layer_param(l, CONV)->value),
            conv_bias(l, false), layer_tail_in(l, p, 0), p->seqs);
    x = x_of(f->xbc, z);
    f->dt = arena_push(a, SHAPE(F32, T, z.H));
    f->io.decay = arena_push(a, SHAPE(F32, T, z.H));
    op_decay(d, f->dt, f->io.decay, dt_of(f->zxbcdt, z), layer_param(l, DT_BIAS)->value,
             layer_param(l, A_LOG)->value, (struct dt_range){ l->cfg->dt_lo, l->cfg->dt_hi });
    if (meta) {
        f->rank = arena_push(a, SHAPE(d->type, T, z.R));
        f->b_raw = arena_push(a, SHAPE(d->type, T, z.H, z.P));
        f->io.beta = arena_push(a, tensor_like(f->b_raw));
        linear_forward(d, f->rank, u, gain_param(l, B_RANK));
        linear_forward(d, tensor_flat(f->b_raw), f->rank, gain_param(l, B));
        op_gain(d, f->io.beta, f->b_raw, gain_param(l, B_SCALE)->value, f->dt);
        f->io.prior[0] = gain_param(l, IP_LOG)->value;
    }
    f->io.q = C_of(f->xbc, z);
    f->io.k = B_of(f->xbc, z);
    f->io.v = arena_push(a, SHAPE(d->type, T, z.H, z.P));
    op_mul(d, f->io.v, x, f->dt, false);
    f->io.o = f->o = arena_push(a, tensor_like(f->io.v));
    if (meta && p->want_var)
        f->io.var = arena_push(a, SHAPE(F32, T, z.H, z.P));
    layer_carry(l, p, &f->io, meta ? 2 : 1);
    scan_forward(d, meta ? &scan_palimpsa : &scan_linear, p->seqs, &f->io, p->train ? &d->keep : NULL);
    if (p->watch)
        p->watch(p->watch_arg, l, p->seqs, &f->io);
    op_mul(d, skip_of(l, tensor_flat(f->o), z), skip_of(l, tensor_cols(f->xbc, 0, z.I), z),
           layer_param(l, D_SKIP)->value, true);
    f->rstd = arena_push(a, SHAPE(F32, T, N));
    f->y = arena_push(a, SHAPE(d->type, T, z.I));
    op_rmsnorm(d, tensor_heads(f->y, N), f->rstd, tensor_heads(tensor_flat(f->o), N), layer_param(l, NORM)->value,
               tensor_heads(gate_of(f->zxbcdt, z), N), gate_order(l->cfg), l->cfg->eps);
    linear_forward(d, y, f->y, layer_param(l, OUT));
    bias_forward(l, d, y, BIAS_OUT);
    arena_pop(&d->temp, mark);
}

/* b back to u, which is overwritten (through its two matrices), and to dt. */
static void gain_backward(struct layer *l, const struct pass *p, struct tensor du, struct tensor ddt, struct tensor u,
                          const struct mamba2_saved *f, struct tensor dbeta)
{
    struct dev *d = p->dev;
    size_t mark = arena_mark(&d->temp);
    struct tensor db = arena_push(&d->temp, tensor_like(f->b_raw));
    struct tensor dr = arena_push(&d->temp, tensor_like(f->rank));

    op_gain_bwd(d, db, gain_param(l, B_SCALE)->grad, ddt, dbeta, f->b_raw, gain_param(l, B_SCALE)->value, f->dt);
    linear_backward(d, dr, tensor_flat(db), f->rank, gain_param(l, B), false);
    linear_backward(d, du, dr, u, gain_param(l, B_RANK), false);
    arena_pop(&d->temp, mark);
}

static void mamba2_backward(struct layer *l, const struct pass *p, struct tensor du, struct tensor dy,
                            struct tensor u, const void *saved)
{
    struct dev *d = p->dev;
    struct arena *t = &d->temp;
    const struct mamba2_saved *f = saved;
    struct sizes z = sizes_of(l);
    bool meta = l->cfg->meta[l->index];
    size_t mark = arena_mark(t);
    int64_t N = l->cfg->norm_groups;
    struct tensor dz = arena_push(t, tensor_like(f->zxbcdt)), dxbc = arena_push(t, tensor_like(f->xbc));
    struct tensor dn = arena_push(t, tensor_like(f->y)), ddt = arena_push(t, tensor_like(f->dt));
    struct tensor x = x_of(f->xbc, z), dx = x_of(dxbc, z);
    struct scan_io g = {
        .q = C_of(dxbc, z), .k = B_of(dxbc, z), .v = arena_push(t, tensor_like(f->io.v)),
        .decay = arena_push(t, tensor_like(f->dt)), .o = arena_push(t, tensor_like(f->o)),
    };

    bias_backward(l, d, dy, BIAS_OUT);
    linear_backward(d, dn, dy, f->y, layer_param(l, OUT), false);
    op_rmsnorm_bwd(d, tensor_heads(tensor_flat(g.o), N), layer_param(l, NORM)->grad, tensor_heads(gate_of(dz, z), N),
                   tensor_heads(dn, N), tensor_heads(tensor_flat(f->o), N), layer_param(l, NORM)->value,
                   tensor_heads(gate_of(f->zxbcdt, z), N), f->rstd, gate_order(l->cfg), false);
    op_mul_bwd(d, skip_of(l, tensor_cols(dxbc, 0, z.I), z), layer_param(l, D_SKIP)->grad,
               skip_of(l, tensor_flat(g.o), z), skip_of(l, tensor_cols(f->xbc, 0, z.I), z),
               layer_param(l, D_SKIP)->value, false);
    if (meta) {
        g.beta = arena_push(t, tensor_like(f->b_raw));
        g.prior[0] = gain_param(l, IP_LOG)->grad;
    }
    scan_backward(d, meta ? &scan_palimpsa : &scan_linear, p->seqs, &f->io, &g);
    op_mul_bwd(d, dx, ddt, g.v, x, f->dt, true);
    if (meta)
        gain_backward(l, p, du, ddt, u, f, g.beta);
    op_decay_bwd(d, dt_of(dz, z), layer_param(l, DT_BIAS)->grad, layer_param(l, A_LOG)->grad, ddt, g.decay,
                 dt_of(f->zxbcdt, z), layer_param(l, DT_BIAS)->value, layer_param(l, A_LOG)->value,
                 (struct dt_range){ l->cfg->dt_lo, l->cfg->dt_hi });
    op_conv_bwd(d, xbc_of(dz, z), tensor_flat(layer_param(l, CONV)->grad), conv_bias(l, true), dxbc,
                xbc_of(f->zxbcdt, z), tensor_flat(layer_param(l, CONV)->value), conv_bias(l, false), p->seqs);
    bias_backward(l, d, dz, BIAS_IN);
    linear_backward(d, du, dz, u, layer_param(l, IN), meta);
    arena_pop(t, mark);
}

const struct mixer mixer_mamba2 = {
    .name = "mamba2", .brief = "Mamba2, and Palimpsa-M in metaplastic layers",
    .saved = sizeof(struct mamba2_saved), .init = mamba2_init, .state = mamba2_state,
    .forward = mamba2_forward, .backward = mamba2_backward, .scan = &scan_palimpsa, .plain = &scan_linear,
};
