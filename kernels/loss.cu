/* loss.cu - softmax cross entropy, the gradient in place of the logits.
 *
 * A block owns a row and reads it once: maximum and sum are carried along together, and the row stays
 * in registers for the gradient when it fits there. */
#include "launch.cuh"
#include "sheet.cuh"
#include <float.h>

/* Maximum m and sum s of exp(x - m) over what was seen. */
struct softmax { float m, s; };

__device__ inline struct softmax join(struct softmax a, struct softmax b)
{
    const float m = fmaxf(a.m, b.m);

    return { m, a.s * __expf(a.m - m) + b.s * __expf(b.m - m) };
}

__device__ inline struct softmax warp_join(struct softmax a)
{
    for (int step = 16; step > 0; step /= 2)
        a = join(a, { __shfl_xor_sync(0xffffffffu, a.m, step), __shfl_xor_sync(0xffffffffu, a.s, step) });
    return a;
}

template <int L> __device__ inline struct softmax block_join(struct softmax a)
{
    __shared__ struct softmax warp[L / 32];

    a = warp_join(a);
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = a;
    __syncthreads();
    return warp_join(threadIdx.x % 32 < L / 32 ? warp[threadIdx.x % 32] : softmax{ -FLT_MAX, 0.f });
}

template <int NV, int N, typename X>
__device__ inline void load_span(pack<X, N> (&p)[NV], const X *x, int64_t from, int64_t V, int step)
{
#pragma unroll
    for (int i = 0; i < NV; i++)
        if (from + (int64_t)i * step < V)
            p[i] = *(const pack<X, N> *)(x + from + (int64_t)i * step);
}

template <int L, int NV, int N, typename X>
__global__ void __launch_bounds__(L) xent_kernel(float *loss, struct tensor logits, const int32_t *target, float scale)
{
    const int64_t V = logits.dim[1], t = blockIdx.x, span = L * NV * N, lane = (int64_t)threadIdx.x * N;
    const int to = target[t];
    X *x = (X *)logits.data + t * logits.row;
    pack<X, N> p[NV];
    struct softmax a = { -FLT_MAX, 0.f };

    if (to < -1 || to >= V)
        __trap();
    const float aim = load(x + (to < 0 ? 0 : to));
    for (int64_t from = lane; from < V && to >= 0; from += span) {
        load_span<NV, N>(p, x, from, V, L * N);
#pragma unroll
        for (int i = 0; i < NV; i++) {
            if (from + (int64_t)i * L * N >= V)
                continue;
            float m = a.m, s = 0.f;
            for (int j = 0; j < N; j++)
                m = fmaxf(m, load(&p[i].at[j]));
            for (int j = 0; j < N; j++)
                s += __expf(load(&p[i].at[j]) - m);
            a = { m, a.s * __expf(a.m - m) + s };
        }
    }
    a = block_join<L>(a);                        /* the row's aim has been read by all before anyone writes */
    if (threadIdx.x == 0)
        loss[t] = to < 0 ? 0.f : logf(a.s) + a.m - aim;
    if (scale == 0.f)
        return;
    const float f = to < 0 ? 0.f : scale / a.s;
    for (int64_t from = lane; from < V; from += span) {
        if (V > span && to >= 0)
            load_span<NV, N>(p, x, from, V, L * N);
#pragma unroll
        for (int i = 0; i < NV; i++) {
            const int64_t c = from + (int64_t)i * L * N;
            if (c >= V)
                continue;
            float u[N];
            for (int j = 0; j < N; j++)
                u[j] = to < 0 ? 0.f : f * __expf(load(&p[i].at[j]) - a.m) - (c + j == to ? scale : 0.f);
            store_n<N>(x + c, u);
        }
    }
}

void cuda_xent(struct dev *d, struct tensor loss, struct tensor logits, const int32_t *target, float scale)
{
    const unsigned T = (unsigned)logits.dim[0];
    float *out = (float *)loss.data;

    /* 512 threads hold 32768 elements, 1024 twice that; longer or odd rows are read again, from L2. */
    if (!packs(logits, 8))
        FOR_TYPE(logits.type, X, xent_kernel<512, 8, 1, X><<<T, 512, 0, stream_of(d)>>>(out, logits, target, scale));
    else if (logits.type == F32)
        xent_kernel<512, 4, 8, float><<<T, 512, 0, stream_of(d)>>>(out, logits, target, scale);
    else if (logits.dim[1] <= 8192)
        xent_kernel<256, 4, 8, bf16><<<T, 256, 0, stream_of(d)>>>(out, logits, target, scale);
    else if (logits.dim[1] <= 32768)
        xent_kernel<512, 8, 8, bf16><<<T, 512, 0, stream_of(d)>>>(out, logits, target, scale);
    else
        xent_kernel<1024, 8, 8, bf16><<<T, 1024, 0, stream_of(d)>>>(out, logits, target, scale);
    CUDA(cudaGetLastError());
}
