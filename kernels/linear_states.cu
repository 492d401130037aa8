/* linear_states.cu - the memories between the tiles of the linear scan, and their gradients.
 *
 *   S_end   = sum_s exp(L_end - L_s) v_s k_s' + exp(L_end) S
 *   G_start = sum_t exp(L_t) scale do_t q_t' + exp(L_end) G
 *
 * First every tile leaves its own sum where the next tile (backward: the one before) will look for it, then
 * a chain over the tiles adds what remains of the earlier ones. Only documents that cross the border count;
 * a document that begins with a tile brings its own memory, and one that ends with it its own gradient. */
#include "linear_tile.cuh"

enum outer { SLOT, NEXT, CARRY, GSTATE };

/* Tokens [a,b) of a tile, counted from its start, make dst = their sum + what remains of base. */
struct range { int64_t t0; int a, b; const float *base; float *dst; };

__device__ inline void copy_memory(float *to, const float *from, int n)
{
    for (int i = threadIdx.x; i < n; i += THREADS)
        to[i] = from ? from[i] : 0.f;
}

__device__ inline struct range slot_range(const struct linear &x, int64_t tile, int h)
{
    const int64_t t0 = tile * TILE, t1 = min(t0 + TILE, x.T);
    const int d0 = x.seq[t0], d1 = x.seq[t1 - 1];

    if (x.start[d0] == t0) {
        copy_memory(memory_in(x, x.slot, tile, h), memory_of(x, x.state, d0, h), x.V * x.K);
        x.keep_slot[tile * x.H + h] = 0.f;
    }
    if (x.start[d1 + 1] <= t1)
        return {};
    const bool inside = x.start[d1] > t0;
    return { t0, inside ? (int)(x.start[d1] - t0) : 0, (int)(t1 - t0), inside ? memory_of(x, x.state, d1, h) : NULL,
             memory_in(x, x.slot, tile + 1, h) };
}

__device__ inline struct range carry_range(const struct linear &x, int64_t tile, int h)
{
    const int64_t t0 = tile * TILE, t1 = min(t0 + TILE, x.T);
    const int d0 = x.seq[t0], d1 = x.seq[t1 - 1];

    if (x.start[d1 + 1] == t1) {
        copy_memory(memory_in(x, x.carry, tile, h), memory_of(x, x.gnext, d1, h), x.V * x.K);
        x.keep_carry[tile * x.H + h] = 0.f;
    }
    if (x.start[d0] >= t0)
        return {};
    const bool inside = x.start[d0 + 1] < t1;
    return { t0, 0, (int)(inside ? x.start[d0 + 1] - t0 : t1 - t0), inside ? memory_of(x, x.gnext, d0, h) : NULL,
             memory_in(x, x.carry, tile - 1, h) };
}

/* The memory after document n: next. The gradient before it: gstate. */
template <int MODE> __device__ inline struct range edge_range(const struct linear &x, int n, int h)
{
    const int64_t from = x.start[n], to = x.start[n + 1];
    float *dst = memory_of(x, MODE == NEXT ? x.next : x.gstate, n, h);
    const float *far = memory_of(x, MODE == NEXT ? x.state : x.gnext, n, h);

    if (from == to) {
        copy_memory(dst, far, x.V * x.K);
        return {};
    }
    const int64_t tile = MODE == NEXT ? (to - 1) / TILE : from / TILE, t0 = tile * TILE, t1 = min(t0 + TILE, x.T);
    if (MODE == NEXT)
        return { t0, (int)(max(from, t0) - t0), (int)(to - t0), from < t0 ? memory_in(x, x.slot, tile, h) : far, dst };
    return { t0, (int)(from - t0), (int)(min(to, t1) - t0), to > t1 ? memory_in(x, x.carry, tile, h) : far, dst };
}

