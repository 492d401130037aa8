/* train.h - the training loop: rows in, checkpoints and metrics out. Knows nothing of layers.
 *
 * train_run does a whole invocation of `pretrain` (or, with from, of a finetune): it continues the run
 * in `out` where its newest whole checkpoint stands, or starts it. Resuming is exact: the same bits as
 * if it had never stopped, on the same machine, device and number of threads. SIGINT, SIGTERM and
 * SIGUSR1 save after the step in hand and end with status 0. */
#ifndef TRAIN_H
#define TRAIN_H
#include "base.h"
EXTERN_C_BEGIN
struct train_options {
    const char *out;                     /* the run's directory */
    const char *model;                   /* preset or config.json; unused when resuming */
    const char *from;                    /* a model directory to start from; NULL: fresh weights */
    const char *data, *val;              /* shards; val may be NULL */
    int64_t     vocab;                   /* of a preset; 0: that of the shards */
    const char *tokenizer;               /* tokenizer.json that the checkpoints carry along; may be NULL */
    int64_t  steps, until;               /* of the whole schedule; this invocation ends at until (0: steps) */
    int64_t  batch_tokens, micro_tokens, context;   /* a step; a row on one rank (0: chosen); a sequence */
    float    lr, lr_floor;               /* peak; floor as a share of the peak */
    int64_t  warmup;
    const char *schedule;
    float    decay_share;                /* wsd */
    const char *train;                   /* what is not frozen: all, plasticity (b_*), converted (metaplastic layers) */
    bool     train_prior;                /* Ip_log too */
    float    gain_rate;                  /* of b_*, times lr */
    float    beta1, beta2, eps, weight_decay, clip;
    bool     decay_all, recompute;
    uint64_t seed;
    bool     shuffle, align, join;       /* see loader.h */
    bool     mask_prompt;                /* learn responses only, from shards that mark prompts */
    bool     once;                       /* refuse to visit the data more than once */
    int      raw_width;
    int64_t  eot;
    const char *device, *dtype;
    int      ranks, threads;
    int64_t  val_every, val_tokens, save_every, log_every;
    int64_t  plasticity_every;           /* figures of metaplastic memories; 0: none */
    int      keep;                       /* newest checkpoints kept */
    int64_t  keep_every;                 /* and every so many steps for ever; 0: none */
    float    peak_tflops;                /* of the device, for mfu; 0: unknown */
    bool     quiet;
};
struct train_options train_defaults(void);
int train_run(const struct train_options *o);      /* exit status: 0 finished or saved on a signal, 1 failed */
EXTERN_C_END
#endif
