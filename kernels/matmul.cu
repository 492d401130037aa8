/* matmul.cu - dense products by cuBLASLt, accumulated in F32; a few rows with b' go to products.cu instead, which
 * rounds once, reads b as fast as it can be read and adds up in one order.
 *
 * The library is column major and sees our rows as columns: c = a b is asked as c' = b' a'. What its
 * heuristic chose is kept per shape, so that a step of training asks it nothing. Where sequences are to be as if alone
 * it is asked once for ALONE rows, without splitting k, and what it chose serves any number of them: a tile's sums then
 * have one order. */
#include "common.cuh"
#include "cublas.cuh"
#include "launch.cuh"
#include "op_step.h"

enum { WORKSPACE = 32 << 20, ALONE = 1024 };

static const struct cublas *lt;          /* one library for all devices of the process */

#define BLAS(call) do { cublasStatus_t s_ = lt->call; \
    if (s_ != CUBLAS_STATUS_SUCCESS) BUG("cublasLt%s: %s", #call, lt->GetStatusString(s_)); } while (0)

struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int     flags, type, to, align;      /* dtypes of a and c; bytes that all three pointers are aligned to */
    int     alone;                       /* for any number of rows; m is ALONE */
};
struct plan {
    struct shape           shape;
    cublasLtMatmulDesc_t   desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulAlgo_t   algo;
};
struct blas {
    cublasLtHandle_t handle;
    void            *workspace;
    struct plan     *plan;
    int              n, last;            /* last: index of the last hit; the next call tends to hit the one after */
};

struct blas *blas_open(void)
{
    struct blas *b;
    cublasStatus_t s;

    lt = cublas_load();
    if (!lt)
        return NULL;
    b = (struct blas *)mem_new(1, sizeof *b);
    s = lt->Create(&b->handle);
    if (s == CUBLAS_STATUS_SUCCESS && cudaMalloc(&b->workspace, WORKSPACE) == cudaSuccess)
        return b;
    if (s == CUBLAS_STATUS_SUCCESS) {
        fail("cuBLAS: no memory for a workspace of %d MB", WORKSPACE >> 20);
        lt->Destroy(b->handle);
    } else
        fail("cuBLAS: %s", lt->GetStatusString(s));
    free(b);
    return NULL;
}

void blas_close(struct blas *b)
{
    for (int i = 0; i < b->n; i++) {
        lt->MatrixLayoutDestroy(b->plan[i].a);
        lt->MatrixLayoutDestroy(b->plan[i].b);
        lt->MatrixLayoutDestroy(b->plan[i].c);
        lt->MatmulDescDestroy(b->plan[i].desc);
    }
    free(b->plan);
    cudaFree(b->workspace);
    lt->Destroy(b->handle);
    free(b);
}

static cudaDataType_t type_of(int type)
{
    return type == F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static cublasLtMatmulPreference_t preference(const struct shape *s)
{
    cublasLtMatmulPreference_t p;
    const size_t workspace = WORKSPACE;
    const uint32_t align = (uint32_t)s->align;
    const uint32_t sums = s->alone ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

    BLAS(MatmulPreferenceCreate(&p));
    BLAS(MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                              sizeof workspace));
    /* Pieces of a long k are added up from the workspace: F32 and the same order every time. */
    BLAS(MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums));
    BLAS(MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align));
    BLAS(MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align));
    BLAS(MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align));
    BLAS(MatmulPreferenceSetAttribute(p, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align));
    return p;
}

