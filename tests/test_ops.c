/* test_ops.c - the naive row against finite differences and values worked by hand, the cpu row against it. */
#define _POSIX_C_SOURCE 200809L
#include "check_op.h"
#include "test.h"
#include "vmath.h"
#include <sys/wait.h>
#include <unistd.h>

/* A tensor over a host array. */
static struct tensor over(float *data, struct tensor shape)
{
    shape.data = data;
    return shape;
}

static const struct tensor absent;

static void close_to(const struct dev *d, const char *what, const float *got, const double *want, int n,
                     double tolerance)
{
    for (int i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= tolerance)) {
            printf("FAIL %s %s [%d]: %.9g, expected %.9g\n", d->ops->name, what, i, got[i], want[i]);
            test_failed++;
        }
}

/* The clamp of dt has kinks that finite differences step over: test_decay does those by hand. Large
 * cases are there for threads. */
static bool has_slope(const struct op_case *c)
{
    size_t n = strlen(c->op);

    return n > 4 && !strcmp(c->op + n - 4, "_bwd") && !(c->flags & CASE_CLAMP) && strncmp(c->note, "many", 4);
}

static void test_laws(struct dev *cpu, struct dev *alone)
{
    int cases = 0, slopes = 0;

    for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c)) {
        struct op_report r;
        double slope;

        if (c->flags & CASE_LARGE)
            continue;
        cases++;
        if (!check_op(cpu, c, &r) || !(r.error < 2e-6)) {
            printf("FAIL %s (%s): %s, %s off by %.3g\n", c->op, c->note, r.fault ? r.fault : "coarse",
                   r.output, r.error);
            test_failed++;
        }
        if (strcmp(c->op, "matmul") && !check_op_same(cpu, alone, c)) {
            printf("FAIL %s (%s): other bits on one thread\n", c->op, c->note);
            test_failed++;
        }
        if (!has_slope(c))
            continue;
        slopes++;
        slope = check_op_slope(c);
        if (!(slope < 1e-4)) {
            printf("FAIL %s (%s): gradient off its finite difference by %.3g\n", c->op, c->note, slope);
            test_failed++;
        }
    }
    CHECK(cases > 110 && slopes > 25);
}

/* y = [1,1,10,10] as one group and as two; [1,2] gated by [0,2] before and after. */
static void test_rmsnorm(struct dev *d)
{
    float x[] = { 1, 1, 10, 10 }, one[] = { 1, 1, 1, 1 }, y[4], rstd[2], x2[] = { 1, 2 }, z[] = { 0, 2 };

    op_rmsnorm(d, over(y, SHAPE(F32, 1, 4)), over(rstd, SHAPE(F32, 1, 1)), over(x, SHAPE(F32, 1, 4)),
               over(one, SHAPE(F32, 4)), absent, GATE_NONE, 1e-5f);
    close_to(d, "one group", y, (double[]){ 0.1407195, 0.1407195, 1.4071950, 1.4071950 }, 4, 1e-6);
    op_rmsnorm(d, over(y, SHAPE(F32, 1, 2, 2)), over(rstd, SHAPE(F32, 1, 2)), over(x, SHAPE(F32, 1, 2, 2)),
               over(one, SHAPE(F32, 4)), absent, GATE_NONE, 1e-5f);
    close_to(d, "two groups", y, (double[]){ 1, 1, 1, 1 }, 4, 1e-5);
    op_rmsnorm(d, over(y, SHAPE(F32, 1, 2)), over(rstd, SHAPE(F32, 1, 1)), over(x2, SHAPE(F32, 1, 2)),
               over(one, SHAPE(F32, 2)), over(z, SHAPE(F32, 1, 2)), GATE_BEFORE_NORM, 1e-5f);
    close_to(d, "gate before", y, (double[]){ 0, 1.4142 }, 2, 5e-5);
    op_rmsnorm(d, over(y, SHAPE(F32, 1, 2)), over(rstd, SHAPE(F32, 1, 1)), over(x2, SHAPE(F32, 1, 2)),
               over(one, SHAPE(F32, 2)), over(z, SHAPE(F32, 1, 2)), GATE_AFTER_NORM, 1e-5f);
    close_to(d, "gate after", y, (double[]){ 0, 2.2283 }, 2, 5e-5);
}

/* Every length from 1 to 8: the output has that length, sees only the past, and starts from silence;
 * cut anywhere with the tail handed over, it is the same. */
