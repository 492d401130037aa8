/* rng.h - counter-based randomness: a value is a function of (seed, stream, index), on host and device.
 *
 * Nothing is ever saved to resume a random sequence. The mixer is splitmix64's finaliser
 * (Steele, Lea, Flood 2014) applied over the three words. */
#ifndef RNG_H
#define RNG_H
#include "rng_math.h"

RNG_FN uint64_t rng_mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

RNG_FN uint64_t rng_bits(uint64_t seed, uint64_t stream, uint64_t index)
{
    return rng_mix(rng_mix(rng_mix(seed) ^ stream) ^ index);
}

/* Uniform in [0, 1), 53 bits. The bits become a number in two exact halves, which SIMD can do. */
RNG_FN double rng_uniform(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t x = rng_bits(seed, stream, index) >> 11;
    double high = rng_double(x >> 32 | 0x4330000000000000u) - 0x1p52;
    double low = rng_double((x & 0xffffffffu) | 0x4330000000000000u) - 0x1p52;

    return high * 0x1p-21 + low * 0x1p-53;
}

/* Standard normal, by Box and Muller from two uniforms of the same index. */
RNG_FN double rng_normal(uint64_t seed, uint64_t stream, uint64_t index)
{
    double u = rng_uniform(seed, stream, 2 * index), v = rng_uniform(seed, stream, 2 * index + 1);

    return sqrt(-2.0 * rng_log(1.0 - u)) * rng_cos_turn(v);
}

/* A string as a stream number: FNV-1a. */
RNG_FN uint64_t rng_stream(const char *name)
{
    uint64_t h = 0xcbf29ce484222325u;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001b3u;
    return h;
}
#endif
