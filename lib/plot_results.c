/* plot_results.c - what `palimpsa eval --out` wrote: scores by length and depth as maps, scores by length or losses by
 * position as curves. */
#include "plot_parts.h"
#include <math.h>

enum { PANELS = 16 };

struct score { char label[128]; double length, depth, value; };
struct scores { struct score *at; int64_t n, cap; };

static void scores_add(struct scores *s, const char *label, double length, double depth, double value)
{
    struct score *x;

    if (s->n == s->cap)
        s->at = mem_grow(s->at, (size_t)(s->cap = 2 * s->cap + 64), sizeof *s->at);
    x = &s->at[s->n++];
    *x = (struct score){ .length = length, .depth = depth, .value = value };
    str_format(x->label, sizeof x->label, "%.*s", (int)sizeof x->label - 1, label);
}

/* One entry of results; those without a length say nothing here. */
static int read_result(struct scores *s, const struct json *j, const char *name, const char *run, bool cells)
{
    const char *task, *part = "";
    double length, depth, value = NAN;
    char label[400];
    int has_length, has_depth;

    if (!json_is_object(j) || json_string(j, "task", &task) != 1 || json_string(j, "part", &part) < 0 ||
        (has_length = json_double(j, "length", &length)) < 0 || (has_depth = json_double(j, "depth", &depth)) < 0 ||
        json_double(j, "value", &value) < 0)
        return fail("%s: expected a task and numbers in every entry of results", name);
    if (!has_length || (has_depth != 0) != cells)
        return 0;
    snprintf(label, sizeof label, "%.120s%s%.120s%s%.120s", run, *run ? ": " : "", task, *part ? " " : "", part);
    scores_add(s, label, length, has_depth ? depth : NAN, value);
    return 0;
}

static int read_position(struct scores *s, const struct json *j, const char *name, const char *run)
{
    double from, to, nll;

    if (!json_is_object(j) || json_double(j, "from", &from) != 1 || json_double(j, "to", &to) != 1 ||
        json_double(j, "nll", &nll) != 1)
        return fail("%s: expected from, to and nll in every entry of positions", name);
    scores_add(s, *run ? run : "nll", (from + to + 1) / 2, NAN, nll);
    return 0;
}

static int read_file(struct scores *s, const char *path, const char *run, enum results_kind kind)
{
    const char *list = kind == BY_POSITION ? "positions" : "results";
    size_t n;
    char *text = file_read(path, &n);
    struct json *j = text ? json_parse(text, n, path) : NULL;
    int64_t before = s->n;
    int status = j ? 0 : -1;

    free(text);
    if (!status && (!json_is_object(j) || !json_is_array(json_at(j, "results"))))
        status = fail("%s: expected results, as palimpsa eval --out writes them", path);
    for (const struct json *i = status ? NULL : json_first(json_at(j, list)); i && !status; i = json_next(i))
        status = kind == BY_POSITION ? read_position(s, i, path, run) : read_result(s, i, path, run, kind == BY_DEPTH);
    json_free(j);
    return status ? -1 : s->n > before;
}

/* What a file has to show, the most telling first. */
static int find_kind(const char *path, enum results_kind *kind)
{
    for (enum results_kind k = BY_DEPTH; k <= BY_POSITION; k++) {
        struct scores s = { 0 };
        int found = read_file(&s, path, "", k);
        free(s.at);
        if (found) {
            *kind = k;
            return found < 0 ? -1 : 0;
        }
    }
    return fail("%s: nothing to draw: no result has a length, and there are no positions", path);
}

static int draw_curves(const struct scores *s, enum results_kind kind, const struct frame *f, bool log_x,
                       const char *path)
{
    struct curve *c = mem_new((size_t)s->n, sizeof *c);
    bool length = kind == BY_LENGTH;
    struct figure figure = { .frame = *f, .log_x = log_x || length, .points = length, .bottom = length ? -0.02 : 0,
                             .top = length ? 1.02 : 0, .curve = c };
    int status;

    for (int64_t i = 0; i < s->n; i++) {
        int k = 0;
        while (k < figure.n && strcmp(c[k].label, s->at[i].label))
            k++;
        if (k == figure.n) {
            str_format(c[k].label, sizeof c[k].label, "%s", s->at[i].label);
            c[k].train = mem_new((size_t)s->n, sizeof *c[k].train);
            figure.n++;
        }
        c[k].train[c[k].ntrain++] = (struct point){ .x = s->at[i].length, .y = s->at[i].value,
                                                    .smooth = s->at[i].value };
    }
    status = figure_write(&figure, path);
    for (int k = 0; k < figure.n; k++)
        curve_close(&c[k]);
    free(c);
    return status;
}

/* The values of one axis, ascending, each once. */
struct ticks { double *at; int64_t n; };

static struct ticks ticks_of(const struct scores *s, bool depth)
{
    struct ticks t = { mem_new((size_t)s->n, sizeof *t.at), 0 };

    for (int64_t i = 0; i < s->n; i++) {
        double x = depth ? s->at[i].depth : s->at[i].length;
        int64_t k = 0;
        while (k < t.n && t.at[k] < x)
            k++;
        if (k < t.n && t.at[k] == x)
            continue;
        memmove(t.at + k + 1, t.at + k, (size_t)(t.n - k) * sizeof *t.at);
        t.at[k] = x;
        t.n++;
    }
    return t;
}

