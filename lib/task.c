/* task.c - the list of tasks, and what their results look like. */
#define _POSIX_C_SOURCE 200809L
#include "task.h"
#include "sha256.h"
#include <dirent.h>
#include <math.h>

extern const struct task task_longbench, task_lambada, task_lambada_standard, task_piqa, task_hellaswag,
                         task_winogrande, task_arc_easy, task_arc_challenge, task_siqa, task_boolq, task_wikitext,
                         task_niah, task_babilong, task_mqar;
static const struct task *const tasks[] = {
    &task_lambada, &task_lambada_standard, &task_piqa, &task_hellaswag, &task_winogrande, &task_arc_easy,
    &task_arc_challenge, &task_siqa, &task_boolq, &task_wikitext, &task_longbench, &task_niah,
    &task_babilong, &task_mqar
};

const struct task *task_next(const struct task *t)
{
    size_t i = 0;

    while (t && i < LEN(tasks) && tasks[i] != t)
        i++;
    i += t != NULL;
    return i < LEN(tasks) ? tasks[i] : NULL;
}

const struct task *task_find(const char *name)
{
    const struct task *t = NULL;

    while ((t = task_next(t)) && strcmp(t->name, name))
        ;
    return t;
}

static void real(struct text *t, const char *name, double x)
{
    if (isfinite(x))
        text_add(t, ", \"%s\": %.10g", name, x);
    else
        text_add(t, ", \"%s\": null", name);
}

void result_add(struct results *r, const struct result *x)
{
    struct text *t = &r->list;

    text_add(t, "%s\n    {\"task\": \"%s\", \"metric\": \"%s\"", t->n ? "," : "", x->task, x->metric);
    if (x->part)
        text_add(t, ", \"part\": \"%s\"", x->part);
    if (x->length)
        text_add(t, ", \"length\": %lld", (long long)x->length);
    if (x->depth)
        text_add(t, ", \"depth\": %.6g", *x->depth);
    real(t, "value", x->value);
    if (!x->open)
        real(t, "percent", 100 * x->value);
    text_add(t, ", \"scale\": %s", x->open ? "null" : "\"0-1\"");
    real(t, "stderr", x->error);
    text_add(t, ", \"n\": %lld, \"truncated\": %lld, \"skipped\": %lld}", (long long)x->n, (long long)x->truncated,
             (long long)x->skipped);
}

static double plain_nan(double x)
{
    return isnan(x) ? (double)NAN : x;               /* printed without a sign */
}

void result_show(struct results *r, const struct result *x)
{
    if (!r->list.n)
        printf("task\tmetric\tvalue\tstderr\tn\ttruncated\tskipped\n");
    printf("%s%s%s", x->task, x->part ? " " : "", x->part ? x->part : "");
    if (x->length)
        printf(" %lld", (long long)x->length);
    if (x->depth)
        printf(" %.6g%%", *x->depth);
    printf("\t%s\t%.6g\t%.4g", x->metric, plain_nan(x->value), plain_nan(x->error));
    printf("\t%lld\t%lld\t%lld\n", (long long)x->n, (long long)x->truncated, (long long)x->skipped);
    result_add(r, x);
}

void results_say(struct results *r, const char *name, const char *value)
{
    text_add(&r->settings, "%s\n    \"%s\": ", r->settings.n ? "," : "", name);
    text_string(&r->settings, value, strlen(value));
}

void results_count(struct results *r, const char *name, int64_t value)
{
    text_add(&r->settings, "%s\n    \"%s\": %lld", r->settings.n ? "," : "", name, (long long)value);
}

int results_text(const struct results *r, struct text *out, const char *model)
{
    char hash[65];

    if (model && model_hash(hash, model))
        return -1;
    if (model) {
        text_add(out, "\"model\": ");
        text_string(out, model, strlen(model));
        text_add(out, ",\n  \"model_hash\": \"%s\"", hash);
    } else
        text_add(out, "\"model\": null,\n  \"model_hash\": null");
    text_add(out, ",\n  \"settings\": {%s\n  },\n  \"results\": [%s\n  ]", r->settings.at ? r->settings.at : "",
             r->list.at ? r->list.at : "");
    return 0;
}

int results_write(const struct results *r, const char *path, const char *model)
{
    struct text t = { 0 };
    int status;

    text_add(&t, "{\n  ");
    status = results_text(r, &t, model);
    text_add(&t, "\n}\n");
    status = status ? status : file_write(path, t.at, t.n);
    text_free(&t);
    return status;
}

void results_free(struct results *r)
{
    text_free(&r->settings);
    text_free(&r->list);
}

double error_of_mean(const double *x, int64_t n)
{
    double mean = 0, sum = 0;

    if (n < 2)
        return NAN;
    for (int64_t i = 0; i < n; i++)
        mean += x[i];
    mean /= (double)n;
    for (int64_t i = 0; i < n; i++)
        sum += (x[i] - mean) * (x[i] - mean);
    return sqrt(sum / (double)(n - 1) / (double)n);
}

static bool is_model_file(const char *name)
{
    size_t n = strlen(name);

    return !strcmp(name, "config.json") || !strcmp(name, "tokenizer.json") ||
           (!strncmp(name, "model", 5) && n > 12 && !strcmp(name + n - 12, ".safetensors")) ||
           (!strncmp(name, "pytorch_model", 13) && n > 4 && !strcmp(name + n - 4, ".bin"));
}

static int add_file(struct sha256 *s, const char *dir, const char *name)
{
    char path[4500], *room = mem_new(1 << 20, 1);
    FILE *f = str_format(path, sizeof path, "%s/%s", dir, name) ? fopen(path, "rb") : NULL;
    uint64_t total = 0;
    size_t n;
    int status = 0;

    sha256_add(s, name, strlen(name) + 1);
    while (f && (n = fread(room, 1, 1 << 20, f)) > 0) {
        sha256_add(s, room, n);
        total += n;
    }
    if (!f || ferror(f))
        status = fail("%s/%s: cannot be read", dir, name);
    sha256_add(s, &total, sizeof total);
    if (f)
        fclose(f);
    free(room);
    return status;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int wanted(const struct dirent *d)
{
    return is_model_file(d->d_name);
}

int model_hash(char out[65], const char *dir)
{
    struct dirent **file;
    struct sha256 s;
    int n = scandir(dir, &file, wanted, by_name), status = 0;

    if (n < 0)
        return fail("%s: cannot be read", dir);
    sha256_init(&s);
    for (int i = 0; i < n; i++) {
        status = status ? status : add_file(&s, dir, file[i]->d_name);
        free(file[i]);
    }
    free(file);
    sha256_end_hex(&s, out);
    return status;
}

int task_encode(struct task_run *r, const char *text, size_t n, struct bpe_ids *out)
{
    int32_t first = r->separator ? bpe_eot(r->m->bpe) : bpe_bos(r->m->bpe);

    if (first >= 0) {
        bpe_ids_reserve(out, 1);
        out->at[out->n++] = first;
    }
    return bpe_encode(r->m->encoder, out, text, n, 0) < 0 ? -1 : 0;
}

void task_progress(struct task_clock *c, const char *what, int64_t done, int64_t all)
{
    double now = time_now(), left;

    c->began = c->began > 0 ? c->began : now;
    if (now - c->shown < 1 || !done)
        return;
    c->shown = now;
    left = (now - c->began) / (double)done * (double)(all - done);
    say_over("%s: %lld of %lld, %.0f:%02.0f left", what, (long long)done, (long long)all, floor(left / 60),
             floor(fmod(left, 60)));
}
