/* metrics.c - append a line, flush it, tell the person. */
#define _POSIX_C_SOURCE 200809L
#include "metrics.h"
#include "json.h"
#include <errno.h>
#include <math.h>
#include <unistd.h>

/* The lines of an earlier invocation up to `step`, published whole. */
static int cut(const char *path, int64_t step)
{
    struct text kept = { 0 };
    size_t n;
    char *old;
    int status;

    if (access(path, F_OK))
        return 0;
    old = file_read(path, &n);
    if (!old)
        return -1;
    for (char *at = old, *end; at < old + n; at = end + 1) {
        struct json *j;
        int64_t s;
        end = memchr(at, '\n', (size_t)(old + n - at));
        if (!end)
            break;                                         /* a torn last line is dropped */
        j = json_parse(at, (size_t)(end - at), path);
        if (j && json_int(j, "step", &s) == 1 && s <= step)
            text_add(&kept, "%.*s\n", (int)(end - at), at);
        json_free(j);
    }
    status = file_write(path, kept.at ? kept.at : "", kept.n);
    text_free(&kept);
    free(old);
    return status;
}

int metrics_open(struct metrics *m, const char *path, int64_t step, int64_t steps)
{
    *m = (struct metrics){ .steps = steps, .first = step, .start = time_now(), .terminal = isatty(STDERR_FILENO) };
    if (!str_format(m->path, sizeof m->path, "%s", path))
        return fail("%s: path too long", path);
    if (cut(path, step))
        return -1;
    m->file = fopen(path, "a");
    if (!m->file)
        return fail("%s: %s", path, strerror(errno));
    return 0;
}

/* JSON has no NaN: a loss that is not finite is written as null. */
static void number(struct text *t, const char *key, double x, int digits)
{
    if (isfinite(x))
        text_add(t, ", \"%s\": %.*g", key, digits, x);
    else
        text_add(t, ", \"%s\": null", key);
}

static int put_line(struct metrics *m, struct text *t)
{
    int status = 0;

    text_add(t, "}\n");
    if (fwrite(t->at, 1, t->n, m->file) != t->n || fflush(m->file))
        status = fail("%s: %s", m->path, strerror(errno));
    text_free(t);
    return status;
}

int metrics_put(struct metrics *m, const char *object, size_t n)
{
    struct text t = { 0 };

    REQUIRE(n > 1 && object[n - 1] == '}');
    text_add(&t, "%.*s", (int)n - 1, object);
    return put_line(m, &t);
}

void metrics_duration(char out[32], double seconds)
{
    int64_t s = isfinite(seconds) && seconds > 0 ? (int64_t)(seconds + 0.5) : 0;

    if (s >= 3600)
        snprintf(out, 32, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    else
        snprintf(out, 32, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
}

static void progress(struct metrics *m, const struct metrics_step *s)
{
    double passed = time_now() - m->start, done = (double)(s->step - m->first);
    char eta[32], line[200];

    metrics_duration(eta, done > 0 ? passed / done * (double)(m->steps - s->step) : 0);
    snprintf(line, sizeof line, "step %lld/%lld  loss %.4f  lr %.2e  norm %.2f  %.0f tokens/s  ETA %s",
             (long long)s->step, (long long)m->steps, s->loss, s->lr, s->grad_norm, s->tokens_per_second, eta);
    if (m->terminal)
        say_over("%s", line);
    else
        say("%s", line);
    m->shown = time_now();
}

void metrics_show(struct metrics *m, const struct metrics_step *s)
{
    if (m->terminal && time_now() - m->shown > 0.5)
        progress(m, s);
}

int metrics_log(struct metrics *m, const struct metrics_step *s)
{
    struct text t = { 0 };

    text_add(&t, "{\"step\": %lld", (long long)s->step);
    number(&t, "loss", s->loss, 9);
    number(&t, "lr", s->lr, 9);
    number(&t, "grad_norm", s->grad_norm, 6);
    text_add(&t, ", \"tokens\": %lld", (long long)s->tokens);
    number(&t, "epoch", s->epoch, 6);
    if (s->at[0]) {
        text_add(&t, ", \"at\": ");
        text_string(&t, s->at, strlen(s->at));
    }
    number(&t, "tokens_per_second", s->tokens_per_second, 6);
    if (s->mfu > 0)
        number(&t, "mfu", s->mfu, 4);
    number(&t, "seconds", s->seconds, 6);
    progress(m, s);
    return put_line(m, &t);
}

int metrics_val(struct metrics *m, int64_t step, double loss)
{
    struct text t = { 0 };

    text_add(&t, "{\"step\": %lld", (long long)step);
    number(&t, "val_loss", loss, 9);
    say("step %lld  validation loss %.4f (perplexity %.2f)", (long long)step, loss, exp(loss));
    return put_line(m, &t);
}

void metrics_close(struct metrics *m)
{
    if (m->file)
        fclose(m->file);
    m->file = NULL;
}
