/* tile_rows.c - see tile_rows.h: blocks of w are transposed into a core's cache, then rows of x pass by.
 *
 * A unit of work is WIDE columns of y at some of its rows, few enough for their x to be near when the next
 * columns come. Sums go on from one piece of k to the next in F32, which rounds no more than a register does. */
#include "tile_rows.h"
#include "tile_mul.h"

enum { WIDE = 64, DEEP = 256, ROWS = 60, MOST = 480 };   /* columns and k of a block of w; rows at a time, of a unit */

struct room {                                    /* on the stack of each thread: 144 KB */
    _Alignas(64) float w[DEEP * WIDE];
    _Alignas(64) float flat[WIDE * DEEP];
    _Alignas(64) float y[ROWS * WIDE];
};

/* w [k0 .. k0 + K) of columns [n0 .. n0 + N), transposed; columns beyond are zeros. */
static void fetch(struct room *m, struct tensor w, int64_t n0, int64_t N, int64_t k0, int64_t K)
{
    const float *from = (const float *)w.data + n0 * w.row + k0;

    if (N == WIDE && K % 4 == 0) {
        tile_transpose(m->w, WIDE, from, w.row, WIDE, K);
        return;
    }
    memset(m->flat, 0, sizeof m->flat);
    for (int64_t n = 0; n < N; n++)
        memcpy(m->flat + n * DEEP, from + n * w.row, (size_t)K * sizeof *from);
    tile_transpose(m->w, WIDE, m->flat, DEEP, WIDE, (K + 3) / 4 * 4);
}

/* Between y and the block of it that is in the cache. */
static void take(struct room *m, struct tensor y, int64_t t, int64_t rows, int64_t n0, int64_t N, bool put)
{
    for (int64_t i = 0; i < rows; i++) {
        float *at = (float *)y.data + (t + i) * y.row + n0, *here = m->y + i * WIDE;

        memcpy(put ? at : here, put ? here : at, (size_t)N * sizeof *at);
    }
}

/* The last columns of y may be no whole vectors: their block is made in the cache. */
static void unit(struct tensor y, struct tensor x, struct tensor w, bool add, int64_t n0, int64_t from, int64_t to)
{
    struct room room, *m = &room;
    int64_t N = w.dim[0] - n0 < WIDE ? w.dim[0] - n0 : WIDE, all = x.dim[1], n = (N + LANES - 1) / LANES * LANES;

    memset(m->y, 0, sizeof m->y);
    for (int64_t k = 0; k < all; k += DEEP) {
        int64_t K = all - k < DEEP ? all - k : DEEP;
        bool more = add || k;

        fetch(m, w, n0, N, k, K);
        for (int64_t t = from; t < to; t += ROWS) {
            int64_t rows = to - t < ROWS ? to - t : ROWS;
            struct tile_a a = { (const float *)x.data + t * x.row + k, x.row, 1 };

            if (N == n) {
                tile_mul((float *)y.data + t * y.row + n0, y.row, a, m->w, WIDE, rows, n, K, more);
                continue;
            }
            if (more)
                take(m, y, t, rows, n0, N, false);
            tile_mul(m->y, WIDE, a, m->w, WIDE, rows, n, K, more);
            take(m, y, t, rows, n0, N, true);
        }
    }
}

void tile_rows_mul(int threads, struct tensor y, struct tensor x, struct tensor w, bool add)
{
    int64_t T = x.dim[0], across = (w.dim[0] + WIDE - 1) / WIDE, down = (T + MOST - 1) / MOST;

    while (across * down < 8 * threads && T / (down + 1) >= 4 * ROWS)
        down++;
#pragma omp parallel for schedule(dynamic) num_threads(T * w.dim[0] * x.dim[1] < 1 << 18 ? 1 : threads)
    for (int64_t i = 0; i < across * down; i++)
        unit(y, x, w, add, i % across * WIDE, T * (i / across) / down, T * (i / across + 1) / down);
}
