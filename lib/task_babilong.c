/* task_babilong.c - the task babilong: facts of bAbI scattered over prose of any length, or rows of the user's;
 * and the score of predictions in BABILong's own files. */
#define _POSIX_C_SOURCE 200809L
#include "rng.h"
#include "score_file.h"
#include "task_babi.h"
#include "task_niah.h"
#include "task_prompt.h"
#include "task_recall.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>

enum { ANSWER = 20, SAMPLES = 100 };

struct babilong {
    struct task_run *r;
    struct babi      b;
    struct recall    q;
    struct json     *wording, *subset;   /* subset: numbers of questions by task; NULL: all */
    struct wording   prose;              /* the sentences between the facts */
    int64_t          answer;
};

static const char default_template[] = "{instruction}\n\n{context}\n\nQuestion: {question}\nAnswer:";
static const char default_instruction[] =
    "The text tells, between other things, where people are and what they do. Answer the question from that alone, "
    "with one word.";

/* A member of the wording: of the task, or of "prompt", or of the whole. */
static const char *worded(const struct babilong *x, const char *task, const char *name, const char *other)
{
    const struct json *j = x->wording, *inner = NULL;
    const char *s;

    if (j && (inner = json_at(j, "prompt")) && json_is_object(inner))
        j = inner;
    if (j && (inner = json_at(j, task)) && json_is_object(inner))
        j = inner;
    return j && json_string(j, name, &s) > 0 ? s : j && strcmp(name, "template") ? "" : other;
}

/* The context is filled in, and the whole stripped of white space around it. */
static int fill(const struct babilong *x, const struct babi_question *q, const char *context, struct text *out)
{
    struct text whole = { 0 };
    int status = prompt_fill_words(&whole, worded(x, q->task, "template", default_template), (struct prompt_word[]){
        { "instruction", worded(x, q->task, "instruction", default_instruction) },
        { "examples", worded(x, q->task, "examples", "") }, { "post_prompt", worded(x, q->task, "post_prompt", "") },
        { "context", context }, { "question", q->question }, { NULL, NULL } });
    size_t from = strspn(whole.at, " \t\r\n");

    while (whole.n > from && strchr(" \t\r\n", whole.at[whole.n - 1]))
        whole.n--;
    text_free(out);
    text_add(out, "%.*s", (int)(whole.n - from), whole.at + from);
    text_free(&whole);
    return status;
}

struct making { const struct babilong *x; const struct recall_sample *s; };

/* Facts keep their order; each stands before a sentence chosen for it alone. */
static int compose(void *arg, int64_t units, struct text *out)
{
    const struct making *m = arg;
    const struct babilong *x = m->x;
    const struct babi_question *q = &x->b.at[m->s->number];
    int64_t facts = 0, n = x->prose.sentences, next = 0, *place;
    uint64_t seed = x->r->seed, stream = rng_stream(q->task) ^ rng_mix((uint64_t)m->s->number), from;
    struct text context = { 0 };
    const char *fact = q->fact;
    int status;

    for (const char *p = fact; *p; p++)
        facts += *p == '\n';
    place = mem_new((size_t)facts + 1, sizeof *place);
    for (int64_t i = 0; i < facts; i++) {
        int64_t at = (int64_t)(rng_uniform(seed, stream, (uint64_t)i) * (double)(units + 1)), k = i;
        for (; k > 0 && place[k - 1] > at; k--)
            place[k] = place[k - 1];
        place[k] = at;
    }
    from = rng_bits(seed, stream, UINT64_MAX);
    text_add(&context, "%s", "");
    for (int64_t i = 0; i <= units; i++) {
        for (; next < facts && place[next] == i; next++, fact += strcspn(fact, "\n") + 1)
            text_add(&context, "%s%.*s", context.n ? " " : "", (int)strcspn(fact, "\n"), fact);
        if (i < units)
            text_add(&context, "%s%s", context.n ? " " : "",
                     x->prose.sentence[(from % (uint64_t)n + (uint64_t)i) % (uint64_t)n]);
    }
    status = fill(x, q, context.at, out);
    free(place);
    text_free(&context);
    return status;
}

static int make_prompt(void *arg, const struct recall_sample *s, struct text *out)
{
    struct babilong *x = arg;
    struct making m = { x, s };

    if (!x->r->lengths.n)
        return strchr(x->b.at[s->number].fact, '\n') ? compose(&m, 0, out)
                                                     : fill(x, &x->b.at[s->number], x->b.at[s->number].fact, out);
    return recall_fit(x->r, s->length - x->answer, compose, &m, out);
}

