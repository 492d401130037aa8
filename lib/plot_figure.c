/* plot_figure.c - writes a figure's numbers and its gnuplot script, and runs gnuplot on them. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "plot.h"
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* The colours of Okabe and Ito, which stay apart for colour-blind readers. */
static const char *const color[] = {
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442"
};

static const char *terminal_of(const char *path)
{
    static const char *const known[][2] = {
        { ".svg", "svg" }, { ".png", "pngcairo" }, { ".pdf", "pdfcairo" }
    };
    size_t n = strlen(path);

    for (size_t i = 0; i < LEN(known); i++)
        if (n > 4 && path[n - 5] != '/' && !strcmp(path + n - 4, known[i][0]))
            return known[i][1];
    return NULL;
}

/* A gnuplot string: single quotes, doubled inside; control characters become spaces. */
static void add_quoted(struct text *t, const char *s)
{
    text_add(t, "'");
    for (; *s; s++)
        text_add(t, *s == '\'' ? "''" : "%c", (unsigned char)*s < ' ' ? ' ' : *s);
    text_add(t, "'");
}

static void add_number(struct text *t, double x)
{
    text_add(t, isfinite(x) ? "\t%.10g" : "\tNaN", x);
}

static void add_points(struct text *t, int index, const struct curve *c, const struct point *p, int64_t n,
                       const char *kind)
{
    for (int64_t i = 0; i < n; i++) {
        text_add(t, "%d\t", index);
        for (const char *s = c->label; *s; s++)
            text_add(t, "%c", (unsigned char)*s < ' ' ? ' ' : *s);
        text_add(t, "\t%s", kind);
        add_number(t, p[i].step);
        add_number(t, p[i].x);
        add_number(t, p[i].y);
        add_number(t, p[i].smooth);
        text_add(t, "\n");
    }
}

static void add_table(struct text *t, const struct figure *f)
{
    text_add(t, "curve\tlabel\tkind\tstep\tx\ty\tsmooth\n");
    for (int i = 0; i < f->n; i++) {
        const struct curve *c = &f->curve[i];

        add_points(t, i, c, c->train, c->ntrain, "train");
        add_points(t, i, c, c->val, c->nval, "val");
    }
}

/* One entry of the plot command: rows of one curve and kind; others become NaN, which draws nothing. */
static void add_entry(struct text *t, const char *table, int index, const char *kind, int column,
                      const char *style)
{
    add_quoted(t, table);
    text_add(t, " skip 1 using ($1 == %d && strcol(3) eq '%s' ? $5 : NaN):%d with %s", index, kind,
             column, style);
}

static void add_curve(struct text *t, const struct figure *f, int i, const char *table)
{
    const struct curve *c = &f->curve[i];
    const char *rgb = color[(size_t)i % LEN(color)];
    char style[128];

    if (f->smooth) {
        str_format(style, sizeof style, "lines lw 1 lc rgb '#C0%s' notitle, \\\n    ", rgb + 1);
        add_entry(t, table, i, "train", 6, style);
    }
    str_format(style, sizeof style, "lines lw 2 lc rgb '%s' title ", rgb);
    add_entry(t, table, i, "train", 7, style);
    add_quoted(t, c->label);
    if (c->nval) {
        char label[160];

        text_add(t, ", \\\n    ");
        str_format(style, sizeof style, "linespoints lw 1 dt 2 pt 7 ps 1 lc rgb '%s' title ", rgb);
        add_entry(t, table, i, "val", 6, style);
        str_format(label, sizeof label, "%s, validation", c->label);
        add_quoted(t, label);
    }
    text_add(t, i + 1 < f->n ? ", \\\n    " : "\n");
}

static void add_setting(struct text *t, const char *what, const char *value)
{
    text_add(t, "set %s ", what);
    add_quoted(t, value);
    text_add(t, "\n");
}

static void add_script(struct text *t, const struct figure *f, const char *terminal, const char *figure,
                       const char *table)
{
    bool pdf = !strcmp(terminal, "pdfcairo");      /* sized in inches, not pixels */

    text_add(t, "set terminal %s noenhanced size %g%s,%g%s font 'sans,%d'\n", terminal,
             pdf ? f->width / 96. : f->width, pdf ? "in" : "", pdf ? f->height / 96. : f->height,
             pdf ? "in" : "", 12);
    add_setting(t, "output", figure);
    text_add(t, "set datafile separator '\\t'\nset datafile commentschars ''\nset grid\nset key top right\n");
    text_add(t, "set format x '%%.1s%%c'\n");
    if (f->log_x || f->log_y)
        text_add(t, "set logscale %s\n", f->log_x && f->log_y ? "xy" : f->log_x ? "x" : "y");
    if (f->title)
        add_setting(t, "title", f->title);
    add_setting(t, "xlabel", f->xlabel);
    add_setting(t, "ylabel", f->ylabel);
    text_add(t, "plot \\\n    ");
    for (int i = 0; i < f->n; i++)
        add_curve(t, f, i, table);
}

/* Runs `gnuplot -e "cd 'DIR'" SCRIPT`, so that the script's names are relative to itself. */
static int run_gnuplot(const char *dir, const char *script, const char *path)
{
    struct text cd = { 0 };
    char *argv[] = { (char *)"gnuplot", (char *)"-e", NULL, (char *)script, NULL };
    int status = 0, error;
    pid_t pid;

    text_add(&cd, "cd ");
    add_quoted(&cd, dir);
    argv[2] = cd.at;
    error = posix_spawnp(&pid, "gnuplot", NULL, NULL, argv, environ);
    text_free(&cd);
    if (error == ENOENT)
        return fail("gnuplot is not installed (Debian: gnuplot-nox); with it, run: cd %s && gnuplot %s", dir, script);
    if (error)
        return fail("gnuplot: %s", strerror(error));
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR)
            return fail("gnuplot: %s", strerror(errno));
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        return fail("%s: gnuplot failed on %s", path, script);
    return access(path, R_OK) ? fail("%s: gnuplot did not write it", path) : 0;
}

int figure_write(const struct figure *f, const char *path)
{
    struct text table = { 0 }, script = { 0 };
    const char *terminal = terminal_of(path), *slash = strrchr(path, '/');
    const char *base = slash ? slash + 1 : path;
    char dir[4096], tsv[4096], gp[4096];
    int stem = (int)strlen(path) - 4, skip = (int)(base - path), status;

    if (!terminal)
        return fail("%s: expected a name ending in .svg, .png or .pdf", path);
    if (!str_format(tsv, sizeof tsv, "%.*s.tsv", stem, path) || !str_format(gp, sizeof gp, "%.*s.gp", stem, path) ||
        !str_format(dir, sizeof dir, "%.*s", slash == path ? 1 : slash ? skip - 1 : 1, slash ? path : "."))
        return fail("%s: this path is too long", path);
    if (unlink(path) && errno != ENOENT)           /* an old figure must not pass for the new one */
        return fail("%s: %s", path, strerror(errno));
    add_table(&table, f);
    add_script(&script, f, terminal, base, tsv + skip);
    status = file_write(tsv, table.at, table.n) || file_write(gp, script.at, script.n) ||
             run_gnuplot(dir, gp + skip, path) ? -1 : 0;
    text_free(&table);
    text_free(&script);
    return status;
}
