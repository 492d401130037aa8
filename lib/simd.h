/* simd.h - a vector of floats as wide as the machine we compile for, with plain C arithmetic. */
#ifndef SIMD_H
#define SIMD_H
#include "base.h"

#if defined(__AVX512F__)
enum { LANES = 16 };
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 };
#endif
typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), may_alias));
typedef float quad __attribute__((vector_size(16), may_alias));
/* In memory that is not aligned to a vector. */
typedef float lanes_loose
    __attribute__((vector_size(LANES * sizeof(float)), may_alias, aligned(sizeof(float))));
typedef float quad_loose __attribute__((vector_size(16), may_alias, aligned(sizeof(float))));

/* The first `left` floats, at most a vector; the rest of the vector is zero, or not stored. */
static inline lanes lanes_load(const float *from, int64_t left)
{
    lanes y = { 0 };

    if (left >= LANES)
        return *(const lanes_loose *)from;
    if (left > 0)
        memcpy(&y, from, (size_t)left * sizeof *from);
    return y;
}

static inline void lanes_store(float *to, lanes y, int64_t left)
{
    if (left >= LANES)
        *(lanes_loose *)to = y;
    else if (left > 0)
        memcpy(to, &y, (size_t)left * sizeof *to);
}

static inline float lanes_sum(lanes x)
{
    quad y[LANES / 4], sum = { 0 };

    memcpy(y, &x, sizeof x);
    for (int i = 0; i < LANES / 4; i++)
        sum += y[i];
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* Memories that fade fade into subnormal numbers, a hundred times slower than 0 and worth no more.
 * Per thread; returns what to put back. */
static inline unsigned flush_subnormals(void)
{
#if defined(__SSE__)
    unsigned old = __builtin_ia32_stmxcsr();

    __builtin_ia32_ldmxcsr(old | 0x8040);     /* results and operands */
    return old;
#else
    return 0;
#endif
}

static inline void flush_restore(unsigned old)
{
#if defined(__SSE__)
    __builtin_ia32_ldmxcsr(old);
#else
    (void)old;
#endif
}
#endif
