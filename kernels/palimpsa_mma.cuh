/* palimpsa_mma.cuh - products on tensor cores: 16x16 by 16x8 in bf16, added up in fp32.
 *
 * Lane (i, j) = (lane / 4, lane % 4) of a result holds rows i and i+8, columns 2j and 2j+1, in the order
 * (i,2j) (i,2j+1) (i+8,2j) (i+8,2j+1). An fp32 factor enters as two bf16 parts, high and low: 2^-17. */
#ifndef PALIMPSA_MMA_CUH
#define PALIMPSA_MMA_CUH
#include "palimpsa_tiled.cuh"

struct frag { uint32_t at[4]; };

__device__ inline void mma(float c[4], const struct frag &a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 blocks; lane l gives the address of row l % 8 of block l / 8. */
__device__ inline struct frag blocks(const bf16 *p)
{
    struct frag f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.at[0]), "=r"(f.at[1]), "=r"(f.at[2]), "=r"(f.at[3]) : "r"(shared_at(p)) : "memory");
    return f;
}

__device__ inline struct frag blocks_turned(const bf16 *p)
{
    struct frag f;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(f.at[0]), "=r"(f.at[1]), "=r"(f.at[2]), "=r"(f.at[3]) : "r"(shared_at(p)) : "memory");
    return f;
}

/* Eight floats as their high and low parts. */
__device__ inline void split(bf16 *high_part, bf16 *low_part, const float f[8])
{
    uint32_t h[4], l[4];

    for (int i = 0; i < 4; i++) {
        h[i] = pair(f[2 * i], f[2 * i + 1]);
        l[i] = pair(f[2 * i] - low(h[i]), f[2 * i + 1] - high(h[i]));
    }
    *(uint4 *)high_part = make_uint4(h[0], h[1], h[2], h[3]);
    *(uint4 *)low_part  = make_uint4(l[0], l[1], l[2], l[3]);
}
#endif
