/* scan_palimpsa_cpu.c - the Palimpsa recurrence on host cores (equations: scans/palimpsa.c).
 *
 * The rows of a memory do not talk to each other, except that dq, dk and ddecay sum over them. So a
 * unit of work is a block of rows of one head. It walks the packed row by STEP tokens at a time, which
 * with their histories fit the first-level cache. The K entries of a memory's row lie in SIMD lanes,
 * padded with zeros, where everything stays 0.
 *
 * Backward walks the tiles of SEQ_TILE tokens from last to first. From the saved memory it runs forward
 * to the start of each step of the tile; then, from the last step to the first, it runs forward again,
 * now keeping the memory before every token, and backward. Units leave their part of dq, dk and ddecay
 * in scratch; it is summed in a fixed order, so the result does not depend on who did what. */
#include "scan_host.h"
#include "simd.h"
#include <math.h>
#include <omp.h>

enum { STEP = 16, STEPS = SEQ_TILE / STEP };
enum { PAD = 16, BLOCK = 32 };           /* floats a row is padded to; most rows in a unit */
enum { SHARES = 16 << 20 };              /* bytes of scratch for sums over units, if several tiles fit */

struct cell { lanes M, J; };             /* LANES entries of a memory, or of its adjoint */
struct pair { lanes q, k; };             /* LANES entries of a query and a key, or of their gradients */

struct split {
    int64_t H, V, K, n;                  /* n: vectors in a row of a memory */
    int64_t blocks, rows, units;         /* units of a head, rows in a unit, units */
    int64_t tiles;                       /* of backward between two sums over units */
};

static int64_t tile_share_floats(struct split p)
{
    return SEQ_TILE * (2 * p.n * LANES + 1);
}

static struct split split_of(const struct seqs *s, const struct scan_io *x)
{
    struct split p = { .H = x->v.dim[1], .V = x->v.dim[2], .K = x->k.dim[2] };

    p.n      = (p.K + PAD - 1) / PAD * (PAD / LANES);
    p.blocks = (p.V + BLOCK - 1) / BLOCK;
    p.rows   = (p.V + p.blocks - 1) / p.blocks;
    p.units  = p.H * p.blocks;
    p.tiles  = SHARES / (p.units * tile_share_floats(p) * (int64_t)sizeof(float));
    p.tiles  = p.tiles < 1 ? 1 : p.tiles < seqs_tiles(s) ? p.tiles : seqs_tiles(s);
    return p;
}

/* One unit at STEP tokens. */
struct step {
    int64_t        from;                     /* first token */
    int            tokens, segments;
    struct segment seg[STEP];
    float          a[STEP];
    struct pair   *qk;                       /* [STEP, n] */
    float         *v, *b, *mean, *var;       /* [rows, STEP]; mean, var: what is read, or its gradient */
    struct cell   *before;                   /* [rows, n] memory before the first token (backward only) */
};

struct unit {
    struct split p;
    int64_t      h, row0, rows;              /* its head, its first row */
    float        Ip;
    struct cell *memory;                     /* [rows, n] on the way forward */
    struct cell *history;                    /* [STEP, n] of one row, before each token (backward only) */
    struct step  step[STEPS];                /* forward uses only one */
};

static int threads_of(const struct dev *d)
{
    return d->threads > 0 ? d->threads : 1;
}

static int64_t unit_floats(struct split p, bool backward)
{
    int64_t width = p.n * LANES, steps = backward ? STEPS : 1;

    return 2 * p.rows * width + (backward ? 2 * STEP * width : 0)
         + steps * (2 * STEP * width + 4 * p.rows * STEP + (backward ? 2 * p.rows * width : 0));
}

static float *part(float **scratch, int64_t floats)
{
    float *p = *scratch;

    *scratch += floats;
    return p;
}

static struct unit unit_of(struct split p, float *scratch, bool backward)
{
    struct unit u = { .p = p };
    int64_t width = p.n * LANES;

    u.memory = (struct cell *)part(&scratch, 2 * p.rows * width);
    u.history = backward ? (struct cell *)part(&scratch, 2 * STEP * width) : NULL;
    for (int i = 0; i < (backward ? STEPS : 1); i++) {
        struct step *y = &u.step[i];
        y->qk     = (struct pair *)part(&scratch, 2 * STEP * width);
        y->v      = part(&scratch, p.rows * STEP);
        y->b      = part(&scratch, p.rows * STEP);
        y->mean   = part(&scratch, p.rows * STEP);
        y->var    = part(&scratch, p.rows * STEP);
        y->before = backward ? (struct cell *)part(&scratch, 2 * p.rows * width) : NULL;
    }
    return u;
}

