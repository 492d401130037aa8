/* scan_linear_cpu.c - gated linear attention on host cores, as products of small matrices
 * (equations: scans/linear.c).
 *
 * For L tokens of one sequence, at most SEQ_TILE, with S the memory before them:
 *
 *   D_ij = a_{j+1} .. a_i  (j <= i, else 0)     A_i = a_1 .. a_i      e_j = a_{j+1} .. a_L = D_Lj
 *   P = D * (Q K')       O = scale (P V + A (Q S'))       S becomes A_L S + (e V)' K
 *
 * and with W = scale dO, G the adjoint of the memory after them, X = W V', R = D * X:
 *
 *   dQ = R K + A (W S)     dV = P' W + e (K G')     dK = R' Q + e (V G)
 *   G becomes A_L G + (A W)' Q
 *   ddecay_t = sum over j < t <= i of P_ij X_ij + sum over i >= t of A_i <w_i, S q_i>
 *            + sum over j < t of e_j <v_j, G k_j> + A_L <S, G>
 *
 * Every product of decays is built by multiplying, never by dividing or by exp of a difference, so
 * a decay that underflows resets the memory; and every term of ddecay_t holds the factor a_t, so
 * nothing cancels. A unit of work is a block of rows (of V) of one head. */
#include "scan_host.h"
#include "scan_sums.h"
#include "tile_mul.h"
#include <math.h>
#include <omp.h>

enum { TILE = SEQ_TILE, BLOCK = 128 };   /* BLOCK: most rows in a unit */
enum { ROWS = SCAN_PAD };                /* of a triangle in one product: the rest is skipped */

struct split { int64_t H, V, K, kw, vw, blocks, rows, units; };     /* kw, vw: K and rows, padded */

static struct split split_of(const struct scan_io *x)
{
    struct split p = { .H = x->v.dim[1], .V = x->v.dim[2], .K = x->k.dim[2] };

    p.blocks = (p.V + BLOCK - 1) / BLOCK;
    p.rows   = (p.V + p.blocks - 1) / p.blocks;
    p.units  = p.H * p.blocks;
    p.kw     = scan_padded(p.K);
    p.vw     = scan_padded(p.rows);
    return p;
}

/* One unit at one tile. Token rows are padded with zeros to kw or vw. */
struct unit {
    struct split p;
    int64_t h, row0, rows;
    int64_t from;                            /* first token of the tile */
    int     tokens, segments;
    struct segment seg[TILE];
    float   a[TILE], A[TILE], e[TILE];
    float  *q, *k, *v, *w;                   /* [TILE + PAD, kw] x2, [TILE + PAD, vw] x2 */
    float  *S, *flip;                        /* [vw, kw] memory; [kw, vw] a transposed one */
    float  *kt, *vt;                         /* [kw, TILE] [vw, TILE] transposed keys and values */
    float  *P, *X, *Z;                       /* [TILE, TILE] */
    float  *o;                               /* [TILE, vw] what is read; in backward dv */
};

static int64_t unit_floats(struct split p)
{
    return (2 * (TILE + SCAN_PAD) + TILE) * (p.kw + p.vw) + 2 * p.kw * p.vw + 3 * TILE * TILE
         + TILE * p.vw;
}

static struct unit unit_of(struct split p, float *scratch)
{
    struct unit u = { .p = p };

    u.q    = scan_cut(&scratch, (TILE + SCAN_PAD) * p.kw);
    u.k    = scan_cut(&scratch, (TILE + SCAN_PAD) * p.kw);
    u.v    = scan_cut(&scratch, (TILE + SCAN_PAD) * p.vw);
    u.w    = scan_cut(&scratch, (TILE + SCAN_PAD) * p.vw);
    u.S    = scan_cut(&scratch, p.kw * p.vw);
    u.flip = scan_cut(&scratch, p.kw * p.vw);
    u.kt   = scan_cut(&scratch, p.kw * TILE);
    u.vt   = scan_cut(&scratch, p.vw * TILE);
    u.P    = scan_cut(&scratch, TILE * TILE);
    u.X    = scan_cut(&scratch, TILE * TILE);
    u.Z    = scan_cut(&scratch, TILE * TILE);
    u.o    = scan_cut(&scratch, TILE * p.vw);
    return u;
}

