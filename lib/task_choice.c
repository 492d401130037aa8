/* task_choice.c - multiple choice and LAMBADA.
 *
 *   acc        the choice with the greatest log p is the right one; the first of equals
 *   acc_norm   the same of log p / characters of the answer, acc_bytes / its bytes
 *   LAMBADA    acc: every token of the last word is the likeliest; perplexity = exp(-mean log p(word)) */
#define _POSIX_C_SOURCE 200809L
#include "task_choice.h"
#include "score_file.h"
#include <errno.h>
#include <math.h>
#include <unistd.h>

struct reader { const char *task; choice_read *read; bool norm; };

/* The file of labels beside data file `path`: X-labels.lst beside X.jsonl. */
static bool labels_beside(char *out, size_t size, const char *path)
{
    const char *dot = strstr(path, ".jsonl");

    return dot && str_format(out, size, "%.*s-labels.lst", (int)(dot - path), path) && !access(out, R_OK);
}

static int read_row(struct choices *c, const struct reader *how, struct lines *rows, const char *line, size_t n,
                    struct lines *labels, const char *path)
{
    char where[4200], label[64] = "";
    const char *text = "";
    struct json *j = lines_json(rows, line, n);
    size_t size = 0;
    int found = 0, status = -1;

    if (!j)
        return -1;
    snprintf(where, sizeof where, "%s:%lld", path, (long long)lines_number(rows));
    if (labels && (found = lines_next(labels, &text, &size)) > 0)
        snprintf(label, sizeof label, "%.*s", (int)size, text);
    label[strcspn(label, " \r\n")] = 0;
    if (labels && found <= 0)
        fail("%s: the file of labels has fewer lines than the data", where);
    else
        status = how->read(c, j, labels ? label : NULL, where);
    json_free(j);
    return status;
}

static int read_file(struct task_run *r, struct choices *c, const struct reader *how, const char *path)
{
    char beside[4200];
    const char *from = r->labels ? r->labels : labels_beside(beside, sizeof beside, path) ? beside : NULL, *line;
    struct lines *rows = lines_open(path), *labels = rows && from ? lines_open(from) : NULL;
    int found = rows && (labels || !from) ? 1 : -1;
    size_t n;

    while (found > 0 && !(r->limit && c->n >= r->limit))
        if ((found = lines_next(rows, &line, &n)) > 0 && read_row(c, how, rows, line, n, labels, path))
            found = -1;
    if (rows)
        lines_close(rows);
    if (labels)
        lines_close(labels);
    return found < 0 ? -1 : 0;
}

/* A question with a request that was cut is left out when asked; returns how many were cut. */
static int64_t leave_out(struct task_run *r, struct choices *c)
{
    int64_t cut = 0;

    for (int64_t i = 0; i < c->n; i++) {
        bool any = false;
        for (int64_t k = 0; k < c->at[i].n; k++)
            any |= c->asks.at[c->at[i].first + k].cut;
        cut += any;
        c->at[i].left_out = any && r->skip_long;
    }
    return cut;
}

int64_t choice_best(const struct choices *c, const struct question *q, enum norm norm)
{
    int64_t best = 0;
    double most = 0;

    for (int64_t k = 0; k < q->n; k++) {
        const struct length *l = &c->length[q->first + k];
        int64_t by = norm == PLAIN ? 1 : norm == CHARS ? l->chars : l->bytes;
        double x = c->asks.at[q->first + k].log_prob / (double)by;
        if (!k || x > most)
            best = k, most = x;
    }
    return best;
}

static void report(struct task_run *r, const struct choices *c, int64_t cut)
{
    static const char *const metric[] = { "acc", "acc_norm", "acc_bytes" };
    double *right = mem_new((size_t)c->n + 1, sizeof *right);

    for (enum norm m = PLAIN; m <= (c->norm ? BYTES : PLAIN); m++) {
        struct result x = { .task = r->task->name, .metric = metric[m] };

        for (int64_t i = 0; i < c->n; i++)
            if (!c->at[i].left_out)
                x.value += right[x.n++] = choice_best(c, &c->at[i], m) == c->at[i].gold;
        x.value /= (double)x.n;
        x.error = error_of_mean(right, x.n);
        x.skipped = r->skip_long ? cut : 0;
        x.truncated = r->skip_long ? 0 : cut;
        result_show(r->results, &x);
    }
    free(right);
}

static int write_log(struct task_run *r, const struct choices *c)
{
    FILE *f = r->log ? fopen(r->log, "w") : NULL;

    if (!r->log)
        return 0;
    for (int64_t i = 0; f && i < c->n; i++)
        for (int64_t k = 0; k < c->at[i].n; k++)
            ask_log(f, r->task->name, i, k, c->at[i].gold, &c->asks.at[c->at[i].first + k]);
    return f && !ferror(f) && !fclose(f) ? 0 : fail("%s: %s", r->log, strerror(errno));
}

static void free_choices(struct choices *c)
{
    asks_free(&c->asks);
    free(c->at);
    free(c->length);
}

