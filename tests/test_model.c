/* test_model.c - whole tiny models on the host: references, recomputation, packing, splits, decoding. */
#include "golden_model.h"
#include "op.h"
#include "rng.h"
#include "session.h"
#include "test.h"
#include "verify.h"

static const char *const families[] = {
    "palimpsa_d", "palimpsa_d_nometa", "palimpsa_d_nogate", "palimpsa_m", "palimpsa_m_nometa", "palimpsa_m_hybrid",
    "hf_mamba2", "hf_mamba2_groups",
};
static const char *const devices[] = { "naive", "cpu" };

static void print_line(void *arg, const struct verify_line *l)
{
    if (!(l->error <= l->bound))
        printf("  %s: %s: error %.3g, bound %.3g\n", (const char *)arg, l->name, l->error, l->bound);
}

static void check_golden(const char *name, const char *device)
{
    struct verify_bounds bounds = { .logits = 2e-5f, .loss = 1e-5f, .grad = 1e-4f };
    struct model_use use = { .learn = true };
    struct model m;
    struct dev d;
    char path[512];

    snprintf(path, sizeof path, "%s/models/%s/expected.safetensors", test_golden(), name);
    if (!golden_open(&m, &d, name, device, &use)) {
        CHECK(!"the golden model loads");
        return;
    }
    printf("%s on %s\n", name, device);
    CHECK(verify_model(&m, path, &bounds, print_line, (void *)name) == 0);
    golden_close(&m, &d);
}

struct row { int32_t token[257], target[257], start[9]; struct batch b; };

/* A row of T tokens in documents of the given lengths; the last takes what is left. */
static void row_fill(struct row *r, int T, const int *length, int n, int vocab)
{
    r->start[0] = 0;
    for (int i = 0; i < n; i++)
        r->start[i + 1] = i + 1 < n ? r->start[i] + length[i] : T;
    for (int t = 0; t < T; t++)
        r->token[t] = (int32_t)(rng_bits(7, 1, (uint64_t)t) % (uint64_t)vocab);
    for (int i = 0; i < n; i++)
        for (int t = r->start[i]; t < r->start[i + 1]; t++)
            r->target[t] = t + 1 < r->start[i + 1] ? r->token[t + 1] : -1;
    r->b = (struct batch){ .token = r->token, .target = r->target, .seqs = seqs_of(r->start, n) };
}

static double learn(struct model *m, const struct batch *b, float *grads[], bool recompute)
{
    double loss;

    m->recompute = recompute;
    CHECK(model_reserve(m, JOB_LEARN, b->seqs.tokens) == 0);
    params_zero_grad(&m->params, m->dev);
    loss = model_learn(m, b, 0.01f, NULL, NULL);
    for (int i = 0; i < m->params.n; i++) {
        grads[i] = mem_new((size_t)tensor_count(m->params.at[i].value), sizeof **grads);
        if (m->params.at[i].grad.data)                   /* what is frozen has none */
            param_get(m->dev, &m->params.at[i].grad, grads[i]);
    }
    return loss;
}

static void free_all(float *grads[], int n)
{
    for (int i = 0; i < n; i++)
        free(grads[i]);
}

/* Recomputing changes memory, not a single bit. */
static void check_recompute(const char *name, const char *device)
{
    struct model m;
    struct dev d;
    struct row r;
    float *a[128], *b[128];

    if (!golden_open(&m, &d, name, device, &(struct model_use){ .learn = true })) {
        CHECK(!"the golden model loads");
        return;
    }
    row_fill(&r, 129, (int[]){ 1, 63, 0, 40 }, 5, (int)m.cfg.vocab);
    CHECK(learn(&m, &r.b, a, false) == learn(&m, &r.b, b, true));
    for (int i = 0; i < m.params.n; i++)
        CHECK(!memcmp(a[i], b[i], (size_t)tensor_count(m.params.at[i].value) * sizeof **a));
    free_all(a, m.params.n);
    free_all(b, m.params.n);
    golden_close(&m, &d);
}

/* Freezing a part costs the rest not a single bit, and its gradients are neither held nor planned for. */
static void check_frozen(const char *name, const char *device, enum model_train train, int first)
{
    struct model_use all = { .world = 1, .learn = true }, part = { .world = 1, .learn = true, .train = train };
    struct model_plan p, q;
    struct model m, f;
    struct dev d, e;
    struct row r;
    float *a[128], *b[128];
    size_t held = 0, trained = 0;

    if (!golden_open(&m, &d, name, device, &all) || !golden_open(&f, &e, name, device, &part)) {
        CHECK(!"the golden model loads");
        return;
    }
    row_fill(&r, 129, (int[]){ 1, 63, 0, 40 }, 5, (int)m.cfg.vocab);
    CHECK(f.first == first && m.first == 0);
    for (int recompute = 0; recompute < 2; recompute++) {
        CHECK(learn(&m, &r.b, a, recompute) == learn(&f, &r.b, b, recompute));
        for (int i = 0; i < f.params.n; i++) {
            const struct param *w = &f.params.at[i];
            bool frozen = w->flags & PARAM_FROZEN;
            CHECK(frozen || !memcmp(a[i], b[i], (size_t)tensor_count(w->value) * sizeof **a));
            CHECK((w->grad.data != NULL) == (!frozen || w->bucket == BUCKET_F32));
            trained += frozen || w->bucket == BUCKET_F32 ? 0 : (size_t)tensor_count(w->value);
        }
        free_all(a, m.params.n);
        free_all(b, m.params.n);
    }
    for (int i = 1; i < f.params.nbucket; i++)
        held += (size_t)tensor_count(f.params.bucket[i].grad);
    CHECK(trained > 0 && held < trained / 2 + (size_t)(64 * f.params.n));
    CHECK(!model_plan(&p, &d, &m.cfg, &all, JOB_LEARN, 129, 0) &&
          !model_plan(&q, &d, &m.cfg, &part, JOB_LEARN, 129, 0));
    CHECK(q.grads < p.grads && q.temp <= p.temp && (first ? q.keep < p.keep : q.keep == p.keep));
    golden_close(&m, &d);
    golden_close(&f, &e);
}

