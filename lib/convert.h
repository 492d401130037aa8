/* convert.h - a model directory in another form, or with some layers made metaplastic.
 *
 *   struct convert_options o = convert_defaults();
 *   o.from = "mamba2-2.7b", o.to = "palimpsa-2.7b", o.layers = "8", o.calibrate = "DIR/(any).pts";
 *   convert_run(&o, &report)                      0, or -1 with the reason and nothing under o.to
 * Tensors stream from the mapped source into the written file one at a time; measuring holds the
 * embedding, two layers and the residual stream of the calibration tokens. The directory appears whole
 * or not at all. docs/convert.md explains the choices. */
#ifndef CONVERT_H
#define CONVERT_H
#include "config.h"
EXTERN_C_BEGIN
struct convert_options {
    const char *from, *to;       /* a model directory; one that does not exist */
    const char *form;            /* "palimpsa", "hf" or "state-spaces" */
    const char *layers;          /* "8": so many; "3,17": these; "all"; NULL: an eighth of a Mamba2, else none */
    const char *score;           /* "window", "median", "bias-only" */
    const char *init;            /* "near", "paper", "gain" */
    double      eps, gain;       /* near: softplus(b_scale); gain: mean evidence over the prior */
    int         rank;            /* of the new projections; 0: the state size, as in the released models */
    uint64_t    seed;
    const char *calibrate;       /* shards, or a text file for the source's tokenizer; NULL: nothing is measured */
    int64_t     tokens, context; /* of it; in a sequence */
    const char *device;
    int         threads;
    const char *dtype;           /* "fp32", "bf16"; NULL: as stored */
    bool        untie, drop, check;
    int64_t     repad;           /* rows of the embedding become a multiple of it; 0: as they are */
};
struct convert_options convert_defaults(void);

enum convert_action { LAYER_COPIED, LAYER_SWAPPED, LAYER_RENEWED, LAYER_KEPT, LAYER_DROPPED };
struct convert_layer {
    enum convert_action action;
    double score, low, median, high;      /* of the heads' windows, in tokens; NAN when not measured */
};
struct convert_report {
    struct convert_layer layer[MAX_LAYERS];
    int     layers, swapped;
    bool    scored, compared;    /* windows were measured; source and result ran on the same tokens */
    bool    equal;               /* with the same logits, bit by bit */
    int64_t tokens, predicted;   /* of the windows; of the losses */
    double  before, after, kl;   /* nats a token */
    double  largest;             /* difference of two logits */
};
const char *convert_action_name(enum convert_action a);
int convert_run(const struct convert_options *o, struct convert_report *r);
EXTERN_C_END
#endif
