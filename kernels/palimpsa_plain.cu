/* palimpsa_plain.cu - the palimpsa scan for every shape, type and feature, forward: plain loops over
 * tokens, parallel over heads, rows of the memory and chunks of the row of tokens.
 *
 * Each chunk is walked twice: from the empty memory to learn what it adds, then, once chain_kernel has
 * added up the chunks, from its true start. */
#include "palimpsa_plain.cuh"

/* o and var of a token from the memory after it. */
template <typename X, int C>
__device__ void line_read(const struct line<C> *s, const struct seen<C> *y, const struct scan_io &x,
                          int64_t t, int h, int v, float Ip)
{
    float mean = 0.f, var = 0.f;

    for (int c = 0; c < C; c++) {
        const float r = 1.f / (s->J[c] + Ip);
        mean += s->M[c] * r * y->q[c];
        var  += r * y->q[c] * y->q[c];
    }
    mean = warp_sum(mean);
    if (x.var.data)
        var = warp_sum(var);
    if (threadIdx.x == 0) {
        store(head_at<X>(x.o, t, h) + v, x.scale * mean);
        if (x.var.data)
            head_at<float>(x.var, t, h)[v] = x.scale * var;
    }
}

template <typename X, int C, bool READ>
__global__ void plain_forward_kernel(struct scan_io x, struct plain w)
{
    const int     v = blockIdx.x * blockDim.y + threadIdx.y, h = blockIdx.y, K = (int)x.k.dim[2];
    const int64_t c = blockIdx.z, from = c * PLAIN_CHUNK, to = min(from + PLAIN_CHUNK, (int64_t)x.v.dim[0]);
    const float   Ip = expf(((const float *)x.prior[0].data)[h]);
    struct line<C> s = {};
    struct seen<C> y;
    float keep = 1.f;
    if (v >= x.v.dim[2])
        return;

    if (READ)
        line_load(&s, edge_at(w, x, c, h, 0, v), edge_at(w, x, c, h, 1, v), K);
    for (int64_t t = from; t < to; t++) {
        const int n = w.docs.seq[t];
        if (READ && x.saved[0].data && t % SEQ_TILE == 0)
            line_store(&s, memory_at(x.saved[0], t / SEQ_TILE, h, v), memory_at(x.saved[1], t / SEQ_TILE, h, v), K);
        if (begins(w.docs, t)) {
            line_load(&s, memory_at(x.state[0], n, h, v), memory_at(x.state[1], n, h, v), K);
            keep = 0.f;
        }
        see<X>(&y, x, t, h, v);
        line_write(&s, &y);
        keep *= y.a;
        if (READ)
            line_read<X>(&s, &y, x, t, h, v, Ip);
        if (READ && ends(w.docs, t))
            line_store(&s, memory_at(x.next[0], n, h, v), memory_at(x.next[1], n, h, v), K);
    }
    if (!READ) {
        line_store(&s, edge_at(w, x, c, h, 0, v), edge_at(w, x, c, h, 1, v), K);
        if (v == 0 && threadIdx.x == 0)
            w.keep[c * x.v.dim[1] + h] = keep;
    }
}

/* From what each chunk adds to what each chunk starts from; for gradients from the last chunk back. */
__global__ void plain_chain_kernel(struct plain w, int64_t n, bool reverse)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, H = gridDim.y, h = blockIdx.y;
    float run = 0.f;
    if (i >= n)
        return;

    for (int64_t j = 0; j < w.chunks; j++) {
        const int64_t c = reverse ? w.chunks - 1 - j : j;
        float *e = w.edge + (c * H + h) * n + i;
        const float add = *e;
        *e = run;
        run = w.keep[c * H + h] * run + add;
    }
}

void plain_chain(struct dev *d, const struct plain *w, const struct scan_io *x, bool reverse)
{
    const int64_t n = 2 * x->v.dim[2] * x->k.dim[2];
    const dim3 grid((unsigned)ceil_div(n, 128), (unsigned)x->v.dim[1]);

    plain_chain_kernel<<<grid, 128, 0, stream_of(d)>>>(*w, n, reverse);
    CUDA(cudaGetLastError());
}

struct plain plain_of(const struct seqs *s, const struct scan_io *x, bool backward, struct carver *m)
{
    const int64_t T = s->tokens, H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2], chunks = ceil_div(T, PLAIN_CHUNK);
    struct plain w = {};

    w.docs   = (struct docs){ s->dstart, s->dseq };
    w.chunks = chunks;
    w.edge   = carve(m, chunks * H * 2 * V * K);
    w.keep   = carve(m, chunks * H);
    if (backward) {
        w.dq    = carve(m, T * H * K);
        w.dk    = carve(m, T * H * K);
        w.prior = carve(m, chunks * H);
    }
    return w;
}

int64_t palimpsa_plain_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward)
{
    struct carver m = {};

    (void)d;
    plain_of(s, x, backward, &m);
    return m.used;
}

template <typename X, int C>
static void launch(struct dev *d, const struct scan_io *x, const struct plain *w)
{
    const dim3 block(32, 4), grid((unsigned)ceil_div(x->v.dim[2], 4), (unsigned)x->v.dim[1], (unsigned)w->chunks);

    plain_forward_kernel<X, C, false><<<grid, block, 0, stream_of(d)>>>(*x, *w);
    CUDA(cudaGetLastError());
    plain_chain(d, w, x, false);
    plain_forward_kernel<X, C, true><<<grid, block, 0, stream_of(d)>>>(*x, *w);
    CUDA(cudaGetLastError());
}

void palimpsa_plain_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch)
{
    struct carver m = { (char *)scratch, 0 };
    const struct plain w = plain_of(s, x, false, &m);
    const int64_t K = x->k.dim[2];

    REQUIRE(K <= 256 && w.chunks < 65536 && x->v.dim[1] < 65536);
    FOR_TYPE(x->q.type, X,
        if (K <= 32)       launch<X, 1>(d, x, &w);
        else if (K <= 64)  launch<X, 2>(d, x, &w);
        else if (K <= 128) launch<X, 4>(d, x, &w);
        else               launch<X, 8>(d, x, &w));
}
