/* linear.cuh - what the kernels of the linear scan share: a tile of 64 tokens of one head.
 *
 * Within a tile, with L the running sum of the decay and all pairs masked to one document,
 *
 *   o_t = sum_{s<=t} exp(L_t - L_s) (q_t.k_s) v_s + exp(L_t - L_0) S q_t
 *
 * S is the memory before the document's first token in the tile: the tile's slot for the document that
 * is there when it begins, else the state carried in. Backward mirrors it: G is the gradient of the
 * memory after the document's last token in the tile, the tile's carry or the gradient of next. */
#ifndef LINEAR_CUH
#define LINEAR_CUH
#include "mma.cuh"
#include "scan.h"
#include "sheet.cuh"

enum { TILE = SEQ_TILE, THREADS = 128, BLOCK = 64, LD = BLOCK + 8 };      /* BLOCK: rows and columns of a memory at once */

struct linear {
    struct tensor q, k, v, o, decay, state, next;
    struct tensor go, gq, gk, gv, gdecay, gstate, gnext;
    float        *slot, *carry;          /* [tiles,H,V,K] S at the start and G at the end of each tile */
    float        *keep_slot, *keep_carry;/* [tiles,H] what remains of the slot before, or the carry after, in this one */
    float        *part_q, *part_k;       /* [T,H,K] gradients per head when heads share q or k */
    const int32_t *start, *seq;
    int64_t       T;
    int           H, K, V, Kp, Vp, Vr;   /* padded to 16; Vr: columns of v that shared memory holds at once */
    bool          wide_k, wide_v, wide_m;/* may rows of q and k, of v and o, of memories be moved in packs? */
    float         scale;
};

struct tile {
    float sum[TILE + 1], rest[TILE + 1]; /* decay of the first i tokens in powers of two: sum + rest, to 2^-48 */
    int   doc[TILE];                     /* -1 beyond the row */
    int   n;
};

__device__ inline void tile_open(struct tile *w, const struct linear &x, int64_t t0, int h)
{
    __shared__ double half;
    const int i = threadIdx.x, n = (int)min((int64_t)TILE, x.T - t0);
    double L = 0;

    if (i < TILE) {
        if (i < n)
            L = (double)((const float *)x.decay.data)[(t0 + i) * x.decay.row + h] * 1.4426950408889634;
        for (int step = 1; step < 32; step *= 2) {
            const double y = __shfl_up_sync(0xffffffffu, L, step);
            L += i % 32 >= step ? y : 0;
        }
        if (i == 31)
            half = L;
        w->doc[i] = i < n ? x.seq[t0 + i] : -1;
        w->n      = n;
    }
    __syncthreads();
    if (i < TILE) {
        L += i >= 32 ? half : 0;
        w->sum[i + 1]  = (float)L;
        w->rest[i + 1] = (float)(L - (float)L);
    }
    if (i == 0)
        w->sum[0] = w->rest[0] = 0.f;
    __syncthreads();
}

/* What remains after tokens [a,b) of the tile. */
__device__ inline float remains(const struct tile *w, int a, int b)
{
    return exp2f(w->sum[b] - w->sum[a] + (w->rest[b] - w->rest[a]));
}

/* First and last token of a document within the tile. */
__device__ inline int doc_first(const struct linear &x, int64_t t0, int doc) { return (int)max((int64_t)0, x.start[doc] - t0); }
__device__ inline int doc_last(const struct linear &x, const struct tile *w, int64_t t0, int doc)
{
    return (int)min((int64_t)w->n, x.start[doc + 1] - t0) - 1;
}

__device__ inline float *memory_of(const struct linear &x, const struct tensor &m, int doc, int h)
{
    return m.data ? (float *)m.data + doc * m.row + (int64_t)h * x.V * x.K : NULL;
}
__device__ inline float *memory_in(const struct linear &x, float *m, int64_t tile, int h)
{
    return m + (tile * x.H + h) * x.V * x.K;
}

/* Planes of an input in shared memory. What is computed here, pairs and memories, always has two: its error
 * would otherwise be as large as that of rounding the result. */
template <typename X> constexpr int planes(void) { return sizeof(X) == 4 ? 2 : 1; }
constexpr int COMPUTED = 2;

__device__ inline void copy_async(bf16 *to, const bf16 *from, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(valid ? 16 : 0));
}
__device__ inline void copies_wait(void) { asm volatile("cp.async.wait_all;"); }

/* Eight neighbours into planes of shared memory. */
template <int P> __device__ inline void put_split(bf16 *to, int plane, const float (&u)[8])
{
    uint32_t r[4][P];

    for (int i = 0; i < 4; i++)
        split<P>(r[i], u[2 * i], u[2 * i + 1]);
    for (int p = 0; p < P; p++)
        *(uint4 *)(to + p * plane) = make_uint4(r[0][p], r[1][p], r[2][p], r[3][p]);
}

/* Eight elements of row t from column c, zeros from column n on. */
template <typename X> __device__ inline void get_eight(float (&u)[8], const X *row, int c, int n, bool wide)
{
    if (wide && c < n)
        load_n<8>(u, row + c);
    else
        for (int i = 0; i < 8; i++)
            u[i] = c + i < n ? load(row + c + i) : 0.f;
}

/* Columns [from, from+n) of a head, the tile's rows, to shared memory; zeros up to np columns and TILE rows.
 * Copies of bf16 are asynchronous: copies_wait() before the barrier. */
