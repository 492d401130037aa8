/* rng_math.h - private to rng.h: log and cos with the same bits from every compiler and on every device.
 *
 * Exact steps and fma in a fixed order, free of branches, so that a loop over them becomes SIMD. Within an unit
 * of the last place or so: rounded to fp32 they are those of any good library. */
#ifndef RNG_MATH_H
#define RNG_MATH_H
#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __CUDACC__
#define RNG_FN __host__ __device__ static inline
#else
#define RNG_FN static inline
#endif

RNG_FN double rng_double(uint64_t bits)
{
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* log x = e log 2 + 2 atanh(s), s = (m - 1) / (m + 1), for a normal x = 2^e m, m in [sqrt 1/2, sqrt 2). */
RNG_FN double rng_log(double x)
{
    uint64_t bits, e;
    double m, s, w, p, n;

    memcpy(&bits, &x, sizeof bits);
    e = (bits - 0x3fe6a09e667f3bcdu + 0x4000000000000000u) >> 52;     /* exponent + 1024 */
    m = rng_double(bits - ((e - 1024) << 52));
    n = rng_double(e | 0x4330000000000000u) - (0x1p52 + 1024);
    s = (m - 1) / (m + 1);
    w = s * s;
    p = 2 / 21.0;
    p = fma(p, w, 2 / 19.0);
    p = fma(p, w, 2 / 17.0);
    p = fma(p, w, 2 / 15.0);
    p = fma(p, w, 2 / 13.0);
    p = fma(p, w, 2 / 11.0);
    p = fma(p, w, 2 / 9.0);
    p = fma(p, w, 2 / 7.0);
    p = fma(p, w, 2 / 5.0);
    p = fma(p, w, 2 / 3.0);
    p = fma(p * w, s, 2 * s);
    return fma(n, 0.69314718055994530942, p);
}

/* cos(2 pi v), v in [0, 1): v = k/4 + r, |r| <= 1/8, by the series of cos and sin. */
RNG_FN double rng_cos_turn(double v)
{
    double k = fma(v, 4, 0x1.8p52) - 0x1.8p52, r = fma(k, -0.25, v), w = r * r, c, s;
    double odd = k - 2 * (fma(k, 0.5, 0x1.8p52 - 0.25) - 0x1.8p52);   /* 0 or 1; k in 0..4 */

    c = 0x1.20c62c2f2d7f5p-2;
    c = fma(c, w, -0x1.b6e24f44b128fp+0);
    c = fma(c, w, 0x1.f9d38a3763cc3p+2);
    c = fma(c, w, -0x1.a6d1f2a204a8cp+4);
    c = fma(c, w, 0x1.e1f506891babbp+5);
    c = fma(c, w, -0x1.55d3c7e3cbffap+6);
    c = fma(c, w, 0x1.03c1f081b5ac4p+6);
    c = fma(c, w, -0x1.3bd3cc9be45dep+4);
    c = fma(c, w, 1);
    s = 0x1.aaec32af93359p-4;
    s = fma(s, w, -0x1.6fadb9f155744p-1);
    s = fma(s, w, 0x1.e8f434d018d63p+1);
    s = fma(s, w, -0x1.e3074fde8871fp+3);
    s = fma(s, w, 0x1.50783487ee782p+5);
    s = fma(s, w, -0x1.32d2cce62bd86p+6);
    s = fma(s, w, 0x1.466bc6775aae2p+6);
    s = fma(s, w, -0x1.4abbce625be53p+5);
    s = fma(s, w, 0x1.921fb54442d18p+2) * r;
    c = odd != 0 ? s : c;
    return k == 1 || k == 2 ? -c : c;
}

#endif
