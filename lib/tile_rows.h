/* tile_rows.h - products with a transposed matrix in which every row is added up in one order, k = 0, 1, 2, ..,
 * whatever the number of rows. */
#ifndef TILE_ROWS_H
#define TILE_ROWS_H
#include "tensor.h"

/* y [T,N] = x [T,K] w' or += when add; w [N,K]; F32. */
void tile_rows_mul(int threads, struct tensor y, struct tensor x, struct tensor w, bool add);
#endif
