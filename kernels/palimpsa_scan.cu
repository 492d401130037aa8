/* palimpsa_scan.cu - the palimpsa scan on CUDA: which path runs, and what the paths share. */
#include "palimpsa.cuh"

/* A thread owns N elements of `to`; heads and parts are added in order. */
template <int N, typename X>
__global__ void fold_kernel(struct tensor to, const float *from, int64_t H, int64_t parts)
{
    const int64_t G = to.dim[1], K = to.dim[2], i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * N;
    const int64_t t = i / (G * K), g = i / K % G, part = to.dim[0] * H * K;
    struct pack<float, N> sum = {};
    if (t >= to.dim[0])
        return;

    for (int64_t h = (g * H + G - 1) / G; h * G / H == g && h < H; h++)
        for (int64_t p = 0; p < parts; p++) {
            const struct pack<float, N> a = *(const struct pack<float, N> *)(from + p * part + (t * H + h) * K + i % K);
            for (int e = 0; e < N; e++)
                sum.at[e] += a.at[e];
        }
    for (int e = 0; e < N; e++)
        store(head_at<X>(to, t, g) + i % K + e, sum.at[e]);
}

void palimpsa_fold(struct dev *d, struct tensor to, const float *from, int64_t H, int64_t parts)
{
    const int64_t n = tensor_count(to);

    if (!to.data)
        return;
    FOR_TYPE(to.type, X,
        if (to.dim[2] % 4 == 0)
            fold_kernel<4, X><<<(unsigned)ceil_div(n / 4, 256), 256, 0, stream_of(d)>>>(to, from, H, parts);
        else
            fold_kernel<1, X><<<(unsigned)ceil_div(n, 256), 256, 0, stream_of(d)>>>(to, from, H, parts));
    CUDA(cudaGetLastError());
}

/* One warp per head. */
__global__ void prior_kernel(struct tensor to, struct tensor Ip_log, const float *part, int64_t parts)
{
    const int64_t h = blockIdx.x, H = to.dim[0];
    float sum = 0.f;

    for (int64_t p = threadIdx.x; p < parts; p += 32)
        sum += part[p * H + h];
    sum = warp_sum(sum);
    if (threadIdx.x == 0)
        ((float *)to.data)[h] += expf(((const float *)Ip_log.data)[h]) * sum;
}

void palimpsa_add_prior(struct dev *d, struct tensor to, struct tensor Ip_log, const float *part, int64_t parts)
{
    if (!to.data)
        return;
    prior_kernel<<<(unsigned)to.dim[0], 32, 0, stream_of(d)>>>(to, Ip_log, part, parts);
    CUDA(cudaGetLastError());
}

/* One block per document and part of its memory; only empty documents move. */
__global__ void hand_through_kernel(struct tensor to, struct tensor from, const int32_t *start)
{
    const int64_t n = blockIdx.x, size = to.dim[1] * to.dim[2] * to.dim[3];
    if (start[n] != start[n + 1])
        return;

    for (int64_t i = (int64_t)blockIdx.y * blockDim.x + threadIdx.x; i < size; i += (int64_t)gridDim.y * blockDim.x)
        ((float *)to.data)[n * size + i] = from.data ? ((const float *)from.data)[n * size + i] : 0.f;
}

static void hand_through(struct dev *d, const struct seqs *s, const struct tensor *to, const struct tensor *from)
{
    for (int i = 0; i < 2; i++)
        if (to[i].data && s->n > 0) {
            hand_through_kernel<<<dim3((unsigned)s->n, 8), 256, 0, stream_of(d)>>>(to[i], from[i], s->dstart);
            CUDA(cudaGetLastError());
        }
}

/* A path may write memories out while others still read those that came in: if they share their place, what
 * came in moves aside. */
static void move_aside(struct dev *d, struct tensor in[2], const struct tensor out[2], void **scratch)
{
    for (int i = 0; i < 2; i++) {
        const size_t bytes = (size_t)tensor_count(in[i]) * sizeof(float);
        if (!in[i].data || in[i].data != out[i].data)
            continue;
        CUDA(cudaMemcpyAsync(*scratch, in[i].data, bytes, cudaMemcpyDeviceToDevice, stream_of(d)));
        in[i].data = *scratch;
        *scratch = (char *)*scratch + bytes;
    }
}

/* None in training, where no memory is carried: a plan with as many documents as tokens stays small. */
static int64_t aside_bytes(const struct scan_io *x, const struct seqs *s)
{
    if (!x->state[0].ndim || !x->next[0].ndim)
        return 0;
    return 2 * (int64_t)sizeof(float) * s->n * x->v.dim[1] * x->v.dim[2] * x->k.dim[2];
}

static int64_t palimpsa_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward)
{
    const int64_t plain = palimpsa_plain_scratch(d, s, x, backward);
    const int64_t tiled = palimpsa_tiled_fits(d, x) ? palimpsa_tiled_scratch(d, s, x, backward) : 0;

    return aside_bytes(x, s) + (plain > tiled ? plain : tiled) + ARENA_ALIGN;
}

static void *aligned(void *p) { return (void *)(((uintptr_t)p + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN); }

static void palimpsa_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch)
{
    struct scan_io in = *x;

    if (s->tokens > 0 && palimpsa_step_fits(s, x))
        palimpsa_step(d, s, x);
    else if (s->tokens > 0) {
        move_aside(d, in.state, in.next, &scratch);
        if (palimpsa_tiled_fits(d, x))
            palimpsa_tiled_forward(d, s, &in, aligned(scratch));
        else
            palimpsa_plain_forward(d, s, &in, aligned(scratch));
    }
    hand_through(d, s, x->next, x->state);
}

static void palimpsa_backward(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                              void *scratch)
{
    struct scan_io in = *g;

    if (s->tokens > 0) {
        move_aside(d, in.next, in.state, &scratch);
        if (palimpsa_tiled_fits(d, x) && palimpsa_tiled_fits_back(g))
            palimpsa_tiled_backward(d, s, x, &in, aligned(scratch));
        else
            palimpsa_plain_backward(d, s, x, &in, aligned(scratch));
    }
    hand_through(d, s, g->state, g->next);
}

extern "C" const struct scan_impl palimpsa_cuda = {
    .scratch = palimpsa_scratch, .forward = palimpsa_forward, .backward = palimpsa_backward,
};