/* All logits of one sequence, fed in pieces of the given sizes (the last repeats), through a session. */
static void feed(struct model *m, const int32_t *ids, int T, const int *piece, int n, float *logits)
{
    struct session s;
    int64_t one;
    int at = 0;

    CHECK(session_open(&s, m, 1) == 0);
    for (int i = 0; at < T; i++) {
        const int32_t *from = ids + at;
        one = piece[i < n ? i : n - 1];
        one = one > T - at ? T - at : one;
        session_feed(&s, &from, &one, logits);
        at += (int)one;
    }
    session_close(&s);
}

/* Any split of a sequence is legal, and so is one token at a time. */
static void check_splits(const char *name, const char *device)
{
    static const int lengths[] = { 1, 2, 15, 16, 17, 63, 64, 65, 127, 129, 257 };
    struct model m;
    struct dev d;
    struct row r;
    float *whole, *parts;

    if (!golden_open(&m, &d, name, device, &(struct model_use){ 0 })) {
        CHECK(!"the golden model loads");
        return;
    }
    whole = mem_new((size_t)m.cfg.vocab, sizeof *whole);
    parts = mem_new((size_t)m.cfg.vocab, sizeof *parts);
    for (size_t i = 0; i < LEN(lengths); i++) {
        int T = lengths[i];
        row_fill(&r, T, NULL, 1, (int)m.cfg.vocab);
        CHECK(model_reserve(&m, JOB_LOGITS, T) == 0);
        model_logits(&m, &r.b, NULL, true, whole);
        feed(&m, r.token, T, (int[]){ T }, 1, parts);
        CHECK(test_distance(parts, whole, m.cfg.vocab) < 1e-5);
        feed(&m, r.token, T, (int[]){ 37, 1, 2, 3, 60 }, 5, parts);
        CHECK(test_distance(parts, whole, m.cfg.vocab) < 1e-4);
        if (T <= 129) {
            feed(&m, r.token, T, (int[]){ 1 }, 1, parts);
            CHECK(test_distance(parts, whole, m.cfg.vocab) < 1e-4);
        }
    }
    free(whole);
    free(parts);
    golden_close(&m, &d);
}

/* A packed row's loss and gradients are the sums of its documents' alone. */
static void check_packing(const char *name, const char *device)
{
    static const int length[] = { 5, 1, 64, 59 };
    struct model m;
    struct dev d;
    struct row r;
    float *whole[128], *part[128];
    double loss, sum = 0;
    double *total[128];

    if (!golden_open(&m, &d, name, device, &(struct model_use){ .learn = true })) {
        CHECK(!"the golden model loads");
        return;
    }
    row_fill(&r, 129, length, 4, (int)m.cfg.vocab);
    loss = learn(&m, &r.b, whole, false);
    for (int i = 0; i < m.params.n; i++)
        total[i] = mem_new((size_t)tensor_count(m.params.at[i].value), sizeof **total);
    for (int k = 0; k < 4; k++) {
        int32_t start[2] = { 0, r.start[k + 1] - r.start[k] };
        struct batch b = { .token = r.token + r.start[k], .target = r.target + r.start[k], .seqs = seqs_of(start, 1) };
        sum += learn(&m, &b, part, false);
        for (int i = 0; i < m.params.n; i++)
            for (int64_t j = 0; j < tensor_count(m.params.at[i].value); j++)
                total[i][j] += part[i][j];
        free_all(part, m.params.n);
    }
    CHECK_NEAR(loss, sum, 1e-3);
    for (int i = 0; i < m.params.n; i++) {
        int64_t n = tensor_count(m.params.at[i].value);
        float *f = mem_new((size_t)n, sizeof *f);
        for (int64_t j = 0; j < n; j++)
            f[j] = (float)total[i][j];
        if (test_distance(whole[i], f, n) > 2e-4)
            printf("  %s: gradient of %s\n", name, m.params.at[i].name);
        CHECK(test_distance(whole[i], f, n) <= 2e-4);
        free(f);
        free(total[i]);
    }
    free_all(whole, m.params.n);
    golden_close(&m, &d);
}

