/* model_parts.h - what model.c and model_open.c share: where a block's own parameters are. */
#ifndef MODEL_PARTS_H
#define MODEL_PARTS_H
#include "model.h"

enum { MIX_NORM, MLP_NORM, MLP_GATE, MLP_UP, MLP_DOWN };     /* of a block; the mixer's follow or precede */

struct param *model_param(const struct model *m, int layer, int which);
/* Uploads starts and sequence numbers on d->keep and fills the pass; like may be NULL. */
struct pass pass_open(struct model *m, struct seqs *s, const struct pass *like);
#endif
