/* test_train.c - what training rests on: rates, full-precision masters, weights that decay leaves alone,
 * rows that ranks share, and memory that is counted before it is taken. */
#include "half.h"
#include "loader.h"
#include "memory.h"
#include "model.h"
#include "op.h"
#include "optim.h"
#include "rng.h"
#include "schedule.h"
#include "scratch.h"
#include "test.h"

/* Values from the formulas, by hand: cosine 6e-4 to 6e-5 over 100 steps. */
static void check_schedule(void)
{
    struct schedule s = { .steps = 100, .peak = 6e-4, .floor = 6e-5 };
    enum schedule_kind kind;

    CHECK_NEAR(schedule_rate(&s, 50), 3.3e-4, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 51), 3.21519095e-4, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 100), 6e-5, 1e-12);
    s.warmup = 10;
    CHECK_NEAR(schedule_rate(&s, 1), 6e-5, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 10), 6e-4, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 55), 3.3e-4, 1e-12);
    s.kind = SCHEDULE_LINEAR;
    CHECK_NEAR(schedule_rate(&s, 28), 6e-4 - 0.2 * 5.4e-4, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 100), 6e-5, 1e-12);
    s.kind = SCHEDULE_WSD;
    s.decay = 0.2;
    CHECK_NEAR(schedule_rate(&s, 80), 6e-4, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 90), 3.3e-4, 1e-12);
    CHECK_NEAR(schedule_rate(&s, 100), 6e-5, 1e-12);
    s.kind = SCHEDULE_CONSTANT;
    CHECK_NEAR(schedule_rate(&s, 100), 6e-4, 1e-12);
    s = (struct schedule){ .kind = SCHEDULE_COSINE, .steps = 3, .warmup = 5, .peak = 1, .floor = 0.1 };
    CHECK_NEAR(schedule_rate(&s, 3), 0.6, 1e-12);          /* shorter than its warm-up: no jump, no NaN */
    s.warmup = 3;
    CHECK_NEAR(schedule_rate(&s, 3), 1, 1e-12);
    CHECK(schedule_parse(&kind, "wsd") == 0 && kind == SCHEDULE_WSD);
    scratch_listen();
    CHECK(schedule_parse(&kind, "cosin") == -1);
    CHECK(scratch_heard("schedule: expected", "cosine|linear|wsd|constant", "found cosin"));
}

/* Weights are drawn by our own log and cos: in fp32 those of the library, and the same bits everywhere. */
static void check_draws(void)
{
    enum { N = 100000 };
    uint64_t sum = 0;
    int other = 0;

    for (uint64_t i = 0; i < N; i++) {
        double u = rng_uniform(1, 2, 2 * i), v = rng_uniform(1, 2, 2 * i + 1);
        float got = (float)rng_normal(1, 2, i), want = (float)(sqrt(-2 * log(1 - u)) * cos(6.283185307179586 * v));
        uint32_t bits = float_bits(got);
        CHECK(u == (double)(rng_bits(1, 2, 2 * i) >> 11) * 0x1p-53);
        CHECK_NEAR(got, want, 1e-6 * fabs(want) + 1e-15);
        other += got != want;
        sum = rng_mix(sum ^ bits);
    }
    CHECK(other < 3);
    CHECK(sum == 0xfb7d5e2dd71763c3u);
    CHECK(rng_cos_turn(0.25) == 0 && rng_cos_turn(0.5) == -1 && rng_cos_turn(0.75) == 0 && rng_log(1) == 0);
}

/* A thousand steps of -1e-4 on a weight of 1: 0.9 with a master in F32, also as its copy in BF16 shows.
 * In BF16 alone each step is less than half a unit of the last place, and nothing would move. */
static void check_masters(void)
{
    struct param w = { .name = "w", .value = SHAPE(F32, 64), .bucket = BUCKET_EMBED, .draw = draw_const, .a = 1 };
    struct optim o = { .unit = 1, .h = { .lr = 1e-4f, .beta1 = 0, .beta2 = 0, .eps = 1e-15f } };
    struct params p = { 0 };
    uint16_t bare = bf16_of(1);
    struct comm c;
    struct dev d;
    float x[64];

    CHECK(dev_open(&d, "cpu", F32, 1) == 0 && comm_fork(&c, 1) == 0 && dev_reserve(&d, 1 << 16, 1 << 16) == 0);
    comm_use(&c, &d);
    params_add(&p, w);
    CHECK(params_alloc(&p, &d, 1, true, true) == 0);
    params_init(&p, &d, 1, 0);
    for (o.h.step = 1; o.h.step <= 1000; o.h.step++) {
        op_fill(&d, p.bucket[BUCKET_EMBED].grad, 1);
        optim_step(&o, &p, &d, &c);
        bare = bf16_of(float_of_bf16(bare) - 1e-4f);
    }
    param_get(&d, &p.at[0].value, x);
    CHECK_NEAR(x[0], 0.9, 1e-4);
    CHECK_NEAR(float_of_bf16(bf16_of(x[63])), 0.9, 2e-3);
    CHECK(float_of_bf16(bare) == 1);
    params_free(&p, &d);
    dev_close(&d);
}