/* Prompts of 3, 17 and 40 ids side by side, then twenty most likely tokens: each as if it were alone. */
static void check_side_by_side(const char *name)
{
    static const int length[] = { 3, 17, 40 };
    struct model m;
    struct dev d;
    struct row r;
    struct session all, one[3];
    const int32_t *ids[3];
    int32_t next[3];
    int64_t count[3];
    float *logits, *alone;

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 })) {
        CHECK(!"the golden model loads");
        return;
    }
    logits = mem_new((size_t)(3 * m.cfg.vocab), sizeof *logits);
    alone = mem_new((size_t)(3 * m.cfg.vocab), sizeof *alone);
    row_fill(&r, 60, length, 3, (int)m.cfg.vocab);
    CHECK(session_open(&all, &m, 3) == 0);
    for (int i = 0; i < 3; i++) {
        CHECK(session_open(&one[i], &m, 1) == 0);
        ids[i] = r.token + r.start[i];
        count[i] = length[i];
    }
    for (int step = 0; step <= 20; step++) {
        session_feed(&all, ids, count, logits);
        for (int i = 0; i < 3; i++) {
            float *mine = logits + i * m.cfg.vocab, *its = alone + i * m.cfg.vocab;
            session_feed(&one[i], &ids[i], &count[i], its);
            CHECK(test_distance(mine, its, m.cfg.vocab) < 1e-5);
            CHECK(argmax(mine, m.cfg.vocab) == argmax(its, m.cfg.vocab));
        }
        for (int i = 0; i < 3; i++) {
            next[i] = argmax(logits + i * m.cfg.vocab, m.cfg.vocab);
            ids[i] = &next[i];
            count[i] = 1;
        }
    }
    for (int i = 0; i < 3; i++)
        session_close(&one[i]);
    session_close(&all);
    free(logits);
    free(alone);
    golden_close(&m, &d);
}

/* Few labels are few rows of the head: two halves of the labels, each few, add up to all of them. */
static void check_few_labels(const char *name, const char *device)
{
    struct row r, half[2];
    struct model m;
    struct dev d;
    float *whole[128], *part[2][128], *sum, nll[3][129];
    double loss, parts = 0;

    if (!golden_open(&m, &d, name, device, &(struct model_use){ .learn = true })) {
        CHECK(!"the golden model loads");
        return;
    }
    row_fill(&r, 129, (int[]){ 1, 63, 0, 40 }, 5, (int)m.cfg.vocab);
    loss = learn(&m, &r.b, whole, false);
    CHECK(model_reserve(&m, JOB_LOSS, 129) == 0);
    CHECK_NEAR(model_loss(&m, &r.b, NULL, nll[2]) / loss, 1, 1e-6);
    for (int h = 0; h < 2; h++) {
        half[h] = r;
        for (int t = 0; t < 129; t++)
            half[h].target[t] = t / 3 % 2 == h ? r.target[t] : -1;
        half[h].b.token = half[h].token, half[h].b.target = half[h].target;
        half[h].b.seqs = seqs_of(half[h].start, 5);
        parts += learn(&m, &half[h].b, part[h], false);
        model_loss(&m, &half[h].b, NULL, nll[h]);
    }
    CHECK_NEAR(parts / loss, 1, 1e-6);
    for (int t = 0; t < 129; t++)
        CHECK(nll[t / 3 % 2 == 1][t] != nll[t / 3 % 2 == 0][t] || r.target[t] < 0);
    for (int t = 0; t < 129; t++)
        CHECK_NEAR(nll[0][t] + nll[1][t], nll[2][t], 1e-5);
    for (int i = 0; i < m.params.n; i++) {
        int64_t n = tensor_count(m.params.at[i].value);
        sum = part[0][i];
        for (int64_t e = 0; e < n; e++)
            sum[e] += part[1][i][e];
        CHECK(test_distance(sum, whole[i], n) < 1e-5);
    }
    free_all(whole, m.params.n);
    free_all(part[0], m.params.n);
    free_all(part[1], m.params.n);
    golden_close(&m, &d);
}

int main(void)
{
    for (size_t k = 0; k < LEN(devices); k++)
        for (size_t i = 0; i < LEN(families); i++)
            check_golden(families[i], devices[k]);
    for (size_t i = 0; i < LEN(families); i++) {
        check_recompute(families[i], "cpu");
        check_splits(families[i], "cpu");
        check_packing(families[i], "cpu");
        check_side_by_side(families[i]);
    }
    check_frozen("palimpsa_m_hybrid", "cpu", TRAIN_GAINS, 1);
    check_frozen("palimpsa_m_hybrid", "naive", TRAIN_META, 1);
    check_frozen("palimpsa_d", "cpu", TRAIN_GAINS, 0);
    check_few_labels("palimpsa_d", "naive");
    check_few_labels("palimpsa_d", "cpu");
    check_few_labels("hf_mamba2", "cpu");
    check_splits("palimpsa_d", "naive");
    check_packing("palimpsa_m", "naive");
    return test_done("model");
}
