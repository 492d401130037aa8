/* tile_mul.c - a block of 6 rows by 4 vectors of C stays in registers while A and B pass by. */
#include "tile_mul.h"

#if defined(__AVX512F__)
enum { ROWS = 6, COLS = 4 };
#else
enum { ROWS = 6, COLS = 2 };             /* half as many registers */
#endif
enum { SOME = 4 };                       /* rows of the last blocks but for single ones */

static inline __attribute__((always_inline)) void block(float *c, int64_t c_row, struct tile_a a,
                            const float *b, int64_t b_row, int64_t inner, bool add, const int rows,
                            const int cols)
{
    lanes sum[ROWS][COLS];

    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            sum[i][j] = add ? ((const lanes_loose *)(c + i * c_row))[j] : (lanes){ 0 };
    for (int64_t l = 0; l < inner; l++) {
        const lanes *from = (const lanes *)(b + l * b_row);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < cols; j++)
                sum[i][j] += a.at[i * a.row + l * a.col] * from[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < cols; j++)
            ((lanes_loose *)(c + i * c_row))[j] = sum[i][j];
}

static inline __attribute__((always_inline)) void columns(float *c, int64_t c_row, struct tile_a a,
                            const float *b, int64_t b_row, int64_t m, int64_t inner, bool add,
                            const int cols)
{
    for (; m >= ROWS; m -= ROWS) {
        block(c, c_row, a, b, b_row, inner, add, ROWS, cols);
        c += ROWS * c_row;
        a.at += ROWS * a.row;
    }
    for (; m >= SOME; m -= SOME) {
        block(c, c_row, a, b, b_row, inner, add, SOME, cols);
        c += SOME * c_row;
        a.at += SOME * a.row;
    }
    for (; m > 0; m--) {
        block(c, c_row, a, b, b_row, inner, add, 1, cols);
        c += c_row;
        a.at += a.row;
    }
}

void tile_mul(float *c, int64_t c_row, struct tile_a a, const float *b, int64_t b_row,
              int64_t m, int64_t n, int64_t inner, bool add)
{
    for (int64_t j = 0; j < n;) {
        int64_t left = (n - j) / LANES;
        int cols = left >= COLS ? COLS : (int)left;
        switch (cols) {
#if defined(__AVX512F__)
        case 4:  columns(c + j, c_row, a, b + j, b_row, m, inner, add, 4); break;
        case 3:  columns(c + j, c_row, a, b + j, b_row, m, inner, add, 3); break;
#endif
        case 2:  columns(c + j, c_row, a, b + j, b_row, m, inner, add, 2); break;
        default: columns(c + j, c_row, a, b + j, b_row, m, inner, add, 1); break;
        }
        j += cols * LANES;
    }
}

void tile_transpose(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows,
                    int64_t cols)
{
    for (int64_t j = 0; j < cols; j += 4)                /* rows of to fill up while cached */
        for (int64_t i = 0; i < rows; i += 4) {
            quad r[4], half[4];
            for (int x = 0; x < 4; x++)
                r[x] = *(const quad_loose *)(from + (i + x) * from_row + j);
            for (int x = 0; x < 2; x++) {
                half[x]     = __builtin_shufflevector(r[2 * x], r[2 * x + 1], 0, 4, 1, 5);
                half[x + 2] = __builtin_shufflevector(r[2 * x], r[2 * x + 1], 2, 6, 3, 7);
            }
            for (int x = 0; x < 4; x++) {
                quad a = half[x / 2 * 2], b = half[x / 2 * 2 + 1];
                quad low = __builtin_shufflevector(a, b, 0, 1, 4, 5);
                quad high = __builtin_shufflevector(a, b, 2, 3, 6, 7);
                *(quad *)(to + (j + x) * to_row + i) = x % 2 ? high : low;
            }
        }
}