static double score(void *arg, const struct recall_sample *s, const char *prediction, struct text *answers)
{
    const struct babi_question *q = &((struct babilong *)arg)->b.at[s->number];

    if (answers) {
        text_add(answers, "[");
        text_string(answers, q->target, strlen(q->target));
        text_add(answers, "]");
    }
    return babi_right(q->task, q->target, prediction, q->question);
}

/* Rows with input, question and target, as the published data has them. */
static int read_rows(struct babilong *x, const char *path)
{
    struct babi_question q = { .task = babi_task(path) };
    struct lines *l = q.task ? lines_open(path) : NULL;
    int64_t before = x->b.n;
    const char *line;
    int found = l ? 1 : -1;
    size_t n;

    if (!q.task)
        return fail("%s: expected the task, qa1 to qa20, in the file's name", path);
    while (found > 0 && !(x->r->limit && x->b.n - before >= x->r->limit) && (found = lines_next(l, &line, &n)) > 0) {
        struct json *j = lines_json(l, line, n);
        found = j ? 1 : -1;
        if (j && (json_string(j, "input", &q.fact) <= 0 || json_string(j, "question", &q.question) <= 0 ||
                  json_string(j, "target", &q.target) <= 0))
            found = fail("%s:%lld: expected input, question and target", path, (long long)lines_number(l));
        if (found > 0)
            babi_add(&x->b, &q);
        json_free(j);
    }
    if (l)
        lines_close(l);
    return found < 0 ? -1 : 0;
}

/* Whether question i of a file is among those to ask. */
static bool is_chosen(const struct babilong *x, const char *task, int64_t i)
{
    double number;

    for (struct json *j = json_first(json_at(x->subset, task)); j; j = json_next(j))
        if (json_number(j, &number) && number == (double)i)
            return true;
    return !x->subset;
}

/* Samples of questions [from, n): of every length asked for, else of the length they have. */
static int add_samples(struct babilong *x, int64_t from)
{
    const struct axis *l = &x->r->lengths;
    struct text prompt = { 0 };

    for (int i = 0; i < l->n; i++)
        for (int64_t k = from; k < x->b.n; k++)
            if (is_chosen(x, x->b.at[k].task, k - from))
                recall_add(&x->q, x->b.at[k].task, (int64_t)l->at[i], NAN, k);
    for (int64_t k = from; !l->n && k < x->b.n; k++) {
        struct recall_sample s = { .number = k };
        if (!is_chosen(x, x->b.at[k].task, k - from))
            continue;
        int64_t tokens = make_prompt(x, &s, &prompt) ? -1 : recall_tokens(x->r, &prompt);
        text_free(&prompt);
        if (tokens < 0)
            return -1;
        recall_add(&x->q, x->b.at[k].task, recall_length(tokens + x->answer), NAN, k);
    }
    return 0;
}

static int by_length(const void *a, const void *b)
{
    const struct recall_sample *x = a, *y = b;

    return x->length != y->length ? x->length < y->length ? -1 : 1 : (x->number > y->number) - (x->number < y->number);
}

static int read_file(struct babilong *x, const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    int64_t from = x->b.n, first = x->q.n;
    bool rows = strstr(base, ".json") != NULL;
    int status;

    if (rows && x->r->lengths.n)
        return fail("%s: --lengths is for bAbI's own files; rows are as long as they are", path);
    if (x->r->lengths.n && !x->prose.sentences)
        return fail("babilong: --lengths needs --background, a file of prose");
    status = rows ? read_rows(x, path)
                  : babi_read(&x->b, path, x->r->samples ? x->r->samples : x->r->limit ? x->r->limit
                                                          : x->subset ? 0 : SAMPLES);
    status = status ? status : add_samples(x, from);
    if (!status)
        qsort(x->q.at + first, (size_t)(x->q.n - first), sizeof *x->q.at, by_length);
    return status;
}

/* A JSON object; *out stays NULL without a path. */
static int read_object(struct json **out, const char *path)
{
    size_t n;
    char *text = path ? file_read(path, &n) : NULL;

    *out = text ? json_parse(text, n, path) : NULL;
    free(text);
    if (path && *out && !json_is_object(*out))
        return fail("%s: expected a JSON object", path);
    return path && !*out ? -1 : 0;
}

