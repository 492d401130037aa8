/* simd.h - a vector of floats as wide as the machine we compile for; arithmetic on it is plain C. */
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
/* The same in memory that is not aligned to a vector. */
typedef float lanes_loose __attribute__((vector_size(LANES * sizeof(float)), may_alias, aligned(sizeof(float))));

static inline lanes lanes_all(float x)
{
    return x - (lanes){ 0 };
}

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
#if defined(__AVX512F__)
    typedef float half __attribute__((vector_size(32)));
    half y = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
#elif defined(__AVX__)
    lanes y = x;
#endif
#if defined(__AVX__)
    typedef float quarter __attribute__((vector_size(16)));
    quarter z = __builtin_shufflevector(y, y, 0, 1, 2, 3) + __builtin_shufflevector(y, y, 4, 5, 6, 7);
#else
    lanes z = x;
#endif
    return (z[0] + z[2]) + (z[1] + z[3]);
}

/* Memories that fade fade into subnormal numbers, a hundred times slower than 0 and worth no more. Per
 * thread; returns what to put back. */
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
