/* cublas.cu - finding libcublasLt: where the loader looks, then where the build found CUDA. Only its
 * types come from the header, so either of the two versions that share them will do. */
#include "common.cuh"
#include "cublas.cuh"
#include <dlfcn.h>

static const char *const names[] = {
    "libcublasLt.so.13", "libcublasLt.so.12",
    PALIMPSA_CUDA_LIBRARIES "/libcublasLt.so.13", PALIMPSA_CUDA_LIBRARIES "/libcublasLt.so.12",
};

const struct cublas *cublas_load(void)
{
    static struct cublas found;
    void *library = NULL;

    if (found.Create)
        return &found;
    for (size_t i = 0; i < LEN(names) && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        fail("device cuda: cuBLAS is missing: neither libcublasLt.so.13 nor .12 can be loaded (%s)", dlerror());
        return NULL;
    }
    struct cublas all;
#define X(name) \
    if (!(all.name = (decltype(all.name))dlsym(library, "cublasLt" #name))) { \
        fail("device cuda: this libcublasLt has no cublasLt" #name); \
        dlclose(library); \
        return NULL; \
    }
    CUBLAS_FUNCTIONS(X)
#undef X
    found = all;
    return &found;
}
