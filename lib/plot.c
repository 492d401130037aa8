/* plot.c - reads curves out of metrics.jsonl and smooths them.
 *
 *   smooth_t = mean of y over [t-h, t+h],   h = min(span/2, points before t, points after t)
 *
 * The window is symmetric to the very ends, so a falling curve is not shifted to the right. */
#define _POSIX_C_SOURCE 200809L
#include "plot_parts.h"
#include <errno.h>
#include <math.h>
#include <sys/stat.h>

struct points { struct point *at; int64_t n, cap; };

static struct point *points_add(struct points *p)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 256;
        p->at  = mem_grow(p->at, (size_t)p->cap, sizeof *p->at);
    }
    return &p->at[p->n++];
}

/* A resumed run writes some steps again: what it wrote before counts no more. */
static void points_rewind(struct points *p, double step)
{
    while (p->n && p->at[p->n - 1].step >= step)
        p->n--;
}

struct reading { struct points train, val; const char *x, *y; };

/* One line of metrics.jsonl. The two kinds of lines are told apart by what they hold. */
static int read_line(void *arg, const struct json *j, const char *name)
{
    struct reading *r = arg;
    double step, at = NAN, value;
    int found = json_double(j, "step", &step), is_val = 0;

    if (found < 0)
        return -1;
    if (!found)
        return fail("%s: expected a step in every line", name);
    if ((found = json_double(j, r->y, &value)) < 0)
        return -1;
    if (!found && !strcmp(r->y, "loss"))
        found = is_val = json_double(j, "val_loss", &value);
    if (found < 0 || json_double(j, r->x, &at) < 0)
        return -1;
    if (!found)
        return 0;
    if (isnan(at) && !is_val)
        return fail("%s: expected %s beside %s", name, r->x, r->y);
    points_rewind(is_val ? &r->val : &r->train, step);
    *points_add(is_val ? &r->val : &r->train) = (struct point){ .step = step, .x = at, .y = value, .smooth = value };
    return 0;
}

static int each_line(const char *text, const char *path, record_fn *line, void *arg)
{
    int64_t number = 1;
    int status = 0;

    for (const char *p = text, *end; *p && !status; p = end + 1, number++) {
        char name[4352];
        struct json *j;

        end = strchr(p, '\n');
        if (!end) {
            warn("%s: the last line is not finished and was left out", path);
            break;
        }
        if (end == p)
            continue;
        if (!str_format(name, sizeof name, "%s:%lld", path, (long long)number))
            return fail("%s: this path is too long", path);
        j = json_parse(p, (size_t)(end - p), name);
        status = j ? line(arg, j, name) : -1;
        json_free(j);
    }
    return status;
}

int record_read(const char *path, char file[4096], record_fn *line, void *arg)
{
    struct stat st;
    size_t n;
    char *text;
    int status = -1;

    if (stat(path, &st))
        return fail("%s: %s", path, strerror(errno));
    if (!str_format(file, 4096, "%s%s", path, S_ISDIR(st.st_mode) ? "/metrics.jsonl" : ""))
        return fail("%s: this path is too long", path);
    text = file_read(file, &n);
    if (text && !memchr(text, 0, n))
        status = each_line(text, file, line, arg);
    else if (text)
        fail("%s: expected text, found a NUL byte", file);
    free(text);
    return status;
}

/* Validation lines know their step only: place them between the training lines around them. */
static void place(struct curve *c)
{
    for (int64_t i = 0, k = 0; i < c->nval; i++) {
        struct point *v = &c->val[i];
        const struct point *t = c->train;

        if (!isnan(v->x))
            continue;
        while (k < c->ntrain && t[k].step < v->step)
            k++;
        if (k < c->ntrain && (k == 0 || t[k].step <= v->step))
            v->x = t[k].x;
        else if (k == c->ntrain)
            v->x = t[k - 1].x;
        else
            v->x = t[k - 1].x + (t[k].x - t[k - 1].x) * (v->step - t[k - 1].step) / (t[k].step - t[k - 1].step);
    }
}

/* "runs/a/metrics.jsonl" and "runs/a/" are both called a. */
static void name_after(struct curve *c, const char *path)
{
    size_t n = strlen(path);
    const char *end = path + n, *begin;

    if (n > 14 && !strcmp(path + n - 14, "/metrics.jsonl"))
        end -= 14;
    while (end > path + 1 && end[-1] == '/')
        end--;
    for (begin = end; begin > path && begin[-1] != '/';)
        begin--;
    str_format(c->label, sizeof c->label, "%.*s", (int)(end - begin > 120 ? 120 : end - begin), begin);
}

int curve_read(struct curve *c, const char *path, const char *x, const char *y)
{
    struct reading r = { .x = x, .y = y };
    char file[4096];
    int status;

    *c = (struct curve){ 0 };
    status = record_read(path, file, read_line, &r);
    if (!status && !r.train.n)
        status = fail("%s: expected lines with %s, found none", file, y);
    if (status) {
        free(r.train.at);
        free(r.val.at);
        return -1;
    }
    *c = (struct curve){ .train = r.train.at, .ntrain = r.train.n, .val = r.val.at, .nval = r.val.n };
    name_after(c, path);
    place(c);
    return 0;
}

void curve_smooth(struct curve *c, int64_t span)
{
    double *sum = mem_new((size_t)c->ntrain + 1, sizeof *sum);
    int64_t *finite = mem_new((size_t)c->ntrain + 1, sizeof *finite);     /* a step with NaN has no say */

    for (int64_t i = 0; i < c->ntrain; i++) {
        bool ok = isfinite(c->train[i].y);

        sum[i + 1]    = sum[i] + (ok ? c->train[i].y : 0);
        finite[i + 1] = finite[i] + ok;
    }
    for (int64_t i = 0; i < c->ntrain; i++) {
        int64_t h = span / 2, end = c->ntrain - 1 - i, n;

        h = h < i ? h : i;
        h = h < end ? h : end;
        n = finite[i + h + 1] - finite[i - h];
        c->train[i].smooth = n && isfinite(c->train[i].y) ? (sum[i + h + 1] - sum[i - h]) / (double)n
                                                          : c->train[i].y;
    }
    free(sum);
    free(finite);
}

void curve_close(struct curve *c)
{
    free(c->train);
    free(c->val);
    *c = (struct curve){ 0 };
}
