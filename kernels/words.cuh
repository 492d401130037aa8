/* words.cuh - N elements on their way, held as words.
 *
 * The compiler would give every short element a register of its own, and take the store of a struct of them apart
 * into stores of single elements. Stores are to global memory. */
#ifndef WORDS_CUH
#define WORDS_CUH
#include "common.cuh"

template <typename X, int N> struct words { uint32_t at[(N * sizeof(X) + 3) / 4]; };

template <typename X, int N> __device__ inline void fetch(words<X, N> &w, const X *p)
{
    constexpr int BYTES = N * sizeof(X);

    if constexpr (BYTES == 2)
        w.at[0] = *(const uint16_t *)p;
    else if constexpr (BYTES == 4)
        w.at[0] = *(const uint32_t *)p;
    else if constexpr (BYTES == 8) {
        const uint2 v = *(const uint2 *)p;
        w.at[0] = v.x, w.at[1] = v.y;
    } else
        for (int i = 0; i < BYTES / 16; i++) {
            const uint4 v = ((const uint4 *)p)[i];
            w.at[4 * i] = v.x, w.at[4 * i + 1] = v.y, w.at[4 * i + 2] = v.z, w.at[4 * i + 3] = v.w;
        }
}

template <typename X, int N> __device__ inline void put_words(X *p, const words<X, N> &w)
{
    constexpr int BYTES = N * sizeof(X);

    if constexpr (BYTES == 2)
        *(uint16_t *)p = (uint16_t)w.at[0];
    else if constexpr (BYTES == 4)
        *(uint32_t *)p = w.at[0];
    else if constexpr (BYTES == 8)
        asm volatile("st.global.v2.b32 [%0], {%1, %2};" : : "l"(p), "r"(w.at[0]), "r"(w.at[1]) : "memory");
    else
        for (int i = 0; i < BYTES / 4; i += 4)
            asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" : : "l"((uint32_t *)p + i), "r"(w.at[i]),
                         "r"(w.at[i + 1]), "r"(w.at[i + 2]), "r"(w.at[i + 3]) : "memory");
}

template <int N> __device__ inline void unpack(float (&y)[N], const words<float, N> &w)
{
    for (int i = 0; i < N; i++)
        y[i] = __uint_as_float(w.at[i]);
}

template <int N> __device__ inline void unpack(float (&y)[N], const words<bf16, N> &w)
{
    for (int i = 0; i < N; i++)
        y[i] = __uint_as_float(i % 2 ? w.at[i / 2] & 0xffff0000u : w.at[i / 2] << 16);
}

template <int N, typename X> __device__ inline void load_n(float (&y)[N], const X *p)
{
    words<X, N> w;

    fetch(w, p);
    unpack(y, w);
}

template <int N> __device__ inline void store_n(float *p, const float (&y)[N])
{
    words<float, N> w;

    for (int i = 0; i < N; i++)
        w.at[i] = __float_as_uint(y[i]);
    put_words(p, w);
}

template <int N> __device__ inline void store_n(bf16 *p, const float (&y)[N])
{
    words<bf16, N> w;

    for (int i = 0; i < N; i += 2) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(y[i], i + 1 < N ? y[i + 1] : 0.f);
        w.at[i / 2] = *(const uint32_t *)&two;
    }
    put_words(p, w);
}
#endif
