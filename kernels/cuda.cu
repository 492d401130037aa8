/* cuda.cu - the GPU as a device: opening it, its memory, and the table of its verbs. */
#include "common.cuh"
#include "dev_cuda.h"
#include "launch.cuh"

enum { BOUNCE = 1 << 20 };

static __global__ void probe_kernel(void)
{
}

int dev_cuda_count(void)
{
    int n = 0;

    if (cudaGetDeviceCount(&n) != cudaSuccess) {
        cudaGetLastError();
        return 0;
    }
    return n;
}

/* "sm_80, sm_90" from the list of numbers times ten that the compiler leaves. */
static void built_for(char *out, size_t size)
{
    const int arch[] = { __CUDA_ARCH_LIST__ };
    size_t n = 0;

    out[0] = 0;
    for (size_t i = 0; i < LEN(arch) && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%ssm_%d", i ? ", " : "", arch[i] / 10);
}

/* Does this build hold code that the current device can run? */
static int check_architecture(int index, const struct cudaDeviceProp *p)
{
    cudaFuncAttributes a;
    cudaError_t e = cudaFuncGetAttributes(&a, probe_kernel);
    char list[128];

    if (e == cudaSuccess)
        return 0;
    cudaGetLastError();
    built_for(list, sizeof list);
    return fail("device cuda:%d: %s is sm_%d%d, but this palimpsa was built for %s (%s)", index, p->name, p->major,
                p->minor, list, cudaGetErrorString(e));
}

static int check_memory(int index, const char *what, size_t bytes)
{
    size_t free_bytes = 0, total = 0;

    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &total);
    return fail("device cuda:%d: no memory for %s: %.0f MB asked, %.0f of %.0f MB free", index, what,
                (double)bytes / 1e6, (double)free_bytes / 1e6, (double)total / 1e6);
}

int dev_cuda_open(struct dev *d, int index)
{
    struct cudaDeviceProp p;
    struct cuda *c = (struct cuda *)mem_new(1, sizeof *c);
    cudaError_t e = cudaSetDevice(index);

    d->priv = c;
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&p, index);
    if (e != cudaSuccess)
        fail("device cuda:%d: %s", index, cudaGetErrorString(e));
    else if (check_architecture(index, &p))
        ;
    else if ((e = cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking)) != cudaSuccess)
        fail("device cuda:%d: %s", index, cudaGetErrorString(e));
    else if (cudaMalloc((void **)&c->part, PART_BYTES) != cudaSuccess)
        check_memory(index, "workspace", PART_BYTES);
    else if ((e = cudaMallocHost((void **)&c->bounce, 2 * BOUNCE)) != cudaSuccess
             || (e = cudaEventCreateWithFlags(&c->bounced[0], cudaEventDisableTiming)) != cudaSuccess
             || (e = cudaEventCreateWithFlags(&c->bounced[1], cudaEventDisableTiming)) != cudaSuccess)
        fail("device cuda:%d: %s", index, cudaGetErrorString(e));
    else if ((c->blas = blas_open()) != NULL) {
        c->graphs     = graphs_open();
        c->part_bytes = PART_BYTES;
        c->chains     = p.major >= 9;
        c->sms        = p.multiProcessorCount;
        c->shared     = (int)p.sharedMemPerBlockOptin;
        snprintf(c->name, sizeof c->name, "%s", p.name);
        return 0;
    }
    cudaGetLastError();
    dev_cuda_close(d);
    return -1;
}

void dev_cuda_close(struct dev *d)
{
    struct cuda *c = cuda_of(d);

    if (!c)
        return;
    if (c->stream)
        cudaStreamSynchronize(c->stream);
    if (c->graphs)
        graphs_forget(c->graphs);
    free(c->graphs);
    lanes_close(c->lanes);
    if (c->blas)
        blas_close(c->blas);
    if (c->part)
        cudaFree(c->part);
    if (c->bounce)
        cudaFreeHost(c->bounce);
    for (int i = 0; i < 2; i++)
        if (c->bounced[i])
            cudaEventDestroy(c->bounced[i]);
    if (c->stream)
        cudaStreamDestroy(c->stream);
    free(c);
    d->priv = NULL;
}

const char *dev_cuda_name(const struct dev *d)
{
    return cuda_of(d)->name;
}

size_t dev_cuda_free(const struct dev *d)
{
    size_t free_bytes = 0, total = 0;

    (void)d;
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    return free_bytes;
}

static void *cuda_alloc(struct dev *d, size_t bytes)
{
    void *p = NULL;

    (void)d;
    if (cudaMalloc(&p, bytes ? bytes : 1) == cudaSuccess)
        return p;
    cudaGetLastError();
    return NULL;
}

static void cuda_release(struct dev *d, void *p)
{
    CUDA(cudaStreamSynchronize(stream_of(d)));
    graphs_forget(cuda_of(d)->graphs);
    CUDA(cudaFree(p));
}

/* A recording would copy from, or to, the same place on the host every time it is played. */
static void no_recording(const struct dev *d)
{
    if (graphs_recording(cuda_of(d)->graphs))
        BUG("a copy from or to the host inside of a recording");
}

