/* plot_heat.c - what metrics.jsonl, or the table of `info --plasticity`, says of every head's memory, as a map. */
#include "config.h"
#include "plot_parts.h"
#include <math.h>

enum { KEYS = 5, HEADS = 1 << 16 };
static const char *const keys[KEYS] = { "spread", "gain", "window", "b", "b_scale" };

struct cell { int64_t step; int layer, head; double x[KEYS]; };
struct heat { struct cell *at; int64_t n, cap; };

static void heat_add(struct heat *h, const struct cell *c)
{
    if (h->n == h->cap) {
        h->cap = h->cap ? 2 * h->cap : 256;
        h->at = mem_grow(h->at, (size_t)h->cap, sizeof *h->at);
    }
    h->at[h->n++] = *c;
}

static int head_line(struct heat *h, int64_t step, int layer, const struct json *row[KEYS], const char *name)
{
    const struct json *cell[KEYS];

    for (int k = 0; k < KEYS; k++)
        cell[k] = json_first(row[k]);
    for (int head = 0; cell[0]; head++) {
        struct cell c = { .step = step, .layer = layer, .head = head };
        for (int k = 0; k < KEYS; k++) {
            c.x[k] = NAN;                              /* null: not finite */
            if (!cell[k] || head == HEADS)
                return fail("%s: plasticity: layer %d: expected as many heads in %s as in spread", name, layer,
                            keys[k]);
            json_number(cell[k], &c.x[k]);
            cell[k] = json_next(cell[k]);
        }
        heat_add(h, &c);
    }
    return 0;
}

/* The later of two lines of one step counts, as in a curve. */
static int read_line(void *arg, const struct json *j, const char *name)
{
    struct heat *h = arg;
    const struct json *p = json_at(j, "plasticity"), *row[KEYS];
    int64_t step, layer;

    if (!p)
        return 0;
    if (json_int(j, "step", &step) != 1 || !json_is_array(json_at(p, "layers")))
        return fail("%s: expected a step and layers beside plasticity", name);
    while (h->n && h->at[h->n - 1].step >= step)
        h->n--;
    for (int k = 0; k < KEYS; k++) {
        if (!json_is_array(json_at(p, keys[k])))
            return fail("%s: plasticity: expected %s", name, keys[k]);
        row[k] = json_first(json_at(p, keys[k]));
    }
    for (const struct json *l = json_first(json_at(p, "layers")); l; l = json_next(l)) {
        double number;
        if (!json_number(l, &number) || !(number >= 0 && number < MAX_LAYERS))
            return fail("%s: plasticity: expected numbers of layers", name);
        layer = (int64_t)number;
        for (int k = 0; k < KEYS; k++)
            if (!row[k] || !json_is_array(row[k]))
                return fail("%s: plasticity: expected a list of heads for layer %lld in %s", name, (long long)layer,
                            keys[k]);
        if (head_line(h, step, (int)layer, row, name))
            return -1;
        for (int k = 0; k < KEYS; k++)
            row[k] = json_next(row[k]);
    }
    return 0;
}

/* A whole number below limit and then a tab; -1 where there is none. */
static long take_place(char **at, long limit)
{
    char *end;
    long x = strtol(*at, &end, 10);

    if (end == *at || *end != '\t' || x < 0 || x >= limit)
        return -1;
    *at = end + 1;
    return x;
}

/* A line of `palimpsa info --plasticity`; layers that are not metaplastic have spread 0 and are left blank. */
static int table_line(struct heat *h, char *line, const char *name)
{
    struct cell c = { .layer = (int)take_place(&line, MAX_LAYERS) };

    c.head = c.layer < 0 ? -1 : (int)take_place(&line, HEADS);
    for (int k = 0; k < KEYS && c.head >= 0; k++) {
        char *end;
        c.x[k] = strtod(line, &end);
        if (end == line || *end != (k + 1 < KEYS ? '\t' : 0))
            c.head = -1;
        line = end + 1;
    }
    if (c.head < 0)
        return fail("%s: expected a layer, a head and %d numbers between tabs", name, KEYS);
    if (c.x[0] > 0)
        heat_add(h, &c);
    return 0;
}

