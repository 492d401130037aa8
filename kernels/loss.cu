/* loss.cu - softmax cross entropy and its gradient, which may take the place of the logits.
 *
 * A block owns a row: maximum and sum are carried along together in one pass, the gradient is a second. */
#include "launch.cuh"
#include "sheet.cuh"
#include <float.h>

enum { THREADS = 512 };
#define LOG2_E 1.44269504f

/* Maximum m and sum s of exp(x - m) over what was seen. */
struct softmax { float m, s; };

__device__ inline struct softmax join(struct softmax a, struct softmax b)
{
    const float m = fmaxf(a.m, b.m);

    return { m, a.s * power((a.m - m) * LOG2_E) + b.s * power((b.m - m) * LOG2_E) };
}

__device__ inline struct softmax warp_join(struct softmax a)
{
    for (int step = 16; step > 0; step /= 2)
        a = join(a, { __shfl_xor_sync(0xffffffffu, a.m, step), __shfl_xor_sync(0xffffffffu, a.s, step) });
    return a;
}

__device__ inline struct softmax block_join(struct softmax a)
{
    __shared__ struct softmax warp[THREADS / 32];

    a = warp_join(a);
    if (threadIdx.x % 32 == 0)
        warp[threadIdx.x / 32] = a;
    __syncthreads();
    return warp_join(threadIdx.x % 32 < THREADS / 32 ? warp[threadIdx.x % 32] : softmax{ -FLT_MAX, 0.f });
}

/* Sixteen bytes. */
__device__ inline void copy_async(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from));
}

/* HELD: the row waits in shared memory, where each thread keeps its own packs and so needs no barrier. */
template <bool HELD, int N, typename X, typename G>
__global__ void __launch_bounds__(THREADS)
xent_kernel(float *loss, struct tensor grad, struct tensor logits, const int32_t *target, float scale)
{
    extern __shared__ __align__(16) char room[];
    const int V = (int)logits.dim[1], to = target[blockIdx.x], lane = threadIdx.x * N;
    const X *x = (const X *)logits.data + blockIdx.x * logits.row;
    G *out = (G *)grad.data + blockIdx.x * grad.row;
    const X *from = HELD ? (const X *)room : x;
    struct softmax a = { -FLT_MAX, 0.f };

    if (to < -1 || to >= V)
        __trap();
    if (HELD && to >= 0) {
#pragma unroll 4
        for (int c = lane; c < V; c += THREADS * N)
            for (int part = 0; part < N; part += 16 / (int)sizeof(X))
                copy_async((X *)room + c + part, x + c + part);
        asm volatile("cp.async.wait_all;" ::: "memory");
    }
    const float aim = load(x + (to < 0 ? 0 : to));
#pragma unroll 4
    for (int c = lane; c < V && to >= 0; c += THREADS * N) {
        float u[N], m = a.m;
        load_n<N>(u, from + c);
        for (int j = 0; j < N; j++)
            m = fmaxf(m, u[j]);
        a.s *= power((a.m - m) * LOG2_E);
        for (int j = 0; j < N; j++)
            a.s += power((u[j] - m) * LOG2_E);
        a.m = m;
    }
    a = block_join(a);                           /* the row's aim has been read by all before anyone writes */
    if (threadIdx.x == 0)
        loss[blockIdx.x] = to < 0 ? 0.f : logf(a.s) + a.m - aim;
    if (!grad.data)
        return;
    const float f = to < 0 ? 0.f : scale / a.s;
#pragma unroll 4
    for (int c = lane; c < V; c += THREADS * N) {
        float u[N] = {};
        if (to >= 0) {
            load_n<N>(u, from + c);
            for (int j = 0; j < N; j++)
                u[j] = f * power((u[j] - a.m) * LOG2_E);
            if ((unsigned)(to - c) < N)
                for (int j = 0; j < N; j++)
                    u[j] -= c + j == to ? scale : 0.f;
        }
        store_n<N>(out + c, u);
    }
}

template <typename X, typename G>
static void xent_launch(struct dev *d, float *loss, struct tensor grad, struct tensor logits, const int32_t *target,
                        float scale)
{
    const int64_t bytes = logits.dim[1] * (int64_t)dtype_size(logits.type);
    const unsigned T = (unsigned)logits.dim[0];

    if (!packs(logits, 8) || !packs(grad, 8))
        xent_kernel<false, 1, X, G><<<T, THREADS, 0, stream_of(d)>>>(loss, grad, logits, target, scale);
    else if (bytes > cuda_of(d)->shared / 2 - 2048)      /* two rows at once or none: read again, from L2 */
        xent_kernel<false, 8, X, G><<<T, THREADS, 0, stream_of(d)>>>(loss, grad, logits, target, scale);
    else {
        CUDA(cudaFuncSetAttribute(xent_kernel<true, 8, X, G>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
        xent_kernel<true, 8, X, G><<<T, THREADS, (size_t)bytes, stream_of(d)>>>(loss, grad, logits, target, scale);
    }
    CUDA(cudaGetLastError());
}

void cuda_xent(struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits, const int32_t *target,
               float scale)
{
    REQUIRE(logits.dim[1] < (int64_t)1 << 30);
    FOR_TYPE(logits.type, X, FOR_TYPE(grad.data ? grad.type : logits.type, G,
        xent_launch<X, G>(d, (float *)loss.data, grad, logits, target, scale)));
}
