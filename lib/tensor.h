/* tensor.h - a tensor is a fat pointer: copy it like a pointer, it owns nothing.
 *
 * Row major; the one stride is the outer one, so a fused projection is split with tensor_cols and
 * no copy. All offsets are 64 bit. A view keeps the type and the row stride of its parent. */
#ifndef TENSOR_H
#define TENSOR_H
#include "base.h"
EXTERN_C_BEGIN

enum dtype { F32, BF16, I32 };

struct tensor {
    void      *data;      /* NULL means absent */
    int64_t    dim[4];    /* row major; dims past ndim are 1 */
    int64_t    row;       /* elements from one dim[0] index to the next; the rest is dense */
    int        ndim;      /* 0 for a tensor that was never given a shape */
    enum dtype type;
};

size_t        dtype_size(enum dtype type);                                   /* bytes */
const char   *dtype_name(enum dtype type);                                   /* "fp32", "bf16", "int32" */
enum dtype    dtype_named(const char *name);                                 /* BF16 for "bf16", else F32 */
struct tensor tensor_shape(enum dtype type, int ndim, const int64_t *dim);   /* data is NULL */
struct tensor tensor_like(struct tensor t);                                  /* same shape and type; data is NULL */
int64_t       tensor_count(struct tensor t);                                 /* elements */
bool          tensor_dense(struct tensor t);                                 /* row is the product of the inner dims */
bool          tensor_same(struct tensor a, struct tensor b);                 /* same dims (types may differ) */
struct tensor tensor_cols(struct tensor t, int64_t from, int64_t n);         /* a matrix's columns [from, from+n) */
struct tensor tensor_rows(struct tensor t, int64_t from, int64_t n);         /* view of rows */
struct tensor tensor_heads(struct tensor t, int64_t heads);                  /* [T, H*C] seen as [T, H, C] */
struct tensor tensor_flat(struct tensor t);                                  /* [T, ...] seen as [T, rest] */

#define SHAPE(type, ...) \
    tensor_shape(type, (int)LEN(((int64_t[]){__VA_ARGS__})), (int64_t[]){__VA_ARGS__})
EXTERN_C_END
#endif
