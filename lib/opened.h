/* opened.h - a model directory made ready to compute: device, weights, tokenizer, in one call.
 *
 *   struct opened m;
 *   if (opened_open(&m, "RUN", "auto", F32, 0, &(struct model_use){ 0 })) return 1;
 *   ... m.model, m.bpe (NULL when the directory has no tokenizer.json) ...
 *   opened_close(&m);
 * A run's directory means its newest whole checkpoint. */
#ifndef OPENED_H
#define OPENED_H
#include "bpe.h"
#include "model.h"
EXTERN_C_BEGIN
struct opened {
    char                dir[4096];       /* the checkpoint itself */
    struct dev          dev;
    struct model        model;
    struct bpe         *bpe;
    struct bpe_encoder *encoder;
};
int  opened_dir(char *out, size_t size, const char *path);      /* path, or the newest checkpoint of a run */
int  opened_open(struct opened *o, const char *path, const char *device, const char *dtype, int threads,
                 const struct model_use *use);
int  opened_need_tokenizer(const struct opened *o);             /* 0, or -1 saying that there is none */
void opened_close(struct opened *o);
/* Ids of a text as this model saw documents in training: the separator first when the tokenizer has one. */
int  opened_encode(struct opened *o, const char *text, size_t n, bool separator, struct bpe_ids *ids);
EXTERN_C_END
#endif
