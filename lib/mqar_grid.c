/* mqar_grid.c - from lists to the runs of an experiment, and what their files say about them. */
#define _POSIX_C_SOURCE 200809L
#include "mqar_grid.h"
#include "json.h"
#include <math.h>
#include <unistd.h>

/* laptop: minutes on two cores; short examples in the mix teach what the long ones need. paper: the figure of
 * arXiv 2602.09075, hours on a GPU. */
struct mqar_options mqar_preset(const char *name)
{
    struct mqar_options o = {
        .models = "palimpsa-d,palimpsa-d-twin,mamba2", .lengths = "32:4+64:8+128:16", .rates = "0.005,0.01", .seeds = 1,
        .first_seed = 1, .train = 4096, .fresh = true, .test = 500, .epochs = 16, .batch_tokens = 2048, .vocab = 160,
        .layers = 2, .width = 64, .heads = 4, .key = 4, .value = 16, .rank = 16, .tied = true,
        .beta2 = 0.999, .weight_decay = 0.1, .clip = 1, .stop_at = 0.999, .data_seed = 1, .dtype = "fp32",
        .device = "auto", .save_every = 5,
    };

    if (strcmp(name, "paper"))
        return o;
    o.models = MQAR_MODELS;
    o.lengths = "512:128,1024:256";
    o.rates = "0.001,0.00215,0.00464,0.01";
    o.seeds = 8;
    o.train = 100000;
    o.fresh = false;
    o.test = 3000;
    o.epochs = 60;
    o.batch_tokens = 65536;
    o.vocab = 8192;
    o.width = 128;
    o.heads = 8;
    o.key = 16;
    o.value = 32;
    o.stop_at = 0.99;                    /* where the published experiment's code stops */
    return o;
}

const char *mqar_state_name(enum mqar_state s)
{
    static const char *const name[] = { "waits", "runs", "unfinished", "finished", "diverged", "failed" };

    return name[s];
}

/* The n-th item of a list separated by commas; false after the last. */
static bool item(const char *list, int n, char *out, size_t size)
{
    while (n-- > 0 && list)
        list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL;
    return list && str_format(out, size, "%.*s", (int)strcspn(list, ","), list);
}

/* The last part of a path. */
static const char *last_part(const char *model)
{
    const char *slash = strrchr(model, '/');

    return slash ? slash + 1 : model;
}

static int read_models(struct mqar_grid *g)
{
    char name[256];

    for (; item(g->o->models, g->models, name, sizeof name); g->models++) {
        struct config c;
        for (size_t n = strlen(name); n > 1 && name[n - 1] == '/'; n--)
            name[n - 1] = '\0';
        if (strpbrk(name, "\"\\|\t\n"))
            return fail("--models: '%s' has a character that tables cannot hold", name);
        for (int i = 0; i < g->models; i++)
            if (!strcmp(name, g->model[i]))
                return fail("--models: %s stands there twice", name);
            else if (!strcmp(last_part(name), last_part(g->model[i])))
                return fail("--models: the runs of %s and %s would share directories", g->model[i], name);
        if (mqar_config(&c, g->o, name, mqar_mix_longest(&g->mix[0])))
            return -1;
        g->model = mem_grow(g->model, (size_t)g->models + 1, sizeof *g->model);
        str_format(g->model[g->models], sizeof *g->model, "%s", name);
    }
    return 0;
}

static int read_rates(struct mqar_grid *g)
{
    char text[64];

    for (; item(g->o->rates, g->rates, text, sizeof text); g->rates++) {
        char *end;
        double x = strtod(text, &end);
        if (end == text || *end || !(x > 0) || !(x <= 1))
            return fail("--lr: expected rates above 0 and up to 1, separated by commas, found '%s'", text);
        for (int i = 0; i < g->rates; i++)
            if (x == g->rate[i])
                return fail("--lr: %s stands there twice", text);
        g->rate = mem_grow(g->rate, (size_t)g->rates + 1, sizeof *g->rate);
        g->rate[g->rates] = x;
    }
    return 0;
}

static int check_sizes(const struct mqar_grid *g)
{
    const struct mqar_options *o = g->o;
    char mix[256], other[256];

    for (int i = 0; i < g->mixes; i++) {
        int64_t longest = mqar_mix_longest(&g->mix[i]), batch = o->batch_tokens / longest;
        for (int j = 0; j < i; j++)
            if (mqar_mix_text(&g->mix[i], mix, sizeof mix) && mqar_mix_text(&g->mix[j], other, sizeof other) &&
                !strcmp(mix, other))
                return fail("--lengths: %s stands there twice", mix);
        if (!batch)
            return fail("--batch-tokens: expected at least the length %lld, found %lld", (long long)longest,
                        (long long)o->batch_tokens);
        if (o->train < batch)
            return fail("--train: expected at least a batch of %lld examples, found %lld", (long long)batch,
                        (long long)o->train);
    }
    return 0;
}

/* A name for a directory: lengths with x, a config or a model by the last part of its path. */
static int name_job(struct mqar_job *j)
{
    const char *model = last_part(j->model);
    size_t n = strlen(model);
    char mix[256];

    if (n > 5 && !strcmp(model + n - 5, ".json"))
        n -= 5;
    if (!mqar_mix_text(&j->mix, mix, sizeof mix) ||
        !str_format(j->name, sizeof j->name, "%.*s_%s_lr%g_seed%llu", (int)n, model, mix, j->lr,
                    (unsigned long long)j->seed))
        return fail("%s: this name is too long", j->model);
    for (char *s = j->name; *s; s++)
        *s = *s == ':' ? 'x' : *s;
    return 0;
}

