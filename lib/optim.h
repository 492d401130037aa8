/* optim.h - AdamW over the buckets, ZeRO-1 by construction: with one rank the slice is the whole. */
#ifndef OPTIM_H
#define OPTIM_H
#include "comm.h"
#include "param.h"
EXTERN_C_BEGIN
struct optim {
    struct adamw h;
    float        unit;                   /* factor on the summed gradients: 1 / what was counted */
    float        clip;                   /* global norm; 0: off */
    float        gain_rate;              /* of PARAM_GAIN parameters, times lr; 0: as all others */
};
void  optim_reduce(struct comm *c, struct bucket *b);       /* grads of one bucket to their owners */
/* Returns the gradient norm before clipping. When it is not finite nothing was changed. */
float optim_step(struct optim *o, struct params *p, struct dev *d, struct comm *c);
/* The first parameter whose gradient is not finite on this rank; NULL when all are. */
const struct param *optim_culprit(struct params *p, struct dev *d);
EXTERN_C_END
#endif
