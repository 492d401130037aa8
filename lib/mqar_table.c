/* mqar_table.c - what an experiment gave: all runs, the best rate of every model, figures. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "mqar_grid.h"
#include "plot.h"
#include "task.h"
#include <math.h>
#include <unistd.h>

/* Standard deviation over seeds; NAN for one. */
static double deviation(const struct mqar_spread *s, int k)
{
    double square = s->square[k] - s->n * s->mean[k] * s->mean[k];

    return s->n > 1 ? sqrt(fmax(square, 0) / (s->n - 1)) : NAN;
}

static void kind_text(const struct mqar *q, char out[64])
{
    snprintf(out, 64, "%lld:%lld", (long long)q->length, (long long)q->pairs);
}

/* Runs that are not wanted stand in the tables only when they were done before that was known. */
static bool listed(const struct mqar_grid *g, const struct mqar_cell *c)
{
    return mqar_is_over(c) || mqar_wanted(g, c) == MQAR_WANTED;
}

/* Tokens of whole epochs by all of a run's time, measuring included. */
static double tokens_per_second(const struct mqar_grid *g, const struct mqar_cell *c)
{
    int64_t batch = g->o->batch_tokens / mqar_mix_longest(&c->job.mix);
    double examples = (double)(c->told.epoch * (g->o->train / batch) * batch);

    return examples * mqar_mix_mean(&c->job.mix) / (c->told.seconds + 1e-9);
}

/* One row of the table of all runs. */
static void add_run(struct text *t, const struct mqar_grid *g, const struct mqar_cell *c, int k, const char *cut)
{
    const struct mqar_told *x = &c->told;
    bool known = x->epoch > 0 || mqar_is_over(c);
    char mix[256];

    mqar_mix_text(&c->job.mix, mix, sizeof mix);
    text_add(t, "%s%s%s%s%g%s%llu%s%s%s%lld%s%lld%s%lld%s", c->job.model, cut, mix, cut, c->job.lr, cut,
             (unsigned long long)c->job.seed, cut, mqar_state_name(x->state), cut, (long long)x->epoch, cut,
             (long long)c->job.mix.at[k].length, cut, (long long)c->job.mix.at[k].pairs, cut);
    if (known)
        text_add(t, "%.6f%s%.6f%s%.6g%s%.1f%s%.0f", x->accuracy[k], cut, x->error[k], cut, x->loss, cut, x->seconds,
                 cut, tokens_per_second(g, c));
    else
        text_add(t, "%s%s%s%s", cut, cut, cut, cut);
}

static int write_runs(const struct mqar_grid *g, const char *path)
{
    struct text t = { 0 };
    int status;

    text_add(&t, "model\tmix\tlr\tseed\tstatus\tepoch\tlength\tpairs\taccuracy\tstderr\tloss\tseconds\t"
             "tokens_per_second\n");
    for (int i = 0; i < g->n; i++)
        for (int k = 0; listed(g, &g->cell[i]) && k < g->cell[i].job.mix.n; k++) {
            add_run(&t, g, &g->cell[i], k, "\t");
            text_add(&t, "\n");
        }
    status = file_write(path, t.at, t.n);
    text_free(&t);
    return status;
}

/* How many runs are finished, and how the rates were chosen. */
static void add_head(struct text *t, const struct mqar_grid *g)
{
    int all, over, first = mqar_choosing(g);

    mqar_count(g, &all, &over);
    text_add(t, "# Associative recall\n\n%d of %d runs are finished. ", over, all);
    if (first < g->o->seeds)
        text_add(t, "Every learning rate was tried with %d seed%s. The best one of a model on what it was trained on, "
                 "by the mean accuracy over %s, gets %lld seeds; it alone is shown", first, first == 1 ? "" : "s",
                 first == 1 ? "this seed" : "these seeds", (long long)g->o->seeds);
    else
        text_add(t, "The best learning rate of every model, by the mean accuracy over the seeds");
    text_add(t, ":\n\n");
}