static void unit_open(struct unit *u, int64_t unit)
{
    u->h = unit / u->p.blocks;
    u->row0 = unit % u->p.blocks * u->p.rows;
    u->rows = u->row0 + u->p.rows < u->p.V ? u->p.rows : u->p.V - u->row0;
}

/* Columns [from, from + n) of a head's rows, scaled and padded to width; absent: zeros. */
static void rows_load(float *to, const struct unit *u, struct tensor t, int64_t h, int64_t from,
                      int64_t n, int64_t width, float scale)
{
    for (int i = 0; i < u->tokens; i++) {
        const float *at = t.data ? row(t, u->from + i, h) + from : to;
        for (int64_t c = 0; c < width; c += LANES)
            *(lanes *)(to + i * width + c) = scale * lanes_load(at + c, t.data ? n - c : 0);
    }
}

static void rows_store(struct tensor t, const struct unit *u, const float *from, float scale)
{
    for (int i = 0; t.data && i < u->tokens; i++)
        for (int64_t c = 0; c < u->rows; c += LANES)
            lanes_store(row(t, u->from + i, u->h) + u->row0 + c,
                        scale * *(const lanes *)(from + i * u->p.vw + c), u->rows - c);
}

static void tile_load(struct unit *u, const struct seqs *s, const struct scan_io *x, int64_t from)
{
    int64_t hq = u->h * x->q.dim[1] / u->p.H, hk = u->h * x->k.dim[1] / u->p.H;

    u->from = from;
    u->tokens = (int)(s->tokens - from < TILE ? s->tokens - from : TILE);
    u->segments = scan_segments(u->seg, s, from, from + u->tokens);
    for (int t = 0; t < u->tokens; t++)
        u->a[t] = expf(*row(x->decay, from + t, u->h));
    rows_load(u->q, u, x->q, hq, 0, u->p.K, u->p.kw, 1);
    rows_load(u->k, u, x->k, hk, 0, u->p.K, u->p.kw, 1);
    rows_load(u->v, u, x->v, u->h, u->row0, u->rows, u->p.vw, 1);
}

/* The unit's rows of a state tensor, padded; absent: zeros. */
static void state_load(float *to, struct tensor t, int64_t n, const struct unit *u)
{
    for (int64_t r = 0; r < u->p.vw; r++) {
        bool there = t.data && r < u->rows;
        for (int64_t c = 0; c < u->p.kw; c += LANES)
            *(lanes *)(to + r * u->p.kw + c) =
                lanes_load(there ? memory(t, n, u->h) + (u->row0 + r) * u->p.K + c : NULL,
                           there ? u->p.K - c : 0);
    }
}

static void state_store(struct tensor t, int64_t n, const struct unit *u, const float *from)
{
    for (int64_t r = 0; t.data && r < u->rows; r++)
        for (int64_t c = 0; c < u->p.K; c += LANES)
            lanes_store(memory(t, n, u->h) + (u->row0 + r) * u->p.K + c,
                        *(const lanes *)(from + r * u->p.kw + c), u->p.K - c);
}

static void rows_scale(float *to, const float *by, int64_t rows, int64_t width)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t c = 0; c < width; c += LANES)
            *(lanes *)(to + i * width + c) *= by[i];
}

static void scale_all(float *to, float by, int64_t count)
{
    for (int64_t c = 0; c < count; c += LANES)
        *(lanes *)(to + c) *= by;
}

static struct tile_a plain(const float *at, int64_t width)
{
    return (struct tile_a){ at, width, 1 };
}

static struct tile_a turned(const float *at, int64_t width)
{
    return (struct tile_a){ at, 1, width };
}

/* The part of a b' on and below the diagonal; bt is b transposed. */
static void lower(float *to, const float *a, int64_t width, const float *bt, int64_t L,
                  int64_t inner)
{
    for (int64_t i = 0; i < L; i += ROWS)
        tile_mul(to + i * TILE, TILE, plain(a + i * width, width), bt, TILE,
                 L - i < ROWS ? L - i : ROWS, i + ROWS, inner, false);
}

