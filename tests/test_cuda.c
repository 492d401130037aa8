/* The GPU computes every verb and the linear recurrence as the definition does, in F32 and in BF16; what it recorded
 * is what it does without, to the bit, and decoding by fused verbs is decoding by all of them. */
#include "check_op.h"
#include "check_scan.h"
#include "op.h"
#include "rng.h"
#include "session.h"
#include "test.h"

#define LENGTHS(...) .length = (const int32_t[]){ __VA_ARGS__ }, .n = (int)LEN(((const int32_t[]){ __VA_ARGS__ }))
#define DECAYS(...)  .decay = (const float[]){ __VA_ARGS__ }, .decays = (int)LEN(((const float[]){ __VA_ARGS__ }))
#define MANY         LENGTHS(17, 0, 1, 33, 16, 40, 15, 2, 31, 32, 40, 5, 38, 40, 39, 8, 37, 36, 40, 0, 30, 40, 35)

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
    { .Hq = 1, .Hk = 1, .H = 2, .K = 48, .V = 20, LENGTHS(65, 79), .state = true, DECAYS(-0.01f, 0, -200, -1e-6f),
      .seed = 10 },
    /* A warp per head: of documents, and of pieces of them. */
    { .Hq = 16, .Hk = 16, .H = 16, .K = 16, .V = 32, MANY, .state = true, .seed = 11 },
    { .Hq = 16, .Hk = 16, .H = 16, .K = 24, .V = 8, MANY, .strided = true, .seed = 12 },
    { .Hq = 16, .Hk = 16, .H = 16, .K = 8, .V = 16, MANY, .state = true, DECAYS(-1e-6f, -1, -80), .seed = 13 },
    { .Hq = 2, .Hk = 2, .H = 2, .K = 16, .V = 32, LENGTHS(130, 0, 1, 64, 70), .state = true, .strided = true,
      .seed = 14 },
    { .Hq = 3, .Hk = 3, .H = 3, .K = 32, .V = 24, LENGTHS(64, 128, 200, 5), .state = true, .seed = 15 },
    { .Hq = 16, .Hk = 16, .H = 16, .K = 32, .V = 64, MANY, .state = true, .seed = 16 },
    { .Hq = 2, .Hk = 2, .H = 2, .K = 24, .V = 40, LENGTHS(70, 128, 3), .state = true, .strided = true, .seed = 17 },
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
    { .Hq = 64, .Hk = 64, .H = 64, .K = 16, .V = 32, LENGTHS(200, 150, 100, 190), .state = true, .seed = 32 },
    { .Hq = 64, .Hk = 64, .H = 64, .K = 32, .V = 32, LENGTHS(130, 192, 130, 64), .seed = 33 },
    { .Hq = 100, .Hk = 100, .H = 100, .K = 16, .V = 16, LENGTHS(1400), .state = true, .seed = 34 },
    { .Hq = 64, .Hk = 64, .H = 64, .K = 32, .V = 64, LENGTHS(100, 100, 100, 78), .state = true, .seed = 35 },
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
            printf("FAIL %s %s %s: %s, error %g of %g\n", c->op, c->note, dtype_name(d->type), r.fault, r.error,
                   r.bound);
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

/* A model of two layers, one of them metaplastic, with room for the tail of a block that is not whole. */
static const char small_model[] =
    "{\"model_type\": \"palimpsa\", \"vocab_size\": 301, \"hidden_size\": 72, \"num_hidden_layers\": 2, "
    "\"num_heads\": 3, \"head_dim\": 24, \"expand_k\": 1, \"expand_v\": 1, \"conv_size\": 4, "
    "\"intermediate_size\": 104, \"time_step_min\": 0.001, \"time_step_max\": 0.1, \"beta_step_rank\": 20, "
    "\"initializer_range\": 0.2, \"metaplastic_layers\": [0]}";

enum { VOCAB = 301, STEPS = 6, ROW = 1536, MOST_STARTS = 130 };

static bool open_small(struct model *m, struct dev *d, bool learn)
{
    struct config c;

    if (config_parse(&c, small_model, strlen(small_model), "small") ||
        model_open(m, d, &c, &(struct model_use){ .world = 1, .learn = learn }))
        return false;
    params_init(&m->params, d, 5, 0);
    return true;
}