static void plan_open(struct blas *b, struct plan *p, const struct shape *s)
{
    const bool ta = s->flags & MM_TA, tb = s->flags & MM_TB;
    const cublasOperation_t opa = tb ? CUBLAS_OP_T : CUBLAS_OP_N, opb = ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cudaDataType_t in = type_of(s->type), out = type_of(s->to);
    cublasLtMatmulHeuristicResult_t found;
    cublasLtMatmulPreference_t pref = preference(s);
    int n = 0;

    p->shape = *s;
    BLAS(MatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    BLAS(MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &opa, sizeof opa));
    BLAS(MatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, &opb, sizeof opb));
    BLAS(MatrixLayoutCreate(&p->a, in, (uint64_t)(tb ? s->k : s->n), (uint64_t)(tb ? s->n : s->k), s->ldb));
    BLAS(MatrixLayoutCreate(&p->b, in, (uint64_t)(ta ? s->m : s->k), (uint64_t)(ta ? s->k : s->m), s->lda));
    BLAS(MatrixLayoutCreate(&p->c, out, (uint64_t)s->n, (uint64_t)s->m, s->ldc));
    cublasStatus_t e = lt->MatmulAlgoGetHeuristic(b->handle, p->desc, p->a, p->b, p->c, p->c, pref, 1, &found, &n);
    if (e != CUBLAS_STATUS_SUCCESS || n == 0)
        BUG("cuBLAS has no way to multiply %lldx%lldx%lld %s into %s: %s", (long long)s->m, (long long)s->n,
            (long long)s->k, dtype_name((enum dtype)s->type), dtype_name((enum dtype)s->to),
            lt->GetStatusString(e));
    p->algo = found.algo;
    BLAS(MatmulPreferenceDestroy(pref));
}

static const struct plan *plan_of(struct blas *b, const struct shape *s)
{
    for (int i = 1; i <= b->n; i++) {
        const int at = (b->last + i) % b->n;
        if (!memcmp(&b->plan[at].shape, s, sizeof *s))
            return &b->plan[b->last = at];
    }
    b->plan = (struct plan *)mem_grow(b->plan, (size_t)b->n + 1, sizeof *b->plan);
    plan_open(b, &b->plan[b->n], s);
    return &b->plan[b->last = b->n++];
}

/* A matrix of one row may have any stride; the library wants one that holds the row. */
static int64_t stride_of(struct tensor t)
{
    return t.row < t.dim[1] ? t.dim[1] : t.row;
}

void cuda_matmul(struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags)
{
    struct blas *blas = cuda_of(d)->blas;
    const bool alone = d->alone && (flags & (MM_TA | MM_TB)) == MM_TB;
    const uint64_t rows = (uint64_t)c.dim[0];
    uintptr_t address = (uintptr_t)a.data | (uintptr_t)b.data | (uintptr_t)c.data;
    const float alpha = 1.f, beta = flags & MM_ADD ? 1.f : 0.f;
    struct shape s;

    REQUIRE(!lanes_run(cuda_of(d)->lanes));      /* the library's workspace is one */
    if (!alone && (flags & (MM_TA | MM_TB)) == MM_TB && products_few(c.dim[0], a.dim[1])) {
        struct products p = {};
        p.n = 1, p.x = a, p.w[0] = b, p.y[0] = c, p.add = flags & MM_ADD;
        cuda_products(d, &p);
        return;
    }
    memset(&s, 0, sizeof s);             /* compared as bytes */
    s.m     = alone ? (int64_t)ALONE : c.dim[0];
    s.n     = c.dim[1];
    s.k     = a.dim[flags & MM_TA ? 0 : 1];
    s.lda   = stride_of(a);
    s.ldb   = stride_of(b);
    s.ldc   = stride_of(c);
    s.flags = flags & (MM_TA | MM_TB);
    s.type  = a.type;
    s.to    = c.type;
    s.alone = alone;
    if (alone)                           /* any row may be the first */
        address |= (uintptr_t)(s.lda * (int64_t)dtype_size(a.type)) | (uintptr_t)(s.ldc * (int64_t)dtype_size(c.type));
    for (s.align = 256; address % (uintptr_t)s.align; )
        s.align /= 2;

    const struct plan *p = plan_of(blas, &s);
    if (alone) {
        BLAS(MatrixLayoutSetAttribute(p->b, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof rows));
        BLAS(MatrixLayoutSetAttribute(p->c, CUBLASLT_MATRIX_LAYOUT_COLS, &rows, sizeof rows));
    }
    BLAS(Matmul(blas->handle, p->desc, &alpha, b.data, p->a, a.data, p->b, &beta, c.data, p->c, c.data, p->c,
                        &p->algo, blas->workspace, WORKSPACE, stream_of(d)));
}
