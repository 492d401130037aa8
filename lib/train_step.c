/* train_step.c - one step: rows to gradients, gradients to an update, numbers to the record. */
#include "op.h"
#include "train_parts.h"
#include <limits.h>
#include <math.h>

static void reduce(void *arg, int bucket)
{
    struct train *t = arg;

    optim_reduce(&t->comm, &t->model.params.bucket[bucket]);
}

void train_sum(struct train *t, float *x, int n)
{
    size_t mark = arena_mark(&t->dev.temp);
    struct tensor box = arena_push(&t->dev.temp, SHAPE(F32, n));

    op_put(&t->dev, box.data, x, (size_t)n * 4);
    t->comm.sum(&t->comm, box);
    op_get(&t->dev, x, box.data, (size_t)n * 4);
    arena_pop(&t->dev.temp, mark);
}

/* The first layer whose recurrence reads or says a number that is not finite. */
struct search { struct dev *dev; int layer; };

static bool finite_all(struct dev *d, struct tensor x)
{
    size_t mark = arena_mark(&d->temp);
    struct tensor sum;
    float total;

    if (!x.data)
        return true;
    sum = arena_push(&d->temp, SHAPE(F32, 1));
    op_fill(d, sum, 0);
    op_sumsq(d, sum, tensor_flat(x));
    op_get(d, &total, sum.data, sizeof total);
    arena_pop(&d->temp, mark);
    return isfinite(total);
}

static void look(void *arg, const struct layer *l, const struct seqs *seqs, const struct scan_io *x)
{
    struct search *s = arg;

    (void)seqs;
    if (s->layer < 0 && !(finite_all(s->dev, x->q) && finite_all(s->dev, x->k) && finite_all(s->dev, x->v) &&
                          finite_all(s->dev, x->beta) && finite_all(s->dev, x->o)))
        s->layer = l->index;
}

/* A weight that is not finite itself, else one whose gradient is not. */
static int culprit(struct train *t)
{
    struct params *p = &t->model.params;
    const struct param *bad;

    for (int i = 0; i < p->n; i++)
        if (!finite_all(&t->dev, p->at[i].value))
            return i;
    bad = optim_culprit(p, &t->dev);
    return bad ? (int)(bad - p->at) : -1;
}

/* Every rank looks; rank 0 says what the lowest layer and the first parameter found anywhere are. */
static int not_finite(struct train *t, int64_t row, const char *what, double value)
{
    struct search s = { &t->dev, -1 };
    float found[2 * 64] = { 0 };
    char layer[64] = "in no layer's recurrence", bad[160] = "";
    int lowest = INT_MAX, param = INT_MAX;
    struct batch b;

    REQUIRE(t->comm.world <= 64);
    if (loader_read(&t->data, row, &b))
        return -1;
    model_loss(&t->model, &b, &(struct pass){ .watch = look, .watch_arg = &s }, NULL);
    found[2 * t->comm.rank] = (float)(s.layer + 1);
    found[2 * t->comm.rank + 1] = (float)(culprit(t) + 1);
    train_sum(t, found, 2 * t->comm.world);
    if (t->comm.rank)
        return -1;
    for (int r = 0; r < t->comm.world; r++) {
        if (found[2 * r] > 0 && found[2 * r] < lowest)
            lowest = (int)found[2 * r];
        if (found[2 * r + 1] > 0 && found[2 * r + 1] < param)
            param = (int)found[2 * r + 1];
    }
    if (lowest < INT_MAX)
        snprintf(layer, sizeof layer, "in the recurrence of layer %d", lowest - 1);
    if (param < INT_MAX) {
        const struct param *p = &t->model.params.at[param - 1];
        snprintf(bad, sizeof bad, ", %s %s", finite_all(&t->dev, p->value) ? "first bad gradient" : "bad weight",
                 p->name);
    }
    return fail("step %lld: the %s is %g: first seen %s%s; nothing was updated and the last checkpoint stands",
                (long long)t->step + 1, what, fabs(value), layer, bad);
}

int train_sound(struct train *t)
{
    const struct params *p = &t->model.params;

    for (int i = 0; i < p->n; i++)
        if (!finite_all(&t->dev, p->at[i].value))
            return t->comm.rank ? -1 : fail("step %lld: %s is not finite any more: it is not saved, the last "
                                            "checkpoint stands", (long long)t->step, p->at[i].name);
    return 0;
}