/* 8 N columns of the sum from (v,k), what remains of base with it, to dst. */
template <bool W, int N, int M>
__device__ inline void store_sum(const struct linear &x, const struct range &r, float left, int v, int k,
                                 const float (&c)[M][4])
{
#pragma unroll
    for (int e = 0; e < 2 * N; e++) {
        const int row = v + threadIdx.x % 32 / 4 + e % 2 * 8, col = k + e / 2 * 8 + threadIdx.x % 4 * 2;
        const int64_t at = (int64_t)row * x.K + col;
        float u[2] = { c[e / 2][e % 2 * 2], c[e / 2][e % 2 * 2 + 1] };
        for (int j = 0; j < 2; j++)
            if (r.base && row < x.V && col + j < x.K)
                u[j] += left * r.base[at + j];
        if (W) {
            if (row < x.V && col < x.K)
                store_n<2>(r.dst + at, u);
        } else
            for (int j = 0; j < 2; j++)
                if (row < x.V && col + j < x.K)
                    r.dst[at + j] = u[j];
    }
}

/* One block per head of a tile, or of a document. */
template <int MODE, typename X, int B, bool W>
__global__ void __launch_bounds__(THREADS) outer_kernel(const __grid_constant__ struct linear x)
{
    extern __shared__ __align__(16) bf16 room[];
    __shared__ struct tile w;
    __shared__ float weight[TILE];
    constexpr bool forward = MODE == SLOT || MODE == NEXT;
    constexpr int  P = planes<X>();
    const int h = (int)(blockIdx.x % x.H);
    const int64_t unit = blockIdx.x / x.H;
    const struct range r = MODE == SLOT ? slot_range(x, unit, h) : MODE == CARRY ? carry_range(x, unit, h)
                         : edge_range<MODE>(x, (int)unit, h);
    if (!r.dst)
        return;

    const struct tensor &in = forward ? x.k : x.q;
    const X *base = (const X *)in.data + r.t0 * in.row + h * in.dim[1] / x.H * x.K;
    const struct operand a = { room, x.Vp + 8, TILE * (x.Vp + 8) };
    const struct operand b = { room + P * a.plane, x.Kp + 8, TILE * (x.Kp + 8) };
    stage<X, B, W>(a, forward ? x.v : x.go, r.t0, (int)min((int64_t)TILE, x.T - r.t0), h, 0, x.Vp, x.V);
    tile_open(&w, x, r.t0, h);

    const float left = remains(&w, r.a, r.b);
    if (MODE == SLOT && threadIdx.x == 0)
        x.keep_slot[(unit + 1) * x.H + h] = r.a == 0 ? left : 0.f;
    if (MODE == CARRY && threadIdx.x == 0)
        x.keep_carry[(unit - 1) * x.H + h] = r.b == w.n ? left : 0.f;
    if (threadIdx.x < TILE) {
        const int s = threadIdx.x;
        weight[s] = s < r.a || s >= r.b ? 0.f : forward ? remains(&w, s + 1, r.b) : x.scale * remains(&w, r.a, s + 1);
    }
    __syncthreads();
    for (int block = 0; block < x.Kp; block += 16 * B)           /* k or q times its weight: always hi + lo */
#pragma unroll
        for (int j = 0; j < TILE * 2 * B / THREADS; j++) {
            const int i = threadIdx.x + j * THREADS, s = i / (2 * B), c = block + i % (2 * B) * 8;
            float u[8] = {};
            if (s >= r.a && s < r.b && c < x.K)
                get_eight<X, W>(u, base + s * in.row, c, x.K);
            for (int e = 0; e < 8; e++)
                u[e] *= weight[s];
            put_split<2>((bf16 *)b.at + s * b.ld + c, b.plane, u);
        }
    copies_wait();
    __syncthreads();

    const int down = x.Vp / 16, across = x.Kp / (8 * B), warp = warp_index();
    for (int i = warp; i < down * across; i += THREADS / 32) {   /* pieces of 16 x 8 B, to balance four warps */
        const int v = i % down * 16, k = i / down * 8 * B;
        float c[2 * B][4];
        clear(c);
        for (int s = 0; s < TILE / 16; s++) {
            uint32_t fa[P][4], fb[2][4];
            frag_a<P, true>(fa, a, v, 16 * s);
#pragma unroll
            for (int n = 0; n < (B + 1) / 2; n++) {
                frag_b<2, false>(fb, b, 16 * s, k + 16 * n);
                product<P, 2>(c[2 * n], c[2 * n + 1], fa, fb);
            }
        }
        store_sum<W, B>(x, r, left, v, k, c);
    }
}