static bool open_preset(struct model *m, struct dev *d, const char *name, const struct model_use *use)
{
    struct config c;

    if (dev_open(d, "cpu", F32, 1))
        return false;
    return config_read(&c, name) == 0 && model_open(m, d, &c, use) == 0;
}

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);

    return n >= k && !strcmp(s + n - k, tail);
}

/* A step without gradient: weight decay shrinks matrices by lr * decay, and leaves A_log, dt_bias, D and
 * norms as they are to the last bit, unless all is to decay. */
static void check_decay(const char *preset, bool all)
{
    struct optim o = { .unit = 1, .clip = 1, .h = { .lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-15f,
                                                    .decay = 0.1f, .step = 1 } };
    struct model m;
    struct comm c;
    struct dev d;
    int gates = 0, matrices = 0;

    CHECK(comm_fork(&c, 1) == 0);
    if (!open_preset(&m, &d, preset, &(struct model_use){ .learn = true, .optim = true, .decay_all = all })) {
        CHECK(!"the preset opens");
        return;
    }
    comm_use(&c, &d);
    CHECK(dev_reserve(&d, 1 << 16, 1 << 16) == 0);
    params_init(&m.params, &d, 1, 0);
    params_zero_grad(&m.params, &d);
    CHECK(optim_step(&o, &m.params, &d, &c) == 0);
    for (int i = 0; i < m.params.n; i++) {
        const struct param *p = &m.params.at[i];
        bool gate = ends(p->name, ".A_log") || ends(p->name, ".D") || ends(p->name, ".dt_bias") ||
                    ends(p->name, "norm.weight") || ends(p->name, "norm_f.weight");
        bool matrix = ends(p->name, "_proj.weight") || ends(p->name, "embeddings.weight");
        int64_t n = tensor_count(p->value), same = 0, shrunk = 0;
        float *x = mem_new((size_t)n, sizeof *x);
        param_get(&d, &p->value, x);
        for (int64_t j = 0; j < n; j++) {
            float begin = p->draw(1, rng_stream(p->name), j, p);
            same += x[j] == begin;
            shrunk += fabsf(x[j] - begin * 0.999f) <= 1e-6f * fabsf(begin);
        }
        if (gate || matrix)
            CHECK(matrix || all ? shrunk == n : same == n);
        gates += gate;
        matrices += matrix;
        free(x);
    }
    CHECK(gates >= 6 && matrices >= 4);
    model_close(&m);
    dev_close(&d);
}

/* exp(A_log) in its range (from 1 to 16 for plain Mamba2), softplus(dt_bias) in [1e-3,0.1] and spread over
 * heads, D = 1, nothing but numbers. */
static void check_start(const char *preset, double A_lo)
{
    struct model m;
    struct dev d;
    double lo = 1, hi = 0;

    if (!open_preset(&m, &d, preset, &(struct model_use){ 0 })) {
        CHECK(!"the preset opens");
        return;
    }
    params_init(&m.params, &d, 3, 0);
    for (int i = 0; i < m.params.n; i++) {
        const struct param *p = &m.params.at[i];
        int64_t n = tensor_count(p->value), finite = 0;
        float *x = mem_new((size_t)n, sizeof *x);
        param_get(&d, &p->value, x);
        for (int64_t j = 0; j < n; j++) {
            double dt = log1p(exp(x[j]));
            finite += isfinite(x[j]) != 0;
            if (ends(p->name, ".A_log"))
                CHECK(exp(x[j]) > A_lo - 1e-4 && exp(x[j]) < 16.001);
            if (ends(p->name, ".D"))
                CHECK(x[j] == 1);
            if (ends(p->name, ".dt_bias")) {
                CHECK(dt >= 0.999e-3 && dt <= 0.1001);
                lo = fmin(lo, dt);
                hi = fmax(hi, dt);
            }
        }
        CHECK(finite == n);
        free(x);
    }
    CHECK(hi > 2 * lo);
    model_close(&m);
    dev_close(&d);
}

/* Windows that ranks read in 20 steps: no two alike, and together the order of one rank. */
static void check_ranks_share(void)
{
    static uint16_t token[4000];
    struct loader_options o = { .tokens = 16, .context = 16, .seed = 5, .shuffle = true, .raw_width = 2, .eot = -1 };
    struct loader l;
    struct batch b;
    char *seen;
    FILE *f;

    o.files = scratch("rows.u16");
    for (int i = 0; i < (int)LEN(token); i++)
        token[i] = (uint16_t)i;
    f = fopen(o.files, "wb");
    CHECK(f && fwrite(token, sizeof *token, LEN(token), f) == LEN(token) && !fclose(f));
    if (loader_open(&l, &o)) {
        CHECK(!"the shard opens");
        return;
    }
    seen = mem_new((size_t)l.windows, 1);
    for (int64_t step = 0; step < 20; step++)
        for (int64_t rank = 0; rank < 2; rank++)
            for (int64_t i = 0; i < 2; i++) {
                int64_t row = step * 4 + rank + i * 2;           /* as a rank of two with two rows a step counts */
                CHECK(loader_read(&l, row, &b) == 0);
                CHECK(b.token[0] % 16 == 0 && !seen[b.token[0] / 16]);
                seen[b.token[0] / 16] = 1;
            }
    for (int64_t row = 0; row < 80; row++) {
        CHECK(loader_read(&l, row, &b) == 0);
        CHECK(seen[b.token[0] / 16] == 1);
        seen[b.token[0] / 16] = 2;
    }
    free(seen);
    loader_close(&l);
}

