/* test_batch.c - how many samples go side by side changes no score, not in its last bit: requests, losses, recall. */
#include "mqar_set.h"
#include "nll.h"
#include "op.h"
#include "rng.h"
#include "scratch.h"
#include "task_ask.h"
#include "task_model.h"

enum { ASKS = 48, DOCS = 32 };
static const int64_t batches[] = { 1, 7, 32 };

/* The tokenizer of the task's model, another model and device. */
static bool use_model(struct opened *m, const char *preset, const char *device, enum dtype type)
{
    struct config c;

    model_close(&m->model);
    dev_close(&m->dev);
    if (config_read(&c, preset) || dev_open(&m->dev, device, type, 2))
        return false;
    c.init_std = 0.3f;
    c.eos = c.bos = 0;
    if (model_open(&m->model, &m->dev, &c, &(struct model_use){ 0 }))
        return false;
    params_init(&m->model.params, &m->dev, 3, 0);
    return true;
}

static int32_t id_of(int64_t stream, int64_t t)
{
    return (int32_t)(rng_bits(11, (uint64_t)stream, (uint64_t)t) % 300);
}

static int64_t draw(int64_t stream, int64_t i, int64_t n)
{
    return (int64_t)(rng_bits(12, (uint64_t)stream, (uint64_t)i) % (uint64_t)n);
}

/* Groups of four that begin alike, some for more than a tile, some not at all; single tokens; one longer than a row. */
static void make_asks(struct asks *a)
{
    for (int i = 0; i < ASKS; i++) {
        int64_t same = i % 12 < 8 ? draw(1, i / 4, 200) : 0, own = 2 + draw(2, i, i % 3 ? 12 : 150);
        struct ask *x;

        asks_add(a, "", "");
        x = &a->at[i];
        x->n = i == ASKS - 1 ? 4200 : same + own;
        x->scored = i % 5 ? 1 + draw(3, i, own - 1) : 1;
        x->id = mem_new((size_t)x->n, sizeof *x->id);
        for (int64_t t = 0; t < x->n; t++)
            x->id[t] = id_of(t < same ? i / 4 : 100 + i, t);
    }
}

static void check_asks(struct opened *m, const struct task *task)
{
    struct asks a = { 0 };
    double want[ASKS] = { 0 };
    int greedy[ASKS] = { 0 };

    make_asks(&a);
    for (int look = 0; look < 2; look++)
        for (size_t b = 0; b < LEN(batches); b++) {
            CHECK(!asks_answer(&(struct task_run){ .m = m, .task = task, .batch = batches[b] }, &a, look));
            for (int i = 0; i < ASKS; i++) {
                if (!b)
                    want[i] = a.at[i].log_prob, greedy[i] = a.at[i].greedy;
                CHECK_NEAR(a.at[i].log_prob, want[i], 0);
                CHECK(a.at[i].greedy == greedy[i] && a.at[i].log_prob < 0);
            }
        }
    asks_free(&a);
}

/* Sums are in double and meet in another order where a long document does not wait for short ones. */
static void check_nll(struct opened *m)
{
    int32_t ids[2600];
    double want = 0, first = 0;

    for (size_t b = 0; b < LEN(batches); b++) {
        struct nll n;

        if (nll_open(&n, &m->model, 0, batches[b])) {
            test_failed++;
            return;
        }
        for (int i = 0; i < DOCS; i++) {
            int64_t count = i == 17 ? 2600 : 2 + draw(4, i, i % 4 ? 60 : 400);
            for (int64_t t = 0; t < count; t++)
                ids[t] = id_of(200 + i, t);
            nll_begin(&n);
            CHECK(!nll_feed(&n, ids, count));
        }
        CHECK(!nll_end(&n));
        if (!b)
            want = n.loss, first = n.bucket_loss[0];
        CHECK_NEAR(n.loss, want, 1e-12 * want);
        CHECK_NEAR(n.bucket_loss[0], first, 1e-12 * want);
        CHECK(n.predicted > 2000 && n.loss > 0);
        nll_close(&n);
    }
}

