/* palimpsa_sweep.cuh - what a lane of palimpsa_reverse.cu holds, and how it gets the memory after a block of tokens.
 *
 * The memory before every tile is saved. Where blocks end inside a tile, a walk forward through the tile keeps it at
 * the start of each step before or in which one ends; from there it is a few tokens. */
#ifndef PALIMPSA_SWEEP_CUH
#define PALIMPSA_SWEEP_CUH
#include "palimpsa_bring.cuh"

template <class F> struct held { float M[F::SIZE], J[F::SIZE], G[F::SIZE], H[F::SIZE]; };

/* Where a lane sits: its groups of rows and columns, its first row and column. */
struct seat { int rows, cols, row, col; };

template <class F>
__device__ struct seat my_seat(void)
{
    const int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4, warp = (int)threadIdx.x / 32;

    return { i, warp * 4 + j, 2 * i, warp * 4 * F::KT + 2 * j };
}

/* Where element e of a lane lies, from its first on. Rows and columns are pairs, those of the lanes side by side. */
template <class F> __device__ inline int spot_of(int e)
{
    const int r = e / F::KT, n = e % F::KT;

    return (r / 2 * 16 + r % 2) * F::K + n / 2 * 8 + n % 2;
}

/* f times a memory's rows. The product is not idle even where f is 1: it frees the registers that go through all tokens
 * from the pairs of a wide load, which cost the token loop 6% of its cycles in register bank conflicts. */
template <class F>
__device__ void load_memory(float M[F::SIZE], float J[F::SIZE], const struct tensor *from, int64_t n, int h, int v,
                            int col, float f)
{
    const float *m = memory_at(from[0], n, h, v), *p = memory_at(from[1], n, h, v);

#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2) {
        const int at = spot_of<F>(e) + col;
        const float2 a = m ? *(const float2 *)(m + at) : make_float2(0.f, 0.f);
        const float2 b = p ? *(const float2 *)(p + at) : make_float2(0.f, 0.f);
        M[e] = a.x * f, M[e + 1] = a.y * f, J[e] = b.x * f, J[e + 1] = b.y * f;
    }
}

template <class F>
__device__ void store_memory(const float M[F::SIZE], const float J[F::SIZE], const struct tensor *to, int64_t n, int h,
                             int v, int col, float f)
{
    float *m = memory_at(to[0], n, h, v), *p = memory_at(to[1], n, h, v);

#pragma unroll
    for (int e = 0; e < F::SIZE; e++) {
        const int at = spot_of<F>(e) + col;
        if (m)
            m[at] = M[e] * f;
        if (p)
            p[at] = J[e] * f;
    }
}

template <class F>
__device__ void scale(float a[F::SIZE], float b[F::SIZE], float f)
{
#pragma unroll
    for (int e = 0; e < F::SIZE; e++)
        a[e] *= f, b[e] *= f;
}

template <class F>
__device__ inline float4 *check_at(const struct tiled &w, int slot)
{
    return w.check + ((int64_t)blockIdx.x * (STEPS - 1) + slot) * (F::SIZE / 2) * F::threads + threadIdx.x;
}

template <class F>
__device__ void check_store(const struct held<F> *a, float4 *to)
{
#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2)
        to[e / 2 * F::threads] = make_float4(a->M[e], a->J[e], a->M[e + 1], a->J[e + 1]);
}

template <class F>
__device__ void check_load(struct held<F> *a, const float4 *from)
{
#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2) {
        const float4 v = from[e / 2 * F::threads];
        a->M[e] = v.x, a->J[e] = v.y, a->M[e + 1] = v.z, a->J[e + 1] = v.w;
    }
}

/* A block or document that begins with token s takes over the memory. */
template <class F>
__device__ void take_over(struct held<F> *a, const struct plan *p, const struct scan_io &x, const struct docs &docs,
                          const struct seat &me, int s)
{
    if (p->opens >> s & 1) {
        const int64_t t = min(p->t0 + s, (int64_t)x.v.dim[0] - 1);
        load_memory<F>(a->M, a->J, x.state, docs.seq[t], p->h, p->v0 + me.row, me.col, p->enter[s]);
    } else
        scale<F>(a->M, a->J, p->enter[s]);
}

template <class F>
__device__ void add(struct held<F> *a, const struct shared<F> *sh, const struct seat &me, int u)
{
    const float *key = &sh->key[u][2 * me.col];
    float v[F::VT], b[F::VT];

    take_values<F::VT, 16>(v, b, &sh->value[u][2 * me.row]);
#pragma unroll
    for (int n = 0; n < F::KT; n += 2) {
        const float4 k = *(const float4 *)(key + 8 * n);
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            a->M[r * F::KT + n] = fmaf(v[r], k.y, a->M[r * F::KT + n]);
            a->J[r * F::KT + n] = fmaf(b[r], k.x, a->J[r * F::KT + n]);
            a->M[r * F::KT + n + 1] = fmaf(v[r], k.w, a->M[r * F::KT + n + 1]);
            a->J[r * F::KT + n + 1] = fmaf(b[r], k.z, a->J[r * F::KT + n + 1]);
        }
    }
}

/* Tokens 0..last of step n forward. */
template <class F>
__device__ void forth(struct held<F> *a, const struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                      const struct docs &docs, const struct seat &me, int n, int last)
{
    const unsigned begin = (unsigned)((p->ends << 1 | 1) >> n * STEP) & 255;

    if (begin & 1)
        take_over(a, p, x, docs, me, n * STEP);
    if (begin <= 1 && last == STEP - 1) {
#pragma unroll 2
        for (int u = 0; u < STEP; u++)
            add(a, sh, me, u);
        return;
    }
#pragma unroll 1
    for (int u = 0; u <= last; u++) {
        if (u && begin >> u & 1)
            take_over(a, p, x, docs, me, n * STEP + u);
        add(a, sh, me, u);
    }
}

/* The memory after token s, which ends a block. */
template <class F>
__device__ void restart(struct held<F> *a, const struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                         const struct tiled &w, const struct seat &me, int s)
{
    const int     n = s / STEP, last = s % STEP;
    const int64_t tile = p->t0 / TILE + (s == TILE - 1);

    if (s < TILE - 1 && s >= STEP - 1)
        check_load(a, check_at<F>(w, last == STEP - 1 ? n : n - 1));
    else if (s < STEP || p->sweep < STEPS)
        load_memory<F>(a->M, a->J, x.saved, tile, p->h, p->v0 + me.row, me.col, w.one);
    if (last < STEP - 1)
        forth(a, sh, p, x, w.docs, me, n, last);
}

/* The tile forward, keeping the memories at which its blocks end. */
template <class F>
__device__ void sweep(struct held<F> *a, struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                      const struct tiled &w, const struct seat &me)
{
    load_memory<F>(a->M, a->J, x.saved, p->t0 / TILE, p->h, p->v0 + me.row, me.col, w.one);
#pragma unroll 1
    for (int n = 0; n < p->sweep; n++) {
        convert(sh, p, x.scale, n, false);
        start_fetch(sh, p, n + 1 < p->sweep ? n + 1 : STEPS - 1, n + 1 == p->sweep);
        if (p->keep >> n & 1)
            check_store(a, check_at<F>(w, n - 1));
        forth(a, sh, p, x, w.docs, me, n, STEP - 1);
    }
    if (p->sweep < STEPS)
        check_store(a, check_at<F>(w, p->sweep - 1));
}
#endif
