/* score_file.c - rows of predictions into scores. */
#define _POSIX_C_SOURCE 200809L
#include "score_file.h"
#include "source.h"
#include <math.h>

const char *const score_bucket[SCORE_BUCKETS] = { "0-4k", "4-8k", "8k+" };

struct lines {
    const char    *path;
    struct source *source;
    char   *at;
    size_t  n, cap, from;
    int64_t number;
    bool    ended;
};

struct lines *lines_open(const char *path)
{
    struct source *s = source_open(path);
    struct lines *l;

    if (!s)
        return NULL;
    l = mem_new(1, sizeof *l);
    l->path = path;
    l->source = s;
    return l;
}

void lines_close(struct lines *l)
{
    source_close(l->source);
    free(l->at);
    free(l);
}

int64_t lines_number(const struct lines *l)
{
    return l->number;
}

static int more(struct lines *l)
{
    int64_t got;

    memmove(l->at, l->at + l->from, l->n -= l->from);
    l->from = 0;
    if (l->cap - l->n < 65536)
        l->at = mem_grow(l->at, l->cap = 2 * l->cap + 131072, 1);
    got = source_read(l->source, l->at + l->n, l->cap - l->n);
    if (got < 0)
        return -1;
    l->ended = got == 0;
    l->n += (size_t)got;
    return 0;
}

int lines_next(struct lines *l, const char **line, size_t *n)
{
    if (!l->at)
        l->at = mem_new(l->cap = 131072, 1);
    for (;;) {
        char *start = l->at + l->from, *end = memchr(start, '\n', l->n - l->from);
        size_t size = end ? (size_t)(end - start) : l->n - l->from;

        if (!end && !l->ended) {
            if (more(l))
                return -1;
            continue;
        }
        if (!end && !size)
            return 0;
        l->from += size + (end != NULL);
        l->number++;
        if (strspn(start, " \t\r") < size) {
            *line = start;
            *n = size;
            return 1;
        }
    }
}

struct json *lines_json(struct lines *l, const char *line, size_t n)
{
    struct json *j = json_parse(line, n, l->path);

    if (j && json_is_object(j))
        return j;
    fail("%s:%lld: expected a JSON object", l->path, (long long)l->number);
    json_free(j);
    return NULL;
}

/* A list of strings, pointing into the tree; a lone string is a list of one. NULL when it is neither. */
static const char **strings_of(const struct json *j, int *count)
{
    int64_t n = json_text(j) ? 1 : json_count(j);
    const char **at;

    if (n < 0 || json_is_object(j))
        return NULL;
    at = mem_new((size_t)n + 1, sizeof *at);
    *count = (int)n;
    if (json_text(j))
        at[0] = json_text(j);
    else
        for (struct json *i = json_first(j); i; i = json_next(i))
            if (!(at[*count - n--] = json_text(i))) {
                free(at);
                return NULL;
            }
    return at;
}

struct rows { struct json **at; int64_t n, cap; };

static int read_rows(struct rows *r, const char *path)
{
    struct lines *l = lines_open(path);
    const char *line;
    size_t n;
    int found = l ? 0 : -1;

    while (l && (found = lines_next(l, &line, &n)) > 0) {
        struct json *j = lines_json(l, line, n);
        if (!j) {
            found = -1;
            break;
        }
        if (r->n == r->cap)
            r->at = mem_grow(r->at, (size_t)(r->cap = 2 * r->cap + 64), sizeof *r->at);
        r->at[r->n++] = j;
    }
    if (l)
        lines_close(l);
    return found;
}

static int score_json(struct score_file *f, const struct json *j, const char **classes, int nclasses, const char *path,
                      enum code_ratio ratio, struct segmenter *s)
{
    struct score_row row = { .classes = classes, .nclasses = nclasses };
    const char **answer;
    int64_t length = -1;

    if (json_string(j, "pred", &row.prediction) <= 0)
        return fail("%s: row %lld has no pred", path, (long long)f->n + 1);
    answer = json_at(j, "answers") ? strings_of(json_at(j, "answers"), &row.answers) : NULL;
    if (!answer)
        return fail("%s: row %lld: answers is no list of strings", path, (long long)f->n + 1);
    if (json_int(j, "length", &length) < 0) {
        free(answer);
        return -1;
    }
    row.answer = answer;
    f->bucket[f->n] = length < 0 ? -1 : length < 4000 ? 0 : length < 8000 ? 1 : 2;
    f->row[f->n] = score_row(f->task, &row, ratio, s);
    free(answer);
    return f->row[f->n++] < 0 ? -1 : 0;
}

int score_file(struct score_file *f, const char *path, enum code_ratio ratio, struct segmenter *s)
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path, **classes = NULL;
    struct rows r = { 0 };
    int nclasses = 0, status;

    *f = (struct score_file){ .task = score_task(base) };
    if (!f->task)
        return fail("%s: no task of LongBench is named so", path);
    if (metric_is_chinese(f->task->metric) && !s)
        return 1;
    status = read_rows(&r, path);
    if (!status && !r.n)
        status = fail("%s: no predictions", path);
    if (!status && f->task->metric == CLASS) {           /* the last row's, for all, as the script does */
        const struct json *c = json_at(r.at[r.n - 1], "all_classes");
        if (!c || !(classes = strings_of(c, &nclasses)))
            status = fail("%s: %s needs all_classes, a list of strings", path, f->task->name);
    }
    f->row = mem_new((size_t)r.n + 1, sizeof *f->row);
    f->bucket = mem_new((size_t)r.n + 1, sizeof *f->bucket);
    for (int64_t i = 0; i < r.n && !status; i++)
        status = score_json(f, r.at[i], classes, nclasses, path, ratio, s);
    for (int64_t i = 0; i < r.n; i++)
        json_free(r.at[i]);
    free(r.at);
    free(classes);
    return status;
}

void score_file_close(struct score_file *f)
{
    free(f->row);
    free(f->bucket);
}

double score_file_mean(const struct score_file *f, int bucket, int64_t *n)
{
    double sum = 0;
    int64_t count = 0;

    for (int64_t i = 0; i < f->n; i++)
        if (bucket < 0 || f->bucket[i] == bucket) {
            sum += f->row[i];
            count++;
        }
    if (n)
        *n = count;
    return sum / (double)count;
}

double score_file_stderr(const struct score_file *f, int bucket)
{
    int64_t n;
    double mean = score_file_mean(f, bucket, &n), sum = 0;

    for (int64_t i = 0; i < f->n; i++)
        if (bucket < 0 || f->bucket[i] == bucket)
            sum += (f->row[i] - mean) * (f->row[i] - mean);
    return sqrt(sum / (double)(n - 1) / (double)n);
}
