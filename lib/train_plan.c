/* train_plan.c - what a run will cost, said before it starts. */
#include "memory.h"
#include "train_parts.h"
#include <math.h>

/* Learning, and validation or the search for a bad number: the larger of each arena. */
static int plan(struct train *t, int64_t micro, bool recompute, struct model_plan *out)
{
    struct model_use use = train_use(t->o, recompute);
    struct model_plan loss;

    if (model_plan(out, &t->dev, &t->cfg, &use, JOB_LEARN, micro, 0))
        return -1;
    if (model_plan(&loss, &t->dev, &t->cfg, &use, JOB_LOSS, micro, 0))
        return -1;
    out->keep = loss.keep > out->keep ? loss.keep : out->keep;
    out->temp = loss.temp > out->temp ? loss.temp : out->temp;
    if (!t->o->plasticity_every)
        return 0;
    if (model_plan(&loss, &t->dev, &t->cfg, &use, JOB_LOGITS, micro, 1))
        return -1;
    out->keep = loss.keep > out->keep ? loss.keep : out->keep;
    out->temp = loss.temp > out->temp ? loss.temp : out->temp;
    out->state = loss.state;
    return 0;
}

static size_t total(const struct model_plan *p)
{
    return p->weights + p->grads + p->optimizer + p->keep + p->temp + p->state;
}

static double mib(size_t bytes)
{
    return (double)bytes / 1048576;
}

/* The largest row that fits, with recomputation if only that helps; 0 when none does. */
static int64_t largest_row(struct train *t, size_t room, bool *recompute)
{
    struct model_plan p;

    for (int r = t->o->recompute; r < 2; r++)
        for (int64_t n = t->micro / t->o->context; n >= 1; n--) {
            if (t->o->batch_tokens / t->o->ranks % (n * t->o->context))
                continue;
            if (plan(t, n * t->o->context, r, &p))
                return 0;
            if (total(&p) <= room) {
                *recompute = r;
                return n * t->o->context;
            }
        }
    return 0;
}

int train_fits(struct train *t)
{
    size_t room = memory_free(&t->dev);
    char name[160];
    bool recompute = false;
    int64_t row;

    if (plan(t, t->micro, t->o->recompute, &t->plan))
        return -1;
    if (!t->comm.link)
        room /= (size_t)t->o->ranks;                   /* ranks on one device share its memory */
    if (t->comm.rank || !room || total(&t->plan) <= room)       /* rank 0 decides */
        return 0;
    row = largest_row(t, room, &recompute);
    say("%-14s %10s\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f",
        "memory", "MiB", "weights", mib(t->plan.weights), "gradients", mib(t->plan.grads),
        "optimizer", mib(t->plan.optimizer),
        "activations", mib(t->plan.keep), "scratch", mib(t->plan.temp), "sum", mib(total(&t->plan)));
    if (!row)
        return fail("rows of %lld tokens need %.0f MiB, %s has %.0f MiB: no row fits; try a smaller --context or model",
                    (long long)t->micro, mib(total(&t->plan)), dev_describe(&t->dev, name, sizeof name), mib(room));
    return fail("rows of %lld tokens need %.0f MiB, %s has %.0f MiB: --micro-tokens %lld%s fits", (long long)t->micro,
                mib(total(&t->plan)), dev_describe(&t->dev, name, sizeof name), mib(room), (long long)row,
                recompute && !t->o->recompute ? " --recompute" : "");
}

struct extent { double lo, hi; };

/* Least and largest f(x) over the parameters whose names end so. */
static struct extent extent(struct train *t, const char *name, double (*f)(double))
{
    struct params *p = &t->model.params;
    struct extent e = { INFINITY, -INFINITY };

