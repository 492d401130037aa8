/* comm.h - the other ranks. A world of one, processes sharing memory (CPU, tests, ranks on one GPU), or
 * processes with a GPU each (NCCL): three rows.
 *
 * scatter and gather work on buckets: whole [world*slice], slice [slice], rank r owns the r-th slice,
 * which lies inside whole. In a world of one they are no-ops on the same bytes. Sums over shared memory are
 * taken in rank order, by NCCL in an order that the number of GPUs and their links decide: the same bits each
 * time. A rank that dies ends the others with a message; nobody hangs.
 *
 *   comm_fork(&c, 4);                 before any device is open: returns in 4 processes
 *   dev_open(&d, ...); comm_use(&c, &d);
 *   ...
 *   comm_leave(&c, failed);           before the device is closed
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
    struct comm_nccl *link;              /* NULL: not by NCCL */
    volatile int64_t *beat;              /* with a link: counts this rank's collectives */
};
/* Starts a world of this many processes on this machine; 1: no processes. 0, or -1 with the reason. */
int  comm_fork(struct comm *c, int world);
/* Ranks with a GPU each meet here and go on by NCCL. 0, or -1 with the reason. */
int  comm_use(struct comm *c, struct dev *d);
const char *comm_name(const struct comm *c);         /* "shared memory", "NCCL 2.28.9" */
/* For a signal handler: ranks that stand still are given two minutes from now on, not half an hour. */
void comm_hurry(void);
/* failed: on this rank, so that others may never come to what is under way. */
void comm_leave(struct comm *c, bool failed);
/* The status of the world: own, or the first bad one of another rank. Ranks other than 0 exit here. */
int  comm_join(struct comm *c, int status);
EXTERN_C_END
#endif