/* Prompts of 5 tokens, then STEPS single ones, n sequences; logits [STEPS][n][VOCAB]. */
static void decode(struct dev *d, int n, float *logits)
{
    struct session s;
    struct model m;
    int32_t id[STEPS + 5];
    const int32_t *ids[3];
    int64_t count[3];

    if (!open_small(&m, d, false)) {
        CHECK(!"the model opens");
        return;
    }
    for (int i = 0; i < STEPS + 5; i++)
        id[i] = (int32_t)(rng_bits(1, 2, (uint64_t)i) % VOCAB);
    CHECK(session_open(&s, &m, n) == 0);
    for (int at = 0; at < STEPS; at++) {
        for (int i = 0; i < n; i++)
            ids[i] = at ? id + 4 + (at + i) % STEPS : id + i, count[i] = at ? 1 : 5;
        session_feed(&s, ids, count, logits + (int64_t)at * n * VOCAB);
    }
    session_close(&s);
    model_close(&m);
}

static void check_decoding(struct dev *d)
{
    const struct ops *whole = d->ops;
    struct ops live = *whole, plain = *whole;

    live.record = NULL;
    plain.record = NULL, plain.products = NULL, plain.recall = NULL;
    for (int n = 1; n <= 3; n += 2) {
        size_t size = (size_t)(STEPS * n * VOCAB);
        float *a = mem_new(size, sizeof *a), *b = mem_new(size, sizeof *b), *c = mem_new(size, sizeof *c);
        decode(d, n, a);
        d->ops = &live;
        decode(d, n, b);
        d->ops = &plain;
        decode(d, n, c);
        d->ops = whole;
        CHECK(!memcmp(a, b, size * sizeof *a));
        CHECK(a[0] == a[0] && test_distance(a, c, (int64_t)size) < (d->type == BF16 ? 2e-2 : 1e-5));
        free(a);
        free(b);
        free(c);
    }
}

static void nothing(void *arg, int bucket)
{
    (void)arg, (void)bucket;
}

/* Rows of the first two kinds are served by one recording: their documents are not as many, but nearly. So are those of
 * the next two. */
static int documents(int32_t *start, int kind)
{
    static const int32_t few[][5] = { { 0, 40, 41, ROW }, { 0, 20, 30, 31, ROW }, { 0, 7, ROW } };
    const int length = kind ? 13 : 15;
    int n = 0;

    for (start[0] = 0; start[n] < ROW; n++)
        start[n + 1] = kind > 1 ? few[kind - 2][n + 1] : start[n] + length < ROW ? start[n] + length : ROW;
    return n;
}

/* Gradients after four rows of each kind; every second has few labels. */
static double learn(struct dev *d, bool tell, bool recompute, float **grads, int64_t *count)
{
    int32_t token[ROW], target[ROW], start[MOST_STARTS];
    struct model m;
    double loss = 0;

    *count = 0;
    *grads = NULL;
    if (!open_small(&m, d, true)) {
        CHECK(!"the model opens");
        return 0;
    }
    m.recompute = recompute;
    CHECK(model_reserve(&m, JOB_LEARN, ROW) == 0);
    params_zero_grad(&m.params, d);
    for (int i = 0; i < 20; i++) {
        int n = documents(start, i / 4);
        struct batch b = { .token = token, .target = target, .seqs = seqs_of(start, n) };
        for (int t = 0; t < ROW; t++) {
            token[t] = (int32_t)(rng_bits(3, (uint64_t)i, (uint64_t)t) % VOCAB);
            target[t] = i % 2 && t % 5 ? -1 : token[t] / 2;
        }
        loss += model_learn(&m, &b, 0.01f, tell ? nothing : NULL, NULL);
    }
    for (int i = 0; i < m.params.nbucket; i++) {
        *grads = mem_grow(*grads, (size_t)(*count + m.params.bucket[i].count), sizeof **grads);
        op_get(d, *grads + *count, m.params.bucket[i].grad.data, (size_t)m.params.bucket[i].count * 4);
        *count += m.params.bucket[i].count;
    }
    model_close(&m);
    return loss;
}

static void check_learning(struct dev *d)
{
    const struct ops *whole = d->ops;
    struct ops live = *whole;

    live.record = NULL;
    for (int way = 0; way < 4; way++) {
        float *a, *b;
        int64_t n;
        double loss = learn(d, way & 1, way & 2, &a, &n);
        d->ops = &live;
        CHECK(loss == learn(d, way & 1, way & 2, &b, &n));
        d->ops = whole;
        CHECK(n > 0 && loss == loss && !memcmp(a, b, (size_t)n * sizeof *a));
        free(a);
        free(b);
    }
}

/* test_cuda [ops|linear|recorded]: all, or one part. */
int main(int argc, char **argv)
{
    const char *part = argc > 1 ? argv[1] : "ops linear recorded";
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
        if (strstr(part, "recorded")) {
            check_decoding(&d);
            check_learning(&d);
        }
        dev_close(&d);
    }
    return test_done("cuda");
}