static int answer(struct babilong *x)
{
    struct task_run *r = x->r;
    struct text more = { 0 };
    char wording[65], background[65];
    int status = read_object(&x->wording, r->wording) || read_object(&x->subset, r->subset) ? -1 : 0;

    status = status ? status : wording_open(&x->prose, NULL, r->background);
    for (int i = 0; i < r->files && !status; i++)
        status = read_file(x, r->data[i]);
    if (!status && !x->q.n)
        status = fail("babilong: the data has no question");
    if (!status) {
        file_hash(r->wording, wording);
        file_hash(r->background, background);
        text_add(&more, ",\n  \"seed\": %lld,\n  \"answer_tokens\": %lld", (long long)r->seed, (long long)x->answer);
        text_add(&more, ",\n  \"wording\": \"%s\",\n  \"background\": \"%s\"", wording, background);
        results_say(r->results, "decoding", "greedy");
        results_say(r->results, "prompts", r->wording ? r->wording : "palimpsa");
        results_count(r->results, "answer_tokens", x->answer);
        results_count(r->results, "seed", (int64_t)r->seed);
        status = recall_run(r, &x->q, more.at);
    }
    text_free(&more);
    json_free(x->wording);
    json_free(x->subset);
    wording_close(&x->prose);
    return status;
}

/* A table of BABILong's evaluation: columns target, output, question. */
static int score_table(struct babilong *x, const char *path, const char *task, int64_t length)
{
    size_t n;
    char *text = file_read(path, &n), *at = text, *field[16];
    static const char *const wanted[] = { "target", "output", "question" };
    int column[3] = { -1, -1, -1 }, fields = text ? csv_next(&at, field, LEN(field)) : 0, status = text ? 0 : -1;

    for (int i = 0; i < fields && i < (int)LEN(field); i++)
        for (int j = 0; j < 3; j++)
            if (!strcmp(field[i], wanted[j]))
                column[j] = i;
    if (text && (column[0] < 0 || column[1] < 0 || column[2] < 0))
        status = fail("%s: expected the columns target, output and question", path);
    while (!status && (fields = csv_next(&at, field, LEN(field))) > 0) {
        for (int j = 0; j < 3 && !status; j++)
            if (column[j] >= fields)
                status = fail("%s: a row of %d fields", path, fields);
        if (status)
            break;
        recall_add(&x->q, task, length, NAN, x->q.n);
        x->q.at[x->q.n - 1].score = babi_right(task, field[column[0]], field[column[1]], field[column[2]]);
    }
    if (!status && fields < 0)
        status = fail("%s: a quote is not closed", path);
    free(text);
    return status;
}

/* "..._4k..." says 4096 tokens. */
static int64_t length_in(const char *name)
{
    for (const char *p = name; (p = strchr(p, '_')); p++) {
        char *end;
        long k = strtol(p + 1, &end, 10);
        if (end > p + 1 && *end == 'k' && k > 0 && k < 1 << 20)
            return (int64_t)k * 1024;
    }
    return 0;
}

static int is_table(const struct dirent *d)
{
    size_t n = strlen(d->d_name);

    return n > 4 && !strcmp(d->d_name + n - 4, ".csv") && babi_task(d->d_name);
}

static int score_all(struct babilong *x)
{
    const char *dir = x->r->score_only;
    struct dirent **file;
    int n = scandir(dir, &file, is_table, alphasort), status = n < 0 ? fail("%s: %s", dir, strerror(errno)) : 0;

    for (int i = 0; i < n; i++) {
        char path[4500];
        if (!status)
            status = str_format(path, sizeof path, "%s/%s", dir, file[i]->d_name)
                ? score_table(x, path, babi_task(file[i]->d_name), length_in(file[i]->d_name))
                : fail("%s: path too long", dir);
        free(file[i]);
    }
    if (n >= 0)
        free(file);
    if (!status && !x->q.n)
        status = fail("%s: no tables of BABILong's evaluation, qaN_....csv", dir);
    if (!status)
        recall_report(x->r, &x->q);
    return status;
}

static int run(struct task_run *r)
{
    struct babilong x = { .r = r, .answer = r->answer_tokens ? r->answer_tokens : ANSWER,
                          .q = { .metric = "acc", .prompt = make_prompt, .score = score } };
    int status;

    x.q.arg = &x;
    x.q.most = x.answer;
    status = r->score_only ? score_all(&x) : answer(&x);
    recall_free(&x.q);
    babi_free(&x.b);
    return status ? -1 : 0;
}

const struct task task_babilong = { "babilong", "questions on facts in long texts", .run = run };
