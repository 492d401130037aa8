/* test.h - a test is a program; CHECK counts, test_done reports, test_skip says why there was nothing to test. */
#ifndef TEST_H
#define TEST_H
#include "base.h"
#include <math.h>

static int test_failed;

#define CHECK(cond) ((cond) ? (void)0 : \
    (void)(test_failed++, printf("FAIL %s:%d: %s\n", __FILE__, __LINE__, #cond)))
/* The same, with the numbers that did not agree. */
#define CHECK_NEAR(got, want, tol) do { double got_ = (got), want_ = (want); \
    if (!(fabs(got_ - want_) <= (tol))) { \
        test_failed++; \
        printf("FAIL %s:%d: %s = %.9g, expected %.9g within %g\n", __FILE__, __LINE__, #got, got_, want_, \
               (double)(tol)); \
    } } while (0)

static inline int test_done(const char *name)
{
    printf("%s: %s\n", name, test_failed ? "FAILED" : "ok");
    return test_failed != 0;
}

/* Root mean square of the difference over that of b. */
static inline double test_distance(const float *a, const float *b, int64_t n)
{
    double diff = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        diff += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(diff) / (sqrt(size) + 1e-30);
}

/* ctest counts 77 as skipped. */
static inline int test_skip(const char *name, const char *why)
{
    printf("%s: skipped: %s\n", name, why);
    return test_failed ? 1 : 77;
}

/* Directory of reference data that is not part of the repository; NULL when there is none. */
static inline const char *test_reference(void)
{
    return getenv("PALIMPSA_REFERENCE");
}

/* Directory of the goldens that are. */
static inline const char *test_golden(void)
{
    const char *dir = getenv("PALIMPSA_GOLDEN");

    return dir ? dir : "tests/golden";
}
#endif
