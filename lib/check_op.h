/* check_op.h - the laws that every verb obeys on every device: for tests, bench and the self-test of a GPU.
 *
 *   for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c))
 *       if (!check_op(&dev, c, &r))
 *           fail("%s %s: %s", c->op, c->note, r.fault);
 *
 * A case is one verb at one shape. Small cases come twice: with odd sizes, row strides and alignment, and with
 * all of them even, which is where the wide loads of a GPU are; large ones are for timing. The device needs no
 * reserve: each check brings its own memory. */
#ifndef CHECK_OP_H
#define CHECK_OP_H
#include "op.h"
EXTERN_C_BEGIN

enum { OP_ARGS = 10, OP_SEQS = 40 };
enum { CASE_GATE = 3, CASE_LARGE = 1 << 8, CASE_ADD = 1 << 9, CASE_WEIGHT = 1 << 10, CASE_CLAMP = 1 << 11,
       CASE_BIAS = 1 << 12, CASE_STATE = 1 << 13, CASE_NEXT = 1 << 14, CASE_ABSENT = 1 << 15,
       CASE_INF = 1 << 16, CASE_SCALE = 1 << 17, CASE_BACK = 1 << 18, CASE_MIXED = 1 << 19,
       CASE_EVEN = 1 << 20 };

struct op_case {
    const char *op, *note;       /* member of struct ops; what is special about the case */
    int64_t     n[4];            /* sizes, in the order of the verb's comment in ops.h */
    int         flags;           /* MM_*, enum map or enum gate in the low bits, and CASE_* */
    const char *out, *in;        /* these two arguments are one memory */
};

/* What a verb is called with: one row per argument, absent ones included. */
enum op_role { ARG_ABSENT, ARG_IN, ARG_OUT, ARG_ACC };       /* ACC is read, then written */
struct op_arg {
    const char   *name;
    enum op_role  role;
    struct tensor shape;
    float         low, high;     /* values are uniform between these */
    bool          dense;         /* a weight: no row stride */
};
struct op_plan {
    struct op_arg arg[OP_ARGS];
    int           n;
    enum dtype    type;          /* of the activations */
    int32_t       start[OP_SEQS + 1];
    int           nseq;
    double        bytes, flops;  /* least traffic and arithmetic of a call; bytes 0: that of the arguments */
};
struct op_row {
    const char *name;
    void (*plan)(struct op_plan *p, const struct op_case *c);
    void (*call)(struct dev *d, const struct op_case *c, const struct tensor *a, const struct seqs *s);
};
const struct op_row  *op_row_find(const char *name);         /* NULL when there is none */
const struct op_case *op_case_next(const struct op_case *c); /* NULL starts; NULL ends */

struct op_report {
    double      error, bound;    /* error RMS / RMS of the output that comes nearest to its bound */
    const char *output;
    const char *fault;           /* NULL, or the law that is broken */
};
/* Agreement with the naive row, completeness (outputs start as NaN), guard words, inputs untouched, the same
 * bits twice. F32 within 2e-4; a BF16 output within twice the error of rounding the naive answer. */
bool   check_op(struct dev *d, const struct op_case *c, struct op_report *r);
/* Whether two devices of one storage type give the same bits. */
bool   check_op_same(struct dev *a, struct dev *b, const struct op_case *c);
/* A backward's gradients against central differences of the naive forward: error / size. */
double check_op_slope(const struct op_case *c);
/* Seconds of one call, the least of several batches that together take about so many seconds. */
double check_op_time(struct dev *d, const struct op_case *c, double seconds);
void   check_op_cost(const struct op_case *c, enum dtype type, double *bytes, double *flops);
EXTERN_C_END
#endif
