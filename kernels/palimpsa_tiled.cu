/* palimpsa_tiled.cu - the palimpsa scan at full speed for common shapes: scratch and the order of the passes. */
#include "palimpsa_plain.cuh"
#include "palimpsa_tiled.cuh"

/* Shapes that have kernels; rows: those of the memory that a unit of the reverse pass owns. */
static const struct { int K, rows, walkers, units; } shapes[] = {
    { 48, 48, 2, 4 }, { 96, 96, 8, 1 }, { 128, 64, 8, 1 },
};

static int shape_of(const struct scan_io *x)
{
    for (int i = 0; i < (int)LEN(shapes); i++)
        if (x->k.dim[2] == shapes[i].K && x->v.dim[2] % shapes[i].rows == 0)
            return i;
    return -1;
}

bool palimpsa_tiled_fits(const struct dev *d, const struct scan_io *x)
{
    int major = 0;

    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->index));
    return major == 9 && shape_of(x) >= 0 && x->q.type == BF16 && !x->var.data && x->v.dim[1] < 65536 &&
        packs(x->q, 8) && packs(x->k, 8) && packs(x->v, 8) && packs(x->beta, 8) && packs(x->o, 8);
}

/* Tokens of a segment, so that the last wave of units is as full as can be: few long segments make fewer corrections. */
static int64_t segment_tokens(const struct dev *d, int64_t T, int64_t jobs, int64_t units)
{
    const int64_t running = units * cuda_of(d)->sms;
    int64_t best = 2048;
    double  cost = 1e30;

    for (int64_t n = 2048; n >= 128; n /= 2) {
        const double waves = (double)ceil_div(ceil_div(T, n) * jobs, running), c = waves * ((double)n + 32);
        if (c < 0.99 * cost)
            cost = c, best = n;
    }
    return best;
}

static struct tiled tiled_of(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward, struct carver *m)
{
    const int64_t T = s->tokens, H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2], memory = H * V * K * 2;
    const int shape = shape_of(x);
    struct tiled w = {};

    w.docs = (struct docs){ s->dstart, s->dseq };
    w.T = T, w.H = H, w.V = V;
    if (!backward) {
        w.chunks    = ceil_div(T, CHUNK);
        w.spans     = ceil_div(w.chunks, SPAN);
        w.add       = carve(m, w.chunks * memory);
        w.kept      = carve(m, w.chunks * H);
        w.span      = carve(m, w.spans * memory);
        w.span_kept = carve(m, w.spans * H);
        return w;
    }
    w.parts     = V / shapes[shape].rows;
    w.segment   = segment_tokens(d, T, H * w.parts, shapes[shape].units);
    w.segments  = ceil_div(T, w.segment);
    w.grad      = carve(m, w.segments * memory);
    w.grad_kept = carve(m, w.segments * H);
    w.check     = (float4 *)carve(m, (int64_t)cuda_of(d)->sms * shapes[shape].units * 7 * shapes[shape].rows * K * 2);
    w.next      = (int *)carve(m, 1);
    w.priors    = w.segments * w.parts * shapes[shape].walkers;
    w.prior     = carve(m, w.priors * H);
    if (w.parts > 1 || x->q.dim[1] != H)
        w.dq    = carve(m, w.parts * T * H * K);
    if (w.parts > 1 || x->k.dim[1] != H)
        w.dk    = carve(m, w.parts * T * H * K);
    if (w.parts > 1)
        w.decay = carve(m, w.parts * T * H);
    return w;
}

int64_t palimpsa_tiled_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward)
{
    struct carver m = {};

    tiled_of(d, s, x, backward, &m);
    return m.used;
}

/* The memory at each document's end: a warp walks a row there from the start of the chunk. */
template <int C>
__global__ void last_kernel(struct scan_io x, struct tiled w)
{
    const int     n = blockIdx.x, h = blockIdx.y, v = blockIdx.z * blockDim.y + threadIdx.y, K = (int)x.k.dim[2];
    const int64_t first = w.docs.start[n], end = w.docs.start[n + 1];
    struct line<C> s;
    struct seen<C> y;
    if (v >= x.v.dim[2] || first == end)
        return;

    const int64_t c = (end - 1) / CHUNK, from = max(first, c * CHUNK), span = c / SPAN;
    if (from == first)
        line_load(&s, memory_at(x.state[0], n, h, v), memory_at(x.state[1], n, h, v), K);
    else {
        const float2 *base = (const float2 *)w.span + ((span * w.H + h) * w.V + v) * K;
        const float2 *add = (const float2 *)w.add + ((c * w.H + h) * w.V + v) * K;
        const float   kept = c % SPAN ? w.kept[c * w.H + h] : 1.f;
        for (int i = 0; i < C; i++) {
            const int j = threadIdx.x + 32 * i;
            const float2 b = j < K ? base[j] : make_float2(0.f, 0.f), a = j < K && c % SPAN ? add[j] : make_float2(0.f, 0.f);
            s.M[i] = kept * b.x + a.x, s.J[i] = kept * b.y + a.y;
        }
    }
    for (int64_t t = from; t < end; t++) {
        see<bf16>(&y, x, t, h, v);
        line_write(&s, &y);
    }
    line_store(&s, memory_at(x.next[0], n, h, v), memory_at(x.next[1], n, h, v), K);
}

void palimpsa_tiled_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch)
{
    struct carver m = { (char *)scratch, 0 };
    const struct tiled w = tiled_of(d, s, x, false, &m);

    palimpsa_span_states(d, x, &w);
    palimpsa_read(d, x, &w);
    if (x->next[0].data || x->next[1].data) {
        const dim3 block(32, 4), grid((unsigned)s->n, (unsigned)w.H, (unsigned)ceil_div(w.V, 4));
        if (x->k.dim[2] <= 64)
            last_kernel<2><<<grid, block, 0, stream_of(d)>>>(*x, w);
        else
            last_kernel<4><<<grid, block, 0, stream_of(d)>>>(*x, w);
        CUDA(cudaGetLastError());
    }
}

void palimpsa_tiled_backward(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g, void *scratch)
{
    struct carver m = { (char *)scratch, 0 };
    const struct tiled w = tiled_of(d, s, x, true, &m);

    palimpsa_reverse(d, x, g, &w);
    palimpsa_correct(d, x, g, &w);
    if (w.dq)
        palimpsa_fold(d, g->q, w.dq, w.H, w.parts);
    if (w.dk)
        palimpsa_fold(d, g->k, w.dk, w.H, w.parts);
    if (w.decay) {
        struct tensor to = g->decay;        /* [T,H] as [T,H,1] */
        palimpsa_fold(d, to, w.decay, w.H, w.parts);
    }
    palimpsa_add_prior(d, g->prior[0], x->prior[0], w.prior, w.priors);
}
