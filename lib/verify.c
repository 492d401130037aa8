/* verify.c - logits, loss, every gradient, packing and decoding compared with a reference file. */
#include "verify.h"
#include "safetensors.h"
#include "session.h"
#include <math.h>

struct verify {
    struct model *m;
    struct st *f;
    const char *path;
    struct verify_bounds bound;
    void (*line)(void *arg, const struct verify_line *l);
    void *arg;
    bool  bad;
    int32_t *ids, *target, *start;       /* [B*T], [B*T], [max(B,documents)+1] */
    int64_t B, T;
};

static void report(struct verify *v, const char *name, double error, double bound, bool exact)
{
    struct verify_line l = { name, error, bound, exact };

    if (!(error <= bound))
        v->bad = true;
    v->line(v->arg, &l);
}

static double relative(const float *got, const float *want, int64_t n)
{
    double diff = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        double e = (double)got[i] - want[i];
        diff += e * e;
        size += (double)want[i] * want[i];
    }
    return sqrt(diff) / (sqrt(size) + 1e-30);
}

static float *floats(const struct verify *v, const struct st_tensor *t, int64_t count)
{
    float *x;

    if (t->count != count) {
        fail("%s: %s: expected %lld numbers, found %lld", v->path, t->name, (long long)count, (long long)t->count);
        return NULL;
    }
    x = mem_new((size_t)count, sizeof *x);
    if (!st_float(t, x))
        return x;
    free(x);
    return NULL;
}

static int read_ids(struct verify *v)
{
    const struct st_tensor *t = st_find(v->f, "input_ids");

    if (!t || t->ndim != 2 || t->count < 2 || t->count > INT32_MAX)
        return fail("%s: expected input_ids of two dimensions", v->path);
    v->B = t->dim[0];
    v->T = t->dim[1];
    v->ids = mem_new((size_t)t->count, sizeof *v->ids);
    v->target = mem_new((size_t)t->count, sizeof *v->target);
    v->start = mem_new((size_t)(v->B + v->T) + 2, sizeof *v->start);
    if (st_int(t, v->ids))
        return -1;
    for (int64_t i = 0; i < t->count; i++) {
        if (v->ids[i] < 0 || v->ids[i] >= v->m->cfg.vocab)
            return fail("%s: input_ids: %d is outside the vocabulary of %lld", v->path, v->ids[i],
                        (long long)v->m->cfg.vocab);
        v->target[i] = (i + 1) % v->T ? v->ids[i + 1] : -1;
    }
    return 0;
}

static struct batch whole(struct verify *v)
{
    for (int64_t i = 0; i <= v->B; i++)
        v->start[i] = (int32_t)(i * v->T);
    return (struct batch){ .token = v->ids, .target = v->target, .seqs = seqs_of(v->start, (int)v->B),
                           .predicted = v->B * (v->T - 1) };
}

static int check_logits(struct verify *v, const char *name, const struct batch *b)
{
    const struct st_tensor *t = st_find(v->f, name);
    int64_t n = b->seqs.tokens * v->m->cfg.vocab;
    float *want, *got;

    if (!t)
        return 0;
    want = floats(v, t, n);
    if (!want)
        return -1;
    got = mem_new((size_t)n, sizeof *got);
    if (model_reserve(v->m, JOB_LOGITS, b->seqs.tokens))
        return -1;
    model_logits(v->m, b, NULL, false, got);
    report(v, name, relative(got, want, n), v->bound.logits, false);
    free(got);
    free(want);
    return 0;
}

static int check_packed(struct verify *v)
{
    const struct st_tensor *cuts = st_find(v->f, "cu_seqlens");
    struct batch b = { .token = v->ids };

    if (!cuts || !st_find(v->f, "packed_logits"))
        return 0;
    if (cuts->count < 2 || cuts->count > v->B + v->T + 1 || st_int(cuts, v->start) || v->start[0] ||
        v->start[cuts->count - 1] != v->T)
        return fail("%s: cu_seqlens: expected cuts from 0 to %lld", v->path, (long long)v->T);
    for (int64_t i = 1; i < cuts->count; i++)
        if (v->start[i] < v->start[i - 1])
            return fail("%s: cu_seqlens: %d after %d", v->path, v->start[i], v->start[i - 1]);
    b.seqs = seqs_of(v->start, (int)cuts->count - 1);
    return check_logits(v, "packed_logits", &b);
}

