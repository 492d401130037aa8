/* task_recall.c - prompts side by side through the model, predictions to a file, scores to cells. */
#define _POSIX_C_SOURCE 200809L
#include "task_recall.h"
#include "score_text.h"
#include "sha256.h"
#include "task_kept.h"
#include "task_prompt.h"
#include <errno.h>
#include <math.h>

void recall_add(struct recall *q, const char *part, int64_t length, double depth, int64_t number)
{
    if (q->n == q->cap)
        q->at = mem_grow(q->at, (size_t)(q->cap = 2 * q->cap + 64), sizeof *q->at);
    q->at[q->n++] = (struct recall_sample){ .part = part, .length = length, .depth = depth, .number = number };
}

void recall_free(struct recall *q)
{
    free(q->at);
}

int64_t recall_length(int64_t n)
{
    int64_t length = 1;

    while (length < n)
        length *= 2;
    return length;
}

int64_t recall_tokens(struct task_run *r, const struct text *prompt)
{
    struct bpe_ids ids = { 0 };
    int64_t n = task_encode(r, prompt->at, prompt->n, &ids) ? -1 : ids.n;

    bpe_ids_free(&ids);
    return n;
}

void file_hash(const char *path, char hash[65])
{
    size_t n = 0;
    char *text = path ? file_read(path, &n) : NULL;

    sha256_hex(text ? text : "", n, hash);
    free(text);
}

static int64_t measure(struct task_run *r, int (*make)(void *arg, int64_t units, struct text *out), void *arg,
                       int64_t units, struct text *out)
{
    return make(arg, units, out) ? -1 : recall_tokens(r, out);
}

/* By secant steps, then by ones. */
int recall_fit(struct task_run *r, int64_t most, int (*make)(void *arg, int64_t units, struct text *out), void *arg,
               struct text *out)
{
    int64_t none = measure(r, make, arg, 0, out), some = none < 0 ? -1 : measure(r, make, arg, 32, out), n, tokens;
    double each = some > none ? (double)(some - none) / 32 : 1;

    if (some < 0)
        return -1;
    if (none > most)
        return fail("%s: a prompt without other text has %lld tokens; its length leaves %lld beside the answer",
                    r->task->name, (long long)none, (long long)(most < 0 ? 0 : most));
    n = (int64_t)((double)(most - none) / each);
    for (int round = 0; round < 8 && (tokens = measure(r, make, arg, n, out)) >= 0; round++) {
        int64_t step = (int64_t)floor((double)(most - tokens) / each);
        if (!step)
            break;
        n = n + step < 0 ? 0 : n + step;
    }
    while ((tokens = measure(r, make, arg, n + 1, out)) >= 0 && tokens <= most)
        n++;
    while ((tokens = measure(r, make, arg, n, out)) > most && n)
        n--;
    return tokens < 0 ? -1 : 0;
}

static bool contains(struct runes in, struct runes what)
{
    for (int64_t i = 0; i + what.n <= in.n; i++)
        if (!memcmp(in.at + i, what.at, (size_t)what.n * sizeof *what.at))
            return true;
    return false;
}

double match_all(const char *prediction, const char *const *answer, int n)
{
    struct runes in = runes_lower(prediction);
    int found = 0;

    for (int i = 0; i < n; i++) {
        struct runes what = runes_lower(answer[i]);
        found += contains(in, what);
        free(what.at);
    }
    free(in.at);
    return n ? found / (double)n : 0;
}

