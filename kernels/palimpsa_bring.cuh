/* palimpsa_bring.cuh - how palimpsa_reverse.cu gets its tokens. */
#ifndef PALIMPSA_BRING_CUH
#define PALIMPSA_BRING_CUH
#include "palimpsa_reverse.cuh"

/* Fetches step n of the tile; `all`: also what only the way back needs. */
template <class F>
__device__ void start_fetch(struct shared<F> *sh, const struct plan *p, int n, bool all)
{
    fetch_rows<F::K / 8, F::threads>(sh->raw.k, p->k, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.v, p->v, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.b, p->b, n * STEP, p->left);
    if (all) {
        fetch_rows<F::K / 8, F::threads>(sh->raw.q, p->q, n * STEP, p->left);
        fetch_rows<F::BV / 8, F::threads>(sh->raw_g, p->g, n * STEP, p->left);
    }
}

/* Lanes side by side write 16 bytes side by side: none waits for another's bank. Two columns of a key as
 * (f k k, k). */
__device__ inline void put_keys(float *to, uint32_t key, float f)
{
    const float k0 = low(key), k1 = high(key);

    *(float4 *)to = make_float4(f * k0 * k0, k0, f * k1 * k1, k1);
}

/* Two rows as (fb b, fv v). */
__device__ inline void put_values(float *to, uint32_t b, uint32_t v, float fb, float fv)
{
    *(float4 *)to = make_float4(fb * low(b), fv * low(v), fb * high(b), fv * high(v));
}

/* Four elements times f. */
__device__ inline void put4(float *to, uint2 a, float f)
{
    *(float4 *)to = make_float4(f * low(a.x), f * high(a.x), f * low(a.y), f * high(a.y));
}

/* Makes step n ready; every lane is done with the one before. */
template <class F>
__device__ void convert(struct shared<F> *sh, const struct plan *p, float scale, int n, bool all)
{
    constexpr int K2 = F::K / 2, V2 = F::BV / 2, K4 = F::K / 4, V4 = F::BV / 4;

    fetched();
    meet<F>();
    SPREAD(i, STEP * K2, F::threads, put_keys(&sh->key[0][4 * i], *((const uint32_t *)sh->raw.k + i), .5f));
    SPREAD(i, STEP * V2, F::threads,
        const float m = p->m[n * STEP + i / V2];
        put_values(&sh->value[0][4 * i], *((const uint32_t *)sh->raw.b + i), *((const uint32_t *)sh->raw.v + i),
                   2.f * m, m));
    if (all) {
        SPREAD(i, STEP * K4, F::threads, put4(&sh->query[0][4 * i], *((const uint2 *)sh->raw.q + i), 1.f));
        SPREAD(i, STEP * V4, F::threads, put4(&sh->grad[0][4 * i], *((const uint2 *)sh->raw_g + i), scale));
    }
    meet<F>();
}
#endif
