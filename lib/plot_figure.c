/* plot_figure.c - curves as a table and a gnuplot script. */
#include "plot_parts.h"

/* The colours of Okabe and Ito, which stay apart for colour-blind readers. */
static const char *const color[] = {
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"
};

/* Colours go by curves that are not drawn again. */
static const char *color_of(const struct figure *f, int i)
{
    size_t n = 0;

    for (; i > 0; i--)
        n += !f->curve[i].again;
    return color[n % LEN(color)];
}

static void add_points(struct text *t, int index, const struct curve *c, const struct point *p, int64_t n,
                       const char *kind, bool bars)
{
    for (int64_t i = 0; i < n; i++) {
        text_add(t, "%d\t", index);
        for (const char *s = c->label; *s; s++)
            text_add(t, "%c", (unsigned char)*s < ' ' ? ' ' : *s);
        text_add(t, "\t%s", kind);
        drawing_number(t, p[i].step);
        drawing_number(t, p[i].x);
        drawing_number(t, p[i].y);
        drawing_number(t, p[i].smooth);
        if (bars) {
            drawing_number(t, p[i].low);
            drawing_number(t, p[i].high);
        }
        text_add(t, "\n");
    }
}

static void add_table(struct text *t, const struct figure *f)
{
    text_add(t, "curve\tlabel\tkind\tstep\tx\ty\tsmooth%s\n", f->bars ? "\tlow\thigh" : "");
    for (int i = 0; i < f->n; i++) {
        const struct curve *c = &f->curve[i];

        add_points(t, i, c, c->train, c->ntrain, "train", f->bars);
        add_points(t, i, c, c->val, c->nval, "val", f->bars);
    }
}

/* Points with bars; curves stand a little apart, so that their bars do. */
static void add_bars(struct text *t, const struct figure *f, int i, const char *table)
{
    double shift = 0.04 * (i - (f->n - 1) / 2.);

    drawing_quote(t, table);
    text_add(t, " skip 1 using ($1 == %d ? $5 + %.3g : NaN):6:8:9 with yerrorlines lw 2 pt 7 ps 0.8 lc rgb '%s' title ",
             i, shift, color_of(f, i));
    drawing_quote(t, f->curve[i].label);
    text_add(t, i + 1 < f->n ? ", \\\n    " : "\n");
}

/* Names along the x axis. */
static void add_tics(struct text *t, const char *const *tic)
{
    int n = 0;

    text_add(t, "set xtics (");
    for (; tic[n]; n++) {
        text_add(t, n ? ", " : "");
        drawing_quote(t, tic[n]);
        text_add(t, " %d", n);
    }
    text_add(t, ")\nset xrange [-0.5:%g]\n", n - 0.5);
}

/* One entry of the plot command: rows of one curve and kind; others become NaN, which draws nothing. */
static void add_entry(struct text *t, const char *table, int index, const char *kind, int column,
                      const char *style)
{
    drawing_quote(t, table);
    text_add(t, " skip 1 using ($1 == %d && strcol(3) eq '%s' ? $5 : NaN):%d with %s", index, kind,
             column, style);
}

static void add_curve(struct text *t, const struct figure *f, int i, const char *table)
{
    const struct curve *c = &f->curve[i];
    const char *rgb = color_of(f, i);
    char style[128];

    if (f->smooth) {
        str_format(style, sizeof style, "lines lw 1 lc rgb '#C0%s' notitle, \\\n    ", rgb + 1);
        add_entry(t, table, i, "train", 6, style);
    }
    str_format(style, sizeof style, "%s lw %d lc rgb '%s' %s", f->points ? "linespoints pt 7" : "lines",
               c->again ? 1 : 2, rgb, c->again ? "notitle" : "title ");
    add_entry(t, table, i, "train", 7, style);
    if (!c->again)
        drawing_quote(t, c->label);
    if (c->nval) {
        char label[160];

        text_add(t, ", \\\n    ");
        str_format(style, sizeof style, "linespoints lw 1 dt 2 pt 7 ps 1 lc rgb '%s' title ", rgb);
        add_entry(t, table, i, "val", 6, style);
        str_format(label, sizeof label, "%s, validation", c->label);
        drawing_quote(t, label);
    }
    text_add(t, i + 1 < f->n ? ", \\\n    " : "\n");
}

int figure_write(const struct figure *f, const char *path)
{
    struct text table = { 0 }, script = { 0 };
    struct drawing d;

    if (drawing_open(&d, path))
        return -1;
    add_table(&table, f);
    drawing_head(&script, &d, &f->frame);
    text_add(&script, "set grid\nset key top right\nset format x '%%.1s%%c'\n");
    if (f->log_x || f->log_y)
        text_add(&script, "set logscale %s\n", f->log_x && f->log_y ? "xy" : f->log_x ? "x" : "y");
    if (f->top > f->bottom)
        text_add(&script, "set yrange [%g:%g]\nset key below samplen 2 height 1\n", f->bottom, f->top);
    if (f->whole)
        text_add(&script, "set format x '%%g'\n");
    if (f->tic)
        add_tics(&script, f->tic);
    text_add(&script, "plot \\\n    ");
    for (int i = 0; i < f->n; i++)
        (f->bars ? add_bars : add_curve)(&script, f, i, d.table);
    return drawing_finish(&d, &table, &script);
}