static bool same_depth(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* How far two samples belong together: 0 part, 1 also length, 2 also depth. */
static bool together(const struct recall_sample *a, const struct recall_sample *b, int level)
{
    return !strcmp(a->part, b->part) && (level < 1 || a->length == b->length) &&
           (level < 2 || same_depth(a->depth, b->depth));
}

/* A line of an earlier invocation; one whose sample is not asked for now is passed over. */
static int take_line(void *arg, const struct json *row)
{
    struct recall *q = arg;
    struct recall_sample x = { .length = 0, .depth = NAN };
    const char *pred;

    if (json_string(row, "part", &x.part) <= 0 || json_int(row, "length", &x.length) < 0 ||
        json_double(row, "depth", &x.depth) < 0 || json_int(row, "sample", &x.number) <= 0 ||
        json_string(row, "pred", &pred) <= 0)
        return fail("predictions: a line without part, sample or pred");
    for (int64_t i = 0; i < q->n; i++)
        if (q->at[i].number == x.number && together(&q->at[i], &x, 2)) {
            q->at[i].score = q->score(q->arg, &q->at[i], pred, NULL);
            q->at[i].done = q->at[i].score >= 0;
            return q->at[i].done ? 0 : -1;
        }
    return 0;
}

struct group {                           /* samples side by side */
    struct recall_sample **sample;
    struct bpe_ids *prompt, *answer;
    struct session session;
    FILE *out;
    int   n, side;
};

static int keep(struct group *g, const struct recall_sample *s, int64_t tokens, const struct text *pred,
                const struct text *answers)
{
    struct text line = { 0 };
    int status;

    text_add(&line, "{\"part\": ");
    text_string(&line, s->part, strlen(s->part));
    text_add(&line, ", \"length\": %lld, \"depth\": ", (long long)s->length);
    text_add(&line, isnan(s->depth) ? "null" : "%.17g", s->depth);
    text_add(&line, ", \"sample\": %lld, \"tokens\": %lld, \"pred\": ", (long long)s->number, (long long)tokens);
    text_string(&line, pred->at, pred->n);
    text_add(&line, ", \"answers\": %s, \"score\": %.6g}\n", answers->at ? answers->at : "[]", s->score);
    status = kept_add(g->out, &line);
    text_free(&line);
    return status;
}

static int answer_group(struct task_run *r, struct recall *q, struct group *g)
{
    int32_t stop[2];
    struct greedy how = { .most = q->most, .stop = stop, .stops = greedy_stops(r->m, stop) };
    int status = 0;

    greedy(&g->session, r->m->bpe, g->prompt, g->n, &how, g->answer);
    for (int i = 0; i < g->n && !status; i++) {
        struct text pred = { 0 }, answers = { 0 };
        struct recall_sample *s = g->sample[i];

        prompt_decode(&pred, r->m->bpe, g->answer[i].at, g->answer[i].n);
        s->score = q->score(q->arg, s, pred.at, &answers);
        s->done = s->score >= 0;
        status = s->done ? 0 : -1;
        if (!status && g->out)
            status = keep(g, s, g->prompt[i].n, &pred, &answers);
        text_free(&pred);
        text_free(&answers);
    }
    g->n = 0;
    return status;
}

static int add_prompt(struct task_run *r, struct recall *q, struct group *g, struct recall_sample *s)
{
    struct text prompt = { 0 };
    int status = q->prompt(q->arg, s, &prompt);

    g->sample[g->n] = s;
    g->prompt[g->n].n = g->answer[g->n].n = 0;
    status = status ? status : task_encode(r, prompt.at, prompt.n, &g->prompt[g->n]);
    g->n++;
    text_free(&prompt);
    return status;
}

static int answer_all(struct task_run *r, struct recall *q, struct group *g)
{
    struct task_clock clock = { 0 };
    int64_t left = 0, done = 0;
    int status = 0;

    for (int64_t i = 0; i < q->n; i++)
        left += !q->at[i].done;
    for (int64_t i = 0; i < q->n && !status; i++) {
        if (!q->at[i].done)
            status = add_prompt(r, q, g, &q->at[i]);
        if (status || !g->n || (g->n < g->side && i + 1 < q->n && together(&q->at[i], &q->at[i + 1], 1)))
            continue;
        done += g->n;
        status = answer_group(r, q, g);
        task_progress(&clock, r->task->name, done, left);
    }
    return status;
}

int recall_run(struct task_run *r, struct recall *q, const char *more)
{
    struct group g = { .side = greedy_side(r) };
    char settings[64];
    int64_t had = 0;
    int status = 0;

    if (r->context)
        return fail("%s: prompts are never cut; leave --context out", r->task->name);
    snprintf(settings, sizeof settings, "%s.settings.json", r->task->name);
    if (r->predictions && (kept_claim(r, settings, more) || !(g.out = kept_open(r, r->task->name, &had)) ||
                           kept_each(r, r->task->name, take_line, q)))
        status = -1;
    g.sample = mem_new((size_t)g.side, sizeof *g.sample);
    g.prompt = mem_new((size_t)g.side, sizeof *g.prompt);
    g.answer = mem_new((size_t)g.side, sizeof *g.answer);
    if (!status && !(status = session_open(&g.session, &r->m->model, g.side)))
        status = answer_all(r, q, &g);
    session_close(&g.session);
    if (g.out && fclose(g.out))
        status = fail("%s: %s", r->predictions, strerror(errno));
    for (int i = 0; i < g.side; i++) {
        bpe_ids_free(&g.prompt[i]);
        bpe_ids_free(&g.answer[i]);
    }
    free(g.sample);
    free(g.prompt);
    free(g.answer);
    if (!status)
        recall_report(r, q);
    return status;
}

/* The mean of samples [from, to). */
static void show(struct task_run *r, const struct recall *q, int64_t from, int64_t to, int level)
{
    const struct recall_sample *s = &q->at[from];
    struct result x = { .task = r->task->name, .metric = q->metric, .part = s->part, .n = to - from };
    double *score = mem_new((size_t)x.n, sizeof *score);

    x.length = level > 0 ? s->length : 0;
    x.depth = level > 1 ? &s->depth : NULL;
    for (int64_t i = 0; i < x.n; i++)
        x.value += (score[i] = q->at[from + i].score) / (double)x.n;
    x.error = error_of_mean(score, x.n);
    result_show(r->results, &x);
    free(score);
}

/* Cells first, then each length over its depths, then each form over its lengths. */
void recall_report(struct task_run *r, const struct recall *q)
{
    for (int level = 2; level >= 0; level--)
        for (int64_t from = 0, to; from < q->n; from = to) {
            const struct recall_sample *s = &q->at[from];

            for (to = from + 1; to < q->n && together(&q->at[to], s, level); to++)
                ;
            if ((level == 2 && !isnan(s->depth)) || (level == 1 && s->length) ||
                (level == 0 && (!s->length || q->at[to - 1].length != s->length)))
                show(r, q, from, to, level);
        }
}
