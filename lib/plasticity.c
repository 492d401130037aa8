/* plasticity.c - reads what a scan was given and what it left, on the host, after the fact. */
#include "plasticity.h"
#include "op.h"
#include <math.h>

/* A tensor of the device as dense floats; the caller frees. */
static float *host_copy(struct dev *d, struct tensor t)
{
    size_t mark = arena_mark(&d->temp);
    struct tensor flat = tensor_like(t);
    float *x = mem_new((size_t)tensor_count(t), sizeof *x);

    flat.type = F32;
    flat = arena_push(&d->temp, flat);
    op_cast(d, flat, t);
    param_get(d, &flat, x);
    arena_pop(&d->temp, mark);
    return x;
}

static double softplus(double x)
{
    return x > 30 ? x : log1p(exp(x));
}

int plasticity_open(struct plasticity *p, struct model *m, int64_t longest)
{
    size_t n = (size_t)m->cfg.layers * (size_t)m->cfg.heads;

    *p = (struct plasticity){ .model = m, .at = mem_new(n, sizeof *p->at), .decay = mem_new(n, sizeof *p->decay),
                              .b = mem_new(n, sizeof *p->b) };
    if (model_reserve(m, JOB_LOGITS, longest))
        return -1;
    return model_state_open(m, &p->state, 1);
}

void plasticity_clear(struct plasticity *p)
{
    size_t n = (size_t)p->model->cfg.layers * (size_t)p->model->cfg.heads;

    memset(p->at, 0, n * sizeof *p->at);
    memset(p->decay, 0, n * sizeof *p->decay);
    memset(p->b, 0, n * sizeof *p->b);
    p->tokens = p->sequences = 0;
}

static void watch(void *arg, const struct layer *l, const struct seqs *s, const struct scan_io *x)
{
    struct plasticity *p = arg;
    int H = p->model->cfg.heads, V = p->model->cfg.value;
    float *decay = host_copy(p->model->dev, x->decay);
    float *b = x->beta.data ? host_copy(p->model->dev, x->beta) : NULL;

    for (int64_t t = 0; t < s->tokens; t++)
        for (int h = 0; h < H; h++) {
            p->decay[l->index * H + h] += decay[t * H + h];
            for (int v = 0; b && v < V; v++)
                p->b[l->index * H + h] += b[(t * H + h) * V + v] / (double)V;
        }
    free(decay);
    free(b);
}

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Spread and gain of one head from its J [V*K]. */
static void read_head(struct plasticity_head *out, float *J, int64_t n, double prior)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += J[i];
    qsort(J, (size_t)n, sizeof *J, ascending);
    out->spread += (J[(int64_t)(0.99 * (double)(n - 1))] + prior) / (J[(int64_t)(0.01 * (double)(n - 1))] + prior);
    out->gain += sum / (double)n / prior;
}

static void head_numbers(struct plasticity *p, int layer, const char *name, double *out)
{
    struct params *q = &p->model->params;

    for (int i = 0; i < q->n; i++) {
        const struct param *a = &q->at[i];
        size_t n = strlen(a->name), m = strlen(name);
        char where[32];
        float *x;
        snprintf(where, sizeof where, ".layers.%d.", layer);
        if (!strstr(a->name, where) || n < m || strcmp(a->name + n - m, name))
            continue;
        x = host_copy(p->model->dev, a->value);
        for (int h = 0; h < p->model->cfg.heads; h++)
            out[h] = x[h];
        free(x);
    }
}

void plasticity_add(struct plasticity *p, const int32_t *ids, int64_t n)
{
    struct model *m = p->model;
    int32_t start[2] = { 0, (int32_t)n };
    struct batch b = { .token = ids, .seqs = seqs_of(start, 1) };
    struct pass pass = { .state = p->state.at, .fresh = true, .watch = watch, .watch_arg = p };
    float *logits = mem_new((size_t)m->cfg.vocab, sizeof *logits);
    int64_t VK = (int64_t)m->cfg.value * m->cfg.key, H = m->cfg.heads;
    double *prior = mem_new((size_t)H, sizeof *prior);

    model_logits(m, &b, &pass, true, logits);
    for (int l = 0; l < m->cfg.layers; l++) {
        float *J;
        if (!m->cfg.meta[l])
            continue;
        J = mem_new((size_t)(H * VK), sizeof *J);
        param_get(m->dev, &p->state.at[l][1], J);
        head_numbers(p, l, ".Ip_log", prior);
        for (int64_t h = 0; h < H; h++)
            read_head(&p->at[l * H + h], J + h * VK, VK, exp(prior[h]));
        free(J);
    }
    p->tokens += n;
    p->sequences++;
    free(prior);
    free(logits);
}

void plasticity_finish(struct plasticity *p)
{
    int H = p->model->cfg.heads;
    double *scale = mem_new((size_t)H, sizeof *scale);

    for (int l = 0; l < p->model->cfg.layers; l++) {
        head_numbers(p, l, ".b_scale", scale);
        for (int h = 0; h < H; h++) {
            struct plasticity_head *a = &p->at[l * H + h];
            a->spread /= (double)p->sequences;
            a->gain /= (double)p->sequences;
            a->window = 1 / -expm1(p->decay[l * H + h] / (double)p->tokens);
            a->b = p->b[l * H + h] / (double)p->tokens;
            a->b_scale = p->model->cfg.meta[l] ? softplus(scale[h]) : 0;
        }
    }
    free(scale);
}

void plasticity_close(struct plasticity *p)
{
    if (p->state.at)
        model_state_close(p->model, &p->state);
    free(p->at);
    free(p->decay);
    free(p->b);
}

void doubt_open(struct doubt *d, struct dev *dev, int64_t tokens)
{
    *d = (struct doubt){ .dev = dev, .tokens = tokens, .sum = mem_new((size_t)tokens, sizeof *d->sum),
                         .prior = mem_new((size_t)tokens, sizeof *d->prior) };
}

void doubt_close(struct doubt *d)
{
    free(d->sum);
    free(d->prior);
}

/* An empty memory answers with variance scale * |q|^2 / Ip in each of the V outputs. */
void doubt_watch(void *arg, const struct layer *l, const struct seqs *s, const struct scan_io *x)
{
    struct doubt *d = arg;
    int64_t H = x->v.dim[1], V = x->v.dim[2], K = x->q.dim[2], Hq = x->q.dim[1];
    float *var, *q, *prior;

    (void)l;
    if (!x->var.data)
        return;
    REQUIRE(s->tokens <= d->tokens);
    var = host_copy(d->dev, x->var);
    q = host_copy(d->dev, x->q);
    prior = host_copy(d->dev, x->prior[0]);
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t h = 0; h < H; h++) {
            double square = 0;
            for (int64_t k = 0; k < K; k++) {
                double one = q[(t * Hq + h * Hq / H) * K + k];
                square += one * one;
            }
            for (int64_t v = 0; v < V; v++)
                d->sum[t] += var[(t * H + h) * V + v];
            d->prior[t] += x->scale * square * exp(-(double)prior[h]) * (double)V;
        }
    free(var);
    free(q);
    free(prior);
}

double doubt_of(const struct doubt *d, int64_t token)
{
    return d->prior[token] > 0 ? d->sum[token] / d->prior[token] : NAN;
}
