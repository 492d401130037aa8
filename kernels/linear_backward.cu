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
#include "linear_warp.cuh"

struct shared {
    struct tile w;
    float source[TILE], target[TILE];    /* weight of S at a token, of a token in G */
    float read[TILE], wrote[TILE];       /* q.(S part of dq), k.(G part of dk) */
    float row[4][TILE], col[TILE];       /* sums of D p e over s, by warp, and over t, without s = t */
    float both[TILE];                    /* exp(L_end) <S, G>, at the first token of a document */
    float dot[4], half[2];
};

/* What a block works on. v and g hold all of V, or the block of columns that held says. */
struct work {
    struct shared *s;
    struct operand q, k, v, g, m;
    int64_t t0, tile;
    int     h, hq, hk, rows, warp, row, r0, r1, held;
    int     first_source, last_source, first_target, last_target;       /* documents that have one */
    const float *staged;                 /* what m holds, and from where in it */
    int     staged_v, staged_k;
};

template <typename X, int B, bool W> __device__ inline void hold_values(struct work *w, const struct linear &x, int vb)
{
    if (x.Vr == x.Vp || w->held == vb)
        return;
    __syncthreads();
    stage<X, B, W>(w->v, x.v, w->t0, w->rows, w->h, vb, vb + 16 * B, x.V);
    stage<X, B, W>(w->g, x.go, w->t0, w->rows, w->h, vb, vb + 16 * B, x.V);
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
template <int B, bool W>
__device__ inline void hold_memory(struct work *w, const struct linear &x, const float *m, const float *other, int vb,
                                   int kb, int doc)
{
    struct shared *s = w->s;

    if (w->staged == m && w->staged_v == vb && w->staged_k == kb)
        return;
    __syncthreads();
    const float dot = warp_sum(stage_memory<B, W>((bf16 *)w->m.at, x, m, other, vb, kb));
    if (threadIdx.x % 32 == 0)
        s->dot[w->warp] = dot;
    __syncthreads();
    if (other && threadIdx.x == 0) {
        const int a = (int)max((int64_t)0, x.start[doc] - w->t0), b = s->w.last[a];
        s->both[a] += remains(&s->w, a, b + 1) * (s->dot[0] + s->dot[1] + s->dot[2] + s->dot[3]);
    }
    w->staged = m, w->staged_v = vb, w->staged_k = kb;
}

/* Adds up, for the lane's two rows, the products of c with columns from kb of the operand. */
template <int P, int N>
__device__ inline void dot_rows(float (&sum)[2], const float (&c)[N][4], struct operand m, int r0, int kb)
{
#pragma unroll
    for (int b = 0; b < N; b++)
        for (int half = 0; half < 2; half++)
            for (int p = 0; p < P; p++) {
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

template <typename X, bool W, int N>
__device__ inline void store_grad(const struct linear &x, const struct work *w, const struct tensor &g, float *part,
                                  int head, int kb, const float (&c)[N][4])
{
    const int n = min(8 * N, x.K - kb);

    if (!g.data)
        return;
    if (part) {
        struct tensor p = g;
        p.data = part, p.row = (int64_t)x.H * x.K;
        store_rows<float, W>(p, w->t0, w->rows, w->h, kb, n, w->row, c);
    } else
        store_rows<X, W>(g, w->t0, w->rows, head, kb, n, w->row, c);
}

/* Column sums of 16 x 64 numbers over the lanes that share columns: each step halves the columns a lane has.
 * Lane l ends with columns 2l and 2l+1. */
__device__ inline void store_columns(float *to, float (&c)[16])
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int step = 16, n = 8; step >= 4; step /= 2, n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++) {
            const bool upper = lane & step;
            const float mine = upper ? c[i + n] : c[i], other = upper ? c[i] : c[i + n];
            c[i] = mine + __shfl_xor_sync(0xffffffffu, other, step);
        }
    *(float2 *)(to + 2 * lane) = make_float2(c[0], c[1]);
}

/* Rows are writes s: p' and e', weighted, and the sums of D p e. */
template <typename X, int P, int B, bool W>
__device__ inline void write_pairs(struct work *w, const struct linear &x, uint32_t (&p)[4][COMPUTED][4],
                                   uint32_t (&e)[4][COMPUTED][4])
{
    const int lane = threadIdx.x % 32, s[2] = { w->r0, w->r1 };
    const float2 from[2] = { w->s->w.total[s[0] + 2], w->s->w.total[s[1] + 2] };
    const int last[2] = { w->s->w.last[s[0]], w->s->w.last[s[1]] };
    float a[8][4], b[8][4], col[2] = {}, row[16] = {};

    clear(a);
    clear(b);
    for (int kb = 0; kb < x.Kp; kb += 16 * B)
        times<P, P, true, B, 4>(a, cols(w->k, kb), w->row, cols(w->q, kb), w->warp, 4);
    for (int vb = 0; vb < x.Vp; vb += 16 * B) {
        hold_values<X, B, W>(w, x, vb);
        times<P, P, true, B, 4>(b, values(x, w->v, vb), w->row, values(x, w->g, vb), w->warp, 4);
    }
#pragma unroll
    for (int n = 0; n < 8; n++)
        for (int j = 0; j < 2; j++) {
            const int t = 8 * n + lane % 4 * 2 + j;
            const float2 to = w->s->w.total[t + 2];
            for (int half = 0; half < 2; half++) {
                float *ai = &a[n][2 * half + j], *bi = &b[n][2 * half + j];
                const float D = paired(t, s[half], last[half]) ? x.scale * ratio(to, from[half]) : 0.f;
                const float weighted = D * *bi;
                const float E = s[half] == t ? 0.f : *ai * weighted;
                col[half] += E;
                row[2 * n + j] += E;
                *ai *= D;
                *bi = weighted;
            }
        }
    store_columns(w->s->row[w->warp], row);
    store_sums(w->s->col, col, w->r0);
    hold(p, a);
    hold(e, b);
}

/* dv and dk. */
template <typename X, int B, bool W> __device__ inline void write_side(struct work *w, const struct linear &x)
{
    constexpr int P = planes<X>(), N = 16 * B;
    const float w0 = w->s->target[w->r0], w1 = w->s->target[w->r1];
    const int d0 = w->s->w.doc[w->r0], d1 = w->s->w.doc[w->r1];
    uint32_t p[4][COMPUTED][4], e[4][COMPUTED][4];
    float c[2 * B][4], sum[2] = {};

    write_pairs<X, P, B, W>(w, x, p, e);
    for (int vb = 0; vb < x.V; vb += N) {
        hold_values<X, B, W>(w, x, vb);
        clear(c);
        for (int doc = w->first_target; doc <= w->last_target; doc++)
            for (int kb = 0; kb < x.K && x.start[doc] < x.start[doc + 1]; kb += N) {
                hold_memory<B, W>(w, x, target_of(x, w, doc), NULL, vb, kb, doc);
                times<P, COMPUTED, true, B, B>(c, cols(w->k, kb), w->row, w->m, 0, B, d0 == doc, d1 == doc);
            }
        scale_rows(c, w0, w1);
        times_held<P, B>(c, p, values(x, w->g, vb), w->warp, 4);
        if (x.gv.data)
            store_rows<X, W>(x.gv, w->t0, w->rows, w->h, vb, min(N, x.V - vb), w->row, c);
    }
    for (int kb = 0; kb < x.K; kb += N) {
        clear(c);
        for (int doc = w->first_target; doc <= w->last_target; doc++)
            for (int vb = 0; vb < x.V && x.start[doc] < x.start[doc + 1]; vb += N) {
                hold_values<X, B, W>(w, x, vb);
                hold_memory<B, W>(w, x, target_of(x, w, doc), NULL, vb, kb, doc);
                times<P, COMPUTED, false, B, B>(c, values(x, w->v, vb), w->row, w->m, 0, B, d0 == doc, d1 == doc);
            }
        scale_rows(c, w0, w1);
        dot_rows<P>(sum, c, w->k, w->r0, kb);
        times_held<P, B>(c, e, cols(w->q, kb), w->warp, 4);
        store_grad<X, W>(x, w, x.gk, x.part_k, w->hk, kb, c);
    }
    store_sums(w->s->wrote, sum, w->r0);
}

/* dq. Rows are reads t. */
template <typename X, int B, bool W> __device__ inline void read_side(struct work *w, const struct linear &x)
{
    constexpr int P = planes<X>(), N = 16 * B;
    const float w0 = x.scale * w->s->source[w->r0], w1 = x.scale * w->s->source[w->r1];
    const int d0 = w->s->w.doc[w->r0], d1 = w->s->w.doc[w->r1];
    uint32_t e[4][COMPUTED][4];
    float c[2 * B][4], sum[2] = {};

    {
        float b[8][4];
        clear(b);
        for (int vb = 0; vb < x.Vp; vb += N) {
            hold_values<X, B, W>(w, x, vb);
            times<P, P, true, B, 4>(b, values(x, w->g, vb), w->row, values(x, w->v, vb), 0, w->warp + 1);
        }
        weigh_reads(e, &w->s->w, b, w->row, x.scale);
    }
    for (int kb = 0; kb < x.K; kb += N) {
        clear(c);
        for (int doc = w->first_source; doc <= w->last_source; doc++)
            for (int vb = 0; vb < x.V && x.start[doc] < x.start[doc + 1]; vb += N) {
                const float *both = doc >= w->first_target ? target_of(x, w, doc) : NULL;
                hold_values<X, B, W>(w, x, vb);
                hold_memory<B, W>(w, x, source_of(x, w, doc), both, vb, kb, doc);
                times<P, COMPUTED, false, B, B>(c, values(x, w->g, vb), w->row, w->m, 0, B, d0 == doc, d1 == doc);
            }
        scale_rows(c, w0, w1);
        dot_rows<P>(sum, c, w->q, w->r0, kb);
        times_held<P, B>(c, e, cols(w->k, kb), 0, w->warp + 1);
        store_grad<X, W>(x, w, x.gq, x.part_q, w->hq, kb, c);
    }
    store_sums(w->s->read, sum, w->r0);
}

/* One thread per token adds up what its decay stands between: a sum from the token to the end of its document and
 * one from the document's first token to the one before. */
__device__ inline void decay_side(struct shared *s, const struct work *w, const struct linear &x)
{
    const int t = threadIdx.x, lane = t % 32;
    float after = 0.f, before = 0.f;
    int first = 0, last = 0;

    if (t < TILE) {
        first  = s->w.first[t];
        last   = s->w.last[t];
        after  = s->read[t] + (s->row[0][t] + s->row[1][t] + s->row[2][t] + s->row[3][t] - s->col[t]);
        before = t > first ? s->wrote[t - 1] : 0.f;
        for (int step = 1; step < 32; step *= 2) {
            const float a = __shfl_down_sync(0xffffffffu, after, step), b = __shfl_up_sync(0xffffffffu, before, step);
            after  += lane + step < 32 && t + step <= last ? a : 0.f;
            before += lane >= step && t - step >= first ? b : 0.f;
        }
        if (t == 32)
            s->half[0] = after;
        if (t == 31)
            s->half[1] = before;
    }
    __syncthreads();
    if (t >= w->rows || !x.gdecay.data)
        return;
    after  += t < 32 && last >= 32 ? s->half[0] : 0.f;
    before += t >= 32 && first < 32 ? s->half[1] : 0.f;
    ((float *)x.gdecay.data)[(w->t0 + t) * x.gdecay.row + w->h] = s->both[first] + after + before;
}

template <typename X, int B, bool W>
__global__ void __launch_bounds__(THREADS, 3) backward_kernel(const __grid_constant__ struct linear x)
{
    extern __shared__ __align__(16) bf16 room[];
    __shared__ struct shared s;
    constexpr int P = planes<X>();
    struct work w = { &s };

    w.tile = blockIdx.x / x.H;
    w.h    = (int)(blockIdx.x % x.H);
    w.t0   = w.tile * TILE;
    w.rows = (int)min((int64_t)TILE, x.T - w.t0);
    w.warp = warp_index();
    w.row  = 16 * w.warp;
    w.r0   = w.row + threadIdx.x % 32 / 4;
    w.r1   = w.r0 + 8;
    w.hq   = (int)(w.h * x.q.dim[1] / x.H);
    w.hk   = (int)(w.h * x.k.dim[1] / x.H);
    w.q = { room, x.Kp + 8, TILE * (x.Kp + 8) };
    w.k = { room + P * w.q.plane, w.q.ld, w.q.plane };
    w.v = { w.k.at + P * w.k.plane, x.Vr + 8, TILE * (x.Vr + 8) };
    w.g = { w.v.at + P * w.v.plane, w.v.ld, w.v.plane };
    w.m = { w.g.at + P * w.g.plane, memory_ld<B>(), memory_plane<B>() };
    stage<X, B, W>(w.q, x.q, w.t0, w.rows, w.hq, 0, x.Kp, x.K);
    stage<X, B, W>(w.k, x.k, w.t0, w.rows, w.hk, 0, x.Kp, x.K);
    stage<X, B, W>(w.v, x.v, w.t0, w.rows, w.h, 0, x.Vr, x.V);
    stage<X, B, W>(w.g, x.go, w.t0, w.rows, w.h, 0, x.Vr, x.V);
    fetch_memory(x, memory_in(x, x.carry, w.tile, w.h));
    fetch_memory(x, memory_in(x, x.slot, w.tile, w.h));
    tile_open(&s.w, x, w.t0, w.h);
    w.first_source = s.w.doc[0];
    w.last_target  = s.w.doc[w.rows - 1];
    w.last_source  = x.state.data ? w.last_target : w.first_source;
    w.first_target = x.gnext.data ? w.first_source : w.last_target;
    if (threadIdx.x < TILE) {
        const int i = threadIdx.x, doc = s.w.doc[i];
        s.source[i] = doc >= 0 && doc <= w.last_source ? remains(&s.w, s.w.first[i], i + 1) : 0.f;
        s.target[i] = doc >= 0 && doc >= w.first_target ? remains(&s.w, i + 1, s.w.last[i] + 1) : 0.f;
        s.both[i]   = 0.f;
    }
    copies_wait();
    __syncthreads();

    write_side<X, B, W>(&w, x);
    read_side<X, B, W>(&w, x);
    __syncthreads();
    decay_side(&s, &w, x);
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

static void backward_launch(struct dev *d, const struct linear *x)
{
    const int64_t most = ceil_div(tensor_count(x->gq) + tensor_count(x->gk), 256);
    const unsigned fold = (unsigned)min64(most, 16 * cuda_of(d)->sms);

    FOR_LINEAR(x, X, B, W,
        const int inputs = planes<X>() * TILE * 2 * (x->Kp + 8 + x->Vr + 8);
        const int bytes = (int)sizeof(bf16) * (inputs + COMPUTED * memory_plane<B>());
        linear_room(d, backward_kernel<X, B, W>, bytes);
        const unsigned blocks = (unsigned)(ceil_div(x->T, TILE) * x->H);
        backward_kernel<X, B, W><<<blocks, THREADS, (size_t)bytes, stream_of(d)>>>(*x));
    CUDA(cudaGetLastError());
    if (x->part_q && x->gq.data)
        FOR_TYPE(x->q.type, X, fold_kernel<X><<<fold, 256, 0, stream_of(d)>>>(x->gq, x->part_q, x->H));
    if (x->part_k && x->gk.data)
        FOR_TYPE(x->q.type, X, fold_kernel<X><<<fold, 256, 0, stream_of(d)>>>(x->gk, x->part_k, x->H));
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
    linear_size(&y);
    y.slot   = (float *)x->saved[0].data;
    y.carry  = p, p += tiles * y.H * y.V * y.K;
    if (x->q.dim[1] != y.H)
        y.part_q = p, p += rows;
    if (x->k.dim[1] != y.H)
        y.part_k = p, p += rows;
    y.keep_carry = p;
    const bool walks = y.go.data && linear_walks(d, s, &y);
    if (walks && !y.piece) {
        if (s->n)
            linear_walk_backward(d, &y);
        return;
    }
    if (tiles) {
        linear_carries(d, &y);
        if (walks)
            linear_walk_backward(d, &y);
        else
            backward_launch(d, &y);
    }
    if (y.gstate.data)
        linear_gstate(d, &y, s->n);
}

extern "C" const struct scan_impl linear_cuda = { linear_scratch, linear_forward, linear_backward };
