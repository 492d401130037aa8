/* palimpsa.c - gated linear attention whose memory knows how sure it is.
 *
 *   M_t   = a_t M_{t-1} + v_t k_t'            evidence                 a_t = exp(decay_t)
 *   J_t   = a_t J_{t-1} + b_t (k_t*k_t)'      precision gained         b_t = beta_t
 *   r_t   = 1 / (J_t + Ip)                    variance of an entry     Ip  = exp(prior[0])
 *   o_t   = scale (M_t * r_t) q_t             the read of the mean mu = M r
 *   var_t = scale r_t (q_t*q_t)               how unsure that read is
 *
 * Backward, with e = scale do q' and f = scale dvar (q*q)':
 *
 *   gM_t  = e r              + a_{t+1} gM_{t+1}      dv = gM k      db = gJ (k*k)
 *   gJ_t  = -e r mu - f r r  + a_{t+1} gJ_{t+1}
 *   dk    = gM' v + 2 k * (gJ' b)                    dq = scale (mu' do + 2 q * (r' dvar))
 *   ddecay_t = a_t <M_{t-1}, gM_t> + a_t <J_{t-1}, gJ_t>
 *   dprior   = Ip sum (-e r mu - f r r)
 *
 * M_{t-1} is always recomputed from an earlier state, never by dividing by a_t, which may be 0. */
#include "scan_host.h"
#include <math.h>

static void palimpsa_plan(const struct seqs *s, const struct scan_io *x,
                          struct tensor state[SCAN_STATES], struct tensor saved[SCAN_SAVED])
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];

    state[0] = state[1] = SHAPE(F32, s->n, H, V, K);              /* M, J */
    saved[0] = saved[1] = SHAPE(F32, seqs_tiles(s), H, V, K);     /* before a tile's first token */
}

/* One token: the memory after it from the memory before it; they may be the same. */
static void step(double *M, double *J, const double *M0, const double *J0, const struct scan_io *x,
                 int64_t t, int64_t h)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];
    const float *k = row(x->k, t, h * x->k.dim[1] / H);
    const float *v = row(x->v, t, h), *b = row(x->beta, t, h);
    double a = exp((double)*row(x->decay, t, h));

    for (int64_t i = 0; i < V; i++)
        for (int64_t j = 0; j < K; j++) {
            M[i * K + j] = a * M0[i * K + j] + (double)v[i] * k[j];
            J[i * K + j] = a * J0[i * K + j] + (double)b[i] * k[j] * k[j];
        }
}

/* o and var of one token of head h from the memory after it. */
static void read_memory(const struct scan_io *x, int64_t t, int64_t h, const double *M,
                        const double *J, double Ip)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];
    const float *q = row(x->q, t, h * x->q.dim[1] / H);

    for (int64_t i = 0; i < V; i++) {
        double mean = 0, var = 0;
        for (int64_t j = 0; j < K; j++) {
            double r = 1 / (J[i * K + j] + Ip);
            mean += M[i * K + j] * r * q[j];
            var  += r * q[j] * q[j];
        }
        row(x->o, t, h)[i] = (float)(x->scale * mean);
        if (x->var.data)
            row(x->var, t, h)[i] = (float)(x->scale * var);
    }
}

static void palimpsa_forward_naive(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                   void *scratch)
{
    int64_t H = x->v.dim[1], VK = x->v.dim[2] * x->k.dim[2];
    double *M = mem_new(2 * (size_t)VK, sizeof *M), *J = M + VK;
    (void)d, (void)scratch;

    for (int64_t n = 0; n < s->n; n++)
    for (int64_t h = 0; h < H; h++) {
        double Ip = exp((double)((const float *)x->prior[0].data)[h]);
        memory_load(M, x->state[0], n, h, VK);
        memory_load(J, x->state[1], n, h, VK);
        for (int64_t t = s->start[n]; t < s->start[n + 1]; t++) {
            step(M, J, M, J, x, t, h);
            read_memory(x, t, h, M, J, Ip);
        }
        memory_store(x->next[0], n, h, M, VK);
        memory_store(x->next[1], n, h, J, VK);
    }
    free(M);
}

/* Gradients of one head of one token; dq and dk are added to, since heads may share q and k. */
struct token_grad { double *dq, *dk, *dv, *db, decay, prior; };

/* M0,J0: memory before the token; M,J: after. gM,gJ: gradient of M,J from later tokens; becomes
 * that of M0,J0. */
