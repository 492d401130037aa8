/* palimpsa_read.cu - what every token reads, from the memory at the start of its span.
 *
 * A block owns BV rows of one head's memory and a span of tokens; a lane (i, j) = (lane / 4, lane % 4) holds VT x KT
 * of its elements as M' = M / A and J' = J / A, A the decay since a base token, so that a token is one addition each,
 * and mu = M' / (J' + Ip / A). The base is renewed at every tile, whenever A falls below exp(-SCALE), and where a
 * document begins. */
#include "palimpsa_stage.cuh"

#define SCALE 16.f

/* KT x VT elements a lane; KS warps share the columns. */
template <int KT_, int KS_, int VT_> struct form {
    static constexpr int KT = KT_, KS = KS_, VT = VT_, SIZE = KT * VT;
    static constexpr int K = 4 * KT * KS, BV = 8 * VT, threads = 32 * KS;
};

/* A tile. Bits are tokens; token T counts as a document's first. */
struct plan {
    float    up[TILE], c[TILE];         /* 1 / A; Ip / A */
    float    renew[TILE];               /* at a base: what turns M' before it into M' there */
    uint64_t bases, opens;              /* a token is a base; a document begins with it */
    float    before, after;             /* decay since the last base, at the end of the tile before and of this one */
    struct place k, q, v, b, o;
    int64_t  t0;
    int      left;                      /* tokens that are there */
};

template <class F> struct alignas(16) shared {
    struct raw_step<F> raw;
    float key[STEP][2 * F::K], query[STEP][F::K];       /* (k*k, k) */
    float value[STEP][2 * F::BV];                       /* (b, v) / A */
    float out[F::KS][STEP][F::BV];
    struct plan plan[2];                                /* even and odd tiles */
};

template <class F> struct held { float M[F::SIZE], J[F::SIZE]; };

struct seat { int h, v0, j, row, col; };    /* head and first row of the block; lane's j, its first row and column */

/* Where element e of a lane lies, from its first on: columns in pairs, those of a warp's four j side by side. */
template <class F> __device__ inline int spot_of(int e) { return e / F::KT * F::K + e % F::KT / 2 * 8 + e % 2; }

template <class F>
__device__ void held_start(struct held<F> *a, const struct tiled &w, int64_t span, const struct seat &me)
{
    const float2 *from = (const float2 *)w.span + ((span * w.H + me.h) * w.V + me.v0 + me.row) * F::K + me.col;

#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2) {
        const float4 s = *(const float4 *)(from + spot_of<F>(e));
        a->M[e] = s.x, a->J[e] = s.y, a->M[e + 1] = s.z, a->J[e + 1] = s.w;
    }
}

/* The memory times A to row me.row on of `to`, a piece of [.,H,V,K]. */
template <class F>
__device__ void held_store(const struct held<F> *a, const struct tensor *to, int64_t n, float A, const struct seat &me)
{
    float *M = memory_at(to[0], n, me.h, me.v0 + me.row), *J = memory_at(to[1], n, me.h, me.v0 + me.row);

#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2) {
        const int at = spot_of<F>(e) + me.col;
        if (M)
            *(float2 *)(M + at) = make_float2(a->M[e] * A, a->M[e + 1] * A);
        if (J)
            *(float2 *)(J + at) = make_float2(a->J[e] * A, a->J[e + 1] * A);
    }
}

/* The next base: everything scaled, or, where a document ends and another begins, handed on and replaced. */
template <class F>
__device__ void held_renew(struct held<F> *a, const struct scan_io &x, const struct docs &docs, const struct plan *p,
                           int s, bool first, const struct seat &me)
{
    const float   f = p->renew[s];
    const int64_t t = p->t0 + s;

    if (!(p->opens >> s & 1)) {
#pragma unroll
        for (int e = 0; e < F::SIZE; e++)
            a->M[e] *= f, a->J[e] *= f;
        return;
    }
    if (!first || s)
        held_store(a, x.next, docs.seq[t - 1], s ? 1.f / p->up[s - 1] : expf(-p->before), me);
    const float *M = t < x.v.dim[0] ? memory_at(x.state[0], docs.seq[t], me.h, me.v0 + me.row) : NULL;
    const float *J = t < x.v.dim[0] ? memory_at(x.state[1], docs.seq[t], me.h, me.v0 + me.row) : NULL;
#pragma unroll
    for (int e = 0; e < F::SIZE; e++) {
        const int at = spot_of<F>(e) + me.col;
        a->M[e] = M ? f * M[at] : 0.f;
        a->J[e] = J ? f * J[at] : 0.f;
    }
}

/* sum over a pair of columns of M' q / (J' + c); every other pair shares one reciprocal. */
__device__ inline float read_pair(float sum, float M0, float M1, float J0, float J1, float2 q, float c, bool shared)
{
    const float d0 = J0 + c, d1 = J1 + c;

    if (shared)
        return fmaf(fmaf(M1 * q.y, d0, (M0 * q.x) * d1), reciprocal(d0 * d1), sum);
    return fmaf(M1 * reciprocal(d1), q.y, fmaf(M0 * reciprocal(d0), q.x, sum));
}

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

