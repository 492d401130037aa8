/* sheet.cuh - elementwise work: a sheet of rows x packs of N elements, spread over the threads. */
#ifndef SHEET_CUH
#define SHEET_CUH
#include "words.cuh"

struct sheet {
    int64_t rows, cols;                  /* cols in packs */
    dim3    grid, block;
};

/* Blocks of 256 threads, wide in the direction that is contiguous. The kernel loops, so the caps on
 * the grid cost nothing. */
static inline struct sheet sheet_of(int64_t rows, int64_t cols)
{
    unsigned x = 256;

    while (x > 1 && x / 2 >= cols)
        x /= 2;
    struct sheet s = { rows, cols, dim3(1), dim3(x, 256 / x) };
    s.grid = dim3((unsigned)min64(ceil_div(cols, x), 1 << 20), (unsigned)min64(ceil_div(rows, 256 / x), 65535));
    return s;
}

/* A dense tensor as one long row. */
static inline struct tensor one_row(struct tensor t)
{
    t.dim[1] = t.row = tensor_count(t);
    t.dim[0] = t.dim[2] = t.dim[3] = 1;
    return t;
}

/* About `want` blocks of n threads (or groups of lanes) each, no more than `items` need, so many that a step over
 * the grid is a whole number of rows of `cols` items: who starts in a column then stays in it. */
static inline unsigned whole_rows(int64_t items, int64_t n, int64_t cols, int64_t want)
{
    int64_t a = cols, b = n;

    while (b) {
        const int64_t rest = a % b;
        a = b, b = rest;
    }
    return (unsigned)(ceil_div(min64(want, ceil_div(items, n)), cols / a) * (cols / a));
}

__device__ inline int64_t sheet_row(void)       { return (int64_t)blockIdx.y * blockDim.y + threadIdx.y; }
__device__ inline int64_t sheet_row_step(void)  { return (int64_t)gridDim.y * blockDim.y; }
__device__ inline int64_t sheet_col(void)       { return (int64_t)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline int64_t sheet_col_step(void)  { return (int64_t)gridDim.x * blockDim.x; }
#endif
