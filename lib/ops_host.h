/* ops_host.h - private to the host rows: how they reach the floats of a tensor. */
#ifndef OPS_HOST_H
#define OPS_HOST_H
#include "ops.h"

static inline float *row(struct tensor x, int64_t t)
{
    return (float *)x.data + t * x.row;
}

/* Piece h of row t. */
static inline float *row2(struct tensor x, int64_t t, int64_t h)
{
    return row(x, t) + h * x.dim[2] * x.dim[3];
}

static inline int64_t row_size(struct tensor x)
{
    return x.dim[1] * x.dim[2] * x.dim[3];
}
#endif
