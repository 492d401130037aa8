/* linear_forward.cu - what the linear scan reads: a tile at a time, or token by token for short documents. */
#include "linear.cuh"

/* Weight of the memory that token i of the tile reads; 0 when its document began with none. */
__device__ inline float source_weight(const struct linear &x, const struct tile *w, int64_t t0, int i)
{
    const int doc = w->doc[i];

    if (i >= w->n || (doc != w->doc[0] && !x.state.data))
        return 0.f;
    return remains(w, doc_first(x, t0, doc), i + 1);
}

/* One block per head of a tile, one warp per 16 tokens. The pairs q_t.k_s stay in the warp's registers. */
template <typename X>
__global__ void __launch_bounds__(THREADS) read_kernel(const __grid_constant__ struct linear x)
{
    extern __shared__ __align__(16) bf16 room[];
    __shared__ struct tile w;
    constexpr int P = planes<X>();
    const int64_t tile = blockIdx.x / x.H, t0 = tile * TILE;
    const int h = (int)(blockIdx.x % x.H), rows = (int)min((int64_t)TILE, x.T - t0);
    const int row = threadIdx.x / 32 * 16, r0 = row + threadIdx.x % 32 / 4, r1 = r0 + 8;
    const struct operand q = { room, x.Kp + 8, TILE * (x.Kp + 8) }, k = { room + P * q.plane, q.ld, q.plane };
    const struct operand v = { (bf16 *)k.at + P * k.plane, x.Vr + 8, TILE * (x.Vr + 8) };
    const struct operand m = { (bf16 *)v.at + P * v.plane, LD, BLOCK * LD };
    float c[8][4];
    uint32_t pairs[4][COMPUTED][4];

    stage<X>((bf16 *)q.at, q.ld, x.q, t0, rows, (int)(h * x.q.dim[1] / x.H), 0, x.K, x.Kp, x.wide_k);
    stage<X>((bf16 *)k.at, k.ld, x.k, t0, rows, (int)(h * x.k.dim[1] / x.H), 0, x.K, x.Kp, x.wide_k);
    stage<X>((bf16 *)v.at, v.ld, x.v, t0, rows, h, 0, min(x.V, x.Vr), x.Vr, x.wide_v);
    tile_open(&w, x, t0, h);
    copies_wait();
    __syncthreads();

    const int warp = row / 16, d0 = w.doc[0], d1 = x.state.data ? w.doc[rows - 1] : d0;
    const float w0 = source_weight(x, &w, t0, r0), w1 = source_weight(x, &w, t0, r1);
    clear(c);
    times<P, P, true>(c, q, row, k, x.Kp / 16, 0, warp + 1);
#pragma unroll
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++) {
            const int t = i < 2 ? r0 : r1, s = 8 * n + threadIdx.x % 4 * 2 + i % 2;
            c[n][i] *= s <= t && w.doc[s] == w.doc[t] ? remains(&w, s + 1, t + 1) : 0.f;
        }
    hold(pairs, c);

    for (int vb = 0; vb < x.V; vb += BLOCK) {
        const int nv = min(BLOCK, x.Vp - vb) / 16;
        if (vb && x.Vr < x.Vp) {
            __syncthreads();
            stage<X>((bf16 *)v.at, v.ld, x.v, t0, rows, h, vb, min(BLOCK, x.V - vb), BLOCK, x.wide_v);
            copies_wait();
        }
        clear(c);
        for (int doc = d0; doc <= d1; doc++) {
            const float *S = doc == d0 ? memory_in(x, x.slot, tile, h) : memory_of(x, x.state, doc, h);
            if (doc != d0 && x.start[doc] == x.start[doc + 1])
                continue;
            for (int kb = 0; kb < x.K; kb += BLOCK) {
                __syncthreads();
                stage_memory((bf16 *)m.at, x, S, NULL, vb, kb);
                __syncthreads();
                times<P, COMPUTED, true>(c, cols(q, kb), row, m, min(BLOCK, x.Kp - kb) / 16, 0, nv, w.doc[r0] == doc,
                                         w.doc[r1] == doc);
            }
        }
        scale_rows(c, w0, w1);
        times_held<P>(c, pairs, x.Vr < x.Vp ? v : cols(v, vb), 0, warp + 1, nv);
        scale_rows(c, x.scale, x.scale);
        store_rows<X>(x.o, t0, rows, h, vb, min(BLOCK, x.V - vb), row, c, x.wide_v);
    }
}

