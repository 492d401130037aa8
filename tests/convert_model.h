/* convert_model.h - for tests of conversions: models drawn from a config, and two directories compared. */
#ifndef CONVERT_MODEL_H
#define CONVERT_MODEL_H
#include "convert.h"
#include "safetensors.h"

#define NATIVE "{\"d_model\": 64, \"n_layer\": 6, \"vocab_size\": 50, \"ssm_cfg\": {\"layer\": \"Mamba2\", " \
               "\"d_state\": 16, \"headdim\": 16, \"ngroups\": 1}, \"pad_vocab_size_multiple\": 16}"
#define HF(more) "{\"model_type\": \"mamba2\", \"hidden_size\": 32, \"num_hidden_layers\": 2, \"vocab_size\": 40, " \
                 "\"head_dim\": 16, \"state_size\": 8, \"n_groups\": 2, \"expand\": 2, \"conv_kernel\": 4, " \
                 "\"num_heads\": 4, \"time_step_limit\": [0.0, Infinity]" more "}"

extern struct convert_report said;       /* of the last conversion */

/* A path in the scratch directory that stays valid for long: options point to several. */
const char *place(const char *name);
const char *convert_golden(const char *name);
/* A model of the config, drawn; native ones hold a tied head under one name unless both. */
void convert_store(const char *dir, const char *text, enum st_type type, bool both);
/* Replaces or adds one tensor, columns 0 a vector; everything else as it was. */
void convert_put(const char *dir, const char *name, const float *x, int64_t rows, int64_t columns);
struct convert_options convert_to(const char *from, const char *to, const char *form);
int  convert_turn(const char *from, const char *to, const char *form);       /* with the check of logits */
/* Refused in one line with both words, and nothing left of the directory. */
bool convert_refused(const struct convert_options *o, const char *a, const char *b);
bool convert_absent(const char *dir);
bool same_weights(const char *one, const char *two);
bool same_config(const char *one, const char *two);
#endif
