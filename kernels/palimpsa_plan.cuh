/* palimpsa_plan.cuh - how palimpsa_reverse.cu cuts a tile into blocks. */
#ifndef PALIMPSA_PLAN_CUH
#define PALIMPSA_PLAN_CUH
#include "palimpsa_reverse.cuh"

/* Does a block end with the lane's tokens? u: decay from after a token to the tile's end. Blocks are whole steps
 * whose decay falls into one bucket of LOSS; a step of more than LOSS / 2 stands alone, of more than LOSS is cut. */
__device__ inline uint64_t block_ends(const float u[2])
{
    const int lane = threadIdx.x % 32;
    float d[2];
    int bucket[2], inner[2];
    bool end[2];

    for (int z = 0; z < 2; z++) {
        const float from = __shfl_sync(~0u, u[z], lane & 24), to = __shfl_sync(~0u, u[z], lane | 7);
        d[z] = from - to;
        bucket[z] = (int)(from * (1.f / LOSS));
        inner[z] = d[z] > LOSS ? (int)((u[z] - to) * (1.f / LOSS)) : 0;
    }
    const int b1 = __shfl_sync(~0u, bucket[1], lane & 7);
    const float d1 = __shfl_sync(~0u, d[1], lane & 7);
    for (int z = 0; z < 2; z++) {
        int   bn = __shfl_down_sync(~0u, bucket[z], 8), in = __shfl_down_sync(~0u, inner[z], 1);
        float dn = __shfl_down_sync(~0u, d[z], 8);
        if (z == 0 && lane >= 24)
            bn = b1, dn = d1;
        if (lane % 8 < 7)
            end[z] = inner[z] != in;
        else
            end[z] = (z == 1 && lane == 31) || bucket[z] != bn || d[z] > LOSS / 2 || dn > LOSS / 2;
    }
    return (uint64_t)__ballot_sync(~0u, end[1]) << 32 | __ballot_sync(~0u, end[0]);
}

/* ddecay of a tile from its y: suffix sums that start anew where blocks end; one warp. */
__device__ inline void put_decay(const float *y, const struct plan *p, const struct scan_io &x, const struct scan_io &g,
                                 const struct tiled &w)
{
    const int lane = threadIdx.x % 32;
    float a[2];
    int done[2];

    for (int z = 0; z < 2; z++) {
        a[z] = y[lane + 32 * z];
        done[z] = p->ends >> (lane + 32 * z) & 1;
        for (int o = 1; o < 32; o *= 2) {
            const float b = __shfl_down_sync(~0u, a[z], o);
            const int   d = __shfl_down_sync(~0u, done[z], o);
            if (lane + o < 32 && !done[z])
                a[z] += b, done[z] = d;
        }
    }
    const float next = __shfl_sync(~0u, a[1], 0);
    if (!done[0])
        a[0] += next;
    for (int z = 0; z < 2; z++) {
        const int64_t t = p->t0 + lane + 32 * z;
        if (t >= w.T)
            continue;
        const float d = p->opens >> (lane + 32 * z) & 1 && !x.state[0].data ? 0.f : a[z];
        if (w.decay)
            w.decay[(p->part * w.T + t) * w.H + p->h] = d;
        else if (g.decay.data)
            *head_at<float>(g.decay, t, p->h) = d;
    }
}
#endif