template <typename X>
__device__ inline void stage(bf16 *to, int ld, const struct tensor &m, int64_t t0, int rows, int head, int from, int n,
                             int np, bool wide)
{
    const int packs_ = np / 8;
    const X *base = (const X *)m.data + t0 * m.row + (int64_t)head * m.dim[2] + from;

    for (int i = threadIdx.x; i < TILE * packs_; i += THREADS) {
        const int r = i / packs_, c = i % packs_ * 8;
        const bool valid = r < rows && c < n && m.data;
        bf16 *at = to + r * ld + c;
        if constexpr (sizeof(X) == 2)
            if (wide && m.data) {
                copy_async(at, (const bf16 *)base + (valid ? r * m.row + c : 0), valid);
                continue;
            }
        float u[8] = {};
        if (valid)
            get_eight<X>(u, base + r * m.row, c, n, wide);
        put_split<planes<X>()>(at, TILE * ld, u);
    }
}

/* Rows [v, v+nv) and columns [k, k+nk) of a memory to shared memory, zeros up to multiples of 16; returns this
 * thread's share of the product with another memory, 0 without one. */
__device__ inline float stage_memory(bf16 *to, const struct linear &x, const float *m, const float *other, int v, int k)
{
    const int nv = min(BLOCK, x.Vp - v), nk = min(BLOCK, x.Kp - k) / 8;
    float dot = 0.f;

    for (int i = threadIdx.x; i < nv * nk; i += THREADS) {
        const int r = i / nk, c = i % nk * 8;
        const int64_t at = (int64_t)(v + r) * x.K + k;
        float u[8] = {}, y[8];
        if (v + r < x.V) {
            get_eight<float>(u, m + at, c, x.K - k, x.wide_m);
            if (other) {
                get_eight<float>(y, other + at, c, x.K - k, x.wide_m);
                for (int j = 0; j < 8; j++)
                    dot += u[j] * y[j];
            }
        }
        put_split<COMPUTED>(to + r * LD + c, BLOCK * LD, u);
    }
    return dot;
}

/* acc += A[row..+16, ka..+16*steps] B, columns of B in blocks of 16: lo <= block < hi. Rows of A that are not
 * kept count as zero. */
template <int P, int PB, bool TRANS>
__device__ inline void times(float (&acc)[8][4], struct operand A, int row, struct operand B, int steps, int lo, int hi,
                             bool keep0 = true, bool keep1 = true)
{
    for (int s = 0; s < steps; s++) {
        uint32_t a[P][4];
        frag_a<P, false>(a, A, row, 16 * s);
        for (int p = 0; p < P; p++) {
            a[p][0] = keep0 ? a[p][0] : 0, a[p][2] = keep0 ? a[p][2] : 0;
            a[p][1] = keep1 ? a[p][1] : 0, a[p][3] = keep1 ? a[p][3] : 0;
        }
#pragma unroll
        for (int n = 0; n < 4; n++)
            if (n >= lo && n < hi) {
                uint32_t b[PB][4];
                frag_b<PB, TRANS>(b, B, 16 * s, 16 * n);
                product<P, PB>(acc[2 * n], acc[2 * n + 1], a, b);
            }
    }
}

/* The same with A a 16 x 64 matrix in registers, of which the 16-column pieces lo <= piece < hi are not zero. */
template <int P>
__device__ inline void times_held(float (&acc)[8][4], const uint32_t (&A)[4][COMPUTED][4], struct operand B, int lo, int hi,
                                  int blocks)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        if (s >= lo && s < hi)
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (n < blocks) {
                    uint32_t b[P][4];
                    frag_b<P, false>(b, B, 16 * s, 16 * n);
                    product<COMPUTED, P>(acc[2 * n], acc[2 * n + 1], A[s], b);
                }
}

/* A result as the A of the next product. */
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

__device__ inline void clear(float (&c)[8][4])
{
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.f;
}

/* The lane's two rows times w0 and w1. */
__device__ inline void scale_rows(float (&c)[8][4], float w0, float w1)
{
    for (int n = 0; n < 8; n++) {
        c[n][0] *= w0, c[n][1] *= w0;
        c[n][2] *= w1, c[n][3] *= w1;
    }
}

/* Rows row.. of the tile, columns [from, from+n) of a head. */
template <typename X>
__device__ inline void store_rows(const struct tensor &y, int64_t t0, int rows, int head, int from, int n, int row,
                                  const float (&c)[8][4], bool wide)
{
    const int l = threadIdx.x % 32;

    for (int half = 0; half < 2; half++) {
        const int r = row + l / 4 + 8 * half;
        X *to = (X *)y.data + (t0 + r) * y.row + (int64_t)head * y.dim[2] + from;
        if (r >= rows)
            continue;
#pragma unroll
        for (int b = 0; b < 8; b++) {
            const int k = 8 * b + l % 4 * 2;
            const float u[2] = { c[b][2 * half], c[b][2 * half + 1] };
            if (wide && k < n)
                store_n<2>(to + k, u);
            else
                for (int i = 0; i < 2; i++)
                    if (k + i < n)
                        store(to + k + i, u[i]);
        }
    }
}

/* Steps of the scan; linear_states.cu. */
void linear_slots  (struct dev *d, const struct linear *x, enum dtype type);      /* fills slot */
void linear_next   (struct dev *d, const struct linear *x, enum dtype type, int64_t N);
void linear_carries(struct dev *d, const struct linear *x, enum dtype type);      /* fills carry */
void linear_gstate (struct dev *d, const struct linear *x, enum dtype type, int64_t N);
struct linear linear_of(const struct seqs *s, const struct scan_io *x);
int64_t linear_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward);
void linear_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch);
#endif