static int check_grads(struct verify *v, const struct batch *b)
{
    struct params *p = &v->m->params;
    double loss, reference = 0;
    const struct st_tensor *t = st_find(v->f, "loss");
    float *want;

    if (!t)
        return 0;
    want = floats(v, t, 1);
    if (!want)
        return -1;
    reference = want[0];
    free(want);
    if (!p->at[0].grad.data) {
        if (model_reserve(v->m, JOB_LOSS, b->seqs.tokens))
            return -1;
        loss = model_loss(v->m, b, NULL, NULL) / (double)b->predicted;
        report(v, "loss", fabs(loss - reference), v->bound.loss, false);
        return 0;
    }
    if (model_reserve(v->m, JOB_LEARN, b->seqs.tokens))
        return -1;
    params_zero_grad(p, v->m->dev);
    loss = model_learn(v->m, b, 1 / (float)b->predicted, NULL, NULL) / (double)b->predicted;
    report(v, "loss", fabs(loss - reference), v->bound.loss, false);
    for (int i = 0; i < p->n; i++) {
        char name[128];
        int64_t n = tensor_count(p->at[i].value);
        float *got;
        snprintf(name, sizeof name, "grad.%s", p->at[i].name);
        if (!(t = st_find(v->f, name)))
            continue;
        if (!(want = floats(v, t, n)))
            return -1;
        got = mem_new((size_t)n, sizeof *got);
        if (p->at[i].grad.data)                    /* what is frozen has none */
            param_get(v->m->dev, &p->at[i].grad, got);
        report(v, t->name, relative(got, want, n), v->bound.grad, false);
        free(got);
        free(want);
    }
    return 0;
}

/* The first row continued by its most likely token, one at a time with carried memory. */
static int check_greedy(struct verify *v)
{
    const struct st_tensor *t = st_find(v->f, "greedy");
    struct session s;
    int32_t *want;
    float *logits;
    int64_t wrong = 0;

    if (!t)
        return 0;
    if (t->count <= v->T)
        return fail("%s: greedy: expected more than %lld ids, found %lld", v->path, (long long)v->T,
                    (long long)t->count);
    want = mem_new((size_t)t->count, sizeof *want);
    logits = mem_new((size_t)v->m->cfg.vocab, sizeof *logits);
    if (st_int(t, want) || session_open(&s, v->m, 1))
        return -1;
    session_feed(&s, (const int32_t *[]){ v->ids }, &v->T, logits);
    for (int64_t i = v->T; i < t->count; i++) {
        int32_t next = argmax(logits, v->m->cfg.vocab_real);
        wrong += next != want[i];
        session_feed(&s, (const int32_t *[]){ &next }, &(int64_t){ 1 }, logits);
    }
    report(v, "greedy", (double)wrong, 0, true);
    session_close(&s);
    free(logits);
    free(want);
    return 0;
}

int verify_model(struct model *m, const char *against, const struct verify_bounds *b,
                 void (*line)(void *arg, const struct verify_line *l), void *arg)
{
    struct verify v = { .m = m, .f = st_open(against), .path = against, .bound = *b, .line = line, .arg = arg };
    int status = -1;

    if (!v.f)
        return -1;
    if (!read_ids(&v)) {
        struct batch all = whole(&v);
        status = check_logits(&v, "logits", &all) || check_grads(&v, &all) || check_packed(&v) || check_greedy(&v) ? -1
                 : v.bad ? 1 : 0;
    }
    free(v.ids);
    free(v.target);
    free(v.start);
    st_close(v.f);
    return status;
}
