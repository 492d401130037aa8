/* cublas.cuh - the functions of libcublasLt that we call, found when the first GPU is opened: a binary
 * with kernels starts on a machine that has none of CUDA. */
#ifndef CUBLAS_CUH
#define CUBLAS_CUH
#include <cublasLt.h>

#define CUBLAS_FUNCTIONS(X) \
    X(Create) X(Destroy) X(GetStatusString) X(Matmul) X(MatmulAlgoGetHeuristic) \
    X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
    X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatrixLayoutSetAttribute) \
    X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)

struct cublas {
#define X(name) decltype(&cublasLt##name) name;
    CUBLAS_FUNCTIONS(X)
#undef X
};

/* The library's functions; NULL, with the reason on stderr, when it is not there. */
const struct cublas *cublas_load(void);
#endif
