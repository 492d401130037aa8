/* task_kept.c - a file of lines that grows, and what made them. */
#define _POSIX_C_SOURCE 200809L
#include "task_kept.h"
#include "score_file.h"
#include <errno.h>
#include <unistd.h>

static int path_of(char *out, size_t size, const struct task_run *r, const char *name, const char *end)
{
    return str_format(out, size, "%s/%s%s", r->predictions, name, end) ? 0
                                                                      : fail("%s: path too long", r->predictions);
}

int kept_claim(const struct task_run *r, const char *file, const char *more)
{
    struct text now = { 0 };
    char path[4200], hash[65], *was = NULL;
    size_t n = 0;
    int status = 0;

    if (model_hash(hash, r->m->dir))
        return -1;
    text_add(&now, "{\n  \"model_hash\": \"%s\",\n  \"context\": %lld,\n  \"separator\": %s,\n  \"chat\": ", hash,
             (long long)r->context, r->separator ? "true" : "false");
    text_string(&now, r->chat ? r->chat : "", r->chat ? strlen(r->chat) : 0);
    text_add(&now, "%s\n}\n", more);
    if (dir_make(r->predictions))
        status = -1;
    else if (path_of(path, sizeof path, r, file, ""))
        status = -1;
    else if (access(path, F_OK))
        status = file_write(path, now.at, now.n);
    else if (!(was = file_read(path, &n)) || n != now.n || memcmp(was, now.at, n))
        status = fail("%s: the predictions here are of another model or other settings", r->predictions);
    free(was);
    text_free(&now);
    return status;
}

FILE *kept_open(const struct task_run *r, const char *name, int64_t *done)
{
    char path[4200];
    FILE *f = path_of(path, sizeof path, r, name, ".jsonl") ? NULL : fopen(path, "a+b");
    int64_t whole = 0, at = 0;
    int c;

    *done = 0;
    if (!f) {
        fail("%s/%s.jsonl: %s", r->predictions, name, strerror(errno));
        return NULL;
    }
    rewind(f);
    while ((c = getc(f)) != EOF) {
        at++;
        if (c == '\n') {
            whole = at;
            ++*done;
        }
    }
    if (ferror(f) || (at > whole && ftruncate(fileno(f), (off_t)whole))) {
        fail("%s: %s", path, strerror(errno));
        fclose(f);
        return NULL;
    }
    return f;
}

int kept_each(const struct task_run *r, const char *name, int (*got)(void *arg, const struct json *row), void *arg)
{
    char path[4200];
    struct lines *l = path_of(path, sizeof path, r, name, ".jsonl") ? NULL : lines_open(path);
    const char *line;
    size_t n;
    int found = l ? 1 : -1;

    while (found > 0 && (found = lines_next(l, &line, &n)) > 0) {
        struct json *j = lines_json(l, line, n);
        found = j && !got(arg, j) ? 1 : -1;
        json_free(j);
    }
    if (l)
        lines_close(l);
    return found < 0 ? -1 : 0;
}

int kept_add(FILE *f, const struct text *line)
{
    return fwrite(line->at, 1, line->n, f) == line->n && !fflush(f) ? 0 : fail("predictions: %s", strerror(errno));
}
