/* comm.h - the other ranks. A world of one, or processes sharing memory (CPU and tests); NCCL is a third row.
 *
 * scatter and gather work on buckets: whole [world*slice], slice [slice], rank r owns the r-th slice,
 * which lies inside whole. In a world of one they are no-ops on the same bytes. Sums are taken in rank
 * order: the same bits each time. A rank that dies ends the others with a message; nobody hangs.
 *
 *   comm_fork(&c, 4);                 before any device is open: returns in 4 processes
 *   dev_open(&d, ...); comm_use(&c, &d);
 *   ...
 *   return comm_join(&c, status);     rank 0 waits for the others */
#ifndef COMM_H
#define COMM_H
#include "dev.h"
EXTERN_C_BEGIN
struct comm {
    int   rank, world;
    void (*sum)    (struct comm *c, struct tensor x);                             /* all-reduce of F32, in place */
    void (*scatter)(struct comm *c, struct tensor slice, struct tensor whole);    /* reduce-scatter of F32 */
    void (*gather) (struct comm *c, struct tensor whole, struct tensor slice);    /* all-gather of any type */
    struct dev *dev;
    void       *priv;
};
/* Starts a world of this many processes on this machine; 1: no processes. 0, or -1 with the reason. */
int  comm_fork(struct comm *c, int world);
void comm_use(struct comm *c, struct dev *d);
/* The status of the world: own, or the first bad one of another rank. Ranks other than 0 exit here. */
int  comm_join(struct comm *c, int status);
EXTERN_C_END
#endif
