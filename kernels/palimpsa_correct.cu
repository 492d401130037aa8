/* palimpsa_correct.cu - what the gradient that comes in at a segment's end adds to the segment.
 *
 * With f_t the product of a over the tokens after t and G, H the gradient of M and J at the end,
 *
 *   dv += f G k    db += f H (k*k)    dk += f (G' v + 2 k * (H' b))
 *
 * are products of matrices: on tensor cores, all fp32 factors in two bf16 parts. A block owns a tile of one head
 * and takes the rows of the memory BV at a time. ddecay is summed back through the tile from f <M,G> + f <J,H> at
 * the tile's end, where the memory is known. */
#include "palimpsa_mma.cuh"
#include "palimpsa_stage.cuh"

enum { THREADS = 128 };
#define NOTHING 17.f            /* exp(-17): less than the rounding of what is there already */

template <int K, int BV> struct correct_shared {
    bf16  G[2][BV][K + 8], H[2][BV][K + 8];     /* high and low */
    bf16  k[TILE][K + 8], kk[2][TILE][K + 8];
    bf16  v[TILE][BV + 8], b[TILE][BV + 8];
    float after[TILE], f[TILE];                 /* decay from after a token to the end; f, 0 before a document */
    float y[TILE];                              /* -v dv - b db */
    float part[4];
};

struct spot { int64_t t0, segment, end; int h; };       /* a tile's first token; its segment and where that ends */

/* Sum of a over the block. */
__device__ float block_sum(float part[4], float a)
{
    a = warp_sum(a);
    if (threadIdx.x % 32 == 0)
        part[threadIdx.x / 32] = a;
    __syncthreads();
    return part[0] + part[1] + part[2] + part[3];
}

/* f of every token of the tile, one warp. rest: decay from the tile's end to the segment's; open: first token of the
 * document that reaches that end. */
template <int K, int BV>
__device__ void shares(struct correct_shared<K, BV> *sh, const struct scan_io &x, const struct spot &at, int64_t open,
                       float rest)
{
    const int   lane = threadIdx.x;
    const float x0 = forgetting(x, at.t0 + lane, at.h), x1 = forgetting(x, at.t0 + 32 + lane, at.h);
    float a[2] = { x0, x1 };

    suffix(a);
    sh->after[lane] = rest + a[0] - x0, sh->after[lane + 32] = rest + a[1] - x1;
    sh->f[lane] = at.t0 + lane >= open ? expf(x0 - rest - a[0]) : 0.f;
    sh->f[lane + 32] = at.t0 + 32 + lane >= open ? expf(x1 - rest - a[1]) : 0.f;
}

template <int K, int BV>
__device__ void fetch_keys(struct correct_shared<K, BV> *sh, const struct scan_io &x, const struct spot &at)
{
    SPREAD(i, TILE * K / 8, THREADS,
        const int r = i / (K / 8), c = i % (K / 8) * 8;
        fetch(&sh->k[r][c], key_at<bf16>(x, at.t0 + r, at.h) + c, true));
}

/* v0: first row. */
template <int K, int BV>
__device__ void fetch_values(struct correct_shared<K, BV> *sh, const struct scan_io &x, const struct spot &at, int v0)
{
    SPREAD(i, TILE * BV / 8, THREADS,
        const int r = i / (BV / 8), c = i % (BV / 8) * 8;
        fetch(&sh->v[r][c], head_at<bf16>(x.v, at.t0 + r, at.h) + v0 + c, true);
        fetch(&sh->b[r][c], head_at<bf16>(x.beta, at.t0 + r, at.h) + v0 + c, true));
}

/* Every thread squares what it fetched itself. */
template <int K, int BV>
__device__ void square_keys(struct correct_shared<K, BV> *sh)
{
    SPREAD(i, TILE * K / 8, THREADS,
        const int r = i / (K / 8), c = i % (K / 8) * 8;
        float a[8];
        unpack(a, *(const uint4 *)&sh->k[r][c]);
        for (int e = 0; e < 8; e++)
            a[e] *= a[e];
        split(&sh->kk[0][r][c], &sh->kk[1][r][c], a));
}

