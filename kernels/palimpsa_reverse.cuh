/* palimpsa_reverse.cuh - the shape of a unit of palimpsa_reverse.cu and what its warps share. */
#ifndef PALIMPSA_REVERSE_CUH
#define PALIMPSA_REVERSE_CUH
#include "palimpsa_tiled.cuh"

enum { STEP = 8, STEPS = TILE / STEP, PART = 2 };    /* tokens staged at a time; tokens whose sums are handed over at a time */
enum { WALKERS = 8, PORTERS = 4, THREADS = 32 * (WALKERS + PORTERS) };

static constexpr int padded(int n, int to) { return n + ((to - n % 32) + 32) % 32; }     /* n' >= n, n' % 32 == to */

/* KT x VT elements a lane; KS warps share the columns and VW the rows. */
template <int KT_, int KS_, int VT_, int VW_> struct form {
    static constexpr int KT = KT_, KS = KS_, VT = VT_, VW = VW_, SIZE = KT * VT;
    static constexpr int K = 4 * KT * KS, BV = 8 * VT * VW, walkers = KS * VW, units = WALKERS / walkers;
    static constexpr int porters = PORTERS / units, PT = 32 * porters;
    /* strides at which the 16-byte stores of a quarter warp touch different banks */
    static constexpr int KP = padded(2 * K, KT == 8 ? 4 : 16), VP = padded(2 * BV, VT == 6 ? 8 : 4);
};

template <class F> struct raw_step { uint4 k[STEP * F::K / 8], q[STEP * F::K / 8], v[STEP * F::BV / 8], b[STEP * F::BV / 8], g[STEP * F::BV / 8]; };
template <class F> struct step {
    float key[STEP][2 * F::K], query[STEP][F::K];       /* (k*k / 2, k) */
    float value[STEP][2 * F::BV], grad[STEP][F::BV];    /* m (2 b, v); scale do */
};
template <class F> struct sums {                        /* of PART tokens, each lane's own */
    float col[PART][8 * F::VW][F::KP];                  /* (dq, dk) */
    float row[PART][4 * F::KS][F::VP];                  /* (db / 2m, dv / m) */
    float all[PART][32 * F::walkers];                   /* what ddecay is made of */
};

/* What is to be done in one tile. Bits are tokens; token T counts as a document's first. */
struct plan {
    float    m[TILE], enter[TILE];      /* m; at a block's first token m a: what turns the memory before it into M' */
    uint64_t ends, opens;               /* a block ends with the token; a document begins with it */
    int64_t  t0;                        /* first token */
    int      h, v0, segment, part;      /* head, first row; which segment, which rows */
    int      sweep;                     /* steps to walk forward first */
    unsigned keep;                      /* bit p: keep the memory before step p for later */
    bool     work, first, last;         /* anything at all; first and last tile of its segment */
};

template <class F> struct unit {
    struct raw_step<F> raw[2];
    struct step<F>     step[2];
    struct sums<F>     sums[2];
    struct plan        plan[2];
    float    part[2][PART][4];          /* sums over a porter warp */
    uint64_t full[2], used[2];          /* barriers: step ready for walkers, free for porters */
    uint64_t summed[2], cleared[2];     /* sums ready for porters, free for walkers */
};

__device__ inline void barrier_open(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_at(b)), "r"(count) : "memory");
}
/* One arrival of a warp, when all its lanes are done. */
__device__ inline void barrier_arrive(uint64_t *b)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(shared_at(b)) : "memory");
}
/* Waits for the end of phase `turn` (0, 1, ...) of a barrier. */
__device__ inline void barrier_wait(uint64_t *b, int turn)
{
    int done;

    do
        asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                     : "=r"(done) : "r"(shared_at(b)), "r"(turn & 1) : "memory");
    while (!done);
}
#endif
