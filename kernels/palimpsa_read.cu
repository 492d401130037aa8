/* palimpsa_read.cu - what every token reads, from the memory at the start of its span.
 *
 * A block owns BV rows of one head's memory and a span of tokens; a lane (i, j) = (lane / 4, lane % 4) holds VT x KT
 * of its elements as M' = M / A and J' = J / A, A the decay since a base token, so that a token is one addition each,
 * and mu = M' / (J' + Ip / A). The base is renewed at every tile, whenever A falls below exp(-SCALE), and where a
 * document begins. */
#include "palimpsa_raw.cuh"

/* Sums over the four j of a row by halving: lane j is left with a quarter of the rows, or two lanes with a half. */
template <class F>
__device__ void put_rows(float *to, const float sum[F::VT], int j)
{
    constexpr int half = F::VT / 2;
    float a[half];

#pragma unroll
    for (int r = 0; r < half; r++) {
        const float give = j & 2 ? sum[r] : sum[r + half], keep = j & 2 ? sum[r + half] : sum[r];
        a[r] = keep + __shfl_xor_sync(~0u, give, 2);
    }
    to += (j & 2) / 2 * half;
    if constexpr (half % 2 == 0) {
#pragma unroll
        for (int r = 0; r < half / 2; r++) {
            const float give = j & 1 ? a[r] : a[r + half / 2], keep = j & 1 ? a[r + half / 2] : a[r];
            to[(j & 1) * (half / 2) + r] = keep + __shfl_xor_sync(~0u, give, 1);
        }
    } else {
#pragma unroll
        for (int r = 0; r < half; r++) {
            a[r] += __shfl_xor_sync(~0u, a[r], 1);
            if (!(j & 1))
                to[r] = a[r];
        }
    }
}

/* One staged token. */
template <class F>
__device__ void one(struct held<F> *a, struct shared<F> *sh, const struct seat &me, int u, float c)
{
    const float *key = &sh->key[u][2 * me.col], *query = &sh->query[u][me.col];
    float v[F::VT], b[F::VT], sum[F::VT] = {};

    take_values<F::VT, 2>(v, b, &sh->value[u][2 * me.row]);
#pragma unroll
    for (int n = 0; n < F::KT; n += 2)
        pair_of<F>(a, n, *(const float4 *)(key + 8 * n), *(const float2 *)(query + 4 * n), v, b, c, sum);
    put_rows<F>(&sh->out[0][threadIdx.x / 32][u][me.row], sum, me.j);
}

/* Eight staged tokens. */
template <class F>
__device__ void walk_step(struct held<F> *a, struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                          const struct docs &docs, int n, bool first, const struct seat &me)
{
    const unsigned bases = (unsigned)(p->bases >> n * STEP) & 255;

    if (bases & 1)
        held_renew(a, x, docs, p, n * STEP, first, me);
    if (bases <= 1) {
#pragma unroll 1
        for (int u = 0; u < STEP; u += 2) {
            one(a, sh, me, u, p->c[n * STEP + u]);
            one(a, sh, me, u + 1, p->c[n * STEP + u + 1]);
        }
        return;
    }
#pragma unroll 1
    for (int u = 0; u < STEP; u++) {
        if (u && bases >> u & 1)
            held_renew(a, x, docs, p, n * STEP + u, first, me);
        one(a, sh, me, u, p->c[n * STEP + u]);
    }
}

