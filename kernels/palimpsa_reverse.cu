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
 * a_t never divides: at a block's end the memory is loaded, from those saved every tile or from those that a
 * walk forward through the tile has kept, and a block is short enough for the subtractions to lose nothing that
 * matters (LOSS). ddecay is a running sum of c_t s - v dv - b db, which starts anew from <M,gM> + <J,gJ> at
 * every block's end: between ends it has no time to go wrong. */
#include "palimpsa_plan.cuh"

template <class F> struct held { float M[F::SIZE], J[F::SIZE], G[F::SIZE], H[F::SIZE]; };

/* Where a lane sits: its j, its group of rows and of columns, its first row and column. */
struct seat { int j, group_row, group_col, row, col; };

template <class F>
__device__ struct seat my_seat(void)
{
    const int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4, group = (int)threadIdx.x / 32 * 4 + j;

    return { j, i, group, i * F::VT, group * F::KT };
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

    take_values<F::VT>(v, b, &sh->value[u][2 * me.row]);
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

/* A pair of columns of a token backward; sum: s over the lane's elements. */
template <class F>
__device__ inline void back_pair(struct held<F> *a, int n, float4 k, float2 q, const float v[F::VT], const float b[F::VT], const float *grad,
                                 float dv[F::VT], float db[F::VT], float c, float4 *col, float sum[2])
{
    const float kk[2] = { k.x, k.z }, kx[2] = { k.y, k.w }, qx[2] = { q.x, q.y };
    float dq[2], dk[2] = {}, y[2] = {}, s[2], g[F::VT];

#pragma unroll
    for (int r = 0; r < F::VT; r += 2) {
        const float2 d = *(const float2 *)(grad + r);
        g[r] = d.x, g[r + 1] = d.y;
    }
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

/* A token backward; returns the lane's share of c s - v dv - b db, and of c s in `part`. */
template <class F>
__device__ float back(struct held<F> *a, struct shared<F> *sh, const struct seat &me, int u, float c, float *part)
{
    const float *key = &sh->key[u][2 * me.col], *query = &sh->query[u][me.col];
    float *col = &sh->col[u % BATCH][me.group_row][2 * me.col], *row = &sh->row[u % BATCH][me.group_col][2 * me.row];
    float dv[F::VT] = {}, db[F::VT] = {}, sum[2] = {}, v[F::VT], b[F::VT];

    take_values<F::VT>(v, b, &sh->value[u][2 * me.row]);

#pragma unroll
    for (int n = 0; n < F::KT; n += 2)
        back_pair<F>(a, n, *(const float4 *)(key + turned<F>(n, me.j)), *(const float2 *)(query + n),
                     v, b, &sh->grad[u][me.row], dv, db, c, (float4 *)(col + turned<F>(n, me.j)), sum);
#pragma unroll
    for (int r = 0; r < F::VT; r += 2)
        *(float4 *)(row + 2 * r) = make_float4(db[r], dv[r], db[r + 1], dv[r + 1]);
    float y = *part = c * (sum[0] + sum[1]), y2 = 0.f;
#pragma unroll
    for (int r = 0; r < F::VT; r++) {
        y  = fmaf(-v[r], dv[r], y);
        y2 = fmaf(b[r], db[r], y2);
    }
    return y - y2;
}

/* The memory after token s, which ends a block. Returns the lane's share of <M,gM> + <J,gJ>. */
template <class F>
__device__ float restart(struct held<F> *a, const struct shared<F> *sh, const struct plan *p, const struct scan_io &x,
                         const struct tiled &w, const struct seat &me, int s)
{
    const int     n = s / STEP, last = s % STEP;
    const int64_t tile = p->t0 / TILE + (s == TILE - 1);
    float dot = 0.f;

    if (s < TILE - 1 && s >= STEP - 1)
        check_load(a, check_at<F>(w, last == STEP - 1 ? n : n - 1));
    else if (s < STEP || p->sweep < STEPS)
        load_memory<F>(a->M, a->J, x.saved, tile, p->h, p->v0 + me.row, me.col, 1.f);
    if (last < STEP - 1)
        forth(a, sh, p, x, w.docs, me, n, last);
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
    if (threadIdx.x % 32 == 0)
        w.prior[(((int64_t)p->segment * (w.V / F::BV) + p->part) * F::KS + threadIdx.x / 32) * w.H + p->h] = -prior / p->Ip;
}

/* Where a gradient goes; dq and dk perhaps to this part's place in scratch, in fp32. */
__device__ inline struct place way_out(const struct tensor &a, float *scratch, const struct plan *p, int64_t K, int c,
                                       const struct tiled &w)
{
    if (scratch)
        return { (char *)(scratch + ((p->part * w.T + p->t0) * w.H + p->h) * K), 4 * (int)(w.H * K), 4 };
    return a.data ? place_of(a, p->t0, p->h, c) : place{ (char *)w.dump, 0, 2 };
}

template <class F>
__device__ void plan_places(struct plan *p, const struct scan_io &x, const struct scan_io &g, const struct tiled &w)
{
    p->k = place_of(x.k, p->t0, p->h * x.k.dim[1] / w.H, 0);
    p->q = place_of(x.q, p->t0, p->h * x.q.dim[1] / w.H, 0);
    p->v = place_of(x.v, p->t0, p->h, p->v0);
    p->b = place_of(x.beta, p->t0, p->h, p->v0);
    p->g = place_of(g.o, p->t0, p->h, p->v0);
    p->dq = way_out(g.q, w.dq, p, F::K, 0, w);
    p->dk = way_out(g.k, w.dk, p, F::K, 0, w);
    p->dv = way_out(g.v, NULL, p, F::K, p->v0, w);
    p->db = way_out(g.beta, NULL, p, F::K, p->v0, w);
}

/* Plans a tile of a job; one warp. */
template <class F>
__device__ void make_plan(struct plan *p, int64_t tile, int job, const struct scan_io &x, const struct scan_io &g, const struct tiled &w)
{
    const int lane = threadIdx.x % 32, parts = (int)(w.V / F::BV), part = job % parts, h = job / parts % (int)w.H;
    const int segment = job / parts / (int)w.H;
    const float Ip = expf(((const float *)x.prior[0].data)[h]);
    const bool  first = (tile + 1) * TILE >= min((segment + 1) * w.segment, w.T), last = tile * TILE == segment * w.segment;
    float own[2], u[2];
    bool open[2];
    unsigned keep = 0;

    for (int z = 0; z < 2; z++) {
        own[z] = u[z] = forgetting(x, tile * TILE + lane + 32 * z, h);
        open[z] = opens(w.docs, tile * TILE + lane + 32 * z, w.T);
    }
    suffix(u);
    const float rest = first ? 0.f : p->sum, total = __shfl_sync(~0u, u[0], 0) + rest;
    u[0] -= own[0], u[1] -= own[1];
    const uint64_t begin = (uint64_t)__ballot_sync(~0u, open[1]) << 32 | __ballot_sync(~0u, open[0]);
    const uint64_t ends = block_ends(u) | begin >> 1;
    const bool any = begin || (!first && p->open);
    for (int z = 0; z < 2; z++) {
        const int s = lane + 32 * z, e = __ffsll(ends >> s) - 1 + s;
        const float a = __shfl_sync(~0u, u[0], e & 31), b = __shfl_sync(~0u, u[1], e & 31), to = e < 32 ? a : b;
        p->m[s] = expf(to - u[z]);
        p->c[s] = Ip * p->m[s];
        p->enter[s] = expf(to - u[z] - own[z]);
    }
    for (int n = 1; n < STEPS; n++)         /* a block ends right before the step or inside it */
        keep |= (unsigned)((ends >> (STEP * n - 1) & 0xff) != 0) << n;
    __syncwarp();
    if (lane > 0)
        return;
    p->ends = ends, p->opens = begin, p->keep = keep;
    p->sweep = (tile + 1) * TILE < w.T ? 31 - __clz(keep | 1) : STEPS;
    p->t0 = tile * TILE, p->left = (int)min((int64_t)TILE, w.T - p->t0);
    p->h = h, p->v0 = part * F::BV, p->segment = segment, p->part = part;
    p->Ip = Ip, p->sum = total, p->open = any, p->first = first, p->last = last;
    plan_places<F>(p, x, g, w);
    if (part == 0)
        w.rest[tile * w.H + h] = rest;
    if (last && part == 0)
        w.grad_kept[segment * w.H + h] = any ? 0.f : expf(-total);
}

/* Fetches step n of the tile; `all`: also what only the way back needs. */
template <class F>
__device__ void start_fetch(struct shared<F> *sh, int n, bool all)
{
    const struct plan *p = &sh->plan;

    fetch_rows<F::K / 8, F::threads>(sh->raw.k, p->k, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.v, p->v, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.b, p->b, n * STEP, p->left);
    if (all) {
        fetch_rows<F::K / 8, F::threads>(sh->raw.q, p->q, n * STEP, p->left);
        fetch_rows<F::BV / 8, F::threads>(sh->raw_g, p->g, n * STEP, p->left);
    }
}

/* Makes step n ready; every lane is done with the one before. */
template <class F>
__device__ void convert(struct shared<F> *sh, float scale, int n, bool all)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;
    float a[8], b[8];

    fetched();
    __syncthreads();
    for (int i = threadIdx.x; i < STEP * KC; i += F::threads) {
        const int r = i / KC, c = i % KC * 8;
        unpack(a, *(const uint4 *)&sh->raw.k[r][c]);
        put_keys<F>(sh->key[r], a, c, .5f);
        if (all) {
            unpack(a, *(const uint4 *)&sh->raw.q[r][c]);
            put8(&sh->query[r][c], a);
        }
    }
    for (int i = threadIdx.x; i < STEP * VC; i += F::threads) {
        const int r = i / VC, c = i % VC * 8;
        const float m = sh->plan.m[n * STEP + r];
        unpack(a, *(const uint4 *)&sh->raw.v[r][c]);
        unpack(b, *(const uint4 *)&sh->raw.b[r][c]);
        put_values(&sh->value[r][2 * c], b, a, 2.f * m, m);
        if (all) {
            unpack(a, *(const uint4 *)&sh->raw_g[r][c]);
            for (int e = 0; e < 8; e++)
                a[e] *= scale;
            put8(&sh->grad[r][c], a);
        }
    }
    __syncthreads();
}

template <int N, int STRIDE>
__device__ inline float4 sum4(const float *from)
{
    float4 sum = *(const float4 *)from;

#pragma unroll
    for (int i = 1; i < N; i++) {
        const float4 a = *(const float4 *)(from + i * STRIDE);
        sum.x += a.x, sum.y += a.y, sum.z += a.z, sum.w += a.w;
    }
    return sum;
}

/* Columns c, c+1 of token s of the tile. */
__device__ inline void put_pair(const struct place &to, bool wide, int s, int c, float a, float b)
{
    char *at = to.at + (unsigned)(s * to.row + c * to.size);

    if (wide)
        *(float2 *)at = make_float2(a, b);
    else
        *(uint32_t *)at = pair(a, b);
}

/* Adds up and carries away what a batch of tokens from s on left. */
template <class F>
__device__ void carry(struct shared<F> *sh, const struct tiled &w, int s)
{
    constexpr int NC = F::K / 2, NR = F::BV / 2, lanes = F::threads / BATCH;
    const struct plan *p = &sh->plan;

#pragma unroll
    for (int z = 0; z < (BATCH * (NC + NR) + F::threads - 1) / F::threads; z++) {
        const int i = threadIdx.x + z * F::threads, u = i < BATCH * NC ? i / NC : (i - BATCH * NC) / NR;
        const int c = i < BATCH * NC ? i % NC : (i - BATCH * NC) % NR;
        if (i < BATCH * NC) {
            const float4 a = sum4<8, F::KP>(&sh->col[u][0][4 * (F::KT == 8 ? c ^ (c >> 3 & 1) : c)]);
            if (s + u < p->left) {
                put_pair(p->dq, w.dq, s + u, 2 * c, a.x, a.z);
                put_pair(p->dk, w.dk, s + u, 2 * c, a.y, a.w);
            }
        } else if (i < BATCH * (NC + NR)) {
            const float4 a = sum4<4 * F::KS, F::VP>(&sh->row[u][0][4 * c]);
            const float  m = p->m[s + u];
            if (s + u < p->left) {
                put_pair(p->dv, false, s + u, 2 * c, m * a.y, m * a.w);
                put_pair(p->db, false, s + u, 2 * c, 2.f * m * a.x, 2.f * m * a.z);
            }
        }
    }
    const int u = threadIdx.x / lanes;
    const float4 a = *(const float4 *)&sh->own[u][threadIdx.x % lanes * 4];
    float y = (a.x + a.y) + (a.z + a.w);
    for (int o = lanes / 2; o > 0; o /= 2)
        y += __shfl_xor_sync(~0u, y, o);
    if (threadIdx.x % lanes == 0)
        sh->y[s + u] = y;
}

/* The tile forward, keeping the memories at which its blocks end. */
template <class F>
__device__ void sweep(struct held<F> *a, struct shared<F> *sh, const struct scan_io &x, const struct tiled &w, const struct seat &me)
{
    const struct plan *p = &sh->plan;

    load_memory<F>(a->M, a->J, x.saved, p->t0 / TILE, p->h, p->v0 + me.row, me.col, 1.f);
#pragma unroll 1
    for (int n = 0; n < p->sweep; n++) {
        convert(sh, x.scale, n, false);
        if (n + 1 < p->sweep)
            start_fetch(sh, n + 1, false);
        else
            start_fetch(sh, STEPS - 1, true);
        if (p->keep >> n & 1)
            check_store(a, check_at<F>(w, n - 1));
        forth(a, sh, p, x, w.docs, me, n, STEP - 1);
    }
    if (p->sweep < STEPS)
        check_store(a, check_at<F>(w, p->sweep - 1));
}

/* Step n of the tile backward. */
template <class F>
__device__ void walk_step(struct held<F> *a, struct shared<F> *sh, const struct scan_io &x, const struct scan_io &g,
                          const struct tiled &w, const struct seat &me, int n, float *prior)
{
    const struct plan *p = &sh->plan;
    const unsigned end = (unsigned)(p->ends >> n * STEP) & 255, begin = (unsigned)((p->ends << 1 | 1) >> n * STEP) & 255;

#pragma unroll 1
    for (int i = STEP - 1; i >= 0; i--) {
        float dot = 0.f, part;
        if (end >> i & 1)
            dot = restart(a, sh, p, x, w, me, n * STEP + i);
        const float y = back(a, sh, me, i, p->c[n * STEP + i], &part);
        *prior += part;
        sh->own[i % BATCH][threadIdx.x] = y + dot;
        if (begin >> i & 1) {
            if (p->opens >> (n * STEP + i) & 1)
                cross(a, p, g, w, me, n * STEP + i);
            else
                scale<F>(a->G, a->H, p->enter[n * STEP + i]);
        }
        if (i % BATCH == 0) {
            __syncthreads();
            carry(sh, w, n * STEP + i);
            __syncthreads();
        }
    }
}

/* A job: a segment of one head's rows. */
template <class F>
__device__ void walk(struct held<F> *a, struct shared<F> *sh, const struct scan_io &x, const struct scan_io &g,
                     const struct tiled &w, const struct seat &me, int job)
{
    const struct plan *p = &sh->plan;
    const int64_t first = job / (w.V / F::BV) / w.H * (w.segment / TILE);
    float prior = 0.f;

    for (int64_t tile = min(first + w.segment / TILE, (w.T + TILE - 1) / TILE) - 1; tile >= first; tile--) {
        if (threadIdx.x < 32)
            make_plan<F>(&sh->plan, tile, job, x, g, w);
        __syncthreads();
        start_fetch(sh, p->sweep ? 0 : STEPS - 1, p->sweep == 0);
        if (tile > first)                           /* 128 bytes each, for the next tile */
            for (int i = threadIdx.x; i < F::BV * F::K / 32; i += F::threads)
                for (int z = 0; z < 2; z++)
                    asm volatile("prefetch.global.L2 [%0];" :: "l"(memory_at(x.saved[z], tile - 1, p->h, p->v0) + 32 * i));
        if (p->first)
            enter_segment(a, p, g, w, me);
        if (p->sweep)
            sweep(a, sh, x, w, me);
#pragma unroll 1
        for (int n = STEPS - 1; n >= 0; n--) {
            convert(sh, x.scale, n, true);
            if (n > 0)
                start_fetch(sh, n - 1, true);
            walk_step(a, sh, x, g, w, me, n, &prior);
        }
        if (threadIdx.x < 32)
            put_decay(sh->y, p, x, g, w);
    }
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
