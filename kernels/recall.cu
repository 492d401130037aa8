/* recall.cu - the middle of a Palimpsa layer for one token of each sequence: op_step.h says what it computes.
 *
 * A block owns a head of a sequence: its channels of the convolution, one a thread; then its memory, LANES a row.
 * Between the parts values are rounded as they are when the verbs run one by one. */
#include "chain.cuh"
#include "launch.cuh"
#include "sheet.cuh"
#include "op_step.h"

enum { THREADS = 256, LANES = 16, MOST = 256 };

struct call { struct recall r; const int32_t *seq; };

template <typename X> __device__ inline float rounded(float x)
{
    X y;

    store(&y, x);
    return load(&y);
}

/* Asks for n floats that will be read soon. */
__device__ inline void fetch(const float *p, int64_t n)
{
    for (int64_t i = (int64_t)threadIdx.x * 32; i < n; i += THREADS * 32)
        asm volatile("prefetch.global.L2 [%0];" :: "l"(p + i));
}

/* silu of the convolution of channel c of stream i, whose tail moves on by one token. */
template <typename X>
__device__ inline float channel(const struct recall &r, int i, int64_t n, int64_t c, float x)
{
    const int64_t C = r.tail[i].dim[2], W = r.W;
    const float *w = (const float *)r.conv[i].data + c * W;
    float *tail = (float *)r.tail[i].data + n * (W - 1) * C + c, a = w[W - 1] * x;

    for (int64_t j = W - 2; j >= 0; j--)
        a += w[j] * (r.fresh ? 0.f : tail[j * C]);
    for (int64_t j = 0; j + 2 < W; j++)
        tail[j * C] = r.fresh ? 0.f : tail[(j + 1) * C];
    if (W > 1)
        tail[(W - 2) * C] = x;
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

/* b of rows v0, v0 + step, ... of head h, a warp each. */
template <typename X>
__device__ inline void gains(float *b, const struct recall &r, int64_t t, int64_t h, float s, int v0, int step)
{
    const int64_t R = r.B.dim[1];
    const float f = softplus(((const float *)r.b_scale.data)[h]) * s;
    const X *rank = (const X *)r.rank.data + t * r.rank.row;

    for (int v = v0; v < r.V; v += step) {
        const X *B = (const X *)r.B.data + (h * r.V + v) * r.B.row;
        float sum = 0.f;
        for (int64_t j = threadIdx.x % 32; j < R; j += 32)
            sum += load(rank + j) * load(B + j);
        sum = rounded<X>(warp_sum(sum));
        if (threadIdx.x % 32 == 0)
            b[v] = rounded<X>(sigmoid(sum) * f);
    }
}

/* A row of the memory, of n columns, forgets, takes v k, and is read: o before its scale, the same in all LANES of the row. */
template <int N, bool META>
__device__ inline float remember(const struct recall &r, int64_t row, int n, const float *q, const float *k, float a,
                                 float v, float b, float Ip)
{
    float *M = (float *)r.state[0].data + row * r.K, *J = META ? (float *)r.state[1].data + row * r.K : NULL;
    float read = 0.f;

    for (int j = (int)threadIdx.x % LANES * N; j < n; j += LANES * N) {
        float m[N] = {}, i[N] = {};
        if (!r.fresh)
            load_n<N>(m, M + j);
        if (META && !r.fresh)
            load_n<N>(i, J + j);
        for (int e = 0; e < N; e++) {
            m[e] = a * m[e] + v * k[j + e];
            if (META) {
                i[e] = a * i[e] + b * k[j + e] * k[j + e];
                read += m[e] * (1.f / (i[e] + Ip)) * q[j + e];
            } else
                read += m[e] * q[j + e];
        }
        store_n<N>(M + j, m);
        if (META)
            store_n<N>(J + j, i);
    }
    for (int step = LANES / 2; step > 0; step /= 2)
        read += __shfl_xor_sync(0xffffffffu, read, step);
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

template <int N, bool META, typename X>
__global__ void __launch_bounds__(THREADS) recall_kernel(const __grid_constant__ struct call call)
{
    __shared__ float u[3][MOST], b[MOST], o[MOST], inverse[2];
    const struct recall &r = call.r;
    const int64_t h = blockIdx.x, t = blockIdx.y, H = r.dt.dim[1], K = r.K, V = r.V, memory = V * K;
    const int warp = threadIdx.x / 32;
    const X *raw = (const X *)r.qkv.data + t * r.qkv.row;

    const int64_t n = call.seq[t];
    for (int i = 0; i < 1 + META && !r.fresh; i++)
        fetch((const float *)r.state[i].data + (n * H + h) * memory, memory);
    await();
    let_next();
    for (int c = threadIdx.x; c < 2 * K + V; c += THREADS) {
        const int i = c < K ? 0 : c < 2 * K ? 1 : 2, at = c - i * (int)K;
        const int64_t of_stream = h * (i == 2 ? V : K) + at;
        u[i][at] = channel<X>(r, i, n, of_stream, load(raw + i * H * K + of_stream));
    }
    const float dt = ((const float *)r.dt.data)[t * r.dt.row + h] + ((const float *)r.dt_bias.data)[h];
    const float step = fminf(fmaxf(softplus(dt), r.range.lo), r.range.hi);
    const float a = expf(-expf(((const float *)r.A_log.data)[h]) * step);
    const float s = sigmoid(((const float *)r.s.data)[t * r.s.row + h]);
    const float D = ((const float *)r.D.data)[h], Ip = META ? expf(((const float *)r.prior.data)[h]) : 0.f;
    __syncthreads();
    if (warp < 2) {
        const float f = inverse_norm(u[warp], (int)K);
        if (threadIdx.x % 32 == 0)
            inverse[warp] = f;
    } else if (META)
        gains<X>(b, r, t, h, s, warp - 2, THREADS / 32 - 2);
    __syncthreads();
    for (int j = threadIdx.x; j < 2 * K; j += THREADS)
        u[j / K][j % K] = rounded<X>(u[j / K][j % K] * inverse[j / K]);
    __syncthreads();
    for (int v0 = 0; v0 < V; v0 += THREADS / LANES) {
        const int v = v0 + threadIdx.x / LANES;
        const bool live = v < V;                 /* the others only take part in sums */
        const float x = live ? u[2][v] : 0.f;
        float read = remember<N, META>(r, (n * H + h) * V + v, live ? (int)K : 0, u[0], u[1], a, rounded<X>(x * s),
                                       META && live ? b[v] : 0.f, Ip);
        if (live && threadIdx.x % LANES == 0)
            o[v] = rounded<X>(rounded<X>(r.scale * read) + x * D);
    }
    __syncthreads();
    if (warp == 0)
        leave<X>(r, t, h, o);
}

void cuda_recall(struct dev *d, const struct recall *r, const struct seqs *s)
{
    const struct call call = { *r, s->dseq };
    const dim3 grid((unsigned)r->dt.dim[1], (unsigned)s->tokens);
    const bool wide = r->K % 4 == 0;

    if (!s->tokens)
        return;
    FOR_TYPE(r->qkv.type, X,
        if (r->B.data && wide)
            chain(d, recall_kernel<4, true, X>, grid, THREADS, 0, call);
        else if (r->B.data)
            chain(d, recall_kernel<1, true, X>, grid, THREADS, 0, call);
        else if (wide)
            chain(d, recall_kernel<4, false, X>, grid, THREADS, 0, call);
        else
            chain(d, recall_kernel<1, false, X>, grid, THREADS, 0, call));
    CUDA(cudaGetLastError());
}
