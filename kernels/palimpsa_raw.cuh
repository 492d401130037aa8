/* palimpsa_raw.cuh - how palimpsa_read.cu takes the tokens of a small memory: as they came, without staging. */
#ifndef PALIMPSA_RAW_CUH
#define PALIMPSA_RAW_CUH
#include "palimpsa_read.cuh"

enum { GROUP = 4 };             /* tokens that are taken, used and summed at a time */

/* What a lane needs of a token: (k*k, k) / A, q, b and v. */
template <class F> struct token { float4 k[F::KT / 2]; float2 q[F::KT / 2]; float b[F::VT], v[F::VT], c; };

/* N bf16 side by side. */
template <int N>
__device__ inline void take(float to[N], const bf16 *from)
{
    const uint2 u = N == 4 ? *(const uint2 *)from : make_uint2(*(const uint32_t *)from, 0);

    static_assert(N == 2 || N == 4);
    to[0] = low(u.x), to[1] = high(u.x);
    if (N == 4)
        to[N - 2] = low(u.y), to[N - 1] = high(u.y);
}

/* A token that is not staged; it is the keys that are scaled. */
template <class F>
__device__ inline void take_raw(struct token<F> *y, const struct shared<F> *sh, const struct plan *p,
                                const struct seat &me, int n, int u)
{
    const struct raw_step<F> *raw = &sh->raw[n % F::slots];
    const float m = p->up[n * STEP + u];
    float k[F::KT], q[F::KT];

    take<F::KT>(k, &raw->k[u][me.col]);
    take<F::KT>(q, &raw->q[u][me.col]);
    take<F::VT>(y->b, &raw->b[u][me.row]);
    take<F::VT>(y->v, &raw->v[u][me.row]);
    y->c = p->c[n * STEP + u];
#pragma unroll
    for (int i = 0; i < F::KT; i += 2) {
        const float a = m * k[i], b = m * k[i + 1];
        y->k[i / 2] = make_float4(a * k[i], a, b * k[i + 1], b);
        y->q[i / 2] = make_float2(q[i], q[i + 1]);
    }
}

template <class F>
__device__ inline void use(struct held<F> *a, const struct token<F> *y, float sum[F::VT])
{
#pragma unroll
    for (int r = 0; r < F::VT; r++)
        sum[r] = 0.f;
#pragma unroll
    for (int n = 0; n < F::KT; n += 2)
        pair_of<F>(a, n, y->k[n / 2], y->q[n / 2], y->v, y->b, y->c, sum);
}

/* Sums over the four j by halving; lane j is left with token j's rows, and writes them. */
template <class F>
__device__ inline void put_group(struct shared<F> *sh, const struct plan *p, float scale, const float sum[GROUP][F::VT],
                                 const struct seat &me, int n, int u)
{
    float a[2][F::VT], b[F::VT];

    static_assert(F::VT == 4);
#pragma unroll
    for (int z = 0; z < 2; z++)
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            const float give = me.j & 2 ? sum[z][r] : sum[z + 2][r], keep = me.j & 2 ? sum[z + 2][r] : sum[z][r];
            a[z][r] = keep + __shfl_xor_sync(~0u, give, 2);
        }
#pragma unroll
    for (int r = 0; r < F::VT; r++) {
        const float give = me.j & 1 ? a[0][r] : a[1][r], keep = me.j & 1 ? a[1][r] : a[0][r];
        b[r] = keep + __shfl_xor_sync(~0u, give, 1);
    }
    u += me.j;
    if constexpr (F::direct) {
        const struct place o = p->o;
        if (n * STEP + u < p->left)
            *(uint2 *)(o.at + (unsigned)((n * STEP + u) * o.row + 2 * me.row)) =
                make_uint2(pair(scale * b[0], scale * b[1]), pair(scale * b[2], scale * b[3]));
    } else
        *(float4 *)&sh->out[n % F::slots][threadIdx.x / 32][u][me.row] = make_float4(b[0], b[1], b[2], b[3]);
}

/* Tokens from u on, of which none but perhaps the first is a base. */
template <class F>
__device__ inline void walk_group(struct held<F> *a, struct shared<F> *sh, const struct plan *p, float scale, int n,
                                  int u, const struct seat &me)
{
    struct token<F> y[GROUP];
    float sum[GROUP][F::VT];

#pragma unroll
    for (int z = 0; z < GROUP; z++)
        take_raw(&y[z], sh, p, me, n, u + z);
#pragma unroll
    for (int z = 0; z < GROUP; z++)
        use(a, &y[z], sum[z]);
    put_group(sh, p, scale, sum, me, n, u);
}

/* Tokens from u on, among which are bases. */
template <class F>
__device__ void walk_bases(struct held<F> *a, struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                           const struct docs &docs, int n, int u, bool first, const struct seat &me)
{
    const unsigned bases = (unsigned)(p->bases >> (n * STEP + u));
    float sum[GROUP][F::VT] = {};

#pragma unroll 1
    for (int z = 0; z < GROUP; z++) {
        struct token<F> y;
        float s[F::VT];
        if (n + u + z && bases >> z & 1)
            held_renew(a, x, docs, p, n * STEP + u + z, first, me);
        take_raw(&y, sh, p, me, n, u + z);
        use(a, &y, s);
#pragma unroll
        for (int i = 0; i < GROUP * F::VT; i++)
            sum[i / F::VT][i % F::VT] = i / F::VT == z ? s[i % F::VT] : sum[i / F::VT][i % F::VT];
    }
    put_group(sh, p, x.scale, sum, me, n, u);
}

/* Eight tokens as they came. */
template <class F>
__device__ void walk_raw(struct held<F> *a, struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                         const struct docs &docs, int n, bool first, const struct seat &me)
{
    const unsigned bases = (unsigned)(p->bases >> n * STEP) & 255;

    if (n == 0)                         /* every tile begins with one */
        held_renew(a, x, docs, p, 0, first, me);
    if (n ? !bases : bases == 1) {
#pragma unroll 1
        for (int u = 0; u < STEP; u += GROUP)
            walk_group(a, sh, p, x.scale, n, u, me);
    } else {
#pragma unroll 1
        for (int u = 0; u < STEP; u += GROUP)
            walk_bases(a, sh, p, x, docs, n, u, first, me);
    }
}
#endif
