/* nll_parts.h - what nll.c tells nll_kept.c. */
#ifndef NLL_PARTS_H
#define NLL_PARTS_H
#include "nll.h"
EXTERN_C_BEGIN

/* Before a row goes through the model: is it among the sums already, or is something wrong? */
bool nll_passes(struct nll *n, const struct batch *b);
void nll_scored(struct nll *n);             /* after it: perhaps the sums are kept now */
int  nll_wrong(const struct nll *n);        /* 0, or -1: the reason was given */
int  nll_whole(const struct nll *n);        /* at the end: likewise, and all that was kept has come again */

EXTERN_C_END
#endif
