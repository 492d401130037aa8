/* check_op.c - the laws of check_op.h, the same for every verb. */
#include "check_op_run.h"
#include "half.h"
#include "rng.h"
#include <math.h>

static const double F32_BOUND = 2e-4;

static struct dev naive_device(void)
{
    return (struct dev){ .kind = DEV_NAIVE, .ops = &ops_naive, .type = F32, .threads = 1 };
}

/* Some predictions are not wanted; some logits are masked, though never a wanted one. */
static void spice(const struct op_case *c, const struct op_plan *p, float **value)
{
    int64_t T = c->n[0], V = c->n[1];
    int logits = op_plan_find(p, "logits"), target = op_plan_find(p, "target");

    if (logits < 0)
        return;
    for (int64_t t = 0; t < T; t++) {
        float *to = &value[target][t];

        if (t % 5 == 4)
            *to = -1;
        if (!(c->flags & CASE_INF))
            continue;
        if ((int64_t)*to % 7 == 3)
            *to -= 1;
        for (int64_t v = 3; v < V; v += 7)
            value[logits][t * V + v] = -INFINITY;
    }
}

static void values_new(const struct op_plan *p, float **value)
{
    for (int i = 0; i < p->n; i++)
        value[i] = mem_new((size_t)tensor_count(p->arg[i].shape) + 1, sizeof **value);
}

static void values_free(const struct op_plan *p, float **value)
{
    for (int i = 0; i < p->n; i++)
        free(value[i]);
}

/* Calls the naive verb on in[] and hands back its outputs. */
static void forward_values(const struct op_row *row, const struct op_case *c, const struct op_plan *q,
                           float *const *in, float **out)
{
    struct dev d = naive_device();
    struct op_case plain = *c;
    struct run r;

    plain.out = plain.in = NULL;
    run_open(&r, &d, row, &plain);
    run_load(&r, in);
    run_call(&r);
    for (int i = 0; i < q->n; i++)
        if (q->arg[i].role == ARG_OUT || q->arg[i].role == ARG_ACC)
            run_read(&r, i, out[i]);
    run_close(&r);
}

static void draw(const struct op_arg *a, float *value)
{
    for (int64_t e = 0; e < tensor_count(a->shape); e++) {
        double u = rng_uniform(7, rng_stream(a->name), (uint64_t)e);
        float  x = (float)(a->low + (a->high - a->low) * u);
        value[e] = a->shape.type == I32 ? floorf(x) : x;
    }
}

/* The inputs of forward: those that backward has as well, and new ones. What forward adds to starts at 0. */
static void forward_inputs(const struct op_plan *q, float **in, const struct op_plan *p, float *const *value)
{
    values_new(q, in);
    for (int i = 0; i < q->n; i++) {
        int from = op_plan_find(p, q->arg[i].name);

        if (q->arg[i].role == ARG_IN && from >= 0)
            memcpy(in[i], value[from], (size_t)tensor_count(q->arg[i].shape) * sizeof(float));
        else if (q->arg[i].role == ARG_IN)
            draw(&q->arg[i], in[i]);
    }
}

/* The verb whose gradient c->op is; NULL when it is not one. */
static const struct op_row *forward_of(const struct op_case *c)
{
    char name[32];
    size_t n = strlen(c->op);

    if (n < 5 || strcmp(c->op + n - 4, "_bwd") || !str_format(name, sizeof name, "%.*s", (int)n - 4, c->op))
        return NULL;
    return op_row_find(name);
}

/* Values of all arguments, rounded to what the device stores. What backward gets from forward is computed. */
static void values_fill(const struct op_case *c, const struct op_plan *p, float **value)
{
    const struct op_row *forward = forward_of(c);

    for (int i = 0; i < p->n; i++)
        draw(&p->arg[i], value[i]);
    spice(c, p, value);
    if (forward) {
        struct op_plan q = op_plan_of(forward, c, F32);
        float *in[OP_ARGS], *out[OP_ARGS];

        forward_inputs(&q, in, p, value);
        values_new(&q, out);
        forward_values(forward, c, &q, in, out);
        for (int i = 0; i < q.n; i++) {
            int to = op_plan_find(p, q.arg[i].name);
            if (q.arg[i].role == ARG_OUT && to >= 0 && p->arg[to].role == ARG_IN)
                memcpy(value[to], out[i], (size_t)tensor_count(q.arg[i].shape) * sizeof(float));
        }
        values_free(&q, in);
        values_free(&q, out);
    }
    for (int i = 0; i < p->n; i++)
        for (int64_t e = 0; p->arg[i].shape.type == BF16 && e < tensor_count(p->arg[i].shape); e++)
            value[i][e] = float_of_bf16(bf16_of(value[i][e]));
}

