/* palimpsa_reverse.cuh - the shape of a block of palimpsa_reverse.cu and what its threads share. */
#ifndef PALIMPSA_REVERSE_CUH
#define PALIMPSA_REVERSE_CUH
#include "palimpsa_stage.cuh"

enum { BATCH = 4 };             /* tokens whose sums are carried away at a time */
#define LOSS 6.f                /* blocks are cut so that exp(-decay) grows rounding errors by about e^6, at most e^9 */

static constexpr int padded(int n, int to) { return n + ((to - n % 32) + 32) % 32; }     /* n' >= n, n' % 32 == to */

/* KT x VT elements a lane; KS warps share the columns. */
template <int KT_, int KS_, int VT_> struct form {
    static constexpr int KT = KT_, KS = KS_, VT = VT_, SIZE = KT * VT, K = 4 * KT * KS, BV = 8 * VT, threads = 32 * KS;
    /* strides at which the 16-byte stores of a quarter warp touch different banks */
    static constexpr int KP = padded(2 * K, 16), VP = padded(2 * BV, 8);
    static constexpr bool few = SIZE <= 16;             /* elements a lane, so that it has registers to spare */
};

/* What is to be done in one tile. Bits are tokens; token T counts as a document's first. */
struct plan {
    float    m[TILE], c[TILE];          /* m; m Ip */
    float    enter[TILE];               /* at a block's first token m a: what turns the memory before it into M' */
    uint64_t ends, opens;               /* a block ends with the token; a document begins with it */
    struct place k, q, v, b, g, dq, dk, dv, db;         /* g: do */
    int64_t  t0;
    int      h, v0, segment, part;      /* head, first row; which segment, which rows */
    int      left, sweep;               /* tokens that are there; steps to walk forward first */
    unsigned keep;                      /* bit p: keep the memory before step p for later */
    float    Ip, sum;                   /* sum: decay from the tile's start to the segment's end */
    bool     last, open;                /* last tile of its segment; has a document begun in the segment? */
};

template <class F> struct alignas(16) shared {
    struct raw_step<F> raw;
    bf16  raw_g[STEP][F::BV];
    float key[STEP][2 * F::K], query[STEP][F::K];       /* (k*k / 2, k) */
    float value[STEP][2 * F::BV], grad[STEP][F::BV];    /* m (2 b, v); scale do */
    float col[BATCH][8][F::KP];                         /* (dq, dk) of a batch, each lane's own */
    float row[BATCH][4 * F::KS][F::VP];                 /* (db / 2m, dv / m) */
    float own[BATCH][F::threads];                       /* ddecay less the next token's */
    float y[TILE];                                      /* the same, summed */
    struct plan plan[2];
    int   job;
};
#endif
