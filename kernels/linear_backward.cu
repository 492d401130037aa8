/* linear_backward.cu - the gradients of the linear scan, a tile at a time, and the table of the scan.
 *
 * With D_ts = scale exp(L_t - L_s) for s <= t of one document, p_ts = q_t.k_s and e_ts = do_t.v_s,
 *
 *   dv_s = sum_t D_ts p_ts do_t + exp(L_end - L_s) G k_s        dk_s = sum_t D_ts e_ts q_t + exp(L_end - L_s) G' v_s
 *   dq_t = sum_s D_ts e_ts k_s + scale exp(L_t) S' do_t
 *   ddecay_t = exp(L_end) <S, G> + sum_{i>=t} q_i.(S part of dq_i) + sum_{j<t} k_j.(G part of dk_j)
 *            + sum_{j<t<=i} D_ij p_ij e_ij
 *
 * All pairs of a read i and a write j that the decay of t stands between. Terms of one sign are never
 * subtracted from each other except in the last sum, whose parts are exact to F32. */
#include "linear.cuh"

struct shared {
    struct tile w;
    float source[TILE], target[TILE];    /* weight of S at a token, of a token in G */
    float read[TILE], wrote[TILE];       /* q.(S part of dq), k.(G part of dk) */
    float row[4][TILE], col[TILE];       /* sums of D p e over s and over t, without s = t */
    float both[TILE];                    /* exp(L_end) <S, G>, at the first token of a document */
    float dot[4];
};

/* What a block works on. v and g hold all of V, or the block of columns that held says. */
struct work {
    struct shared *s;
    struct operand q, k, v, g, m;
    int64_t t0, tile;
    int     h, hq, hk, rows, row, r0, r1, held;
    int     first_source, last_source, first_target, last_target;       /* documents that have one */
    const float *staged;                 /* what m holds, and from where in it */
    int     staged_v, staged_k;
};

template <typename X> __device__ inline void hold_values(struct work *w, const struct linear &x, int vb)
{
    if (x.Vr == x.Vp || w->held == vb)
        return;
    __syncthreads();
    stage<X>((bf16 *)w->v.at, w->v.ld, x.v, w->t0, w->rows, w->h, vb, min(BLOCK, x.V - vb), BLOCK, x.wide_v);
    stage<X>((bf16 *)w->g.at, w->g.ld, x.go, w->t0, w->rows, w->h, vb, min(BLOCK, x.V - vb), BLOCK, x.wide_v);
    copies_wait();
    __syncthreads();
    w->held = vb;
}
__device__ inline struct operand values(const struct linear &x, struct operand v, int vb)
{
    return x.Vr == x.Vp ? cols(v, vb) : v;
}

__device__ inline float *source_of(const struct linear &x, const struct work *w, int doc)
{
    return doc == w->s->w.doc[0] ? memory_in(x, x.slot, w->tile, w->h) : memory_of(x, x.state, doc, w->h);
}
__device__ inline float *target_of(const struct linear &x, const struct work *w, int doc)
{
    return doc == w->s->w.doc[w->rows - 1] ? memory_in(x, x.carry, w->tile, w->h) : memory_of(x, x.gnext, doc, w->h);
}

/* Block (vb,kb) of memory m into shared memory, unless it is there. With other: adds <m, other>, weighted. */
__device__ inline void hold_memory(struct work *w, const struct linear &x, const float *m, const float *other, int vb,
                                   int kb, int doc)
{
    struct shared *s = w->s;

    if (w->staged == m && w->staged_v == vb && w->staged_k == kb)
        return;
    __syncthreads();
    const float dot = warp_sum(stage_memory((bf16 *)w->m.at, x, m, other, vb, kb));
    if (threadIdx.x % 32 == 0)
        s->dot[threadIdx.x / 32] = dot;
    __syncthreads();
    if (other && threadIdx.x == 0) {
        const int a = doc_first(x, w->t0, doc), b = doc_last(x, &s->w, w->t0, doc);
        s->both[a] += remains(&s->w, a, b + 1) * (s->dot[0] + s->dot[1] + s->dot[2] + s->dot[3]);
    }
    w->staged = m, w->staged_v = vb, w->staged_k = kb;
}

