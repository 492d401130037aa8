/* linear_walk.cu - forward of the linear scan for small memories: a warp reads and writes along a document. */
#include "linear_warp.cuh"

/* A lane's pair of neighbours in piece (i,n) of the warp's part of a memory: where it lies, or -1. */
__device__ inline int pair_at(const struct linear &x, const struct walk &w, int i, int n, int half)
{
    const int v = 16 * i + lane() / 4 + 8 * half, k = 8 * n + lane() % 4 * 2;

    return w.v + v < x.V && k < x.K ? v * x.K + k : -1;
}

template <int VT, int KN>
__device__ inline void load_memory(float (&S)[VT][KN][4], const struct linear &x, const struct walk &w, const float *m)
{
    for (int i = 0; i < VT; i++)
        for (int n = 0; n < KN; n++)
            for (int half = 0; half < 2; half++) {
                const int at = pair_at(x, w, i, n, half);
                const float2 u = m && at >= 0 ? *(const float2 *)(m + at) : make_float2(0.f, 0.f);
                S[i][n][2 * half] = u.x, S[i][n][2 * half + 1] = u.y;
            }
}
template <int VT, int KN>
__device__ inline void store_memory(float *m, const struct linear &x, const struct walk &w, const float (&S)[VT][KN][4])
{
    for (int i = 0; i < VT; i++)
        for (int n = 0; n < KN; n++)
            for (int half = 0; half < 2; half++) {
                const int at = pair_at(x, w, i, n, half);
                if (m && at >= 0)
                    *(float2 *)(m + at) = make_float2(S[i][n][2 * half], S[i][n][2 * half + 1]);
            }
}

/* scale exp(L_t - L_s) q_t.k_s for s <= t: of the four quarters one is zero. */
template <int KT>
__device__ inline void weigh_pairs(uint32_t (&pairs)[COMPUTED][4], const uint32_t (&q)[KT][1][4], struct operand k,
                                   const struct sums &L, float scale)
{
    const int t = lane() / 4, s = lane() % 4 * 2;
    float c[2][4];

    clear(c);
    for (int i = 0; i < KT; i++) {
        uint32_t b[1][4];
        frag_b<1, true>(b, k, 16 * i, 0);
        product<1, 1>(c[0], c[1], q[i], b);
    }
    for (int n = 0; n < 2; n++)
        for (int half = 0; half < 2; half++)
            for (int j = 0; j < 2; j++)
                c[n][2 * half + j] *= n < half || (n == half && s + j <= t)
                                    ? scale * ratio(L.row[half], L.col[2 * n + j]) : 0.f;
    hold_piece(pairs, c[0], c[1]);
    for (int p = 0; p < COMPUTED; p++)
        pairs[p][2] = 0;
}

/* o of a chunk, into g; S becomes the memory after it. */
template <int KT, int VT>
__device__ inline void read_chunk(struct chunk<KT, VT> *a, float (&S)[VT][2 * KT][4], const float2 (&total)[CHUNK],
                                  float scale)
{
    const struct sums L = sums_of(total);
    const float w0 = scale * whole(L.row[0]), w1 = scale * whole(L.row[1]);
    uint32_t q[KT][1][4], pairs[COMPUTED][4], v[VT][1][4], k[KT][COMPUTED][4];
    float o[2 * VT][4], w[4];

    for (int i = 0; i < KT; i++)
        frag_a<1, false>(q[i], piece(a->q), 0, 16 * i);
    for (int i = 0; i < VT; i++)
        frag_b<1, false>(v[i], piece(a->v), 0, 16 * i);
    weigh_pairs<KT>(pairs, q, piece(a->k), L, scale);
    clear(o);
    for (int i = 0; i < VT; i++)
        for (int j = 0; j < KT; j++) {
            uint32_t b[COMPUTED][4], c[COMPUTED][4];
            hold_piece(c, S[i][2 * j], S[i][2 * j + 1]);
            exchange<COMPUTED>(b, c);
            product<1, COMPUTED>(o[2 * i], o[2 * i + 1], q[j], b);
        }
    scale_rows(o, w0, w1);
    for (int i = 0; i < VT; i++)
        product<COMPUTED, 1>(o[2 * i], o[2 * i + 1], pairs, v[i]);
    put_rows(a->g, o);

    for (int i = 0; i < 4; i++)
        w[i] = ratio(L.end, L.col[i]);
    scale_all(S, whole(L.end));
    for (int j = 0; j < KT; j++) {
        uint32_t b[1][4];
        frag_b<1, false>(b, piece(a->k), 0, 16 * j);
        weigh(k[j], b[0], w);
    }
    for (int i = 0; i < VT; i++) {
        uint32_t A[1][4];
        exchange<1>(A, v[i]);
        for (int j = 0; j < KT; j++)
            product<1, COMPUTED>(S[i][2 * j], S[i][2 * j + 1], A, k[j]);
    }
}

template <int KT, int VT, int W>
__global__ void __launch_bounds__(32) walk_kernel(const __grid_constant__ struct linear x)
{
    __shared__ struct chunk<KT, VT> room[CHUNKS];
    __shared__ float2 total[CHUNKS][CHUNK];
    const struct walk w = walk_of(x, blockIdx.x / W, 16 * VT * (int)(blockIdx.x % W));
    const int before = (int)(w.from % TILE);
    float S[VT][2 * KT][4], decay[2];

    if (!w.opens && !w.n)
        return;
    load_memory(S, x, w, own(x, w, w.opens ? memory_of(x, x.state, w.doc, w.h)
                                          : memory_in(x, x.slot, w.from / TILE, w.h)));
    for (int c = 0; c < CHUNKS; c++)
        fetch(&room[c], x, w, CHUNK * c - before, false);
    fetch_decays(decay, x, w, -before);
    for (int t0 = -before; t0 < w.n; t0 += TILE) {
        sum_decays(total, decay);
        fetch_decays(decay, x, w, t0 + TILE);
        if (x.slot && !x.piece && t0 >= 0)
            store_memory(own(x, w, memory_in(x, x.slot, (w.from + t0) / TILE, w.h)), x, w, S);
#pragma unroll 1
        for (int c = 0; c < CHUNKS; c++) {
            const int at = t0 + CHUNK * c;
            copies_wait_but<CHUNKS - 1>();
            if (touches(w, at)) {
                read_chunk<KT, VT>(&room[c], S, total[c], x.scale);
                __syncwarp();
                write_rows(x.o, room[c].g, w, at, w.v);
            }
            __syncwarp();
            fetch(&room[c], x, w, at + TILE, false);
        }
    }
    if (!x.piece)                        /* else others may still have to read what lies there */
        store_memory(own(x, w, memory_of(x, x.next, w.doc, w.h)), x, w, S);
}

/* Whole documents are faster when the tiles' kernels take longer than the walk over the longest. Pieces are as long
 * as they can be with work for all. */
bool linear_walks(const struct dev *d, const struct seqs *s, struct linear *x)
{
    const int64_t work = seqs_tiles(s) * x->H, enough = 16 * cuda_of(d)->sms;

    x->piece = x->T * x->H >= 256 * seqs_about(s->longest) ? 0 : TILE * (work <= enough ? 1 : work / enough);
    return x->wide && x->q.type == BF16 && x->K <= 32 && x->V <= 64 && x->q.dim[1] == x->H && x->k.dim[1] == x->H;
}

void linear_walk_forward(struct dev *d, const struct linear *x)
{
    FOR_WALK(x, KT, VT, W, walk_kernel<KT, VT, W><<<W * walk_units(x), 32, 0, stream_of(d)>>>(*x));
    CUDA(cudaGetLastError());
}
