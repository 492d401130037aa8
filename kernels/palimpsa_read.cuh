/* palimpsa_read.cuh - what a block of palimpsa_read.cu shares, what a lane holds, and what it does with a token. */
#ifndef PALIMPSA_READ_CUH
#define PALIMPSA_READ_CUH
#include "palimpsa_stage.cuh"

#define SCALE 16.f

/* KT x VT elements a lane; KS warps share the columns. With few elements a lane, staging tokens would cost as much as
 * using them: they stay `raw`, as they came, and every lane unpacks what it needs. */
template <int KT_, int KS_, int VT_> struct form {
    static constexpr int KT = KT_, KS = KS_, VT = VT_, SIZE = KT * VT;
    static constexpr int K = 4 * KT * KS, BV = 8 * VT, threads = 32 * KS;
    static constexpr bool raw = SIZE <= 16, direct = raw && KS == 1;    /* direct: no sums over warps */
    static constexpr int slots = raw ? 2 : 1, side = raw && KT % 4 == 0 ? 4 : 2;    /* columns of a lane side by side */
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
    struct raw_step<F> raw[F::slots];
    float key[F::raw ? 1 : STEP][2 * F::K], query[F::raw ? 1 : STEP][F::K];             /* (k*k, k) */
    float value[F::raw ? 1 : STEP][2 * F::BV];                                          /* (b, v) / A */
    float out[F::direct ? 1 : F::slots][F::KS][F::direct ? 1 : STEP][F::BV];
    struct plan plan[2];                                /* even and odd tiles */
};

template <class F> struct held { float M[F::SIZE], J[F::SIZE]; };

struct seat { int h, v0, j, row, col; };    /* head and first row of the block; lane's j, its first row and column */

/* Where element e of a lane lies, from its first on: columns `side` by side, those of a warp's four j after another. */
template <class F> __device__ inline int spot_of(int e)
{
    return e / F::KT * F::K + e % F::KT / F::side * 4 * F::side + e % F::side;
}

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

template <class F> __device__ void held_none(struct held<F> *a)
{
#pragma unroll
    for (int e = 0; e < F::SIZE; e++)
        a->M[e] = a->J[e] = 0.f;
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

/* The token's write, then its read, of the columns n and n + 1. */
template <class F>
__device__ inline void pair_of(struct held<F> *a, int n, float4 k, float2 q, const float v[F::VT],
                               const float b[F::VT], float c, float sum[F::VT])
{
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
#endif
