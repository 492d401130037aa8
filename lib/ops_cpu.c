/* ops_cpu.c - the verbs on host cores: OpenBLAS for matmul. */
#include "ops.h"
#include <cblas.h>
#include <limits.h>

static blasint leading(struct tensor t)
{
    return (blasint)(t.row > t.dim[1] ? t.row : t.dim[1]);
}

static void matmul_cpu(struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags)
{
    CBLAS_TRANSPOSE ta = flags & MM_TA ? CblasTrans : CblasNoTrans, tb = flags & MM_TB ? CblasTrans : CblasNoTrans;
    int64_t k = a.dim[flags & MM_TA ? 0 : 1];
    (void)d;

    REQUIRE(a.row <= INT_MAX && b.row <= INT_MAX && c.row <= INT_MAX && c.dim[0] <= INT_MAX && k <= INT_MAX);
    cblas_sgemm(CblasRowMajor, ta, tb, (blasint)c.dim[0], (blasint)c.dim[1], (blasint)k,
                1, a.data, leading(a), b.data, leading(b), flags & MM_ADD ? 1 : 0, c.data, leading(c));
}

const struct ops ops_cpu = { .name = "cpu", .matmul = matmul_cpu };
