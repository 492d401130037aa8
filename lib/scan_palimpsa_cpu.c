/* scan_palimpsa_cpu.c - the Palimpsa recurrence on host cores (equations: scans/palimpsa.c).
 *
 * The rows of a memory do not talk to each other, except that dq, dk and ddecay sum over them. So
 * a unit of work is a block of rows of one head. It walks the packed row by STEP tokens at a time,
 * which with their histories fit the first-level cache. The K entries of a memory's row lie in
 * SIMD lanes, padded with zeros, where everything stays 0.
 *
 * Backward walks the tiles of SEQ_TILE tokens from last to first. From the saved memory it runs
 * forward to the start of each step of the tile; then, from the last step to the first, it runs
 * forward again, now keeping the memory before every token, and backward. Units leave their part
 * of dq, dk and ddecay in scratch; it is summed in a fixed order, so the result does not depend on
 * who did what. */
#include "scan_host.h"
#include "scan_sums.h"
#include "simd.h"
#include <math.h>
#include <omp.h>

enum { STEP = 16, STEPS = SEQ_TILE / STEP };
enum { BLOCK = 32 };                     /* most rows in a unit */

struct cell { lanes M, J; };             /* LANES entries of a memory, or of its adjoint */
struct pair { lanes q, k; };             /* of a query and a key, or of their gradients */

struct split {
    int64_t H, V, K, n;                  /* n: vectors in a row of a memory */
    int64_t blocks, rows, units;         /* units of a head, rows in a unit, units */
};

static struct split split_of(const struct scan_io *x)
{
    struct split p = { .H = x->v.dim[1], .V = x->v.dim[2], .K = x->k.dim[2] };

    p.n      = scan_padded(p.K) / LANES;
    p.blocks = (p.V + BLOCK - 1) / BLOCK;
    p.rows   = (p.V + p.blocks - 1) / p.blocks;
    p.units  = p.H * p.blocks;
    return p;
}

/* One unit at STEP tokens. */
struct step {
    int64_t        from;                     /* first token */
    int            tokens, segments;
    struct segment seg[STEP];
    float          a[STEP];
    struct pair   *qk;                       /* [STEP, n] */
    float         *v, *b, *mean, *var;       /* [rows, STEP]; mean, var: read, or their gradients */
    struct cell   *before;                   /* [rows, n] memory before them (backward only) */
};

struct unit {
    struct split p;
    int64_t      h, row0, rows;              /* its head, its first row */
    float        Ip;
    struct cell *memory;                     /* [rows, n] on the way forward */
    /* backward only */
    struct cell *history;                    /* [STEP, n] of one row, before each token */
    struct cell *adjoint;                    /* [rows, n] on the way back */
    struct pair *dqk;                        /* [STEP, n] sums over rows */
    struct step  step[STEPS];                /* forward uses only one */
};

static int64_t unit_floats(struct split p, bool backward)
{
    int64_t width = p.n * LANES, steps = backward ? STEPS : 1;

    return 2 * p.rows * width + (backward ? 4 * STEP * width : 0)
         + steps * (2 * STEP * width + 4 * p.rows * STEP + (backward ? 2 * p.rows * width : 0));
}

static struct unit unit_of(struct split p, float *scratch, bool backward)
{
    struct unit u = { .p = p };
    int64_t width = p.n * LANES;

