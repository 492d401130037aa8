/* safetensors_data.c - the bytes of a mapped tensor as numbers; nothing in a file is aligned. */
#define _DEFAULT_SOURCE
#include "safetensors.h"
#include "half.h"
#include <sys/mman.h>
#include <unistd.h>

int st_float(const struct st_tensor *t, float *out)
{
    const char *p = t->data;
    uint16_t half;
    double wide;

    switch (t->type) {
    case ST_F32:
        if (t->count)
            memcpy(out, p, (size_t)t->bytes);
        return 0;
    case ST_BF16:
        for (int64_t i = 0; i < t->count; i++) {
            memcpy(&half, p + 2 * i, 2);
            out[i] = float_of_bf16(half);
        }
        return 0;
    case ST_F16:
        for (int64_t i = 0; i < t->count; i++) {
            memcpy(&half, p + 2 * i, 2);
            out[i] = float_of_f16(half);
        }
        return 0;
    case ST_F64:
        for (int64_t i = 0; i < t->count; i++) {
            memcpy(&wide, p + 8 * i, 8);
            out[i] = (float)wide;
        }
        return 0;
    default:
        return fail("%s: %s: expected a float dtype, found %s", t->file, t->name,
                    st_type_name(t->type));
    }
}

int st_int(const struct st_tensor *t, int32_t *out)
{
    const char *p = t->data;
    int64_t wide;

    if (t->type == ST_I32) {
        if (t->count)
            memcpy(out, p, (size_t)t->bytes);
        return 0;
    }
    if (t->type != ST_I64)
        return fail("%s: %s: expected I64 or I32, found %s", t->file, t->name,
                    st_type_name(t->type));
    for (int64_t i = 0; i < t->count; i++) {
        memcpy(&wide, p + 8 * i, 8);
        if (wide < INT32_MIN || wide > INT32_MAX)
            return fail("%s: %s: %lld does not fit into 32 bits", t->file, t->name,
                        (long long)wide);
        out[i] = (int32_t)wide;
    }
    return 0;
}

/* Whole pages only: its neighbours share the first and the last one. */
void st_drop(const struct st_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t from = ((uintptr_t)t->data + page - 1) / page * page;
    uintptr_t to = ((uintptr_t)t->data + (uintptr_t)t->bytes) / page * page;

    if (t->mapped && from < to)
        madvise((void *)from, to - from, MADV_DONTNEED);
}
