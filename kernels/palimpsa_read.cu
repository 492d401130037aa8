/* palimpsa_read.cu - what every token reads, from the memory at its chunk's start.
 *
 * A block owns BV rows of one head's memory and a chunk of tokens; a lane (i, j) = (lane / 4, lane % 4)
 * owns VT x KT of its elements, in registers. They are held as M' = M / A and J' = J / A, A the decay since a
 * base token, so that a token is one addition each, and mu = M' / (J' + Ip / A). The base is renewed every 32
 * tokens, whenever A falls below exp(-SCALE), and where a document begins. */
#include "palimpsa_tiled.cuh"

enum { STEP = 8 };              /* tokens staged at a time */
#define SCALE 16.f

template <int KT_, int KS_, int VT_> struct form {
    static constexpr int KT = KT_, KS = KS_, VT = VT_;         /* columns, rows a lane; warps that share the columns */
    static constexpr int K = 4 * KT * KS, BV = 8 * VT, threads = 32 * KS;
};

template <class F> struct read_shared {
    float key[STEP][2 * F::K], query[STEP][F::K];   /* (k*k, k) */
    float value[STEP][2 * F::BV];                   /* (b, v) / A */
    float out[F::KS][STEP][F::BV];
    uint4 raw[2 * STEP * (F::K + F::BV) / 8];       /* k, q, v, b on their way */
    float up[CHUNK], renew[CHUNK];                  /* 1 / A; what turns M' from one base to the next */
    float first[4], last[4];
    unsigned base[4], open[4];                      /* a bit a token: base; a document begins */
};

template <class F> struct held { float M[F::VT][F::KT], J[F::VT][F::KT]; };

struct spot { int h, v0; int64_t from; };           /* head, first row, first token of a block */

/* Where a lane's columns of one token lie among (k*k, k): every second pair of pairs is turned for KT == 8, so that
 * the four j of a warp touch different banks. */
template <class F> __device__ inline int turned(int n, int j) { return 2 * (F::KT == 8 ? n ^ (j >> 1 & 1) * 2 : n); }

template <class F>
__device__ void start_fetch(struct read_shared<F> *sh, const struct scan_io &x, const struct spot &at, int step)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;

    for (int i = threadIdx.x; i < STEP * KC; i += F::threads) {
        const int64_t t = at.from + step * STEP + i / KC;
        const bool there = t < x.v.dim[0];
        fetch(sh->raw + i, key_at<bf16>(x, there ? t : 0, at.h) + i % KC * 8, there);
        fetch(sh->raw + STEP * KC + i, query_at<bf16>(x, there ? t : 0, at.h) + i % KC * 8, there);
    }
    for (int i = threadIdx.x; i < STEP * VC; i += F::threads) {
        const int64_t t = at.from + step * STEP + i / VC;
        const bool there = t < x.v.dim[0];
        fetch(sh->raw + 2 * STEP * KC + i, head_at<bf16>(x.v, there ? t : 0, at.h) + at.v0 + i % VC * 8, there);
        fetch(sh->raw + 2 * STEP * KC + STEP * VC + i, head_at<bf16>(x.beta, there ? t : 0, at.h) + at.v0 + i % VC * 8, there);
    }
}

template <class F>
__device__ void convert(struct read_shared<F> *sh, int step)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;
    float a[8], b[8];

    for (int i = threadIdx.x; i < STEP * KC; i += F::threads) {
        const int r = i / KC, c = i % KC;
        unpack(a, sh->raw[i]);
        unpack(b, sh->raw[STEP * KC + i]);
        for (int e = 0; e < 8; e += 2)
            *(float4 *)&sh->key[r][c * 16 + turned<F>(e, c)] = make_float4(a[e] * a[e], a[e], a[e + 1] * a[e + 1], a[e + 1]);
        for (int e = 0; e < 8; e += 4)
            *(float4 *)&sh->query[r][c * 8 + e] = make_float4(b[e], b[e + 1], b[e + 2], b[e + 3]);
    }
    for (int i = threadIdx.x; i < STEP * VC; i += F::threads) {
        const int r = i / VC, c = i % VC;
        const float m = sh->up[step * STEP + r];
        unpack(a, sh->raw[2 * STEP * KC + i]);
        unpack(b, sh->raw[2 * STEP * KC + STEP * VC + i]);
        for (int e = 0; e < 8; e += 2)
            *(float4 *)&sh->value[r][c * 16 + 2 * e] = make_float4(b[e] * m, a[e] * m, b[e + 1] * m, a[e + 1] * m);
    }
}