/* [T, vocabulary] logits never exist, memory grows with T and not faster, evaluation has no gradients. */
static void check_plan(void)
{
    struct model_use learn = { .world = 1, .learn = true, .optim = true }, use = { .world = 1 };
    struct model_plan a, b, loss;
    struct config c;
    struct dev d;

    CHECK(dev_open(&d, "cpu", F32, 1) == 0 && config_read(&c, "palimpsa-tiny") == 0);
    c.vocab = c.vocab_real = 50288;
    CHECK(model_plan(&a, &d, &c, &learn, JOB_LEARN, 32768, 1) == 0);
    CHECK(model_plan(&b, &d, &c, &learn, JOB_LEARN, 65536, 1) == 0);
    CHECK(model_plan(&loss, &d, &c, &use, JOB_LOSS, 65536, 1) == 0);
    CHECK(b.keep + b.temp < (size_t)65536 * 50288 * 4 / 4);
    CHECK(b.keep <= 2 * a.keep + 4096 && b.temp <= 2 * a.temp + 4096);
    CHECK(loss.grads == 0 && loss.optimizer == 0);
    CHECK(loss.keep + loss.temp < (b.keep + b.temp) / 2);
    dev_close(&d);
}

/* What was planned is what a step takes, within a tenth: arenas are not short and not idle. */
static void check_estimate(void)
{
    static int32_t token[8192], target[8192];
    struct model_use use = { .world = 1, .learn = true, .optim = true };
    struct batch b = { .token = token, .target = target };
    int32_t start[9];
    struct model_plan p;
    struct model m;
    struct dev d;
    size_t before, after;
    double planned;

    if (!open_preset(&m, &d, "palimpsa-tiny", &use)) {
        CHECK(!"the preset opens");
        return;
    }
    for (int i = 0; i <= 8; i++)
        start[i] = 1024 * i;
    for (int i = 0; i < 8192; i++)
        token[i] = (i * 7919) % (int32_t)m.cfg.vocab, target[i] = (i * 31) % (int32_t)m.cfg.vocab;
    b.seqs = seqs_of(start, 8);
    CHECK(model_plan(&p, &d, &m.cfg, &use, JOB_LEARN, 8192, 0) == 0);
    params_init(&m.params, &d, 1, 0);
    before = memory_resident();
    CHECK(model_reserve(&m, JOB_LEARN, 8192) == 0);
    params_zero_grad(&m.params, &d);
    model_learn(&m, &b, 1e-4f, NULL, NULL);
    after = memory_resident();
    planned = (double)(p.keep + p.temp + p.grads);
    CHECK_NEAR((double)(after - before), planned, 0.1 * planned);
    model_close(&m);
    dev_close(&d);
}

static float silu(double x)
{
    return (float)(x / (1 + exp(-x)));
}

/* T = 1..8, width 4: as many outputs as inputs, each the sum over zeros on the left and itself last. */
static void check_conv(void)
{
    float x[8] = { 1, -2, 3, 0.5f, -1, 2, 4, -3 }, w[4] = { 0.5f, -1, 2, 0.25f }, y[9];
    struct dev d;

    CHECK(dev_open(&d, "cpu", F32, 1) == 0);
    for (int T = 1; T <= 8; T++) {
        int32_t start[2] = { 0, T };
        struct seqs s = seqs_of(start, 1);
        struct tensor ty = SHAPE(F32, T, 1), tx = SHAPE(F32, T, 1), tw = SHAPE(F32, 1, 4), none = { 0 };
        int32_t seq[8] = { 0 };
        ty.data = y, tx.data = x, tw.data = w;
        s.dstart = start;
        s.dseq = seq;
        for (int t = 0; t < 9; t++)
            y[t] = NAN;
        op_conv(&d, ty, none, tx, tw, none, none, &s);
        for (int t = 0; t < T; t++) {
            double sum = 0;
            for (int i = 0; i < 4; i++)
                sum += t - 3 + i >= 0 ? (double)w[i] * x[t - 3 + i] : 0;
            CHECK_NEAR(y[t], silu(sum), 1e-6);
        }
        CHECK(isnan(y[T]));
    }
    dev_close(&d);
}

int main(void)
{
    scratch_open();
    check_schedule();
    check_draws();
    check_masters();
    check_decay("palimpsa-tiny", false);
    check_decay("palimpsa-tiny", true);
    check_decay("mamba2-tiny", false);
    check_start("palimpsa-tiny", 0);
    check_start("mamba2-tiny", 1);
    check_start("meta_mamba2-tiny", 0);
    check_ranks_share();
    check_plan();
    check_estimate();
    check_conv();
    scratch_close();
    return test_done("train");
}
