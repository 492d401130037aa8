/* linear_tile.cuh - moving tiles and memories to shared memory, and the products of a warp with them. */
#ifndef LINEAR_TILE_CUH
#define LINEAR_TILE_CUH
#include "linear.cuh"
#include "mma.cuh"
#include "sheet.cuh"

/* Planes of an input in shared memory. What is computed here, pairs and memories, always has two: its error
 * would otherwise be as large as that of rounding the result. */
template <typename X> constexpr int planes(void) { return sizeof(X) == 4 ? 2 : 1; }
constexpr int COMPUTED = 2;
template <int B> constexpr int memory_ld(void) { return 16 * B + 8; }
template <int B> constexpr int memory_plane(void) { return 16 * B * memory_ld<B>(); }

/* The index of the warp, in a way that tells the compiler that all its lanes agree. */
__device__ inline int warp_index(void) { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

__device__ inline void copy_async(bf16 *to, const bf16 *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(valid ? 16 : 0));
}
__device__ inline void copies_wait(void) { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* Asks for a memory that will be needed later. */
__device__ inline void fetch_memory(const struct linear &x, const float *m)
{
    for (int i = threadIdx.x * 32; m && i < x.V * x.K; i += THREADS * 32)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(m + i));
}

/* Eight neighbours into planes of shared memory. */
template <int P> __device__ inline void put_split(bf16 *to, int plane, const float (&u)[8])
{
    uint32_t r[4][P];

    for (int i = 0; i < 4; i++)
        split<P>(r[i], u[2 * i], u[2 * i + 1]);
    for (int p = 0; p < P; p++)
        *(uint4 *)(to + p * plane) = make_uint4(r[0][p], r[1][p], r[2][p], r[3][p]);
}

/* Eight elements of a row from column c < n, zeros from column n on. */
template <typename X, bool W> __device__ inline void get_eight(float (&u)[8], const X *row, int c, int n)
{
    if (W)
        load_n<8>(u, row + c);
    else
        for (int i = 0; i < 8; i++)
            u[i] = c + i < n ? load(row + c + i) : 0.f;
}

/* The tile's rows of a head, columns from `from` to the end of blocks of 16 B at column `to`: to shared memory, zeros
 * beyond n columns and below `rows`. Copies of bf16 are asynchronous: copies_wait() before the barrier. */
template <typename X, int B, bool W>
__device__ inline void stage(struct operand a, const struct tensor &m, int64_t t0, int rows, int head, int from, int to,
                             int n)
{
    const X *base = (const X *)m.data + t0 * m.row + (int64_t)head * m.dim[2];

    for (int block = from; block < to; block += 16 * B)
#pragma unroll
        for (int j = 0; j < TILE * 2 * B / THREADS; j++) {
            const int i = threadIdx.x + j * THREADS, r = i / (2 * B), c = block + i % (2 * B) * 8;
            const bool valid = r < rows && c < n && m.data;
            bf16 *at = (bf16 *)a.at + r * a.ld + c - from;
            if constexpr (sizeof(X) == 2 && W)
                if (m.data) {
                    copy_async(at, (const bf16 *)base + (valid ? r * m.row + c : 0), valid);
                    continue;
                }
            float u[8] = {};
            if (valid)
                get_eight<X, W>(u, base + r * m.row, c, n);
            put_split<planes<X>()>(at, a.plane, u);
        }
}

/* Block (v,k) of a memory to shared memory, zeros beyond its edges; returns this thread's share of the product with
 * another memory, 0 without one. */
template <int B, bool W>
__device__ inline float stage_memory(bf16 *to, const struct linear &x, const float *m, const float *other, int v, int k)
{
    float dot = 0.f;

#pragma unroll
    for (int j = 0; j < (32 * B * B + THREADS - 1) / THREADS; j++) {
        const int i = threadIdx.x + j * THREADS, r = i / (2 * B), c = i % (2 * B) * 8;
        const int64_t at = (int64_t)(v + r) * x.K + k;
        float u[8] = {}, y[8];
        if (r >= 16 * B)
            break;
        if (v + r < x.V && k + c < x.K) {
            get_eight<float, W>(u, m + at, c, x.K - k);
            if (other) {
                get_eight<float, W>(y, other + at, c, x.K - k);
                for (int e = 0; e < 8; e++)
                    dot += u[e] * y[e];
            }
        }
        put_split<COMPUTED>(to + r * memory_ld<B>() + c, memory_plane<B>(), u);
    }
    return dot;
}

/* acc += A[row..+16, 16 STEPS] Bm, columns of Bm in blocks of 16: lo <= block < hi <= N. Rows of A that are not kept
 * count as zero. TRANS: m holds the transpose of Bm. */
