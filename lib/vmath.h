/* vmath.h - exp and its relatives in single precision, written so that a loop over them becomes SIMD.
 *
 * Branch free, correct for infinities and NaN, within 3 units in the last place where the result is a
 * normal number (tests/test_ops.c measures it), but silu is 0 below -88.7. Use inside `#pragma omp simd`.
 *
 *   exp(x) = 2^n e^r, |r| <= ln2 / 2, e^r = 1 + r + r^2 p(r)
 *   log1p(u) = 2 atanh(s), s = u / (2 + u), atanh(s) = s + s^3 q(s^2), for u in [0,1]: s <= 1/3
 * p and q are minimax fits to relative errors of 2^-28 and 2^-33. */
#ifndef VMATH_H
#define VMATH_H
#include "half.h"

static inline float v_exp(float x)
{
    const float magic = 12582912.f;                     /* 1.5 * 2^23: adding it rounds to an integer */
    float z = x < -104.f ? -104.f : x > 89.f ? 89.f : x;
    float t = z * 1.44269504f + magic, n = t - magic;
    float r = z - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 0x1.6a2434p-10f;
    uint32_t e = float_bits(t) - float_bits(magic), half = (uint32_t)((int32_t)e >> 1);

    p = p * r + 0x1.1239e4p-7f;
    p = p * r + 0x1.5558f2p-5f;
    p = p * r + 0x1.555492p-3f;
    p = p * r + 0x1.fffffcp-2f;
    p = p * r * r + r + 1.f;
    /* In two steps, so that subnormal and infinite results come out by themselves. */
    return p * float_of_bits((half + 127) << 23) * float_of_bits((e - half + 127) << 23);
}

static inline float v_sigmoid(float x)
{
    return 1.f / (1.f + v_exp(-x));
}

static inline float v_silu(float x)
{
    return x / (1.f + v_exp(-x));
}

/* Derivative of silu, from x and s = sigmoid(x). */
static inline float v_silu_slope(float x, float s)
{
    return s * (1.f + x * (1.f - s));
}

/* max(x, 0) + log1p(exp(-|x|)) */
static inline float v_softplus(float x)
{
    float u = v_exp(x > 0 ? -x : x), s = u / (2.f + u), w = s * s;
    float q = 0x1.f1742cp-4f;

    q = q * w + 0x1.b6e694p-4f;
    q = q * w + 0x1.2508b4p-3f;
    q = q * w + 0x1.9996b0p-3f;
    q = q * w + 0x1.555558p-2f;
    return (x > 0 ? x : 0) + 2.f * (s + s * w * q);
}
#endif
