/* ckpt_parts.h - what the files behind ckpt.h share. */
#ifndef CKPT_PARTS_H
#define CKPT_PARTS_H
#include "ckpt.h"
#include "safetensors.h"
EXTERN_C_BEGIN
/* The weights of a model directory; NULL with the reason, also for forms that are not read. */
struct st *ckpt_weights(const char *dir);
/* The embedding's other spelling: state-spaces files have "backbone.embedding.weight". Any other
 * name comes back as it is. */
const char *ckpt_name(const char *name, bool native);
/* By our name, under either spelling. */
const struct st_tensor *ckpt_find(const struct st *s, const char *name);
/* Every parameter is there in its shape, and nothing else: 0, or -1 with all that is wrong. m need only be
 * declared. */
int ckpt_check(const char *dir, struct model *m, const struct st *s);
/* The tensor that parameter i is read from. */
const struct st_tensor *ckpt_source(const struct model *m, const struct st *s, int i);
/* Deletes a directory that holds only files of ours; says what it found otherwise. */
int ckpt_remove(const char *dir);
EXTERN_C_END
#endif
