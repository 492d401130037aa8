/* recall.cu - the middle of a Palimpsa layer for one token of each sequence: op_step.h says what it computes.
 *
 * A block owns a head of a sequence: its channels of the convolution, one a thread; then its memory, LANES a row.
 * Between the parts values are rounded as they are when the verbs run one by one. */
#include "chain.cuh"
#include "launch.cuh"
#include "sheet.cuh"
#include "op_step.h"

enum { THREADS = 512, LANES = 16, MOST = 256, HELD = 64 };       /* HELD: K and V whose memory waits in registers */

struct call { struct recall r; const int32_t *seq; };

template <typename X> __device__ inline float rounded(float x)
{
    X y;

    store(&y, x);
    return load(&y);
}

/* One channel of a stream: its filter and the inputs before this one, fetched beforehand. */
struct channel { const float *w; float *tail; int64_t step; float newest, weight[3], past[3]; };

__device__ inline struct channel channel_of(const struct recall &r, int i, int64_t n, int64_t c)
{
    const int64_t C = r.tail[i].dim[2], W = r.W;
    struct channel x = {};

    x.w    = (const float *)r.conv[i].data + c * W;
    x.tail = (float *)r.tail[i].data + n * (W - 1) * C + c;
    x.step = C;

    x.newest = x.w[W - 1];
#pragma unroll
    for (int j = 0; j < 3; j++) {
        x.weight[j] = j < W - 1 ? x.w[j] : 0.f;
        x.past[j]   = j < W - 1 && !r.fresh ? x.tail[j * C] : 0.f;
    }
    return x;
}

/* silu of the convolution at input x; the tail moves on by one token. */
template <typename X> __device__ inline float convolve(const struct recall &r, const struct channel &c, float x)
{
    const int W = (int)r.W;
    float a = c.newest * x;

    if (W <= 4) {
#pragma unroll
        for (int j = 2; j >= 0; j--)
            a += c.weight[j] * c.past[j];
#pragma unroll
        for (int j = 0; j < 3; j++)
            if (j < W - 1)
                c.tail[j * c.step] = j < 2 && j + 1 < W - 1 ? c.past[j < 2 ? j + 1 : 2] : x;
    } else {
        for (int j = W - 2; j >= 0; j--)
            a += c.w[j] * (r.fresh ? 0.f : c.tail[j * c.step]);
        for (int j = 0; j + 2 < W; j++)
            c.tail[j * c.step] = r.fresh ? 0.f : c.tail[(j + 1) * c.step];
        c.tail[(W - 2) * c.step] = x;
    }
    return rounded<X>(a * sigmoid(a));
}

/* 1 / |u|, by one warp. */
__device__ inline float inverse_norm(const float *u, int n)
{
    float sum = 0.f;

    for (int j = threadIdx.x % 32; j < n; j += 32)
        sum += u[j] * u[j];
    return 1.f / fmaxf(sqrtf(warp_sum(sum)), 1e-12f);
}

/* q and k, by the whole block, each over its length; inverse: where the lengths go. */
template <typename X> __device__ inline void normalise(float (*u)[MOST], float *inverse, int K)
{
    const int tid = threadIdx.x;

    if (tid < 64) {
        const float f = inverse_norm(u[tid / 32], K);
        if (tid % 32 == 0)
            inverse[tid / 32] = f;
    }
    __syncthreads();
    for (int j = tid; j < 2 * K; j += THREADS)
        u[j / K][j % K] = rounded<X>(u[j / K][j % K] * inverse[j / K]);
}

/* What gains() needs first of its matrix. */
template <typename X> __device__ inline void fetch_gains(float (&held)[8], const struct recall &r, int64_t h)
{
    const int v = threadIdx.x / 8;
    const X *B = (const X *)r.B.data + (h * r.V + v) * r.B.row;

#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int64_t j = threadIdx.x % 8 + 8 * i;
        held[i] = v < r.V && j < r.B.dim[1] ? load(B + j) : 0.f;
    }
}