/* Adds up, for the lane's two rows, the products of c with columns from kb of the operand. */
template <int P>
__device__ inline void dot_rows(float (&sum)[2], const float (&c)[8][4], struct operand m, int r0, int kb, int n)
{
#pragma unroll
    for (int b = 0; b < 8; b++)
        for (int half = 0; half < 2; half++)
            for (int p = 0; p < P; p++)
                if (8 * b < n) {
                    const bf16 *at = m.at + p * m.plane + (r0 + 8 * half) * m.ld + kb + 8 * b + threadIdx.x % 4 * 2;
                    const __nv_bfloat162 u = *(const __nv_bfloat162 *)at;
                    sum[half] += c[b][2 * half] * __low2float(u) + c[b][2 * half + 1] * __high2float(u);
                }
}

/* The four lanes of a row agree on its sum; one of them stores it. */
__device__ inline void store_sums(float *to, float (&sum)[2], int r0)
{
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        if (threadIdx.x % 4 == 0)
            to[r0 + 8 * half] = sum[half];
    }
}

template <typename X>
__device__ inline void store_grad(const struct linear &x, const struct work *w, const struct tensor &g, float *part,
                                  int head, int kb, const float (&c)[8][4])
{
    const int n = min(BLOCK, x.K - kb);

    if (!g.data)
        return;
    if (part) {
        struct tensor p = g;
        p.data = part, p.row = (int64_t)x.H * x.K;
        store_rows<float>(p, w->t0, w->rows, w->h, kb, n, w->row, c, x.wide_m);
    } else
        store_rows<X>(g, w->t0, w->rows, head, kb, n, w->row, c, x.wide_k);
}

/* D for a write s (the lane's row) and a read t (its column), without scale. */
__device__ inline float pair_weight(const struct tile &w, int t, int s)
{
    return s <= t && w.doc[s] == w.doc[t] ? remains(&w, s + 1, t + 1) : 0.f;
}

/* Rows are writes s: p' and e', weighted, and the sums of D p e. */
template <typename X, int P>
__device__ inline void write_pairs(struct work *w, const struct linear &x, uint32_t (&p)[4][COMPUTED][4],
                                   uint32_t (&e)[4][COMPUTED][4])
{
    const int warp = w->row / 16, lane = threadIdx.x % 32;
    float a[8][4], b[8][4], col[2] = {};

    clear(a);
    clear(b);
    times<P, P, true>(a, w->k, w->row, w->q, x.Kp / 16, warp, 4);
    for (int vb = 0; vb < x.V; vb += x.Vr) {
        hold_values<X>(w, x, vb);
        times<P, P, true>(b, values(x, w->v, vb), w->row, values(x, w->g, vb), min(x.Vr, x.Vp - vb) / 16, warp, 4);
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        float row[2] = {};
        for (int i = 0; i < 4; i++) {
            const int s = i < 2 ? w->r0 : w->r1, t = 8 * n + lane % 4 * 2 + i % 2;
            const float D = x.scale * pair_weight(w->s->w, t, s), E = s == t ? 0.f : D * a[n][i] * b[n][i];
            col[i / 2] += E;
            row[i % 2] += E;
            a[n][i] *= D;
            b[n][i] *= D;
        }
        for (int i = 0; i < 2; i++) {
            for (int step = 4; step < 32; step *= 2)
                row[i] += __shfl_xor_sync(0xffffffffu, row[i], step);
            if (lane < 4)
                w->s->row[warp][8 * n + lane * 2 + i] = row[i];
        }
    }
    store_sums(w->s->col, col, w->r0);
    hold(p, a);
    hold(e, b);
}