static void test_conv(struct dev *d)
{
    float w[] = { 0.5f, -1, 2, 0.25f }, x[] = { 1, -2, 3, 0.5f, -1, 4, 2, -3 };

    for (int T = 1; T <= 8; T++) {
        int32_t start[] = { 0, T };
        struct seqs s = seqs_of(start, 1);
        float y[9], tail[3];
        double want[8];

        y[T] = 77;
        for (int t = 0; t < T; t++) {
            double a = 0;
            for (int j = 0; j < 4; j++)
                a += t - 3 + j >= 0 ? (double)w[j] * x[t - 3 + j] : 0;
            want[t] = a / (1 + exp(-a));
        }
        op_conv(d, over(y, SHAPE(F32, T, 1)), absent, over(x, SHAPE(F32, T, 1)), over(w, SHAPE(F32, 1, 4)),
                absent, absent, &s);
        close_to(d, "conv", y, want, T, 1e-6);
        CHECK(y[T] == 77);
        for (int cut = 0; cut <= T; cut++) {
            struct seqs head = seqs_of((int32_t[]){ 0, cut }, 1), rest = seqs_of((int32_t[]){ 0, T - cut }, 1);
            struct tensor carry = over(tail, SHAPE(F32, 1, 3, 1));

            op_conv(d, over(y, SHAPE(F32, cut, 1)), carry, over(x, SHAPE(F32, cut, 1)), over(w, SHAPE(F32, 1, 4)),
                    absent, absent, &head);
            op_conv(d, over(y + cut, SHAPE(F32, T - cut, 1)), carry, over(x + cut, SHAPE(F32, T - cut, 1)),
                    over(w, SHAPE(F32, 1, 4)), absent, carry, &rest);
            close_to(d, "conv cut", y, want, T, 1e-6);
            for (int i = 0; i < 3; i++)
                CHECK(tail[i] == (T - 3 + i >= 0 ? x[T - 3 + i] : 0));
        }
    }
}

/* A constant gradient moves the weight by lr a step, and decay by lr * decay * w. */
static void test_adamw(struct dev *d)
{
    float w = 1, m = 0, v = 0, g = 3;
    struct adamw h = { .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-15f, .scale = 0.5f };
    struct tensor one = SHAPE(F32, 1);

    for (h.step = 1; h.step <= 1000; h.step++)
        op_adamw(d, over(&w, one), over(&w, one), over(&m, one), over(&v, one), over(&g, one), &h);
    CHECK_NEAR(w, 0.9, 5e-5);
    w = 1, m = 0, v = 0, g = 0, h.step = 1, h.lr = 0.5f, h.decay = 0.1f;
    op_adamw(d, over(&w, one), over(&w, one), over(&m, one), over(&v, one), over(&g, one), &h);
    CHECK_NEAR(w, 0.95, 1e-7);
}

static void test_xent(struct dev *d)
{
    enum { V = 50288 };
    float *logits = mem_new(3 * V, sizeof *logits), loss[3];
    int32_t target[] = { 50287, -1, 7 };

    for (int v = 0; v < V; v++)
        logits[v] = logits[V + v] = 4, logits[2 * V + v] = v == 7 || v == 9 ? 100 : -INFINITY;
    op_xent(d, over(loss, SHAPE(F32, 3)), (struct tensor){ 0 }, over(logits, SHAPE(F32, 3, V)), target, 10);
    close_to(d, "loss", loss, (double[]){ log(V), 0, log(2) }, 3, 1e-5);
    CHECK(logits[V] == 4);
    op_xent(d, over(loss, SHAPE(F32, 3)), over(logits, SHAPE(F32, 3, V)), over(logits, SHAPE(F32, 3, V)), target, 10);
    close_to(d, "loss", loss, (double[]){ log(V), 0, log(2) }, 3, 1e-5);
    close_to(d, "gradient", &logits[V - 2], (double[]){ 10.0 / V, 10.0 / V - 10, 0, 0 }, 4, 1e-5);
    close_to(d, "masked", &logits[2 * V + 6], (double[]){ 0, -5, 0, 5, 0 }, 5, 1e-5);
    free(logits);
}

/* softplus(0) = log 2; where the clamp acts the step is its bound and x and bias get nothing. */
static void test_decay(struct dev *d)
{
    float x[] = { 0, -3, 3 }, bias = 0, A_log = 0.5f, dt[3], decay[3], dx[3], dbias = 1, dA = 2;
    float ddt[] = { 1, 1, 1 }, ddecay[] = { 2, 2, 2 };
    double A = exp(0.5), l2 = log(2), low = 0.3f, high = 1.2f;
    struct tensor T = SHAPE(F32, 3, 1), one = SHAPE(F32, 1);

    op_decay(d, over(dt, T), over(decay, T), over(x, T), over(&bias, one), over(&A_log, one),
             (struct dt_range){ 0.3f, 1.2f });
    close_to(d, "dt", dt, (double[]){ l2, low, high }, 3, 1e-6);
    close_to(d, "decay", decay, (double[]){ -A * l2, -A * low, -A * high }, 3, 1e-6);
    op_decay_bwd(d, over(dx, T), over(&dbias, one), over(&dA, one), over(ddt, T), over(ddecay, T), over(x, T),
                 over(&bias, one), over(&A_log, one), (struct dt_range){ 0.3f, 1.2f });
    close_to(d, "dx", dx, (double[]){ (1 - 2 * A) / 2, 0, 0 }, 3, 1e-6);
    CHECK_NEAR(dbias, 1 + (1 - 2 * A) / 2, 2e-6);
    CHECK_NEAR(dA, 2 - 2 * A * (l2 + low + high), 5e-6);
    x[0] = -60, x[1] = 60, x[2] = -5;
    op_decay(d, over(dt, T), over(decay, T), over(x, T), over(&bias, one), over(&A_log, one),
             (struct dt_range){ 0, INFINITY });
    CHECK_NEAR(dt[0] / exp(-60), 1, 1e-5);
    CHECK_NEAR(dt[1], 60, 1e-5);
    CHECK_NEAR(dt[2] / log1p(exp(-5)), 1, 1e-6);
}

