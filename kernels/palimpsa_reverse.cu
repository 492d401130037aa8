/* palimpsa_reverse.cu - the gradients of every segment of the row, as if none came in at its end.
 *
 * A unit of warps owns BV rows of one head's memory and a segment of tokens. Its walkers hold the memory and
 * its gradient in registers, KT x VT elements a lane, and walk the segment's tiles from the last token to the
 * first; its porters (palimpsa_port.cuh) bring them the tokens and carry away the sums. Walkers never wait for
 * each other.
 *
 * A block is some tokens t..e that decay little. With m_t the product of a over t+1..e, M' = m M, J' = m J,
 * c_t = m_t Ip and G = gM / m, H = gJ / m, a token is, elementwise,
 *
 *   r = 1 / (J' + c_t)   p = do M' r   dq += p   G += q do r   H -= q p r   s += q p r
 *   dk += (m v) G + 2 k (m b) H   dv += m k G   db += m k k H   M' -= (m v) k   J' -= (m b) k k
 *
 * a_t never divides: at a block's end the memory is loaded, from those saved every tile or from those that a
 * walk forward through the tile has kept, and a block is short enough for the subtractions to lose nothing that
 * matters (LOSS). ddecay is a running sum of c_t s - v dv - b db, which starts anew from <M,gM> + <J,gJ> at
 * every block's end: between ends it has no time to go wrong. */
#include "palimpsa_port.cuh"

template <class F> struct held { float M[F::SIZE], J[F::SIZE], G[F::SIZE], H[F::SIZE]; };

/* Where a walker sits: lane (i, j), its first row and column, its number in the unit. */
struct seat { int j, group_row, group_col, row, col, id; };

template <class F>
__device__ struct seat seat_of(void)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % F::walkers, i = lane / 4, j = lane % 4;
    const int kw = warp % F::KS, vw = warp / F::KS;

    return { j, vw * 8 + i, kw * 4 + j, (vw * 8 + i) * F::VT, (kw * 4 + j) * F::KT, warp * 32 + lane };
}

template <class F>
__device__ void load_memory(float M[F::SIZE], float J[F::SIZE], const struct tensor *from, int64_t n, int h, int v, int col,
                            float f)
{
    const float *m = memory_at(from[0], n, h, v), *p = memory_at(from[1], n, h, v);

#pragma unroll
    for (int e = 0; e < F::SIZE; e++) {
        const int at = e / F::KT * F::K + col + e % F::KT;
        M[e] = m ? m[at] * f : 0.f;
        J[e] = p ? p[at] * f : 0.f;
    }
}