static void add_best(struct text *t, const struct mqar_grid *g, int x, int m)
{
    struct mqar_spread s = { 0 };
    int r = mqar_best_rate(g, x, m, &s);
    char mix[256], kind[64];

    mqar_mix_text(&g->mix[x], mix, sizeof mix);
    if (r < 0)
        text_add(t, "| %s | %s | | | | | | 0 of %lld | |\n", mix, g->model[m], (long long)g->o->seeds);
    for (int k = 0; r >= 0 && k < g->mix[x].n; k++) {
        kind_text(&g->mix[x].at[k], kind);
        text_add(t, "| %s | %s | %g | %s | %.4f | %.4f..%.4f | ", mix, g->model[m], g->rate[r], kind, s.mean[k],
                 s.low[k], s.high[k]);
        if (s.n > 1)
            text_add(t, "%.4f", deviation(&s, k));
        text_add(t, " | %d of %lld | %.1f |\n", s.n, (long long)g->o->seeds, s.seconds);
    }
}

static int write_markdown(const struct mqar_grid *g, const char *path)
{
    struct text t = { 0 };
    int status;

    add_head(&t, g);
    text_add(&t, "| trained on | model | lr | length:pairs | accuracy | least..greatest | deviation | seeds | "
             "seconds a run |\n|---|---|---|---|---|---|---|---|---|\n");
    for (int x = 0; x < g->mixes; x++)
        for (int m = 0; m < g->models; m++)
            add_best(&t, g, x, m);
    text_add(&t, "\nAll runs; tokens/s by all of a run's time, measuring included:\n\n"
             "| model | trained on | lr | seed | status | epoch | length | pairs | accuracy | stderr | loss | seconds "
             "| tokens/s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; i < g->n; i++)
        for (int k = 0; listed(g, &g->cell[i]) && k < g->cell[i].job.mix.n; k++) {
            text_add(&t, "| ");
            add_run(&t, g, &g->cell[i], k, " | ");
            text_add(&t, " |\n");
        }
    status = file_write(path, t.at, t.n);
    text_free(&t);
    return status;
}

/* The best rates on stdout, and all of it in the form that every evaluation has. */
static int write_results(const struct mqar_grid *g, const char *path)
{
    const struct mqar_options *o = g->o;
    struct results out = { 0 };
    int status, all, over;

    mqar_count(g, &all, &over);
    results_say(&out, "lengths", o->lengths);
    results_say(&out, "rates", o->rates);
    results_say(&out, "dtype", o->dtype);
    results_count(&out, "seeds", o->seeds);
    results_count(&out, "rate_seeds", mqar_choosing(g));
    results_count(&out, "epochs", o->epochs);
    results_count(&out, "train", o->train);
    results_count(&out, "test", o->test);
    results_count(&out, "vocab", o->vocab);
    results_count(&out, "unfinished", all - over);
    for (int x = 0; x < g->mixes; x++)
        for (int m = 0; m < g->models; m++) {
            struct mqar_spread s = { 0 };
            int r = mqar_best_rate(g, x, m, &s);
            for (int k = 0; r >= 0 && k < g->mix[x].n; k++) {
                char part[512], kind[64];
                kind_text(&g->mix[x].at[k], kind);
                snprintf(part, sizeof part, "%s %s lr %g", g->model[m], kind, g->rate[r]);
                result_show(&out, &(struct result){ .task = "mqar", .metric = "accuracy", .part = part,
                            .value = s.mean[k], .error = deviation(&s, k) / sqrt(s.n), .n = s.n });
            }
        }
    status = results_write(&out, path, NULL);
    results_free(&out);
    return status;
}

/* Accuracy by length: a curve a model, bars from the least to the greatest seed. */
static int draw_accuracy(const struct mqar_grid *g, const char *path)
{
    struct curve *c = mem_new((size_t)g->models, sizeof *c);
    const char *tic[65] = { NULL };
    char name[64][64];
    int places = 0, drawn = 0, status = 0;

    for (int x = 0; x < g->mixes; x++)
        for (int k = 0; k < g->mix[x].n && places < 64; k++, places++) {
            kind_text(&g->mix[x].at[k], name[places]);
            tic[places] = name[places];
        }
    for (int m = 0; m < g->models; m++) {
        int at = 0;
        c[m].train = mem_new((size_t)places, sizeof *c[m].train);
        str_format(c[m].label, sizeof c[m].label, "%.120s", g->model[m]);
        for (int x = 0; x < g->mixes; x++) {
            struct mqar_spread s = { 0 };
            int r = mqar_best_rate(g, x, m, &s);
            for (int k = 0; k < g->mix[x].n && at < places; k++, at++)
                if (r >= 0)
                    c[m].train[c[m].ntrain++] = (struct point){ g->rate[r], at, s.mean[k], s.mean[k], s.low[k],
                                                                s.high[k] };
        }
        drawn += c[m].ntrain > 0;
    }
    if (drawn)
        status = figure_write(&(struct figure){ .frame = { "recall at the best learning rate", "length:pairs",
                              "accuracy", 720, 480 }, .bars = true, .tic = tic, .bottom = 0, .top = 1.02, .curve = c,
                              .n = g->models }, path);
    for (int m = 0; m < g->models; m++)
        curve_close(&c[m]);
    free(c);
    return status;
}

/* Accuracy by epoch on one mix: every model at its best rate, a curve for each seed that is finished. */
static int draw_epochs(const struct mqar_grid *g, int mix, const char *path)
{
    struct curve *c = mem_new((size_t)g->n, sizeof *c);
    char dir[4096], title[300], text[256];
    int n = 0, status = 0;

    mqar_mix_text(&g->mix[mix], text, sizeof text);
    snprintf(title, sizeof title, "recall during training on %s", text);
    for (int m = 0; m < g->models; m++) {
        int r = mqar_best_rate(g, mix, m, NULL), first = n;
        for (int i = 0; i < g->n && !status; i++) {
            const struct mqar_cell *run = &g->cell[i];
            if (run->mix != mix || run->rate != r || run->model != m || !mqar_is_over(run) || !run->told.epoch ||
                !mqar_cell_path(g, run, "", dir, sizeof dir))
                continue;
            status = curve_read(&c[n], dir, "epoch", "accuracy");
            str_format(c[n].label, sizeof c[n].label, "%.100s, lr %g", g->model[m], g->rate[r]);
            c[n].again = n > first;
            n += !status;
        }
    }
    if (n && !status)
        status = figure_write(&(struct figure){ .frame = { title, "epoch", "accuracy", 720, 480 },
                              .top = 1.02, .whole = true, .curve = c, .n = n }, path);
    for (int i = 0; i < n; i++)
        curve_close(&c[i]);
    free(c);
    return status;
}

static bool out_path(const struct mqar_grid *g, const char *name, char *out, size_t size)
{
    return str_format(out, size, "%s/%s", g->o->out, name);
}

int mqar_grid_write(const struct mqar_grid *g)
{
    char path[4096], name[300], mix[256];
    int status = 0;

    if (!out_path(g, "results.json", path, sizeof path))
        return fail("%s: path too long", g->o->out);
    if (write_results(g, path))
        return -1;
    out_path(g, "runs.tsv", path, sizeof path);
    if (write_runs(g, path))
        return -1;
    out_path(g, "results.md", path, sizeof path);
    if (write_markdown(g, path))
        return -1;
    out_path(g, "accuracy.svg", path, sizeof path);
    status = draw_accuracy(g, path);
    for (int x = 0; x < g->mixes && !status; x++) {
        mqar_mix_text(&g->mix[x], mix, sizeof mix);
        for (char *s = mix; *s; s++)
            *s = *s == ':' ? 'x' : *s;
        snprintf(name, sizeof name, "epochs-%s.svg", mix);
        if (!out_path(g, name, path, sizeof path))
            return fail("%s: path too long", g->o->out);
        status = draw_epochs(g, x, path);
    }
    return status;
}
