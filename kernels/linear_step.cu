/* linear_step.cu - the linear scan token by token, for documents of a few tokens, as in decoding.
 *
 * A group of lanes owns one row of a memory, four columns a lane, and walks over the document. */
#include "linear.cuh"
#include "sheet.cuh"

/* Four elements from column k, zeros from column n on. */
template <typename X> __device__ inline void get_four(float (&u)[4], const X *p, int k, int n, bool wide)
{
    if (wide && k < n)
        load_n<4>(u, p + k);
    else
        for (int i = 0; i < 4; i++)
            u[i] = k + i < n ? load(p + k + i) : 0.f;
}

/* LANES per row, C times four columns each; blockIdx.y takes some of the rows. */
template <typename X, int LANES, int C>
__global__ void __launch_bounds__(THREADS) step_kernel(const __grid_constant__ struct linear x)
{
    constexpr int groups = THREADS / LANES;
    const int h = (int)(blockIdx.x % x.H), doc = (int)(blockIdx.x / x.H), lane = threadIdx.x % LANES;
    const int64_t hq = h * x.q.dim[1] / x.H, hk = h * x.k.dim[1] / x.H, from = x.start[doc], to = x.start[doc + 1];
    const float *S0 = memory_of(x, x.state, doc, h);
    float *S1 = memory_of(x, x.next, doc, h);

    for (int v0 = blockIdx.y * groups; v0 < x.V; v0 += gridDim.y * groups) {     /* the same for all lanes of a warp */
        const int v = v0 + threadIdx.x / LANES;
        float S[C][4];
        for (int i = 0; i < C; i++)
            if (S0 && v < x.V)
                get_four<float>(S[i], S0 + (int64_t)v * x.K, 4 * (lane + LANES * i), x.K, x.wide);
            else
                S[i][0] = S[i][1] = S[i][2] = S[i][3] = 0.f;
        for (int64_t t = from; t < to; t++) {
            const X *q = (const X *)x.q.data + t * x.q.row + hq * x.K;
            const X *k = (const X *)x.k.data + t * x.k.row + hk * x.K;
            const float a = expf(((const float *)x.decay.data)[t * x.decay.row + h]);
            const float vt = v < x.V ? load((const X *)x.v.data + t * x.v.row + (int64_t)h * x.V + v) : 0.f;
            float sum = 0.f;
            for (int i = 0; i < C; i++) {
                float qi[4], ki[4];
                get_four<X>(qi, q, 4 * (lane + LANES * i), x.K, x.wide);
                get_four<X>(ki, k, 4 * (lane + LANES * i), x.K, x.wide);
                for (int j = 0; j < 4; j++) {
                    S[i][j] = a * S[i][j] + vt * ki[j];
                    sum += S[i][j] * qi[j];
                }
            }
            for (int step = LANES / 2; step > 0; step /= 2)
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            if (lane == 0 && v < x.V)
                store((X *)x.o.data + t * x.o.row + (int64_t)h * x.V + v, x.scale * sum);
        }
        for (int i = 0; i < C && S1 && v < x.V; i++) {
            float *at = S1 + (int64_t)v * x.K + 4 * (lane + LANES * i);
            for (int j = 0; j < 4; j++)
                if (!x.wide && 4 * (lane + LANES * i) + j < x.K)
                    at[j] = S[i][j];
            if (x.wide && 4 * (lane + LANES * i) < x.K)
                store_n<4>(at, S[i]);
        }
    }
}

template <typename X, int LANES, int C> static void step_launch(struct dev *d, const struct linear *x, int64_t N)
{
    const int64_t full = ceil_div(x->V, THREADS / LANES), want = ceil_div(16 * cuda_of(d)->sms, N * x->H);
    const dim3 grid((unsigned)(N * x->H), (unsigned)min64(full, want));

    step_kernel<X, LANES, C><<<grid, THREADS, 0, stream_of(d)>>>(*x);
    CUDA(cudaGetLastError());
}

void linear_step(struct dev *d, const struct linear *x, int64_t N)
{
    FOR_TYPE(x->q.type, X,
        if (x->K <= 16)       step_launch<X, 4, 1>(d, x, N);
        else if (x->K <= 32)  step_launch<X, 8, 1>(d, x, N);
        else if (x->K <= 64)  step_launch<X, 16, 1>(d, x, N);
        else if (x->K <= 128) step_launch<X, 32, 1>(d, x, N);
        else                  step_launch<X, 32, 2>(d, x, N));
}
