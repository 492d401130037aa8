/* common.cuh - what every kernel file needs: error check, element access, sums, dispatch on type. */
#ifndef COMMON_CUH
#define COMMON_CUH
#include "dev.h"
#include "parts.h"
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#define CUDA(call) do { cudaError_t e_ = (call); \
    if (e_ != cudaSuccess) BUG("%s: %s", #call, cudaGetErrorString(e_)); } while (0)

typedef __nv_bfloat16 bf16;
struct blas;                             /* the matrix library and its cache: matmul.cu */
struct graphs;                           /* work that was recorded: graph.cu */
struct lanes;
struct cuda {
    cudaStream_t stream;                 /* all work of the device, in order */
    struct blas *blas;
    struct graphs *graphs;
    char        *part;                   /* partial sums between the two stages of a reduction */
    size_t       part_bytes;
    char        *bounce;                 /* pinned host memory that copies pass through, in two halves */
    cudaEvent_t  bounced[2];             /* a half may be used again */
    int          sms, shared;            /* multiprocessors; bytes of shared memory a block may have */
    bool         chains;                 /* a kernel may begin before the one before has ended: chain.cuh */
    char         name[256];
    struct lanes *lanes;                 /* work side by side: lanes.cu */
};
static inline struct cuda *cuda_of(const struct dev *d) { return (struct cuda *)d->priv; }
static inline cudaStream_t stream_of(const struct dev *d) { return cuda_of(d)->stream; }

void *cuda_part(const struct dev *d, size_t bytes);      /* the workspace, checked to be large enough */
/* dst[i] += sum over p < parts of part[p*n + i], always in the same order */
void  cuda_add_parts(const struct dev *d, float *dst, const float *part, int64_t n, int64_t parts);

__device__ inline float load(const float *p) { return *p; }
__device__ inline float load(const bf16 *p)  { return __bfloat162float(*p); }
__device__ inline void  store(float *p, float x) { *p = x; }
__device__ inline void  store(bf16 *p, float x)  { *p = __float2bfloat16(x); }
/* For tensors too small to deserve a template: element i of a tensor of either type. */
__device__ inline float get(const struct tensor &t, int64_t i)
{
    return t.type == F32 ? ((const float *)t.data)[i] : load((const bf16 *)t.data + i);
}
__device__ inline void put(const struct tensor &t, int64_t i, float x)
{
    if (t.type == F32)
        ((float *)t.data)[i] = x;
    else
        store((bf16 *)t.data + i, x);
}

/* N elements moved by loads and stores of up to 16 bytes. */
template <typename X, int N> struct alignas(N * sizeof(X) < 16 ? N * sizeof(X) : 16) pack { X at[N]; };

/* May every row of t be read in packs of n elements? The answer, which may decide the order of a sum, is the same when
 * there is only one. */
static inline bool packs(struct tensor t, int n)
{
    const int64_t size = (int64_t)dtype_size(t.type), cols = t.dim[1] * t.dim[2] * t.dim[3];
    const int64_t align = n * size < 16 ? n * size : 16;

    return !t.data || ((uintptr_t)t.data % (uint64_t)align == 0 && cols % n == 0 && t.row % n == 0);
}

__device__ inline float warp_sum(float x)
{
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ inline float power(float x)   /* 2^x; below 2^-126 it is 0 */
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float reciprocal(float x)              /* above 2^126 it is 0 */
{
    float y;

    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ inline float sigmoid(float x) { return reciprocal(1.f + power(-1.4426950f * x)); }   /* good to 2^-20 */
__device__ inline float softplus(float x) { return fmaxf(x, 0.f) + log1pf(expf(-fabsf(x))); }

/* Run the statements once with X the element type of a tensor. */
#define FOR_TYPE(t, X, ...) do { \
    if ((t) == F32)       { typedef float X; __VA_ARGS__; } \
    else if ((t) == BF16) { typedef bf16 X;  __VA_ARGS__; } \
    else BUG("no kernel for dtype %d", (int)(t)); } while (0)
#endif
