/* palimpsa_reverse.cu - the gradients of every segment of the row, as if none came in at its end.
 *
 * A block owns BV rows of one head's memory and a segment of tokens. Its lanes hold the memory and its gradient in
 * registers, KT x VT elements each, and walk the segment's tiles from the last token to the first.
 *
 * Within a run of tokens t..e that decay little, a `block` below, with m_t the product of a over t+1..e, M' = m M,
 * J' = m J, c_t = m_t Ip and G = gM / m, H = gJ / m, a token is, elementwise,
 *
 *   r = 1 / (J' + c_t)   p = do M' r   dq += p   G += q do r   H -= q p r   s += q p r
 *   dk += (m v) G + 2 k (m b) H   dv += m k G   db += m k k H   M' -= (m v) k   J' -= (m b) k k
 *
 * a_t never divides: at a block's end the memory is loaded, from those saved every tile or from those that a walk
 * forward through the tile has kept (palimpsa_sweep.cuh), and a block is short enough for the subtractions to lose
 * nothing that matters (LOSS). ddecay is a running sum of c_t s - v dv - b db, which starts anew from <M,gM> + <J,gJ>
 * at every block's end: between ends it has no time to go wrong. */
#include "palimpsa_carry.cuh"
#include "palimpsa_job.cuh"
#include "palimpsa_sweep.cuh"

/* A pair of columns of a token backward; sum: s over the lane's elements. */
template <class F>
__device__ inline void back_pair(struct held<F> *a, int n, float4 k, float2 q, const float v[F::VT],
                                 const float b[F::VT], const float g[F::VT], float dv[F::VT], float db[F::VT], float c,
                                 float4 *col, float sum[2])
{
    const float kk[2] = { k.x, k.z }, kx[2] = { k.y, k.w }, qx[2] = { q.x, q.y };
    float dq[2], dk[2] = {}, y[2] = {}, s[2];

#pragma unroll
    for (int e = 0; e < 2; e++) {
        float gr[F::VT], h[F::VT];
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            h[r] = reciprocal(a->J[r * F::KT + n + e] + c);
            gr[r] = g[r] * h[r];
        }
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            const float p = a->M[r * F::KT + n + e] * gr[r];
            dq[e] = r ? dq[e] + p : p;
            h[r] *= p;
        }
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->G[r * F::KT + n + e] = fmaf(qx[e], gr[r], a->G[r * F::KT + n + e]);
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            a->H[r * F::KT + n + e] = fmaf(-qx[e], h[r], a->H[r * F::KT + n + e]);
            s[e] = r ? s[e] + h[r] : h[r];
        }
    }
#pragma unroll
    for (int r = 0; r < F::VT; r++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            dk[e] = fmaf(a->G[r * F::KT + n + e], v[r], dk[e]);
            y[e]  = fmaf(a->H[r * F::KT + n + e], b[r], y[e]);
        }