    for (int i = 0; i < p->n; i++) {
        int64_t n = tensor_count(p->at[i].value);
        size_t a = strlen(p->at[i].name), b = strlen(name);
        float *x;
        if (a < b || strcmp(p->at[i].name + a - b, name))
            continue;
        x = mem_new((size_t)n, sizeof *x);
        param_get(&t->dev, &p->at[i].value, x);
        for (int64_t j = 0; j < n; j++) {
            e.lo = fmin(e.lo, f(x[j]));
            e.hi = fmax(e.hi, f(x[j]));
        }
        free(x);
    }
    return e;
}

static double softplus(double x)
{
    return log1p(exp(x));
}

static double same(double x)
{
    return x;
}

/* The gates that a fresh model begins with. */
static void say_start(struct train *t)
{
    struct extent a = extent(t, ".A_log", exp), dt = extent(t, ".dt_bias", softplus), d = extent(t, ".D", same);

    if (a.lo <= a.hi && dt.lo <= dt.hi && d.lo <= d.hi)
        say("start      seed %llu: exp(A_log) in [%.4g, %.4g], softplus(dt_bias) in [%.3g, %.3g], D in [%g, %g]",
            (unsigned long long)t->o->seed, a.lo, a.hi, dt.lo, dt.hi, d.lo, d.hi);
}

static void say_rate(const struct train_options *o)
{
    say("rate       %s, %g after %lld steps of warm-up, %g at the end", o->schedule, (double)o->lr,
        (long long)o->warmup,
        (double)(strcmp(o->schedule, "constant") ? o->lr * o->lr_floor : o->lr));
    if (o->steps && o->warmup >= o->steps)
        say("warning: the warm-up of %lld steps is as long as the run: choose a smaller --warmup",
            (long long)o->warmup);
}

/* What is trained when not everything is. */
static void say_trained(struct train *t)
{
    const struct params *p = &t->model.params;
    int64_t trained = 0;

    for (int i = 0; i < p->n; i++)
        if (!(p->at[i].flags & PARAM_FROZEN))
            trained += tensor_count(p->at[i].value);
    if (strcmp(t->o->train, "all") || t->o->train_prior)
        say("trained    %s%s: %lld parameters", t->o->train, t->o->train_prior ? " and the prior" : "",
            (long long)trained);
}

void train_banner(struct train *t)
{
    const struct train_options *o = t->o;
    double tokens = (double)o->steps * (double)o->batch_tokens;
    double epoch = (double)t->data.windows * (double)o->context;
    char name[160];

    if (t->resume[0])
        say("resuming at step %lld from %s", (long long)t->step, t->resume);
    say("device     %s, %s, %d rank%s%s", dev_describe(&t->dev, name, sizeof name), dtype_name(t->dev.type), o->ranks,
        o->ranks > 1 ? "s by " : "", o->ranks > 1 ? comm_name(&t->comm) : "");
    say("model      %s: %.2fM parameters, %d layers, width %d, vocabulary %lld", t->cfg.family,
        (double)config_parameters(&t->cfg) / 1e6, t->cfg.layers, t->cfg.width, (long long)t->cfg.vocab_real);
    say("memory     %.0f MiB: weights %.0f, gradients %.0f, optimizer %.0f, activations %.0f, scratch %.0f",
        mib(total(&t->plan)), mib(t->plan.weights), mib(t->plan.grads), mib(t->plan.optimizer), mib(t->plan.keep),
        mib(t->plan.temp));
    say("data       %lld tokens, %lld windows of %lld an epoch, %lld tokens never visited", (long long)t->data.stream,
        (long long)t->data.windows, (long long)o->context, (long long)t->data.skipped);
    say("steps      %lld of %lld tokens: %.3g tokens, %.3g epochs", (long long)o->steps, (long long)o->batch_tokens,
        tokens, tokens / epoch);
    say("row        %lld tokens, %lld a step%s%s", (long long)t->micro, (long long)t->accum,
        o->ranks > 1 ? " on every rank" : "", o->recompute ? ", blocks are recomputed" : "");
    say_rate(o);
    say_trained(t);
    if (!t->resume[0] && !o->from)
        say_start(t);
}