/* dv and dk. */
template <typename X> __device__ inline void write_side(struct work *w, const struct linear &x)
{
    constexpr int P = planes<X>();
    const int warp = w->row / 16;
    const float w0 = w->s->target[w->r0], w1 = w->s->target[w->r1];
    const int *doc_of = w->s->w.doc;
    uint32_t p[4][COMPUTED][4], e[4][COMPUTED][4];
    float c[8][4], sum[2] = {};

    write_pairs<X, P>(w, x, p, e);
    for (int vb = 0; vb < x.V; vb += BLOCK) {
        const int nv = min(BLOCK, x.Vp - vb) / 16;
        hold_values<X>(w, x, vb);
        clear(c);
        for (int doc = w->first_target; doc <= w->last_target; doc++)
            for (int kb = 0; kb < x.K && x.start[doc] < x.start[doc + 1]; kb += BLOCK) {
                hold_memory(w, x, target_of(x, w, doc), NULL, vb, kb, doc);
                times<P, COMPUTED, true>(c, cols(w->k, kb), w->row, w->m, min(BLOCK, x.Kp - kb) / 16, 0, nv,
                               doc_of[w->r0] == doc, doc_of[w->r1] == doc);
            }
        scale_rows(c, w0, w1);
        times_held<P>(c, p, values(x, w->g, vb), warp, 4, nv);
        if (x.gv.data)
            store_rows<X>(x.gv, w->t0, w->rows, w->h, vb, min(BLOCK, x.V - vb), w->row, c, x.wide_v);
    }
    for (int kb = 0; kb < x.K; kb += BLOCK) {
        const int nk = min(BLOCK, x.Kp - kb);
        clear(c);
        for (int doc = w->first_target; doc <= w->last_target; doc++)
            for (int vb = 0; vb < x.V && x.start[doc] < x.start[doc + 1]; vb += BLOCK) {
                hold_values<X>(w, x, vb);
                hold_memory(w, x, target_of(x, w, doc), NULL, vb, kb, doc);
                times<P, COMPUTED, false>(c, values(x, w->v, vb), w->row, w->m, min(BLOCK, x.Vp - vb) / 16, 0, nk / 16,
                                doc_of[w->r0] == doc, doc_of[w->r1] == doc);
            }
        scale_rows(c, w0, w1);
        dot_rows<P>(sum, c, w->k, w->r0, kb, nk);
        times_held<P>(c, e, cols(w->q, kb), warp, 4, nk / 16);
        store_grad<X>(x, w, x.gk, x.part_k, w->hk, kb, c);
    }
    store_sums(w->s->wrote, sum, w->r0);
}

