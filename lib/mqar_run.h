/* mqar_run.h - one model trained on one mix of lengths, from fresh or given weights to its accuracy.
 *
 * A run lives in a directory: metrics.jsonl has a line an epoch, model/ is the newest checkpoint, result.json is
 * there when the run is finished. A run that was interrupted goes on where its checkpoint stands, with the same bits
 * as if it had not stopped. */
#ifndef MQAR_RUN_H
#define MQAR_RUN_H
#include "config.h"
#include "mqar.h"
EXTERN_C_BEGIN

struct mqar_options {
    const char *models, *lengths, *rates;            /* lists, by commas */
    int64_t  seeds, first_seed;
    int64_t  rate_seeds;                             /* seeds of every rate; the best gets all. 0: every rate does */
    int64_t  train, test, epochs, batch_tokens, warmup;
    int64_t  vocab;
    int      layers, width, heads, key, value, rank;
    bool     random, fresh, tied;                    /* other tokens; new examples every epoch; head = embedding */
    double   lr_floor, beta2, weight_decay, clip;
    double   stop_at;                                /* accuracy that ends a run; above 1: none */
    int64_t  patience;                               /* epochs without a better accuracy that end it; 0: none */
    uint64_t data_seed;
    const char *dtype;
    /* what does not change results */
    const char *out, *device;
    int      jobs, threads;
    int64_t  save_every;                             /* epochs between checkpoints */
    double   max_seconds;                            /* 0: no limit */
};
struct mqar_job {
    char     model[256];                             /* a name of ours, or the path of a config.json or of a model */
    struct mqar_mix mix;
    double   lr;
    uint64_t seed;
    char     name[192];                              /* its directory below OUT/runs */
};
/* How a run stands, after every epoch. */
enum mqar_state { MQAR_WAITS, MQAR_RUNS, MQAR_STOPPED, MQAR_FINISHED, MQAR_DIVERGED, MQAR_FAILED };
struct mqar_told {
    int     job;
    int64_t epoch;                                   /* finished */
    double  loss, seconds, epoch_seconds;            /* mean of the epoch; of the run so far, of the epoch */
    double  tokens_per_second;
    double  accuracy[MQAR_MIX], error[MQAR_MIX];
    enum mqar_state state;
};

/* Names that mqar_config knows, separated by commas. */
#define MQAR_MODELS "palimpsa-d,palimpsa-d-twin,palimpsa-m,palimpsa-m-twin,mamba2"
/* The model of a job; 0, or -1 with the reason. */
int mqar_config(struct config *c, const struct mqar_options *o, const char *model, int64_t length);
/* Whether it is a model with weights, from which a run begins. */
bool mqar_is_directory(const char *model);
/* Trains, from dir's checkpoint if there is one, on the device of this name; tell is called after every epoch and
 * at the end. 0 finished, or stopped by a signal and saved; -1 failed, with the reason. */
int mqar_train(const struct mqar_options *o, const struct mqar_job *job, const char *dir, const char *device,
               void (*tell)(void *arg, const struct mqar_told *), void *arg);
EXTERN_C_END
#endif
