/* half.h - the 16-bit floats of files and GPUs, on the host: to nearest even, NaN stays NaN. */
#ifndef HALF_H
#define HALF_H
#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits(float x)
{
    uint32_t u;

    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float float_of_bits(uint32_t u)
{
    float x;

    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint16_t bf16_of(float x)
{
    uint32_t u = float_bits(x);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float float_of_bf16(uint16_t b)
{
    return float_of_bits((uint32_t)b << 16);
}

static inline float float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    float subnormal;

    if (exponent == 31)
        return float_of_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent)
        return float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
    subnormal = (float)mantissa * 0x1p-24f;
    return sign ? -subnormal : subnormal;
}
#endif
