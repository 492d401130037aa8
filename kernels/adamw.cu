/* adamw.cu - the optimizer: sum of squares for the norm of the gradient, and the update. */
#include "launch.cuh"
#include "sheet.cuh"

enum { SQUARES = 256 };                  /* threads of a block that sums squares */

/* Sum over the block, in double and always in the same order; thread 0 has it. */
__device__ inline double block_sum(double x)
{
    __shared__ double sum[SQUARES];

    sum[threadIdx.x] = x;
    for (int step = SQUARES / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step)
            sum[threadIdx.x] += sum[threadIdx.x + step];
    }
    return sum[0];
}

template <int N, typename X>
__global__ void __launch_bounds__(SQUARES) squares_kernel(double *part, struct tensor x, int64_t cols)
{
    const int64_t n = x.dim[0] * cols, step = (int64_t)gridDim.x * SQUARES;
    double sum = 0;

#pragma unroll 4
    for (int64_t i = (int64_t)blockIdx.x * SQUARES + threadIdx.x; i < n; i += step) {
        const int64_t t = x.dim[0] == 1 ? 0 : i / cols;
        float u[N];
        load_n<N>(u, (const X *)x.data + t * x.row + (i - t * cols) * N);
        for (int j = 0; j < N; j++)
            sum += (double)u[j] * u[j];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        part[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(SQUARES) total_kernel(float *total, const double *part, int parts)
{
    double sum = 0;

    for (int i = threadIdx.x; i < parts; i += SQUARES)
        sum += part[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *total += (float)sum;
}

void cuda_sumsq(struct dev *d, struct tensor sum, struct tensor x)
{
    if (tensor_dense(x))
        x = one_row(x);

    const int n = packs(x, 16 / (int)dtype_size(x.type)) ? 16 / (int)dtype_size(x.type) : 1;
    const int64_t cols = tensor_count(x) / x.dim[0] / n;
    const int blocks = (int)min64(ceil_div(x.dim[0] * cols, SQUARES), 8 * cuda_of(d)->sms);
    double *part = (double *)cuda_part(d, sizeof *part * (size_t)blocks);
    FOR_TYPE(x.type, X,
        if (n > 1)
            squares_kernel<16 / sizeof(X), X><<<blocks, SQUARES, 0, stream_of(d)>>>(part, x, cols);
        else
            squares_kernel<1, X><<<blocks, SQUARES, 0, stream_of(d)>>>(part, x, cols));
    CUDA(cudaGetLastError());
    total_kernel<<<1, SQUARES, 0, stream_of(d)>>>((float *)sum.data, part, blocks);
    CUDA(cudaGetLastError());
}

/* h, with the corrections for the zero start of m and v: 1/(1 - beta1^step) and 1/(1 - beta2^step). */
struct update { struct adamw h; float c1, c2; };

template <int N, typename W>
__global__ void adamw_kernel(W *w, float *master, float *m, float *v, const float *g, int64_t packs_, struct update s)
{
    const int64_t step = (int64_t)gridDim.x * blockDim.x;

    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < packs_; i += step) {
        float p[N], mi[N], vi[N], gi[N];
        load_n<N>(p, master + i * N);
        load_n<N>(mi, m + i * N);
        load_n<N>(vi, v + i * N);
        load_n<N>(gi, g + i * N);
        for (int j = 0; j < N; j++) {
            const float G = s.h.scale * gi[j];
            mi[j] = s.h.beta1 * mi[j] + (1.f - s.h.beta1) * G;
            vi[j] = s.h.beta2 * vi[j] + (1.f - s.h.beta2) * G * G;
            p[j] -= s.h.lr * (mi[j] * s.c1 / (sqrtf(vi[j] * s.c2) + s.h.eps) + s.h.decay * p[j]);
        }
        store_n<N>(m + i * N, mi);
        store_n<N>(v + i * N, vi);
        store_n<N>(master + i * N, p);
        if ((void *)w != (void *)master)
            store_n<N>(w + i * N, p);
    }
}

void cuda_adamw(struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
                struct tensor g, const struct adamw *h)
{
    const int64_t n = master.dim[0];
    const bool wide = packs(one_row(w), 4) && packs(one_row(master), 4) && packs(one_row(m), 4)
                      && packs(one_row(v), 4) && packs(one_row(g), 4);
    const struct update s = { *h, (float)(1 / (1 - pow((double)h->beta1, (double)h->step))),
                              (float)(1 / (1 - pow((double)h->beta2, (double)h->step))) };
    const unsigned blocks = (unsigned)min64(ceil_div(n, wide ? 4 * 256 : 256), 1 << 20);
    float *pp = (float *)master.data, *pm = (float *)m.data, *pv = (float *)v.data;
    const float *pg = (const float *)g.data;

    FOR_TYPE(w.type, W,
        if (wide)
            adamw_kernel<4, W><<<blocks, 256, 0, stream_of(d)>>>((W *)w.data, pp, pm, pv, pg, n / 4, s);
        else
            adamw_kernel<1, W><<<blocks, 256, 0, stream_of(d)>>>((W *)w.data, pp, pm, pv, pg, n, s));
    CUDA(cudaGetLastError());
}
