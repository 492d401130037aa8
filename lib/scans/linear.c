/* linear.c - gated linear attention: the recurrence of Mamba2 (SSD) and of Palimpsa without its
 * precision.
 *
 *   S_t = a_t S_{t-1} + v_t k_t'       a_t = exp(decay_t)
 *   o_t = scale S_t q_t
 *
 * Backward:
 *
 *   gS_t = scale do_t q_t' + a_{t+1} gS_{t+1}      dq = scale S' do      dv = gS k      dk = gS' v
 *   ddecay_t = a_t <S_{t-1}, gS_t> */
#include "scan_host.h"
#include <math.h>

static void linear_plan(const struct seqs *s, const struct scan_io *x,
                        struct tensor state[SCAN_STATES], struct tensor saved[SCAN_SAVED])
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];

    state[0] = SHAPE(F32, s->n, H, V, K);
    saved[0] = SHAPE(F32, seqs_tiles(s), H, V, K);         /* S before a tile's first token */
}

/* One token: the memory after it from the memory before it; they may be the same. */
static void step(double *S, const double *S0, const struct scan_io *x, int64_t t, int64_t h)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];
    const float *k = row(x->k, t, h * x->k.dim[1] / H), *v = row(x->v, t, h);
    double a = exp((double)*row(x->decay, t, h));

    for (int64_t i = 0; i < V; i++)
        for (int64_t j = 0; j < K; j++)
            S[i * K + j] = a * S0[i * K + j] + (double)v[i] * k[j];
}

static void linear_forward_naive(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                 void *scratch)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];
    double *S = mem_new((size_t)(V * K), sizeof *S);
    (void)d, (void)scratch;

    for (int64_t n = 0; n < s->n; n++)
    for (int64_t h = 0; h < H; h++) {
        memory_load(S, x->state[0], n, h, V * K);
        for (int64_t t = s->start[n]; t < s->start[n + 1]; t++) {
            const float *q = row(x->q, t, h * x->q.dim[1] / H);
            step(S, S, x, t, h);
            for (int64_t i = 0; i < V; i++) {
                double sum = 0;
                for (int64_t j = 0; j < K; j++)
                    sum += S[i * K + j] * q[j];
                row(x->o, t, h)[i] = (float)(x->scale * sum);
            }
        }
        memory_store(x->next[0], n, h, S, V * K);
    }
    free(S);
}

/* Gradients of one head of one token. */
struct token_grad { double *dq, *dk, *dv, decay; };

/* S0, S: memory before and after it. gS: gradient of S by later tokens; becomes that of S0. */
static void token_backward(struct token_grad *y, const struct scan_io *x, const struct scan_io *g,
                           int64_t t, int64_t h, const double *S0, const double *S, double *gS)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];
    const float *q = row(x->q, t, h * x->q.dim[1] / H), *k = row(x->k, t, h * x->k.dim[1] / H);
    const float *v = row(x->v, t, h);
    double a = exp((double)*row(x->decay, t, h));

    y->decay = 0;
    for (int64_t j = 0; j < K; j++)
        y->dq[j] = y->dk[j] = 0;
    for (int64_t i = 0; i < V; i++) {
        double go = g->o.data ? x->scale * (double)row(g->o, t, h)[i] : 0;
        y->dv[i] = 0;
        for (int64_t j = 0; j < K; j++) {
            int64_t c = i * K + j;
            gS[c]    += go * q[j];
            y->dq[j] += go * S[c];
            y->dk[j] += gS[c] * v[i];
            y->dv[i] += gS[c] * k[j];
            y->decay += a * gS[c] * S0[c];
            gS[c]    *= a;
        }
    }
}

/* Keeps every memory of a sequence: plain, and as long as the sequence. */
static void linear_backward_naive(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                  const struct scan_io *g, void *scratch)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2], VK = V * K;
    double *S = mem_new((size_t)((s->longest + 1) * VK), sizeof *S);
    double *gS = mem_new((size_t)(VK + 2 * K + V), sizeof *gS), *dq = gS + VK;
    struct token_grad y = { .dq = dq, .dk = dq + K, .dv = dq + 2 * K };
    (void)d, (void)scratch;

    rows_clear(g->q);
    rows_clear(g->k);
    for (int64_t n = 0; n < s->n; n++)
    for (int64_t h = 0; h < H; h++) {
        int64_t from = s->start[n], T = s->start[n + 1] - from;

        memory_load(S, x->state[0], n, h, VK);
        for (int64_t t = 0; t < T; t++)
            step(S + (t + 1) * VK, S + t * VK, x, from + t, h);
        memory_load(gS, g->next[0], n, h, VK);
        for (int64_t t = T - 1; t >= 0; t--) {
            token_backward(&y, x, g, from + t, h, S + t * VK, S + (t + 1) * VK, gS);
            row_add(g->q, from + t, h * x->q.dim[1] / H, y.dq);
            row_add(g->k, from + t, h * x->k.dim[1] / H, y.dk);
            row_put(g->v, from + t, h, y.dv);
            if (g->decay.data)
                *row(g->decay, from + t, h) = (float)y.decay;
        }
        memory_store(g->state[0], n, h, gS, VK);
    }
    free(gS);
    free(S);
}

static const struct scan_impl linear_naive = {
    .forward = linear_forward_naive, .backward = linear_backward_naive,
};
static const struct scan_field linear_field[] = {
    { SCAN_AT(q), "TQK", -1, 1 }, { SCAN_AT(k), "TGK", -1, 1 }, { SCAN_AT(v), "THV", -1, 1 },
    { SCAN_AT(decay), "TH", -0.5f, -0.02f }, { SCAN_AT(state[0]), "", -1, 1 }, { 0, NULL, 0, 0 },
};
extern const struct scan_impl linear_cpu;
SCAN_CUDA_DECLARE(linear);

extern const struct scan scan_linear;
const struct scan scan_linear = {
    .name = "linear", .brief = "gated linear attention, as in Mamba2",
    .plan = linear_plan, .field = linear_field,
    .impl = {
        [DEV_NAIVE] = &linear_naive, [DEV_CPU] = &linear_cpu, [DEV_CUDA] = SCAN_CUDA(linear),
    },
};