static int64_t tick(const struct ticks *t, double x)
{
    int64_t k = 0;

    while (t->at[k] != x)
        k++;
    return k;
}

static void add_ticks(struct text *t, char axis, const struct ticks *ticks)
{
    text_add(t, "set %ctics (", axis);
    for (int64_t i = 0; i < ticks->n; i++)
        text_add(t, "%s'%.10g' %lld", i ? ", " : "", ticks->at[i], (long long)i);
    text_add(t, ") out nomirror\n");
}

/* A panel for every label: length to the right, depth downwards, boxes so that a missing cell stays blank. */
static void add_maps(struct text *t, const struct drawing *d, char (*label)[128], int n, const struct ticks *x,
                     const struct ticks *y)
{
    int columns = n < 2 ? 1 : n < 5 ? 2 : n < 10 ? 3 : 4;

    text_add(t, "set palette defined (0 '#D55E00', 0.5 '#F0E442', 1 '#009E73')\nset cbrange [0:1]\nunset key\n");
    text_add(t, "set style fill solid noborder\nset xrange [-0.5:%lld.5]\nset yrange [%lld.5:-0.5]\n",
             (long long)x->n - 1, (long long)y->n - 1);
    add_ticks(t, 'x', x);
    add_ticks(t, 'y', y);
    if (n > 1)
        text_add(t, "set multiplot layout %d,%d\n", (n + columns - 1) / columns, columns);
    for (int i = 0; i < n; i++) {
        if (n > 1) {
            text_add(t, "set title ");
            drawing_quote(t, label[i]);
            text_add(t, "\n");
        }
        text_add(t, "plot ");
        drawing_quote(t, d->table);
        text_add(t, " skip 1 using ($1 == %d ? $3 : NaN):4:(0.5):(0.5):7 with boxxyerror lc palette, ", i);
        drawing_quote(t, d->table);
        text_add(t, " skip 1 using ($1 == %d ? $3 : NaN):4:(sprintf('%%.2f', $7)) with labels\n", i);
    }
    text_add(t, "%s", n > 1 ? "unset multiplot\n" : "");
}

static int draw_maps(const struct scores *s, const struct frame *f, const char *path)
{
    struct text table = { 0 }, script = { 0 };
    struct ticks x = ticks_of(s, false), y = ticks_of(s, true);
    char label[PANELS][128];
    struct frame frame = *f;
    struct drawing d;
    int n = 0, status = 0;

    text_add(&table, "panel\tlabel\tcolumn\trow\tlength\tdepth\tvalue\n");
    for (int64_t i = 0; i < s->n && !status; i++) {
        const struct score *c = &s->at[i];
        int k = 0;
        while (k < n && strcmp(label[k], c->label))
            k++;
        if (k == PANELS)
            status = fail("plot: more than %d maps in one figure", PANELS);
        else if (k == n)
            memcpy(label[n++], c->label, sizeof c->label);
        text_add(&table, "%d\t%s\t%lld\t%lld\t%.10g\t%.10g", k, c->label, (long long)tick(&x, c->length),
                 (long long)tick(&y, c->depth), c->length, c->depth);
        drawing_number(&table, c->value);
        text_add(&table, "\n");
    }
    frame.title = frame.title ? frame.title : label[0];
    if (!status && !(status = drawing_open(&d, path))) {
        drawing_head(&script, &d, &frame);
        add_maps(&script, &d, label, n, &x, &y);
        status = drawing_finish(&d, &table, &script);
    }
    free(x.at);
    free(y.at);
    return status;
}

/* "runs/a/niah.json" is called niah. */
static void name_of(const char *path, char name[128])
{
    const char *base = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
    size_t n = strcspn(base, ".");

    str_format(name, 128, "%.*s", (int)(n < 127 ? n : 127), base);
}

int results_draw(const char *const *path, int n, const char *const *label, enum results_kind kind, bool log_x,
                 const struct frame *f, const char *out)
{
    static const char *const x[] = { "", "length (tokens)", "length (tokens)", "position (tokens)" };
    static const char *const y[] = { "", "depth (percent)", "score", "loss (nats per token)" };
    struct scores s = { 0 };
    struct frame frame = *f;
    int status = kind == BY_ANY ? find_kind(path[0], &kind) : 0;

    for (int i = 0; i < n && !status; i++) {
        char name[128] = "";
        int found;
        if (n > 1)
            name_of(path[i], name);
        found = read_file(&s, path[i], label ? label[i] : name, kind);
        status = found < 0 ? -1 : found ? 0 : fail("%s: holds no %s", path[i], kind == BY_DEPTH
            ? "results by length and depth" : kind == BY_LENGTH ? "results by length" : "positions");
    }
    frame.xlabel = x[kind];
    frame.ylabel = y[kind];
    if (!status)
        status = kind == BY_DEPTH ? draw_maps(&s, &frame, out) : draw_curves(&s, kind, &frame, log_x, out);
    free(s.at);
    return status;
}
