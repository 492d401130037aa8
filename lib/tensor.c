/* tensor.c - shapes and views; nothing here touches an element. */
#include "tensor.h"

size_t dtype_size(enum dtype type)
{
    return type == BF16 ? 2 : 4;
}

const char *dtype_name(enum dtype type)
{
    return type == F32 ? "fp32" : type == BF16 ? "bf16" : "int32";
}

enum dtype dtype_named(const char *name)
{
    return strcmp(name, "bf16") ? F32 : BF16;
}

struct tensor tensor_shape(enum dtype type, int ndim, const int64_t *dim)
{
    struct tensor t = { .dim = { 1, 1, 1, 1 }, .ndim = ndim, .type = type };

    REQUIRE(ndim >= 1 && ndim <= 4);
    for (int i = 0; i < ndim; i++)
        t.dim[i] = dim[i];
    t.row = t.dim[1] * t.dim[2] * t.dim[3];
    return t;
}

struct tensor tensor_like(struct tensor t)
{
    return tensor_shape(t.type, t.ndim, t.dim);
}

int64_t tensor_count(struct tensor t)
{
    return t.ndim ? t.dim[0] * t.dim[1] * t.dim[2] * t.dim[3] : 0;
}

bool tensor_dense(struct tensor t)
{
    return t.row == t.dim[1] * t.dim[2] * t.dim[3] || t.dim[0] <= 1;
}

bool tensor_same(struct tensor a, struct tensor b)
{
    return a.ndim == b.ndim && !memcmp(a.dim, b.dim, sizeof a.dim);
}

struct tensor tensor_cols(struct tensor t, int64_t from, int64_t n)
{
    REQUIRE(t.ndim == 2 && from >= 0 && n >= 0 && from + n <= t.dim[1]);
    if (t.data)
        t.data = (char *)t.data + from * (int64_t)dtype_size(t.type);
    t.dim[1] = n;
    return t;
}

struct tensor tensor_rows(struct tensor t, int64_t from, int64_t n)
{
    REQUIRE(from >= 0 && n >= 0 && from + n <= t.dim[0]);
    if (t.data)
        t.data = (char *)t.data + from * t.row * (int64_t)dtype_size(t.type);
    t.dim[0] = n;
    return t;
}

struct tensor tensor_heads(struct tensor t, int64_t heads)
{
    REQUIRE(t.ndim == 2 && heads > 0 && t.dim[1] % heads == 0);
    t.dim[2] = t.dim[1] / heads;
    t.dim[1] = heads;
    t.ndim = 3;
    return t;
}

struct tensor tensor_flat(struct tensor t)
{
    REQUIRE(t.ndim >= 1);
    t.dim[1] *= t.dim[2] * t.dim[3];
    t.dim[2] = t.dim[3] = 1;
    t.ndim = 2;
    return t;
}
