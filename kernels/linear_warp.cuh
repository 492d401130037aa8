/* linear_warp.cuh - small memories: one warp takes one head of a document, or of a piece of it, from end to end.
 *
 * It walks in chunks of 16 tokens and keeps the memory, or its gradient, in registers. Within a chunk the equations
 * are those of a tile. Chunks lie in the row's tiles, so the slots are those of the other kernels; tokens of other
 * documents count as zeros that nothing fades. Positions are counted from the piece's first token.
 *
 * A row of many documents needs no other kernel. One of few is cut at every piece-th token, where a walk finds its
 * memory in the tile's slot and its gradient in the carry of the tile before. Values of more than 32 columns are
 * shared out: each of several warps has 32. All but dv is a sum over them. */
#ifndef LINEAR_WARP_CUH
#define LINEAR_WARP_CUH
#include "linear_tile.cuh"

enum { CHUNK = 16, CHUNKS = TILE / CHUNK };

__device__ inline int lane(void) { return threadIdx.x % 32; }

/* A chunk of the inputs in shared memory, then of the results: o, or dq, dk, dv. KT, VT: blocks of 16 columns. */
template <int KT, int VT> struct alignas(16) chunk {
    bf16 q[CHUNK][16 * KT + 8], k[CHUNK][16 * KT + 8], v[CHUNK][16 * VT + 8], g[CHUNK][16 * VT + 8];
};
template <int LD> __device__ inline struct operand piece(const bf16 (&m)[CHUNK][LD]) { return { m[0], LD, 0 }; }

struct walk {                            /* the warp's tokens: the first or the last of the document? */
    int64_t from;
    int     n, doc, h, v;                /* v: the first of its columns */
    bool    opens, closes;
};

/* First the beginnings of all documents, then what begins at the cuts. */
__device__ inline struct walk walk_of(const struct linear &x, int64_t index, int v)
{
    const int64_t unit = index / x.H, cut = (unit - x.N) * x.piece;
    const bool opens = unit < x.N;
    const int doc = opens ? (int)unit : x.seq[cut];
    const int64_t from = opens ? x.start[doc] : cut, end = x.start[doc + 1];
    const int64_t to = x.piece ? min(end, (from / x.piece + 1) * x.piece) : end;

    if (!opens && x.start[doc] == cut)
        return { from, 0, doc, 0, v, false, false };
    return { from, (int)(to - from), doc, (int)(index % x.H), v, opens, to == end };
}
__device__ inline bool inside(const struct walk &w, int at) { return (unsigned)at < (unsigned)w.n; }
__device__ inline bool touches(const struct walk &w, int at) { return at < w.n && at + CHUNK > 0; }

/* The memory from the warp's first row on; NULL where there is none. */
__device__ inline float *own(const struct linear &x, const struct walk &w, float *m)
{
    return m ? m + w.v * x.K : NULL;
}

/* Column c of the head's row at a position, which may lie outside. */
__device__ inline bf16 *at_row(const struct tensor &m, const struct walk &w, int at, int c)
{
    return (bf16 *)m.data + (w.from * m.row + w.h * (int)m.dim[2] + c) + (int64_t)at * (int)m.row;
}

template <int LD>
__device__ inline void fetch_rows(bf16 (&to)[CHUNK][LD], const struct tensor &m, const struct walk &w, int at, int c0)
{
    constexpr int packs = (LD - 8) / 8;

#pragma unroll
    for (int j = 0; j < CHUNK * packs / 32; j++) {
        const int i = lane() + 32 * j, r = i / packs, c = i % packs * 8;
        copy_async(&to[r][c], at_row(m, w, at + r, c0 + c), inside(w, at + r) && c0 + c < m.dim[2]);
    }
}

