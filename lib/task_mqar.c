/* task_mqar.c - associative recall as a task: its examples are made, so it reads no files and needs no tokenizer. */
#include "mqar_set.h"
#include "task.h"

enum { EXAMPLES = 1000, ROW = 8192 };

static void progress(void *arg, int64_t done, int64_t all)
{
    task_progress(arg, "mqar", done, all);
}

/* One length and number of pairs. */
static int score(struct task_run *r, const struct mqar *q)
{
    struct model *m = &r->m->model;
    struct mqar_mix mix = { .at = { *q }, .n = 1 };
    int64_t row = r->batch ? r->batch : ROW / q->length + 1, n = r->samples ? r->samples : EXAMPLES;
    struct mqar_set set;
    struct mqar_row room;
    struct mqar_score got;
    struct task_clock clock = { 0 };
    char part[64];

    row = row < n ? row : n;
    if (model_reserve(m, JOB_LOSS, row * q->length))
        return -1;
    mqar_set_open(&set, &mix, mqar_seed(r->seed, "eval"), n);
    mqar_row_open(&room, &mix, row);
    room.alone = true;
    mqar_score(&got, m, &set, &room, progress, &clock);
    snprintf(part, sizeof part, "%lld:%lld", (long long)q->length, (long long)q->pairs);
    result_show(r->results, &(struct result){ .task = "mqar", .metric = "accuracy", .part = part,
                .value = got.accuracy, .error = got.error, .n = got.n });
    mqar_row_close(&room);
    mqar_set_close(&set);
    return 0;
}

static int run(struct task_run *r)
{
    const struct config *c = &r->m->model.cfg;
    int64_t vocab = r->vocab ? r->vocab : c->vocab_real;
    int status = 0;

    if (!r->lengths.n || r->lengths.n != r->pairs.n)
        return fail("eval mqar: expected --lengths and as many --pairs, found %d and %d", r->lengths.n, r->pairs.n);
    if (vocab > c->vocab_real)
        return fail("--vocab: the model has %lld tokens, found %lld", (long long)c->vocab_real, (long long)vocab);
    results_count(r->results, "vocab", vocab);
    results_count(r->results, "seed", (int64_t)r->seed);
    results_count(r->results, "random_filler", r->filler);
    results_count(r->results, "trained_length", c->context);
    for (int i = 0; i < r->lengths.n && !status; i++) {
        struct mqar q = { (int64_t)r->lengths.at[i], (int64_t)r->pairs.at[i], vocab, r->filler };
        status = mqar_check(&q, "eval mqar") || score(r, &q);
    }
    return status ? -1 : 0;
}

const struct task task_mqar = { "mqar", "associative recall", .run = run, .generates = true, .ids = true };
