/* check_op_run.h - private to check_op*.c: one case ready to be called on one device, its arguments in frames.
 *
 * Every argument lies in a frame: guard words before it, between its rows and behind, all the same NaN,
 * which is also what outputs hold before the call. value[i] is argument i as dense floats on the host. */
#ifndef CHECK_OP_RUN_H
#define CHECK_OP_RUN_H
#include "check_op.h"

struct frame {                              /* one argument: shape of the view, where it lies */
    struct tensor t;                        /* data on the device */
    char   *mem;                            /* NULL: shares another argument's */
    size_t  bytes;
    int64_t lead;                           /* elements before the first */
    bool    shared;                         /* somebody else writes it */
};
struct run {                                /* one case ready to be called on one device */
    struct dev           *d;
    const struct op_case *c;
    const struct op_row  *row;
    struct op_plan        plan;
    struct frame          f[OP_ARGS];
    struct seqs           seqs;
    void                 *mem[2];           /* seqs on the device */
};

int  op_plan_find(const struct op_plan *p, const char *name);       /* index of an argument that is there, or -1 */
struct op_plan op_plan_of(const struct op_row *row, const struct op_case *c, enum dtype type);

void run_open(struct run *r, struct dev *d, const struct op_row *row, const struct op_case *c);
void run_close(struct run *r);
void run_load(struct run *r, float *const *value);                  /* outputs get the poison instead */
void run_call(struct run *r);
void run_read(struct run *r, int i, float *value);
char *run_frame(struct run *r, int i);      /* argument i as it lies on the device, guards and all; caller frees */
/* What a call must leave alone: inputs, and every guard word. Returns what it did not, or NULL. */
const char *run_trespass(struct run *r, float *const *value);
#endif
