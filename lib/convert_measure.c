/* convert_measure.c - a stored model run over calibration tokens, a layer at a time.
 *
 * The residual stream of all rows is kept; layer after layer is loaded, run over it and let go. The sums
 * are those of the whole model, so a conversion of no layers gives the same bits. */
#include "convert_parts.h"
#include "op.h"
#include <math.h>

enum { LOGITS = 1 << 26 };               /* of the source, kept for the comparison: 256 MiB */

/* Layer l of the model at dir, alone: its own embedding is one row unless ends are wanted. */
static int open_layer(struct model *m, struct dev *d, const struct config *c, const struct st *st, int l, bool ends)
{
    struct model_use use = { 0 };
    struct config one = *c;
    char own[64], stored[128];
    const char *stem = !strcmp(c->family, "palimpsa") ? "model" : "backbone";
    int status = 0;

    one.layers = 1;
    one.meta[0] = c->meta[l];
    one.gain[0] = c->gain[l];
    memmove(one.mixer[0], c->mixer[l], sizeof one.mixer[0]);
    if (!ends)
        one.vocab = one.vocab_real = 1, one.tied = true;
    if (model_open(m, d, &one, &use))
        return -1;
    snprintf(own, sizeof own, "%s.layers.0.", stem);
    for (int i = 0; i < m->params.n && !status; i++) {
        struct param *a = &m->params.at[i];
        const struct st_tensor *t = NULL;
        float *x;
        if (!strncmp(a->name, own, strlen(own)) &&
            str_format(stored, sizeof stored, "%s.layers.%d.%s", stem, l, a->name + strlen(own)))
            t = st_find(st, stored);
        else if (ends)
            t = ckpt_source(m, st, i);
        if (!t)
            continue;                          /* the one row, the final norm */
        x = mem_new((size_t)t->count, sizeof *x);
        status = st_float(t, x);
        if (!status)
            param_put(d, &a->value, x);
        free(x);
        st_drop(t);
    }
    if (status)
        model_close(m);
    return status;
}

struct watch { double *decay, *evidence; struct model *m; };

/* What layer l's heads would have gathered by writes with softplus(b_scale) = 1 and a gate that is half open, as a
 * fresh one is: the sum over tokens of J_t = a_t J_{t-1} + dt_t/2 mean(k_t^2), with dt_t = -log a_t / exp(A_log). */
static void gather(const struct watch *w, const struct seqs *s, const struct scan_io *x, const float *decay)
{
    struct dev *d = w->m->dev;
    int64_t H = w->m->cfg.heads, G = x->k.dim[1], K = x->k.dim[2];
    size_t mark = arena_mark(&d->temp);
    struct tensor flat = arena_push(&d->temp, SHAPE(F32, s->tokens, G, K));
    float *k = mem_new((size_t)(s->tokens * G * K), sizeof *k), *A = mem_new((size_t)H, sizeof *A);

    op_cast(d, flat, x->k);
    param_get(d, &flat, k);
    param_get(d, &params_find(&w->m->params, "backbone.layers.0.mixer.A_log")->value, A);
    for (int64_t h = 0; h < H; h++)
    for (int n = 0; n < s->n; n++) {
        double J = 0;
        for (int64_t t = s->start[n]; t < s->start[n + 1]; t++) {
            const float *kt = k + (t * G + h * G / H) * K;
            double ld = decay[t * H + h], square = 0;
            for (int64_t i = 0; i < K; i++)
                square += (double)kt[i] * kt[i];
            J = exp(ld) * J - ld / exp(A[h]) / 2 * square / (double)K;
            w->evidence[h] += J;
        }
    }
    free(k);
    free(A);
    arena_pop(&d->temp, mark);
}

static void watch(void *arg, const struct layer *l, const struct seqs *s, const struct scan_io *x)
{
    struct watch *w = arg;
    int H = w->m->cfg.heads;
    float *decay = mem_new((size_t)tensor_count(x->decay), sizeof *decay);

    (void)l;
    param_get(w->m->dev, &x->decay, decay);
    for (int64_t t = 0; t < s->tokens; t++)
        for (int h = 0; h < H; h++)
            w->decay[h] += decay[t * H + h];
    if (w->evidence)
        gather(w, s, x, decay);
    free(decay);
}

static struct tensor row_of(struct tensor x, const struct run_through *r, int64_t i)
{
    return tensor_rows(x, i * r->data->length, r->data->length);
}

/* All rows through one layer. */
static int through(struct model *m, const struct run_through *r, struct tensor x, int layer, bool embed)
{
    int64_t first = (int64_t)layer * m->cfg.heads;
    struct watch w = { r->decay ? r->decay + first : NULL, r->evidence ? r->evidence + first : NULL, m };
    struct pass p = { .watch = r->decay ? watch : NULL, .watch_arg = &w };

    if (model_reserve(m, JOB_LOGITS, r->data->length))
        return -1;
    for (int64_t i = 0; i < r->data->rows; i++) {
        struct batch b;
        if (calibration_row(r->data, i, &b))
            return -1;
        if (embed)
            model_enter(m, &b, row_of(x, r, i));
        model_pass(m, &b, &p, 0, row_of(x, r, i));
    }
    return 0;
}

