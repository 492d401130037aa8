/* linear_walk_bwd.cu - backward of linear_walk.cu: a warp goes back along a document, a tile at a time.
 *
 * From a tile's slot it first finds the memory before each of the chunks again, then takes the chunks from the last to
 * the first, with G, the gradient of the memory after the chunk. Both are held transposed, as K rows of V. The
 * equations are those of linear_backward.cu. */
#include "linear_warp.cuh"

template <int KT, int VT> struct room {
    struct chunk<KT, VT> chunk[CHUNKS];
    float2 total[CHUNKS][CHUNK];
    float  before[CHUNKS][KT * VT * 8][32];              /* the memory before a chunk, as the lanes hold it */
    float  read[CHUNK], wrote[CHUNK], row[CHUNK];        /* as in linear_backward.cu; col is taken off read */
    float  both;                         /* exp(L_end) <S, G> */
};

/* A lane's four numbers of piece (i,n) of a memory: two of a column of K apart, at k and at k+8. */
template <int KT, int VN>
__device__ inline void load_turned(float (&S)[KT][VN][4], const struct linear &x, const struct walk &w, const float *m)
{
    for (int i = 0; i < KT; i++)
        for (int n = 0; n < VN; n++)
            for (int e = 0; e < 4; e++) {
                const int k = 16 * i + lane() / 4 + e / 2 * 8, v = 8 * n + lane() % 4 * 2 + e % 2;
                S[i][n][e] = m && k < x.K && w.v + v < x.V ? m[v * x.K + k] : 0.f;
            }
}
template <int KT, int VN>
__device__ inline void store_turned(float *m, const struct linear &x, const struct walk &w, const float (&S)[KT][VN][4])
{
    for (int i = 0; i < KT; i++)
        for (int n = 0; n < VN; n++)
            for (int e = 0; e < 4; e++) {
                const int k = 16 * i + lane() / 4 + e / 2 * 8, v = 8 * n + lane() % 4 * 2 + e % 2;
                if (k < x.K && w.v + v < x.V)
                    m[v * x.K + k] = S[i][n][e];
            }
}

__device__ inline uint32_t turned(uint32_t a)            /* the transpose of an 8 x 8 piece */
{
    uint32_t b;

    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(b) : "r"(a));
    return b;
}

/* Piece (i,j) of 16 x 16 of a memory, as the B of a product that sums over V. */
template <int KT, int VN>
__device__ inline void hold_memory(uint32_t (&b)[COMPUTED][4], const float (&m)[KT][VN][4], int i, int j)
{
    uint32_t a[COMPUTED][4];

    hold_piece(a, m[i][2 * j], m[i][2 * j + 1]);
    exchange<COMPUTED>(b, a);
}

/* m = left m + sum_t w_t a_t b_t', a and b 16 tokens held as B. */
template <int KT, int VT>
__device__ inline void add_outer(float (&m)[KT][2 * VT][4], const uint32_t (&a)[KT][1][4],
                                 const uint32_t (&b)[VT][1][4], const float (&w)[4], float left)
{
    scale_all(m, left);
    for (int i = 0; i < KT; i++) {
        uint32_t weighed[COMPUTED][4], A[COMPUTED][4];
        weigh(weighed, a[i][0], w);
        exchange<COMPUTED>(A, weighed);
        for (int j = 0; j < VT; j++)
            product<COMPUTED, 1>(m[i][2 * j], m[i][2 * j + 1], A, b[j]);
    }
}

/* The memory before each chunk of the tile, from S before the first. */
template <int KT, int VT>
__device__ inline void find_memories(struct room<KT, VT> *s, const struct walk &w, int t0, int flip,
                                     float (&S)[KT][2 * VT][4])
{
#pragma unroll 1
    for (int c = 0; c < CHUNKS; c++) {
        if (!touches(w, t0 + CHUNK * c))
            continue;
        for (int i = 0; i < KT * VT * 8; i++)
            s->before[c][i][lane()] = S[i / (VT * 8)][i / 4 % (2 * VT)][i % 4];
        if (c == CHUNKS - 1)
            break;
        const struct sums L = sums_of(s->total[c]);
        uint32_t k[KT][1][4], v[VT][1][4];
        float left[4];
        for (int i = 0; i < KT; i++)
            frag_b<1, false>(k[i], piece(s->chunk[c ^ flip].k), 0, 16 * i);
        for (int i = 0; i < VT; i++)
            frag_b<1, false>(v[i], piece(s->chunk[c ^ flip].v), 0, 16 * i);
        for (int i = 0; i < 4; i++)
            left[i] = ratio(L.end, L.col[i]);
        add_outer<KT, VT>(S, k, v, left, whole(L.end));
    }
}