static void unit_open(struct unit *u, const struct scan_io *x, int64_t unit)
{
    u->h = unit / u->p.blocks;
    u->row0 = unit % u->p.blocks * u->p.rows;
    u->rows = u->row0 + u->p.rows < u->p.V ? u->p.rows : u->p.V - u->row0;
    u->Ip = expf(((const float *)x->prior[0].data)[u->h]);
}

/* Strand 0 or 1 of a weave: K floats as every other vector, the tail padded with zeros; absent: zeros. */
static void weave(lanes *to, const float *from, int strand, struct split p)
{
    for (int64_t i = 0; i < p.n; i++)
        to[2 * i + strand] = lanes_load(from ? from + i * LANES : NULL, from ? p.K - i * LANES : 0);
}

static void unweave(float *to, const lanes *from, int strand, struct split p)
{
    for (int64_t i = 0; i < p.n; i++)
        lanes_store(to + i * LANES, from[2 * i + strand], p.K - i * LANES);
}

/* Row r of the unit in a state tensor; NULL when the tensor is absent. */
static float *state_row(struct tensor t, int64_t n, const struct unit *u, int64_t r)
{
    return t.data ? memory(t, n, u->h) + (u->row0 + r) * u->p.K : NULL;
}

static void state_load(struct cell *to, const struct tensor t[2], int64_t n, const struct unit *u, int64_t r)
{
    for (int i = 0; i < 2; i++)
        weave((lanes *)to, state_row(t[i], n, u, r), i, u->p);
}

static void state_store(const struct tensor t[2], int64_t n, const struct unit *u, int64_t r, const struct cell *from)
{
    for (int i = 0; i < 2; i++)
        if (t[i].data)
            unweave(state_row(t[i], n, u, r), (const lanes *)from, i, u->p);
}

/* A row of a memory needs its entry of v at every token: columns of [T,H,V] become rows here. */
static void columns_load(float *to, const struct unit *u, const struct step *y, struct tensor t, float scale)
{
    for (int i = 0; i < y->tokens; i++) {
        const float *from = t.data ? row(t, y->from + i, u->h) + u->row0 : NULL;
        for (int64_t r = 0; r < u->rows; r++)
            to[r * STEP + i] = from ? scale * from[r] : 0;
    }
}

static void columns_store(struct tensor t, const struct unit *u, const struct step *y, const float *from, float scale)
{
    for (int i = 0; t.data && i < y->tokens; i++) {
        float *to = row(t, y->from + i, u->h) + u->row0;
        for (int64_t r = 0; r < u->rows; r++)
            to[r] = scale * from[r * STEP + i];
    }
}

static void step_load(const struct unit *u, struct step *y, const struct seqs *s, const struct scan_io *x, int64_t from)
{
    int64_t H = u->p.H, hq = u->h * x->q.dim[1] / H, hk = u->h * x->k.dim[1] / H;

    y->from = from;
    y->tokens = (int)(s->tokens - from < STEP ? s->tokens - from : STEP);
    y->segments = scan_segments(y->seg, s, from, from + y->tokens);
    for (int t = 0; t < y->tokens; t++) {
        y->a[t] = expf(*row(x->decay, from + t, u->h));
        weave((lanes *)(y->qk + t * u->p.n), row(x->q, from + t, hq), 0, u->p);
        weave((lanes *)(y->qk + t * u->p.n), row(x->k, from + t, hk), 1, u->p);
    }
    columns_load(y->v, u, y, x->v, 1);
    columns_load(y->b, u, y, x->beta, 1);
}

/* The tokens of one segment, for row r. */
static void advance_and_read(const struct unit *u, const struct step *y, const struct segment *seg, int64_t r, bool var)
{
    int64_t n = u->p.n;
    struct cell *m = u->memory + r * n;

    for (int t = seg->from; t < seg->to; t++) {
        const struct pair *x = y->qk + t * n;
        float a = y->a[t], v = y->v[r * STEP + t], b = y->b[r * STEP + t];
        lanes mean = { 0 }, doubt = { 0 };
        for (int64_t j = 0; j < n; j++) {
            lanes q = x[j].q, k = x[j].k, M = a * m[j].M + v * k, J = a * m[j].J + b * (k * k), qr = q / (J + u->Ip);
            mean += qr * M;
            doubt += qr * q;
            m[j] = (struct cell){ M, J };
        }
        y->mean[r * STEP + t] = lanes_sum(mean);
        if (var)
            y->var[r * STEP + t] = lanes_sum(doubt);
    }
}

