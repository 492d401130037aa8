/* ckpt.h - checkpoint directories: config.json, model.safetensors, tokenizer.json (copied through),
 * and for resuming optim.safetensors (master, m, v by name) and run.json; independent of the number
 * of ranks. Published by fsync and rename: a directory is whole or it is not there. */
#ifndef CKPT_H
#define CKPT_H
#include "model.h"
#include "optim.h"
EXTERN_C_BEGIN
/* What a run needs to go on; text is the rest of run.json (options), kept as it is. */
struct run {
    int64_t  step;               /* finished steps */
    uint64_t seed;
    int64_t  row;                /* next row of the loader, over all epochs */
    char     data[65];           /* loader.identity */
    char    *options;            /* JSON object; ckpt_run_read allocates it, the caller frees */
};

/* Config of a model directory, checked against the tensors' shapes: sizes come from the tensors, a
 * conflict is refused with both numbers before anything big is allocated. */
int ckpt_config(const char *dir, struct config *c);
/* Weights into an open model. Missing or unknown tensors are named and refused. */
int ckpt_load(const char *dir, struct model *m);
int ckpt_load_optim(const char *dir, struct model *m, struct comm *c);
int ckpt_run_read(const char *dir, struct run *r);
/* Writes dir whole. tokenizer: path of a tokenizer.json to copy, or NULL. o NULL: weights only.
 * All ranks call; rank 0 writes, all get its verdict. r may be NULL. type: F32 or BF16 for matrices;
 * small ones stay F32, and with o an F32 device stores F32. Gathering o uses the gradients' memory. An
 * existing checkpoint is replaced, any other directory refused. */
int ckpt_save(const char *dir, struct model *m, const struct optim *o, const struct run *r,
              struct comm *c, const char *tokenizer, enum dtype type);

/* The newest complete step directory RUN/step-NNNNNN ("" when none); torn ones are skipped with a
 * warning. 0 or -1. */
int  ckpt_latest(const char *run, char *out, size_t size);
/* Keeps the newest `last` complete steps (0: all) and every step divisible by `every` (0: none). */
void ckpt_prune(const char *run, int last, int64_t every);
/* One process per RUN: holds a lock on RUN/lock until the returned fd is closed. -1 with the reason. */
int  ckpt_lock(const char *run);
EXTERN_C_END
#endif