/* Plans the tile at t0; one warp. Lane l has tokens l and l + 32. last: the plan of the tile before, NULL for none. */
__device__ void make_plan(struct plan *p, const struct plan *last, const struct scan_io &x, const struct coming &c,
                          int64_t t0, const struct seat &me)
{
    const int     lane = threadIdx.x % 32, h = me.h;
    const int64_t T = x.v.dim[0], H = x.v.dim[1];
    const float   Ip = expf(((const float *)x.prior[0].data)[h]);
    const float   before = last ? last->after : 0.f;
    const uint64_t begin = c.opens;
    uint64_t bases = 1 | begin;
    float own[2], s[2], since = 0.f;

    for (int z = 0; z < 2; z++) {
        own[z] = s[z] = c.x[z];
        for (int o = 1; o < 32; o *= 2) {
            const float a = __shfl_up_sync(~0u, s[z], o);
            s[z] += lane >= o ? a : 0.f;
        }
    }
    s[1] += __shfl_sync(~0u, s[0], 31);
    const int half = (int)(__shfl_sync(~0u, s[0], 31) * (1.f / SCALE));
    for (int z = 0; z < 2; z++) {
        const int bucket = (int)(s[z] * (1.f / SCALE)), left = __shfl_up_sync(~0u, bucket, 1);
        bases |= (uint64_t)__ballot_sync(~0u, lane ? bucket != left : z && bucket != half) << 32 * z;
    }
    for (int z = 0; z < 2; z++) {
        const int i = lane + 32 * z, b = 63 - __clzll(bases & (~0ull >> (63 - i)));     /* its base */
        const int bb = i ? 63 - __clzll(bases & (~0ull >> (64 - i))) : 0;               /* that of the token before */
        const float a0 = __shfl_sync(~0u, s[0], b & 31), a1 = __shfl_sync(~0u, s[1], b & 31);
        const float b0 = __shfl_sync(~0u, s[0], bb & 31), b1 = __shfl_sync(~0u, s[1], bb & 31);
        since = s[z] - (b < 32 ? a0 : a1);
        p->up[i] = expf(since);
        p->c[i] = Ip * expf(since);
        p->renew[i] = expf(begin >> i & 1 ? -own[z] : i ? (bb < 32 ? b0 : b1) - s[z] : -s[0] - before);
    }
    if (lane == 31)
        p->after = since;
    if (lane == 0) {
        p->bases = bases, p->opens = begin, p->before = before, p->t0 = t0;
        p->left = (int)min((int64_t)TILE, T - t0);
        p->k = place_of(x.k, t0, h * x.k.dim[1] / H, 0), p->q = place_of(x.q, t0, h * x.q.dim[1] / H, 0);
        p->v = place_of(x.v, t0, h, me.v0), p->b = place_of(x.beta, t0, h, me.v0);
        p->o = place_of(x.o, t0, h, me.v0);
    }
}

template <class F>
__device__ void start_fetch(struct shared<F> *sh, const struct plan *p, int n)
{
    fetch_rows<F::K / 8, F::threads>(sh->raw[n % F::slots].k, p->k, n * STEP, p->left);
    fetch_rows<F::K / 8, F::threads>(sh->raw[n % F::slots].q, p->q, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw[n % F::slots].v, p->v, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw[n % F::slots].b, p->b, n * STEP, p->left);
}

__device__ inline void put8(float *to, const float a[8])
{
    *(float4 *)to = make_float4(a[0], a[1], a[2], a[3]);
    *(float4 *)(to + 4) = make_float4(a[4], a[5], a[6], a[7]);
}

/* Eight columns as (k k, k). */
__device__ inline void put_keys(float *to, const float a[8])
{
#pragma unroll
    for (int e = 0; e < 8; e += 2)
        *(float4 *)(to + 2 * e) =
            make_float4(a[e] * a[e], a[e], a[e + 1] * a[e + 1], a[e + 1]);
}

/* Eight rows as f (b, v). */
__device__ inline void put_values(float *to, const float b[8], const float v[8], float f)
{
#pragma unroll
    for (int e = 0; e < 8; e += 2)
        *(float4 *)(to + 2 * e) = make_float4(f * b[e], f * v[e], f * b[e + 1], f * v[e + 1]);
}

template <class F>
__device__ void convert(struct shared<F> *sh, const struct plan *p, int n)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;
    float a[8], b[8];

    SPREAD(i, STEP * KC, F::threads,
        const int r = i / KC, c = i % KC * 8;
        unpack(a, *(const uint4 *)&sh->raw[0].k[r][c]);
        put_keys(&sh->key[r][2 * c], a);
        unpack(a, *(const uint4 *)&sh->raw[0].q[r][c]);
        put8(&sh->query[r][c], a));
    SPREAD(i, STEP * VC, F::threads,
        const int r = i / VC, c = i % VC * 8;
        const float m = p->up[n * STEP + r];
        unpack(a, *(const uint4 *)&sh->raw[0].v[r][c]);
        unpack(b, *(const uint4 *)&sh->raw[0].b[r][c]);
        put_values(&sh->value[r][2 * c], b, a, m));
}

template <class F>
__device__ void write_out(const struct shared<F> *sh, const struct plan *p, float scale, int n)
{
    const struct place o = p->o;
    const int left = p->left - n * STEP;
    float a[8], b[8];

    SPREAD(i, STEP * F::BV / 8, F::threads,
        const int r = i / (F::BV / 8), c = i % (F::BV / 8) * 8;
        for (int w = 0; w < F::KS; w++) {
            *(float4 *)b = *(const float4 *)&sh->out[n % F::slots][w][r][c];
            *(float4 *)(b + 4) = *(const float4 *)&sh->out[n % F::slots][w][r][c + 4];
            for (int e = 0; e < 8; e++)
                a[e] = w ? a[e] + b[e] : b[e];
        }
        if (r < left)
            *(uint4 *)(o.at + (unsigned)((n * STEP + r) * o.row + 2 * c)) =
                make_uint4(pair(scale * a[0], scale * a[1]), pair(scale * a[2], scale * a[3]),
                           pair(scale * a[4], scale * a[5]), pair(scale * a[6], scale * a[7])));
}