template <class F>
__device__ void store_memory(const float M[F::SIZE], const float J[F::SIZE], const struct tensor *to, int64_t n, int h, int v,
                             int col, float f)
{
    float *m = memory_at(to[0], n, h, v), *p = memory_at(to[1], n, h, v);

#pragma unroll
    for (int e = 0; e < F::SIZE; e++) {
        const int at = e / F::KT * F::K + col + e % F::KT;
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
__device__ inline float4 *check_at(const struct tiled &w, int unit, int slot, int id)
{
    return w.check + ((int64_t)unit * (STEPS - 1) + slot) * (F::SIZE / 2) * 32 * F::walkers + id;
}

template <class F>
__device__ void check_store(const struct held<F> *a, float4 *to)
{
#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2)
        to[e / 2 * 32 * F::walkers] = make_float4(a->M[e], a->J[e], a->M[e + 1], a->J[e + 1]);
}

template <class F>
__device__ void check_load(struct held<F> *a, const float4 *from)
{
#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2) {
        const float4 v = from[e / 2 * 32 * F::walkers];
        a->M[e] = v.x, a->J[e] = v.y, a->M[e + 1] = v.z, a->J[e + 1] = v.w;
    }
}

/* Writes (b, v) of the lane's rows of a token. */
template <class F>
__device__ inline void lane_values(float v[F::VT], float b[F::VT], const float *from)
{
#pragma unroll
    for (int r = 0; r < F::VT; r += 2) {
        const float4 a = *(const float4 *)(from + 2 * r);
        b[r] = a.x, v[r] = a.y, b[r + 1] = a.z, v[r + 1] = a.w;
    }
}

/* A token forward, before which the block that starts with it, if one does, takes over the memory. */
template <class F>
__device__ void forth(struct held<F> *a, const struct step<F> *st, const struct plan *p, const struct scan_io &x,
                      const struct docs &docs, const struct seat &me, int s)
{
    const float *key = &st->key[s % STEP][2 * me.col];
    float v[F::VT], b[F::VT];

    if (p->opens >> s & 1) {
        const int64_t t = min(p->t0 + s, (int64_t)x.v.dim[0] - 1);
        load_memory<F>(a->M, a->J, x.state, docs.seq[t], p->h, p->v0 + me.row, me.col, p->enter[s]);
    } else if (s == 0 || p->ends >> (s - 1) & 1)
        scale<F>(a->M, a->J, p->enter[s]);
    lane_values<F>(v, b, &st->value[s % STEP][2 * me.row]);
#pragma unroll
    for (int n = 0; n < F::KT; n += 2) {
        const float4 k = *(const float4 *)(key + turned<F>(n, me.j));
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            a->M[r * F::KT + n] = fmaf(v[r], k.y, a->M[r * F::KT + n]);
            a->J[r * F::KT + n] = fmaf(b[r], k.x, a->J[r * F::KT + n]);
            a->M[r * F::KT + n + 1] = fmaf(v[r], k.w, a->M[r * F::KT + n + 1]);
            a->J[r * F::KT + n + 1] = fmaf(b[r], k.z, a->J[r * F::KT + n + 1]);
        }
    }
}

/* A pair of columns of a token backward; sum: s over the lane's elements. */
template <class F>
__device__ inline void back_pair(struct held<F> *a, int n, float4 k, float2 q, const float v[F::VT], const float b[F::VT],
                                 const float g[F::VT], float dv[F::VT], float db[F::VT], float c, float4 *col, float sum[2])
{
    const float kk[2] = { k.x, k.z }, kx[2] = { k.y, k.w }, qx[2] = { q.x, q.y };
    float dq[2] = {}, dk[2] = {}, y[2] = {}, s[2] = {};

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
            dq[e] += p;
            h[r] *= p;
        }
#pragma unroll
        for (int r = 0; r < F::VT; r++)
            a->G[r * F::KT + n + e] = fmaf(qx[e], gr[r], a->G[r * F::KT + n + e]);