/* to += T b for a lower triangle T. */
static void lower_mul(float *to, const float *T, const float *b, int64_t width, int64_t L)
{
    for (int64_t i = 0; i < L; i += ROWS) {
        int64_t m = L - i < ROWS ? L - i : ROWS;
        tile_mul(to + i * width, width, plain(T + i * TILE, TILE), b, width, m, width, i + m, true);
    }
}

/* to += T' b. */
static void upper_mul(float *to, const float *T, const float *b, int64_t width, int64_t L)
{
    for (int64_t j = 0; j < L; j += ROWS)
        tile_mul(to + j * width, width, turned(T + j * TILE + j, TILE), b + j * width, width,
                 L - j < ROWS ? L - j : ROWS, width, L - j, true);
}

/* P *= D with zeros above the diagonal, and A, e of the segment's tokens. With X: Z = P * X below
 * the diagonal (not on it), X *= D. d is the row of D that belongs to the token. */
static void decay_apply(struct unit *u, const struct segment *seg, bool backward)
{
    float d[TILE + SCAN_PAD] __attribute__((aligned(64))) = { 0 }, A = 1;
    int64_t L = seg->to - seg->from;

    for (int64_t i = 0; i < L; i++) {
        float *P = u->P + i * TILE, *X = u->X + i * TILE, *Z = u->Z + i * TILE;
        float a = u->a[seg->from + i];
        u->A[i] = A *= a;
        scale_all(d, a, i);
        d[i] = 1;
        for (int64_t j = 0; j <= i; j += LANES)
            *(lanes *)(P + j) *= *(lanes *)(d + j);
        for (int64_t j = 0; backward && j <= i; j += LANES) {
            *(lanes *)(Z + j) = *(lanes *)(P + j) * *(lanes *)(X + j);
            *(lanes *)(X + j) *= *(lanes *)(d + j);
        }
        for (int64_t j = i + 1; j < TILE; j++)
            P[j] = 0;
        for (int64_t j = i; backward && j < TILE; j++) {
            Z[j] = 0;
            X[j] = j == i ? X[j] : 0;
        }
    }
    memcpy(u->e, d, (size_t)L * sizeof *d);
}

static void segment_forward(struct unit *u, const struct segment *seg)
{
    const int64_t L = seg->to - seg->from, kw = u->p.kw, vw = u->p.vw;
    float *q = u->q + seg->from * kw, *k = u->k + seg->from * kw;
    float *v = u->v + seg->from * vw, *o = u->o + seg->from * vw;

    tile_transpose(u->kt, TILE, k, kw, scan_padded(L), kw);
    lower(u->P, q, kw, u->kt, L, u->p.K);
    decay_apply(u, seg, false);
    tile_transpose(u->flip, vw, u->S, kw, vw, kw);
    tile_mul(o, vw, plain(q, kw), u->flip, vw, L, vw, u->p.K, false);
    rows_scale(o, u->A, L, vw);
    lower_mul(o, u->P, v, vw, L);

    rows_scale(v, u->e, L, vw);
    scale_all(u->S, u->A[L - 1], vw * kw);
    tile_mul(u->S, kw, turned(v, vw), k, kw, u->rows, kw, L, true);
}

/* A few tokens are cheaper one by one: no memory is transposed. This is decoding. */
static void segment_step(struct unit *u, const struct segment *seg)
{
    const int64_t kw = u->p.kw, vw = u->p.vw;

    for (int t = seg->from; t < seg->to; t++)
        for (int64_t r = 0; r < u->rows; r++) {
            float a = u->a[t], v = u->v[t * vw + r];
            lanes sum = { 0 };
            for (int64_t c = 0; c < kw; c += LANES) {
                lanes *S = (lanes *)(u->S + r * kw + c);
                *S = a * *S + v * *(const lanes *)(u->k + t * kw + c);
                sum += *S * *(const lanes *)(u->q + t * kw + c);
            }
            u->o[t * vw + r] = lanes_sum(sum);
        }
}

