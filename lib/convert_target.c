/* convert_target.c - what the result's config says: form, vocabulary, and which layers become metaplastic.
 *
 * Head h of a layer forgets by a_t = exp(ld_t), so its window is N_h = 1 / (1 - exp(mean_t ld_t)) tokens.
 * A layer's score is the mean over heads of log N_h ("window"), their median ("median"), or the mean for
 * a step that sees only the bias, ld = -exp(A_log) clamp(softplus(dt_bias)) ("bias-only"). The largest
 * scores forget least and win; of equal ones the lower layer. */
#include "convert_parts.h"
#include "json.h"
#include <math.h>

static bool is(const char *a, const char *b)
{
    return !strcmp(a, b);
}

/* Only the family's own mixer can be swapped, and only what is not metaplastic. */
static bool candidate(const struct convert *c, int i)
{
    return !c->src.meta[i] && is(c->src.mixer[i], config_mixer(&c->src));
}

static int list_layers(struct convert *c, const char *s)
{
    while (*s) {
        char *end;
        long x = strtol(s, &end, 10);
        if (end == s || (*end && *end != ',') || x < 0 || x >= c->src.layers || c->chosen[x])
            return fail("--layers %s: expected distinct layers from 0 to %d", c->o->layers, c->src.layers - 1);
        if (!candidate(c, (int)x))
            return fail("--layers %s: layer %ld is %s", c->o->layers, x,
                        c->src.meta[x] ? "metaplastic already" : c->src.mixer[x]);
        c->chosen[x] = true;
        s = *end ? end + 1 : end;
    }
    return 0;
}

/* Which layers, or how many; a list has a comma. What the choice will need must be there. */
static int parse_layers(struct convert *c)
{
    const struct convert_options *o = c->o;
    bool fresh = is(c->src.family, "mamba2") && is(o->form, "palimpsa") && !o->drop;
    const char *s = o->layers;
    int open = 0;
    char *end;
    long x;

    for (int i = 0; i < c->src.layers; i++)
        open += candidate(c, i);
    if (s && strchr(s, ','))
        return list_layers(c, s);
    if (!s)
        c->want = fresh ? (c->src.layers + 7) / 8 : 0;
    else if (is(s, "all"))
        c->want = open;
    else {
        x = strtol(s, &end, 10);
        if (end == s || *end || x < 0 || x > open)
            return fail("--layers %s: expected a count from 0 to %d, layers separated by commas, or all", s, open);
        c->want = (int)x;
    }
    if (!c->want || c->want == open || o->calibrate || is(o->score, "bias-only"))
        return 0;
    return fail("choosing %d of %d layers needs their windows: --calibrate SHARDS measures them, --score "
                "bias-only reads them off the biases, --layers 3,17 names the layers", c->want, open);
}

static void list_gains(const struct config *c, struct text *t)
{
    for (int i = 0; i < c->layers; i++)
        if (c->gain[i])
            text_add(t, "%s%d", t->n ? ", " : "", i);
}

/* Mamba2 forms have no place for b_*; palimpsa's family has no other form. */
static int check_form(const struct convert *c)
{
    const struct convert_options *o = c->o;
    struct text gains = { 0 };
    int status = 0;

    if (is(o->form, "palimpsa"))
        return 0;
    if (is(c->src.family, "palimpsa"))
        return fail("%s: a model of family palimpsa has no %s form", o->from, o->form);
    if (o->layers && !is(o->layers, "0"))
        return fail("--layers %s: the %s form has no metaplastic layers", o->layers, o->form);
    list_gains(&c->src, &gains);
    if (gains.n && !o->drop)
        status = fail("%s: layers %s have metaplastic parameters, for which the %s form has no place; --drop "
                      "leaves them out", o->from, gains.at, o->form);
    text_free(&gains);
    return status;
}

/* Hugging Face's key for this does not exist: which model its library computes depends on its version. */
static void warn_groups(const struct convert *c)
{
    if (!is(c->o->form, "hf") || c->dst.groups < 2)
        return;
    if (c->dst.norm_groups == 1)
        warn("%s: the gated norm spans the whole width; Transformers after 5.22 normalises each of %d groups and "
             "computes another model", c->o->to, c->dst.groups);
    else
        warn("%s: the gated norm has %d groups; Transformers up to 5.22 normalises the whole width and computes "
             "another model", c->o->to, c->dst.norm_groups);
}