/* Sum over the lanes of a row of dot products, for the lane's two rows; one of the four stores it. */
__device__ inline void store_row_sums(float *to, float a, float b)
{
    for (int step = 1; step < 4; step *= 2) {
        a += __shfl_xor_sync(0xffffffffu, a, step);
        b += __shfl_xor_sync(0xffffffffu, b, step);
    }
    if (lane() % 4 == 0)
        to[lane() / 4] = a, to[lane() / 4 + 8] = b;
}
template <int KT>
__device__ inline void store_dots(float *to, const float (&c)[2 * KT][4], const uint32_t (&a)[KT][1][4],
                                  float (&sum)[2])
{
    for (int n = 0; n < 2 * KT; n++)
        for (int half = 0; half < 2; half++) {
            const uint32_t u = a[n / 2][0][n % 2 * 2 + half];
            sum[half] += c[n][2 * half] * __uint_as_float(u << 16);
            sum[half] += c[n][2 * half + 1] * __uint_as_float(u & 0xffff0000u);
        }
    store_row_sums(to, sum[0], sum[1]);
}

/* Sums of the lane's four columns over the lanes that share them: each step halves the columns a lane has. */
__device__ inline void store_column_sums(float *to, const float (&c)[4])
{
    const int l = lane();
    const bool upper = l & 16, odd = l & 8;
    const float a = upper ? c[2] : c[0], b = upper ? c[3] : c[1];
    const float x = a + __shfl_xor_sync(0xffffffffu, upper ? c[0] : c[2], 16);
    const float y = b + __shfl_xor_sync(0xffffffffu, upper ? c[1] : c[3], 16);
    float z = (odd ? y : x) + __shfl_xor_sync(0xffffffffu, odd ? x : y, 8);

    z += __shfl_xor_sync(0xffffffffu, z, 4);
    if (!(l & 4))
        to[l % 4 * 2 + (upper ? 8 : 0) + (odd ? 1 : 0)] = z;
}

/* Rows are writes s, columns reads t, of which a quarter is zero: p = k_s.q_t and e = v_s.do_t become D p and D e.
 * Sums of D p e over s are stored, those over t taken off sum. */
template <int KT, int VT>
__device__ inline void weigh_writes(struct room<KT, VT> *r, float (&p)[2][4], float (&e)[2][4], const struct sums &L,
                                    float scale, float (&sum)[2])
{
    const int s = lane() / 4, t = lane() % 4 * 2;
    float row[4] = {};

    for (int n = 0; n < 2; n++)
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 2; j++) {
                float *pi = &p[n][2 * half + j], *ei = &e[n][2 * half + j];
                const bool ordered = half < n || (half == n && s <= t + j);
                const float D = ordered ? scale * ratio(L.col[2 * n + j], L.row[half]) : 0.f;
                const float weighed = D * *ei, E = half == n && s == t + j ? 0.f : *pi * weighed;
                sum[half] -= E;
                row[2 * n + j] += E;
                *pi *= D;
                *ei = weighed;
            }
    store_column_sums(r->row, row);
}

/* What the decays of a chunk stand between. Sums from a read to the chunk's end are taken by the lower lanes, sums of
 * the writes before a token by the upper ones, which have the tokens in reverse. */