static void token_backward(struct token_grad *y, const struct scan_io *x, const struct scan_io *g,
                           int64_t t, int64_t h, const double *M0, const double *J0,
                           const double *M, const double *J, double *gM, double *gJ, double Ip)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2];
    const float *q = row(x->q, t, h * x->q.dim[1] / H), *k = row(x->k, t, h * x->k.dim[1] / H);
    const float *v = row(x->v, t, h), *b = row(x->beta, t, h);
    double a = exp((double)*row(x->decay, t, h));

    y->decay = 0;
    for (int64_t i = 0; i < V; i++) {
        double go = g->o.data ? x->scale * (double)row(g->o, t, h)[i] : 0;
        double gvar = g->var.data ? x->scale * (double)row(g->var, t, h)[i] : 0;
        y->dv[i] = y->db[i] = 0;
        for (int64_t j = 0; j < K; j++) {
            int64_t c = i * K + j;
            double r = 1 / (J[c] + Ip), mu = M[c] * r, e = go * q[j], f = gvar * q[j] * q[j];
            gM[c]    += e * r;
            gJ[c]    -= e * r * mu + f * r * r;
            y->prior -= e * r * mu + f * r * r;
            y->dq[j] += go * mu + 2 * gvar * q[j] * r;
            y->dk[j] += gM[c] * v[i] + 2 * gJ[c] * b[i] * k[j];
            y->dv[i] += gM[c] * k[j];
            y->db[i] += gJ[c] * k[j] * k[j];
            y->decay += a * (gM[c] * M0[c] + gJ[c] * J0[c]);
            gM[c]    *= a;
            gJ[c]    *= a;
        }
    }
}

/* Keeps every memory of a sequence: plain, and as long as the sequence. */
static void palimpsa_backward_naive(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                    const struct scan_io *g, void *scratch)
{
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2], VK = V * K;
    double *M = mem_new(2 * (size_t)((s->longest + 1) * VK), sizeof *M);
    double *gM = mem_new((size_t)(2 * VK + 2 * K + 2 * V), sizeof *gM);
    double *J = M + (s->longest + 1) * VK, *gJ = gM + VK, *dq = gJ + VK;
    struct token_grad y = { .dq = dq, .dk = dq + K, .dv = dq + 2 * K, .db = dq + 2 * K + V };
    (void)d, (void)scratch;

    rows_clear(g->q);
    rows_clear(g->k);
    for (int64_t n = 0; n < s->n; n++)
    for (int64_t h = 0; h < H; h++) {
        int64_t from = s->start[n], T = s->start[n + 1] - from;
        double Ip = exp((double)((const float *)x->prior[0].data)[h]);

        memory_load(M, x->state[0], n, h, VK);
        memory_load(J, x->state[1], n, h, VK);
        for (int64_t t = 0; t < T; t++)
            step(M + (t + 1) * VK, J + (t + 1) * VK, M + t * VK, J + t * VK, x, from + t, h);
        memory_load(gM, g->next[0], n, h, VK);
        memory_load(gJ, g->next[1], n, h, VK);
        y.prior = 0;
        for (int64_t t = T - 1; t >= 0; t--) {
            memset(dq, 0, 2 * (size_t)K * sizeof *dq);
            token_backward(&y, x, g, from + t, h, M + t * VK, J + t * VK, M + (t + 1) * VK,
                           J + (t + 1) * VK, gM, gJ, Ip);
            row_add(g->q, from + t, h * x->q.dim[1] / H, y.dq);
            row_add(g->k, from + t, h * x->k.dim[1] / H, y.dk);
            row_put(g->v, from + t, h, y.dv);
            row_put(g->beta, from + t, h, y.db);
            if (g->decay.data)
                *row(g->decay, from + t, h) = (float)y.decay;
        }
        if (g->prior[0].data)
            ((float *)g->prior[0].data)[h] += (float)(Ip * y.prior);
        memory_store(g->state[0], n, h, gM, VK);
        memory_store(g->state[1], n, h, gJ, VK);
    }
    free(gM);
    free(M);
}

static const struct scan_impl palimpsa_naive = {
    .forward = palimpsa_forward_naive, .backward = palimpsa_backward_naive,
};
static const struct scan_field palimpsa_field[] = {
    { SCAN_AT(q), "TQK", -1, 1 }, { SCAN_AT(k), "TGK", -1, 1 }, { SCAN_AT(v), "THV", -1, 1 },
    { SCAN_AT(decay), "TH", -0.5f, -0.02f }, { SCAN_AT(beta), "THV", 0.1f, 1.1f },
    { SCAN_AT(prior[0]), "H", -1, 1 }, { SCAN_AT(var), "THV", 0, 0 },
    { SCAN_AT(state[0]), "", -1, 1 }, { SCAN_AT(state[1]), "", 0.2f, 1.2f }, { 0, NULL, 0, 0 },
};
extern const struct scan_impl palimpsa_cpu;
SCAN_CUDA_DECLARE(palimpsa);

extern const struct scan scan_palimpsa;
const struct scan scan_palimpsa = {
    .name = "palimpsa", .brief = "Bayesian memory: gated linear attention over mean and precision",
    .plan = palimpsa_plan, .field = palimpsa_field,
    .impl = {
        [DEV_NAIVE] = &palimpsa_naive, [DEV_CPU] = &palimpsa_cpu, [DEV_CUDA] = SCAN_CUDA(palimpsa),
    },
};