/* One warp per row of a memory of a document; lane j holds columns j, j+32, ... */
template <typename X, int C>
__global__ void __launch_bounds__(THREADS) step_kernel(const __grid_constant__ struct linear x)
{
    const int h = (int)(blockIdx.x % x.H), doc = (int)(blockIdx.x / x.H), lane = threadIdx.x % 32;
    const int64_t hq = h * x.q.dim[1] / x.H, hk = h * x.k.dim[1] / x.H, from = x.start[doc], to = x.start[doc + 1];

    for (int v = blockIdx.y * 4 + threadIdx.x / 32; v < x.V; v += gridDim.y * 4) {
        const float *S0 = memory_of(x, x.state, doc, h);
        float *S1 = memory_of(x, x.next, doc, h), S[C];
        for (int i = 0; i < C; i++) {
            const int j = lane + 32 * i;
            S[i] = S0 && j < x.K ? S0[(int64_t)v * x.K + j] : 0.f;
        }
        for (int64_t t = from; t < to; t++) {
            const X *q = (const X *)x.q.data + t * x.q.row + hq * x.K, *k = (const X *)x.k.data + t * x.k.row + hk * x.K;
            const float a = expf(((const float *)x.decay.data)[t * x.decay.row + h]);
            const float vt = load((const X *)x.v.data + t * x.v.row + (int64_t)h * x.V + v);
            float sum = 0.f;
            for (int i = 0; i < C; i++) {
                const int j = lane + 32 * i;
                if (j < x.K) {
                    S[i] = a * S[i] + vt * load(k + j);
                    sum += S[i] * load(q + j);
                }
            }
            sum = warp_sum(sum);
            if (lane == 0)
                store((X *)x.o.data + t * x.o.row + (int64_t)h * x.V + v, x.scale * sum);
        }
        for (int i = 0; i < C && S1; i++) {
            const int j = lane + 32 * i;
            if (j < x.K)
                S1[(int64_t)v * x.K + j] = S[i];
        }
    }
}

struct linear linear_of(const struct seqs *s, const struct scan_io *x)
{
    struct linear y = {};

    y.q = x->q, y.k = x->k, y.v = x->v, y.o = x->o;
    y.decay = x->decay, y.state = x->state[0], y.next = x->next[0];
    y.start = s->dstart;
    y.seq   = s->dseq;
    y.T     = s->tokens;
    y.H     = (int)x->v.dim[1];
    y.K     = (int)x->k.dim[2];
    y.V     = (int)x->v.dim[2];
    y.Kp    = (y.K + 15) / 16 * 16;
    y.Vp    = (y.V + 15) / 16 * 16;
    y.Vr    = y.Vp <= BLOCK || x->q.type == BF16 ? y.Vp : BLOCK;     /* F32 takes two planes: not all of a wide v fits */
    y.wide_k = y.K % 8 == 0 && packs(x->q, 8) && packs(x->k, 8);
    y.wide_v = y.V % 8 == 0 && packs(x->v, 8) && packs(x->o, 8);
    y.wide_m = y.K % 8 == 0 && packs(x->state[0], 8) && packs(x->next[0], 8);
    y.scale = x->scale;
    if (y.K > 256 || y.V > 256)
        BUG("linear scan: keys of %d and values of %d, at most 256 each", y.K, y.V);
    return y;
}

template <typename X> static void read_launch(struct dev *d, const struct linear *x)
{
    const int bytes = (int)sizeof(bf16) * (planes<X>() * TILE * (2 * (x->Kp + 8) + x->Vr + 8) + COMPUTED * BLOCK * LD);

    CUDA(cudaFuncSetAttribute(read_kernel<X>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    read_kernel<X><<<(unsigned)(ceil_div(x->T, TILE) * x->H), THREADS, (size_t)bytes, stream_of(d)>>>(*x);
    CUDA(cudaGetLastError());
}

static void step_launch(struct dev *d, const struct linear *x, enum dtype type, int64_t N)
{
    const dim3 grid((unsigned)(N * x->H), (unsigned)min64(ceil_div(x->V, 4), ceil_div(16 * cuda_of(d)->sms, N * x->H)));

    FOR_TYPE(type, X,
        if (x->K <= 32)       step_kernel<X, 1><<<grid, THREADS, 0, stream_of(d)>>>(*x);
        else if (x->K <= 64)  step_kernel<X, 2><<<grid, THREADS, 0, stream_of(d)>>>(*x);
        else if (x->K <= 128) step_kernel<X, 4><<<grid, THREADS, 0, stream_of(d)>>>(*x);
        else                  step_kernel<X, 8><<<grid, THREADS, 0, stream_of(d)>>>(*x));
    CUDA(cudaGetLastError());
}

int64_t linear_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward)
{
    const int64_t T = s->tokens, H = x->v.dim[1], K = x->k.dim[2], V = x->v.dim[2], tiles = seqs_tiles(s);
    int64_t floats = tiles * H;
    (void)d;

    if (backward || x->saved[0].ndim == 0)
        floats += tiles * H * V * K;
    if (backward)
        floats += ((x->q.dim[1] != H) + (x->k.dim[1] != H)) * T * H * K;
    return floats * (int64_t)sizeof(float);
}

/* Documents of a few tokens that leave no notes, as in decoding, are cheaper one token at a time. */
void linear_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch)
{
    struct linear y = linear_of(s, x);
    const int64_t tiles = seqs_tiles(s);

    if (!x->saved[0].data && s->longest <= 4) {
        if (s->n)
            step_launch(d, &y, x->q.type, s->n);
        return;
    }
    y.slot      = (float *)(x->saved[0].data ? x->saved[0].data : scratch);
    y.keep_slot = (float *)scratch + (x->saved[0].data ? 0 : tiles * y.H * y.V * y.K);
    if (tiles) {
        linear_slots(d, &y, x->q.type);
        FOR_TYPE(x->q.type, X, read_launch<X>(d, &y));
    }
    if (y.next.data)
        linear_next(d, &y, x->q.type, s->n);
}