/* Position 1 turns the first pair by one radian; the inverse brings everything back; far positions too. */
static void test_rope(struct dev *d)
{
    float x[4], y[4];
    int32_t pos[] = { 1 };
    struct tensor shape = SHAPE(F32, 1, 1, 4);

    memcpy(x, (float[]){ 1, 0, 0, 2 }, sizeof x);
    op_rope(d, over(y, shape), over(x, shape), pos, 10000, 1);
    close_to(d, "rope", y, (double[]){ cos(1), -2 * sin(0.01), sin(1), 2 * cos(0.01) }, 4, 1e-6);
    pos[0] = 999999;
    op_rope(d, over(y, shape), over(x, shape), pos, 10000, 1);
    CHECK_NEAR(y[0], cos(999999), 1e-6);
    op_rope(d, over(y, shape), over(y, shape), pos, 10000, -1);
    close_to(d, "rope and back", y, (double[]){ 1, 0, 0, 2 }, 4, 1e-6);
}

static void bad_shape(struct dev *d)
{
    float x[6] = { 0 };

    op_add(d, over(x, SHAPE(F32, 2, 3)), over(x, SHAPE(F32, 2, 3)), over(x, SHAPE(F32, 3, 2)));
}

static void bad_type(struct dev *d)
{
    float x[6] = { 0 };

    op_map(d, MAP_SILU, over(x, SHAPE(F32, 2, 3)), over(x, SHAPE(BF16, 2, 3)));
}

static void bad_stride(struct dev *d)
{
    float x[6] = { 0 };
    struct tensor t = over(x, SHAPE(F32, 2, 3));

    t.row = 2;
    op_fill(d, t, 0);
}

static void bad_token(struct dev *d)
{
    float x[6] = { 0 }, y[3];

    op_embed(d, over(y, SHAPE(F32, 1, 3)), over(x, SHAPE(F32, 2, 3)), (int32_t[]){ 2 });
}

static void no_data(struct dev *d)
{
    op_fill(d, SHAPE(F32, 2, 3), 0);
}

/* A caller's mistake ends the process before any memory is touched. */
static void test_door(struct dev *d)
{
    void (*const mistake[])(struct dev *) = { bad_shape, bad_type, bad_stride, bad_token, no_data };
    struct dev dry = dev_dry(d);

    for (size_t i = 0; i < LEN(mistake); i++) {
        int status = 0;
        pid_t child = fork();

        if (child == 0) {
            if (!freopen("/dev/null", "w", stderr))
                _exit(1);
            mistake[i](d);
            _exit(0);
        }
        CHECK(child > 0 && waitpid(child, &status, 0) == child);
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
    no_data(&dry);
}

/* The functions of vmath.h in units in the last place, and at the ends. */
static void test_vmath(void)
{
    double worst[4] = { 0 };

    for (float x = -87; x < 88; x += 0.00137f) {
        double s = 1 / (1 + exp(-(double)x)), want[] = { exp(x), s, x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)), x * s };
        float got[] = { v_exp(x), v_sigmoid(x), v_softplus(x), v_silu(x) };

        for (int i = 0; i < 4; i++) {
            float w = fabsf((float)want[i]);
            worst[i] = fmax(worst[i], fabs(got[i] - want[i]) / (double)(nextafterf(w, INFINITY) - w));
        }
    }
    CHECK(worst[0] < 1.5);
    CHECK(worst[1] < 3);
    CHECK(worst[2] < 3);
    CHECK(worst[3] < 3);
    CHECK(v_exp(-INFINITY) == 0 && v_exp(INFINITY) == INFINITY && isnan(v_exp(NAN)) && v_exp(0) == 1);
    CHECK(v_sigmoid(-INFINITY) == 0 && v_sigmoid(INFINITY) == 1 && v_softplus(-INFINITY) == 0);
    CHECK(v_softplus(1e30f) == 1e30f && isnan(v_softplus(NAN)) && v_silu(1e30f) == 1e30f && v_silu(-1e30f) == 0);
}

int main(void)
{
    struct dev naive, cpu, alone;

    CHECK(dev_open(&naive, "naive", F32, 0) == 0 && dev_open(&alone, "cpu", F32, 1) == 0);
    CHECK(dev_open(&cpu, "cpu", F32, 3) == 0);
    for (int i = 0; i < 2; i++) {
        struct dev *d = i ? &cpu : &naive;
        test_rmsnorm(d);
        test_conv(d);
        test_adamw(d);
        test_xent(d);
        test_decay(d);
        test_rope(d);
        test_door(d);
    }
    test_vmath();
    test_laws(&cpu, &alone);
    return test_done("ops");
}
