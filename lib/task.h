/* task.h - a benchmark: what `palimpsa eval NAME` runs, and the one form of its results.
 *
 * A task is a struct task in a lib/task_*.c, listed in task.c. Its run() reads the files, asks the model, and
 * adds results; the command opens the model and writes them. */
#ifndef TASK_H
#define TASK_H
#include "json.h"
#include "opened.h"
EXTERN_C_BEGIN

/* One number. value is in the metric's own unit; where that is a share of 1, percent is written beside it. */
struct result {
    const char *task, *metric;
    const char *part;                    /* which rows: "0-4k"; NULL all */
    int64_t length;                      /* tokens of their context; 0: any */
    const double *depth;                 /* where in it the answer stands, in percent; NULL anywhere */
    double  value, error;                /* error: standard error; NAN unknown */
    int64_t n, truncated, skipped;       /* samples that count; that were cut; that were left out */
    bool    open;                        /* not a share: a perplexity, bits */
};
struct results { struct text settings, list; };
void result_add(struct results *r, const struct result *x);
void result_show(struct results *r, const struct result *x);          /* adds it and prints it as a line of the table */
void results_say(struct results *r, const char *name, const char *value);       /* a setting, as a string */
void results_count(struct results *r, const char *name, int64_t value);         /* as a number */
/* Members of an object: model, model_hash, settings, results. model: a directory, or NULL. 0, or -1. */
int  results_text(const struct results *r, struct text *out, const char *model);
int  results_write(const struct results *r, const char *path, const char *model);
void results_free(struct results *r);
/* The standard error of a mean of n values: sqrt(sum (x - mean)^2 / (n - 1) / n). */
double error_of_mean(const double *x, int64_t n);
/* sha256 over names, sizes and bytes of config.json, tokenizer.json and the weights. */
int  model_hash(char out[65], const char *dir);

struct task_run {
    const struct task *task;
    struct opened     *m;                /* NULL: only scoring */
    struct results    *results;
    const char *const *data;
    int                files;
    const char *config, *predictions, *score_only, *prompts, *chat, *log, *labels;
    const char *forms, *background, *wording;       /* of generated prompts: which, a file of text, a file of words */
    const char *subset;                  /* a file with numbers of samples */
    struct axis { const double *at; int n; } lengths, depths, pairs;    /* tokens, percent, of mqar; n 0: unsaid */
    int64_t  samples, answer_tokens;     /* of a length and depth; of an answer; 0: the task's own */
    uint64_t seed;
    int64_t  vocab;                      /* of mqar; 0: the model's */
    bool     filler;                     /* of mqar: random tokens in the place of 0 */
    bool    indel, buckets, skip_long, separator;
    int64_t limit, context, batch;       /* samples, tokens of one, samples side by side; 0: all, any, - */
};
struct task {
    const char *name, *brief;
    int       (*run)(struct task_run *r);
    bool        generates;               /* needs no data */
    bool        ids;                     /* its samples are ids: needs no tokenizer */
};
const struct task *task_find(const char *name);
const struct task *task_next(const struct task *t);                    /* NULL starts */

/* Ids of a text as the benchmarks' scripts have them: what the tokenizer puts first, then the text. With
 * run->separator the document separator of training comes first instead. */
int task_encode(struct task_run *r, const char *text, size_t n, struct bpe_ids *out);
/* Progress with the time left; done of all, once a second. */
struct task_clock { double began, shown; };
void task_progress(struct task_clock *c, const char *what, int64_t done, int64_t all);

EXTERN_C_END
#endif