#pragma unroll
        for (int r = 0; r < F::VT; r++) {
            a->H[r * F::KT + n + e] = fmaf(-qx[e], h[r], a->H[r * F::KT + n + e]);
            s[e] += h[r];
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

/* A token backward; returns s over the lane's elements. */
template <class F>
__device__ float back(struct held<F> *a, const struct step<F> *st, struct sums<F> *to, const struct seat &me, int u, int part,
                      float c)
{
    const float *key = &st->key[u][2 * me.col], *query = &st->query[u][me.col];
    float *col = &to->col[part][me.group_row][2 * me.col], *row = &to->row[part][me.group_col][2 * me.row];
    float v[F::VT], b[F::VT], g[F::VT], dv[F::VT] = {}, db[F::VT] = {}, sum[2] = {};

    lane_values<F>(v, b, &st->value[u][2 * me.row]);
#pragma unroll
    for (int r = 0; r < F::VT; r += 2) {
        const float2 d = *(const float2 *)&st->grad[u][me.row + r];
        g[r] = d.x, g[r + 1] = d.y;
    }
#pragma unroll
    for (int n = 0; n < F::KT; n += 2)
        back_pair<F>(a, n, *(const float4 *)(key + turned<F>(n, me.j)), *(const float2 *)(query + n), v, b, g, dv, db, c,
                     (float4 *)(col + turned<F>(n, me.j)), sum);
#pragma unroll
    for (int r = 0; r < F::VT; r += 2)
        *(float4 *)(row + 2 * r) = make_float4(db[r], dv[r], db[r + 1], dv[r + 1]);
    return sum[0] + sum[1];
}

/* The memory after token s, which ends a block. Returns the lane's share of <M,gM> + <J,gJ>. */
template <class F>
__device__ float restart(struct held<F> *a, const struct unit<F> *u, const struct step<F> *st, const struct plan *p,
                         const struct scan_io &x, const struct tiled &w, const struct seat &me, int unit, int s)
{
    const int64_t tile = p->t0 / TILE;
    float dot = 0.f;

    if (s == TILE - 1) {
        if (p->sweep < STEPS)
            load_memory<F>(a->M, a->J, x.saved, tile + 1, p->h, p->v0 + me.row, me.col, 1.f);
    } else if (s % STEP == STEP - 1)
        check_load(a, check_at<F>(w, unit, s / STEP, me.id));
    else {
        if (s < STEP)
            load_memory<F>(a->M, a->J, x.saved, tile, p->h, p->v0 + me.row, me.col, 1.f);
        else
            check_load(a, check_at<F>(w, unit, s / STEP - 1, me.id));
#pragma unroll 1
        for (int z = s / STEP * STEP; z <= s; z++)
            forth(a, st, p, x, w.docs, me, z);
    }
#pragma unroll
    for (int e = 0; e < F::SIZE; e++)
        dot = fmaf(a->M[e], a->G[e], fmaf(a->J[e], a->H[e], dot));
    return dot;
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
        load_memory<F>(a->G, a->H, g.next, w.docs.seq[t - 1], p->h, p->v0 + me.row, me.col, 1.f);
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
    if (end <= w.T && opens(w.docs, end, w.T))
        load_memory<F>(a->G, a->H, g.next, w.docs.seq[end - 1], p->h, p->v0 + me.row, me.col, 1.f);
    else {
#pragma unroll
        for (int e = 0; e < F::SIZE; e++)
            a->G[e] = a->H[e] = 0.f;
    }
}

template <class F>
__device__ void leave_segment(const struct held<F> *a, const struct plan *p, const struct tiled &w, const struct seat &me,
                              float prior)
{
    float2 *to = (float2 *)w.grad + ((p->segment * w.H + p->h) * w.V + p->v0 + me.row) * F::K + me.col;

#pragma unroll
    for (int e = 0; e < F::SIZE; e += 2)
        *(float4 *)(to + e / F::KT * F::K + e % F::KT) = make_float4(a->G[e], a->H[e], a->G[e + 1], a->H[e + 1]);
    prior = warp_sum(prior);
    if (me.id % 32 == 0)
        w.prior[(((int64_t)p->segment * (w.V / F::BV) + p->part) * F::walkers + me.id / 32) * w.H + p->h] = -prior;
}

/* The tile forward, keeping the memories at which its blocks end. */
template <class F>
__device__ void sweep(struct held<F> *a, struct unit<F> *u, const struct plan *p, const struct scan_io &x,
                      const struct tiled &w, const struct seat &me, int unit, int *turn)
{
    load_memory<F>(a->M, a->J, x.saved, p->t0 / TILE, p->h, p->v0 + me.row, me.col, 1.f);
#pragma unroll 1
    for (int n = 0; n < p->sweep; n++, ++*turn) {
        barrier_wait(&u->full[*turn % 2], *turn / 2);
        if (p->keep >> n & 1)
            check_store(a, check_at<F>(w, unit, n - 1, me.id));
#pragma unroll 1
        for (int s = n * STEP; s < (n + 1) * STEP; s++)
            forth(a, &u->step[*turn % 2], p, x, w.docs, me, s);
        barrier_arrive(&u->used[*turn % 2]);
    }
    if (p->sweep < STEPS)
        check_store(a, check_at<F>(w, unit, p->sweep - 1, me.id));
}

template <class F>
__device__ void walk(struct unit<F> *u, const struct scan_io &x, const struct scan_io &g, const struct tiled &w, int unit)
{
    const struct seat me = seat_of<F>();
    struct held<F> a = {};
    float prior = 0.f, Ip = 0.f;
    int turn = 0, job = 0;

    for (int tile = 0;; tile++) {
        const struct plan *p = &u->plan[tile % 2];
        barrier_wait(&u->full[turn % 2], turn / 2);
        if (!p->work)
            return;
        if (p->first) {
            enter_segment(&a, p, g, w, me);
            Ip = expf(((const float *)x.prior[0].data)[p->h]);
            prior = 0.f;
        }
        if (p->sweep)
            sweep(&a, u, p, x, w, me, unit, &turn);
#pragma unroll 1
        for (int s = TILE - 1; s >= 0; s--) {
            const struct step<F> *st = &u->step[turn % 2];
            const int part = s % PART;
            float dot = 0.f;
            if (s % STEP == STEP - 1)
                barrier_wait(&u->full[turn % 2], turn / 2);
            if (part == PART - 1)
                barrier_wait(&u->cleared[job % 2], job / 2 + 1);
            if (p->ends >> s & 1)
                dot = restart(&a, u, st, p, x, w, me, unit, s);
            const float m = p->m[s], sum = back(&a, st, &u->sums[job % 2], me, s % STEP, part, Ip * m);
            prior = fmaf(m, sum, prior);
            u->sums[job % 2].all[part][me.id] = fmaf(Ip * m, sum, dot);
            if (p->opens >> s & 1)
                cross(&a, p, g, w, me, s);
            else if (s == 0 || p->ends >> (s - 1) & 1)
                scale<F>(a.G, a.H, p->enter[s]);
            if (part == 0)
                barrier_arrive(&u->summed[job++ % 2]);
            if (s % STEP == 0)
                barrier_arrive(&u->used[turn++ % 2]);
        }
        if (p->last)
            leave_segment(&a, p, w, me, prior);
    }
}

template <class F>
__global__ void __launch_bounds__(THREADS, 1) reverse_kernel(struct scan_io x, struct scan_io g, struct tiled w)
{
#if __CUDA_ARCH__ >= 900
    extern __shared__ __align__(16) char shared[];
    const int warp = threadIdx.x / 32, mine = warp < WALKERS ? warp / F::walkers : (warp - WALKERS) / F::porters;
    struct unit<F> *u = (struct unit<F> *)shared + mine;

    if (threadIdx.x < F::units)
        open_unit((struct unit<F> *)shared + threadIdx.x);
    __syncthreads();
    if (warp < WALKERS) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        walk(u, x, g, w, blockIdx.x * F::units + mine);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        port(u, x, g, w, 1 + mine);
    }
#endif
}

template <class F>
static void launch(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w)
{
    const int     bytes = F::units * (int)sizeof(struct unit<F>);
    const int64_t jobs = w->segments * w->H * (w->V / F::BV), blocks = min64(cuda_of(d)->sms, ceil_div(jobs, F::units));

    CUDA(cudaMemsetAsync(w->next, 0, sizeof *w->next, stream_of(d)));
    CUDA(cudaFuncSetAttribute(reverse_kernel<F>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    reverse_kernel<F><<<(unsigned)blocks, THREADS, bytes, stream_of(d)>>>(*x, *g, *w);
    CUDA(cudaGetLastError());
}

void palimpsa_reverse(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct tiled *w)
{
    switch (x->k.dim[2]) {
    case 48:  launch<form<6, 2, 6, 1>>(d, x, g, w); break;
    case 96:  launch<form<6, 4, 6, 2>>(d, x, g, w); break;
    case 128: launch<form<8, 4, 4, 2>>(d, x, g, w); break;
    default:  BUG("no reverse kernel for K = %d", (int)x->k.dim[2]);
    }
}