template <int W, int KT, int VT>
__device__ inline void write_decays(const struct linear &x, const struct room<KT, VT> *all, const struct walk &w,
                                    int at)
{
    const int i = lane() % CHUNK;
    float sum = 0.f, both = 0.f;

    for (int j = 0; j < W; j++) {
        sum  += lane() < CHUNK ? all[j].read[i] + all[j].row[i] : all[j].wrote[CHUNK - 1 - i];
        both += all[j].both;
    }
    for (int step = 1; step < CHUNK; step *= 2) {
        const float y = __shfl_down_sync(0xffffffffu, sum, step, CHUNK);
        sum += i + step < CHUNK ? y : 0.f;
    }
    const float before = __shfl_sync(0xffffffffu, sum, i ? 2 * CHUNK - i : 0);
    if (x.gdecay.data && lane() < CHUNK && inside(w, at + i))
        ((float *)x.gdecay.data)[(w.from + at + i) * x.gdecay.row + w.h] = both + sum + (i ? before : 0.f);
}

/* A gradient in which the warps of a head have shares. */
template <int W, int KT, int VT, int LD>
__device__ inline void put_share(struct room<KT, VT> *r, int c, int which, bf16 (&to)[CHUNK][LD],
                                 const float (&u)[2 * KT][4])
{
    if (W == 1)
        put_rows(to, u);
    else
        for (int i = 0; i < 8 * KT; i++)
            r->before[c][8 * KT * which + i][lane()] = u[i / 4][i % 4];
}
template <int W, int KT, int VT, int LD>
__device__ inline void add_shares(bf16 (&to)[CHUNK][LD], const struct room<KT, VT> *all, int c, int which)
{
    float sum[2 * KT][4] = {};

    for (int w = 0; w < W; w++)
        for (int i = 0; i < 8 * KT; i++)
            sum[i / 4][i % 4] += all[w].before[c][8 * KT * which + i][lane()];
    put_rows(to, sum);
}

/* dv and dk, into v and k; sums of the latter. */
template <int W, int KT, int VT>
__device__ inline void write_part(struct room<KT, VT> *r, struct chunk<KT, VT> *a, int c,
                                  const float (&G)[KT][2 * VT][4], const float (&p)[2][4],
                                  const float (&e)[2][4], const uint32_t (&q)[KT][1][4],
                                  const uint32_t (&go)[VT][1][4], const struct sums &L)
{
    const float w0 = ratio(L.end, L.row[0]), w1 = ratio(L.end, L.row[1]);
    uint32_t k[KT][1][4], v[1][4], D[COMPUTED][4];
    float dv[2 * VT][4], dk[2 * KT][4], sum[2] = {};

    clear(dv);
    clear(dk);
    for (int i = 0; i < KT; i++)
        frag_a<1, false>(k[i], piece(a->k), 0, 16 * i);
    for (int j = 0; j < VT; j++) {
        frag_a<1, false>(v, piece(a->v), 0, 16 * j);
        for (int i = 0; i < KT; i++) {
            uint32_t b[COMPUTED][4], t[COMPUTED][4];
            hold_memory(b, G, i, j);
            product<1, COMPUTED>(dk[2 * i], dk[2 * i + 1], v, b);
            for (int n = 0; n < COMPUTED; n++)
                for (int z = 0; z < 4; z++)
                    t[n][z] = turned(b[n][z % 2 * 2 + z / 2]);
            product<1, COMPUTED>(dv[2 * j], dv[2 * j + 1], k[i], t);
        }
    }
    scale_rows(dv, w0, w1);
    scale_rows(dk, w0, w1);
    store_dots<KT>(r->wrote, dk, k, sum);
    hold_piece(D, p[0], p[1]);
    for (int j = 0; j < VT; j++)
        product<COMPUTED, 1>(dv[2 * j], dv[2 * j + 1], D, go[j]);
    hold_piece(D, e[0], e[1]);
    for (int i = 0; i < KT; i++)
        product<COMPUTED, 1>(dk[2 * i], dk[2 * i + 1], D, q[i]);
    __syncwarp();
    put_rows(a->v, dv);
    put_share<W>(r, c, 1, a->k, dk);
}