/* Folds one output into the report: error and bound are relative to the RMS of what is wanted. */
static void compare(struct op_report *r, const struct op_arg *a, const float *got, const float *want)
{
    double size = 0, error = 0, rounding = 0, bound = F32_BOUND;

    for (int64_t i = 0; i < tensor_count(a->shape); i++) {
        double w = want[i], e = got[i] - w, q = float_of_bf16(bf16_of(want[i])) - w;
        size += w * w, error += e * e, rounding += q * q;
    }
    if (a->shape.type == BF16)
        bound = 2 * sqrt(size > 0 ? rounding / size : rounding);
    error = sqrt(size > 0 ? error / size : error);
    if (!(error <= bound))
        r->fault = "wrong";
    if (!r->output || !(error * r->bound <= r->error * bound)) {
        r->error  = error;
        r->bound  = bound;
        r->output = a->name;
    }
}

bool check_op(struct dev *d, const struct op_case *c, struct op_report *report)
{
    const struct op_row *row = op_row_find(c->op);
    struct dev naive = naive_device();
    struct run r, n;
    float *value[OP_ARGS], *got, *want;
    char *first[OP_ARGS] = { 0 }, *second;

    REQUIRE(row && !d->dry);
    *report = (struct op_report){ 0 };
    run_open(&r, d, row, c);
    run_open(&n, &naive, row, c);
    values_new(&r.plan, value);
    values_fill(c, &r.plan, value);
    run_load(&n, value);
    run_call(&n);
    run_load(&r, value);
    run_call(&r);
    for (int i = 0; i < r.plan.n; i++)
        if (r.plan.arg[i].role == ARG_OUT || r.plan.arg[i].role == ARG_ACC) {
            got  = mem_new((size_t)tensor_count(r.plan.arg[i].shape) + 1, sizeof *got);
            want = mem_new((size_t)tensor_count(r.plan.arg[i].shape) + 1, sizeof *want);
            run_read(&r, i, got);
            run_read(&n, i, want);
            compare(report, &r.plan.arg[i], got, want);
            first[i] = run_frame(&r, i);
            free(got);
            free(want);
        }
    const char *trespass = run_trespass(&r, value);
    run_load(&r, value);
    run_call(&r);
    for (int i = 0; i < r.plan.n; i++)
        if (first[i]) {
            second = run_frame(&r, i);
            if (!report->fault && memcmp(first[i], second, r.f[i].bytes))
                report->fault = "not the same bits twice";
            free(first[i]);
            free(second);
        }
    if (trespass)
        report->fault = trespass;
    values_free(&r.plan, value);
    run_close(&n);
    run_close(&r);
    return !report->fault;
}

bool check_op_same(struct dev *a, struct dev *b, const struct op_case *c)
{
    const struct op_row *row = op_row_find(c->op);
    struct run r[2];
    float *value[OP_ARGS];
    bool same = true;

    REQUIRE(row && a->type == b->type);
    for (int k = 0; k < 2; k++) {
        run_open(&r[k], k ? b : a, row, c);
        if (k == 0) {
            values_new(&r[0].plan, value);
            values_fill(c, &r[0].plan, value);
        }
        run_load(&r[k], value);
        run_call(&r[k]);
    }
    for (int i = 0; i < r[0].plan.n; i++) {
        char *x, *y;

        if (r[0].plan.arg[i].role != ARG_OUT && r[0].plan.arg[i].role != ARG_ACC)
            continue;
        x = run_frame(&r[0], i);
        y = run_frame(&r[1], i);
        same = same && !memcmp(x, y, r[0].f[i].bytes);
        free(x);
        free(y);
    }
    values_free(&r[0].plan, value);
    run_close(&r[0]);
    run_close(&r[1]);
    return same;
}

/* The argument that holds the gradient of `name`. */
static int gradient_of(const struct op_plan *p, const char *name)
{
    char d[32];

    return str_format(d, sizeof d, "d%s", name) ? op_plan_find(p, d) : -1;
}

static float direction(const char *name, int64_t i)
{
    return rng_bits(11, rng_stream(name), (uint64_t)i) & 1 ? 1.f : -1.f;
}

