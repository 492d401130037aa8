/* comm.h - the other ranks. A world of one, processes sharing memory (tests, CPU), or NCCL: three rows.
 *
 * scatter and gather work on buckets: whole [world*slice], slice [slice], rank r owns the r-th slice.
 * In a world of one they are no-ops on the same bytes. Sums are in rank order: the same bits each time. */
#ifndef COMM_H
#define COMM_H
#include "dev.h"
EXTERN_C_BEGIN
struct comm {
    int   rank, world;
    void (*sum)    (struct comm *c, struct tensor x);                             /* all-reduce F32, in place */
    void (*scatter)(struct comm *c, struct tensor slice, struct tensor whole);    /* reduce-scatter F32; slice lies inside whole */
    void (*gather) (struct comm *c, struct tensor whole, struct tensor slice);    /* all-gather; slice lies inside whole */
    void (*barrier)(struct comm *c);
    void (*close)  (struct comm *c);
    struct dev *dev;
    void *priv;
};
void comm_self(struct comm *c, struct dev *d);
/* Forks world-1 children that share memory with the caller: returns in every process with its rank
 * set, before any device is open. comm_shm_join then takes the device. */
int  comm_shm_fork(struct comm *c, int world, size_t bytes);
void comm_use(struct comm *c, struct dev *d);
/* Rank 0 waits for the others to exit; the first non-zero status of any, else own. */
int  comm_shm_wait(struct comm *c, int status);
EXTERN_C_END
#endif