/* Asks for the chunk at a position, as one group of copies; go is wanted in backward. */
template <int KT, int VT>
__device__ inline void fetch(struct chunk<KT, VT> *to, const struct linear &x, const struct walk &w, int at, bool go)
{
    if (touches(w, at)) {
        fetch_rows(to->k, x.k, w, at, 0);
        fetch_rows(to->v, x.v, w, at, w.v);
        fetch_rows(to->q, x.q, w, at, 0);
        if (go)
            fetch_rows(to->g, x.go, w, at, w.v);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int LATER> __device__ inline void copies_wait_but(void)    /* all but the last groups are there */
{
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
    __syncwarp();
}

/* A 16 x 8 N result to shared memory, and from there to its tensor. */
template <int LD, int N> __device__ inline void put_rows(bf16 (&to)[CHUNK][LD], const float (&c)[N][4])
{
    for (int n = 0; n < N; n++)
        for (int half = 0; half < 2; half++)
            *(uint32_t *)&to[lane() / 4 + 8 * half][8 * n + lane() % 4 * 2] =
                pack_bf16(c[n][2 * half], c[n][2 * half + 1]);
}
template <int LD>
__device__ inline void write_rows(const struct tensor &m, const bf16 (&from)[CHUNK][LD], const struct walk &w, int at,
                                  int c0)
{
    constexpr int packs = (LD - 8) / 8;

#pragma unroll
    for (int j = 0; j < CHUNK * packs / 32; j++) {
        const int i = lane() + 32 * j, r = i / packs, c = i % packs * 8;
        if (m.data && inside(w, at + r) && c0 + c < m.dim[2])
            *(uint4 *)at_row(m, w, at + r, c0 + c) = *(const uint4 *)&from[r][c];
    }
}

/* The decays of the tile's tokens, two a lane, and their running sums over each chunk, in powers of two. */
__device__ inline void fetch_decays(float (&u)[2], const struct linear &x, const struct walk &w, int at)
{
    for (int i = 0; i < 2; i++) {
        const int t = at + lane() + 32 * i;
        u[i] = inside(w, t) ? ((const float *)x.decay.data)[(w.from + t) * x.decay.row + w.h] : 0.f;
    }
}
__device__ inline void sum_decays(float2 (&total)[CHUNKS][CHUNK], const float (&u)[2])
{
    __syncwarp();
    for (int i = 0; i < 2; i++) {
        double L = u[i] * 1.4426950408889634;
        for (int step = 1; step < CHUNK; step *= 2) {
            const double y = __shfl_up_sync(0xffffffffu, L, step, CHUNK);
            L += lane() % CHUNK >= step ? y : 0;
        }
        total[lane() / CHUNK + 2 * i][lane() % CHUNK] = make_float2((float)L, (float)(L - (float)L));
    }
    __syncwarp();
}

/* The sums at the lane's two rows and four columns of a 16 x 16 piece, and at its end. */
struct sums { float2 row[2], col[4], end; };
__device__ inline struct sums sums_of(const float2 (&total)[CHUNK])
{
    const int r = lane() / 4, c = lane() % 4 * 2;

    return { { total[r], total[r + 8] }, { total[c], total[c + 1], total[c + 8], total[c + 9] }, total[CHUNK - 1] };
}
__device__ inline float whole(float2 a) { return power(a.x + a.y); }

/* A 16 x 16 result as the A of the next product. */
__device__ inline void hold_piece(uint32_t (&A)[COMPUTED][4], const float (&left)[4], const float (&right)[4])
{
    for (int i = 0; i < 4; i++) {
        uint32_t r[COMPUTED];
        if (i < 2)
            split<COMPUTED>(r, left[2 * i], left[2 * i + 1]);
        else
            split<COMPUTED>(r, right[2 * i - 4], right[2 * i - 3]);
        for (int p = 0; p < COMPUTED; p++)
            A[p][i] = r[p];
    }
}

/* Lanes hold a 16 x 16 matrix as an A as they hold its transpose as a B, with the middle two exchanged. */
template <int P> __device__ inline void exchange(uint32_t (&to)[P][4], const uint32_t (&from)[P][4])
{
    for (int p = 0; p < P; p++)
        to[p][0] = from[p][0], to[p][1] = from[p][2], to[p][2] = from[p][1], to[p][3] = from[p][3];
}

/* Row s of a B times w[s]. */
__device__ inline void weigh(uint32_t (&to)[COMPUTED][4], const uint32_t (&b)[4], const float (&w)[4])
{
    for (int i = 0; i < 4; i++) {
        uint32_t r[COMPUTED];
        split<COMPUTED>(r, __uint_as_float(b[i] << 16) * w[i % 2 * 2],
                        __uint_as_float(b[i] & 0xffff0000u) * w[i % 2 * 2 + 1]);
        for (int p = 0; p < COMPUTED; p++)
            to[p][i] = r[p];
    }
}

template <int M, int N> __device__ inline void scale_all(float (&m)[M][N][4], float by)
{
    for (int i = 0; i < M; i++)
        scale_rows(m[i], by, by);
}

/* Can warps walk over this? Then piece is set. */
bool linear_walks(const struct dev *d, const struct seqs *s, struct linear *x);
void linear_walk_forward (struct dev *d, const struct linear *x);
void linear_walk_backward(struct dev *d, const struct linear *x);

/* Heads of pieces. */
static inline unsigned walk_units(const struct linear *x)
{
    return (unsigned)((x->N + (x->piece ? ceil_div(x->T, x->piece) : 0)) * x->H);
}

/* W: warps per head. */
#define FOR_WALK(x, KT_, VT_, W_, ...) do { \
    if ((x)->K <= 16 && (x)->V <= 16)      { constexpr int KT_ = 1, VT_ = 1, W_ = 1; __VA_ARGS__; } \
    else if ((x)->K <= 16 && (x)->V <= 32) { constexpr int KT_ = 1, VT_ = 2, W_ = 1; __VA_ARGS__; } \
    else if ((x)->V <= 32)                 { constexpr int KT_ = 2, VT_ = 2, W_ = 1; __VA_ARGS__; } \
    else                                   { constexpr int KT_ = 2, VT_ = 2, W_ = 2; __VA_ARGS__; } } while (0)
#endif
