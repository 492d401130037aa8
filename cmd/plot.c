/* plot.c - curves of one or more runs in one figure. */
#include "cmd.h"
#include "plot.h"

extern const struct cmd cmd_plot;

struct choices {
    const char *out, *title, *x, *y;
    int64_t     smooth;
    bool        log_x, log_y, val;
    int         width, height;
    struct opt_list label;
};

static const char *axis_title(const char *key)
{
    static const char *const known[][2] = {
        { "loss", "loss (nats per token)" }, { "lr", "learning rate" }, { "grad_norm", "gradient norm" },
        { "tokens_per_second", "tokens per second" }, { "mfu", "share of peak arithmetic" },
    };

    for (size_t i = 0; i < LEN(known); i++)
        if (!strcmp(key, known[i][0]))
            return known[i][1];
    return key;
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
            .title = o->title, .xlabel = o->x, .ylabel = axis_title(o->y), .log_x = o->log_x,
            .log_y = o->log_y, .smooth = o->smooth > 1, .width = o->width, .height = o->height,
            .curve = c, .n = n }, o->out);
    for (int i = 0; i < n; i++)
        curve_close(&c[i]);
    free(c);
    return status ? 1 : 0;
}

static int plot(int argc, const char **argv)
{
    struct choices o = { .x = "tokens", .y = "loss", .val = true, .width = 800, .height = 500 };
    const struct opt opts[] = {
        OPT("out", &o.out, "FILE", "the figure, ending in .svg, .png or .pdf; its numbers go to "
            "FILE with .tsv, its gnuplot script to FILE with .gp", .letter = 'o', .need = true),
        OPT("x", &o.x, "KEY", "what runs along", .choices = "tokens|steps|seconds"),
        OPT("y", &o.y, "KEY", "what is drawn", .choices = "loss|lr|grad_norm|tokens_per_second|mfu"),
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
    else if (n > 0)
        status = draw(&o, n, argv);
    free(o.label.at);
    return status;
}

const struct cmd cmd_plot = {
    "plot", "draw the curves of one or more runs (RUN/metrics.jsonl) with gnuplot", "RUN... --out FIGURE", plot
};