/* b of the rows of head h, eight lanes a row; f: what the sigmoid is multiplied with. */
template <typename X>
__device__ inline void gains(float *b, const float (&held)[8], const struct recall &r, int64_t t, int64_t h, float f)
{
    const int64_t R = r.B.dim[1];
    const X *rank = (const X *)r.rank.data + t * r.rank.row;

    for (int v0 = 0; v0 < r.V; v0 += THREADS / 8) {
        const int v = v0 + threadIdx.x / 8;
        const X *B = (const X *)r.B.data + (h * r.V + v) * r.B.row;
        float sum = 0.f;
        for (int64_t j0 = threadIdx.x % 8; j0 < R && v < r.V; j0 += 64) {
            float x[8], y[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
                x[i] = j0 + 8 * i < R ? load(rank + j0 + 8 * i) : 0.f;
                y[i] = j0 + 8 * i < R ? v0 == 0 && j0 < 8 ? held[i] : load(B + j0 + 8 * i) : 0.f;
            }
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += x[i] * y[i];
        }
        for (int step = 4; step > 0; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 8 == 0 && v < r.V)
            b[v] = rounded<X>(sigmoid(rounded<X>(sum)) * f);
    }
}

/* N columns of a row of the memory, mean and precision. */
template <int N> struct cell { float m[N], i[N]; };

template <int N, bool META>
__device__ inline struct cell<N> cell_of(const struct recall &r, int64_t at)
{
    struct cell<N> x = {};

    if (!r.fresh)
        load_n<N>(x.m, (const float *)r.state[0].data + at);
    if (META && !r.fresh)
        load_n<N>(x.i, (const float *)r.state[1].data + at);
    return x;
}

/* The cell forgets, takes v k, is read with q and stored. */
template <int N, bool META>
__device__ inline float remember(const struct recall &r, struct cell<N> x, int64_t at, const float *q, const float *k,
                                 float a, float v, float b, float Ip)
{
    float read = 0.f;

    for (int e = 0; e < N; e++) {
        x.m[e] = a * x.m[e] + v * k[e];
        if (META) {
            x.i[e] = a * x.i[e] + b * k[e] * k[e];
            read += x.m[e] * (1.f / (x.i[e] + Ip)) * q[e];
        } else
            read += x.m[e] * q[e];
    }
    store_n<N>((float *)r.state[0].data + at, x.m);
    if (META)
        store_n<N>((float *)r.state[1].data + at, x.i);
    return read;
}

/* y = norm(o) * silu(gate) for one head, by one warp. */
template <typename X>
__device__ inline void leave(const struct recall &r, int64_t t, int64_t h, const float *o)
{
    float sum = 0.f;

    for (int v = threadIdx.x % 32; v < r.V; v += 32)
        sum += o[v] * o[v];
    const float scale = rsqrtf(warp_sum(sum) / (float)r.V + r.eps);
    for (int v = threadIdx.x % 32; v < r.V; v += 32) {
        const float z = r.gate.data ? load((const X *)r.gate.data + t * r.gate.row + h * r.V + v) : 0.f;
        const float f = scale * ((const float *)r.norm.data)[v] * (r.gate.data ? z * sigmoid(z) : 1.f);
        store((X *)r.y.data + t * r.y.row + h * r.V + v, o[v] * f);
    }
}

/* The channels beyond those that have a thread: fetched only now. */
template <typename X>
__device__ inline void more_channels(float (*u)[MOST], const struct recall &r, const X *raw, int64_t n, int64_t h)
{
    const int K = (int)r.K, V = (int)r.V;

    for (int j = threadIdx.x + THREADS; j < 2 * K + V; j += THREADS) {
        const int i = j < K ? 0 : j < 2 * K ? 1 : 2;
        const int64_t at = h * (i == 2 ? V : K) + j - i * K;
        u[i][j - i * K] = convolve<X>(r, channel_of(r, i, n, at), load(raw + i * r.dt.dim[1] * K + at));
    }
}

