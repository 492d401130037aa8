/* scan_sums.c - every sum is a barrier for all threads, so several tiles are summed at once if
 * they fit. */
#include "scan_sums.h"
#include "scan_host.h"
#include "simd.h"

enum { SUMS_BYTES = 16 << 20 };

static int64_t part_floats(int64_t width)
{
    return 2 * SEQ_TILE * width + SEQ_TILE;
}

struct scan_sums scan_sums_of(const struct seqs *s, const struct scan_io *x, int64_t blocks)
{
    int64_t width = scan_padded(x->k.dim[2]);
    struct scan_sums u = { .heads = x->v.dim[1], .blocks = blocks, .width = width };

    u.tiles = SUMS_BYTES / (u.heads * blocks * part_floats(width) * (int64_t)sizeof(float));
    if (u.tiles > seqs_tiles(s))
        u.tiles = seqs_tiles(s);
    if (u.tiles < 1)
        u.tiles = 1;
    return u;
}

int64_t scan_sums_floats(struct scan_sums u)
{
    return u.heads * u.blocks * u.tiles * part_floats(u.width);
}

struct scan_part scan_part_of(struct scan_sums u, int64_t unit, int64_t tile)
{
    float *at = u.scratch + (unit * u.tiles + tile % u.tiles) * part_floats(u.width);
    struct scan_part p;

    p.dq     = scan_cut(&at, SEQ_TILE * u.width);
    p.dk     = scan_cut(&at, SEQ_TILE * u.width);
    p.ddecay = at;
    return p;
}

/* dq or dk of one token from the units of heads [h0,h1). */
static void sum_rows(float *to, int64_t K, struct scan_sums u, int64_t tile, int64_t t, int64_t h0,
                     int64_t h1, bool is_k)
{
    for (int64_t c = 0; c < K; c += LANES) {
        lanes sum = { 0 };
        for (int64_t unit = h0 * u.blocks; unit < h1 * u.blocks; unit++) {
            struct scan_part p = scan_part_of(u, unit, tile);
            sum += *(const lanes *)((is_k ? p.dk : p.dq) + t * u.width + c);
        }
        lanes_store(to + c, sum, K - c);
    }
}

void scan_sums_add(struct scan_sums u, const struct seqs *s, const struct scan_io *x,
                   const struct scan_io *g, int64_t first)
{
    int64_t end = (first + u.tiles) * SEQ_TILE, K = x->k.dim[2];
    int64_t each_q = u.heads / x->q.dim[1], each_k = u.heads / x->k.dim[1];

    if (end > s->tokens)
        end = s->tokens;
#pragma omp for schedule(static)
    for (int64_t token = first * SEQ_TILE; token < end; token++) {
        int64_t tile = token / SEQ_TILE, t = token % SEQ_TILE;
        for (int64_t h = 0; g->q.data && h < x->q.dim[1]; h++)
            sum_rows(row(g->q, token, h), K, u, tile, t, h * each_q, (h + 1) * each_q, false);
        for (int64_t h = 0; g->k.data && h < x->k.dim[1]; h++)
            sum_rows(row(g->k, token, h), K, u, tile, t, h * each_k, (h + 1) * each_k, true);
        for (int64_t h = 0; g->decay.data && h < u.heads; h++) {
            float sum = 0;
            for (int64_t unit = h * u.blocks; unit < (h + 1) * u.blocks; unit++)
                sum += scan_part_of(u, unit, tile).ddecay[t];
            *row(g->decay, token, h) = sum;
        }
    }
}