/* One thread per element of a memory walks over the tiles. CUT: it begins at the first of the `span` tiles of
 * blockIdx.y in which nothing is kept, and ends before the first such tile beyond them. */
template <bool CUT> __global__ void __launch_bounds__(THREADS, 4)
chain_kernel(float *memory, const float *keep, int64_t tiles, int64_t span, int64_t size, int64_t VK, int64_t H,
             bool back)
{
    constexpr int AHEAD = 16;            /* loads under way: there are few threads, and each waits for memory */
    const int64_t e = (int64_t)blockIdx.x * THREADS + threadIdx.x, h = e / VK, step = back ? -1 : 1;
    const int64_t begin = CUT ? blockIdx.y * span : 0;
    bool on = !CUT;
    float S = 0.f;

    if (e >= size)
        return;
    for (int64_t c0 = begin; c0 < tiles && (on || c0 < begin + span); c0 += AHEAD) {
        const int64_t c = back ? tiles - 1 - c0 : c0;
        float u[AHEAD], f[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            u[i] = c0 + i < tiles ? memory[(c + i * step) * size + e] : 0.f;
            f[i] = c0 + i < tiles ? keep[(c + i * step) * H + h] : 0.f;
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (CUT && f[i] == 0.f && c0 + i >= begin + span)
                return;
            on = on || f[i] == 0.f;
            S  = f[i] != 0.f ? f[i] * S + u[i] : u[i];
            if (on && f[i] != 0.f)
                memory[(c + i * step) * size + e] = S;
        }
    }
}

template <int MODE> static void outer_launch(struct dev *d, const struct linear *x, int64_t units)
{
    const int planes_ = x->q.type == F32 ? 2 : 1;
    const int bytes = (int)sizeof(bf16) * TILE * (planes_ * (x->Vp + 8) + 2 * (x->Kp + 8));

    if (units == 0)
        return;
    FOR_LINEAR(x, X, B, W,
        linear_room(d, outer_kernel<MODE, X, B, W>, bytes);
        outer_kernel<MODE, X, B, W><<<(unsigned)(units * x->H), THREADS, (size_t)bytes, stream_of(d)>>>(*x));
    CUDA(cudaGetLastError());
}

/* Where one walk would leave most of the device idle there are several, but no more than documents. */
static void chain_launch(struct dev *d, const struct linear *x, float *memory, const float *keep, bool back)
{
    const int64_t tiles = ceil_div(x->T, TILE), VK = (int64_t)x->V * x->K, size = x->H * VK;
    const int64_t blocks = ceil_div(size, THREADS), span = 16 * ceil_div(tiles, 16 * min64(x->N, tiles));

    if (tiles < 2)
        return;
    if (blocks < cuda_of(d)->sms && x->N >= 8) {
        const dim3 grid((unsigned)blocks, (unsigned)ceil_div(tiles, span));
        chain_kernel<true><<<grid, THREADS, 0, stream_of(d)>>>(memory, keep, tiles, span, size, VK, x->H, back);
    } else {
        const dim3 grid((unsigned)blocks);
        chain_kernel<false><<<grid, THREADS, 0, stream_of(d)>>>(memory, keep, tiles, 0, size, VK, x->H, back);
    }
    CUDA(cudaGetLastError());
}

void linear_slots(struct dev *d, const struct linear *x)
{
    outer_launch<SLOT>(d, x, ceil_div(x->T, TILE));
    chain_launch(d, x, x->slot, x->keep_slot, false);
}

void linear_next(struct dev *d, const struct linear *x, int64_t N)
{
    outer_launch<NEXT>(d, x, N);
}

void linear_carries(struct dev *d, const struct linear *x)
{
    outer_launch<CARRY>(d, x, ceil_div(x->T, TILE));
    chain_launch(d, x, x->carry, x->keep_carry, true);
}

void linear_gstate(struct dev *d, const struct linear *x, int64_t N)
{
    outer_launch<GSTATE>(d, x, N);
}