/* One token: write, then read. */
template <class F>
__device__ void token(struct held<F> *a, struct shared<F> *sh, const struct seat &me, int u, float c)
{
    const float *key = &sh->key[u][2 * me.col], *query = &sh->query[u][me.col];
    float v[F::VT], b[F::VT], sum[F::VT] = {};

    take_values<F::VT, 2>(v, b, &sh->value[u][2 * me.row]);
#pragma unroll
    for (int n = 0; n < F::KT; n += 2) {
        const float4 k = *(const float4 *)(key + 8 * n);
        const float2 q = *(const float2 *)(query + 4 * n);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->M[r * F::KT + n] = fmaf(v[r], k.y, a->M[r * F::KT + n]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->J[r * F::KT + n] = fmaf(b[r], k.x, a->J[r * F::KT + n]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->M[r * F::KT + n + 1] = fmaf(v[r], k.w, a->M[r * F::KT + n + 1]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->J[r * F::KT + n + 1] = fmaf(b[r], k.z, a->J[r * F::KT + n + 1]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            sum[r] = read_pair(sum[r], a->M[r * F::KT + n], a->M[r * F::KT + n + 1], a->J[r * F::KT + n],
                               a->J[r * F::KT + n + 1], q, c, (r * F::KT / 2 + n / 2) % 2 == 0);
    }
    put_rows<F>(&sh->out[threadIdx.x / 32][u][me.row], sum, me.j);
}

/* Eight tokens. */
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
            token(a, sh, me, u, p->c[n * STEP + u]);
            token(a, sh, me, u + 1, p->c[n * STEP + u + 1]);
        }
        return;
    }
#pragma unroll 1
    for (int u = 0; u < STEP; u++) {
        if (u && bases >> u & 1)
            held_renew(a, x, docs, p, n * STEP + u, first, me);
        token(a, sh, me, u, p->c[n * STEP + u]);
    }
}

/* Plans the tile at t0; one warp. Lane l has tokens l and l + 32. last: the plan of the tile before, NULL for none. */
__device__ void make_plan(struct plan *p, const struct plan *last, const struct scan_io &x, const struct tiled &w,
                          int64_t t0, const struct seat &me)
{
    const int     lane = threadIdx.x % 32, h = me.h;
    const int64_t T = x.v.dim[0], H = x.v.dim[1];
    const float   Ip = expf(((const float *)x.prior[0].data)[h]);
    const float   before = last ? last->after : 0.f;
    const uint64_t begin = w.opens[t0 / TILE];
    uint64_t bases = 1 | begin;
    float own[2], s[2], since = 0.f;

    for (int z = 0; z < 2; z++) {
        own[z] = s[z] = forgetting(x, t0 + lane + 32 * z, h);
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
    fetch_rows<F::K / 8, F::threads>(sh->raw.k, p->k, n * STEP, p->left);
    fetch_rows<F::K / 8, F::threads>(sh->raw.q, p->q, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.v, p->v, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.b, p->b, n * STEP, p->left);
}

template <class F>
__device__ void convert(struct shared<F> *sh, const struct plan *p, int n)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;
    float a[8], b[8];

    SPREAD(i, STEP * KC, F::threads,
        const int r = i / KC, c = i % KC * 8;
        unpack(a, *(const uint4 *)&sh->raw.k[r][c]);
        put_keys(&sh->key[r][2 * c], a, 1.f);
        unpack(a, *(const uint4 *)&sh->raw.q[r][c]);
        put8(&sh->query[r][c], a));
    SPREAD(i, STEP * VC, F::threads,
        const int r = i / VC, c = i % VC * 8;
        const float m = p->up[n * STEP + r];
        unpack(a, *(const uint4 *)&sh->raw.v[r][c]);
        unpack(b, *(const uint4 *)&sh->raw.b[r][c]);
        put_values(&sh->value[r][2 * c], b, a, m, m));
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
            *(float4 *)b = *(const float4 *)&sh->out[w][r][c];
            *(float4 *)(b + 4) = *(const float4 *)&sh->out[w][r][c + 4];
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
    const struct seat me = { (int)blockIdx.z, v0, lane % 4, lane / 4 * F::VT, warp * 4 * F::KT + lane % 4 * 2 };
    const int64_t from = blockIdx.x * w.span_tokens, end = min(from + w.span_tokens, w.T);
    struct held<F> a;
    int odd = 0;

    if (warp == 0)
        make_plan(&sh->plan[0], NULL, x, w, from, me);
    held_start(&a, w, blockIdx.x, me);
    __syncthreads();
    start_fetch(sh, &sh->plan[0], 0);
    for (int64_t t0 = from; t0 < end; t0 += TILE, odd ^= 1) {
        const struct plan *p = &sh->plan[odd];
        struct plan *other = &sh->plan[odd ^ 1];
        if (SAVE)
            held_store(&a, x.saved, t0 / TILE, expf(-p->before), me);
        for (int n = 0; n < STEPS; n++) {
            fetched();
            __syncthreads();
            if (n || t0 > from)
                write_out(sh, n ? p : other, x.scale, (n + STEPS - 1) % STEPS);
            convert(sh, p, n);
            if (n == STEPS - 2 && t0 + TILE < end && warp == t0 / TILE % F::KS)
                make_plan(other, p, x, w, t0 + TILE, me);
            __syncthreads();
            if (n + 1 < STEPS)
                start_fetch(sh, p, n + 1);
            else if (t0 + TILE < end)
                start_fetch(sh, other, 0);
            walk_step(&a, sh, p, x, w.docs, n, t0 == from, me);
        }
    }
    const struct plan *p = &sh->plan[odd ^ 1];
    __syncthreads();
    write_out(sh, p, x.scale, STEPS - 1);
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
    case 16:  launch<form<4, 1, 4>, 16>(d, x, w); break;
    case 48:  launch<form<6, 2, 6>, 8>(d, x, w);  break;
    case 64:  launch<form<8, 2, 4>, 8>(d, x, w);  break;
    case 96:  launch<form<6, 4, 6>, 4>(d, x, w);  break;
    case 128: launch<form<8, 4, 4>, 4>(d, x, w);  break;
    default:  BUG("no read kernel for K = %d", (int)x->k.dim[2]);
    }
}
