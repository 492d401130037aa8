/* test_ahead.c - learning in halves, the next row brought meanwhile: the bits of rows that come one by one. */
#include "model_learn.h"
#include "model_parts.h"
#include "mqar_run.h"
#include "op.h"
#include "rng.h"
#include "test.h"

enum { ROWS = 9, MOST = 101, VOCAB = 70 };

/* Tokens of a row, its labels every so many tokens, and whether the row that follows can be there before its time: one
 * that is shorter would come over the loss. */
static const struct { int tokens, every; bool follows; } plan[ROWS] = {
    { 101, 1, true }, { 101, 1, false }, { 37, 1, true }, { 101, 5, true }, { 101, 5, true }, { 90, 5, true },
    { 101, 1, true }, { 101, 1, true }, { 101, 3, false },
};

struct row { int32_t token[MOST], target[MOST], start[4]; struct batch b; };

static void row_make(struct row *r, int i)
{
    const int T = plan[i].tokens, start[4] = { 0, 30, 31, T };

    memcpy(r->start, start, sizeof start);
    for (int t = 0; t < T; t++) {
        r->token[t] = (int32_t)(rng_bits(3, (uint64_t)i, (uint64_t)t) % VOCAB);
        r->target[t] = t % plan[i].every ? -1 : r->token[t] / 2;
    }
    r->b = (struct batch){ .token = r->token, .target = r->target, .seqs = seqs_of(r->start, 3) };
}

/* Loss of every row, and at the end the gradients of all of them. A row that is there is not read any more. */
static float *learn(struct model *m, struct dev *d, bool ahead, bool between, double loss[ROWS])
{
    struct row *row = mem_new(2, sizeof *row);
    float *grads;
    int64_t n = 0;

    params_zero_grad(&m->params, d);
    row_make(&row[0], 0);
    for (int i = 0; i < ROWS; i++) {
        struct row *next = &row[(i + 1) % 2];
        model_learn_begin(m, &row[i % 2].b, 0.01f, NULL, NULL);
        if (i + 1 < ROWS)
            row_make(next, i + 1);
        if (ahead && i + 1 < ROWS) {
            model_ahead(m, &next->b);
            CHECK((m->ahead && m->ahead->token) == plan[i].follows);
            if (plan[i].follows && !between)
                memset(next->token, 0x7f, sizeof next->token), memset(next->target, 0x7f, sizeof next->target);
        }
        loss[i] = model_learn_end(m);
        if (between)
            CHECK(model_loss(m, &row[i % 2].b, NULL, NULL) > 0);
    }
    for (int i = 0; i < m->params.nbucket; i++)
        n += tensor_count(m->params.bucket[i].grad);
    grads = mem_new((size_t)n, sizeof *grads);
    n = 0;
    for (int i = 0; i < m->params.nbucket; i++) {
        int64_t count = tensor_count(m->params.bucket[i].grad);
        op_get(d, grads + n, m->params.bucket[i].grad.data, (size_t)count * 4);
        n += count;
    }
    free(row);
    return grads;
}

static void check_ahead(const char *device, const char *name, enum dtype type)
{
    const struct mqar_options small = { .vocab = VOCAB, .layers = 2, .width = 32, .heads = 2, .key = 8, .value = 16,
                                        .rank = 8, .tied = true };
    struct config c;
    struct dev d;
    struct model m;
    float *one, *grads;
    double loss[2][ROWS];

    CHECK(mqar_config(&c, &small, name, MOST) == 0 && dev_open(&d, device, type, 1) == 0);
    CHECK(model_open(&m, &d, &c, &(struct model_use){ .learn = true }) == 0);
    params_init(&m.params, &d, 3, 0);
    CHECK(model_reserve(&m, JOB_LEARN, MOST) == 0 && model_reserve(&m, JOB_LOSS, MOST) == 0);
    one = learn(&m, &d, false, false, loss[0]);
    for (int way = 0; way < 4; way++) {
        int64_t n = 0;
        grads = learn(&m, &d, way & 1, way & 2, loss[1]);
        for (int i = 0; i < m.params.nbucket; i++)
            n += tensor_count(m.params.bucket[i].grad);
        CHECK(n > 0 && !memcmp(one, grads, (size_t)n * sizeof *one) && !memcmp(loss[0], loss[1], sizeof loss[0]));
        free(grads);
    }
    free(one);
    model_close(&m);
    dev_close(&d);
}

int main(void)
{
    static const char *const models[] = { "palimpsa-d", "palimpsa-m-twin", "mamba2" };

    for (size_t i = 0; i < LEN(models); i++) {
        check_ahead("naive", models[i], F32);
        check_ahead("cpu", models[i], F32);
        if (dev_gpus() > 0)
            check_ahead("cuda", models[i], F32), check_ahead("cuda", models[i], BF16);
    }
    return test_done("ahead");
}
