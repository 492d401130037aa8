/* dev_blas.c - OpenBLAS made ready for this machine.
 *
 * OpenBLAS picks its kernels by processor model when it is loaded, and releases before 0.3.25 take an
 * Intel model they do not know for a Prescott of 2004, whose matrix product is four times slower. So
 * when the choice falls behind what the processor can do, it is made again by capability. The two
 * functions that do it are exported but in no header, and absent from builds for one processor. */
#define _POSIX_C_SOURCE 200809L
#include "dev_blas.h"
#include "base.h"
#include <cblas.h>

void gotoblas_dynamic_init(void) __attribute__((weak));
void gotoblas_dynamic_quit(void) __attribute__((weak));

#ifdef __x86_64__
/* NULL when the choice is fine, or was the user's. */
static const char *better_kernels(void)
{
    const char *now = openblas_get_corename();

    if (getenv("OPENBLAS_CORETYPE") || strcmp(now, "Prescott"))
        return NULL;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return "SkylakeX";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "Haswell" : NULL;
}
#else
static const char *better_kernels(void) { return NULL; }
#endif

void dev_blas_open(int threads)
{
    const char *better = better_kernels();

    if (better && gotoblas_dynamic_init && gotoblas_dynamic_quit && !setenv("OPENBLAS_CORETYPE", better, 0)) {
        gotoblas_dynamic_quit();
        gotoblas_dynamic_init();
    }
    openblas_set_num_threads(threads);
}
