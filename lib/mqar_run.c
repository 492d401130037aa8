/* mqar_run.c - the loop of one run: batches out of a set in memory, a step each, accuracy after every epoch.
 *
 * Step s is batch s mod S of epoch s / S, a function of the seed; so a checkpoint is a number of steps, and what was
 * summed up since the epoch began. */
#define _POSIX_C_SOURCE 200809L
#include "mqar_run.h"
#include "ckpt.h"
#include "json.h"
#include "metrics.h"
#include "model_learn.h"
#include "mqar_set.h"
#include "schedule.h"
#include "task.h"
#include "train_parts.h"
#include <math.h>
#include <unistd.h>

struct run_in_hand {
    const struct mqar_options *o;
    const struct mqar_job     *job;
    const char      *dir;
    struct dev       dev;
    struct comm      comm;
    struct model     model;
    struct optim     opt;
    struct schedule  schedule;
    struct mqar_set  train, test;
    struct mqar_row  row[2];             /* step s uses row s mod 2: one is filled while the device has the other */
    struct batch     next;               /* of step ready, made ahead */
    int64_t          ready;
    struct metrics   metrics;
    struct mqar_score score[MQAR_MIX];
    int64_t         *which;              /* [batch] */
    int64_t          batch, steps;       /* examples; steps of an epoch */
    int64_t          step;               /* finished */
    int64_t          filled;             /* epoch that the training set holds */
    double           loss, labels;       /* summed since the epoch began */
    double           best;               /* accuracy */
    int64_t          best_epoch;
    double           seconds;            /* of earlier invocations */
    double           began, epoch_began;
    int64_t          epoch_step;         /* the step at epoch_began */
    bool             have_dev, have_model;
    struct mqar_told told;
};

static bool run_path(const struct run_in_hand *r, const char *name, char *out, size_t size)
{
    return str_format(out, size, "%s/%s", r->dir, name);
}

static double passed(const struct run_in_hand *r)
{
    return r->seconds + time_now() - r->began;
}

/* The newest checkpoint: weights, moments, and what was summed up. */
static int resume(struct run_in_hand *r, const char *path)
{
    struct run saved;
    struct json *j;
    int status;

    if (ckpt_load(path, &r->model) || ckpt_load_optim(path, &r->model, &r->comm) || ckpt_run_read(path, &saved))
        return -1;
    r->step = saved.step;
    j = json_parse(saved.options, strlen(saved.options), path);
    status = j && json_double(j, "loss", &r->loss) == 1 && json_double(j, "labels", &r->labels) == 1 &&
             json_double(j, "best", &r->best) == 1 && json_int(j, "best_epoch", &r->best_epoch) == 1 &&
             json_double(j, "seconds", &r->seconds) == 1 ? 0 : fail("%s/run.json: not that of a recall run", path);
    json_free(j);
    free(saved.options);
    return status;
}

static int save(struct run_in_hand *r, bool last)
{
    char path[4096];
    struct text t = { 0 };
    struct run now = { .step = r->step, .seed = r->job->seed };
    int status;

    if (!run_path(r, "model", path, sizeof path))
        return fail("%s: path too long", r->dir);
    text_add(&t, "{\"loss\": %.17g, \"labels\": %.17g, \"best\": %.17g, \"best_epoch\": %lld, \"seconds\": %.17g}",
             r->loss, r->labels, r->best, (long long)r->best_epoch, passed(r));
    now.options = t.at;
    status = ckpt_save(path, &r->model, last ? NULL : &r->opt, last ? NULL : &now, &r->comm, NULL, r->dev.type);
    text_free(&t);
    return status;
}

static int open_model(struct run_in_hand *r, const char *device)
{
    const struct mqar_options *o = r->o;
    int64_t tokens = r->batch * mqar_mix_longest(&r->job->mix);
    struct config c;
    char path[4096], file[4200];

    if (mqar_config(&c, o, r->job->model, mqar_mix_longest(&r->job->mix)) || comm_fork(&r->comm, 1) ||
        dev_open(&r->dev, device, dtype_named(o->dtype), o->threads))
        return -1;
    r->have_dev = true;
    comm_use(&r->comm, &r->dev);
    if (model_open(&r->model, &r->dev, &c, &(struct model_use){ .learn = true, .optim = true }))
        return -1;
    r->have_model = true;
    if (model_reserve(&r->model, JOB_LEARN, tokens) || model_reserve(&r->model, JOB_LOSS, tokens))
        return -1;
    params_init(&r->model.params, &r->dev, r->job->seed, 0);
    if (!run_path(r, "model", path, sizeof path) || !str_format(file, sizeof file, "%s/run.json", path))
        return fail("%s: path too long", r->dir);
    if (!access(file, F_OK))
        return resume(r, path);
    if (mqar_is_directory(r->job->model) && ckpt_load(r->job->model, &r->model))
        return -1;
    params_master(&r->model.params, &r->dev, 0);
    return 0;
}