/* dq. Rows are reads t. */
template <typename X> __device__ inline void read_side(struct work *w, const struct linear &x)
{
    constexpr int P = planes<X>();
    const int warp = w->row / 16;
    const float w0 = x.scale * w->s->source[w->r0], w1 = x.scale * w->s->source[w->r1];
    const int *doc_of = w->s->w.doc;
    uint32_t e[4][COMPUTED][4];
    float c[8][4], sum[2] = {};

    clear(c);
    for (int vb = 0; vb < x.V; vb += x.Vr) {
        hold_values<X>(w, x, vb);
        times<P, P, true>(c, values(x, w->g, vb), w->row, values(x, w->v, vb), min(x.Vr, x.Vp - vb) / 16, 0, warp + 1);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        for (int i = 0; i < 4; i++)
            c[n][i] *= x.scale * pair_weight(w->s->w, i < 2 ? w->r0 : w->r1, 8 * n + threadIdx.x % 4 * 2 + i % 2);
    hold(e, c);
    for (int kb = 0; kb < x.K; kb += BLOCK) {
        const int nk = min(BLOCK, x.Kp - kb);
        clear(c);
        for (int doc = w->first_source; doc <= w->last_source; doc++)
            for (int vb = 0; vb < x.V && x.start[doc] < x.start[doc + 1]; vb += BLOCK) {
                const float *both = doc >= w->first_target ? target_of(x, w, doc) : NULL;
                hold_values<X>(w, x, vb);
                hold_memory(w, x, source_of(x, w, doc), both, vb, kb, doc);
                times<P, COMPUTED, false>(c, values(x, w->g, vb), w->row, w->m, min(BLOCK, x.Vp - vb) / 16, 0, nk / 16,
                                doc_of[w->r0] == doc, doc_of[w->r1] == doc);
            }
        scale_rows(c, w0, w1);
        dot_rows<P>(sum, c, w->q, w->r0, kb, nk);
        times_held<P>(c, e, cols(w->k, kb), 0, warp + 1, nk / 16);
        store_grad<X>(x, w, x.gq, x.part_q, w->hq, kb, c);
    }
    store_sums(w->s->read, sum, w->r0);
}

/* One thread per token adds up what its decay stands between. */
__device__ inline void decay_side(const struct work *w, const struct linear &x)
{
    const struct shared *s = w->s;
    const int t = threadIdx.x;

    if (t >= w->rows || !x.gdecay.data)
        return;
    const int doc = s->w.doc[t];
    float sum = s->both[doc_first(x, w->t0, doc)];
    for (int i = t; i < w->rows && s->w.doc[i] == doc; i++)
        sum += s->read[i] + (s->row[0][i] + s->row[1][i] + s->row[2][i] + s->row[3][i] - s->col[i]);
    for (int j = t - 1; j >= 0 && s->w.doc[j] == doc; j--)
        sum += s->wrote[j];
    ((float *)x.gdecay.data)[(w->t0 + t) * x.gdecay.row + w->h] = sum;
}

template <typename X>
__global__ void __launch_bounds__(THREADS) backward_kernel(const __grid_constant__ struct linear x)
{
    extern __shared__ __align__(16) bf16 room[];
    __shared__ struct shared s;
    constexpr int P = planes<X>();
    struct work w = { &s };

    w.tile = blockIdx.x / x.H;
    w.h    = (int)(blockIdx.x % x.H);
    w.t0   = w.tile * TILE;
    w.rows = (int)min((int64_t)TILE, x.T - w.t0);
    w.row  = threadIdx.x / 32 * 16;
    w.r0   = w.row + threadIdx.x % 32 / 4;
    w.r1   = w.r0 + 8;
    w.hq   = (int)(w.h * x.q.dim[1] / x.H);
    w.hk   = (int)(w.h * x.k.dim[1] / x.H);
    w.q = { room, x.Kp + 8, TILE * (x.Kp + 8) };
    w.k = { room + P * w.q.plane, w.q.ld, w.q.plane };
    w.v = { w.k.at + P * w.k.plane, x.Vr + 8, TILE * (x.Vr + 8) };
    w.g = { w.v.at + P * w.v.plane, w.v.ld, w.v.plane };
    w.m = { w.g.at + P * w.g.plane, LD, BLOCK * LD };
    stage<X>((bf16 *)w.q.at, w.q.ld, x.q, w.t0, w.rows, w.hq, 0, x.K, x.Kp, x.wide_k);
    stage<X>((bf16 *)w.k.at, w.k.ld, x.k, w.t0, w.rows, w.hk, 0, x.K, x.Kp, x.wide_k);
    stage<X>((bf16 *)w.v.at, w.v.ld, x.v, w.t0, w.rows, w.h, 0, min(x.V, x.Vr), x.Vr, x.wide_v);
    stage<X>((bf16 *)w.g.at, w.g.ld, x.go, w.t0, w.rows, w.h, 0, min(x.V, x.Vr), x.Vr, x.wide_v);
    tile_open(&s.w, x, w.t0, w.h);
    w.first_source = s.w.doc[0];
    w.last_target  = s.w.doc[w.rows - 1];
    w.last_source  = x.state.data ? w.last_target : w.first_source;
    w.first_target = x.gnext.data ? w.first_source : w.last_target;
    if (threadIdx.x < TILE) {
        const int i = threadIdx.x, doc = s.w.doc[i];
        const bool has_source = doc >= 0 && doc <= w.last_source, has_target = doc >= 0 && doc >= w.first_target;
        s.source[i] = has_source ? remains(&s.w, doc_first(x, w.t0, doc), i + 1) : 0.f;
        s.target[i] = has_target ? remains(&s.w, i + 1, doc_last(x, &s.w, w.t0, doc) + 1) : 0.f;
        s.both[i]   = 0.f;
    }
    copies_wait();
    __syncthreads();

    write_side<X>(&w, x);
    read_side<X>(&w, x);
    __syncthreads();
    decay_side(&w, x);
}

/* to[t,g,:] = sum of part[t,h,:] over the heads h that read from g */
template <typename X> __global__ void fold_kernel(struct tensor to, const float *part, int64_t H)
{
    const int64_t K = to.dim[2], per = H / to.dim[1], n = to.dim[0] * to.dim[1] * K;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t t = i / K / to.dim[1], g = i / K % to.dim[1], k = i % K;
        float sum = 0.f;
        for (int64_t h = g * per; h < (g + 1) * per; h++)
            sum += part[(t * H + h) * K + k];
        store((X *)to.data + t * to.row + g * K + k, sum);
    }
}