static int finish(struct model *m, const struct run_through *r, struct tensor x)
{
    float *logits = mem_new((size_t)(r->data->length * m->cfg.vocab), sizeof *logits);
    int status = 0;

    for (int64_t i = 0; i < r->kept && !status; i++) {
        struct batch b;
        status = calibration_row(r->data, i, &b);
        if (status)
            break;
        model_leave(m, row_of(x, r, i), logits);
        status = r->look(r->arg, i, &b, logits, m->cfg.vocab);
    }
    free(logits);
    return status;
}

static int all_layers(struct dev *d, const struct config *c, const struct st *st, const struct run_through *r)
{
    struct tensor x = SHAPE(F32, r->data->rows * r->data->length, c->width);
    struct model ends, one;
    int status;

    if (open_layer(&ends, d, c, st, 0, true))
        return -1;
    x.data = op_alloc(d, (size_t)tensor_count(x) * 4);
    if (!x.data)
        status = fail("no memory for the residual stream of %lld tokens", (long long)x.dim[0]);
    else
        status = through(&ends, r, x, 0, true);
    for (int l = 1; l < c->layers && !status; l++) {
        say_over("layer %d of %d", l + 1, c->layers);
        if (open_layer(&one, d, c, st, l, false))
            status = -1;
        else {
            status = through(&one, r, x, l, false);
            model_close(&one);
        }
    }
    if (!status)
        status = finish(&ends, r, x);
    if (x.data)
        op_release(d, x.data);
    model_close(&ends);
    return status;
}

int convert_run_through(const char *dir, const struct convert_options *o, const struct run_through *r)
{
    struct config c;
    struct st *st;
    struct dev d;
    int status = -1;

    if (ckpt_config(dir, &c) || dev_open(&d, o->device, F32, o->threads))
        return -1;
    st = ckpt_weights(dir);
    if (st)
        status = all_layers(&d, &c, st, r);
    st_close(st);
    dev_close(&d);
    return status;
}

/* log sum exp of the real ids' logits. */
static double total(const float *x, int64_t n)
{
    double most = x[0], sum = 0;

    for (int64_t i = 1; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

static int look_before(void *arg, int64_t row, const struct batch *b, const float *logits, int64_t vocab)
{
    struct convert *c = arg;
    int64_t n = c->src.vocab_real;

    for (int64_t t = 0; t < c->data.length; t++) {
        const float *x = logits + t * vocab;
        memcpy(c->logits + (row * c->data.length + t) * n, x, (size_t)n * sizeof *x);
        if (b->target[t] < 0 || b->target[t] >= n)
            continue;
        c->report->before += total(x, n) - x[b->target[t]];
        c->report->predicted++;
    }
    return 0;
}

int convert_measure(struct convert *c)
{
    struct convert_report *r = c->report;
    int64_t each = c->data.length * c->src.vocab_real, H = c->src.heads, L = c->src.layers;
    struct run_through run = { .data = &c->data, .look = look_before, .arg = c };
    int status;

    c->kept = LOGITS / each < 1 ? 1 : LOGITS / each < c->data.rows ? LOGITS / each : c->data.rows;
    c->logits = mem_new((size_t)(c->kept * each), sizeof *c->logits);
    c->decay = mem_new((size_t)(L * H), sizeof *c->decay);
    run.kept = c->kept;
    run.decay = c->decay;
    if (!strcmp(c->o->init, "gain"))
        run.evidence = c->evidence = mem_new((size_t)(L * H), sizeof *c->evidence);
    status = convert_run_through(c->o->from, c->o, &run);
    r->tokens = c->data.rows * c->data.length;
    for (int64_t i = 0; i < L * H; i++)
        c->decay[i] /= (double)r->tokens;
    for (int64_t i = 0; c->evidence && i < L * H; i++)
        c->evidence[i] /= (double)r->tokens;
    if (!c->o->calibrate) {                    /* drawn ids say nothing about windows */
        free(c->decay);
        c->decay = NULL;
        r->tokens = 0;
    }
    return status;
}

static int look_after(void *arg, int64_t row, const struct batch *b, const float *logits, int64_t vocab)
{
    struct convert *c = arg;
    struct convert_report *r = c->report;
    int64_t n = c->src.vocab_real;

    for (int64_t t = 0; t < c->data.length; t++) {
        const float *x = logits + t * vocab, *y = c->logits + (row * c->data.length + t) * n;
        double zx = total(x, n), zy = total(y, n);
        r->equal &= !memcmp(x, y, (size_t)n * sizeof *x);
        for (int64_t i = 0; i < n; i++) {
            double p = y[i] - zy, q = x[i] - zx;
            r->kl += exp(p) * (p - q);
            r->largest = fmax(r->largest, fabs((double)x[i] - y[i]));
        }
        if (b->target[t] >= 0 && b->target[t] < n)
            r->after += zx - x[b->target[t]];
    }
    return 0;
}

int convert_compare(struct convert *c)
{
    struct convert_report *r = c->report;
    struct run_through run = { .data = &c->data, .kept = c->kept, .look = look_after, .arg = c };
    double predicted = (double)(r->predicted ? r->predicted : 1);

    r->compared = r->equal = true;
    if (convert_run_through(c->aside, c->o, &run))
        return -1;
    r->before /= predicted;
    r->after /= predicted;
    r->kl /= (double)(c->kept * c->data.length);
    if (!isfinite(r->after) || !isfinite(r->kl))
        return fail("%s: the result's loss on the calibration tokens is %g: nothing was written", c->o->to, r->after);
    return 0;
}