static int log_step(struct train *t, double loss, double norm, double lr)
{
    const struct train_options *o = t->o;
    double now = time_now(), steps = (double)(t->step - t->logged);
    struct metrics_step m = { .step = t->step, .tokens = t->step * o->batch_tokens, .loss = loss, .lr = lr,
                              .grad_norm = norm, .seconds = now - t->metrics.start };

    if (t->comm.rank)
        return 0;
    m.tokens_per_second = steps * (double)o->batch_tokens / (now - t->logged_at + 1e-9);
    if (t->step % o->log_every && t->step != t->until && t->step != 1) {
        metrics_show(&t->metrics, &m);
        return 0;
    }
    m.epoch = (double)m.tokens / (double)(t->data.windows * o->context);
    if (o->peak_tflops > 0)
        m.mfu = m.tokens_per_second * 6 * (double)config_parameters(&t->cfg) / (o->peak_tflops * 1e12 * o->ranks);
    loader_where(&t->data, (t->step - 1) * t->accum * t->comm.world, m.at, sizeof m.at);
    m.at[strcspn(m.at, " ")] = 0;
    t->logged = t->step;
    t->logged_at = now;
    return metrics_log(&t->metrics, &m);
}

/* Gradients of this rank's rows, their loss and number of predictions; *bad is a row whose loss is not finite. */
static int learn(struct train *t, double *loss, float *predicted, int64_t *bad)
{
    int64_t row = t->step * t->comm.world * t->accum + t->comm.rank;

    *loss = 0;
    *predicted = 0;
    *bad = row;
    params_zero_grad(&t->model.params, &t->dev);
    for (int64_t i = 0; i < t->accum; i++, row += t->comm.world) {
        struct batch b;
        double part;
        if (loader_read(&t->data, row, &b))
            return -1;
        part = model_learn(&t->model, &b, 1 / (float)t->o->batch_tokens,
                           t->comm.world > 1 && i + 1 == t->accum ? reduce : NULL, t);
        if (!isfinite(part))
            *bad = row;
        *loss += part;
        *predicted += (float)b.predicted;
    }
    return 0;
}

int train_step(struct train *t, bool *stop)
{
    double loss, lr = schedule_rate(&t->schedule, t->step + 1);
    float sums[3], norm, predicted;
    int64_t bad;

    if (learn(t, &loss, &predicted, &bad))
        return -1;
    sums[0] = (float)loss;
    sums[1] = predicted;
    sums[2] = train_signalled();
    if (t->comm.world > 1) {
        train_sum(t, sums, 3);
        loss = sums[0];
    }
    if (!isfinite(loss))
        return not_finite(t, bad, "loss", loss);
    if (!(sums[1] > 0))
        return fail("step %lld: its rows predict nothing: every document is %sone token long", (long long)t->step + 1,
                    t->o->mask_prompt ? "a prompt or " : "");
    t->opt.h.lr = (float)lr;
    t->opt.h.step = t->step + 1;
    t->opt.unit = (float)t->o->batch_tokens / sums[1];
    norm = optim_step(&t->opt, &t->model.params, &t->dev, &t->comm);
    if (!isfinite(norm))
        return not_finite(t, bad, "gradient norm", norm);
    t->step++;
    *stop = sums[2] > 0;
    return log_step(t, loss / sums[1], norm, lr);
}

/* Mean loss over the first rows of the validation shards, always the same ones. */
int train_validate(struct train *t)
{
    double began = time_now();
    int64_t wanted = (t->o->val_tokens + t->micro - 1) / t->micro, rows = t->val.rows < wanted ? t->val.rows : wanted;
    float sums[2] = { 0, 0 };
    double loss = 0, predicted = 0;

    for (int64_t i = t->comm.rank; i < rows; i += t->comm.world) {
        struct batch b;
        if (loader_read(&t->val, i, &b))
            return -1;
        loss += model_loss(&t->model, &b, NULL, NULL);
        predicted += (double)b.predicted;
    }
    if (t->comm.world > 1) {
        sums[0] = (float)loss;
        sums[1] = (float)predicted;
        train_sum(t, sums, 2);
        loss = sums[0];
        predicted = sums[1];
    }
    t->logged_at += time_now() - began;                    /* not the training's time */
    if (t->comm.rank)
        return 0;
    return metrics_val(&t->metrics, t->step, loss / (predicted > 0 ? predicted : 1));
}