int convert_target(struct convert *c)
{
    const struct convert_options *o = c->o;
    struct config *d = &c->dst;
    char *text;

    *d = c->src;
    if (check_form(c))
        return -1;
    if (o->drop && o->layers && !is(o->layers, "0"))
        return fail("--drop takes metaplastic parameters out and --layers puts them in: expected one of the two");
    if (!is(d->family, "palimpsa"))
        snprintf(d->family, sizeof d->family, "%s", is(o->form, "palimpsa") ? "meta_mamba2" : "mamba2");
    d->native = is(o->form, "state-spaces");
    if (!d->native)
        d->rescale_prenorm = false;            /* Transformers would rescale weights that exist */
    if (is(o->init, "gain") && is(d->family, "palimpsa"))
        return fail("--init gain is for Mamba2's layers: expected near or paper for a model of family palimpsa");
    if (is(o->init, "gain") && !o->calibrate)
        return fail("--init gain matches the gain to the keys of a text: expected --calibrate");
    if (o->untie)
        d->tied = false;
    if (o->repad)
        d->vocab = vocab_padded(d->vocab_real, o->repad);
    if (o->drop)
        memset(d->gain, 0, sizeof d->gain), memset(d->meta, 0, sizeof d->meta);
    if (d->rank < 1)
        d->rank = o->rank ? o->rank : d->key;
    else if (o->rank && o->rank != d->rank)
        return fail("--rank %d: %s has metaplastic layers of rank %d", o->rank, o->from, d->rank);
    text = config_text(d);
    free(text);
    if (text)
        warn_groups(c);
    return text ? parse_layers(c) : -1;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Numbers of a small tensor of a layer; false when it has none. */
static bool small(const struct convert *c, int layer, const char *name, float *out)
{
    bool mlp = is(c->src.family, "palimpsa");
    const struct st_tensor *t;
    char full[128];

    str_format(full, sizeof full, mlp ? "model.layers.%d.attn.%s" : "backbone.layers.%d.mixer.%s", layer, name);
    t = st_find(c->st, full);
    return t && t->count == c->src.heads && !st_float(t, out);
}

/* Log decay of every head for a step that sees only its bias. */
static bool bias_decay(const struct convert *c, int layer, double *decay)
{
    int H = c->src.heads;
    float *bias = mem_new((size_t)H, sizeof *bias), *A = mem_new((size_t)H, sizeof *A);
    bool found = small(c, layer, "dt_bias", bias) && small(c, layer, "A_log", A);

    for (int h = 0; h < H && found; h++) {
        double dt = log1p(exp(bias[h]));
        dt = dt < c->src.dt_lo ? c->src.dt_lo : dt > c->src.dt_hi ? c->src.dt_hi : dt;
        decay[h] = -exp(A[h]) * dt;
    }
    free(bias);
    free(A);
    return found;
}

static void score_layer(const struct convert *c, struct convert_layer *l, const double *decay)
{
    int H = c->src.heads;
    double *window = mem_new((size_t)H, sizeof *window), sum = 0;

    for (int h = 0; h < H; h++) {
        window[h] = 1 / -expm1(decay[h]);
        sum += log(window[h]);
    }
    qsort(window, (size_t)H, sizeof *window, ascending);
    l->low = window[0];
    l->high = window[H - 1];
    l->median = (window[(H - 1) / 2] + window[H / 2]) / 2;
    l->score = is(c->o->score, "median") ? log(l->median) : sum / H;
    free(window);
}

static void score(struct convert *c)
{
    struct convert_report *r = c->report;
    bool bias = is(c->o->score, "bias-only");
    double *decay = mem_new((size_t)c->src.heads, sizeof *decay);

    r->layers = c->src.layers;
    for (int i = 0; i < r->layers; i++) {
        r->layer[i] = (struct convert_layer){ LAYER_COPIED, NAN, NAN, NAN, NAN };
        if (!is(c->src.mixer[i], config_mixer(&c->src)))
            continue;
        if (!bias && c->decay)
            score_layer(c, &r->layer[i], c->decay + (int64_t)i * c->src.heads);
        else if (bias && bias_decay(c, i, decay))
            score_layer(c, &r->layer[i], decay);
        r->scored |= isfinite(r->layer[i].score);
    }
    free(decay);
}

/* The best of the candidates that are left; -1 when none is. */
static int best(const struct convert *c)
{
    const struct convert_layer *l = c->report->layer;
    int found = -1;

    for (int i = 0; i < c->src.layers; i++)
        if (candidate(c, i) && !c->chosen[i] && (found < 0 || l[i].score > l[found].score))
            found = i;
    return found;
}

/* Chosen layers get b_*, metaplastic ones keep theirs. Parameters that no layer used go where some are chosen. */
static void set_layers(struct convert *c)
{
    struct convert_report *r = c->report;
    bool some = false;

    for (int i = 0; i < c->src.layers; i++)
        some |= c->chosen[i];
    for (int i = 0; i < c->src.layers; i++) {
        bool had = c->src.gain[i];
        if (c->chosen[i] || some)
            c->dst.gain[i] = c->dst.meta[i] = c->chosen[i] || c->src.meta[i];
        r->layer[i].action = c->chosen[i] ? (had ? LAYER_RENEWED : LAYER_SWAPPED)
                           : !had ? LAYER_COPIED : c->dst.gain[i] ? LAYER_KEPT : LAYER_DROPPED;
        r->swapped += c->chosen[i];
    }
}

void convert_choose(struct convert *c)
{
    score(c);
    for (int i = 0; i < c->want; i++)
        c->chosen[best(c)] = true;
    set_layers(c);
}