static void tile_forward(struct unit *u, const struct scan_io *x)
{
    enum { FEW = 4 };

    for (const struct segment *seg = u->seg; seg < u->seg + u->segments; seg++) {
        if (seg->first)
            state_load(u->S, x->state[0], seg->n, u);
        if (seg->from == 0)
            state_store(x->saved[0], u->from / TILE, u, u->S);
        if (seg->to - seg->from < FEW)
            segment_step(u, seg);
        else
            segment_forward(u, seg);
        if (seg->last)
            state_store(x->next[0], seg->n, u, u->S);
    }
    rows_store(x->o, u, u->o, x->scale);
}

static void linear_forward_cpu(struct dev *d, const struct seqs *s, const struct scan_io *x,
                               void *scratch)
{
    const struct split p = split_of(x);

    scan_pass_empty(s, x->next[0], x->state[0]);
#pragma omp parallel num_threads(scan_threads(d, x))
    {
        unsigned old = flush_subnormals();
        struct unit u = unit_of(p, (float *)scratch + omp_get_thread_num() * unit_floats(p));
#pragma omp for schedule(dynamic)
        for (int64_t unit = 0; unit < p.units; unit++) {
            unit_open(&u, unit);
            for (int64_t from = 0; from < s->tokens; from += TILE) {
                tile_load(&u, s, x, from);
                tile_forward(&u, x);
            }
        }
        flush_restore(old);
    }
}

static float dot(const float *a, const float *b, int64_t count)
{
    lanes sum = { 0 };

    for (int64_t c = 0; c < count; c += LANES)
        sum += *(const lanes *)(a + c) * *(const lanes *)(b + c);
    return lanes_sum(sum);
}

/* through[t]: what reaches ddecay_t by the memory before the segment, by the one after it, or by
 * both. */
static void ddecay_apply(float *ddecay, const struct unit *u, int64_t L, const float *through)
{
    float c[TILE] __attribute__((aligned(64))) = { 0 };

    for (int64_t t = L - 1; t >= 0; t--) {
        lanes sum = { 0 };
        for (int64_t j = 0; j <= t; j += LANES)
            *(lanes *)(c + j) += *(const lanes *)(u->Z + t * TILE + j);
        memset(c + t, 0, (size_t)(TILE - t) * sizeof *c);
        for (int64_t j = 0; j <= t; j += LANES)
            sum += *(const lanes *)(c + j);
        ddecay[t] = through[t] + lanes_sum(sum);
    }
}

/* dQ and dV by the memory before and after the segment, before dQ and dV get their share of the
 * inside. */
static void segment_through(float *through, struct unit *u, const float *dq, const float *dv,
                            const float *q, const float *v, const float *G, int64_t L)
{
    const int64_t kw = u->p.kw, vw = u->p.vw;
    float both = u->A[L - 1] * dot(u->S, G, vw * kw), sum = 0;

    for (int64_t t = 0; t < L; t++) {
        through[t] = both + sum;
        sum += dot(dv + t * vw, v + t * vw, vw);
    }
    sum = 0;
    for (int64_t t = L - 1; t >= 0; t--) {
        sum += dot(dq + t * kw, q + t * kw, kw);
        through[t] += sum;
    }
}

/* G [vw,kw]: adjoint of the memory after the segment, then of the one before it. dv is left in
 * u->o. */