/* SMALL: K and V are at most HELD. What is carried, and the weights, are fetched before the projections are there. */
template <int N, bool META, bool SMALL, typename X>
__global__ void __launch_bounds__(THREADS, 1) recall_kernel(const __grid_constant__ struct call call)
{
    constexpr int rows = THREADS / LANES;        /* of the memory at a time */
    __shared__ float u[3][MOST], b[MOST], o[MOST], inverse[2];
    const struct recall &r = call.r;
    const int64_t h = blockIdx.x, t = blockIdx.y, H = r.dt.dim[1], n = call.seq[t];
    const int K = (int)r.K, V = (int)r.V, tid = threadIdx.x, k0 = tid % LANES * N;
    const int64_t memory = (n * H + h) * V * K;
    struct cell<N> held[SMALL ? HELD / rows : 1] = {};
    struct channel c = {};

    const int stream = tid < K ? 0 : tid < 2 * K ? 1 : 2, of_head = tid - stream * K;
    const int64_t of_stream = h * (stream == 2 ? V : K) + of_head;
    if (tid < 2 * K + V)
        c = channel_of(r, stream, n, of_stream);
    if (SMALL)
#pragma unroll
        for (int i = 0; i < HELD / rows; i++)
            if (i * rows + tid / LANES < V && k0 < K)
                held[i] = cell_of<N, META>(r, memory + (int64_t)(i * rows + tid / LANES) * K + k0);
    const float bias = ((const float *)r.dt_bias.data)[h], A = expf(((const float *)r.A_log.data)[h]);
    const float D = ((const float *)r.D.data)[h], Ip = META ? expf(((const float *)r.prior.data)[h]) : 0.f;
    const float gain = META ? softplus(((const float *)r.b_scale.data)[h]) : 0.f;
    float first[8];
    if (META)
        fetch_gains<X>(first, r, h);
    await();
    let_next();
    const X *raw = (const X *)r.qkv.data + t * r.qkv.row;
    const float x_dt = ((const float *)r.dt.data)[t * r.dt.row + h], x_s = ((const float *)r.s.data)[t * r.s.row + h];
    if (tid < 2 * K + V)
        u[stream][of_head] = convolve<X>(r, c, load(raw + stream * H * K + of_stream));
    more_channels(u, r, raw, n, h);
    const float s = sigmoid(x_s), a = expf(-A * fminf(fmaxf(softplus(x_dt + bias), r.range.lo), r.range.hi));
    if (META)
        gains<X>(b, first, r, t, h, gain * s);
    __syncthreads();
    normalise<X>(u, inverse, K);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < (SMALL ? HELD / rows : MOST / rows); i++) {
        const int v = i * rows + tid / LANES;
        const bool live = v < V;                 /* the others only take part in sums */
        const float x = live ? u[2][v] : 0.f, beta = META && live ? b[v] : 0.f;
        float read = 0.f;
        const int64_t row = memory + (int64_t)v * K;
        if (SMALL && live && k0 < K)
            read = remember<N, META>(r, held[SMALL ? i : 0], row + k0, u[0] + k0, u[1] + k0, a, rounded<X>(x * s), beta,
                                     Ip);
        for (int k = k0; !SMALL && live && k < K; k += LANES * N)
            read += remember<N, META>(r, cell_of<N, META>(r, row + k), row + k, u[0] + k, u[1] + k, a,
                                      rounded<X>(x * s), beta, Ip);
        for (int step = LANES / 2; step > 0; step /= 2)
            read += __shfl_xor_sync(0xffffffffu, read, step);
        if (live && tid % LANES == 0)
            o[v] = rounded<X>(rounded<X>(r.scale * read) + x * D);
    }
    __syncthreads();
    if (tid < 32)
        leave<X>(r, t, h, o);
}

template <bool META, typename X> static void recall_launch(struct dev *d, const struct call *call)
{
    const struct recall *r = &call->r;
    const dim3 grid((unsigned)r->dt.dim[1], (unsigned)r->dt.dim[0]);

    if (r->K % 4 == 0 && r->K <= HELD && r->V <= HELD)
        chain(d, recall_kernel<4, META, true, X>, grid, THREADS, 0, *call);
    else if (r->K % 4 == 0)
        chain(d, recall_kernel<4, META, false, X>, grid, THREADS, 0, *call);
    else
        chain(d, recall_kernel<1, META, false, X>, grid, THREADS, 0, *call);
    CUDA(cudaGetLastError());
}

void cuda_recall(struct dev *d, const struct recall *r, const struct seqs *s)
{
    const struct call call = { *r, s->dseq };

    if (!s->tokens)
        return;
    FOR_TYPE(r->qkv.type, X,
        if (r->B.data)
            recall_launch<true, X>(d, &call);
        else
            recall_launch<false, X>(d, &call));
}
