/* verify.h - a model against a reference file of another implementation.
 *
 * The safetensors file holds input_ids [B,T] and any of: logits [B,T,V], loss [1] (mean cross entropy
 * of the next token), grad.<parameter>, packed_logits [1,T,V] with cu_seqlens (the first row cut
 * there), greedy [1,T+n] (the first row continued). Errors are RMS(ours - theirs) / RMS(theirs). */
#ifndef VERIFY_H
#define VERIFY_H
#include "model.h"
EXTERN_C_BEGIN
struct verify_bounds { float logits, loss, grad; };
struct verify_line { const char *name; double error, bound; bool exact; };   /* exact: error counts unequal ids */

/* Each comparison is handed to line. 0 when all hold, 1 when one does not, -1 when the file is unfit.
 * The model was opened with learn when gradients are wanted. */
int verify_model(struct model *m, const char *against, const struct verify_bounds *b,
                 void (*line)(void *arg, const struct verify_line *l), void *arg);
EXTERN_C_END
#endif
