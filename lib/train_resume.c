/* train_resume.c - what a run remembers in run.json, how it is compared on resuming, and saving. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "train_parts.h"
#include <math.h>
#include <unistd.h>

/* Settings that decide which numbers come out. `fixed` ones must be equal on resuming; of the others
 * old and new value are shown. */
struct setting { const char *name; bool fixed; double number; const char *text; };
enum { SETTINGS = 25 };

static void settings_of(const struct train_options *o, struct setting s[SETTINGS])
{
    const struct setting all[SETTINGS] = {
        { "batch_tokens", true, (double)o->batch_tokens, NULL }, { "context", true, (double)o->context, NULL },
        { "shuffle", true, o->shuffle, NULL }, { "align", true, o->align, NULL }, { "join", true, o->join, NULL },
        { "dtype", true, 0, o->dtype }, { "decay_all", true, o->decay_all, NULL },
        { "steps", false, (double)o->steps, NULL }, { "lr", false, (double)o->lr, NULL },
        { "lr_floor", false, (double)o->lr_floor, NULL }, { "warmup", false, (double)o->warmup, NULL },
        { "schedule", false, 0, o->schedule }, { "decay_share", false, (double)o->decay_share, NULL },
        { "beta1", false, (double)o->beta1, NULL }, { "beta2", false, (double)o->beta2, NULL },
        { "eps", false, (double)o->eps, NULL }, { "weight_decay", false, (double)o->weight_decay, NULL },
        { "clip", false, (double)o->clip, NULL }, { "recompute", false, o->recompute, NULL },
        { "mask_prompt", true, o->mask_prompt, NULL },
        { "train", true, 0, o->train }, { "train_prior", true, o->train_prior, NULL },
        { "plasticity_lr_factor", false, (double)o->gain_rate, NULL },
        { "ranks", false, o->ranks, NULL }, { "data", false, 0, o->data },
    };

    memcpy(s, all, sizeof all);
}

char *train_settings(const struct train *t)
{
    struct setting s[SETTINGS];
    struct text out = { 0 };

    settings_of(t->o, s);
    for (int i = 0; i < SETTINGS; i++) {
        text_add(&out, "%s\n    \"%s\": ", i ? "," : "{", s[i].name);
        if (s[i].text)
            text_string(&out, s[i].text, strlen(s[i].text));
        else
            text_add(&out, s[i].number == floor(s[i].number) ? "%.0f" : "%.9g", s[i].number);
    }
    text_add(&out, "\n  }");
    return out.at;
}

/* One setting of the run against one of this command. */
static int compare(const struct setting *now, const struct json *old, const char *out)
{
    const char *text = "";
    double number = 0;
    bool same;

    if (now->text ? json_string(old, now->name, &text) != 1 : json_double(old, now->name, &number) != 1)
        return 0;
    same = now->text ? !strcmp(now->text, text) : fabs(now->number - number) <= 1e-8 * fabs(number);
    if (same)
        return 0;
    if (now->fixed && now->text)
        return fail("%s: the run was started with %s = %s, this command says %s", out, now->name, text, now->text);
    if (now->fixed)
        return fail("%s: the run was started with %s = %.7g, this command says %.7g", out, now->name, number,
                    now->number);
    if (now->text)
        say("%s: %s -> %s", now->name, text, now->text);
    else
        say("%s: %.7g -> %.7g", now->name, number, now->number);
    return 0;
}

static int agree(struct train *t, const struct run *r)
{
    struct setting s[SETTINGS];
    struct json *j;
    int status = 0;

    if (r->seed != t->o->seed)
        return fail("%s: the run was started with seed %llu, this command says %llu", t->o->out,
                    (unsigned long long)r->seed, (unsigned long long)t->o->seed);
    if (strcmp(r->data, t->data.identity))
        return fail("%s: the run was trained on other shards than %s (identity %.12s, found %.12s)", t->o->out,
                    t->o->data, r->data, t->data.identity);
    if (r->step > t->o->steps)
        return fail("%s: the run is at step %lld already, --steps says %lld", t->o->out, (long long)r->step,
                    (long long)t->o->steps);
    j = json_parse(r->options, strlen(r->options), "run.json");
    if (!j)
        return -1;
    settings_of(t->o, s);
    for (int i = 0; i < SETTINGS && !status; i++)
        status = compare(&s[i], j, t->o->out);
    json_free(j);
    return status;
}

int train_find(struct train *t)
{
    return ckpt_latest(t->o->out, t->resume, sizeof t->resume);
}

int train_agree(struct train *t)
{
    struct run r = { 0 };
    int status;

    if (!t->resume[0])
        return 0;
    if (ckpt_run_read(t->resume, &r))
        return -1;
    status = agree(t, &r);
    t->step = r.step;
    free(r.options);
    return status;
}

int train_save(struct train *t)
{
    const struct train_options *o = t->o;
    struct run r = { .step = t->step, .seed = o->seed, .row = t->step * t->accum * t->comm.world,
                     .options = train_settings(t) };
    double began = time_now();
    char dir[4096];
    int status;

    memcpy(r.data, t->data.identity, sizeof r.data);
    if (!str_format(dir, sizeof dir, "%s/step-%06lld", o->out, (long long)t->step))
        status = fail("%s: path too long", o->out);
    else if (train_sound(t))
        status = -1;
    else
        status = ckpt_save(dir, &t->model, &t->opt, &r, &t->comm, t->tokenizer[0] ? t->tokenizer : NULL, t->dev.type);
    free(r.options);
    if (!status && !t->comm.rank)
        ckpt_prune(o->out, o->keep, o->keep_every);
    t->logged_at += time_now() - began;                    /* not the training's time */
    return status;
}
