/* palimpsa_plain_bwd.cu - the plain palimpsa scan backward: like forward, from the end.
 *
 * A block owns one head of one chunk and takes the rows of the memory a few at a time, a warp for each;
 * so what it sums over rows (dq, dk, ddecay) it adds up in memory that no other block touches. Within a
 * tile it needs every memory in reverse: it keeps eight, one per SUB tokens, and recomputes those between. */
#include "palimpsa_plain.cuh"

enum { SUB = 8 };

/* A warp's shared memory: lines of 2 [32 C] floats. The first SUB are memories before each SUB tokens of a
 * tile; the second SUB memories before each token of a sub-tile, then, token by token, its dq and dk. */
template <int C> struct shelf { float at[2 * SUB][2][32 * C]; };

/* The memory before token t from the one after t-1, when t may start a document. */
template <int C>
__device__ void line_enter(struct line<C> *s, const struct scan_io &x, const struct docs &docs, int64_t t, int h, int v)
{
    const int64_t n = docs.seq[t];

    if (begins(docs, t))
        line_load(s, memory_at(x.state[0], n, h, v), memory_at(x.state[1], n, h, v), (int)x.k.dim[2]);
}

/* Fills shelf lines from the memory s before token `from`: one per `every` tokens until `to`. */
template <typename X, int C>
__device__ void shelve(struct line<C> s, float (*to_line)[2][32 * C], const struct scan_io &x, const struct docs &docs,
                       int64_t from, int64_t to, int every, int h, int v)
{
    struct seen<C> y;

    for (int64_t t = from; t < to; t++) {
        if (every == 1)
            line_enter(&s, x, docs, t, h, v);
        if ((t - from) % every == 0)
            line_store(&s, to_line[(t - from) / every][0], to_line[(t - from) / every][1], 32 * C);
        if (every != 1)
            line_enter(&s, x, docs, t, h, v);
        see<X>(&y, x, t, h, v);
        line_write(&s, &y);
    }
}

/* One token of one row: G is the gradient of the memory after it from later tokens, and becomes that of the
 * memory before it. M0: the memory before; its place is overwritten with the row's share of dq and dk. */
template <typename X, int C>
__device__ void line_backward(struct line<C> *G, float (*M0)[32 * C], float *ddecay, float *dprior,
                              const struct scan_io &x, const struct scan_io &g, int64_t t, int h, int v, float Ip)
{
    const float go = g.o.data ? x.scale * load(head_at<X>(g.o, t, h) + v) : 0.f;
    const float gv = g.var.data ? x.scale * head_at<float>(g.var, t, h)[v] : 0.f;
    struct seen<C> y;
    float dv = 0.f, db = 0.f, da = 0.f;

    see<X>(&y, x, t, h, v);
    for (int c = 0; c < C; c++) {
        const int   j = threadIdx.x + 32 * c;
        const float M = M0[0][j], J = M0[1][j], k = y.k[c], q = y.q[c];
        const float r = 1.f / (y.a * J + y.b * k * k + Ip), mu = (y.a * M + y.v * k) * r;
        const float loss = go * q * r * mu + gv * q * q * r * r;
        G->M[c] += go * q * r;
        G->J[c] -= loss;
        *dprior -= loss;
        M0[0][j] = go * mu + 2.f * gv * q * r;
        M0[1][j] = G->M[c] * y.v + 2.f * G->J[c] * y.b * k;
        dv += G->M[c] * k;
        db += G->J[c] * k * k;
        da += G->M[c] * M + G->J[c] * J;
        G->M[c] *= y.a;
        G->J[c] *= y.a;
    }
    dv = warp_sum(dv);
    db = warp_sum(db);
    da = warp_sum(da);
    if (threadIdx.x == 0) {
        if (g.v.data)
            store(head_at<X>(g.v, t, h) + v, dv);
        if (g.beta.data)
            store(head_at<X>(g.beta, t, h) + v, db);
        *ddecay = y.a * da;
    }
}

/* Adds up what the block's rows of a sub-tile gave: to dq and dk in scratch, to ddecay in place. */
template <int C>
__device__ void gather(const struct shelf<C> *all, const float (*ddecay)[8], const struct scan_io &g,
                       const struct plain &w, int64_t from, int count, int h, int64_t H, int K, int rows, bool first)
{
    const int tid = threadIdx.y * 32 + threadIdx.x, threads = 32 * blockDim.y;

    for (int i = tid; i < count * 2 * K; i += threads) {
        const int u = i / (2 * K), part = i / K % 2, j = i % K;
        float *to = (part ? w.dk : w.dq) + ((from + u) * H + h) * K + j;
        float sum = first ? 0.f : *to;
        for (int r = 0; r < rows; r++)
            sum += all[r].at[SUB + u][part][j];
        *to = sum;
    }
    if (tid < count && g.decay.data) {
        float *to = head_at<float>(g.decay, from + tid, h), sum = first ? 0.f : *to;
        for (int r = 0; r < rows; r++)
            sum += ddecay[tid][r];
        *to = sum;
    }
}

/* FINAL: the gradient of a chunk's end is known and everything is written; else it is 0 and only the gradient
 * of the chunk's start is. */