/* Rows v0.. of the gradient; returns this thread's share of <M,G> + <J,H>, memory after the tile. */
template <int K, int BV>
__device__ float load_rows(struct correct_shared<K, BV> *sh, const struct scan_io &x, const struct tiled &w,
                           const struct spot &at, int v0)
{
    float dot = 0.f;

    for (int i = threadIdx.x; i < BV * K / 8; i += THREADS) {
        const int r = i / (K / 8), c = i % (K / 8) * 8;
        const float2 *gh = (const float2 *)w.grad + ((at.segment * w.H + at.h) * w.V + v0 + r) * K + c;
        const float *M = memory_at(x.saved[0], at.t0 / TILE + 1, at.h, v0 + r) + c;
        const float *J = memory_at(x.saved[1], at.t0 / TILE + 1, at.h, v0 + r) + c;
        float g[8], h[8];
        for (int e = 0; e < 8; e += 2) {
            const float4 a = *(const float4 *)(gh + e);
            const float2 m = *(const float2 *)(M + e), j = *(const float2 *)(J + e);
            g[e] = a.x, h[e] = a.y, g[e + 1] = a.z, h[e + 1] = a.w;
            dot += m.x * a.x + j.x * a.y + m.y * a.z + j.y * a.w;
        }
        split(&sh->G[0][r][c], &sh->G[1][r][c], g);
        split(&sh->H[0][r][c], &sh->H[1][r][c], h);
    }
    return dot;
}

/* Columns c and c + 1 of a token's gradient; NULL when nobody wants it. */
__device__ inline uint32_t *pair_at(const struct tensor &to, int64_t t, int h, int c)
{
    return to.data ? (uint32_t *)(head_at<bf16>(to, t, h) + c) : NULL;
}

__device__ inline uint32_t seen(const uint32_t *p) { return p ? *p : 0; }

__device__ inline void add_pair(uint32_t *p, uint32_t was, float a, float b)
{
    if (p)
        *p = pair(low(was) + a, high(was) + b);
}

/* dv and db of a warp's 16 tokens; y: of tokens i and i + 8. What is added to is on its way before the products. */
template <int K, int BV>
__device__ void add_rows(const struct correct_shared<K, BV> *sh, const struct scan_io &g, const struct spot &at, int v0,
                         float y[2])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = lane / 4, j = lane % 4, q = lane / 8, r = lane % 8;