/* Seeds outermost: in the tables those that choose a rate come before the others. */
static int make_cells(struct mqar_grid *g)
{
    g->cell = mem_new((size_t)(g->o->seeds * g->mixes * g->rates * g->models), sizeof *g->cell);
    for (int64_t seed = 0; seed < g->o->seeds; seed++)
    for (int x = 0; x < g->mixes; x++)
    for (int r = 0; r < g->rates; r++)
    for (int m = 0; m < g->models; m++) {
        struct mqar_cell *c = &g->cell[g->n];
        c->seed = (int)seed, c->mix = x, c->rate = r, c->model = m;
        c->job = (struct mqar_job){ .mix = g->mix[x], .lr = g->rate[r], .seed = (uint64_t)(g->o->first_seed + seed) };
        str_format(c->job.model, sizeof c->job.model, "%s", g->model[m]);
        c->told.job = g->n++;
        if (name_job(&c->job))
            return -1;
    }
    return 0;
}

int mqar_grid_open(struct mqar_grid *g, const struct mqar_options *o)
{
    *g = (struct mqar_grid){ .o = o };
    g->mixes = mqar_mixes(&g->mix, o->lengths, o->vocab, o->random, "--lengths");
    if (g->mixes < 0 || read_models(g) || read_rates(g) || check_sizes(g) || make_cells(g)) {
        mqar_grid_close(g);
        return -1;
    }
    return 0;
}

void mqar_grid_close(struct mqar_grid *g)
{
    free(g->cell);
    free(g->mix);
    free(g->model);
    free(g->rate);
    *g = (struct mqar_grid){ 0 };
}

bool mqar_cell_path(const struct mqar_grid *g, const struct mqar_cell *c, const char *name, char *out, size_t size)
{
    return str_format(out, size, "%s/runs/%s%s%s", g->o->out, c->job.name, *name ? "/" : "", name);
}

static double number_in(const struct json *j, const char *key)
{
    const char *s = json_text(json_at(j, key));

    return s ? strtod(s, NULL) : NAN;
}

static int read_result(struct mqar_cell *c, const struct json *j, const char *path)
{
    const struct json *settings = json_at(j, "settings"), *e = json_first(json_at(j, "results"));
    const char *status = json_text(json_at(settings, "status"));
    struct mqar_told *t = &c->told;

    if (!status || json_int(settings, "epoch", &t->epoch) != 1 || json_count(json_at(j, "results")) != c->job.mix.n)
        return fail("%s: not the result of a recall run", path);
    t->state = strcmp(status, "diverged") ? MQAR_FINISHED : MQAR_DIVERGED;
    t->loss = number_in(settings, "loss");
    t->seconds = number_in(settings, "seconds");
    for (int k = 0; e; e = json_next(e), k++) {
        t->error[k] = NAN;
        if (json_double(e, "value", &t->accuracy[k]) != 1 || (json_at(e, "stderr") &&
            json_double(e, "stderr", &t->error[k]) != 1))
            return fail("%s: not the result of a recall run", path);
    }
    return 0;
}

/* The last whole line of metrics. */
static void read_metrics(struct mqar_cell *c, const char *text, size_t n)
{
    size_t end = n, begin;
    struct json *j;

    while (end && text[end - 1] != '\n')
        end--;
    for (begin = end ? end - 1 : 0; begin && text[begin - 1] != '\n'; begin--)
        ;
    j = end ? json_parse(text + begin, end - begin, "metrics.jsonl") : NULL;
    if (j && json_int(j, "epoch", &c->told.epoch) == 1 && json_double(j, "loss", &c->told.loss) == 1 &&
        json_double(j, "seconds", &c->told.seconds) == 1)
        for (int k = 0; k < c->job.mix.n; k++) {
            char key[64];
            snprintf(key, sizeof key, "%lld:%lld", (long long)c->job.mix.at[k].length,
                     (long long)c->job.mix.at[k].pairs);
            c->told.error[k] = NAN;
            json_double(j, key, &c->told.accuracy[k]);
        }
    json_free(j);
}

int mqar_cell_read(const struct mqar_grid *g, struct mqar_cell *c)
{
    char path[4096], *text;
    struct json *j;
    size_t n;
    int status = 0;

    c->told = (struct mqar_told){ .job = c->told.job };
    if (!mqar_cell_path(g, c, "result.json", path, sizeof path))
        return fail("%s: path too long", g->o->out);
    if (!access(path, F_OK)) {
        text = file_read(path, &n);
        j = text ? json_parse(text, n, path) : NULL;
        status = j ? read_result(c, j, path) : -1;
        json_free(j);
        free(text);
        return status;
    }
    if (mqar_cell_path(g, c, "metrics.jsonl", path, sizeof path) && !access(path, F_OK)) {
        text = file_read(path, &n);
        if (!text)
            return -1;
        read_metrics(c, text, n);
        free(text);
        c->told.state = MQAR_STOPPED;
    }
    return 0;
}
