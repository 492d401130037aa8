/* palimpsa_stage.cuh - how a block of the tiled path gets its tokens: where they lie, how they come in.
 *
 * A block owns some rows of one head's memory and walks a piece of the row of tokens, a tile at a time. One warp plans
 * a tile; tokens are staged STEP at a time, first as they are, in the background, then in fp32, scaled. */
#ifndef PALIMPSA_STAGE_CUH
#define PALIMPSA_STAGE_CUH
#include "palimpsa_tiled.cuh"

enum { STEP = 8, STEPS = TILE / STEP };

/* All threads of a block are here and see what the others wrote. */
template <class F> __device__ inline void meet(void)
{
    if constexpr (F::threads == 32)
        __syncwarp();
    else
        __syncthreads();
}

/* Where a tile's first token lies in a tensor, bytes from one token to the next and of an element. */
struct place { char *at; int row, size; };

__device__ inline struct place place_of(const struct tensor &a, int64_t t, int64_t h, int c)
{
    return { a.data ? (char *)(head_at<bf16>(a, t, h) + c) : NULL, 2 * (int)a.row, 2 };
}

/* What a tile's plan is made of, which comes from far: -decay of tokens lane and lane + 32, where documents begin. */
struct coming { float x[2]; uint64_t opens; };

__device__ inline struct coming look(const struct scan_io &x, const struct tiled &w, int64_t tile, int h)
{
    const int64_t t = tile * TILE + threadIdx.x % 32;

    return { { forgetting(x, t, h), forgetting(x, t + 32, h) }, w.opens[tile] };
}

/* Suffix sums of a over a tile's 64 tokens, lane l having tokens l and l + 32. */
__device__ inline void suffix(float a[2])
{
    const int lane = threadIdx.x % 32;

    for (int o = 1; o < 32; o *= 2) {
        const float y0 = __shfl_down_sync(~0u, a[0], o), y1 = __shfl_down_sync(~0u, a[1], o);
        if (lane + o < 32)
            a[0] += y0, a[1] += y1;
    }
    a[0] += __shfl_sync(~0u, a[1], 0);
}

/* A step's tokens as they come. */
template <class F> struct alignas(16) raw_step { bf16 k[STEP][F::K], q[STEP][F::K], v[STEP][F::BV], b[STEP][F::BV]; };

/* Fetches C 16-byte pieces of each token of a step from token s of a tile on. From `left` on tokens are zeros. */
template <int C, int THREADS>
__device__ inline void fetch_rows(void *to, const struct place &from, int s, int left)
{
    const struct place p = from;

#pragma unroll
    for (int z = 0; z < (STEP * C + THREADS - 1) / THREADS; z++) {
        const int i = threadIdx.x + z * THREADS, r = s + i / C;
        if (STEP * C % THREADS == 0 || i < STEP * C)
            fetch((uint4 *)to + i, p.at + (unsigned)(r * p.row + i % C * 16), r < left && p.at);
    }
}

/* Do something for each i < N, a block's threads side by side. */
#define SPREAD(i, N, THREADS, ...) do { \
    _Pragma("unroll") \
    for (int z_ = 0; z_ < ((N) + (THREADS) - 1) / (THREADS); z_++) { \
        const int i = threadIdx.x + z_ * (THREADS); \
        if ((N) % (THREADS) == 0 || i < (N)) { __VA_ARGS__; } \
    } } while (0)

/* (b, v) of a lane's rows, pairs of them APART rows apart. */
template <int N, int APART>
__device__ inline void take_values(float v[N], float b[N], const float *from)
{
#pragma unroll
    for (int r = 0; r < N; r += 2) {
        const float4 a = *(const float4 *)(from + APART * r);
        b[r] = a.x, v[r] = a.y, b[r + 1] = a.z, v[r + 1] = a.w;
    }
}
#endif