static int open_run(struct run_in_hand *r, const char *device)
{
    const struct mqar_options *o = r->o;
    const struct mqar_mix *mix = &r->job->mix;
    char path[4096];

    r->batch = o->batch_tokens / mqar_mix_longest(mix);
    r->steps = o->train / r->batch;
    r->which = mem_new((size_t)r->batch, sizeof *r->which);
    r->opt = (struct optim){ .unit = 1, .clip = (float)o->clip,
                             .h = { .beta1 = 0.9f, .beta2 = (float)o->beta2, .eps = 1e-8f,
                                    .decay = (float)o->weight_decay } };
    r->schedule = (struct schedule){ .kind = SCHEDULE_COSINE, .steps = r->steps * o->epochs, .warmup = o->warmup,
                                     .peak = r->job->lr, .floor = r->job->lr * o->lr_floor };
    if (open_model(r, device))
        return -1;
    for (int i = 0; i < 2; i++)
        mqar_row_open(&r->row[i], mix, r->batch);
    mqar_set_open(&r->train, mix, mqar_seed(o->data_seed, "train"), o->train);
    mqar_set_open(&r->test, mix, mqar_seed(o->data_seed, "test"), o->test * mix->n);
    if (!run_path(r, "metrics.jsonl", path, sizeof path))
        return fail("%s: path too long", r->dir);
    return metrics_open(&r->metrics, path, r->step, r->schedule.steps);
}

static void close_run(struct run_in_hand *r)
{
    metrics_close(&r->metrics);
    mqar_set_close(&r->train);
    mqar_set_close(&r->test);
    for (int i = 0; i < 2; i++)
        mqar_row_close(&r->row[i]);
    free(r->which);
    if (r->have_model)
        model_close(&r->model);
    if (r->have_dev)
        dev_close(&r->dev);
}

/* The examples of a step: the next of the epoch's order. */
static struct batch make_batch(struct run_in_hand *r, int64_t step)
{
    int64_t epoch = step / r->steps, from = step % r->steps * r->batch;

    if (r->o->fresh && r->filled != epoch)
        mqar_set_fill(&r->train, epoch * r->o->train);
    r->filled = epoch;
    for (int64_t i = 0; i < r->batch; i++)
        r->which[i] = loader_permute(from + i, r->o->train, 1, r->job->seed, epoch);
    return mqar_row_fill(&r->row[step % 2], &r->train, r->which, r->batch);
}

/* While the device learns the host makes the next batch, but that of another epoch: it is measured first, and its set
 * may be another. false when a number is not finite; then nothing was changed. */
static bool one_step(struct run_in_hand *r)
{
    struct batch b = r->ready == r->step ? r->next : make_batch(r, r->step);
    double loss;

    params_zero_grad(&r->model.params, &r->dev);
    model_learn_begin(&r->model, &b, 1 / (float)b.predicted, NULL, NULL);
    if ((r->step + 1) % r->steps) {
        r->ready = r->step + 1;
        r->next = make_batch(r, r->ready);
        model_ahead(&r->model, &r->next);
    }
    loss = model_learn_end(&r->model);
    r->opt.h.lr = (float)schedule_rate(&r->schedule, r->step + 1);
    r->opt.h.step = r->step + 1;
    if (!isfinite(loss) || !isfinite(optim_step(&r->opt, &r->model.params, &r->dev, &r->comm)))
        return false;
    r->loss += loss;
    r->labels += (double)b.predicted;
    r->step++;
    return true;
}

/* {"step", "epoch", "loss", "lr", "accuracy", then one accuracy by kind, "tokens", ...} */
static int log_epoch(struct run_in_hand *r, double accuracy)
{
    const struct mqar_mix *mix = &r->job->mix;
    struct mqar_told *t = &r->told;
    struct text line = { 0 };
    double tokens = (double)(r->step * r->batch) * (double)r->train.tokens / mix->n;
    int status;

    text_add(&line, "{\"step\": %lld, \"epoch\": %lld, \"loss\": %.9g, \"lr\": %.9g, \"accuracy\": %.9g",
             (long long)r->step, (long long)t->epoch, t->loss, schedule_rate(&r->schedule, r->step), accuracy);
    for (int k = 0; k < mix->n; k++)
        text_add(&line, ", \"%lld:%lld\": %.9g", (long long)mix->at[k].length, (long long)mix->at[k].pairs,
                 t->accuracy[k]);
    text_add(&line, ", \"tokens\": %.0f, \"tokens_per_second\": %.6g, \"seconds\": %.6g}", tokens,
             t->tokens_per_second, t->seconds);
    status = metrics_put(&r->metrics, line.at, line.n);
    text_free(&line);
    return status;
}

