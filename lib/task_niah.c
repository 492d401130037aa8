/* task_niah.c - the task niah: generated samples by form, length and depth, or rows of the user's in RULER's form. */
#include "task_niah.h"
#include "score_file.h"
#include "task_recall.h"
#include <math.h>

enum { ANSWER = 128, SAMPLES = 10 };

struct niah {
    struct task_run *r;
    struct wording   w;
    struct recall    q;
    struct rows { struct json **at; int64_t n, cap; } rows;        /* of --data; none: samples are generated */
    char           **part;               /* [parts] names of files */
    int              parts;
    int64_t          answer;
};

static struct niah_sample sample_of(const struct niah *x, const struct recall_sample *s)
{
    return (struct niah_sample){ .form = niah_form(s->part), .length = s->length, .number = s->number,
                                 .depth = s->depth, .seed = x->r->seed };
}

static int make_prompt(void *arg, const struct recall_sample *s, struct text *out)
{
    struct niah *x = arg;
    const char *input;

    if (!x->rows.n) {
        struct niah_sample n = sample_of(x, s);
        return niah_prompt(x->r, &x->w, &n, x->answer, out);
    }
    json_string(x->rows.at[s->number], "input", &input);
    text_add(out, "%s", input);
    return 0;
}

/* A row's answers; at most 64 count. */
static int answers_of(const struct json *row, const char *answer[64])
{
    int n = 0;

    for (struct json *j = json_first(json_at(row, "outputs")); j && n < 64; j = json_next(j))
        if ((answer[n] = json_text(j)))
            n++;
    return n;
}

static double score(void *arg, const struct recall_sample *s, const char *prediction, struct text *answers)
{
    struct niah *x = arg;
    char key[NEEDLE_NAME], value[64][NEEDLE_NAME];
    const char *answer[64];
    int n = 0;

    if (x->rows.n)
        n = answers_of(x->rows.at[s->number], answer);
    else {
        struct niah_sample one = sample_of(x, s);
        for (; n < niah_answers(one.form); n++) {
            niah_needle(&x->w, &one, n, key, value[n]);
            answer[n] = value[n];
        }
    }
    for (int i = 0; answers && i < n; i++) {
        text_add(answers, i ? ", " : "[");
        text_string(answers, answer[i], strlen(answer[i]));
    }
    if (answers)
        text_add(answers, "]");
    return match_all(prediction, answer, n);
}

/* "single_1,multikey_2"; without --forms all that can be made. */
static int add_forms(struct niah *x)
{
    static const double depths[] = { 0, 25, 50, 75, 100 };
    struct axis depth = x->r->depths.n ? x->r->depths : (struct axis){ depths, LEN(depths) };
    char names[256];
    int64_t samples = x->r->samples ? x->r->samples : SAMPLES;

    if (!x->r->lengths.n)
        return fail("niah: expected --lengths, or rows with --data");
    if (!str_format(names, sizeof names, "%s", x->r->forms ? x->r->forms : "single_1"))
        return fail("--forms: too long");
    for (char *name = names, *end; name; name = end ? end + 1 : NULL) {
        const struct niah_form *f;
        if ((end = strchr(name, ',')))
            *end = 0;
        if (!(f = niah_form(name)))
            return fail("--forms: expected single_1 to single_3, multikey_1 to multikey_3, multivalue or "
                        "multiquery, found '%s'", name);
        if (f->haystack == PROSE && !x->w.sentences)
            return fail("niah: %s needs --background, a file of prose", f->name);
        for (int i = 0; i < x->r->lengths.n; i++)
            for (int j = 0; j < depth.n; j++)
                for (int64_t k = 0; k < samples; k++)
                    recall_add(&x->q, f->name, (int64_t)x->r->lengths.at[i], depth.at[j], k);
    }
    return 0;
}

/* Where in the input its answer stands, in tens of percent; NAN when it stands there never or twice. */
static double depth_of(const char *input, const char *answer)
{
    const char *at = strstr(input, answer);

    if (!at || strstr(at + 1, answer))
        return NAN;
    return 10 * floor(10 * (double)(at - input) / (double)strlen(input) + 0.5);
}