template <typename X> static void backward_launch(struct dev *d, const struct linear *x)
{
    const int bytes = (int)sizeof(bf16) * (planes<X>() * TILE * 2 * (x->Kp + 8 + x->Vr + 8) + COMPUTED * BLOCK * LD);
    const unsigned fold = (unsigned)min64(ceil_div(tensor_count(x->gq) + tensor_count(x->gk), 256), 16 * cuda_of(d)->sms);

    CUDA(cudaFuncSetAttribute(backward_kernel<X>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    backward_kernel<X><<<(unsigned)(ceil_div(x->T, TILE) * x->H), THREADS, (size_t)bytes, stream_of(d)>>>(*x);
    CUDA(cudaGetLastError());
    if (x->part_q && x->gq.data)
        fold_kernel<X><<<fold, 256, 0, stream_of(d)>>>(x->gq, x->part_q, x->H);
    if (x->part_k && x->gk.data)
        fold_kernel<X><<<fold, 256, 0, stream_of(d)>>>(x->gk, x->part_k, x->H);
    CUDA(cudaGetLastError());
}

static void linear_backward(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                            void *scratch)
{
    struct linear y = linear_of(s, x);
    const int64_t tiles = seqs_tiles(s), rows = y.T * y.H * y.K;
    float *p = (float *)scratch;

    y.go = g->o, y.gq = g->q, y.gk = g->k, y.gv = g->v, y.gdecay = g->decay;
    y.gstate = g->state[0], y.gnext = g->next[0];
    y.wide_k = y.wide_k && packs(g->q, 8) && packs(g->k, 8);
    y.wide_v = y.wide_v && packs(g->v, 8) && packs(g->o, 8);
    y.wide_m = y.wide_m && packs(g->state[0], 8) && packs(g->next[0], 8);
    y.slot   = (float *)x->saved[0].data;
    y.carry  = p, p += tiles * y.H * y.V * y.K;
    if (x->q.dim[1] != y.H)
        y.part_q = p, p += rows;
    if (x->k.dim[1] != y.H)
        y.part_k = p, p += rows;
    y.keep_carry = p;
    if (tiles) {
        linear_carries(d, &y, x->q.type);
        FOR_TYPE(x->q.type, X, backward_launch<X>(d, &y));
    }
    if (y.gstate.data)
        linear_gstate(d, &y, x->q.type, s->n);
}

extern "C" const struct scan_impl linear_cuda = { linear_scratch, linear_forward, linear_backward };
