/* The GPU computes every verb and the linear recurrence as the definition does, in F32 and in BF16. */
#include "check_op.h"
#include "check_scan.h"
#include "test.h"

#define LENGTHS(...) .length = (const int32_t[]){ __VA_ARGS__ }, .n = (int)LEN(((const int32_t[]){ __VA_ARGS__ }))
#define DECAYS(...)  .decay = (const float[]){ __VA_ARGS__ }, .decays = (int)LEN(((const float[]){ __VA_ARGS__ }))

/* Every law. */
static const struct scan_case small[] = {
    { .Hq = 2, .Hk = 1, .H = 4, .K = 5, .V = 3, LENGTHS(1, 7, 0, 4), .state = true, .seed = 1 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 16, .V = 16, LENGTHS(1, 2, 15, 16, 17, 63, 64, 65, 127), .state = true,
      .strided = true, .seed = 2 },
    { .Hq = 2, .Hk = 2, .H = 2, .K = 48, .V = 48, LENGTHS(130, 0, 1, 64, 0), .state = true, .seed = 3 },
    { .Hq = 1, .Hk = 2, .H = 2, .K = 64, .V = 96, LENGTHS(0, 129, 1, 1, 62, 65), .strided = true, .seed = 4 },
    { .Hq = 3, .Hk = 1, .H = 3, .K = 17, .V = 33, LENGTHS(16, 15, 65, 70), .state = true, .seed = 5 },
    { .Hq = 1, .Hk = 1, .H = 1, .K = 1, .V = 1, LENGTHS(130), .state = true, .seed = 6 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 16, .V = 80, LENGTHS(1, 1, 1, 1, 1), .state = true, .seed = 7 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 8, .V = 8, LENGTHS(0, 0), .state = true, .seed = 8 },
    { .Hq = 1, .Hk = 1, .H = 3, .K = 24, .V = 16, LENGTHS(128), .state = true, DECAYS(-1e-6f, -1, -80), .seed = 9 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 48, .V = 20, LENGTHS(65, 79), .state = true, DECAYS(-0.01f, 0, -200, -1e-6f), .seed = 10 },
};

/* Agreement with the definition alone: wide, long, or at the limits of the decay. */
static const struct scan_case wide[] = {
    { .Hq = 2, .Hk = 2, .H = 2, .K = 48, .V = 48, LENGTHS(1500), .seed = 21 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 128, .V = 64, LENGTHS(200, 1, 63, 300), .state = true, .seed = 22 },
    { .Hq = 2, .Hk = 2, .H = 2, .K = 96, .V = 192, LENGTHS(129, 200), .state = true, .seed = 23 },
    { .Hq = 1, .Hk = 1, .H = 1, .K = 256, .V = 256, LENGTHS(100, 97), .state = true, .seed = 24 },
    { .Hq = 1, .Hk = 1, .H = 1, .K = 255, .V = 131, LENGTHS(100, 97), .strided = true, .seed = 25 },
    { .Hq = 5, .Hk = 1, .H = 5, .K = 31, .V = 7, LENGTHS(64, 64, 64), .strided = true, .seed = 26 },
    { .Hq = 2, .Hk = 2, .H = 2, .K = 16, .V = 16, LENGTHS(257), DECAYS(-30), .seed = 27 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 16, .V = 16, LENGTHS(130), .state = true, DECAYS(-80), .seed = 28 },
    { .Hq = 1, .Hk = 1, .H = 2, .K = 16, .V = 16, LENGTHS(130), .state = true, DECAYS(-200), .seed = 29 },
    { .Hq = 1, .Hk = 1, .H = 1, .K = 16, .V = 16, LENGTHS(257), DECAYS(0), .seed = 30 },
    { .Hq = 1, .Hk = 1, .H = 1, .K = 16, .V = 16, LENGTHS(257), .state = true, DECAYS(-9, -3, -2), .seed = 31 },
};

static void law(const struct scan_case *c, struct scan_error e, const char *type)
{
    if (!(e.worst <= 1)) {
        printf("FAIL linear H%d K%d V%d seed %d %s, %s: %g times what is allowed\n", (int)c->H, (int)c->K, (int)c->V,
               (int)c->seed, type, e.where, e.worst);
        test_failed++;
    }
}

static void check_ops(struct dev *d)
{
    struct op_report r = { 0 };

    for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c))
        if (!(c->flags & CASE_LARGE) && !check_op(d, c, &r)) {
            printf("FAIL %s %s %s: %s, error %g of %g\n", c->op, c->note, dtype_name(d->type), r.fault, r.error, r.bound);
            test_failed++;
        }
}

static void check_linear(struct dev *d)
{
    const struct scan *linear = scan_find("linear");

    for (size_t i = 0; i < LEN(wide); i++)
        law(&wide[i], check_scan_agreement(d, linear, &wide[i]), dtype_name(d->type));
    for (size_t i = 0; i < LEN(small); i++)
        law(&small[i], check_scan(d, linear, &small[i]), dtype_name(d->type));
}

/* test_cuda [ops|linear]: all, or one part. */
int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "ops linear";
    struct dev d;

    if (dev_open(&d, "auto", F32, 1) || d.kind != DEV_CUDA) {
        dev_close(&d);
        return test_skip("cuda", "this machine has no usable GPU");
    }
    dev_close(&d);
    for (int type = F32; type <= BF16; type++) {
        if (dev_open(&d, "cuda", (enum dtype)type, 1)) {
            test_failed++;
            break;
        }
        if (strstr(part, "ops"))
            check_ops(&d);
        if (strstr(part, "linear"))
            check_linear(&d);
        dev_close(&d);
    }
    return test_done("cuda");
}