    u.memory = (struct cell *)scan_cut(&scratch, 2 * p.rows * width);
    u.history = (struct cell *)scan_cut(&scratch, backward ? 2 * STEP * width : 0);
    u.dqk = (struct pair *)scan_cut(&scratch, backward ? 2 * STEP * width : 0);
    for (int i = 0; i < (backward ? STEPS : 1); i++) {
        struct step *y = &u.step[i];
        y->qk     = (struct pair *)scan_cut(&scratch, 2 * STEP * width);
        y->v      = scan_cut(&scratch, p.rows * STEP);
        y->b      = scan_cut(&scratch, p.rows * STEP);
        y->mean   = scan_cut(&scratch, p.rows * STEP);
        y->var    = scan_cut(&scratch, p.rows * STEP);
        y->before = (struct cell *)scan_cut(&scratch, backward ? 2 * p.rows * width : 0);
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

/* Strand 0 or 1 of a weave: K floats as every other vector, the tail padded with zeros; absent:
 * zeros. */
static void weave(lanes *to, const float *from, int strand, struct split p)
{
    for (int64_t i = 0; i < p.n; i++)
        to[2 * i + strand] = lanes_load(from ? from + i * LANES : NULL, from ? p.K - i * LANES : 0);
}

static void unweave(float *to, const lanes *from, int strand, int64_t K)
{
    for (int64_t i = 0; i * LANES < K; i++)
        lanes_store(to + i * LANES, from[2 * i + strand], K - i * LANES);
}

/* Row r of the unit in a state tensor; NULL when the tensor is absent. */
static float *state_row(struct tensor t, int64_t n, const struct unit *u, int64_t r)
{
    return t.data ? memory(t, n, u->h) + (u->row0 + r) * u->p.K : NULL;
}

static void state_load(struct cell *to, const struct tensor t[2], int64_t n, const struct unit *u,
                       int64_t r)
{
    for (int i = 0; i < 2; i++)
        weave((lanes *)to, state_row(t[i], n, u, r), i, u->p);
}

static void state_store(const struct tensor t[2], int64_t n, const struct unit *u, int64_t r,
                        const struct cell *from)
{
    for (int i = 0; i < 2; i++)
        if (t[i].data)
            unweave(state_row(t[i], n, u, r), (const lanes *)from, i, u->p.K);
}

/* A row of a memory needs its entry of v at every token: columns of [T,H,V] become rows here. */
static void columns_load(float *to, const struct unit *u, const struct step *y, struct tensor t,
                         float scale)
{
    for (int i = 0; i < y->tokens; i++) {
        const float *from = t.data ? row(t, y->from + i, u->h) + u->row0 : NULL;
        for (int64_t r = 0; r < u->rows; r++)
            to[r * STEP + i] = from ? scale * from[r] : 0;
    }
}

static void columns_store(struct tensor t, const struct unit *u, const struct step *y,
                          const float *from, float scale)
{
    for (int i = 0; t.data && i < y->tokens; i++) {
        float *to = row(t, y->from + i, u->h) + u->row0;
        for (int64_t r = 0; r < u->rows; r++)
            to[r] = scale * from[r * STEP + i];
    }
}

static void step_load(const struct unit *u, struct step *y, const struct seqs *s,
                      const struct scan_io *x, int64_t from)
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
static void advance_and_read(const struct unit *u, const struct step *y, const struct segment *seg,
                             int64_t r, bool var)
{
    int64_t n = u->p.n;
    struct cell *m = u->memory + r * n;

    for (int t = seg->from; t < seg->to; t++) {
        const struct pair *x = y->qk + t * n;
        float a = y->a[t], v = y->v[r * STEP + t], b = y->b[r * STEP + t];
        lanes mean = { 0 }, doubt = { 0 };
        for (int64_t j = 0; j < n; j++) {
            lanes q = x[j].q, k = x[j].k, M = a * m[j].M + v * k, J = a * m[j].J + b * (k * k);
            lanes qr = q / (J + u->Ip);
            mean += qr * M;
            doubt += qr * q;
            m[j] = (struct cell){ M, J };
        }
        y->mean[r * STEP + t] = lanes_sum(mean);
        if (var)
            y->var[r * STEP + t] = lanes_sum(doubt);
    }
}

static void row_forward(const struct unit *u, const struct step *y, const struct scan_io *x,
                        int64_t r)
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

static void palimpsa_forward_cpu(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                 void *scratch)
{
    const struct split p = split_of(x);

    scan_pass_empty(s, x->next[0], x->state[0]);
    scan_pass_empty(s, x->next[1], x->state[1]);
#pragma omp parallel num_threads(scan_threads(d, x))
    {
        unsigned old = flush_subnormals();
        float *mine = (float *)scratch + omp_get_thread_num() * unit_floats(p, false);
        struct unit u = unit_of(p, mine, false);
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
        flush_restore(old);
    }
}

static void advance(struct cell *to, const struct cell *from, const struct pair *x, float a,
                    float v, float b, int64_t n)
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
            advance(m, m, y->qk + t * u->p.n, y->a[t], y->v[r * STEP + t], y->b[r * STEP + t],
                    u->p.n);
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
static inline __attribute__((always_inline)) void segment_backward(struct row_sums *sum,
                            const struct unit *u, const struct step *y, const struct segment *seg,
                            int64_t r, bool var)
{
    const int64_t n = u->p.n;
    struct cell *g = u->adjoint + r * n;
    lanes prior = sum->prior;

    for (int t = seg->to - 1; t >= seg->from; t--) {
        const struct pair *x = y->qk + t * n;
        const struct cell *m = u->history + t * n;
        struct pair *dx = u->dqk + t * n;
        const int64_t at = r * STEP + t;
        const float a = y->a[t], v = y->v[at], b = y->b[at], Ip = u->Ip;
        const float go = y->mean[at], gv = y->var[at];
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

static void row_backward(struct row_sums *sum, const struct unit *u, const struct step *y,
                         const struct scan_io *x, const struct scan_io *g, int64_t r)
{
    struct cell *adjoint = u->adjoint + r * u->p.n;

    for (const struct segment *seg = y->seg; seg < y->seg + y->segments; seg++)
        segment_forward(u, y, x, seg, r);
    for (const struct segment *seg = y->seg + y->segments - 1; seg >= y->seg; seg--) {
        if (seg->last)
            state_load(adjoint, g->next, seg->n, u, r);
        if (g->var.data)
            segment_backward(sum, u, y, seg, r, true);
        else
            segment_backward(sum, u, y, seg, r, false);
        if (seg->first)
            state_store(g->state, seg->n, u, r, adjoint);
    }
}

static void step_backward(const struct unit *u, const struct step *y, struct scan_part part,
                          double *prior, const struct scan_io *x, const struct scan_io *g)
{
    const int64_t first = y->from % SEQ_TILE, width = u->p.n * LANES;
    struct row_sums sum = { .prior = { 0 } };

    columns_load(y->mean, u, y, g->o, x->scale);
    columns_load(y->var, u, y, g->var, x->scale);
    memset(u->dqk, 0, (size_t)(y->tokens * u->p.n) * sizeof *u->dqk);
    for (int64_t r = 0; r < u->rows; r++)
        row_backward(&sum, u, y, x, g, r);
    for (int t = 0; t < y->tokens; t++) {
        part.ddecay[first + t] = lanes_sum(sum.decay[t]);
        unweave(part.dq + (first + t) * width, (const lanes *)(u->dqk + t * u->p.n), 0, width);
        unweave(part.dk + (first + t) * width, (const lanes *)(u->dqk + t * u->p.n), 1, width);
    }
    *prior += lanes_sum(sum.prior);
    columns_store(g->v, u, y, y->v, 1);
    columns_store(g->beta, u, y, y->b, 1);
}

/* What a unit carries from tile to tile: its adjoint, and the gradient of the prior. */
static int64_t carry_floats(struct split p)
{
    return 2 * p.rows * p.n * LANES + SCAN_PAD;
}

struct backward { struct scan_sums sums; float *carry, *units; };

static struct backward backward_of(const struct seqs *s, const struct scan_io *x, float *scratch)
{
    struct split p = split_of(x);
    struct backward b = { .sums = scan_sums_of(s, x, p.blocks) };

    b.sums.scratch = scan_cut(&scratch, scan_sums_floats(b.sums));
    b.carry = scan_cut(&scratch, p.units * carry_floats(p));
    b.units = scratch;
    return b;
}

static int64_t palimpsa_scratch_cpu(const struct dev *d, const struct seqs *s,
                                    const struct scan_io *x, bool backward)
{
    struct split p = split_of(x);
    int64_t floats = scan_threads(d, x) * unit_floats(p, backward);

    if (backward)
        floats += scan_sums_floats(scan_sums_of(s, x, p.blocks)) + p.units * carry_floats(p);
    return 4 * floats;
}

/* Tiles [first, last) of one unit. */
static void unit_backward(struct unit *u, const struct backward *b, const struct seqs *s,
                          const struct scan_io *x, const struct scan_io *g, int64_t unit,
                          int64_t first, int64_t last)
{
    float *carry = b->carry + unit * carry_floats(u->p);
    double *prior = (double *)(void *)scan_cut(&carry, SCAN_PAD);

    u->adjoint = (struct cell *)carry;
    unit_open(u, x, unit);
    if (last == seqs_tiles(s))
        *prior = 0;
    for (int64_t tile = last - 1; tile >= first; tile--)
        for (int i = tile_open(u, s, x, tile) - 1; i >= 0; i--)
            step_backward(u, &u->step[i], scan_part_of(b->sums, unit, tile), prior, x, g);
}

static void add_prior(struct tensor grad, const struct scan_io *x, const struct backward *b)
{
    struct split p = split_of(x);

    for (int64_t unit = 0; unit < p.units; unit++) {
        int64_t h = unit / p.blocks;
        double Ip = exp((double)((const float *)x->prior[0].data)[h]);
        double sum = *(const double *)(const void *)(b->carry + unit * carry_floats(p));
        ((float *)grad.data)[h] += (float)(Ip * sum);
    }
}

static void palimpsa_backward_cpu(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                  const struct scan_io *g, void *scratch)
{
    const struct split p = split_of(x);
    const struct backward b = backward_of(s, x, scratch);
    const int64_t step = b.sums.tiles, tiles = seqs_tiles(s);

    scan_pass_empty(s, g->state[0], g->next[0]);
    scan_pass_empty(s, g->state[1], g->next[1]);
#pragma omp parallel num_threads(scan_threads(d, x))
    {
        unsigned old = flush_subnormals();
        struct unit u = unit_of(p, b.units + omp_get_thread_num() * unit_floats(p, true), true);
        for (int64_t first = (tiles - 1) / step * step; tiles && first >= 0; first -= step) {
#pragma omp for schedule(dynamic)
            for (int64_t unit = 0; unit < p.units; unit++)
                unit_backward(&u, &b, s, x, g, unit, first,
                              first + step < tiles ? first + step : tiles);
            scan_sums_add(b.sums, s, x, g, first);
        }
        flush_restore(old);
    }
    if (g->prior[0].data && tiles)
        add_prior(g->prior[0], x, &b);
}

extern const struct scan_impl palimpsa_cpu;
const struct scan_impl palimpsa_cpu = {
    palimpsa_scratch_cpu, palimpsa_forward_cpu, palimpsa_backward_cpu,
};