/* dq, into q, and its sums; returns this lane's share of <S, G>. k: the chunk's, held as B. */
template <int W, int KT, int VT>
__device__ inline float read_part(struct room<KT, VT> *r, struct chunk<KT, VT> *a, int c,
                                  const float (&G)[KT][2 * VT][4], const float (&e)[2][4],
                                  const uint32_t (&k)[KT][1][4], const struct sums &L, float scale, float (&sum)[2],
                                  float (&dq)[2 * KT][4])
{
    uint32_t q[KT][1][4], go[1][4], D[COMPUTED][4], t[COMPUTED][4];
    float S[KT][2 * VT][4], dot = 0.f;

    for (int i = 0; i < KT * VT * 8; i++) {
        const float u = r->before[c][i][lane()];
        S[i / (VT * 8)][i / 4 % (2 * VT)][i % 4] = u;
        dot += u * G[i / (VT * 8)][i / 4 % (2 * VT)][i % 4];
    }
    clear(dq);
    for (int i = 0; i < KT; i++)
        frag_a<1, false>(q[i], piece(a->q), 0, 16 * i);
    for (int j = 0; j < VT; j++) {
        frag_a<1, false>(go, piece(a->g), 0, 16 * j);
        for (int i = 0; i < KT; i++) {
            uint32_t b[COMPUTED][4];
            hold_memory(b, S, i, j);
            product<1, COMPUTED>(dq[2 * i], dq[2 * i + 1], go, b);
        }
    }
    scale_rows(dq, scale * whole(L.row[0]), scale * whole(L.row[1]));
    store_dots<KT>(r->read, dq, q, sum);
    hold_piece(D, e[0], e[1]);           /* rows s; rows t are its transpose, with nothing above the diagonal */
    for (int n = 0; n < COMPUTED; n++)
        t[n][0] = turned(D[n][0]), t[n][1] = turned(D[n][2]), t[n][2] = 0, t[n][3] = turned(D[n][3]);
    for (int i = 0; i < KT; i++)
        product<COMPUTED, 1>(dq[2 * i], dq[2 * i + 1], t, k[i]);
    return dot;
}

template <int W> __device__ inline void join(void)       /* the warps of a head */
{
    if (W == 1)
        __syncwarp();
    else
        __syncthreads();
}

/* The gradients of a chunk, in the place of its inputs; G becomes that of the memory before it. */
template <int W, int KT, int VT>
__device__ inline void reverse_chunk(struct room<KT, VT> *r, struct chunk<KT, VT> *a, const struct linear &x, int c,
                                     float (&G)[KT][2 * VT][4])
{
    const struct sums L = sums_of(r->total[c]);
    uint32_t q[KT][1][4], k[KT][1][4], go[VT][1][4], A[1][4], B[1][4];
    float p[2][4], e[2][4], weight[4], sum[2] = {}, dq[2 * KT][4];

    clear(p);
    clear(e);
    for (int i = 0; i < KT; i++) {
        frag_a<1, false>(A, piece(a->k), 0, 16 * i);
        frag_b<1, true>(B, piece(a->q), 16 * i, 0);
        product<1, 1>(p[0], p[1], A, B);
        frag_b<1, false>(q[i], piece(a->q), 0, 16 * i);
        frag_b<1, false>(k[i], piece(a->k), 0, 16 * i);
    }
    for (int i = 0; i < VT; i++) {
        frag_a<1, false>(A, piece(a->v), 0, 16 * i);
        frag_b<1, true>(B, piece(a->g), 16 * i, 0);
        product<1, 1>(e[0], e[1], A, B);
        frag_b<1, false>(go[i], piece(a->g), 0, 16 * i);
    }
    weigh_writes(r, p, e, L, x.scale, sum);
    const float dot = warp_sum(read_part<W>(r, a, c, G, e, k, L, x.scale, sum, dq));
    if (lane() == 0)
        r->both = whole(L.end) * dot;
    write_part<W>(r, a, c, G, p, e, q, go, L);
    put_share<W>(r, c, 0, a->q, dq);
    for (int i = 0; i < 4; i++)
        weight[i] = x.scale * whole(L.col[i]);
    add_outer<KT, VT>(G, q, go, weight, whole(L.end));
}

