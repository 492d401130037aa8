/* rows.cuh - a row of C elements held in the registers of L lanes: NV packs of N elements each. */
#ifndef ROWS_CUH
#define ROWS_CUH
#include "sheet.cuh"

/* Picks the smallest L lanes x NV packs x N elements that hold a row of X, and runs the statements with them. */
#define FOR_ROW(X, C, wide, L, NV, N, ...) do { \
    constexpr int N16 = 16 / sizeof(X); \
    if ((wide) && (C) <= 16)         { constexpr int N = N16, L = 16 / N,  NV = 1;      __VA_ARGS__; } \
    else if ((wide) && (C) <= 32)    { constexpr int N = N16, L = 32 / N,  NV = 1;      __VA_ARGS__; } \
    else if ((wide) && (C) <= 64)    { constexpr int N = N16, L = 64 / N,  NV = 1;      __VA_ARGS__; } \
    else if ((wide) && (C) <= 128)   { constexpr int N = N16, L = 128 / N, NV = 1;      __VA_ARGS__; } \
    else if ((wide) && (C) <= 256)   { constexpr int N = N16, L = 32,      NV = 8 / N;  __VA_ARGS__; } \
    else if ((wide) && (C) <= 768)   { constexpr int N = N16, L = 32,      NV = 24 / N; __VA_ARGS__; } \
    else if ((wide) && (C) <= 2048)  { constexpr int N = N16, L = 128,     NV = 16 / N; __VA_ARGS__; } \
    else if ((wide) && (C) <= 8192)  { constexpr int N = N16, L = 256,     NV = 32 / N; __VA_ARGS__; } \
    else if ((wide) && (C) <= 16384) { constexpr int N = N16, L = 512,     NV = 32 / N; __VA_ARGS__; } \
    else if ((C) <= 128)             { constexpr int N = 1,   L = 32,      NV = 4;      __VA_ARGS__; } \
    else if ((C) <= 8192)            { constexpr int N = 1,   L = 1024,    NV = 8;      __VA_ARGS__; } \
    else BUG("rows of %lld elements: at most 8192, or 16384 when aligned", (long long)(C)); } while (0)

/* Threads of a block, and groups of L lanes in it. A row of more than a warp has a block of its own. */
template <int L> constexpr int row_block(void) { return L > 32 ? L : 256; }
template <int L> constexpr int row_groups(void) { return row_block<L>() / L; }

/* Sum over the L lanes that share a row; for L > 32 they are the whole block. */
template <int L> __device__ inline float lanes_sum(float x)
{
    for (int step = (L < 32 ? L : 32) / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    if constexpr (L > 32) {
        __shared__ float warp[32];
        __syncthreads();
        if (threadIdx.x % 32 == 0)
            warp[threadIdx.x / 32] = x;
        __syncthreads();
        x = warp_sum(threadIdx.x % 32 < L / 32 ? warp[threadIdx.x % 32] : 0.f);
    }
    return x;
}
#endif
