/* plot_draw.c - the files beside a figure, the head of its script, and running gnuplot on it. */
#define _POSIX_C_SOURCE 200809L
#include "plot_parts.h"
#include <errno.h>
#include <math.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

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

void drawing_quote(struct text *t, const char *s)
{
    text_add(t, "'");
    for (; *s; s++)
        text_add(t, *s == '\'' ? "''" : "%c", (unsigned char)*s < ' ' ? ' ' : *s);
    text_add(t, "'");
}

void drawing_number(struct text *t, double x)
{
    text_add(t, isfinite(x) ? "\t%.10g" : "\tNaN", x);
}

int drawing_open(struct drawing *d, const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    int stem = (int)strlen(path) - 4, skip = (int)(base - path);

    *d = (struct drawing){ .path = path, .figure = base, .terminal = terminal_of(path) };
    if (!d->terminal)
        return fail("%s: expected a name ending in .svg, .png or .pdf", path);
    if (!str_format(d->tsv, sizeof d->tsv, "%.*s.tsv", stem, path) ||
        !str_format(d->gp, sizeof d->gp, "%.*s.gp", stem, path) ||
        !str_format(d->dir, sizeof d->dir, "%.*s", slash == path ? 1 : slash ? skip - 1 : 1, slash ? path : "."))
        return fail("%s: this path is too long", path);
    d->table = d->tsv + skip;
    if (unlink(path) && errno != ENOENT)           /* an old figure must not pass for the new one */
        return fail("%s: %s", path, strerror(errno));
    return 0;
}

static void add_setting(struct text *t, const char *what, const char *value)
{
    text_add(t, "set %s ", what);
    drawing_quote(t, value);
    text_add(t, "\n");
}

void drawing_head(struct text *t, const struct drawing *d, const struct frame *f)
{
    bool pdf = !strcmp(d->terminal, "pdfcairo");   /* sized in inches, not pixels */

    text_add(t, "set terminal %s noenhanced size %g%s,%g%s font 'sans,%d'\n", d->terminal,
             pdf ? f->width / 96. : f->width, pdf ? "in" : "", pdf ? f->height / 96. : f->height,
             pdf ? "in" : "", 12);
    add_setting(t, "output", d->figure);
    text_add(t, "set datafile separator '\\t'\nset datafile commentschars ''\n");
    if (f->title)
        add_setting(t, "title", f->title);
    add_setting(t, "xlabel", f->xlabel);
    add_setting(t, "ylabel", f->ylabel);
}

/* Runs `gnuplot -e "cd 'DIR'" SCRIPT`, so that the script's names are relative to itself. */
static int run_gnuplot(const char *dir, const char *script, const char *path)
{
    struct text cd = { 0 };
    char *argv[] = { (char *)"gnuplot", (char *)"-e", NULL, (char *)script, NULL };
    int status = 0, error;
    pid_t pid;

    text_add(&cd, "cd ");
    drawing_quote(&cd, dir);
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

int drawing_finish(const struct drawing *d, struct text *table, struct text *script)
{
    const char *gp = d->gp + (d->figure - d->path);
    int status = file_write(d->tsv, table->at, table->n) || file_write(d->gp, script->at, script->n) ||
                 run_gnuplot(d->dir, gp, d->path) ? -1 : 0;

    text_free(table);
    text_free(script);
    return status;
}
