/* The recurrences obey the laws of check_scan.h on the host, in every shape that tiles and vectors
 * care about, with decays that wipe the memory, and reduce to one another where they should. */
#include "check_data.h"
#include "test.h"

static struct dev cpu = { .kind = DEV_CPU, .type = F32, .threads = 2 };
static struct dev naive = { .kind = DEV_NAIVE, .type = F32, .threads = 1 };

static void law(const char *scan, const struct scan_case *c, struct scan_error e)
{
    if (!(e.worst <= 1)) {
        printf("FAIL %s H%d K%d V%d seed %d, %s: %g times what is allowed\n", scan, (int)c->H,
               (int)c->K, (int)c->V, (int)c->seed, e.where, e.worst);
        test_failed++;
    }
}

/* A case is { Hq, Hk, H, K, V, LENGTHS(..), .. }. */
#define LENGTHS(...) \
    .length = (const int32_t[]){ __VA_ARGS__ }, .n = (int)LEN(((const int32_t[]){ __VA_ARGS__ }))
#define DECAYS(...) \
    .decay = (const float[]){ __VA_ARGS__ }, .decays = (int)LEN(((const float[]){ __VA_ARGS__ }))

static const struct scan_case small[] = {
    { 2, 1, 4, 5, 3, LENGTHS(1, 7, 0, 4), .state = true, .var = true, .seed = 1 },
    { 1, 1, 1, 4, 6, LENGTHS(9), .seed = 2 },
    { 3, 3, 3, 1, 1, LENGTHS(2, 2), .state = true, .var = true, .seed = 3 },
    { 1, 2, 2, 3, 2, LENGTHS(3, 70), .var = true, DECAYS(-1e-3f, -0.1f, -5), .seed = 4 },
};

static const struct scan_case shapes[] = {
    { 1, 1, 2, 16, 16, LENGTHS(1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 257), .state = true,
      .var = true, .strided = true, .seed = 11 },
    { 2, 2, 2, 48, 48, LENGTHS(257, 0, 1, 64, 0), .state = true, .seed = 12 },
    { 1, 2, 2, 64, 96, LENGTHS(0, 129, 1, 1, 62, 65), .strided = true, .seed = 13 },
    { 3, 1, 3, 96, 64, LENGTHS(63, 2), .state = true, .var = true, .seed = 14 },
    { 1, 1, 1, 128, 128, LENGTHS(127, 17), .var = true, .seed = 15 },
    { 2, 2, 4, 17, 33, LENGTHS(16, 15, 65, 200), .state = true, .var = true, .seed = 16 },
    { 5, 1, 5, 31, 7, LENGTHS(64, 64, 64), .strided = true, .seed = 17 },
    { 1, 1, 1, 1, 1, LENGTHS(257), .state = true, .seed = 18 },
    { 1, 1, 2, 16, 80, LENGTHS(1, 1, 1, 1, 1), .state = true, .seed = 19 },
    { 1, 1, 2, 8, 8, LENGTHS(0, 0), .state = true, .var = true, .seed = 20 },
};

/* A decay so strong that exp underflows is a reset of the memory, not a NaN, nor a loss of digits
 * for the tokens around it. */
static const struct scan_case hard[] = {
    { 2, 2, 2, 16, 16, LENGTHS(257), .var = true, DECAYS(-30), .seed = 31 },
    { 1, 1, 3, 24, 16, LENGTHS(128), .state = true, .var = true, DECAYS(-1e-6f, -1, -80),
      .seed = 32 },
    { 1, 1, 2, 48, 20, LENGTHS(65, 129), .state = true, DECAYS(-0.01f, 0, -200, -1e-6f),
      .seed = 33 },
    { 1, 1, 2, 16, 16, LENGTHS(130), .state = true, DECAYS(-80), .seed = 34 },
    { 1, 1, 2, 16, 16, LENGTHS(130), .state = true, .var = true, DECAYS(-200), .seed = 35 },
    { 1, 1, 1, 16, 16, LENGTHS(257), .var = true, DECAYS(0), .seed = 36 },
    { 1, 1, 1, 16, 16, LENGTHS(257), .state = true, DECAYS(-9, -3, -2), .seed = 37 },
};

static void laws(const struct scan *f)
{
    for (size_t i = 0; i < LEN(small); i++) {
        law(f->name, &small[i], check_scan_definition(f, &small[i]));
        law(f->name, &small[i], check_scan(&naive, f, &small[i]));
        law(f->name, &small[i], check_scan(&cpu, f, &small[i]));
    }
    for (size_t i = 0; i < LEN(shapes); i++)
        law(f->name, &shapes[i], check_scan(&cpu, f, &shapes[i]));
    for (size_t i = 0; i < LEN(hard); i++)
        law(f->name, &hard[i], check_scan(&cpu, f, &hard[i]));
}

/* Who computes what does not show: any number of threads gives the same bits. */
static void threads_do_not_show(const struct scan *f)
{
    const struct scan_case c = { 1, 2, 4, 33, 70, LENGTHS(100, 0, 170), .state = true, .var = true };
    struct check_data *m[2];

    for (int i = 0; i < 2; i++) {
        struct dev d = { .kind = DEV_CPU, .type = F32, .threads = 1 + 2 * i };
        m[i] = check_new(f, &c);
        check_fill(m[i]);
        CHECK(check_run(m[i], &d) == NULL);
    }
    for (int i = 0; i < CHECK_FIELDS; i++) {
        size_t bytes = (size_t)tensor_count(m[0]->shape[i]) * sizeof(float);
        CHECK(!memcmp(m[0]->val[i], m[1]->val[i], bytes));
        CHECK(!memcmp(m[0]->grad[i], m[1]->grad[i], bytes));
    }
    check_free(m[0]);
    check_free(m[1]);
}

int main(void)
{
    for (const struct scan *f = scan_next(NULL); f; f = scan_next(f)) {
        laws(f);
        threads_do_not_show(f);
    }
    return test_done("scan");
}
