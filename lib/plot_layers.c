/* plot_layers.c - the windows of a conversion's layers, out of its report, and which of them were swapped. */
#include "plot_parts.h"
#include <math.h>

/* One layer of the report as a line of the table. */
static int add_layer(struct text *t, const struct json *j, const char *name, bool *measured, int64_t *last)
{
    static const char *const keys[] = { "score", "window_low", "window_median", "window_high" };
    const char *action;

    if (json_int(j, "layer", last) != 1 || json_string(j, "action", &action) != 1)
        return fail("%s: expected a layer and an action in every entry of layers", name);
    if (*last < 0 || strcspn(action, "\t\n") != strlen(action))
        return fail("%s: layer %lld: expected an action, found '%s'", name, (long long)*last, action);
    text_add(t, "%lld\t%s", (long long)*last, action);
    for (size_t i = 0; i < LEN(keys); i++) {
        double x = NAN;
        if (json_double(j, keys[i], &x) < 0)
            return -1;
        drawing_number(t, x);
        *measured |= i > 0 && isfinite(x);
    }
    text_add(t, "\n");
    return 0;
}

static int add_table(struct text *t, const struct json *j, const char *name, int64_t *last)
{
    const struct json *list = json_at(j, "layers");
    bool measured = false;

    text_add(t, "layer\taction\tscore\tlow\tmedian\thigh\n");
    if (!json_is_array(list) || !json_count(list))
        return fail("%s: expected layers, as palimpsa convert writes them", name);
    for (const struct json *l = json_first(list); l; l = json_next(l))
        if (add_layer(t, l, name, &measured, last))
            return -1;
    if (!measured)
        return fail("%s: holds no windows: palimpsa convert measures them with --calibrate or --score bias-only", name);
    return 0;
}

static void add_kind(struct text *t, const char *table, const char *test, const char *color, const char *title)
{
    drawing_quote(t, table);
    text_add(t, " skip 1 using 1:(%s ? $5 : NaN):4:6 with yerrorbars pt 7 ps 0.7 lw 1.5 lc rgb '%s' title '%s'", test,
             color, title);
}

int layers_draw(const char *report, const struct frame *f, const char *path)
{
    static const char chosen[] = "strcol(2) eq 'swapped' || strcol(2) eq 'renewed'";
    struct text table = { 0 }, script = { 0 };
    struct drawing d;
    char test[128];
    int64_t last = 0;
    size_t n;
    char *text;
    struct json *j;
    int status = -1;

    text = file_read(report, &n);
    j = text ? json_parse(text, n, report) : NULL;
    free(text);
    if (j)
        status = add_table(&table, j, report, &last) || drawing_open(&d, path) ? -1 : 0;
    json_free(j);
    if (status) {
        text_free(&table);
        return -1;
    }
    drawing_head(&script, &d, f);
    text_add(&script, "set grid y\nset key top left\nset logscale y\nset xrange [-0.5:%lld.5]\n%splot \\\n    ",
             (long long)last, last < 24 ? "set xtics 1\n" : "");
    str_format(test, sizeof test, "!(%s)", chosen);
    add_kind(&script, d.table, test, "#0072B2", "as it was");
    text_add(&script, ", \\\n    ");
    add_kind(&script, d.table, chosen, "#D55E00", "made metaplastic");
    text_add(&script, "\n");
    return drawing_finish(&d, &table, &script);
}