static void segment_backward(struct unit *u, const struct segment *seg, struct scan_part part,
                             float *G)
{
    const int64_t L = seg->to - seg->from, kw = u->p.kw, vw = u->p.vw;
    float *q = u->q + seg->from * kw, *dq = part.dq + seg->from * kw;
    float *k = u->k + seg->from * kw, *dk = part.dk + seg->from * kw;
    float *v = u->v + seg->from * vw, *dv = u->o + seg->from * vw, *w = u->w + seg->from * vw;
    float through[TILE];

    tile_transpose(u->kt, TILE, k, kw, scan_padded(L), kw);
    lower(u->P, q, kw, u->kt, L, u->p.K);
    tile_transpose(u->vt, TILE, v, vw, scan_padded(L), vw);
    lower(u->X, w, vw, u->vt, L, u->rows);
    decay_apply(u, seg, true);

    tile_mul(dq, kw, plain(w, vw), u->S, kw, L, kw, u->rows, false);
    rows_scale(dq, u->A, L, kw);
    tile_transpose(u->flip, vw, G, kw, vw, kw);
    tile_mul(dv, vw, plain(k, kw), u->flip, vw, L, vw, u->p.K, false);
    rows_scale(dv, u->e, L, vw);
    tile_mul(dk, kw, plain(v, vw), G, kw, L, kw, u->rows, false);
    rows_scale(dk, u->e, L, kw);
    segment_through(through, u, dq, dv, q, v, G, L);
    ddecay_apply(part.ddecay + seg->from, u, L, through);
    lower_mul(dq, u->X, k, kw, L);
    upper_mul(dk, u->X, q, kw, L);
    upper_mul(dv, u->P, w, vw, L);

    rows_scale(w, u->A, L, vw);
    scale_all(G, u->A[L - 1], vw * kw);
    tile_mul(G, kw, turned(w, vw), q, kw, u->rows, kw, L, true);
}

static void tile_backward(struct unit *u, struct scan_part part, float *G, const struct scan_io *x,
                          const struct scan_io *g)
{
    rows_load(u->w, u, g->o, u->h, u->row0, u->rows, u->p.vw, x->scale);
    for (const struct segment *seg = u->seg + u->segments - 1; seg >= u->seg; seg--) {
        if (seg->first)
            state_load(u->S, x->state[0], seg->n, u);
        else
            state_load(u->S, x->saved[0], u->from / TILE, u);
        if (seg->last)
            state_load(G, g->next[0], seg->n, u);
        segment_backward(u, seg, part, G);
        if (seg->first)
            state_store(g->state[0], seg->n, u, G);
    }
    rows_store(g->v, u, u->o, 1);
}

static int64_t linear_scratch_cpu(const struct dev *d, const struct seqs *s,
                                  const struct scan_io *x, bool backward)
{
    struct split p = split_of(x);
    int64_t floats = scan_threads(d, x) * unit_floats(p);

    if (backward)
        floats += scan_sums_floats(scan_sums_of(s, x, p.blocks)) + p.units * p.vw * p.kw;
    return 4 * floats;
}

static void linear_backward_cpu(struct dev *d, const struct seqs *s, const struct scan_io *x,
                                const struct scan_io *g, void *scratch)
{
    const struct split p = split_of(x);
    struct scan_sums sums = scan_sums_of(s, x, p.blocks);
    const int64_t tiles = seqs_tiles(s), step = sums.tiles;
    float *adjoint, *at = scratch;

    sums.scratch = scan_cut(&at, scan_sums_floats(sums));
    adjoint = scan_cut(&at, p.units * p.vw * p.kw);
    scan_pass_empty(s, g->state[0], g->next[0]);
#pragma omp parallel num_threads(scan_threads(d, x))
    {
        unsigned old = flush_subnormals();
        struct unit u = unit_of(p, at + omp_get_thread_num() * unit_floats(p));
        for (int64_t first = (tiles - 1) / step * step; tiles && first >= 0; first -= step) {
            int64_t last = first + step < tiles ? first + step : tiles;
#pragma omp for schedule(dynamic)
            for (int64_t unit = 0; unit < p.units; unit++) {
                unit_open(&u, unit);
                for (int64_t tile = last - 1; tile >= first; tile--) {
                    tile_load(&u, s, x, tile * TILE);
                    tile_backward(&u, scan_part_of(sums, unit, tile), adjoint + unit * p.vw * p.kw,
                                  x, g);
                }
            }
            scan_sums_add(sums, s, x, g, first);
        }
        flush_restore(old);
    }
}

extern const struct scan_impl linear_cpu;
const struct scan_impl linear_cpu = { linear_scratch_cpu, linear_forward_cpu, linear_backward_cpu };