/* Which labels are likeliest, by batches of examples of two lengths. */
static void check_recall(struct opened *m)
{
    struct mqar_mix mix = { .at = { { 64, 4, 512, false }, { 200, 16, 512, false } }, .n = 2 };
    struct mqar_set set;
    struct mqar_score want[2], got[2];

    mqar_set_open(&set, &mix, 5, 32);
    for (size_t b = 0; b < LEN(batches); b++) {
        struct mqar_row row;

        CHECK(!model_reserve(&m->model, JOB_LOGITS, batches[b] * 200));
        mqar_row_open(&row, &mix, batches[b]);
        row.alone = true;
        mqar_score(b ? got : want, &m->model, &set, &row, NULL, NULL);
        CHECK(!b || !memcmp(got, want, sizeof got));
        mqar_row_close(&row);
    }
    mqar_set_close(&set);
}

/* On d->temp, of the device's type. */
static struct tensor noise(struct dev *d, int64_t rows, int64_t cols, uint64_t stream)
{
    struct tensor t = arena_push(&d->temp, SHAPE(F32, rows, cols)), y = tensor_like(t);
    float *host = mem_new((size_t)(rows * cols), sizeof *host);

    y.type = d->type;
    y = arena_push(&d->temp, y);
    for (int64_t i = 0; i < rows * cols; i++)
        host[i] = rng_normal(13, stream, (uint64_t)i);
    op_put(d, t.data, host, (size_t)(rows * cols) * 4);
    op_cast(d, y, t);
    free(host);
    return y;
}

static void product(struct dev *d, float *out, struct tensor x, struct tensor w, bool alone)
{
    size_t mark = arena_mark(&d->temp);
    struct tensor y = arena_push(&d->temp, SHAPE(F32, x.dim[0], w.dim[0]));

    d->alone = alone;
    op_fill(d, y, NAN);
    op_matmul(d, y, x, w, MM_TB);
    d->alone = false;
    op_get(d, out, y.data, (size_t)tensor_count(y) * 4);
    arena_pop(&d->temp, mark);
}

/* Rows of a product are what they are in a taller one, and right. */
static void check_products(struct dev *d)
{
    static const int64_t size[][2] = { { 1, 8 }, { 24, 64 }, { 33, 304 }, { 512, 128 } }, rows[] = { 1, 2, 7, 64, 129 };
    enum { ALL = 200 };
    size_t mark = arena_mark(&d->temp);

    for (size_t i = 0; i < LEN(size); i++) {
        int64_t N = size[i][0], K = size[i][1];
        struct tensor x = noise(d, ALL, K, 1 + i), w = noise(d, N, K, 100 + i);
        float *whole = mem_new((size_t)(ALL * N), 4), *part = mem_new((size_t)(ALL * N), 4);

        product(d, part, x, w, false);
        product(d, whole, x, w, true);
        CHECK_NEAR(test_distance(whole, part, ALL * N), 0, 1e-6);
        for (size_t k = 0; k < LEN(rows); k++) {
            int64_t from = 11 * (int64_t)k;
            product(d, part, tensor_rows(x, from, rows[k]), w, true);
            CHECK(!memcmp(part, whole + from * N, (size_t)(rows[k] * N) * 4));
        }
        free(whole);
        free(part);
        arena_pop(&d->temp, mark);
    }
}

static void check_all(const char *device, enum dtype type)
{
    static const char *const presets[] = { "palimpsa-tiny", "mamba2-tiny", "meta_mamba2-tiny" };
    struct task task = { .name = "test" };
    struct opened m;

    CHECK(task_model_open(&m, false));
    for (size_t i = 0; i < LEN(presets); i++) {
        int failed = test_failed;

        CHECK(use_model(&m, presets[i], device, type));
        check_asks(&m, &task);
        check_products(&m.dev);
        check_nll(&m);
        check_recall(&m);
        printf("%s, %s %s: %s\n", presets[i], device, dtype_name(type), failed == test_failed ? "equal" : "not equal");
    }
    task_model_close(&m);
}

int main(void)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    scratch_open();
    check_all("cpu", F32);
    for (int type = F32; type <= BF16 && dev_gpus() > 0; type++)
        check_all("cuda", (enum dtype)type);
    return test_done("batch");
}
