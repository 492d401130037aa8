/* task_longbench.c - LongBench: prompts from rows, greedy answers into files of the official form, scores.
 *
 * Predictions are appended row by row, so that a run that was stopped goes on where it was; settings.json
 * beside them says what made them, and another model or other settings are refused. */
#define _POSIX_C_SOURCE 200809L
#include "score_file.h"
#include "sha256.h"
#include "task_kept.h"
#include "task_prompt.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>

struct longbench {
    struct task_run *r;
    struct json     *patterns, *lengths;
    struct session   session;
    FILE            *prompts;
    int              batch;
    struct task_clock clock;
    int64_t          cut[64];            /* prompts that were cut, by the task's place in the list */
};

/* A group of rows on their way from the data to the predictions. */
struct group {
    const struct score_task *task;
    struct json   **row;
    struct bpe_ids *prompt, *answer;
    int             n;
};

static int task_index(const struct score_task *t)
{
    return (int)(t - score_task_next(NULL));
}

static struct json *read_config(const char *dir, const char *name)
{
    char path[4200];
    char *text;
    size_t n;
    struct json *j;

    if (!str_format(path, sizeof path, "%s/%s", dir, name) || !(text = file_read(path, &n)))
        return NULL;
    j = json_parse(text, n, name);
    free(text);
    return j;
}

/* The text that the model is given: filled, cut, wrapped; 1 when it was cut. */
static int make_prompt(struct longbench *l, const struct score_task *t, const struct json *row, struct text *out)
{
    const char *pattern;
    int cut = 0;

    if (json_string(l->patterns, t->name, &pattern) <= 0)
        return fail("dataset2prompt.json has no '%s'", t->name);
    if (prompt_fill(out, pattern, row))
        return -1;
    if (l->r->context && (cut = prompt_cut(l->r, out, l->r->context)) < 0)
        return -1;
    if (l->r->chat && !t->plain && prompt_wrap(out, l->r->chat))
        return -1;
    return cut;
}

static void note_prompt(struct longbench *l, const struct score_task *t, int64_t row, const struct text *p,
                        int64_t tokens, bool cut)
{
    struct text line = { 0 };
    char hash[65];

    if (!l->prompts)
        return;
    sha256_hex(p->at, p->n, hash);
    text_add(&line, "{\"task\": \"%s\", \"row\": %lld, \"tokens\": %lld, \"cut\": %s, \"sha256\": \"%s\", \"prompt\": ",
             t->name, (long long)row, (long long)tokens, cut ? "true" : "false", hash);
    text_string(&line, p->at, p->n);
    fprintf(l->prompts, "%s}\n", line.at);
    text_free(&line);
}

static int add_row(struct longbench *l, struct group *g, struct json *row, int64_t number)
{
    struct text prompt = { 0 };
    int cut = make_prompt(l, g->task, row, &prompt), status = cut < 0 ? -1 : 0;

    g->row[g->n] = row;
    g->prompt[g->n].n = g->answer[g->n].n = 0;
    if (!status)
        status = task_encode(l->r, prompt.at, prompt.n, &g->prompt[g->n]);
    if (!status) {
        note_prompt(l, g->task, number, &prompt, g->prompt[g->n].n, cut);
        l->cut[task_index(g->task)] += cut;
    }
    text_free(&prompt);
    g->n++;
    return status;
}

static int stops_of(struct longbench *l, const struct score_task *t, int32_t stop[3])
{
    struct bpe_ids line = { 0 };
    int n = greedy_stops(l->r->m, stop);

    if (!strcmp(t->name, "samsum") && bpe_encode(l->r->m->encoder, &line, "\n", 1, 0) > 0)
        stop[n++] = line.at[line.n - 1];
    bpe_ids_free(&line);
    return n;
}

/* A member of the row as it was read; null when it is absent. */
static void copy_member(struct text *out, const struct json *row, const char *name)
{
    const struct json *j = json_at(row, name);

    text_add(out, "\"%s\": ", name);
    if (j)
        text_json(out, j);
    else
        text_add(out, "null");
}

