/* metrics.h - the record of a run, metrics.jsonl, and the progress line a person watches.
 *
 * One object per logged step: {"step","loss","lr","grad_norm","tokens","epoch","at","tokens_per_second",
 * "seconds"} (and "mfu" when the peak of the device is known), and {"step","val_loss"} per validation.
 * "at" is where in the data the step's first window begins, as SHARD:TOKEN.
 * {"step","tokens","seconds","spread","gain","window","plasticity"}: means over metaplastic heads, and each head's.
 * On resume, lines past the step that is resumed from are cut off, so every step stands there once. */
#ifndef METRICS_H
#define METRICS_H
#include "base.h"
EXTERN_C_BEGIN
struct metrics {
    FILE   *file;
    char    path[4096];
    bool    terminal;             /* stderr is one: lines of progress replace each other */
    int64_t steps;                /* of the whole run, for the ETA */
    double  start;                /* time_now() at the first step of this invocation */
    double  shown;                /* when the line on the terminal was last changed */
    int64_t first;                /* step at which this invocation began */
};
struct metrics_step {
    int64_t step, tokens;         /* finished steps; tokens seen since step 0 */
    double  loss, lr, grad_norm, tokens_per_second, mfu, seconds, epoch;    /* mfu 0: unknown */
    char    at[128];              /* "" unknown */
};
/* path: RUN/metrics.jsonl. Keeps lines with step <= `step`. 0, or -1 with the reason. */
int  metrics_open(struct metrics *m, const char *path, int64_t step, int64_t steps);
int  metrics_log(struct metrics *m, const struct metrics_step *s);          /* -1 when the disk is full */
void metrics_show(struct metrics *m, const struct metrics_step *s);         /* to the terminal only, now and then */
int  metrics_val(struct metrics *m, int64_t step, double loss);
int  metrics_put(struct metrics *m, const char *object, size_t n);          /* another kind of line, one JSON object */
void metrics_close(struct metrics *m);
void metrics_duration(char out[32], double seconds);                        /* "3m05s", "2h10m" */
EXTERN_C_END
#endif