template <typename X, int C, bool FINAL>
__global__ void plain_backward_kernel(struct scan_io x, struct scan_io g, struct plain w)
{
    extern __shared__ char shared[];
    __shared__ float ddecay[SUB][8], prior[8];
    struct shelf<C> *all = (struct shelf<C> *)shared, *mine = all + threadIdx.y;
    const int     h = blockIdx.y, W = blockDim.y, K = (int)x.k.dim[2], V = (int)x.v.dim[2];
    const int64_t H = x.v.dim[1], T = x.v.dim[0], chunk = blockIdx.x;
    const int64_t begin = chunk * PLAIN_CHUNK, end = min(begin + PLAIN_CHUNK, T);
    const float   Ip = expf(((const float *)x.prior[0].data)[h]);
    float dprior = 0.f, keep = 1.f;

    for (int v0 = 0; v0 < V; v0 += W) {
        const int v = v0 + threadIdx.y, rows = min(W, V - v0);
        struct line<C> G = {}, s = {};
        if (FINAL && v < V)
            line_load(&G, edge_at(w, x, chunk, h, 0, v), edge_at(w, x, chunk, h, 1, v), K);
        for (int64_t tile = (end - 1) / SEQ_TILE; tile * SEQ_TILE >= begin; tile--) {
            const int64_t t0 = tile * SEQ_TILE, t1 = min(t0 + SEQ_TILE, T);
            if (v < V) {
                line_load(&s, memory_at(x.saved[0], tile, h, v), memory_at(x.saved[1], tile, h, v), K);
                shelve<X>(s, mine->at, x, w.docs, t0, t1, SUB, h, v);
            }
            for (int64_t from = t0 + (t1 - 1 - t0) / SUB * SUB; from >= t0; from -= SUB) {
                const int count = (int)min((int64_t)SUB, t1 - from);
                if (v < V) {
                    line_load(&s, mine->at[(from - t0) / SUB][0], mine->at[(from - t0) / SUB][1], 32 * C);
                    shelve<X>(s, mine->at + SUB, x, w.docs, from, from + count, 1, h, v);
                }
                for (int u = count - 1; u >= 0 && v < V; u--) {
                    const int64_t t = from + u, n = w.docs.seq[t];
                    if (ends(w.docs, t))
                        line_load(&G, memory_at(g.next[0], n, h, v), memory_at(g.next[1], n, h, v), K);
                    line_backward<X>(&G, mine->at[SUB + u], &ddecay[u][threadIdx.y], &dprior, x, g, t, h, v, Ip);
                    keep = begins(w.docs, t) ? 0.f : keep * expf(*head_at<float>(x.decay, t, h));
                    if (!begins(w.docs, t))
                        continue;
                    if (FINAL)
                        line_store(&G, memory_at(g.state[0], n, h, v), memory_at(g.state[1], n, h, v), K);
                    G = {};
                }
                if (FINAL) {
                    __syncthreads();
                    gather(all, ddecay, g, w, from, count, h, H, K, rows, v0 == 0);
                    __syncthreads();
                }
            }
        }
        if (!FINAL && v < V)
            line_store(&G, edge_at(w, x, chunk, h, 0, v), edge_at(w, x, chunk, h, 1, v), K);
        if (!FINAL && v == 0 && threadIdx.x == 0)
            w.keep[chunk * H + h] = keep;
    }
    dprior = warp_sum(dprior);
    if (threadIdx.x == 0)
        prior[threadIdx.y] = dprior;
    __syncthreads();
    for (int r = 1; r < W && threadIdx.y == 0 && threadIdx.x == 0; r++)
        prior[0] += prior[r];
    if (FINAL && threadIdx.y == 0 && threadIdx.x == 0)
        w.prior[chunk * H + h] = prior[0];
}

template <typename X, int C>
static void launch(struct dev *d, const struct scan_io *x, const struct scan_io *g, const struct plain *w)
{
    const int  rows = C == 8 ? 4 : 8, shared = rows * (int)sizeof(struct shelf<C>);
    const dim3 block(32, rows), grid((unsigned)w->chunks, (unsigned)x->v.dim[1]);

    CUDA(cudaFuncSetAttribute(plain_backward_kernel<X, C, false>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    CUDA(cudaFuncSetAttribute(plain_backward_kernel<X, C, true>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    plain_backward_kernel<X, C, false><<<grid, block, shared, stream_of(d)>>>(*x, *g, *w);
    CUDA(cudaGetLastError());
    plain_chain(d, w, x, true);
    plain_backward_kernel<X, C, true><<<grid, block, shared, stream_of(d)>>>(*x, *g, *w);
    CUDA(cudaGetLastError());
}

void palimpsa_plain_backward(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                             void *scratch)
{
    struct carver m = { (char *)scratch, 0 };
    const struct plain w = plain_of(s, x, true, &m);
    const int64_t K = x->k.dim[2];

    REQUIRE(K <= 256 && x->v.dim[1] < 65536);
    FOR_TYPE(x->q.type, X,
        if (K <= 32)       launch<X, 1>(d, x, g, &w);
        else if (K <= 64)  launch<X, 2>(d, x, g, &w);
        else if (K <= 128) launch<X, 4>(d, x, g, &w);
        else               launch<X, 8>(d, x, g, &w));
    palimpsa_fold(d, g->q, w.dq, x->v.dim[1], 1);
    palimpsa_fold(d, g->k, w.dk, x->v.dim[1], 1);
    palimpsa_add_prior(d, g->prior[0], x->prior[0], w.prior, w.chunks);
}
