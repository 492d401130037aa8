/* train_plan.c - what a run will cost, said before it starts. */
#include "memory.h"
#include "train_parts.h"
#include <math.h>

/* Learning, and validation or the search for a bad number: the larger of each arena. */
static int plan(struct train *t, int64_t micro, bool recompute, struct model_plan *out)
{
    struct model_use use = { .world = t->o->ranks, .learn = true, .optim = true, .recompute = recompute };
    struct model_plan loss;

    if (model_plan(out, &t->dev, &t->cfg, &use, JOB_LEARN, micro, 0))
        return -1;
    if (model_plan(&loss, &t->dev, &t->cfg, &use, JOB_LOSS, micro, 0))
        return -1;
    out->keep = loss.keep > out->keep ? loss.keep : out->keep;
    out->temp = loss.temp > out->temp ? loss.temp : out->temp;
    return 0;
}

static size_t total(const struct model_plan *p)
{
    return p->weights + p->grads + p->optimizer + p->keep + p->temp;
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
    if (t->dev.kind != DEV_CUDA)
        room /= (size_t)t->o->ranks;                   /* ranks on this host share its memory */
    if (!room || total(&t->plan) <= room)
        return 0;
    row = largest_row(t, room, &recompute);
    say("%-14s %10s\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f\n%-14s %10.0f", "memory", "MiB",
        "weights", mib(t->plan.weights), "gradients", mib(t->plan.grads), "optimizer", mib(t->plan.optimizer),
        "activations", mib(t->plan.keep), "scratch", mib(t->plan.temp), "sum", mib(total(&t->plan)));
    if (!row)
        return fail("rows of %lld tokens need %.0f MiB, %s has %.0f MiB: no row fits; try a smaller --context or model",
                    (long long)t->micro, mib(total(&t->plan)), dev_describe(&t->dev, name, sizeof name), mib(room));
    return fail("rows of %lld tokens need %.0f MiB, %s has %.0f MiB: --micro-tokens %lld%s fits", (long long)t->micro,
                mib(total(&t->plan)), dev_describe(&t->dev, name, sizeof name), mib(room), (long long)row,
                recompute && !t->o->recompute ? " --recompute" : "");
}

void train_banner(const struct train *t)
{
    const struct train_options *o = t->o;
    double tokens = (double)o->steps * (double)o->batch_tokens;
    double epoch = (double)t->data.windows * (double)o->context;
    char name[160];

    if (t->resume[0])
        say("resuming at step %lld from %s", (long long)t->step, t->resume);
    say("device     %s, %s%s", dev_describe(&t->dev, name, sizeof name), dtype_name(t->dev.type),
        o->ranks > 1 ? ", several ranks" : "");
    say("model      %s: %.2fM parameters, %d layers, width %d, vocabulary %lld", t->cfg.family,
        (double)config_parameters(&t->cfg) / 1e6, t->cfg.layers, t->cfg.width, (long long)t->cfg.vocab_real);
    say("memory     %.0f MiB: weights %.0f, gradients %.0f, optimizer %.0f, activations %.0f, scratch %.0f",
        mib(total(&t->plan)), mib(t->plan.weights), mib(t->plan.grads), mib(t->plan.optimizer), mib(t->plan.keep),
        mib(t->plan.temp));
    say("data       %lld tokens, %lld windows of %lld an epoch", (long long)t->data.stream, (long long)t->data.windows,
        (long long)o->context);
    say("steps      %lld of %lld tokens: %.3g tokens, %.3g epochs", (long long)o->steps, (long long)o->batch_tokens,
        tokens, tokens / epoch);
    say("row        %lld tokens, %lld a step%s%s", (long long)t->micro, (long long)t->accum,
        o->ranks > 1 ? " on every rank" : "", o->recompute ? ", blocks are recomputed" : "");
}
