/* rope.cu - rotary positions: thread i of a token turns the pair (x[i], x[i+C/2]) of every head. */
#include "launch.cuh"
#include "common.cuh"

/* The angle is taken modulo a turn in double: positions reach millions of turns. */
template <typename X>
__global__ void rope_kernel(struct tensor y, struct tensor x, const int32_t *pos, double log2_base, int sign)
{
    const int64_t C = x.dim[2], half = C / 2, t = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;

    if (t >= x.dim[0])
        return;
    for (int64_t i = threadIdx.x; i < half; i += blockDim.x) {
        const double turns = sign * pos[t] * exp2(-2.0 * (double)i / (double)C * log2_base) * 0.15915494309189535;
        float sin_, cos_;
        sincospif((float)(2.0 * (turns - rint(turns))), &sin_, &cos_);
        for (int64_t h = 0; h < x.dim[1]; h++) {
            const X *from = (const X *)x.data + t * x.row + h * C + i;
            X       *to   = (X *)y.data + t * y.row + h * C + i;
            const float a = load(from), b = load(from + half);
            store(to, a * cos_ - b * sin_);
            store(to + half, b * cos_ + a * sin_);
        }
    }
}

void cuda_rope(struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign)
{
    const dim3 block(32, 8);
    const unsigned grid = (unsigned)ceil_div(x.dim[0], block.y);

    FOR_TYPE(x.type, X, rope_kernel<X><<<grid, block, 0, stream_of(d)>>>(y, x, pos, log2((double)base), sign));
    CUDA(cudaGetLastError());
}
