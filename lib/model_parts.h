/* model_parts.h - what model.c and model_open.c share: where a block's own parameters are. */
#ifndef MODEL_PARTS_H
#define MODEL_PARTS_H
#include "model.h"

enum { MIX_NORM, MLP_NORM, MLP_GATE, MLP_UP, MLP_DOWN };     /* of a block; the mixer's follow or precede */

struct param *model_param(const struct model *m, int layer, int which);

/* A row's numbers on the device, on d->keep in one copy. */
enum upload_rows { UPLOAD_NO_ROWS, UPLOAD_LABELLED, UPLOAD_LAST };
struct upload {
    struct tensor  token;                /* [tokens] */
    struct tensor  rows, target;         /* rows that the head sees, absent: all; their targets */
    struct tensor  place;                /* [tokens] of each token among these rows; their number: it is none of them */
    const int32_t *row;                  /* the rows on the host, until the next upload */
};
/* Also fills s from the batch, with its device pointers. */
struct upload upload(struct model *m, const struct batch *b, struct seqs *s, enum upload_rows which);
/* model_loss of the logits times sharp, a power of two. */
double model_sharp_loss(struct model *m, const struct batch *b, const struct pass *like, float sharp, float *nll);
/* What model_ahead brought, until the next upload. */
struct ahead {
    const int32_t *token;                /* of the batch; NULL: nothing is there */
    const void    *at;                   /* where it is on the device */
    struct upload  u;
    struct seqs    s;
};
/* Sum over the rows that the head saw; nll gets them at their tokens. */
double loss_sum(struct model *m, struct tensor loss, const struct upload *u, int64_t tokens, float *nll);
#endif
