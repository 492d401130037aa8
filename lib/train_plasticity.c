/* train_plasticity.c - how sure the memories of a model in training are, as a line of metrics. */
#include "json.h"
#include "train_parts.h"
#include <math.h>

enum { SEQUENCES = 8 };                  /* of the first row: always the same ones */

static double spread(const struct plasticity_head *a)  { return a->spread; }
static double gain(const struct plasticity_head *a)    { return a->gain; }
static double window(const struct plasticity_head *a)  { return a->window; }
static double strength(const struct plasticity_head *a) { return a->b; }
static double scale(const struct plasticity_head *a)   { return a->b_scale; }

static const struct figure_of { const char *name; double (*of)(const struct plasticity_head *); } figures[] = {
    { "spread", spread }, { "gain", gain }, { "window", window }, { "b", strength }, { "b_scale", scale },
};

/* JSON has no NaN. */
static void put(struct text *out, double x)
{
    if (isfinite(x))
        text_add(out, "%.7g", x);
    else
        text_add(out, "null");
}

/* Lists over metaplastic layers of lists over heads. */
static void put_heads(struct text *out, const struct train *t, const struct figure_of *f)
{
    int H = t->cfg.heads, said = 0;

    text_add(out, ", \"%s\": [", f->name);
    for (int l = 0; l < t->cfg.layers; l++) {
        if (!t->cfg.meta[l])
            continue;
        text_add(out, said++ ? ", [" : "[");
        for (int h = 0; h < H; h++) {
            text_add(out, h ? ", " : "");
            put(out, f->of(&t->plasticity.at[l * H + h]));
        }
        text_add(out, "]");
    }
    text_add(out, "]");
}

static double mean(const struct train *t, const struct figure_of *f)
{
    double sum = 0;
    int n = 0;

    for (int l = 0; l < t->cfg.layers; l++)
        for (int h = 0; t->cfg.meta[l] && h < t->cfg.heads; h++, n++)
            sum += f->of(&t->plasticity.at[l * t->cfg.heads + h]);
    return sum / (n ? n : 1);
}

static int put_line(struct train *t)
{
    struct text out = { 0 };
    int status, said = 0;

    text_add(&out, "{\"step\": %lld, \"tokens\": %lld, \"seconds\": %.6g", (long long)t->step,
             (long long)(t->step * t->o->batch_tokens), time_now() - t->metrics.start);
    for (int i = 0; i < 3; i++) {
        text_add(&out, ", \"%s\": ", figures[i].name);
        put(&out, mean(t, &figures[i]));
    }
    text_add(&out, ", \"plasticity\": {\"layers\": [");
    for (int l = 0; l < t->cfg.layers; l++)
        if (t->cfg.meta[l])
            text_add(&out, said++ ? ", %d" : "%d", l);
    text_add(&out, "]");
    for (size_t i = 0; i < LEN(figures); i++)
        put_heads(&out, t, &figures[i]);
    text_add(&out, "}}");
    say("step %lld  plasticity: spread %.4g, gain %.4g, window %.4g", (long long)t->step, mean(t, &figures[0]),
        mean(t, &figures[1]), mean(t, &figures[2]));
    status = metrics_put(&t->metrics, out.at, out.n);
    text_free(&out);
    return status;
}

/* From the first row of the validation shards, else of the data, in every case the same one. */
int train_plasticity(struct train *t)
{
    double began = time_now();
    struct batch b;
    int status;

    if (t->comm.rank)
        return 0;
    if (loader_read(t->have_val ? &t->val : &t->data, 0, &b))
        return -1;
    plasticity_clear(&t->plasticity);
    for (int i = 0; i < b.seqs.n && t->plasticity.sequences < SEQUENCES; i++)
        if (b.seqs.start[i + 1] > b.seqs.start[i])
            plasticity_add(&t->plasticity, b.token + b.seqs.start[i], b.seqs.start[i + 1] - b.seqs.start[i]);
    plasticity_finish(&t->plasticity);
    status = put_line(t);
    t->logged_at += time_now() - began;                    /* not the training's time */
    return status;
}