/* Stores the gradients of a chunk: of what the warps share, the first warp those of q and of the decay, the last those
 * of k. */
template <int W, int KT, int VT>
__device__ inline void write_chunk(const struct room<KT, VT> *all, struct chunk<KT, VT> *a, const struct linear &x,
                                   const struct walk &w, int at, int c)
{
    const int warp = W == 1 ? 0 : warp_index();

    join<W>();
    if (W > 1) {
        if (warp == 0)
            add_shares<W>(a->q, all, c, 0);
        if (warp == W - 1)
            add_shares<W>(a->k, all, c, 1);
        __syncwarp();
    }
    if (warp == 0) {
        write_decays<W>(x, all, w, at);
        write_rows(x.gq, a->q, w, at, 0);
    }
    if (warp == W - 1)
        write_rows(x.gk, a->k, w, at, 0);
    write_rows(x.gv, a->v, w, at, w.v);
}

/* The memory before the tile at t0, or before the document where it begins in the tile. */
template <int KT, int VT>
__device__ inline void load_before(float (&S)[KT][2 * VT][4], const struct linear &x, const struct walk &w, int t0)
{
    load_turned(S, x, w, own(x, w, t0 < 0 ? memory_of(x, x.state, w.doc, w.h)
                                          : memory_in(x, x.slot, (w.from + t0) / TILE, w.h)));
}

template <int KT, int VT, int W>
__global__ void __launch_bounds__(32 * W) back_kernel(const __grid_constant__ struct linear x)
{
    extern __shared__ __align__(16) char space[];
    struct room<KT, VT> *all = (struct room<KT, VT> *)space, *s = all + (W == 1 ? 0 : warp_index());
    const struct walk w = walk_of(x, blockIdx.x, 16 * VT * (int)(s - all));
    const int first = -(int)(w.from % TILE), last = first + (w.n - 1 - first) / TILE * TILE;
    float G[KT][2 * VT][4], S[KT][2 * VT][4], decay[2];
    int flip = 0;                        /* chunk c lies in place c ^ flip: the first chunk of a tile comes first */

    if (!w.opens && !w.n)
        return;
    load_turned(G, x, w, own(x, w, w.closes ? memory_of(x, x.gnext, w.doc, w.h)
                                            : memory_in(x, x.carry, (w.from + last) / TILE, w.h)));
    for (int c = 0; c < CHUNKS; c++)
        fetch(&s->chunk[c], x, w, last + CHUNK * c, true);
    fetch_decays(decay, x, w, last);
    if (w.n)
        load_before<KT, VT>(S, x, w, last);
    for (int t0 = last; t0 >= first && w.n; t0 -= TILE, flip ^= CHUNKS - 1) {
        sum_decays(s->total, decay);
        copies_wait_but<1>();
        find_memories<KT, VT>(s, w, t0, flip, S);
        copies_wait_but<0>();
        fetch_decays(decay, x, w, t0 - TILE);
        if (t0 > first)
            load_before<KT, VT>(S, x, w, t0 - TILE);
#pragma unroll 1
        for (int c = CHUNKS - 1; c >= 0; c--) {
            struct chunk<KT, VT> *a = &s->chunk[c ^ flip];
            if (touches(w, t0 + CHUNK * c)) {
                reverse_chunk<W>(s, a, x, c, G);
                write_chunk<W>(all, a, x, w, t0 + CHUNK * c, c);
            }
            join<W>();
            fetch(a, x, w, t0 - CHUNK * (c + 1), true);
        }
    }
    if (x.gstate.data && !x.piece)
        store_turned(own(x, w, memory_of(x, x.gstate, w.doc, w.h)), x, w, G);
}

void linear_walk_backward(struct dev *d, const struct linear *x)
{
    FOR_WALK(x, KT, VT, W,
        const int bytes = W * (int)sizeof(struct room<KT, VT>);
        linear_room(d, back_kernel<KT, VT, W>, bytes);
        back_kernel<KT, VT, W><<<walk_units(x), 32 * W, (size_t)bytes, stream_of(d)>>>(*x));
    CUDA(cudaGetLastError());
}