template <class F, bool SAVE, int BLOCKS>
__global__ void __launch_bounds__(F::threads, BLOCKS) read_kernel(struct scan_io x, struct tiled w)
{
    extern __shared__ __align__(16) char memory[];
    struct shared<F> *sh = (struct shared<F> *)memory;
    const int lane = threadIdx.x % 32, warp = (int)threadIdx.x / 32, v0 = blockIdx.y * F::BV;
    const struct seat me = { (int)blockIdx.z, v0, lane % 4, lane / 4 * F::VT, warp * 4 * F::KT + lane % 4 * F::side };
    const int64_t from = blockIdx.x * w.span_tokens, end = min(from + w.span_tokens, w.T);
    struct held<F> a;
    struct coming next;
    int odd = 0;

    if (warp == 0)
        make_plan(&sh->plan[0], NULL, x, look(x, w, from / TILE, me.h), from, me);
    if (w.period > 1)
        held_start(&a, w, blockIdx.x, me);
    else
        held_none(&a);
    __syncthreads();
    start_fetch(sh, &sh->plan[0], 0);
    for (int64_t t0 = from; t0 < end; t0 += TILE, odd ^= 1) {
        const struct plan *p = &sh->plan[odd];
        struct plan *other = &sh->plan[odd ^ 1];
        if (SAVE && (t0 > from || t0 == 0))
            held_store(&a, x.saved, t0 / TILE, expf(-p->before), me);
        for (int n = 0; n < STEPS; n++) {
            fetched();
            meet<F>();
            if (!F::direct && (n || t0 > from))
                write_out(sh, n ? p : other, x.scale, (n + STEPS - 1) % STEPS);
            if constexpr (!F::raw)
                convert(sh, p, n);
            if (F::raw && n == 0 && t0 + TILE < end)
                next = look(x, w, t0 / TILE + 1, me.h);
            if (n == STEPS - 2 && t0 + TILE < end && warp == t0 / TILE % F::KS)
                make_plan(other, p, x, F::raw ? next : look(x, w, t0 / TILE + 1, me.h), t0 + TILE, me);
            if constexpr (!F::raw)
                __syncthreads();
            if (n + 1 < STEPS)
                start_fetch(sh, p, n + 1);
            else if (t0 + TILE < end)
                start_fetch(sh, other, 0);
            if constexpr (F::raw)
                walk_raw(&a, sh, p, x, w.docs, n, t0 == from, me);
            else
                walk_step(&a, sh, p, x, w.docs, n, t0 == from, me);
        }
    }
    const struct plan *p = &sh->plan[odd ^ 1];
    if constexpr (!F::direct) {
        __syncthreads();
        write_out(sh, p, x.scale, STEPS - 1);
    }
    if (SAVE && end < w.T)
        held_store(&a, x.saved, end / TILE, expf(-p->after), me);
    if ((end - from) % TILE == 0 && opens(w, end))
        held_store(&a, x.next, w.docs.seq[end - 1], expf(-p->after), me);
}

template <class F, int BLOCKS>
static void launch(struct dev *d, const struct scan_io *x, const struct tiled *w)
{
    const int  bytes = sizeof(struct shared<F>);
    const dim3 grid((unsigned)w->spans, (unsigned)(w->V / F::BV), (unsigned)w->H);

    CUDA(cudaFuncSetAttribute(read_kernel<F, false, BLOCKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    CUDA(cudaFuncSetAttribute(read_kernel<F, true, BLOCKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    if (x->saved[0].data)
        read_kernel<F, true, BLOCKS><<<grid, F::threads, bytes, stream_of(d)>>>(*x, *w);
    else
        read_kernel<F, false, BLOCKS><<<grid, F::threads, bytes, stream_of(d)>>>(*x, *w);
    CUDA(cudaGetLastError());
}

/* 36 or 32 elements a lane: 128 registers, 16 warps a multiprocessor. */
void palimpsa_read(struct dev *d, const struct scan_io *x, const struct tiled *w)
{
    switch (x->k.dim[2]) {
    case 16:  launch<form<4, 1, 4>, 8>(d, x, w); break;
    case 48:  launch<form<6, 2, 6>, 8>(d, x, w);  break;
    case 64:  launch<form<8, 2, 4>, 8>(d, x, w);  break;
    case 96:  launch<form<6, 4, 6>, 4>(d, x, w);  break;
    case 128: launch<form<8, 4, 4>, 4>(d, x, w);  break;
    default:  BUG("no read kernel for K = %d", (int)x->k.dim[2]);
    }
}
