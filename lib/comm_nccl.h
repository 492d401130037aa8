/* comm_nccl.h - the functions by which comm.c reaches NCCL; kernels/nccl.cu defines them. */
#ifndef COMM_NCCL_H
#define COMM_NCCL_H
#include "comm.h"
EXTERN_C_BEGIN
enum { COMM_NCCL_ID = 128 };                               /* bytes by which the ranks of a world find each other */

struct comm_nccl;
int  comm_nccl_id(char id[COMM_NCCL_ID]);                  /* loads the library; 0, or -1 with the reason */
/* Joins the world of this id: sets the row of c and its link. Returns when all ranks are there. 0 or -1. */
int  comm_nccl_open(struct comm *c, const char id[COMM_NCCL_ID]);
/* broken: another rank may never come; what is under way is given up. */
void comm_nccl_close(struct comm *c, bool broken);
const char *comm_nccl_name(const struct comm *c);          /* "NCCL 2.28.9"; lives as long as the link */
EXTERN_C_END
#endif
