/* model_state.h - the memory of one sequence among the tensors of a safetensors file.
 *
 *   state_declare(w, m, s) ... state_write(w, m, s)         all tensors, in the same place of both orders
 *   state_read(in, path, m, s)
 *
 * "layers.L.state.I" is F32 [H,V,K], or [W-1,C] of a convolution. A memory means something to the model that it came
 * from only: a file says which one that was by model_identity. */
#ifndef MODEL_STATE_H
#define MODEL_STATE_H
#include "model.h"
#include "safetensors.h"
EXTERN_C_BEGIN

/* Of the config and the first numbers of every weight: any training step changes it. Lower case hexadecimal. */
void model_identity(struct model *m, char out[65]);
void state_declare(struct st_writer *w, const struct model *m, const struct model_state *s);
int  state_write(struct st_writer *w, const struct model *m, const struct model_state *s);   /* 0, or -1 */
/* path: the file's name, for messages. 0, or -1 with the reason. */
int  state_read(const struct st *in, const char *path, const struct model *m, const struct model_state *s);

EXTERN_C_END
#endif