static int answer_group(struct longbench *l, struct group *g, FILE *out)
{
    int32_t stop[3];
    int64_t most;
    struct greedy how = { .stop = stop, .stops = stops_of(l, g->task, stop), .one = !strcmp(g->task->name, "samsum") };
    int status = 0;

    if (json_int(l->lengths, g->task->name, &most) <= 0 || most < 1)
        return fail("dataset2maxlen.json has no '%s'", g->task->name);
    how.most = most;
    greedy(&l->session, l->r->m->bpe, g->prompt, g->n, &how, g->answer);
    for (int i = 0; i < g->n; i++) {
        struct text pred = { 0 }, line = { 0 };

        prompt_decode(&pred, l->r->m->bpe, g->answer[i].at, g->answer[i].n);
        text_add(&line, "{\"pred\": ");
        text_string(&line, pred.at, pred.n);
        text_add(&line, ", ");
        copy_member(&line, g->row[i], "answers");
        text_add(&line, ", ");
        copy_member(&line, g->row[i], "all_classes");
        text_add(&line, ", ");
        copy_member(&line, g->row[i], "length");
        text_add(&line, "}\n");
        status = status ? status : kept_add(out, &line);
        text_free(&line);
        text_free(&pred);
    }
    return status;
}

static void drop_rows(struct group *g)
{
    for (int i = 0; i < g->n; i++)
        json_free(g->row[i]);
    g->n = 0;
}

static int64_t count_lines(const char *path)
{
    struct lines *l = lines_open(path);
    const char *line;
    int64_t count = 0;
    size_t n;

    while (l && lines_next(l, &line, &n) > 0)
        count++;
    if (l)
        lines_close(l);
    return count;
}

static int answer_rows(struct longbench *l, struct group *g, struct lines *rows, FILE *out, int64_t done, int64_t all)
{
    const char *line;
    size_t n;
    int found = 0, status = 0;

    for (int64_t row = 0; row < all && !status && (found = lines_next(rows, &line, &n)) > 0; row++) {
        struct json *j;
        if (row < done && !l->r->context)
            continue;
        status = (j = lines_json(rows, line, n)) ? add_row(l, g, j, row) : -1;
        if (row < done)                              /* answered before; only whether it was cut is counted */
            drop_rows(g);
        else if (!status && (g->n == l->batch || row + 1 == all)) {
            status = answer_group(l, g, out);
            drop_rows(g);
            task_progress(&l->clock, g->task->name, row + 1 - done, all - done);
        }
    }
    drop_rows(g);
    return status || found < 0 ? -1 : 0;
}

static int answer_file(struct longbench *l, const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    struct group g = { .task = score_task(base) };
    int64_t done = 0, all = count_lines(path);
    struct lines *rows;
    FILE *out = NULL;
    int status = -1;

    if (!g.task)
        return fail("%s: no task of LongBench is named so", path);
    if (!(rows = lines_open(path)))
        return -1;
    all = l->r->limit && l->r->limit < all ? l->r->limit : all;
    l->clock = (struct task_clock){ 0 };
    g.row = mem_new((size_t)l->batch, sizeof *g.row);
    g.prompt = mem_new((size_t)l->batch, sizeof *g.prompt);
    g.answer = mem_new((size_t)l->batch, sizeof *g.answer);
    if ((out = kept_open(l->r, g.task->name, &done)))
        status = answer_rows(l, &g, rows, out, done, all);
    if (out && fclose(out))
        status = fail("%s: %s", l->r->predictions, strerror(errno));
    for (int i = 0; i < l->batch; i++) {
        bpe_ids_free(&g.prompt[i]);
        bpe_ids_free(&g.answer[i]);
    }
    free(g.row);
    free(g.prompt);
    free(g.answer);
    lines_close(rows);
    return status;
}

static int answer_all(struct longbench *l)
{
    struct task_run *r = l->r;
    int status;

    if (!r->config || !r->predictions || !r->files)
        return fail("longbench: needs --config, --predictions and --data, or --score-only");
    if (opened_need_tokenizer(r->m) || !(l->patterns = read_config(r->config, "dataset2prompt.json")) ||
        !(l->lengths = read_config(r->config, "dataset2maxlen.json")) || kept_claim(r, "settings.json", ""))
        return -1;
    if (r->prompts && !(l->prompts = fopen(r->prompts, "w")))
        return fail("%s: %s", r->prompts, strerror(errno));
    l->batch = greedy_side(r);
    status = session_open(&l->session, &r->m->model, l->batch);
    for (int i = 0; i < r->files && !status; i++)
        status = answer_file(l, r->data[i]);
    session_close(&l->session);
    if (l->prompts && fclose(l->prompts))
        status = fail("%s: %s", r->prompts, strerror(errno));
    return status;
}

struct table { struct text json; double sum; int64_t tasks, chinese; };

