/* convert.c - from options to a published directory: check, measure, choose, write, compare, rename. */
#define _POSIX_C_SOURCE 200809L
#include "convert_parts.h"
#include "json.h"
#include <errno.h>
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

struct convert_options convert_defaults(void)
{
    return (struct convert_options){ .form = "palimpsa", .score = "window", .init = "near", .eps = 1e-3, .gain = 0.1,
                                     .seed = 1, .tokens = 4096, .context = 1024, .device = "auto" };
}

const char *convert_action_name(enum convert_action a)
{
    static const char *const name[] = { "copied", "swapped", "renewed", "kept", "dropped" };

    return name[a];
}

/* Trailing slashes would put the directory in hand inside the one to come. */
static int name_aside(struct convert *c)
{
    const char *to = c->o->to;
    size_t n = strlen(to);
    struct stat st;

    while (n > 1 && to[n - 1] == '/')
        n--;
    if (!lstat(to, &st))
        return fail("%s: exists; a conversion replaces nothing", to);
    if (!n || !str_format(c->aside, sizeof c->aside, "%.*s.tmp", (int)n, to))
        return fail("%s: path is too long or empty", to);
    return 0;
}

/* The source, every tensor of it checked by name and shape. */
static int open_source(struct convert *c)
{
    struct model_use use = { 0 };

    if (ckpt_config(c->o->from, &c->src) || model_declare(&c->from, NULL, &c->src, &use))
        return -1;
    c->st = ckpt_weights(c->o->from);
    return c->st ? ckpt_check(c->o->from, &c->from, c->st) : -1;
}

static void put_real(struct text *t, const char *key, double x)
{
    if (isfinite(x))
        text_add(t, ", \"%s\": %.9g", key, x);
}

static void put_word(struct text *t, const char *key, const char *s)
{
    text_add(t, ",\n  \"%s\": ", key);
    text_string(t, s, strlen(s));
}

static int write_report(const struct convert *c)
{
    const struct convert_options *o = c->o;
    const struct convert_report *r = c->report;
    struct text t = { 0 };
    char path[4200];
    int status;

    text_add(&t, "{\n  \"format\": 1");
    put_word(&t, "form", o->form);
    put_word(&t, "score", o->score);
    put_word(&t, "init", o->init);
    text_add(&t, ",\n  \"eps\": %.9g,\n  \"gain\": %.9g", o->eps, o->gain);
    text_add(&t, ",\n  \"seed\": %llu,\n  \"tokens\": %lld,\n  \"predicted\": %lld",
             (unsigned long long)o->seed, (long long)r->tokens, (long long)r->predicted);
    if (r->compared)
        text_add(&t, ",\n  \"loss_before\": %.9g,\n  \"loss_after\": %.9g,\n  \"kl\": %.9g,\n  \"equal\": %s",
                 r->before, r->after, r->kl, r->equal ? "true" : "false");
    text_add(&t, ",\n  \"layers\": [");
    for (int i = 0; i < r->layers; i++) {
        const struct convert_layer *l = &r->layer[i];
        text_add(&t, "%s\n    {\"layer\": %d, \"action\": \"%s\"", i ? "," : "", i, convert_action_name(l->action));
        put_real(&t, "score", l->score);
        put_real(&t, "window_low", l->low);
        put_real(&t, "window_median", l->median);
        put_real(&t, "window_high", l->high);
        text_add(&t, "}");
    }
    text_add(&t, "\n  ]\n}\n");
    snprintf(path, sizeof path, "%s/convert.json", c->aside);
    status = file_write(path, t.at, t.n);
    text_free(&t);
    return status;
}

static int publish(const struct convert *c)
{
    struct stat st;

    if (!lstat(c->o->to, &st))
        return fail("%s: appeared meanwhile; a conversion replaces nothing", c->o->to);
    if (rename(c->aside, c->o->to))
        return fail("%s: %s", c->o->to, strerror(errno));
    return file_sync_parent(c->o->to);
}

static int convert(struct convert *c)
{
    const struct convert_options *o = c->o;
    struct model_use use = { 0 };

    if (name_aside(c) || open_source(c) || convert_target(c))
        return -1;
    if (o->calibrate || o->check) {
        if (calibration_open(&c->data, o, &c->src))
            return -1;
        c->have_data = true;
        if (convert_measure(c))
            return -1;
    }
    convert_choose(c);
    if (model_declare(&c->into, NULL, &c->dst, &use) || ckpt_remove(c->aside))
        return -1;
    if (mkdir(c->aside, 0777))
        return fail("%s: %s", c->aside, strerror(errno));
    if (convert_write(c) || (c->have_data && convert_compare(c)) || write_report(c) || publish(c)) {
        ckpt_remove(c->aside);
        return -1;
    }
    return 0;
}

int convert_run(const struct convert_options *o, struct convert_report *r)
{
    struct convert c = { .o = o, .report = r };
    int status;

    *r = (struct convert_report){ 0 };
    status = convert(&c);
    if (c.have_data)
        calibration_close(&c.data);
    if (c.from.layer)
        model_close(&c.from);
    if (c.into.layer)
        model_close(&c.into);
    st_close(c.st);
    free(c.decay);
    free(c.evidence);
    free(c.logits);
    return status;
}
