/* palimpsa_carry.cuh - how what the lanes of palimpsa_reverse.cu found for a batch of tokens is added up. */
#ifndef PALIMPSA_CARRY_CUH
#define PALIMPSA_CARRY_CUH
#include "palimpsa_reverse.cuh"

template <int N, int STRIDE>
__device__ inline float4 sum4(const float *from)
{
    float4 sum = *(const float4 *)from;

#pragma unroll
    for (int i = 1; i < N; i++) {
        const float4 a = *(const float4 *)(from + i * STRIDE);
        sum.x += a.x, sum.y += a.y, sum.z += a.z, sum.w += a.w;
    }
    return sum;
}

/* Columns c, c+1 of token s of the tile. */
__device__ inline void put_pair(const struct place &to, bool wide, int s, int c, float a, float b)
{
    char *at = to.at + (unsigned)(s * to.row + c * to.size);

    if (wide)
        *(float2 *)at = make_float2(a, b);
    else
        *(uint32_t *)at = pair(a, b);
}

/* What ddecay of each token of a batch is less that of the next. */
template <class F>
__device__ inline void sum_own(struct shared<F> *sh, int s)
{
    constexpr int lanes = F::threads / BATCH;
    const int u = threadIdx.x / lanes;
    const float4 a = *(const float4 *)&sh->own[u][threadIdx.x % lanes * 4];
    float y = (a.x + a.y) + (a.z + a.w);
    for (int o = lanes / 2; o > 0; o /= 2)
        y += __shfl_xor_sync(~0u, y, o);
    if (threadIdx.x % lanes == 0)
        sh->y[s + u] = y;
}

/* Adds up and carries away what a batch of tokens from s on left. */
template <class F>
__device__ void carry(struct shared<F> *sh, const struct plan *p, const struct tiled &w, int s)
{
    constexpr int NC = F::K / 2, NR = F::BV / 2;

#pragma unroll
    for (int z = 0; z < (BATCH * (NC + NR) + F::threads - 1) / F::threads; z++) {
        const int i = threadIdx.x + z * F::threads, u = i < BATCH * NC ? i / NC : (i - BATCH * NC) / NR;
        const int c = i < BATCH * NC ? i % NC : (i - BATCH * NC) % NR;
        if (i < BATCH * NC) {
            const float4 a = sum4<8, F::KP>(&sh->col[u][0][4 * c]);
            if (s + u < p->left) {
                put_pair(p->dq, w.dq, s + u, 2 * c, a.x, a.z);
                put_pair(p->dk, w.dk, s + u, 2 * c, a.y, a.w);
            }
        } else if (i < BATCH * (NC + NR)) {
            const float4 a = sum4<4 * F::KS, F::VP>(&sh->row[u][0][4 * c]);
            const float  m = p->m[s + u];
            if (s + u < p->left) {
                put_pair(p->dv, false, s + u, 2 * c, m * a.y, m * a.w);
                put_pair(p->db, false, s + u, 2 * c, 2.f * m * a.x, 2.f * m * a.z);
            }
        }
    }
    sum_own(sh, s);
}

/* The same for one warp: all loads are under way together. */
template <class F>
__device__ void carry_few(struct shared<F> *sh, const struct plan *p, const struct tiled &w, int s)
{
    const int lane = threadIdx.x, u = lane / 8, c = lane % 8, v = lane / 16, r = lane % 16;
    const struct place to[4] = { p->dq, p->dk, p->dv, p->db };
    const float m[2] = { p->m[s + v], p->m[s + v + 2] };
    const int left = p->left - s;

    static_assert(F::threads == 32 && F::K == 16 && F::BV == 32 && BATCH == 4);
    const float4 a = sum4<8, F::KP>(&sh->col[u][0][4 * c]);
    const float4 b[2] = { sum4<4, F::VP>(&sh->row[v][0][4 * r]), sum4<4, F::VP>(&sh->row[v + 2][0][4 * r]) };
    sum_own(sh, s);
    if (u < left) {
        put_pair(to[0], w.dq, s + u, 2 * c, a.x, a.z);
        put_pair(to[1], w.dk, s + u, 2 * c, a.y, a.w);
    }
#pragma unroll
    for (int z = 0; z < 2; z++)
        if (v + 2 * z < left) {
            put_pair(to[2], false, s + v + 2 * z, 2 * r, m[z] * b[z].y, m[z] * b[z].w);
            put_pair(to[3], false, s + v + 2 * z, 2 * r, 2.f * m[z] * b[z].x, 2.f * m[z] * b[z].z);
        }
}
#endif