static void row_forward(const struct unit *u, const struct step *y, const struct scan_io *x, int64_t r)
{
    struct cell *m = u->memory + r * u->p.n;

    for (const struct segment *seg = y->seg; seg < y->seg + y->segments; seg++) {
        if (seg->first)
            state_load(m, x->state, seg->n, u, r);
        if (seg->from == 0 && y->from % SEQ_TILE == 0)
            state_store(x->saved, y->from / SEQ_TILE, u, r, m);
        advance_and_read(u, y, seg, r, x->var.data);
        if (seg->last)
            state_store(x->next, seg->n, u, r, m);
    }
}

static void palimpsa_forward_cpu(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch)
{
    const struct split p = split_of(s, x);

    scan_pass_empty(s, x->next[0], x->state[0]);
    scan_pass_empty(s, x->next[1], x->state[1]);
#pragma omp parallel num_threads(threads_of(d))
    {
        struct unit u = unit_of(p, (float *)scratch + omp_get_thread_num() * unit_floats(p, false), false);
        struct step *y = &u.step[0];
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < p.units; unit++) {
            unit_open(&u, x, unit);
            for (int64_t from = 0; from < s->tokens; from += STEP) {
                step_load(&u, y, s, x, from);
                for (int64_t r = 0; r < u.rows; r++)
                    row_forward(&u, y, x, r);
                columns_store(x->o, &u, y, y->mean, x->scale);
                columns_store(x->var, &u, y, y->var, x->scale);
            }
        }
    }
}

/* What a unit carries from tile to tile, and its part of the sums over units. */
struct share {
    struct cell *adjoint;                    /* [rows, n] */
    double      *prior;                      /* of all tiles */
    struct pair *dqk;                        /* [SEQ_TILE, n] of one tile */
    float       *ddecay;                     /* [SEQ_TILE] */
};

static int64_t share_floats(struct split p)
{
    return 2 * p.rows * p.n * LANES + PAD + p.tiles * tile_share_floats(p);
}

/* tile: which of the tiles between two sums. */
static struct share share_of(struct split p, void *scratch, int64_t unit, int64_t tile)
{
    float *at = (float *)scratch + unit * share_floats(p);
    struct share z;

    z.adjoint = (struct cell *)part(&at, 2 * p.rows * p.n * LANES);
    z.prior   = (double *)(void *)part(&at, PAD);
    at += tile * tile_share_floats(p);
    z.dqk     = (struct pair *)part(&at, 2 * SEQ_TILE * p.n * LANES);
    z.ddecay  = at;
    return z;
}

static int64_t palimpsa_scratch_cpu(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward)
{
    struct split p = split_of(s, x);

    return 4 * (threads_of(d) * unit_floats(p, backward) + (backward ? p.units * share_floats(p) : 0));
}

static void advance(struct cell *to, const struct cell *from, const struct pair *x, float a, float v, float b, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        lanes k = x[j].k;
        to[j] = (struct cell){ a * from[j].M + v * k, a * from[j].J + b * (k * k) };
    }
}

/* Row r from the start of a step to that of the next. */
static void row_skip(const struct unit *u, const struct step *y, const struct scan_io *x, int64_t r)
{
    struct cell *m = u->memory + r * u->p.n;

    for (const struct segment *seg = y->seg; seg < y->seg + y->segments; seg++) {
        if (seg->first)
            state_load(m, x->state, seg->n, u, r);
        for (int t = seg->from; t < seg->to; t++)
            advance(m, m, y->qk + t * u->p.n, y->a[t], y->v[r * STEP + t], y->b[r * STEP + t], u->p.n);
    }
}

