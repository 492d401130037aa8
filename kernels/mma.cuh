/* mma.cuh - small matrix products by a warp: 16 rows of A times B, both bf16 in shared memory.
 *
 * An F32 number is two bf16 planes, hi + lo, good to 2^-17; a product then takes three of the four
 * partial products. Lane l holds, of a 16 x 8 result, rows l/4 and l/4+8, columns 2(l%4) and +1. */
#ifndef MMA_CUH
#define MMA_CUH
#include "common.cuh"

struct operand { const bf16 *at; int ld, plane; };      /* row major; elements from one plane to the next */
__device__ inline struct operand cols(struct operand m, int c) { m.at += c; return m; }

__device__ inline void ldmatrix(uint32_t (&r)[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

__device__ inline void ldmatrix_trans(uint32_t (&r)[4], const bf16 *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"((uint32_t)__cvta_generic_to_shared(p)));
}

__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* A[row..+16, k..+16]; TRANS: m holds A transposed. */
template <int P, bool TRANS>
__device__ inline void frag_a(uint32_t (&a)[P][4], struct operand m, int row, int k)
{
    const int l = threadIdx.x % 32;

    for (int p = 0; p < P; p++)
        if (TRANS)
            ldmatrix_trans(a[p], m.at + p * m.plane + (k + l % 8 + l / 16 * 8) * m.ld + row + l / 8 % 2 * 8);
        else
            ldmatrix(a[p], m.at + p * m.plane + (row + l % 16) * m.ld + k + l / 16 * 8);
}

/* B[k..+16, n..+16] as two 16 x 8 pieces. m holds B (k rows), or with TRANS its transpose (n rows). */
template <int P, bool TRANS>
__device__ inline void frag_b(uint32_t (&b)[P][4], struct operand m, int k, int n)
{
    const int l = threadIdx.x % 32;

    for (int p = 0; p < P; p++)
        if (TRANS)
            ldmatrix(b[p], m.at + p * m.plane + (n + l % 8 + l / 16 * 8) * m.ld + k + l / 8 % 2 * 8);
        else
            ldmatrix_trans(b[p], m.at + p * m.plane + (k + l % 8 + l / 8 % 2 * 8) * m.ld + n + l / 16 * 8);
}

template <int PA, int PB>
__device__ inline void product(float (&c0)[4], float (&c1)[4], const uint32_t (&a)[PA][4], const uint32_t (&b)[PB][4])
{
    for (int i = 0; i < PA; i++)
        for (int j = 0; j < PB; j++)
            if (i + j < 2) {
                mma(c0, a[i], b[j][0], b[j][1]);
                mma(c1, a[i], b[j][2], b[j][3]);
            }
}

__device__ inline uint32_t pack_bf16(float lo, float hi)
{
    const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);

    return *(const uint32_t *)&v;
}

/* Two neighbours into their planes. */
template <int P> __device__ inline void split(uint32_t (&r)[P], float x, float y)
{
    r[0] = pack_bf16(x, y);
    if (P > 1)
        r[P - 1] = pack_bf16(x - __uint_as_float(r[0] << 16), y - __uint_as_float(r[0] & 0xffff0000u));
}
#endif
