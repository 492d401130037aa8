/* palimpsa_stage.cuh - how a block of the tiled path gets its tokens: where they lie, how they come in.
 *
 * A block owns some rows of one head's memory and walks a piece of the row of tokens, a tile at a time. One warp plans
 * a tile; tokens are staged STEP at a time, first as they are, in the background, then in fp32, scaled. */
#ifndef PALIMPSA_STAGE_CUH
#define PALIMPSA_STAGE_CUH
#include "palimpsa_tiled.cuh"

enum { STEP = 8, STEPS = TILE / STEP };

/* Where a tile's first token lies in a tensor, bytes from one token to the next and of an element. */
struct place { char *at; int row, size; };

__device__ inline struct place place_of(const struct tensor &a, int64_t t, int64_t h, int c)
{
    return { a.data ? (char *)(head_at<bf16>(a, t, h) + c) : NULL, 2 * (int)a.row, 2 };
}

/* A step's tokens as they come. */
template <class F> struct alignas(16) raw_step { bf16 k[STEP][F::K], q[STEP][F::K], v[STEP][F::BV], b[STEP][F::BV]; };

/* Fetches C 16-byte pieces of each token of a step that starts at token s of a tile. From `left` on tokens are zeros. */
template <int C, int THREADS>
__device__ inline void fetch_rows(void *to, const struct place &from, int s, int left)
{
    const struct place p = from;

    for (int i = threadIdx.x; i < STEP * C; i += THREADS)
        fetch((uint4 *)to + i, p.at + (unsigned)((s + i / C) * p.row + i % C * 16), s + i / C < left && p.at);
}

/* Where column n of lane group j's lies among pairs: for KT == 8 some are turned, so that the four j of a warp touch
 * different banks. */
template <class F> __device__ inline int turned(int n, int j) { return 2 * (F::KT == 8 ? n ^ (j >> 1 & 1) * 2 : n); }

__device__ inline void put8(float *to, const float a[8])
{
    *(float4 *)to = make_float4(a[0], a[1], a[2], a[3]);
    *(float4 *)(to + 4) = make_float4(a[4], a[5], a[6], a[7]);
}

/* Eight columns from c on as (f k k, k), f 1 or 1/2. */
template <class F>
__device__ inline void put_keys(float *to, const float a[8], int c, float f)
{
#pragma unroll
    for (int e = 0; e < 8; e += 2)
        *(float4 *)(to + 2 * c + turned<F>(e, c / 8)) = make_float4(f * a[e] * a[e], a[e], f * a[e + 1] * a[e + 1], a[e + 1]);
}

/* Eight rows as (fb b, fv v). */
__device__ inline void put_values(float *to, const float b[8], const float v[8], float fb, float fv)
{
#pragma unroll
    for (int e = 0; e < 8; e += 2)
        *(float4 *)(to + 2 * e) = make_float4(fb * b[e], fv * v[e], fb * b[e + 1], fv * v[e + 1]);
}

/* (b, v) of a lane's rows. */
template <int N>
__device__ inline void take_values(float v[N], float b[N], const float *from)
{
#pragma unroll
    for (int r = 0; r < N; r += 2) {
        const float4 a = *(const float4 *)(from + 2 * r);
        b[r] = a.x, v[r] = a.y, b[r + 1] = a.z, v[r + 1] = a.w;
    }
}
#endif
