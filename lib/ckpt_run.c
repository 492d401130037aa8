/* ckpt_run.c - the directory of a run: its newest whole step, what may go, who writes. */
#define _DEFAULT_SOURCE
#include "ckpt_parts.h"
#include "json.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

static int read_number(const struct json *j, const char *key, const char *path, uint64_t *out)
{
    const char *s = json_text(json_at(j, key));
    char *end = NULL;

    if (s && *s) {
        errno = 0;
        *out = strtoull(s, &end, 10);
    }
    if (!end || *end || errno)
        return fail("%s: %s: expected a number in quotes", path, key);
    return 0;
}

int ckpt_run_read(const char *dir, struct run *r)
{
    char path[4096], *text;
    struct text options = { 0 };
    struct json *j = NULL;
    const char *data = "";
    uint64_t row = 0;
    int64_t format = 0;
    size_t n;
    int status = -1;

    memset(r, 0, sizeof *r);
    if (!str_format(path, sizeof path, "%s/run.json", dir))
        return fail("%s: path is too long", dir);
    text = file_read(path, &n);
    if (text)
        j = json_parse(text, n, path);
    if (!j)
        ;
    else if (!json_is_object(j) || json_int(j, "format", &format) != 1 || format != 1)
        fail("%s: format: expected 1, found %lld", path, (long long)format);
    else if (json_int(j, "step", &r->step) != 1 || r->step < 0)
        fail("%s: step: expected a count", path);
    else if (read_number(j, "seed", path, &r->seed) || read_number(j, "row", path, &row))
        ;
    else if (json_string(j, "data", &data) < 0 || strlen(data) >= sizeof r->data)
        fail("%s: data: expected a hash", path);
    else {
        r->row = (int64_t)row;
        memcpy(r->data, data, strlen(data) + 1);
        if (json_at(j, "options"))
            text_json(&options, json_at(j, "options"));
        else
            text_add(&options, "{}");
        r->options = options.at;
        status = 0;
    }
    json_free(j);
    free(text);
    return status;
}

/* The step in "step-000120"; -1 for any other name, with .tmp and .old told apart by *left. */
static int64_t step_of(const char *name, bool *left)
{
    char *end;
    long long step;

    *left = false;
    if (strncmp(name, "step-", 5) || name[5] < '0' || name[5] > '9')
        return -1;
    step = strtoll(name + 5, &end, 10);
    *left = !strcmp(end, ".tmp") || !strcmp(end, ".old");
    return *end || step < 0 ? -1 : step;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x < y) - (x > y);
}

static bool step_path(const char *run, int64_t step, const char *suffix, char *out, size_t size)
{
    return str_format(out, size, "%s/step-%06lld%s", run, (long long)step, suffix);
}

/* Steps in RUN, newest first; *left counts what interrupted saves left. NULL when there are none. */
static int64_t *list_steps(const char *run, int *n, int *left)
{
    DIR *d = opendir(run);
    int64_t *step = NULL;

    *n = *left = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        bool rest;
        int64_t s = step_of(e->d_name, &rest);
        *left += rest;
        if (s < 0)
            continue;
        step = mem_grow(step, (size_t)*n + 1, sizeof *step);
        step[(*n)++] = s;
    }
    if (d)
        closedir(d);
    if (*n)
        qsort(step, (size_t)*n, sizeof *step, newest_first);
    return step;
}

static bool is_whole_file(const char *dir, const char *name)
{
    char path[4096];
    struct st *s;

    if (!str_format(path, sizeof path, "%s/%s", dir, name))
        return false;
    s = st_open(path);
    st_close(s);
    return s != NULL;
}

/* Headers, sizes and run.json; what is wrong is said. */
static bool is_whole(const char *dir)
{
    char path[4096];
    struct run r;
    bool whole;

    if (!str_format(path, sizeof path, "%s/config.json", dir))
        return false;
    if (access(path, R_OK)) {
        fail("%s: %s", path, strerror(errno));
        return false;
    }
    whole = !ckpt_run_read(dir, &r) && is_whole_file(dir, "model.safetensors") &&
            is_whole_file(dir, "optim.safetensors");
    free(r.options);
    return whole;
}

int ckpt_latest(const char *run, char *out, size_t size)
{
    int n, left;
    int64_t *step = list_steps(run, &n, &left);
    int status = 0;

    out[0] = 0;
    if (left)
        warn("%s: an interrupted save left a directory behind; it is ignored", run);
    for (int i = 0; i < n; i++) {
        if (!step_path(run, step[i], "", out, size)) {
            status = fail("%s: path is too long", run);
            break;
        }
        if (is_whole(out))
            break;
        warn("%s: not a complete checkpoint; an older one is looked for", out);
        out[0] = 0;
    }
    free(step);
    return status;
}

/* The name goes first, in one rename: a kill in between leaves nothing that looks like a step. */
static void drop(const char *run, int64_t step)
{
    char dir[4096], old[4096];

    if (!step_path(run, step, "", dir, sizeof dir) ||
        !step_path(run, step, ".old", old, sizeof old))
        return;
    if (rename(dir, old))
        warn("%s: %s", dir, strerror(errno));
    else
        ckpt_remove(old);
}

static void drop_rests(const char *run)
{
    DIR *d = opendir(run);

    for (struct dirent *e; d && (e = readdir(d));) {
        char dir[4096];
        bool rest;
        step_of(e->d_name, &rest);
        if (rest && str_format(dir, sizeof dir, "%s/%s", run, e->d_name))
            ckpt_remove(dir);
    }
    if (d)
        closedir(d);
}

/* Only whole steps count towards `last`; a torn one newer than all of them is left to be looked at. */
void ckpt_prune(const char *run, int last, int64_t every)
{
    int n, left, kept = 0;
    int64_t *step;

    if (last < 1)
        return;
    drop_rests(run);
    step = list_steps(run, &n, &left);
    for (int i = 0; i < n; i++) {
        char dir[4096];
        if (kept < last) {
            kept += step_path(run, step[i], "", dir, sizeof dir) && is_whole(dir);
            continue;
        }
        if (every <= 0 || step[i] % every)
            drop(run, step[i]);
    }
    free(step);
}

int ckpt_lock(const char *run)
{
    char path[4096], pid[32] = "";
    ssize_t n;
    int fd;

    if (!str_format(path, sizeof path, "%s/lock", run))
        return fail("%s: path is too long", run);
    fd = open(path, O_RDWR | O_CREAT, 0666);
    if (fd < 0)
        return fail("%s: %s", path, strerror(errno));
    if (flock(fd, LOCK_EX | LOCK_NB)) {
        n = errno == EWOULDBLOCK ? read(fd, pid, sizeof pid - 1) : 0;
        pid[strcspn(pid, "\n")] = 0;
        if (n > 0)
            fail("%s: process %s is writing this run", run, pid);
        else
            fail("%s: %s", path, errno == EWOULDBLOCK ? "another process is writing this run" :
                 strerror(errno));
        close(fd);
        return -1;
    }
    snprintf(pid, sizeof pid, "%lld\n", (long long)getpid());
    if (ftruncate(fd, 0) || pwrite(fd, pid, strlen(pid), 0) < 0)
        warn("%s: %s", path, strerror(errno));
    return fd;
}