/* What was read, from requests to results; status: of reading. Frees c. */
static int answer(struct task_run *r, struct choices *c, int status, bool greedy,
                  void (*tell)(struct task_run *r, const struct choices *c, int64_t cut))
{
    if (!status && !c->n)
        status = fail("%s: the data has no sample", r->task->name);
    if (!status && !(status = asks_encode(r, &c->asks))) {
        int64_t cut = leave_out(r, c);
        status = asks_answer(r, &c->asks, greedy);
        if (!status) {
            tell(r, c, cut);
            status = write_log(r, c);
        }
    }
    free_choices(c);
    return status;
}

static int run_choice(struct task_run *r)
{
    static const struct reader readers[] = {
        { "piqa", read_piqa, true }, { "hellaswag", read_hellaswag, true }, { "winogrande", read_winogrande, false },
        { "arc_easy", read_arc, true }, { "arc_challenge", read_arc, true }, { "siqa", read_siqa, true },
        { "boolq", read_boolq, false }
    };
    const struct reader *how = readers;
    struct choices c = { 0 };
    int status = 0;

    while (strcmp(how->task, r->task->name))
        how++;
    results_count(r->results, "shots", 0);
    results_say(r->results, "normalization", "acc_norm: characters, acc_bytes: bytes");
    for (int i = 0; i < r->files && !status; i++)
        status = read_file(r, &c, how, r->data[i]);
    c.norm = how->norm;
    return answer(r, &c, status, false, report);
}

/* The last word is what follows the last space; it keeps that space. */
static void add_lambada(struct choices *c, const char *text)
{
    const char *space = strrchr(text, ' ');
    struct text context = { 0 }, word = { 0 };

    text_add(&context, "%.*s", (int)(space ? space - text : 0), text);
    text_add(&word, " %s", space ? space + 1 : text);
    question_begin(c, 0);
    question_add(c, context.at, word.at, word.at + 1);
    text_free(&context);
    text_free(&word);
}

static int read_lambada(struct task_run *r, struct choices *c, const char *path)
{
    struct lines *rows = lines_open(path);
    bool plain = !strstr(path, ".jsonl");
    const char *line, *text;
    size_t n;
    int found = rows ? 1 : -1;

    while (found > 0 && !(r->limit && c->n >= r->limit)) {
        struct json *j = NULL;
        char *whole = NULL;

        if ((found = lines_next(rows, &line, &n)) <= 0)
            break;
        if (plain)
            memcpy(whole = mem_new(n + 1, 1), line, n);
        else if (!(j = lines_json(rows, line, n)) || json_string(j, "text", &text) <= 0)
            found = fail("%s:%lld: no text", path, (long long)lines_number(rows));
        if (found > 0)
            add_lambada(c, plain ? whole : text);
        json_free(j);
        free(whole);
    }
    if (rows)
        lines_close(rows);
    return found < 0 ? -1 : 0;
}

static void report_lambada(struct task_run *r, const struct choices *c, int64_t cut)
{
    double *right = mem_new((size_t)c->n + 1, sizeof *right), *log_prob = mem_new((size_t)c->n + 1, sizeof *log_prob);
    struct result acc = { .task = r->task->name, .metric = "acc" }, ppl = acc;
    double sum = 0;

    for (int64_t i = 0; i < c->n; i++)
        if (!c->at[i].left_out) {
            sum += log_prob[acc.n] = c->asks.at[i].log_prob;
            acc.value += right[acc.n++] = c->asks.at[i].greedy;
        }
    acc.value /= (double)acc.n;
    acc.error = error_of_mean(right, acc.n);
    acc.skipped = r->skip_long ? cut : 0;
    acc.truncated = r->skip_long ? 0 : cut;
    ppl = acc;
    ppl.metric = "perplexity";
    ppl.open = true;
    ppl.value = exp(-sum / (double)acc.n);
    ppl.error = ppl.value * error_of_mean(log_prob, acc.n);       /* of exp of a mean, to first order */
    result_show(r->results, &acc);
    result_show(r->results, &ppl);
    free(right);
    free(log_prob);
}

static int run_lambada(struct task_run *r)
{
    struct choices c = { 0 };
    int status = 0;

    results_count(r->results, "shots", 0);
    for (int i = 0; i < r->files && !status; i++)
        status = read_lambada(r, &c, r->data[i]);
    return answer(r, &c, status, true, report_lambada);
}

const struct task task_lambada = { "lambada", "last words, OpenAI's version of the data", .run = run_lambada };
const struct task task_lambada_standard = { "lambada_standard", "last words", .run = run_lambada };
const struct task task_piqa = { "piqa", "which way to do a thing", .run = run_choice };
const struct task task_hellaswag = { "hellaswag", "which ending", .run = run_choice };
const struct task task_winogrande = { "winogrande", "whom a pronoun means", .run = run_choice };
const struct task task_arc_easy = { "arc_easy", "science questions", .run = run_choice };
const struct task task_arc_challenge = { "arc_challenge", "harder ones", .run = run_choice };
const struct task task_siqa = { "siqa", "how people act and feel", .run = run_choice };
const struct task task_boolq = { "boolq", "yes or no about a passage", .run = run_choice };