static void measure(struct run_in_hand *r)
{
    mqar_score(r->score, &r->model, &r->test, &r->row[0], NULL, NULL);
    for (int k = 0; k < r->job->mix.n; k++) {
        r->told.accuracy[k] = r->score[k].accuracy;
        r->told.error[k] = r->score[k].error;
    }
}

/* Accuracy, a line of metrics and word to whoever listens; *end when the run has learned enough. */
static int end_epoch(struct run_in_hand *r, bool *end)
{
    const struct mqar_options *o = r->o;
    struct mqar_told *t = &r->told;
    double now = time_now(), least = 1, mean = 0;
    int kinds = r->job->mix.n;

    t->epoch = r->step / r->steps;
    t->loss = r->loss / r->labels;
    t->epoch_seconds = now - r->epoch_began;
    t->tokens_per_second = (double)((r->step - r->epoch_step) * r->batch) * (double)r->train.tokens / kinds /
                           (t->epoch_seconds + 1e-9);
    measure(r);
    for (int k = 0; k < kinds; k++) {
        mean += t->accuracy[k] / kinds;
        least = fmin(least, t->accuracy[k]);
    }
    t->seconds = passed(r);
    if (mean > r->best || !r->best_epoch) {
        r->best = mean;
        r->best_epoch = t->epoch;
    }
    *end = least >= o->stop_at || t->epoch >= o->epochs || (o->patience && t->epoch - r->best_epoch >= o->patience);
    r->loss = r->labels = 0;
    r->epoch_began = time_now();
    r->epoch_step = r->step;
    return log_epoch(r, mean);
}

static int write_result(struct run_in_hand *r)
{
    const struct mqar_told *t = &r->told;
    struct results out = { 0 };
    char path[4096], mix[256], number[32];
    int status;

    if (!run_path(r, "result.json", path, sizeof path) || !mqar_mix_text(&r->job->mix, mix, sizeof mix))
        return fail("%s: path too long", r->dir);
    results_say(&out, "model", r->job->model);
    results_say(&out, "lengths", mix);
    snprintf(number, sizeof number, "%.9g", r->job->lr);
    results_say(&out, "lr", number);
    results_count(&out, "seed", (int64_t)r->job->seed);
    results_say(&out, "dtype", r->o->dtype);
    results_say(&out, "status", t->state == MQAR_DIVERGED ? "diverged" : "finished");
    results_count(&out, "epoch", t->epoch);
    snprintf(number, sizeof number, "%.9g", t->loss);
    results_say(&out, "loss", number);
    snprintf(number, sizeof number, "%.1f", t->seconds);
    results_say(&out, "seconds", number);
    for (int k = 0; k < r->job->mix.n; k++) {
        char part[64];
        snprintf(part, sizeof part, "%lld:%lld", (long long)r->job->mix.at[k].length,
                 (long long)r->job->mix.at[k].pairs);
        result_add(&out, &(struct result){ .task = "mqar", .metric = "accuracy", .part = part,
                   .value = r->score[k].accuracy, .error = r->score[k].error, .n = r->score[k].n });
    }
    status = results_write(&out, path, NULL);
    results_free(&out);
    return status;
}

/* Steps until the end, a number that is not finite, or a signal. No checkpoint with moments is of the last step. */
static int loop(struct run_in_hand *r, void (*tell)(void *arg, const struct mqar_told *), void *arg)
{
    bool end = false;

    r->told.state = MQAR_RUNS;
    while (!end) {
        if (train_signalled()) {
            r->told.state = MQAR_STOPPED;
            r->told.seconds = passed(r);
            return save(r, false);
        }
        if (!one_step(r)) {
            r->told.state = MQAR_DIVERGED;
            break;
        }
        if (r->step % r->steps)
            continue;
        if (end_epoch(r, &end))
            return -1;
        if (!end)
            tell(arg, &r->told);
        if (!end && r->o->save_every && r->told.epoch % r->o->save_every == 0 && save(r, false))
            return -1;
    }
    if (r->told.state == MQAR_DIVERGED) {
        r->told.epoch = r->step / r->steps;
        r->told.seconds = passed(r);
        r->told.loss = NAN;
        measure(r);
    } else
        r->told.state = MQAR_FINISHED;
    return save(r, true) || write_result(r) ? -1 : 0;
}

int mqar_train(const struct mqar_options *o, const struct mqar_job *job, const char *dir, const char *device,
               void (*tell)(void *arg, const struct mqar_told *), void *arg)
{
    struct run_in_hand r = { .o = o, .job = job, .dir = dir, .began = time_now(), .ready = -1 };
    int status;

    train_watch_signals();
    status = open_run(&r, device);
    r.epoch_began = time_now();
    r.epoch_step = r.step;
    if (!status)
        status = loop(&r, tell, arg);
    if (status)
        r.told.state = MQAR_FAILED;
    tell(arg, &r.told);
    close_run(&r);
    return status;
}
