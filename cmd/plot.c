/* plot.c - curves of one or more runs in one figure; a run's plasticity; a conversion's layers; results. */
#define _POSIX_C_SOURCE 200809L
#include "cmd.h"
#include "plot.h"
#include <unistd.h>

extern const struct cmd cmd_plot;

struct choices {
    const char *out, *title, *x, *y, *heat, *by;
    int64_t     smooth, step;
    bool        log_x, log_y, val;
    int         width, height;
    struct opt_list label;
};

static const char *axis_title(const char *key)
{
    static const char *const known[][2] = {
        { "loss", "loss (nats per token)" }, { "lr", "learning rate" }, { "grad_norm", "gradient norm" },
        { "tokens_per_second", "tokens per second" }, { "mfu", "share of peak arithmetic" },
        { "spread", "spread of the precision, q99/q01" }, { "gain", "evidence over the prior" },
        { "window", "memory window (tokens)" },
    };

    for (size_t i = 0; i < LEN(known); i++)
        if (!strcmp(key, known[i][0]))
            return known[i][1];
    return key;
}

static struct frame frame_of(const struct choices *o, const char *x, const char *y)
{
    return (struct frame){ .title = o->title, .xlabel = x, .ylabel = y, .width = o->width, .height = o->height };
}

/* The report of a conversion: convert.json, or a directory with one that is no run. */
static bool find_report(char file[4096], const char *path)
{
    size_t n = strlen(path);
    char run[4096];

    if (n >= 12 && !strcmp(path + n - 12, "convert.json"))
        return str_format(file, 4096, "%s", path);
    return str_format(file, 4096, "%s/convert.json", path) && !access(file, F_OK) &&
           str_format(run, sizeof run, "%s/metrics.jsonl", path) && access(run, F_OK);
}

/* A figure of one thing; -1 when the operands ask for curves. */
static int draw_one(const struct choices *o, int n, const char **paths)
{
    struct frame windows = frame_of(o, "layer", "window of the heads (tokens): least, median, largest");
    struct frame map = frame_of(o, "head", "layer");
    char file[4096];

    if (o->heat && n > 1)
        return fail("--heat: expected one RUN, found %d", n), 2;
    if (o->heat)
        return heat_draw(paths[0], o->heat, o->step, &map, o->out) ? 1 : 0;
    for (int i = 0; i < n; i++)
        if (find_report(file, paths[i]))
            return n > 1 ? (fail("%s: a conversion's layers are a figure of their own", paths[i]), 2)
                         : layers_draw(file, &windows, o->out) ? 1 : 0;
    return -1;
}

/* Files of results; -1 when the operands are none. */
static int draw_results(const struct choices *o, int n, const char **paths)
{
    static const char *const kinds[] = { "any", "depth", "length", "position" };
    struct frame f = frame_of(o, "", "");
    int files = 0, kind = 0;

    for (int i = 0; i < n; i++) {
        size_t k = strlen(paths[i]);
        files += k > 5 && !strcmp(paths[i] + k - 5, ".json");
    }
    while (strcmp(o->by, kinds[kind]))
        kind++;
    if (!files && kind)
        return fail("--by: is for files of results, .json"), 2;
    if (files && files < n)
        return fail("plot: runs and results are figures of their own"), 2;
    if (!files)
        return -1;
    return results_draw(paths, n, o->label.n ? o->label.at : NULL, (enum results_kind)kind, o->log_x, &f, o->out) ? 1
                                                                                                                  : 0;
}

static int draw(const struct choices *o, int n, const char **runs)
{
    struct curve *c = mem_new((size_t)n, sizeof *c);
    int status = 0;

    for (int i = 0; i < n && !status; i++) {
        status = curve_read(&c[i], runs[i], strcmp(o->x, "steps") ? o->x : "step", o->y);
        if (i < o->label.n)
            str_format(c[i].label, sizeof c[i].label, "%.*s", 120, o->label.at[i]);
        if (!o->val)
            c[i].nval = 0;
        curve_smooth(&c[i], o->smooth);
    }
    if (!status)
        status = figure_write(&(struct figure){
            .frame = frame_of(o, o->x, axis_title(o->y)), .log_x = o->log_x, .log_y = o->log_y,
            .smooth = o->smooth > 1, .top = strcmp(o->y, "accuracy") ? 0 : 1.02, .curve = c, .n = n }, o->out);
    for (int i = 0; i < n; i++)
        curve_close(&c[i]);
    free(c);
    return status ? 1 : 0;
}

static int plot(int argc, const char **argv)
{
    struct choices o = { .x = "tokens", .y = "loss", .by = "any", .step = -1, .val = true, .width = 800,
                         .height = 500 };
    const struct opt opts[] = {
        OPT("out", &o.out, "FILE", "the figure, ending in .svg, .png or .pdf; its numbers go to "
            "FILE with .tsv, its gnuplot script to FILE with .gp", .letter = 'o', .need = true),
        OPT("x", &o.x, "KEY", "what runs along", .choices = "tokens|steps|seconds"),
        OPT("y", &o.y, "KEY", "what is drawn",
            .choices = "loss|accuracy|lr|grad_norm|tokens_per_second|mfu|spread|gain|window"),
        OPT("heat", &o.heat, "KEY", "instead of curves a map of a run's layers and heads",
            .choices = "spread|gain|window|b|b_scale"),
        OPT("step", &o.step, "N", "of the map; -1: the last one", .range = "[-1,)"),
        OPT("by", &o.by, "WHAT", "of results: scores by length and depth, by length, losses by position",
            .choices = "any|depth|length|position"),
        OPT("smooth", &o.smooth, "N", "mean over N logged steps around each, 0 for none", .range = "[0,)"),
        OPT("log-x", &o.log_x, NULL, "logarithmic x axis"),
        OPT("log-y", &o.log_y, NULL, "logarithmic y axis"),
        OPT("val", &o.val, NULL, "leave out the validation points"),
        OPT("label", &o.label, "TEXT", "name of a run in the legend, in the order of the runs"),
        OPT("title", &o.title, "TEXT", "above the figure"),
        OPT("width", &o.width, "PIXELS", "at 96 an inch", .range = "[100,10000]"),
        OPT("height", &o.height, "PIXELS", "likewise", .range = "[100,10000]"),
        OPT_END
    };
    int n = opt_parse(&cmd_plot, argc, argv, opts), status = 2;

    if (n == 0)
        fail("plot: expected at least one RUN");
    else if (n > 0 && o.label.n && o.label.n != n)
        fail("--label: expected one for each of the %d runs, found %d", n, o.label.n);
    else if (n > 0 && (status = draw_one(&o, n, argv)) < 0 && (status = draw_results(&o, n, argv)) < 0)
        status = draw(&o, n, argv);
    free(o.label.at);
    return status;
}

const struct cmd cmd_plot = {
    "plot", "draw runs (RUN/metrics.jsonl) or results of evaluations with gnuplot", "RUN... --out FIGURE", plot
};