/* Loads the steps of a tile, with the memory before each. Returns how many there are. */
static int tile_open(struct unit *u, const struct seqs *s, const struct scan_io *x, int64_t tile)
{
    int count = 0;

    for (int64_t from = tile * SEQ_TILE; count < STEPS && from < s->tokens; from += STEP, count++)
        step_load(u, &u->step[count], s, x, from);
    for (int64_t r = 0; r < u->rows; r++)
        state_load(u->memory + r * u->p.n, x->saved, tile, u, r);
    for (int i = 0; i < count; i++) {
        memcpy(u->step[i].before, u->memory, (size_t)(u->rows * u->p.n) * sizeof *u->memory);
        for (int64_t r = 0; i < count - 1 && r < u->rows; r++)
            row_skip(u, &u->step[i], x, r);
    }
    return count;
}

/* Keeps the memory of row r before each token of a segment. */
static void segment_forward(const struct unit *u, const struct step *y, const struct scan_io *x,
                            const struct segment *seg, int64_t r)
{
    int64_t n = u->p.n;
    struct cell *m = u->history + seg->from * n;

    if (seg->first)
        state_load(m, x->state, seg->n, u, r);
    else
        memcpy(m, y->before + r * n, (size_t)n * sizeof *m);
    for (int t = seg->from; t < seg->to - 1; t++, m += n)
        advance(m + n, m, y->qk + t * n, y->a[t], y->v[r * STEP + t], y->b[r * STEP + t], n);
}

struct row_sums { lanes decay[STEP], prior; };

/* The tokens of one segment from last to first, for row r; leaves dv, db where v, b were. */
static inline __attribute__((always_inline)) void segment_backward(
    struct row_sums *sum, const struct unit *u, const struct step *y, struct cell *g, struct pair *dqk,
    const struct segment *seg, int64_t r, bool var)
{
    const int64_t n = u->p.n;
    lanes prior = sum->prior;

    for (int t = seg->to - 1; t >= seg->from; t--) {
        const struct pair *x = y->qk + t * n;
        const struct cell *m = u->history + t * n;
        struct pair *dx = dqk + t * n;
        const int64_t at = r * STEP + t;
        const float a = y->a[t], v = y->v[at], b = y->b[at], go = y->mean[at], gv = y->var[at], Ip = u->Ip;
        lanes dv = { 0 }, db = { 0 }, dd = sum->decay[t];

        for (int64_t j = 0; j < n; j++) {
            lanes q = x[j].q, k = x[j].k, aM = a * m[j].M, aJ = a * m[j].J, bk = b * k;
            lanes inv = 1 / (aJ + bk * k + Ip), mu = (aM + v * k) * inv;
            lanes up = go * q * inv, down = up * mu, dq = go * mu;
            if (var) {
                down += gv * (q * inv) * (q * inv);
                dq += 2 * gv * (q * inv);
            }
            lanes gM = g[j].M + up, gJ = g[j].J - down;
            prior -= down;
            dx[j].q += dq;
            dx[j].k += v * gM + 2 * bk * gJ;
            dv += gM * k;
            db += gJ * (k * k);
            dd += gM * aM + gJ * aJ;
            g[j] = (struct cell){ a * gM, a * gJ };
        }
        sum->decay[t] = dd;
        y->v[at] = lanes_sum(dv);
        y->b[at] = lanes_sum(db);
    }
    sum->prior = prior;
}

static void row_backward(struct row_sums *sum, const struct unit *u, const struct step *y, const struct share *z,
                         struct pair *dqk, const struct scan_io *x, const struct scan_io *g, int64_t r)
{
    struct cell *adjoint = z->adjoint + r * u->p.n;

    for (const struct segment *seg = y->seg; seg < y->seg + y->segments; seg++)
        segment_forward(u, y, x, seg, r);
    for (const struct segment *seg = y->seg + y->segments - 1; seg >= y->seg; seg--) {
        if (seg->last)
            state_load(adjoint, g->next, seg->n, u, r);
        if (g->var.data)
            segment_backward(sum, u, y, adjoint, dqk, seg, r, true);
        else
            segment_backward(sum, u, y, adjoint, dqk, seg, r, false);
        if (seg->first)
            state_store(g->state, seg->n, u, r, adjoint);
    }
}

static void step_backward(const struct unit *u, const struct step *y, const struct share *z, const struct scan_io *x,
                          const struct scan_io *g)
{
    struct row_sums sum = { .prior = { 0 } };
    int first = (int)(y->from % SEQ_TILE);
    struct pair *dqk = z->dqk + first * u->p.n;

    columns_load(y->mean, u, y, g->o, x->scale);
    columns_load(y->var, u, y, g->var, x->scale);
    memset(dqk, 0, (size_t)(y->tokens * u->p.n) * sizeof *dqk);
    for (int64_t r = 0; r < u->rows; r++)
        row_backward(&sum, u, y, z, dqk, x, g, r);
    for (int t = 0; t < y->tokens; t++)
        z->ddecay[first + t] = lanes_sum(sum.decay[t]);
    *z->prior += lanes_sum(sum.prior);
    columns_store(g->v, u, y, y->v, 1);
    columns_store(g->beta, u, y, y->b, 1);
}