static int read_table(struct heat *h, const char *path)
{
    static const char head[] = "layer\thead\tspread\tgain\twindow\tb\tb_scale";
    size_t n;
    char *text = file_read(path, &n), *next;
    int64_t number = 1;
    int status = text ? 0 : -1;

    for (char *line = text; !status && line && *line; line = next, number++) {
        char name[4200];
        size_t length = strcspn(line, "\n");
        next = line + length + (line[length] == '\n');
        line[length] = 0;
        if (!str_format(name, sizeof name, "%s:%lld", path, (long long)number))
            status = fail("%s: this path is too long", path);
        else if (number > 1)
            status = table_line(h, line, name);
        else if (strcmp(line, head))
            status = fail("%s: expected the table of palimpsa info --plasticity", path);
    }
    free(text);
    return status;
}

static bool is_table(const char *path)
{
    size_t n = strlen(path);

    return n > 4 && !strcmp(path + n - 4, ".tsv");
}

static void add_table(struct text *t, const struct heat *h)
{
    text_add(t, "step\tlayer\thead");
    for (int k = 0; k < KEYS; k++)
        text_add(t, "\t%s", keys[k]);
    for (int64_t i = 0; i < h->n; i++) {
        const struct cell *c = &h->at[i];
        text_add(t, "\n%lld\t%d\t%d", (long long)c->step, c->layer, c->head);
        for (int k = 0; k < KEYS; k++)
            drawing_number(t, c->x[k]);
    }
    text_add(t, "\n");
}

/* Boxes and not an image: between metaplastic layers there may be others, which stay blank. */
static void add_map(struct text *t, const struct heat *h, int64_t step, int key, const char *table)
{
    int low = MAX_LAYERS, high = 0, heads = 0;

    for (int64_t i = 0; i < h->n; i++) {
        const struct cell *c = &h->at[i];
        low = c->layer < low ? c->layer : low;
        high = c->layer > high ? c->layer : high;
        heads = c->head + 1 > heads ? c->head + 1 : heads;
    }
    text_add(t, "set palette defined (0 '#440154', 1 '#3B528B', 2 '#21918C', 3 '#5EC962', 4 '#FDE725')\nset cblabel ");
    drawing_quote(t, keys[key]);
    text_add(t, "\nset xrange [-0.5:%d.5]\nset yrange [%g:%d.5]\nset xtics %sout nomirror\nset ytics %sout nomirror\n"
             "unset key\nset style fill solid noborder\nplot ", heads - 1, low - 0.5, high, heads < 24 ? "1 " : "",
             high - low < 24 ? "1 " : "");
    drawing_quote(t, table);
    text_add(t, " skip 1 using ($1 == %lld ? $3 : NaN):2:(0.5):(0.5):%d with boxxyerror lc palette\n", (long long)step,
             4 + key);
}

static int find_key(const char *key)
{
    int k = 0;

    while (k < KEYS && strcmp(key, keys[k]))
        k++;
    REQUIRE(k < KEYS);
    return k;
}

int heat_draw(const char *run, const char *key, int64_t step, const struct frame *f, const char *path)
{
    struct text table = { 0 }, script = { 0 };
    struct heat h = { 0 };
    struct drawing d;
    char file[4096];
    bool found = false;
    bool printed = is_table(run);
    int status = printed ? read_table(&h, run) : record_read(run, file, read_line, &h);

    if (!status && printed && !h.n)
        status = fail("%s: no layer is metaplastic: there is nothing to draw", run);
    if (!status && step < 0 && h.n)
        step = h.at[h.n - 1].step;
    for (int64_t i = 0; i < h.n; i++)
        found |= h.at[i].step == step;
    if (!status && !h.n)
        status = fail("%s: expected lines with plasticity, which pretrain and finetune write with --plasticity-every",
                      file);
    else if (!status && !found)
        status = fail("%s: holds no plasticity of step %lld", run, (long long)step);
    if (!status && !(status = drawing_open(&d, path))) {
        add_table(&table, &h);
        drawing_head(&script, &d, f);
        add_map(&script, &h, step, find_key(key), d.table);
        status = drawing_finish(&d, &table, &script);
    }
    free(h.at);
    return status;
}