/* Loss = sum of <d out, out> with every input that has a gradient moved by step along its direction. */
static double loss_at(const struct op_row *forward, const struct op_case *c, const struct op_plan *p,
                      float *const *value, double step)
{
    struct op_plan q = op_plan_of(forward, c, F32);
    float *in[OP_ARGS], *out[OP_ARGS];
    double loss = 0;

    forward_inputs(&q, in, p, value);
    values_new(&q, out);
    for (int i = 0; i < q.n; i++)
        for (int64_t e = 0; gradient_of(p, q.arg[i].name) >= 0 && e < tensor_count(q.arg[i].shape); e++)
            in[i][e] += q.arg[i].role == ARG_IN ? (float)(step * direction(q.arg[i].name, e)) : 0;
    forward_values(forward, c, &q, in, out);
    for (int i = 0; i < q.n; i++) {
        int g = gradient_of(p, q.arg[i].name);
        for (int64_t e = 0; g >= 0 && p->arg[g].role == ARG_IN && e < tensor_count(q.arg[i].shape); e++)
            loss += (double)value[g][e] * out[i][e];
    }
    values_free(&q, in);
    values_free(&q, out);
    return loss;
}

/* What backward says of the same move; *size is the length of the whole gradient. */
static double slope_of(struct run *r, const struct op_plan *q, float *const *value, double *size)
{
    double slope = 0, sum = 0;

    for (int i = 0; i < q->n; i++) {
        int g = gradient_of(&r->plan, q->arg[i].name);
        int64_t n = tensor_count(q->arg[i].shape);
        float *grad;

        if (g < 0 || q->arg[i].role != ARG_IN)
            continue;
        grad = mem_new((size_t)n + 1, sizeof *grad);
        run_read(r, g, grad);
        for (int64_t e = 0; e < n; e++) {
            double v = grad[e] - (r->plan.arg[g].role == ARG_ACC ? value[g][e] : 0);
            slope += v * direction(q->arg[i].name, e);
            sum   += v * v;
        }
        free(grad);
    }
    *size = sqrt(sum);
    return slope;
}

double check_op_slope(const struct op_case *c)
{
    const struct op_row *row = op_row_find(c->op), *forward = forward_of(c);
    struct op_case plain = *c;
    struct dev d = naive_device();
    struct op_plan q;
    struct run r;
    float *value[OP_ARGS];
    double slope, size, h = 0.02, near, far;

    REQUIRE(row && forward);
    plain.out = plain.in = NULL;
    q = op_plan_of(forward, &plain, F32);
    run_open(&r, &d, row, &plain);
    values_new(&r.plan, value);
    values_fill(&plain, &r.plan, value);
    run_load(&r, value);
    run_call(&r);
    slope = slope_of(&r, &q, value, &size);
    near  = loss_at(forward, &plain, &r.plan, value, h) - loss_at(forward, &plain, &r.plan, value, -h);
    far   = loss_at(forward, &plain, &r.plan, value, 2 * h) - loss_at(forward, &plain, &r.plan, value, -2 * h);
    values_free(&r.plan, value);
    run_close(&r);
    return fabs(slope - (8 * near - far) / (12 * h)) / size;
}

double check_op_time(struct dev *d, const struct op_case *c, double seconds)
{
    enum { BATCHES = 25 };
    struct run r;
    float *value[OP_ARGS];
    double least = INFINITY, once, start;
    int64_t calls;

    run_open(&r, d, op_row_find(c->op), c);
    values_new(&r.plan, value);
    values_fill(c, &r.plan, value);
    run_load(&r, value);
    values_free(&r.plan, value);
    run_call(&r);
    op_sync(d);
    start = time_now();
    run_call(&r);
    op_sync(d);
    once  = time_now() - start;
    calls = (int64_t)(seconds / BATCHES / (once + 1e-7)) + 1;
    for (int i = 0; i < BATCHES; i++) {
        start = time_now();
        for (int64_t k = 0; k < calls; k++)
            run_call(&r);
        op_sync(d);
        least = fmin(least, (time_now() - start) / (double)calls);
    }
    run_close(&r);
    return least;
}

void check_op_cost(const struct op_case *c, enum dtype type, double *bytes, double *flops)
{
    struct op_plan p = op_plan_of(op_row_find(c->op), c, type);

    *flops = p.flops;
    *bytes = p.bytes;
    for (int i = 0; i < p.n && !p.bytes; i++)
        *bytes += (double)tensor_count(p.arg[i].shape) * (double)dtype_size(p.arg[i].shape.type) *
                  (p.arg[i].role == ARG_ABSENT ? 0 : p.arg[i].role == ARG_ACC ? 2 : 1);
}