/* dq or dk (strand 0 or 1) of one token: the parts of the units of heads [h0,h1), in a fixed order. */
static void sum_rows(float *to, struct split p, void *scratch, int64_t tile, int t, int64_t h0, int64_t h1, int strand)
{
    for (int64_t i = 0; i < p.n; i++) {
        lanes sum = { 0 };
        for (int64_t unit = h0 * p.blocks; unit < h1 * p.blocks; unit++)
            sum += ((const lanes *)(share_of(p, scratch, unit, tile).dqk + t * p.n))[2 * i + strand];
        lanes_store(to + i * LANES, sum, p.K - i * LANES);
    }
}

static void sum_token(struct split p, void *scratch, const struct scan_io *x, const struct scan_io *g,
                      int64_t token, int64_t tile)
{
    int64_t each_q = p.H / x->q.dim[1], each_k = p.H / x->k.dim[1];
    int t = (int)(token % SEQ_TILE);

    for (int64_t h = 0; g->q.data && h < x->q.dim[1]; h++)
        sum_rows(row(g->q, token, h), p, scratch, tile, t, h * each_q, (h + 1) * each_q, 0);
    for (int64_t h = 0; g->k.data && h < x->k.dim[1]; h++)
        sum_rows(row(g->k, token, h), p, scratch, tile, t, h * each_k, (h + 1) * each_k, 1);
    for (int64_t h = 0; g->decay.data && h < p.H; h++) {
        float sum = 0;
        for (int64_t unit = h * p.blocks; unit < (h + 1) * p.blocks; unit++)
            sum += share_of(p, scratch, unit, tile).ddecay[t];
        *row(g->decay, token, h) = sum;
    }
}

/* Tiles [first, last), by all threads; afterwards their sums over units. */
static void tiles_backward(struct unit *u, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                           void *scratch, int64_t first, int64_t last)
{
    const struct split p = u->p;
    int64_t end = last * SEQ_TILE < s->tokens ? last * SEQ_TILE : s->tokens;

#pragma omp for schedule(dynamic)
    for (int64_t unit = 0; unit < p.units; unit++) {
        unit_open(u, x, unit);
        for (int64_t tile = last - 1; tile >= first; tile--) {
            struct share z = share_of(p, scratch, unit, tile - first);
            for (int i = tile_open(u, s, x, tile) - 1; i >= 0; i--)
                step_backward(u, &u->step[i], &z, x, g);
        }
    }
#pragma omp for schedule(static)
    for (int64_t t = first * SEQ_TILE; t < end; t++)
        sum_token(p, scratch, x, g, t, t / SEQ_TILE - first);
}

static void palimpsa_backward_cpu(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                  const struct scan_io *g, void *scratch)
{
    const struct split p = split_of(s, x);

    scan_pass_empty(s, g->state[0], g->next[0]);
    scan_pass_empty(s, g->state[1], g->next[1]);
    for (int64_t unit = 0; unit < p.units; unit++)
        *share_of(p, scratch, unit, 0).prior = 0;
#pragma omp parallel num_threads(threads_of(d))
    {
        float *mine = (float *)scratch + p.units * share_floats(p) + omp_get_thread_num() * unit_floats(p, true);
        struct unit u = unit_of(p, mine, true);
        for (int64_t last = seqs_tiles(s); last > 0; last -= p.tiles)
            tiles_backward(&u, s, x, g, scratch, last > p.tiles ? last - p.tiles : 0, last);
    }
    for (int64_t unit = 0; g->prior[0].data && unit < p.units; unit++) {
        int64_t h = unit / p.blocks;
        double Ip = exp((double)((const float *)x->prior[0].data)[h]);
        ((float *)g->prior[0].data)[h] += (float)(Ip * *share_of(p, scratch, unit, 0).prior);
    }
}

extern const struct scan_impl palimpsa_cpu;
const struct scan_impl palimpsa_cpu = { palimpsa_scratch_cpu, palimpsa_forward_cpu, palimpsa_backward_cpu };
