/* model_learn.h - model_learn in halves, for a host that has something to do while the device works.
 *
 *   model_learn_begin(m, &b, scale, NULL, NULL);       starts it
 *   make(&next);                                       whatever is to be done
 *   model_ahead(m, &next);                             brings the row of the next begin to the device
 *   loss = model_learn_end(m);                         waits
 * Between the halves nothing else of the model may be called. The arrays of next keep their numbers until its begin;
 * any other trip in between only means that the row is brought again. */
#ifndef MODEL_LEARN_H
#define MODEL_LEARN_H
#include "model.h"
EXTERN_C_BEGIN
void   model_learn_begin(struct model *m, const struct batch *b, float scale,
                         void (*done)(void *arg, int bucket), void *arg);
void   model_ahead(struct model *m, const struct batch *b);
double model_learn_end(struct model *m);
EXTERN_C_END
#endif
