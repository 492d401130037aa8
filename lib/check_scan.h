/* check_scan.h - the laws that every recurrence obeys on every device: for tests, bench and
 * self-test.
 *
 *   struct scan_case c = { .Hq = 1, .Hk = 1, .H = 2, .K = 16, .V = 17,
 *                          .length = (int32_t[]){ 63, 0, 1 }, .n = 3 };
 *   struct scan_error e = check_scan_agreement(&dev, scan_find("linear"), &c);
 *   e.worst <= 1, or e.where says which field and head is off
 *
 * Values are drawn from the scan's own table of fields, so a new scan needs no line here. The
 * device needs no reserve: each check brings its own memory, poisoned with NaN, and looks for
 * stray writes. */
#ifndef CHECK_SCAN_H
#define CHECK_SCAN_H
#include "scan.h"
EXTERN_C_BEGIN

struct scan_case {
    int64_t        Hq, Hk, H, K, V;     /* heads of q and k divide H */
    const int32_t *length;              /* [n] tokens of each sequence, also 0 */
    int            n;
    bool           state;               /* a memory is carried in */
    bool           var;                 /* the variance is wanted, if the scan knows one */
    bool           strided;             /* the rows are columns of wider matrices */
    const float   *decay;               /* [decays] to draw from; NULL: the scan's own range */
    int            decays;
    int            span;
    uint64_t       seed;
};

struct scan_error {
    double worst;                       /* error over what is allowed: at most 1 */
    char   where[64];
};

/* Gradients of the naive row are directional finite differences of its forward. */
struct scan_error check_scan_definition(const struct scan *f, const struct scan_case *c);
/* The device computes what the naive row does, tensor by tensor and head by head: within 2e-4 in
 * F32; in BF16 within twice the error of rounding the naive answer. */
struct scan_error check_scan_agreement(struct dev *d, const struct scan *f,
                                       const struct scan_case *c);
/* A packed row equals its sequences alone. */
struct scan_error check_scan_packing(struct dev *d, const struct scan *f,
                                     const struct scan_case *c);
/* A row cut in two with the memory handed over, and its gradient handed back, equals the whole. */
struct scan_error check_scan_splitting(struct dev *d, const struct scan *f,
                                       const struct scan_case *c);
/* One token at a time, the memory updated in place, equals the whole. */
struct scan_error check_scan_decoding(struct dev *d, const struct scan *f,
                                      const struct scan_case *c);
/* Twice is the same bit for bit; gradients of weights add up; what is not asked for changes
 * nothing. */
struct scan_error check_scan_purity(struct dev *d, const struct scan *f, const struct scan_case *c);
/* All of the above; the first law that is broken, or the largest error. */
struct scan_error check_scan(struct dev *d, const struct scan *f, const struct scan_case *c);

struct scan_time { double forward, both; };     /* seconds: without notes; with them and backward */
struct scan_time check_scan_time(struct dev *d, const struct scan *f, const struct scan_case *c,
                                 int repeats);
double scan_case_updates(const struct scan_case *c);        /* T*H*V*K, of one forward */
EXTERN_C_END
#endif