static int add_row(struct niah *x, struct json *row, const char *part, const char *where, int64_t line)
{
    const char *input, *answer[64];
    struct text prompt = { 0 };
    int64_t tokens;
    int n;

    if (x->rows.n == x->rows.cap)
        x->rows.at = mem_grow(x->rows.at, (size_t)(x->rows.cap = 2 * x->rows.cap + 64), sizeof *x->rows.at);
    x->rows.at[x->rows.n++] = row;
    if (json_string(row, "input", &input) <= 0 || !json_is_array(json_at(row, "outputs")) ||
        !(n = answers_of(row, answer)))
        return fail("%s:%lld: expected input, a text, and outputs, a list of texts", where, (long long)line);
    text_add(&prompt, "%s", input);
    tokens = recall_tokens(x->r, &prompt);
    text_free(&prompt);
    if (tokens < 0)
        return -1;
    recall_add(&x->q, part, recall_length(tokens + x->answer), n == 1 ? depth_of(input, answer[0]) : NAN,
               x->rows.n - 1);
    return 0;
}

static int read_rows(struct niah *x, const char *path)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, *line;
    struct lines *l = lines_open(path);
    int64_t before = x->rows.n;
    int found = l ? 1 : -1;
    size_t n = strcspn(base, ".");
    char *part = mem_new(n + 1, 1);

    memcpy(part, base, n);
    x->part[x->parts++] = part;
    while (found > 0 && !(x->r->limit && x->rows.n - before >= x->r->limit) && (found = lines_next(l, &line, &n)) > 0) {
        struct json *j = lines_json(l, line, n);
        found = j && !add_row(x, j, part, path, lines_number(l)) ? 1 : -1;
    }
    if (l)
        lines_close(l);
    return found < 0 ? -1 : 0;
}

/* By part, length, depth, then as they came. */
static int in_order(const void *a, const void *b)
{
    const struct recall_sample *x = a, *y = b;
    int part = strcmp(x->part, y->part);
    double d = (isnan(x->depth) ? 200 : x->depth) - (isnan(y->depth) ? 200 : y->depth);

    if (part || x->length != y->length)
        return part ? part : x->length < y->length ? -1 : 1;
    return d ? d < 0 ? -1 : 1 : (x->number > y->number) - (x->number < y->number);
}

static int add_rows(struct niah *x)
{
    int status = 0;

    x->part = mem_new((size_t)x->r->files, sizeof *x->part);
    for (int i = 0; i < x->r->files && !status; i++)
        status = read_rows(x, x->r->data[i]);
    if (!status && !x->rows.n)
        return fail("niah: the data has no row");
    if (!status)
        qsort(x->q.at, (size_t)x->q.n, sizeof *x->q.at, in_order);
    return status;
}

static int run(struct task_run *r)
{
    struct niah x = { .r = r, .answer = r->answer_tokens ? r->answer_tokens : ANSWER,
                      .q = { .metric = "string_match_all", .prompt = make_prompt, .score = score } };
    struct text more = { 0 };
    char wording[65], background[65];
    int status = wording_open(&x.w, r->wording, r->background);

    x.q.arg = &x;
    x.q.most = x.answer;
    status = status ? status : r->files ? add_rows(&x) : add_forms(&x);
    if (!status) {
        file_hash(r->wording, wording);
        file_hash(r->background, background);
        results_say(r->results, "decoding", "greedy");
        results_say(r->results, "prompts", r->files ? "rows" : r->wording ? r->wording : "palimpsa");
        results_count(r->results, "answer_tokens", x.answer);
        results_count(r->results, "seed", (int64_t)r->seed);
        text_add(&more, ",\n  \"seed\": %lld,\n  \"answer_tokens\": %lld", (long long)r->seed, (long long)x.answer);
        text_add(&more, ",\n  \"wording\": \"%s\",\n  \"background\": \"%s\"", wording, background);
        status = recall_run(r, &x.q, more.at);
    }
    text_free(&more);
    for (int64_t i = 0; i < x.rows.n; i++)
        json_free(x.rows.at[i]);
    free(x.rows.at);
    for (int i = 0; i < x.parts; i++)
        free(x.part[i]);
    free(x.part);
    recall_free(&x.q);
    wording_close(&x.w);
    return status ? -1 : 0;
}

const struct task task_niah = { "niah", "a needle in a haystack, by length and depth", .run = run, .generates = true };
