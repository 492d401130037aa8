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
#include "common.cuh"
#include "scan.h"

enum { TILE = SEQ_TILE, THREADS = 128, LARGEST = 256 };

struct linear {
    struct tensor q, k, v, o, decay, state, next;
    struct tensor go, gq, gk, gv, gdecay, gstate, gnext;
    float        *slot, *carry;          /* [tiles,H,V,K] S at the start and G at the end of each tile */
    float        *keep_slot, *keep_carry;/* [tiles,H] what remains of the slot before, the carry after, in this one */
    float        *part_q, *part_k;       /* [T,H,K] gradients per head when heads share q or k */
    const int32_t *start, *seq;
    int64_t       T, N;                  /* N: sequences, or the room for them when none brings or leaves a memory */
    int64_t       piece;                 /* tokens that a warp walks over, or 0 (linear_warp.cuh) */
    int           H, K, V, B;            /* memories are worked on in blocks of 16 B x 16 B */
    int           Kp, Vp, Vr;            /* padded to blocks; Vr: columns of v that shared memory holds at once */
    bool          wide;                  /* may rows of everything be moved in packs of eight? */
    float         scale;
};

struct tile {
    float2 total[TILE + 2];              /* [i+1]: decay of the first i tokens, in powers of two, as two floats' sum */
    int    first[TILE], last[TILE];      /* of the token's document in this tile */
    int    doc[TILE];                    /* -1 beyond the row */
    int    n;
};

__device__ inline float ratio(float2 a, float2 b) { return power(a.x - b.x + (a.y - b.y)); }
/* What remains after tokens [a,b) of the tile. */
__device__ inline float remains(const struct tile *w, int a, int b) { return ratio(w->total[b + 1], w->total[a + 1]); }

/* The sum is taken in double: strong decays add up to thousands while weak ones still count. */
__device__ inline void tile_open(struct tile *w, const struct linear &x, int64_t t0, int h)
{
    __shared__ double half;
    const int i = threadIdx.x, n = (int)min((int64_t)TILE, x.T - t0);
    double L = 0;

    if (i < TILE) {
        const int doc = i < n ? x.seq[t0 + i] : -1;
        if (i < n)
            L = (double)((const float *)x.decay.data)[(t0 + i) * x.decay.row + h] * 1.4426950408889634;
        w->doc[i]   = doc;
        w->first[i] = doc < 0 ? i : (int)max((int64_t)0, x.start[doc] - t0);
        w->last[i]  = doc < 0 ? i : (int)min((int64_t)n, x.start[doc + 1] - t0) - 1;
        for (int step = 1; step < 32; step *= 2) {
            const double y = __shfl_up_sync(0xffffffffu, L, step);
            L += i % 32 >= step ? y : 0;
        }
        if (i == 31)
            half = L;
        w->n = n;
    }
    __syncthreads();
    if (i < TILE) {
        L += i >= 32 ? half : 0;
        w->total[i + 2] = make_float2((float)L, (float)(L - (float)L));
    }
    if (i == 0)
        w->total[1] = make_float2(0.f, 0.f);
    __syncthreads();
}

__device__ inline float *memory_of(const struct linear &x, const struct tensor &m, int doc, int h)
{
    return m.data ? (float *)m.data + doc * m.row + (int64_t)h * x.V * x.K : NULL;
}
__device__ inline float *memory_in(const struct linear &x, float *m, int64_t tile, int h)
{
    return m + (tile * x.H + h) * x.V * x.K;
}

/* Run the statements with the type of the activations, the size of the blocks and whether rows are moved in
 * packs. Small blocks are for what trains. */
#define LINEAR_CASE(T_, X, B_, b, W, w, ...) { typedef T_ X; constexpr int B_ = b; constexpr bool W = w; __VA_ARGS__; }
#define FOR_LINEAR(y, X, B_, W, ...) do { \
    if ((y)->B == 3)                           LINEAR_CASE(bf16, X, B_, 3, W, true, __VA_ARGS__) \
    else if ((y)->q.type == BF16 && (y)->wide) LINEAR_CASE(bf16, X, B_, 4, W, true, __VA_ARGS__) \
    else if ((y)->q.type == BF16)              LINEAR_CASE(bf16, X, B_, 4, W, false, __VA_ARGS__) \
    else if ((y)->wide)                        LINEAR_CASE(float, X, B_, 4, W, true, __VA_ARGS__) \
    else                                       LINEAR_CASE(float, X, B_, 4, W, false, __VA_ARGS__) } while (0)

/* Lets a kernel have so many bytes of shared memory. */
template <typename F> static inline void linear_room(const struct dev *d, F kernel, int bytes)
{
    if (bytes > cuda_of(d)->shared - 8192)
        BUG("linear scan: needs %d bytes of shared memory, the device has %d", bytes, cuda_of(d)->shared);
    CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
}

/* Steps of the scan. */
void linear_slots  (struct dev *d, const struct linear *x);      /* fills slot */
void linear_next   (struct dev *d, const struct linear *x, int64_t N);
void linear_carries(struct dev *d, const struct linear *x);      /* fills carry */
void linear_gstate (struct dev *d, const struct linear *x, int64_t N);
void linear_size(struct linear *x);      /* the last fields, once all tensors are there */
struct linear linear_of(const struct seqs *s, const struct scan_io *x);
int64_t linear_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward);
void linear_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch);
void linear_step(struct dev *d, const struct linear *x, int64_t N);
#endif