#pragma unroll 1
    for (int n0 = 0; n0 < BV; n0 += 16) {
        float dv[2][4] = {}, db[2][4] = {};
        uint32_t wv[2][2], wb[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const int row = warp * 16 + i + 8 * z, c = v0 + n0 + n * 8 + 2 * j;
                wv[n][z] = seen(pair_at(g.v, at.t0 + row, at.h, c));
                wb[n][z] = seen(pair_at(g.beta, at.t0 + row, at.h, c));
            }
#pragma unroll 2
        for (int k0 = 0; k0 < K; k0 += 16) {
            const int row = warp * 16 + (q & 1) * 8 + r, col = k0 + (q >> 1) * 8;
            const int grow = n0 + (q >> 1) * 8 + r, gcol = k0 + (q & 1) * 8;
            const struct frag k = blocks(&sh->k[row][col]);
            const struct frag kh = blocks(&sh->kk[0][row][col]), kl = blocks(&sh->kk[1][row][col]);
            const struct frag gh = blocks(&sh->G[0][grow][gcol]), gl = blocks(&sh->G[1][grow][gcol]);
            const struct frag hh = blocks(&sh->H[0][grow][gcol]), hl = blocks(&sh->H[1][grow][gcol]);
            for (int n = 0; n < 2; n++) {
                mma(dv[n], k, gh.at[2 * n], gh.at[2 * n + 1]);
                mma(db[n], kh, hh.at[2 * n], hh.at[2 * n + 1]);
                mma(dv[n], k, gl.at[2 * n], gl.at[2 * n + 1]);
                mma(db[n], kl, hh.at[2 * n], hh.at[2 * n + 1]);
                mma(db[n], kh, hl.at[2 * n], hl.at[2 * n + 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const int row = warp * 16 + i + 8 * z, c = n0 + n * 8 + 2 * j;
                const float f = sh->f[row], a0 = f * dv[n][2 * z], a1 = f * dv[n][2 * z + 1];
                const float b0 = f * db[n][2 * z], b1 = f * db[n][2 * z + 1];
                const uint32_t v = *(const uint32_t *)&sh->v[row][c], b = *(const uint32_t *)&sh->b[row][c];
                y[z] -= low(v) * a0 + high(v) * a1 + low(b) * b0 + high(b) * b1;
                add_pair(pair_at(g.v, at.t0 + row, at.h, v0 + c), wv[n][z], a0, a1);
                add_pair(pair_at(g.beta, at.t0 + row, at.h, v0 + c), wb[n][z], b0, b1);
            }
    }
}

/* dk of a warp's 16 tokens: as it is so far, then with what is added. */
template <int K>
__device__ inline float2 key_so_far(const struct scan_io &g, const struct tiled &w, const struct spot &at, int row,
                                    int c)
{
    if (w.dk)
        return *(const float2 *)(w.dk + ((at.t0 + row) * w.H + at.h) * K + c);
    const uint32_t u = seen(pair_at(g.k, at.t0 + row, at.h, c));
    return make_float2(low(u), high(u));
}

template <int K>
__device__ inline void put_key(const struct scan_io &g, const struct tiled &w, const struct spot &at, int row, int c,
                               float a, float b)
{
    if (w.dk)
        *(float2 *)(w.dk + ((at.t0 + row) * w.H + at.h) * K + c) = make_float2(a, b);
    else if (g.k.data)
        *pair_at(g.k, at.t0 + row, at.h, c) = pair(a, b);
}

template <int K, int BV>
__device__ void add_cols(const struct correct_shared<K, BV> *sh, const struct scan_io &g, const struct tiled &w,
                         const struct spot &at)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = lane / 4, j = lane % 4, q = lane / 8, r = lane % 8;

#pragma unroll 1
    for (int n0 = 0; n0 < K; n0 += 16) {
        float dg[2][4] = {}, dh[2][4] = {};
        float2 was[2][2];
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int z = 0; z < 2; z++)
                was[n][z] = key_so_far<K>(g, w, at, warp * 16 + i + 8 * z, n0 + n * 8 + 2 * j);
#pragma unroll 1
        for (int k0 = 0; k0 < BV; k0 += 16) {
            const int row = warp * 16 + (q & 1) * 8 + r, col = k0 + (q >> 1) * 8;
            const int grow = k0 + (q & 1) * 8 + r, gcol = n0 + (q >> 1) * 8;
            const struct frag v = blocks(&sh->v[row][col]), b = blocks(&sh->b[row][col]);
            const struct frag gh = blocks_turned(&sh->G[0][grow][gcol]), gl = blocks_turned(&sh->G[1][grow][gcol]);
            const struct frag hh = blocks_turned(&sh->H[0][grow][gcol]), hl = blocks_turned(&sh->H[1][grow][gcol]);
            for (int n = 0; n < 2; n++) {
                mma(dg[n], v, gh.at[2 * n], gh.at[2 * n + 1]);
                mma(dh[n], b, hh.at[2 * n], hh.at[2 * n + 1]);
                mma(dg[n], v, gl.at[2 * n], gl.at[2 * n + 1]);
                mma(dh[n], b, hl.at[2 * n], hl.at[2 * n + 1]);
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int z = 0; z < 2; z++) {
                const int row = warp * 16 + i + 8 * z, c = n0 + n * 8 + 2 * j;
                const float f = sh->f[row];
                const uint32_t k = *(const uint32_t *)&sh->k[row][c];
                const float a = f * (dg[n][2 * z] + 2.f * low(k) * dh[n][2 * z]);
                const float b = f * (dg[n][2 * z + 1] + 2.f * high(k) * dh[n][2 * z + 1]);
                put_key<K>(g, w, at, row, c, was[n][z].x + a, was[n][z].y + b);
            }
    }
}

/* ddecay of the tile from y and its value after the tile; one warp. */
template <int K, int BV>
__device__ void add_decay(const struct correct_shared<K, BV> *sh, const struct scan_io &x, const struct scan_io &g,
                          const struct tiled &w, const struct spot &at, int64_t open, float from)
{
    const int lane = threadIdx.x;

    for (int z = 1; z >= 0; z--) {
        const int64_t t = at.t0 + 32 * z + lane;
        float s = sh->y[32 * z + lane];
        for (int o = 1; o < 32; o *= 2) {
            const float y = __shfl_down_sync(~0u, s, o);
            s += lane + o < 32 ? y : 0.f;
        }
        if (t > open || (t == open && x.state[0].data)) {
            if (w.decay)
                w.decay[t * w.H + at.h] += from + s;
            else if (g.decay.data)
                *head_at<float>(g.decay, t, at.h) += from + s;
        }
        from += __shfl_sync(~0u, s, 0);
    }
}

/* The gradient of the memory that the document brought along. */
template <int K>
__device__ void add_state(const struct scan_io &g, const struct tiled &w, const struct spot &at, int64_t doc, float f)
{
    const int64_t size = w.V * K;
    const float2 *from = (const float2 *)w.grad + (at.segment * w.H + at.h) * size;
    float *M = memory_at(g.state[0], doc, at.h, 0), *J = memory_at(g.state[1], doc, at.h, 0);

    for (int64_t i = threadIdx.x; i < size; i += THREADS) {
        if (M)
            M[i] += f * from[i].x;
        if (J)
            J[i] += f * from[i].y;
    }
}

/* As many blocks a multiprocessor as shared memory holds, or one less for K = 16: without spills. */
template <int K, int BV>
__global__ void __launch_bounds__(THREADS, K == 16 ? 7 : K <= 64 ? 4 : 2)
correct_kernel(struct scan_io x, struct scan_io g, struct tiled w)
{
    extern __shared__ __align__(16) char shared[];
    struct correct_shared<K, BV> *sh = (struct correct_shared<K, BV> *)shared;
    const int64_t seg = blockIdx.y + blockIdx.y / ((unsigned)w.period - 1);     /* the last of a period has no blocks */
    const int64_t end = (seg + 1) * w.segment;
    const struct spot at = { end - (blockIdx.x + 1) * TILE, seg, end, (int)blockIdx.z };
    const int64_t doc = w.docs.seq[at.end - 1], open = w.docs.start[doc];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float y[2] = {}, dot = 0.f;

    const float rest = w.rest[at.t0 / TILE * w.H + at.h];
    if (rest > NOTHING || at.t0 + TILE <= open || opens(w, at.end))
        return;
    fetch_keys(sh, x, at);
    for (int v0 = 0; v0 < w.V; v0 += BV) {
        fetch_values(sh, x, at, v0);
        if (warp == 0 && v0 == 0)
            shares(sh, x, at, open, rest);
        dot += load_rows(sh, x, w, at, v0);
        fetched();
        if (v0 == 0)
            square_keys(sh);
        __syncthreads();
        add_rows(sh, g, at, v0, y);
        add_cols(sh, g, w, at);
        __syncthreads();
    }
#pragma unroll
    for (int z = 0; z < 2; z++) {
        y[z] += __shfl_xor_sync(~0u, y[z], 1);
        y[z] += __shfl_xor_sync(~0u, y[z], 2);
        if (lane % 4 == 0)
            sh->y[warp * 16 + lane / 4 + 8 * z] = y[z];
    }
    dot = block_sum(sh->part, dot);
    if (warp == 0)
        add_decay(sh, x, g, w, at, open, expf(-rest) * dot);
    if (open >= at.t0)
        add_state<K>(g, w, at, doc, expf(-sh->after[open - at.t0] - forgetting(x, open, at.h)));
}

template <int K, int BV>
static void launch(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w)
{
    const int  bytes = sizeof(struct correct_shared<K, BV>);
    const int64_t cuts = w->segments - 1;               /* of these the ends of periods are ends of documents */
    const dim3 grid((unsigned)(w->segment / TILE), (unsigned)(cuts - cuts / w->period), (unsigned)w->H);

    CUDA(cudaFuncSetAttribute(correct_kernel<K, BV>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    correct_kernel<K, BV><<<grid, THREADS, bytes, stream_of(d)>>>(*x, *g, *w);
    CUDA(cudaGetLastError());
}

void palimpsa_correct(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w)
{
    if (w->period < 2)
        return;
    palimpsa_chain(d, w, w->grad, w->grad_kept, 2 * w->V * x->k.dim[2], w->segments, true);
    switch (x->k.dim[2]) {
    case 16:  launch<16, 32>(d, x, g, w);  break;
    case 48:  launch<48, 48>(d, x, g, w);  break;
    case 64:  launch<64, 32>(d, x, g, w);  break;
    case 96:  launch<96, 48>(d, x, g, w);  break;
    case 128: launch<128, 32>(d, x, g, w); break;
    default:  BUG("no correct kernel for K = %d", (int)x->k.dim[2]);
    }
}