/* Bytes of piece i of a copy; pieces alternate between the halves. */
static size_t piece(size_t bytes, size_t i)
{
    return (size_t)min64((int64_t)(bytes - i * BOUNCE), BOUNCE);
}

/* The caller may overwrite what it gave as soon as the call returns. */
static void cuda_put(struct dev *d, void *dev, const void *host, size_t bytes)
{
    const struct cuda *c = cuda_of(d);

    no_recording(d);
    for (size_t i = 0; i * BOUNCE < bytes; i++) {
        char *half = c->bounce + i % 2 * BOUNCE;
        CUDA(cudaEventSynchronize(c->bounced[i % 2]));
        memcpy(half, (const char *)host + i * BOUNCE, piece(bytes, i));
        CUDA(cudaMemcpyAsync((char *)dev + i * BOUNCE, half, piece(bytes, i), cudaMemcpyHostToDevice, c->stream));
        CUDA(cudaEventRecord(c->bounced[i % 2], c->stream));
    }
}

/* While one piece is taken out of its half, the next arrives in the other. */
static void cuda_get(struct dev *d, void *host, const void *dev, size_t bytes)
{
    const struct cuda *c = cuda_of(d);
    const size_t pieces = (bytes + BOUNCE - 1) / BOUNCE;

    no_recording(d);
    for (size_t i = 0; i <= pieces; i++) {
        if (i < pieces) {
            CUDA(cudaMemcpyAsync(c->bounce + i % 2 * BOUNCE, (const char *)dev + i * BOUNCE, piece(bytes, i),
                                 cudaMemcpyDeviceToHost, c->stream));
            CUDA(cudaEventRecord(c->bounced[i % 2], c->stream));
        }
        if (i > 0) {
            CUDA(cudaEventSynchronize(c->bounced[(i - 1) % 2]));
            memcpy((char *)host + (i - 1) * BOUNCE, c->bounce + (i - 1) % 2 * BOUNCE, piece(bytes, i - 1));
        }
    }
}

static void cuda_sync(struct dev *d)
{
    CUDA(cudaStreamSynchronize(stream_of(d)));
}

void *cuda_part(const struct dev *d, size_t bytes)
{
    REQUIRE(!lanes_run(cuda_of(d)->lanes));      /* there is one, for work in order */
    if (bytes > cuda_of(d)->part_bytes)
        BUG("a reduction needs %zu bytes of workspace, there are %zu", bytes, cuda_of(d)->part_bytes);
    return cuda_of(d)->part;
}

enum { COLUMNS = 8, PARTS = 128 };

/* A block owns a few columns: thread (x,y) adds up every PARTS-th part of column x, then a warp a column the rest. */
static __global__ void __launch_bounds__(COLUMNS * PARTS)
add_parts_kernel(float *dst, const float *part, int64_t n, int64_t parts)
{
    __shared__ float sum[COLUMNS][PARTS + 1];
    const int64_t i = (int64_t)blockIdx.x * COLUMNS + threadIdx.x;
    const int warp = (threadIdx.y * COLUMNS + threadIdx.x) / 32, lane = (threadIdx.y * COLUMNS + threadIdx.x) % 32;
    float x = 0.f;

#pragma unroll 8
    for (int64_t p = threadIdx.y; i < n && p < parts; p += PARTS)
        x += part[p * n + i];
    sum[threadIdx.x][threadIdx.y] = x;
    __syncthreads();
    if (warp >= COLUMNS || (int64_t)blockIdx.x * COLUMNS + warp >= n)
        return;
    x = 0.f;
    for (int p = lane; p < PARTS; p += 32)
        x += sum[warp][p];
    x = warp_sum(x);
    if (lane == 0)
        dst[(int64_t)blockIdx.x * COLUMNS + warp] += x;
}

void cuda_add_parts(const struct dev *d, float *dst, const float *part, int64_t n, int64_t parts)
{
    add_parts_kernel<<<(unsigned)ceil_div(n, COLUMNS), dim3(COLUMNS, PARTS), 0, stream_of(d)>>>(dst, part, n, parts);
    CUDA(cudaGetLastError());
}

extern "C" const struct ops ops_cuda = {
    "cuda", cuda_alloc, cuda_release, cuda_put, cuda_get, cuda_sync, cuda_lane, cuda_record, cuda_recorded,
    cuda_fill, cuda_cast, cuda_matmul, cuda_embed, cuda_embed_bwd, cuda_add, cuda_map, cuda_map_bwd,
    cuda_mul, cuda_mul_bwd, cuda_swiglu, cuda_swiglu_bwd, cuda_decay, cuda_decay_bwd, cuda_gain, cuda_gain_bwd,
    cuda_rmsnorm, cuda_rmsnorm_bwd, cuda_l2norm, cuda_l2norm_bwd, cuda_xent, cuda_conv, cuda_conv_bwd,
    cuda_rope, cuda_sumsq, cuda_adamw, cuda_products, cuda_recall,
};