/* Bases of the chunk's tokens, 32 at a time, a warp for each group. */
template <class F>
__device__ void plan_chunk(struct read_shared<F> *sh, const struct scan_io &x, const struct docs &docs, const struct spot &at)
{
    const int lane = threadIdx.x % 32;

    for (int g = threadIdx.x / 32; g < 4; g += F::KS) {
        const int64_t t = at.from + g * 32 + lane;
        const bool begin = t < x.v.dim[0] && begins(docs, t);
        const float own = forgetting(x, t, at.h);
        float s = own;
        for (int o = 1; o < 32; o *= 2) {
            const float y = __shfl_up_sync(~0u, s, o);
            s += lane >= o ? y : 0.f;
        }
        const int bucket = (int)(s * (1.f / SCALE)), before = __shfl_up_sync(~0u, bucket, 1);
        const bool base = lane == 0 || bucket != before || begin;
        const unsigned mask = __ballot_sync(~0u, base), open = __ballot_sync(~0u, begin);
        const float s_base = __shfl_sync(~0u, s, 31 - __clz(mask & (~0u >> (31 - lane))));
        const float s_base_before = __shfl_up_sync(~0u, s_base, 1);
        sh->up[g * 32 + lane] = expf(s - s_base);
        if (lane > 0)
            sh->renew[g * 32 + lane] = begin ? expf(-own) : base ? expf(s_base_before - s) : 1.f;
        else {
            sh->first[g] = s, sh->base[g] = mask, sh->open[g] = open;
            if (begin)
                sh->renew[g * 32] = expf(-own);
        }
        if (lane == 31)
            sh->last[g] = s - s_base;
    }
    __syncthreads();
    for (int g = threadIdx.x; g < 4; g += F::threads)
        if (!(sh->open[g] & 1))
            sh->renew[g * 32] = expf(-sh->first[g] - (g ? sh->last[g - 1] : 0.f));
}

/* Which elements a lane holds. */
template <class F> struct lane_of {
    int i, j, row, col;                 /* row within the block, column within K */
};
template <class F> __device__ struct lane_of<F> my_lane(void)
{
    const int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4;
    return { i, j, i * F::VT, (int)threadIdx.x / 32 * 4 * F::KT + j * F::KT };
}

/* The chunk's start: what its span added up to it, and what is left of the span's start. */
template <class F>
__device__ void held_start(struct held<F> *s, const struct tiled &w, const struct spot &at, const struct lane_of<F> &me)
{
    const int64_t c = at.from / CHUNK, span = c / SPAN, row = ((int64_t)at.h * w.V + at.v0 + me.row) * F::K + me.col;
    const float2 *base = (const float2 *)w.span + span * w.H * w.V * F::K + row;
    const float2 *add = c % SPAN ? (const float2 *)w.add + c * w.H * w.V * F::K + row : NULL;
    const float kept = add ? w.kept[c * w.H + at.h] : 1.f;

#pragma unroll
    for (int r = 0; r < F::VT; r++)
#pragma unroll
        for (int n = 0; n < F::KT; n += 2) {
            const float4 b = *(const float4 *)(base + r * F::K + n);
            const float4 a = add ? *(const float4 *)(add + r * F::K + n) : make_float4(0.f, 0.f, 0.f, 0.f);
            s->M[r][n] = kept * b.x + a.x, s->J[r][n] = kept * b.y + a.y;
            s->M[r][n + 1] = kept * b.z + a.z, s->J[r][n + 1] = kept * b.w + a.w;
        }
}

