/* palimpsa_tiled.cuh - what the kernels of the tiled path share: its scratch, and the order of its work.
 *
 *   forward   palimpsa_states.cu   what each span of the row adds to the memory; then its start
 *             palimpsa_read.cu     every token from its span's start; saves the memory before each tile
 *   backward  palimpsa_reverse.cu  every segment of the row as if no gradient came in at its end
 *             palimpsa_states.cu   the gradient that does come in at each segment's end
 *             palimpsa_correct.cu  what it adds
 *
 * Everywhere x = -decay, cut at 90: exp(-90) is 0 for a float that anything else is added to. */
#ifndef PALIMPSA_TILED_CUH
#define PALIMPSA_TILED_CUH
#include "palimpsa.cuh"

enum { TILE = SEQ_TILE };

struct tiled {                  /* scratch of one call; a memory [V,K] here is pairs (M,J) */
    struct docs docs;
    int64_t T, H, V, spans, span_tokens, segments, segment;     /* tokens of a span, a segment: whole tiles */
    int64_t period;             /* of so many spans or segments the first surely begins with a document */
    const uint64_t *opens;      /* [tiles] a bit for each token that begins a document, token T too */
    float  *span, *kept;        /* forward [spans,H,V,K,2] [spans,H]: what a span adds and leaves, then its start */
    float  *grad, *grad_kept;   /* backward [segments,H,V,K,2] [segments,H]: the same for gradients, from the end */
    float  *rest;               /* backward [tiles,H]: decay from a tile's end to its segment's */
    float4 *check;              /* backward: memories inside a tile, one place per unit that is running */
    int    *next;               /* the next piece of work */
    float  *dump;               /* [1024] where gradients go that nobody wants */
    float  *dq, *dk, *decay;    /* [parts,T,H,K] x2, [parts,T,H]: V in `parts` pieces; NULL: straight out */
    float  *prior;              /* [priors,H] */
    int64_t parts, priors;
    float   one;                /* 1, which the compiler cannot know: see load_memory in palimpsa_sweep.cuh */
};

void palimpsa_openings(struct dev *d, const struct tiled *w);
void palimpsa_span_states(struct dev *d, const struct scan_io *x, const struct tiled *w);
void palimpsa_chain(struct dev *d, const struct tiled *w, float *edge, const float *kept, int64_t n, int64_t count,
                    bool reverse);
void palimpsa_read(struct dev *d, const struct scan_io *x, const struct tiled *w);
void palimpsa_reverse(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w);
void palimpsa_correct(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w);

__device__ inline float forgetting(const struct scan_io &x, int64_t t, int64_t h)
{
    return t < x.v.dim[0] ? fminf(-*head_at<float>(x.decay, t, h), 90.f) : 0.f;
}

/* Does a document begin with token t? One more begins after the last token. */
__device__ inline bool opens(const struct tiled &w, int64_t t) { return t >= w.T || w.opens[t / TILE] >> t % TILE & 1; }

template <typename X> __device__ inline const X *key_at(const struct scan_io &x, int64_t t, int64_t h)
{
    return head_at<X>(x.k, t, h * x.k.dim[1] / x.v.dim[1]);
}
template <typename X> __device__ inline const X *query_at(const struct scan_io &x, int64_t t, int64_t h)
{
    return head_at<X>(x.q, t, h * x.q.dim[1] / x.v.dim[1]);
}

__device__ inline float low(uint32_t u)  { return __uint_as_float(u << 16); }
__device__ inline float high(uint32_t u) { return __uint_as_float(u & 0xffff0000u); }
__device__ inline uint32_t pair(float lo, float hi)
{
    uint32_t u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(hi), "f"(lo));
    return u;
}
__device__ inline void unpack(float f[8], uint4 u)
{
    f[0] = low(u.x), f[1] = high(u.x), f[2] = low(u.y), f[3] = high(u.y);
    f[4] = low(u.z), f[5] = high(u.z), f[6] = low(u.w), f[7] = high(u.w);
}
__device__ inline uint32_t shared_at(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* 16 bytes to shared memory in the background, or zeros when there are none. */
__device__ inline void fetch(void *to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_at(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void fetched(void) { asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory"); }
#endif