template <int P, int PB, bool TRANS, int STEPS, int N>
__device__ inline void times(float (&acc)[2 * N][4], struct operand A, int row, struct operand m, int lo, int hi,
                             bool keep0 = true, bool keep1 = true)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        uint32_t a[P][4];
        frag_a<P, false>(a, A, row, 16 * s);
        for (int p = 0; p < P; p++) {
            a[p][0] = keep0 ? a[p][0] : 0, a[p][2] = keep0 ? a[p][2] : 0;
            a[p][1] = keep1 ? a[p][1] : 0, a[p][3] = keep1 ? a[p][3] : 0;
        }
#pragma unroll
        for (int n = 0; n < N; n++)
            if (n >= lo && n < hi) {
                uint32_t b[PB][4];
                frag_b<PB, TRANS>(b, m, 16 * s, 16 * n);
                product<P, PB>(acc[2 * n], acc[2 * n + 1], a, b);
            }
    }
}

/* The same with A a 16 x 64 matrix in registers, of which the 16-column pieces lo <= piece < hi are not zero. */
template <int P, int N>
__device__ inline void times_held(float (&acc)[2 * N][4], const uint32_t (&A)[4][COMPUTED][4], struct operand m,
                                  int lo, int hi)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        if (s >= lo && s < hi)
#pragma unroll
            for (int n = 0; n < N; n++) {
                uint32_t b[P][4];
                frag_b<P, false>(b, m, 16 * s, 16 * n);
                product<COMPUTED, P>(acc[2 * n], acc[2 * n + 1], A[s], b);
            }
}

/* A 16 x 64 result as the A of the next product. */
__device__ inline void hold(uint32_t (&A)[4][COMPUTED][4], const float (&c)[8][4])
{
    for (int s = 0; s < 4; s++)
        for (int i = 0; i < 4; i++) {
            uint32_t r[COMPUTED];
            split<COMPUTED>(r, c[2 * s + i / 2][i % 2 * 2], c[2 * s + i / 2][i % 2 * 2 + 1]);
            for (int p = 0; p < COMPUTED; p++)
                A[s][p][i] = r[p];
        }
}

/* Is the pair of a read t and a write s of one document in order? */
__device__ inline bool paired(int s, int first, int last) { return (unsigned)(s - first) <= (unsigned)(last - first); }

template <int N> __device__ inline void clear(float (&c)[N][4])
{
    for (int n = 0; n < N; n++)
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.f;
}

/* The lane's two rows times w0 and w1. */
template <int N> __device__ inline void scale_rows(float (&c)[N][4], float w0, float w1)
{
    for (int n = 0; n < N; n++) {
        c[n][0] *= w0, c[n][1] *= w0;
        c[n][2] *= w1, c[n][3] *= w1;
    }
}

/* scale exp(L_t - L_s) a_t.b_s for the warp's rows t and all s of their documents up to t. */
__device__ inline void weigh_reads(uint32_t (&held)[4][COMPUTED][4], const struct tile *w, float (&c)[8][4], int row,
                                   float scale)
{
    const int lane = threadIdx.x % 32, t[2] = { row + lane / 4, row + lane / 4 + 8 };
    const float2 to[2] = { w->total[t[0] + 2], w->total[t[1] + 2] };
    const int first[2] = { w->first[t[0]], w->first[t[1]] };

#pragma unroll
    for (int n = 0; n < 8; n++)
        for (int j = 0; j < 2; j++) {
            const int s = 8 * n + lane % 4 * 2 + j;
            const float2 from = w->total[s + 2];
            for (int half = 0; half < 2; half++)
                c[n][2 * half + j] *= paired(s, first[half], t[half]) ? scale * ratio(to[half], from) : 0.f;
        }
    hold(held, c);
}

/* Rows row.. of the tile, columns [from, from+n) of a head. */
template <typename X, bool W, int N>
__device__ inline void store_rows(const struct tensor &y, int64_t t0, int rows, int head, int from, int n, int row,
                                  const float (&c)[N][4])
{
    const int l = threadIdx.x % 32;

    for (int half = 0; half < 2; half++) {
        const int r = row + l / 4 + 8 * half;
        X *to = (X *)y.data + (t0 + r) * y.row + (int64_t)head * y.dim[2] + from + l % 4 * 2;
        if (r >= rows)
            continue;
#pragma unroll
        for (int b = 0; b < N; b++) {
            const float u[2] = { c[b][2 * half], c[b][2 * half + 1] };
            if (W) {
                if (8 * b < n)
                    store_n<2>(to + 8 * b, u);
            } else
                for (int i = 0; i < 2; i++)
                    if (8 * b + l % 4 * 2 + i < n)
                        store(to + 8 * b + i, u[i]);
        }
    }
}
#endif