/* The next base: everything scaled, or, where document n begins, what it brought along. */
template <class F>
__device__ void held_renew(struct held<F> *s, float f, bool open, int64_t t, const struct scan_io &x, const struct docs &docs,
                           const struct spot &at, const struct lane_of<F> &me)
{
    if (open) {
        const float *M = memory_at(x.state[0], docs.seq[t], at.h, at.v0 + me.row);
        const float *J = memory_at(x.state[1], docs.seq[t], at.h, at.v0 + me.row);
#pragma unroll
        for (int i = 0; i < F::VT * F::KT; i++) {
            const int r = i / F::KT, n = i % F::KT;
            s->M[r][n] = M ? f * M[r * F::K + me.col + n] : 0.f;
            s->J[r][n] = J ? f * J[r * F::K + me.col + n] : 0.f;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < F::VT * F::KT; i++) {
        s->M[i / F::KT][i % F::KT] *= f;
        s->J[i / F::KT][i % F::KT] *= f;
    }
}

template <class F>
__device__ void held_save(const struct held<F> *s, float A, const struct scan_io &x, int64_t tile, const struct spot &at,
                          const struct lane_of<F> &me)
{
    float *M = memory_at(x.saved[0], tile, at.h, at.v0 + me.row) + me.col;
    float *J = memory_at(x.saved[1], tile, at.h, at.v0 + me.row) + me.col;

#pragma unroll
    for (int r = 0; r < F::VT; r++)
#pragma unroll
        for (int n = 0; n < F::KT; n += 2) {
            *(float2 *)(M + r * F::K + n) = make_float2(s->M[r][n] * A, s->M[r][n + 1] * A);
            *(float2 *)(J + r * F::K + n) = make_float2(s->J[r][n] * A, s->J[r][n + 1] * A);
        }
}

/* sum over a pair of columns of M' q / (J' + c); half of the pairs share one reciprocal. */
template <class F>
__device__ inline float read_pair(float sum, float M0, float M1, float J0, float J1, float2 q, float c, bool shared)
{
    const float d0 = J0 + c, d1 = J1 + c;

    if (shared)
        return fmaf(fmaf(M1 * q.y, d0, (M0 * q.x) * d1), reciprocal(d0 * d1), sum);
    return fmaf(M1 * reciprocal(d1), q.y, fmaf(M0 * reciprocal(d0), q.x, sum));
}

/* Sums over the four j of a row by halving: lane j is left with a quarter of the rows. */
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
__device__ void token(struct held<F> *s, struct read_shared<F> *sh, const struct lane_of<F> &me, int u, float c)
{
    const float *key = &sh->key[u][2 * me.col], *query = &sh->query[u][me.col], *value = &sh->value[u][2 * me.row];
    float v[F::VT], b[F::VT], sum[F::VT] = {};

#pragma unroll
    for (int r = 0; r < F::VT; r += 2) {
        const float4 a = *(const float4 *)(value + 2 * r);
        b[r] = a.x, v[r] = a.y, b[r + 1] = a.z, v[r + 1] = a.w;
    }
#pragma unroll
    for (int n = 0; n < F::KT; n += 2) {
        const float4 k = *(const float4 *)(key + turned<F>(n, me.j));
        const float2 q = *(const float2 *)(query + n);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            s->M[r][n] = fmaf(v[r], k.y, s->M[r][n]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            s->J[r][n] = fmaf(b[r], k.x, s->J[r][n]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            s->M[r][n + 1] = fmaf(v[r], k.w, s->M[r][n + 1]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            s->J[r][n + 1] = fmaf(b[r], k.z, s->J[r][n + 1]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            sum[r] = read_pair<F>(sum[r], s->M[r][n], s->M[r][n + 1], s->J[r][n], s->J[r][n + 1], q, c,
                                  (r * F::KT / 2 + n / 2) % 2 == 0);
    }
    put_rows<F>(&sh->out[threadIdx.x / 32][u][me.row], sum, me.j);
}

template <class F>
__device__ void write_out(const struct read_shared<F> *sh, const struct scan_io &x, const struct spot &at, int step)
{
    for (int i = threadIdx.x; i < STEP * F::BV / 8; i += F::threads) {
        const int u = i / (F::BV / 8), c = i % (F::BV / 8) * 8;
        const int64_t t = at.from + step * STEP + u;
        float a[8] = {};
        for (int w = 0; w < F::KS; w++)
            for (int e = 0; e < 8; e++)
                a[e] += sh->out[w][u][c + e];
        for (int e = 0; e < 8; e++)
            a[e] *= x.scale;
        if (t < x.v.dim[0])
            *(uint4 *)(head_at<bf16>(x.o, t, at.h) + at.v0 + c) =
                make_uint4(pair(a[0], a[1]), pair(a[2], a[3]), pair(a[4], a[5]), pair(a[6], a[7]));
    }
}

template <class F, bool SAVE, int BLOCKS>
__global__ void __launch_bounds__(F::threads, BLOCKS) read_kernel(struct scan_io x, struct tiled w)
{
    extern __shared__ __align__(16) char shared[];
    struct read_shared<F> *sh = (struct read_shared<F> *)shared;
    const struct spot at = { (int)blockIdx.z, (int)blockIdx.y * F::BV, (int64_t)blockIdx.x * CHUNK };
    const struct lane_of<F> me = my_lane<F>();
    const float Ip = expf(((const float *)x.prior[0].data)[at.h]);
    struct held<F> s;

    start_fetch(sh, x, at, 0);
    plan_chunk(sh, x, w.docs, at);
    held_start(&s, w, at, me);
    for (int step = 0; step < CHUNK / STEP; step++) {
        const int64_t t = at.from + step * STEP;
        if (SAVE && step % (TILE / STEP) == 0 && t < w.T)
            held_save(&s, step ? 1.f / sh->up[step * STEP - 1] : 1.f, x, t / TILE, at, me);
        fetched();
        __syncthreads();
        if (step)
            write_out(sh, x, at, step - 1);
        convert(sh, step);
        __syncthreads();
        if (step + 1 < CHUNK / STEP)
            start_fetch(sh, x, at, step + 1);
        const unsigned base = sh->base[step / 4] >> step % 4 * STEP & 255, open = sh->open[step / 4] >> step % 4 * STEP;
        if (base & 1)
            held_renew(&s, sh->renew[step * STEP], open & 1, t, x, w.docs, at, me);
        if ((base & ~1u) == 0) {
#pragma unroll 1
            for (int u = 0; u < STEP; u += 2) {
                token(&s, sh, me, u, Ip * sh->up[step * STEP + u]);
                token(&s, sh, me, u + 1, Ip * sh->up[step * STEP + u + 1]);
            }
        } else {
#pragma unroll 1
            for (int u = 0; u < STEP; u++) {
                if (u && base >> u & 1)
                    held_renew(&s, sh->renew[step * STEP + u], open >> u & 1, t + u, x, w.docs, at, me);
                token(&s, sh, me, u, Ip * sh->up[step * STEP + u]);
            }
        }
    }
    __syncthreads();
    write_out(sh, x, at, CHUNK / STEP - 1);
}

template <class F, int BLOCKS>
static void launch(struct dev *d, const struct scan_io *x, const struct tiled *w)
{
    const int  bytes = sizeof(struct read_shared<F>);
    const dim3 grid((unsigned)w->chunks, (unsigned)(w->V / F::BV), (unsigned)w->H);

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
