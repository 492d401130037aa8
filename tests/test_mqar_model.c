/* test_mqar_model.c - rows hold their examples, accuracy is that of the logits, models begin as they should. */
#include "mqar_run.h"
#include "mqar_set.h"
#include "op.h"
#include "session.h"
#include "test.h"

static const struct mqar_options small = {
    .vocab = 70, .layers = 2, .width = 24, .heads = 3, .key = 6, .value = 10, .rank = 5, .tied = true,
};
static const struct mqar_mix mix = { { { 20, 3, 70, false }, { 34, 8, 70, true }, { 6, 1, 70, false } }, 3 };

static void test_rows(void)
{
    struct mqar_maker maker;
    struct mqar_set s;
    struct mqar_row r;
    struct batch b;
    int32_t token[34], at[8];
    int64_t which[4] = { 7, 0, 4, 2 }, labels = 0;

    mqar_set_open(&s, &mix, 5, 8);
    mqar_row_open(&r, &mix, 4);
    memset(r.target, 0x7f, 4 * 34 * 4);
    b = mqar_row_fill(&r, &s, which, 4);
    CHECK(b.seqs.n == 4 && b.seqs.tokens == 34 + 20 + 34 + 6 && b.seqs.longest == 34 && b.predicted == 8 + 3 + 8 + 1);
    for (int i = 0; i < 4; i++) {
        const struct mqar *q = &mix.at[which[i] % 3];
        mqar_maker_open(&maker, q);
        mqar_make(&maker, 5, which[i] / 3, token, at);
        CHECK(b.seqs.start[i + 1] - b.seqs.start[i] == q->length);
        CHECK(!memcmp(token, b.token + b.seqs.start[i], (size_t)q->length * 4));
        for (int64_t j = 0; j < q->pairs; j++)
            CHECK(b.target[b.seqs.start[i] + at[j]] == token[2 * j + 1]);
        mqar_maker_close(&maker);
    }
    for (int64_t t = 0; t < b.seqs.tokens; t++)
        labels += b.target[t] != -1;
    CHECK(labels == b.predicted && r.asked == labels);
    for (int64_t i = 0; i < r.asked; i++)
        CHECK(b.target[r.at[i]] >= 35);
    mqar_set_fill(&s, 1000);                                 /* another epoch of fresh ones */
    mqar_maker_open(&maker, &mix.at[1]);
    mqar_make(&maker, 5, 1001, token, at);
    b = mqar_row_fill(&r, &s, (int64_t[]){ 4 }, 1);
    CHECK(!memcmp(token, b.token, sizeof token));
    mqar_maker_close(&maker);
    mqar_row_close(&r);
    mqar_set_close(&s);
}

/* A model whose weights are large enough for its choices to vary; labels are made so that some are right. */
static void test_right(const char *device, const char *name)
{
    struct config c;
    struct model m;
    struct dev d;
    struct mqar_set s;
    struct mqar_row r;
    struct batch b;
    struct mqar_score score[MQAR_MIX], one[MQAR_MIX];
    int64_t which[7] = { 0, 1, 2, 3, 4, 5, 6 }, right = 0;
    bool yes[128];
    float *logits;

    CHECK(mqar_config(&c, &small, name, 34) == 0 && c.vocab == 80 && c.vocab_real == 70 && c.ffn == 0);
    CHECK(dev_open(&d, device, F32, 1) == 0 && model_open(&m, &d, &c, &(struct model_use){ 0 }) == 0);
    params_init(&m.params, &d, 3, 0);
    mqar_set_open(&s, &mix, 5, 9);
    mqar_row_open(&r, &mix, 7);
    CHECK(model_reserve(&m, JOB_LOSS, 7 * 34) == 0 && model_reserve(&m, JOB_LOGITS, 7 * 34) == 0);
    b = mqar_row_fill(&r, &s, which, 7);
    logits = mem_new((size_t)(b.seqs.tokens * c.vocab), sizeof *logits);
    model_logits(&m, &b, NULL, false, logits);
    for (int64_t i = 0; i < r.asked; i += 2)
        r.target[r.at[i]] = argmax(logits + r.at[i] * c.vocab, c.vocab);
    memset(yes, 2, sizeof yes);
    CHECK(model_right(&m, &b, NULL, r.at, r.asked, yes) >= r.asked / 2);
    for (int64_t i = 0; i < r.asked; i++) {
        CHECK(yes[i] == (argmax(logits + r.at[i] * c.vocab, c.vocab) == b.target[r.at[i]]));
        right += yes[i];
    }
    CHECK(model_right(&m, &b, NULL, r.at, r.asked, NULL) == right && right < r.asked);
    mqar_score(score, &m, &s, &r, NULL, NULL);
    mqar_row_close(&r);
    mqar_row_open(&r, &mix, 1);                              /* one by one: the same */
    mqar_score(one, &m, &s, &r, NULL, NULL);
    for (int k = 0; k < 3; k++) {
        CHECK(score[k].n == 3 && score[k].labels == 3 * mix.at[k].pairs);
        CHECK_NEAR(score[k].accuracy, one[k].accuracy, 1e-12);
    }
    free(logits);
    mqar_row_close(&r);
    mqar_set_close(&s);
    model_close(&m);
    dev_close(&d);
}

/* exp(A_log) and softplus(dt_bias) of a layer go evenly over the heads; matrices have the deviation 1/sqrt(width). */
static void test_start(const char *name, const char *layer)
{
    struct config c;
    struct model m;
    struct dev d;
    float x[3], *w;
    double sum = 0;
    struct param *p;
    char which[128];
    int64_t n;

    CHECK(mqar_config(&c, &small, name, 34) == 0 && dev_open(&d, "cpu", F32, 1) == 0);
    CHECK(model_open(&m, &d, &c, &(struct model_use){ 0 }) == 0);
    params_init(&m.params, &d, 3, 0);
    for (int i = 0; i < 2; i++) {
        snprintf(which, sizeof which, "%s.%s", layer, i ? "dt_bias" : "A_log");
        p = params_find(&m.params, which);
        CHECK(p != NULL);
        param_get(&d, &p->value, x);
        for (int h = 0; h < 3; h++)
            CHECK_NEAR(i ? log1p(exp(x[h])) : exp(x[h]), i ? 0.1 - 0.0495 * h : 0.01 + 0.075 * h, 1e-6);
    }
    snprintf(which, sizeof which, "%s.b_proj.weight", layer);
    p = params_find(&m.params, which);
    CHECK(p != NULL);
    n = tensor_count(p->value);
    w = mem_new((size_t)n, sizeof *w);
    param_get(&d, &p->value, w);
    for (int64_t i = 0; i < n; i++)
        sum += (double)w[i] * w[i] / (double)n;
    CHECK_NEAR(sum * 24, 1, 0.4);
    free(w);
    model_close(&m);
    dev_close(&d);
}

int main(void)
{
    test_rows();
    test_right("naive", "palimpsa-d");
    test_right("cpu", "palimpsa-d");
    test_right("cpu", "palimpsa-d-twin");
    test_right("cpu", "palimpsa-m");
    test_right("cpu", "palimpsa-m-twin");
    test_right("cpu", "mamba2");
    if (dev_gpus() > 0)
        test_right("cuda", "palimpsa-d"), test_right("cuda", "palimpsa-m-twin");
    test_start("palimpsa-d", "model.layers.1.attn");
    test_start("palimpsa-m-twin", "backbone.layers.0.mixer");
    return test_done("mqar_model");
}
