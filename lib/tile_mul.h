/* tile_mul.h - products of matrices that already lie in a core's cache: no packing, no threads.
 *
 * C and B are row major, their rows are whole vectors (padded by the caller), those of B aligned; A is
 * read one element at a time, so transposed is only another pair of strides. An element of C is added
 * up in one order, whatever m and n are. */
#ifndef TILE_MUL_H
#define TILE_MUL_H
#include "simd.h"

struct tile_a { const float *at; int64_t row, col; };   /* element (i,l) is at[i * row + l * col] */

/* C [m,n] = A [m,inner] B [inner,n], or += when add; n is a multiple of LANES. */
void tile_mul(float *c, int64_t c_row, struct tile_a a, const float *b, int64_t b_row,
              int64_t m, int64_t n, int64_t inner, bool add);
/* to [cols,rows] = from [rows,cols]; both are multiples of 4, rows of to are aligned to 16
 * bytes. */
void tile_transpose(float *to, int64_t to_row, const float *from, int64_t from_row, int64_t rows,
                    int64_t cols);
#endif