/* The official table: percent with two digits; in buckets for LongBench-E. */
static void tabulate(struct longbench *l, struct table *t, const struct score_file *f)
{
    const char *metric = metric_name(f->task->metric, l->r->indel ? RATIO_INDEL : RATIO_DIFFLIB);
    struct result x = { .task = f->task->name, .metric = metric, .truncated = l->cut[task_index(f->task)] };

    text_add(&t->json, "%s\n    \"%s\": ", t->json.n ? "," : "", f->task->name);
    for (int b = 0; b < SCORE_BUCKETS && l->r->buckets; b++) {
        x.part = score_bucket[b];
        x.value = score_file_mean(f, b, &x.n);
        x.error = score_file_stderr(f, b);
        result_show(l->r->results, &x);
        text_add(&t->json, "%s\"%s\": ", b ? ", " : "{", x.part);
        text_add(&t->json, isnan(x.value) ? "NaN" : "%.2f", 100 * x.value);
    }
    x.part = NULL;
    x.value = score_file_mean(f, -1, &x.n);
    x.error = score_file_stderr(f, -1);
    result_show(l->r->results, &x);
    if (l->r->buckets)
        text_add(&t->json, "}");
    else
        text_add(&t->json, "%.2f", 100 * x.value);
    t->sum += x.value;
    t->tasks++;
}

static int is_predictions(const struct dirent *d)
{
    const char *dot = strchr(d->d_name, '.');

    return dot && !strncmp(dot, ".jsonl", 6) && score_task(d->d_name);
}

static int score_one(struct longbench *l, struct table *t, const char *dir, const char *name, struct segmenter *s)
{
    struct score_file f;
    char path[4500];
    int status;

    if (!str_format(path, sizeof path, "%s/%s", dir, name))
        return fail("%s: path too long", dir);
    status = score_file(&f, path, l->r->indel ? RATIO_INDEL : RATIO_DIFFLIB, s);
    if (status == 1) {
        warn("%s: skipped, for python3 here has no jieba to cut Chinese into words", f.task->name);
        t->chinese++;
    } else if (!status)
        tabulate(l, t, &f);
    score_file_close(&f);
    return status < 0 ? -1 : 0;
}

static int score_all(struct longbench *l, const char *dir, bool write)
{
    struct segmenter *s = NULL;
    struct dirent **file;
    struct table t = { { 0 }, 0, 0, 0 };
    int n = scandir(dir, &file, is_predictions, alphasort), status = n < 0 ? fail("%s: %s", dir, strerror(errno)) : 0;
    char path[4200];

    for (int i = 0; i < n && !s; i++)
        if (metric_is_chinese(score_task(file[i]->d_name)->metric) && !(s = segmenter_open()))
            break;
    results_say(l->r->results, "code_similarity", l->r->indel ? "indel" : "difflib");
    results_say(l->r->results, "chinese", s ? segmenter_version(s) : "no segmenter");
    for (int i = 0; i < n; i++) {
        status = status ? status : score_one(l, &t, dir, file[i]->d_name, s);
        free(file[i]);
    }
    if (n >= 0)
        free(file);
    segmenter_close(s);
    if (!status && !t.tasks && !t.chinese)
        status = fail("%s: no predictions of LongBench's tasks", dir);
    results_count(l->r->results, "tasks_skipped", t.chinese);
    if (!status && t.tasks)
        result_show(l->r->results, &(struct result){ .task = "longbench", .metric = "mean of tasks", .error = NAN,
                   .value = t.sum / (double)t.tasks, .n = t.tasks, .skipped = t.chinese });
    if (!status && write && str_format(path, sizeof path, "%s/result.json", dir)) {
        struct text out = { 0 };
        text_add(&out, "{%s\n}", t.json.at ? t.json.at : "");
        status = file_write(path, out.at, out.n);
        text_free(&out);
    }
    text_free(&t.json);
    return status;
}

static int run(struct task_run *r)
{
    struct longbench l = { .r = r };
    const char *dir = r->score_only ? r->score_only : r->predictions;
    int status = 0;

    results_say(r->results, "decoding", "greedy");
    results_say(r->results, "chat", r->chat ? r->chat : "");
    if (!r->score_only)
        status = answer_all(&l);
    json_free(l.patterns);
    json_free(l.lengths);
    return status ? -1 : score_all(&l, dir, !r->score_only);
}

const struct task task_longbench = { "longbench", "21 tasks on long texts", .run = run };
