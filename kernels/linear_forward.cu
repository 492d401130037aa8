/* linear_forward.cu - what the linear scan reads, a tile at a time; linear_step.cu does short documents. */
#include "linear_warp.cuh"

/* Weight of the memory that token i of the tile reads; 0 when its document began with none. */
__device__ inline float source_weight(const struct linear &x, const struct tile *w, int i)
{
    if (w->doc[i] < 0 || (w->doc[i] != w->doc[0] && !x.state.data))
        return 0.f;
    return remains(w, w->first[i], i + 1);
}

/* One block per head of a tile, one warp per 16 tokens. The pairs q_t.k_s stay in the warp's registers. */
template <typename X, int B, bool W>
__global__ void __launch_bounds__(THREADS) read_kernel(const __grid_constant__ struct linear x)
{
    extern __shared__ __align__(16) bf16 room[];
    __shared__ struct tile w;
    constexpr int P = planes<X>(), N = 16 * B;
    const int64_t tile = blockIdx.x / x.H, t0 = tile * TILE;
    const int h = (int)(blockIdx.x % x.H), rows = (int)min((int64_t)TILE, x.T - t0);
    const int warp = warp_index(), row = 16 * warp, r0 = row + threadIdx.x % 32 / 4, r1 = r0 + 8;
    const struct operand q = { room, x.Kp + 8, TILE * (x.Kp + 8) }, k = { room + P * q.plane, q.ld, q.plane };
    const struct operand v = { (bf16 *)k.at + P * k.plane, x.Vr + 8, TILE * (x.Vr + 8) };
    const struct operand m = { (bf16 *)v.at + P * v.plane, memory_ld<B>(), memory_plane<B>() };
    uint32_t pairs[4][COMPUTED][4];

    stage<X, B, W>(q, x.q, t0, rows, (int)(h * x.q.dim[1] / x.H), 0, x.Kp, x.K);
    stage<X, B, W>(k, x.k, t0, rows, (int)(h * x.k.dim[1] / x.H), 0, x.Kp, x.K);
    stage<X, B, W>(v, x.v, t0, rows, h, 0, x.Vr, x.V);
    stage_memory<B, W>((bf16 *)m.at, x, memory_in(x, x.slot, tile, h), NULL, 0, 0);
    tile_open(&w, x, t0, h);
    copies_wait();
    __syncthreads();

    const int d0 = w.doc[0], d1 = x.state.data ? w.doc[rows - 1] : d0;
    const float w0 = source_weight(x, &w, r0), w1 = source_weight(x, &w, r1);
    {
        float c[8][4];
        clear(c);
        for (int kb = 0; kb < x.Kp; kb += N)
            times<P, P, true, B, 4>(c, cols(q, kb), row, cols(k, kb), 0, warp + 1);
        weigh_reads(pairs, &w, c, row, 1.f);
    }
    for (int vb = 0; vb < x.V; vb += N) {
        float c[2 * B][4];
        if (vb && x.Vr < x.Vp) {
            __syncthreads();
            stage<X, B, W>(v, x.v, t0, rows, h, vb, vb + N, x.V);
            copies_wait();
        }
        clear(c);
        for (int doc = d0; doc <= d1; doc++) {
            const float *S = doc == d0 ? memory_in(x, x.slot, tile, h) : memory_of(x, x.state, doc, h);
            if (doc != d0 && x.start[doc] == x.start[doc + 1])
                continue;
            for (int kb = 0; kb < x.K; kb += N) {
                if (doc != d0 || kb || vb) {     /* the first block is there already */
                    __syncthreads();
                    stage_memory<B, W>((bf16 *)m.at, x, S, NULL, vb, kb);
                    __syncthreads();
                }
                times<P, COMPUTED, true, B, B>(c, cols(q, kb), row, m, 0, B, w.doc[r0] == doc, w.doc[r1] == doc);
            }
        }
        scale_rows(c, w0, w1);
        times_held<P, B>(c, pairs, x.Vr < x.Vp ? v : cols(v, vb), 0, warp + 1);
        scale_rows(c, x.scale, x.scale);
        store_rows<X, W>(x.o, t0, rows, h, vb, min(N, x.V - vb), row, c);
    }
}

static int pad(int n, int to)
{
    return (n + to - 1) / to * to;
}

static bool packs_all(const struct linear *x)
{
    const struct tensor t[] = { x->q, x->k, x->v, x->o, x->go, x->gq, x->gk, x->gv,
                                x->state, x->next, x->gstate, x->gnext };

    for (size_t i = 0; i < LEN(t); i++)
        if (!packs(t[i], 8))
            return false;
    return x->K % 8 == 0 && x->V % 8 == 0;
}

void linear_size(struct linear *x)
{
    const bool half = x->q.type == BF16;

    x->wide = packs_all(x);
    x->B    = half && x->wide && pad(x->K, 48) * pad(x->V, 48) < pad(x->K, 64) * pad(x->V, 64) ? 3 : 4;
    x->Kp   = pad(x->K, 16 * x->B);
    x->Vp   = pad(x->V, 16 * x->B);
    x->Vr   = half ? x->Vp : 64;         /* F32 takes two planes: not all of a wide v fits */
}

struct linear linear_of(const struct seqs *s, const struct scan_io *x)
{
    struct linear y = {};

    y.q = x->q, y.k = x->k, y.v = x->v, y.o = x->o;
    y.decay = x->decay, y.state = x->state[0], y.next = x->next[0];
    y.start = s->dstart;
    y.seq   = s->dseq;
    y.T     = s->tokens;
    y.N     = y.state.data || y.next.data ? s->n : max64(s->n, s->room);
    y.H     = (int)x->v.dim[1];
    y.K     = (int)x->k.dim[2];
    y.V     = (int)x->v.dim[2];
    y.scale = x->scale;
    if (y.K > LARGEST || y.V > LARGEST)
        BUG("linear scan: keys of %d and values of %d, at most %d each", y.K, y.V, LARGEST);
    linear_size(&y);
    return y;
}

static void read_launch(struct dev *d, const struct linear *x)
{
    FOR_LINEAR(x, X, B, W,
        const int inputs = planes<X>() * TILE * (2 * (x->Kp + 8) + x->Vr + 8);
        const int bytes = (int)sizeof(bf16) * (inputs + COMPUTED * memory_plane<B>());
        linear_room(d, read_kernel<X, B, W>, bytes);
        read_kernel<X, B, W><<<(unsigned)(ceil_div(x->T, TILE) * x->H), THREADS, (size_t)bytes, stream_of(d)>>>(*x));
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
            linear_step(d, &y, s->n);
        return;
    }
    const bool walks = linear_walks(d, s, &y);
    if (walks && !y.piece) {
        y.slot = (float *)x->saved[0].data;
        if (s->n)
            linear_walk_forward(d, &y);
        return;
    }
    y.slot      = (float *)(x->saved[0].data ? x->saved[0].data : scratch);
    y.keep_slot = (float *)scratch + (x->saved[0].data ? 0 : tiles * y.H * y.V * y.K);
    if (tiles) {
        linear_slots(d, &y);
        if (walks)
            linear_walk_forward(d, &y);
        else
            read_launch(d, &y);
    }
    if (y.next.data)
        linear_next(d, &y, s->n);
}