#pragma unroll
    for (int e = 0; e < 2; e++) {
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            dv[r] = fmaf(a->G[r * F::KT + n + e], kx[e], dv[r]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->M[r * F::KT + n + e] = fmaf(-v[r], kx[e], a->M[r * F::KT + n + e]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            db[r] = fmaf(a->H[r * F::KT + n + e], kk[e], db[r]);
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->J[r * F::KT + n + e] = fmaf(-b[r], kk[e], a->J[r * F::KT + n + e]);
        dk[e] = fmaf(kx[e], y[e], dk[e]);
        sum[e] = fmaf(qx[e], s[e], sum[e]);
    }
    *col = make_float4(dq[0], dk[0], dq[1], dk[1]);
}

/* What a lane needs of a token. With few elements it is there before the token before is done; else keys and queries
 * are looked up pair by pair. */
template <class F> struct token {
    float4 k[F::few ? F::KT / 2 : 1];
    float2 q[F::few ? F::KT / 2 : 1];
    float  v[F::VT], b[F::VT], g[F::VT], c;
};

template <class F>
__device__ inline void take_token(struct token<F> *x, const struct shared<F> *sh, const struct plan *p,
                                  const struct seat &me, int n, int u)
{
    x->c = p->c[n * STEP + u];
    take_values<F::VT, 16>(x->v, x->b, &sh->value[u][2 * me.row]);
#pragma unroll
    for (int r = 0; r < F::VT; r += 2) {
        const float2 d = *(const float2 *)&sh->grad[u][me.row + 8 * r];
        x->g[r] = d.x, x->g[r + 1] = d.y;
    }
    if constexpr (F::few) {
#pragma unroll
        for (int m = 0; m < F::KT; m += 2) {
            x->k[m / 2] = *(const float4 *)&sh->key[u][2 * me.col + 8 * m];
            x->q[m / 2] = *(const float2 *)&sh->query[u][me.col + 4 * m];
        }
    }
}

/* A token backward; `dot` is added to its share of ddecay less the next token's, which is c s - v dv - b db. */
template <class F>
__device__ inline void back(struct held<F> *a, struct shared<F> *sh, const struct seat &me, int u,
                            const struct token<F> *x, float dot, float *prior)
{
    float *col = &sh->col[u % BATCH][me.rows][2 * me.col];
    float *row = &sh->row[u % BATCH][me.cols][2 * me.row];
    float dv[F::VT] = {}, db[F::VT] = {}, sum[2] = {};

#pragma unroll
    for (int n = 0; n < F::KT; n += 2) {
        const float4 k = F::few ? x->k[F::few ? n / 2 : 0] : *(const float4 *)&sh->key[u][2 * me.col + 8 * n];
        const float2 q = F::few ? x->q[F::few ? n / 2 : 0] : *(const float2 *)&sh->query[u][me.col + 4 * n];
        back_pair<F>(a, n, k, q, x->v, x->b, x->g, dv, db, x->c, (float4 *)(col + 8 * n), sum);
    }
#pragma unroll
    for (int r = 0; r < F::VT; r += 2)
        *(float4 *)(row + 16 * r) = make_float4(db[r], dv[r], db[r + 1], dv[r + 1]);
    const float part = x->c * (sum[0] + sum[1]);
    float y = part, y2 = 0.f;
#pragma unroll
    for (int r = 0; r < F::VT; r++) {
        y  = fmaf(-x->v[r], dv[r], y);
        y2 = fmaf(x->b[r], db[r], y2);
    }
    *prior += part;
    sh->own[u % BATCH][threadIdx.x] = y - y2 + dot;
}

/* Over the first token of a document: its memory's gradient goes out, that of the memory before comes in. */
template <class F>
__device__ void cross(struct held<F> *a, const struct plan *p, const struct scan_io &g, const struct tiled &w,
                      const struct seat &me, int s)
{
    const int64_t t = p->t0 + s;
    const bool inside = !(p->last && s == 0);

    if (t < w.T)
        store_memory<F>(a->G, a->H, g.state, w.docs.seq[t], p->h, p->v0 + me.row, me.col, p->enter[s]);
    if (inside)
        load_memory<F>(a->G, a->H, g.next, w.docs.seq[t - 1], p->h, p->v0 + me.row, me.col, w.one);
    else
        scale<F>(a->G, a->H, 0.f);
}

/* What comes in at a segment's end: the gradient of a document's last memory, if one ends there. */
template <class F>
__device__ void enter_segment(struct held<F> *a, const struct plan *p, const struct scan_io &g, const struct tiled &w,
                              const struct seat &me)
{
    const int64_t end = p->t0 + TILE;

    scale<F>(a->M, a->J, 0.f);
    if (end <= w.T && opens(w, end))
        load_memory<F>(a->G, a->H, g.next, w.docs.seq[end - 1], p->h, p->v0 + me.row, me.col, w.one);
    else {
#pragma unroll
        for (int e = 0; e < F::SIZE; e++)
            a->G[e] = a->H[e] = 0.f;
    }
}

template <class F>
__device__ void leave_segment(const struct held<F> *a, const struct plan *p, const struct tiled &w,
                              const struct seat &me, float prior)
{
    float2 *to = (float2 *)w.grad + ((p->segment * w.H + p->h) * w.V + p->v0 + me.row) * F::K + me.col;

#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2)
        *(float4 *)(to + spot_of<F>(e)) = make_float4(a->G[e], a->H[e], a->G[e + 1], a->H[e + 1]);
    prior = warp_sum(prior);
    if (threadIdx.x % 32 == 0)
        w.prior[((p->segment * (w.V / F::BV) + p->part) * F::KS + threadIdx.x / 32) * w.H + p->h] = -prior / p->Ip;
}

/* Over a block's first token s: its gradients become those of the memory before it. */
template <class F>
__device__ void leave_block(struct held<F> *a, const struct plan *p, const struct scan_io &g, const struct tiled &w,
                            const struct seat &me, int s)
{
    if (p->opens >> s & 1)
        cross(a, p, g, w, me, s);
    else
        scale<F>(a->G, a->H, p->enter[s]);
}

/* Into a block by its last token s. Returns the lane's share of <M,gM> + <J,gJ> after it. */
template <class F>
__device__ float enter_block(struct held<F> *a, const struct shared<F> *sh, const struct plan *p,
                             const struct scan_io &x, const struct scan_io &g, const struct tiled &w,
                             const struct seat &me, int s)
{
    float dot = 0.f;

    if (s < TILE - 1)
        leave_block(a, p, g, w, me, s + 1);
    restart(a, sh, p, x, w, me, s);
#pragma unroll
    for (int e = 0; e < F::SIZE; e++)
        dot = fmaf(a->M[e], a->G[e], fmaf(a->J[e], a->H[e], dot));
    return dot;
}

/* Step n of the tile backward. */
template <class F>
__device__ void walk_step(struct held<F> *a, struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                          const struct scan_io &g, const struct tiled &w, const struct seat &me, int n, float *prior)
{
    const unsigned end = (unsigned)(p->ends >> n * STEP) & 255;

#pragma unroll 1
    for (int i0 = STEP - BATCH; i0 >= 0; i0 -= BATCH) {
#pragma unroll 1
        for (int i = i0 + BATCH - 1; i >= i0; i--) {
            float dot = 0.f;
            struct token<F> now, next;
            if (__any_sync(~0u, end >> i & 1))          /* one answer for all lanes */
                dot = enter_block(a, sh, p, x, g, w, me, n * STEP + i);
            take_token(&now, sh, p, me, n, i);
            if (F::few && i & 1 && !__any_sync(~0u, end >> (i - 1) & 1)) {
                take_token(&next, sh, p, me, n, i - 1);
                back(a, sh, me, i--, &now, dot, prior);
                back(a, sh, me, i, &next, 0.f, prior);
            } else
                back(a, sh, me, i, &now, dot, prior);
        }
        meet<F>();
        if constexpr (F::few && F::threads == 32)
            carry_few(sh, p, w, n * STEP + i0);
        else
            carry(sh, p, w, n * STEP + i0);
        meet<F>();
    }
}

/* A job: a segment of one head's rows. While one warp plans a tile another finishes the one before. */
template <class F>
__device__ void walk(struct held<F> *a, struct shared<F> *sh, const struct scan_io &x, const struct scan_io &g,
                     const struct tiled &w, const struct seat &me, int job)
{
    const int64_t first = job / (w.V / F::BV) / w.H * (w.segment / TILE);
    const int64_t last = min(first + w.segment / TILE, (w.T + TILE - 1) / TILE) - 1;
    const struct plan *p = NULL, *before;
    const int h = job / (int)(w.V / F::BV) % (int)w.H;
    struct coming c;
    float prior = 0.f;

    for (int64_t tile = last; tile >= first; tile--) {
        before = p, p = &sh->plan[tile % 2];
        __syncthreads();
        if (threadIdx.x / 32 == F::KS - 1 && before)
            put_decay(sh->y, before, x, g, w);
        if (tile == last || !F::few)
            c = look(x, w, tile, h);
        if (threadIdx.x < 32)
            make_plan<F>(&sh->plan[tile % 2], tile == last ? NULL : before, tile, c, job, x, g, w);
        __syncthreads();
        start_fetch(sh, p, p->sweep ? 0 : STEPS - 1, p->sweep == 0);
        if (tile == last)
            enter_segment(a, p, g, w, me);
        if (p->sweep)
            sweep(a, sh, p, x, w, me);
#pragma unroll 1
        for (int n = STEPS - 1; n >= 0; n--) {
            convert(sh, p, x.scale, n, true);
            if (F::few && n == STEPS - 2 && tile > first)
                c = look(x, w, tile - 1, h);
            if (n > 0)
                start_fetch(sh, p, n - 1, true);
            walk_step(a, sh, p, x, g, w, me, n, &prior);
        }
        leave_block(a, p, g, w, me, 0);
    }
    __syncthreads();
    if (threadIdx.x < 32)
        put_decay(sh->y, p, x, g, w);
    leave_segment(a, p, w, me, prior);
}

template <class F, int BLOCKS>
__global__ void __launch_bounds__(F::threads, BLOCKS) reverse_kernel(struct scan_io x, struct scan_io g, struct tiled w)
{
    extern __shared__ __align__(16) char memory[];
    struct shared<F> *sh = (struct shared<F> *)memory;
    const struct seat me = my_seat<F>();
    struct held<F> a;

    for (;;) {
        __syncthreads();
        if (threadIdx.x == 0)
            sh->job = atomicAdd(w.next, 1);
        __syncthreads();
        const int job = sh->job;
        if (job >= w.segments * w.H * (w.V / F::BV))
            return;
        walk(&a, sh, x, g, w, me, job);
    }
}

/* 8 warps a multiprocessor, as each needs all the registers that a thread may have. */
template <class F>
static void launch(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w)
{
    constexpr int BLOCKS = 8 / F::KS;
    const int     bytes = (int)sizeof(struct shared<F>);
    const int64_t jobs = w->segments * w->H * (w->V / F::BV), blocks = min64(BLOCKS * cuda_of(d)->sms, jobs);

    CUDA(cudaMemsetAsync(w->next, 0, sizeof *w->next, stream_of(d)));
    CUDA(cudaFuncSetAttribute(reverse_kernel<F, BLOCKS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse_kernel<F, BLOCKS><<<(unsigned)blocks, F::threads, bytes, stream_of(d)>>>(*x, *g, *w);
    CUDA(cudaGetLastError());
}

void palimpsa_reverse(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w)
{
    switch (x->k.dim[2]) {
    case 16:  launch<form<4, 1, 4>>(d, x, g, w); break;
    case 48:  launch<form<6, 2, 6>>(d, x, g, w); break;
    case 64:  launch<form<8, 2, 4>>(d, x, g, w); break;
    case 96:  launch<form<6, 4, 6>>(d, x, g, w); break;
    case 128: launch<form<8, 4, 4>>(d, x, g, w); break;
    default:  BUG("no reverse kernel for K = %d", (int)x->k.dim[2]);
    }
}
