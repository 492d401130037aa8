/* train_parts.h - the run in hand, as the files of the trainer share it. */
#ifndef TRAIN_PARTS_H
#define TRAIN_PARTS_H
#include "ckpt.h"
#include "metrics.h"
#include "model.h"
#include "optim.h"
#include "plasticity.h"
#include "schedule.h"
#include "train.h"

struct train {
    const struct train_options *o;
    struct comm     comm;
    struct dev      dev;
    struct model    model;
    struct optim    opt;
    struct loader   data, val;
    struct schedule schedule;
    struct metrics  metrics;             /* rank 0 */
    struct config   cfg;
    struct model_plan plan;
    struct plasticity plasticity;        /* rank 0, when its figures are asked for */
    int64_t         step, until;         /* finished; where this invocation ends */
    int64_t         micro, accum;        /* tokens of a row; rows a rank adds up per step */
    int64_t         logged;              /* the step of the last line of metrics */
    double          logged_at;
    double          ready[3];            /* seconds after the start of the process: device, files, weights */
    char            tokenizer[4096];     /* path that checkpoints copy; "" none */
    char            resume[4096];        /* checkpoint directory this invocation began at; "" fresh */
    bool            have_dev, have_model, have_data, have_val;
};

/* One optimizer step; 0, or -1 (torn shard, loss or gradient that is not finite, full disk) with the reason. */
int  train_step(struct train *t, bool *stop);
void train_sum(struct train *t, float *x, int n);     /* small numbers over the ranks; host in, host out */
int  train_validate(struct train *t);
int  train_plasticity(struct train *t);              /* a line of metrics about metaplastic memories */
int  train_save(struct train *t);
int  train_sound(struct train *t);                 /* -1 with the reason when a weight is not finite */
int  train_find(struct train *t);                  /* sets resume: the newest whole checkpoint, if any */
int  train_agree(struct train *t);                 /* its settings and data against this command; sets step */
char *train_settings(const struct train *t);       /* the options as JSON for run.json; the caller frees */
void train_banner(struct train *t);
int  train_fits(struct train *t);                  /* plan against memory; -1 with a table and a row that fits */
struct model_use train_use(const struct train_options *o, bool recompute);
bool train_signalled(void);
void train_watch_signals(void);
#endif
