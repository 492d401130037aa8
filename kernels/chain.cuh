/* chain.cuh - small kernels one after another: each is set up, and fetches its weights, while the one before it
 * still runs (sm_90 and later; elsewhere a kernel begins when the one before has ended).
 *
 * A chained kernel reads nothing that the kernel before it writes, and writes nothing at all, before await(); it
 * lets the next one begin only after that, so what was written two kernels ago is always there. */
#ifndef CHAIN_CUH
#define CHAIN_CUH
#include "common.cuh"

__device__ inline void await(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ inline void let_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Launches kernel(x) in the chain. */
template <typename A>
static void chain(const struct dev *d, void (*kernel)(A), dim3 grid, unsigned block, size_t shared, A x)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t c = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = grid, c.blockDim = dim3(block), c.dynamicSmemBytes = shared, c.stream = stream_of(d);
    c.attrs = &early, c.numAttrs = cuda_of(d)->chains ? 1 : 0;
    CUDA(cudaLaunchKernelEx(&c, kernel, x));
}
#endif
