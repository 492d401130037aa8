/* test_session.c - texts fed in pieces, memories saved and loaded, losses of documents, and what is drawn. */
#include "golden_model.h"
#include "nll.h"
#include "op.h"
#include "rng.h"
#include "scratch.h"
#include "session.h"
#include "test.h"

static void draw_ids(int32_t *ids, int n, uint64_t stream, int64_t vocab)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_bits(11, stream, (uint64_t)i) % (uint64_t)vocab);
}

static void feed(struct session *s, const int32_t *ids, int64_t n, float *logits)
{
    session_feed(s, &ids, &n, logits);
}

/* The memory as one array of floats. */
static float *memory_of(const struct session *s, int64_t *n)
{
    float *all = NULL;

    *n = 0;
    for (int l = 0; l < s->model->cfg.layers; l++)
        for (int i = 0; i < MIXER_STATES; i++) {
            struct tensor t = s->state.at[l][i];
            int64_t k = t.ndim ? tensor_count(t) : 0;
            all = mem_grow(all, (size_t)(*n + k) + 1, sizeof *all);
            if (k)
                op_get(s->model->dev, all + *n, t.data, (size_t)k * 4);
            *n += k;
        }
    return all;
}

/* 100 ids as 50+50, 37+63, 99+1 and 100x1: the logits and the memory of 100 at once. */
static void check_splits(const char *name)
{
    static const int first[] = { 100, 50, 37, 99, 1 };
    struct model m;
    struct dev d;
    int32_t ids[100];
    float *logits[2], *memory[2] = { NULL, NULL };
    int64_t n = 0;

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 })) {
        CHECK(!"the model loads");
        return;
    }
    draw_ids(ids, 100, 1, m.cfg.vocab);
    for (int i = 0; i < 2; i++)
        logits[i] = mem_new((size_t)m.cfg.vocab, sizeof **logits);
    for (size_t k = 0; k < LEN(first); k++) {
        struct session s;
        int way = k > 0, step = first[k] == 1 ? 1 : 100;
        CHECK(session_open(&s, &m, 1) == 0);
        feed(&s, ids, first[k], logits[way]);
        for (int at = first[k]; at < 100; at += step)
            feed(&s, ids + at, at + step < 100 ? step : 100 - at, logits[way]);
        CHECK(s.fed == 100);
        free(memory[way]);
        memory[way] = memory_of(&s, &n);
        session_close(&s);
        if (!way)
            continue;
        CHECK(test_distance(logits[1], logits[0], m.cfg.vocab) < 1e-5);
        CHECK(test_distance(memory[1], memory[0], n) < 1e-5);
    }
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        free(memory[i]);
    }
    golden_close(&m, &d);
}

/* Prompts of 1 to 4 ids, shorter than the convolution, then 8 greedy tokens: each equals a full recompute. */
static void check_short_prompts(const char *name)
{
    struct model m;
    struct dev d;
    float *logits, *whole;

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 })) {
        CHECK(!"the model loads");
        return;
    }
    logits = mem_new((size_t)m.cfg.vocab, sizeof *logits);
    whole = mem_new((size_t)m.cfg.vocab, sizeof *whole);
    CHECK(model_reserve(&m, JOB_LOGITS, 16) == 0);
    for (int n = 1; n <= 4; n++) {
        int32_t ids[16], start[2] = { 0, 0 };
        struct session s;
        draw_ids(ids, n, 20 + (uint64_t)n, m.cfg.vocab);
        CHECK(session_open(&s, &m, 1) == 0);
        feed(&s, ids, n, logits);
        for (int t = n; t < n + 8; t++) {
            struct batch b = { .token = ids };
            start[1] = t;
            b.seqs = seqs_of(start, 1);
            model_logits(&m, &b, NULL, true, whole);
            ids[t] = argmax(logits, m.cfg.vocab_real);
            CHECK(ids[t] == argmax(whole, m.cfg.vocab_real));
            CHECK(test_distance(logits, whole, m.cfg.vocab) < 1e-5);
            feed(&s, ids + t, 1, logits);
        }
        session_close(&s);
    }
    free(logits);
    free(whole);
    golden_close(&m, &d);
}

/* B after A and B after C, packed in one row: B's logits are the same bits. */
static void check_neighbours(const char *name)
{
    int32_t ids[2][110], start[3] = { 0, 50, 110 };
    struct model m;
    struct dev d;
    float *logits[2];

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 })) {
        CHECK(!"the model loads");
        return;
    }
    CHECK(model_reserve(&m, JOB_LOGITS, 110) == 0);
    for (int i = 0; i < 2; i++) {
        struct batch b = { .token = ids[i], .seqs = seqs_of(start, 2) };
        draw_ids(ids[i], 50, 30 + (uint64_t)i, m.cfg.vocab);
        draw_ids(ids[i] + 50, 60, 40, m.cfg.vocab);
        logits[i] = mem_new((size_t)(110 * m.cfg.vocab), sizeof **logits);
        model_logits(&m, &b, NULL, false, logits[i]);
    }
    CHECK(memcmp(logits[0], logits[1], (size_t)m.cfg.vocab * 4));
    CHECK(!memcmp(logits[0] + 50 * m.cfg.vocab, logits[1] + 50 * m.cfg.vocab, (size_t)(60 * m.cfg.vocab) * 4));
    free(logits[0]);
    free(logits[1]);
    golden_close(&m, &d);
}

/* A memory survives its file to the last bit; that of another model, or a torn file, is refused. */
static void check_files(const char *name, const char *other)
{
    struct model m;
    struct dev d;
    struct session s, t;
    int32_t ids[40], pending = 7, back = -1;
    int64_t n = 0;
    float *a, *b;

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 })) {
        CHECK(!"the model loads");
        return;
    }
    draw_ids(ids, 40, 50, m.cfg.vocab);
    a = mem_new((size_t)m.cfg.vocab, sizeof *a);
    b = mem_new((size_t)m.cfg.vocab, sizeof *b);
    CHECK(session_open(&s, &m, 1) == 0 && session_open(&t, &m, 1) == 0);
    feed(&s, ids, 17, a);
    CHECK(session_save(&s, scratch("memory"), &pending, 1) == 0);
    CHECK(session_load(&t, scratch("memory"), &back, 1, &n) == 0 && n == 1 && back == 7 && t.fed == 17);
    feed(&s, ids + 17, 23, a);
    feed(&t, ids + 17, 23, b);
    CHECK(!memcmp(a, b, (size_t)m.cfg.vocab * 4));
    scratch_listen();
    CHECK(session_load(&t, scratch("nothing"), &back, 1, &n) == -1);
    CHECK(scratch_heard("nothing", "No such file", "error: "));
    CHECK(scratch_write(scratch("torn"), "not a memory"));
    scratch_listen();
    CHECK(session_load(&t, scratch("torn"), &back, 1, &n) == -1);
    CHECK(scratch_heard("torn", "error: ", "expected"));
    session_close(&s);
    session_close(&t);
    param_get(&d, &m.params.at[1].value, a);
    a[0] += 1;
    param_put(&d, &m.params.at[1].value, a);                       /* the same model after one step of training */
    CHECK(session_open(&t, &m, 1) == 0);
    scratch_listen();
    CHECK(session_load(&t, scratch("memory"), &back, 1, &n) == -1);
    CHECK(scratch_heard("the state of another model", "expected", "found"));
    session_close(&t);
    golden_close(&m, &d);
    CHECK(golden_open(&m, &d, other, "cpu", &(struct model_use){ 0 }) && session_open(&t, &m, 1) == 0);
    scratch_listen();
    CHECK(session_load(&t, scratch("memory"), &back, 1, &n) == -1);
    CHECK(scratch_heard("the state of another model", "error", ""));
    session_close(&t);
    free(a);
    free(b);
    golden_close(&m, &d);
}

/* -log p of a token, from logits. */
static double loss_of(const float *logits, int64_t vocab, int32_t id)
{
    double sum = 0;

    for (int64_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - logits[id]);
    return log(sum);
}

/* The loss of two documents by hand: with a separator every token is scored from it on, without one the first
 * token is context only. However a document is cut into calls, and also past a piece. */
static void check_nll(const char *name, bool separator, int batch, const int *cut, int cuts)
{
    static const int length[] = { 30, 1300 };
    struct model m;
    struct dev d;
    struct nll n;
    double want = 0, buckets = 0;
    int64_t predicted = 0, counted = 0;
    int32_t ids[1301];
    float *logits;

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 }) || nll_open(&n, &m, 0, batch)) {
        CHECK(!"the model loads");
        return;
    }
    logits = mem_new((size_t)(1301 * m.cfg.vocab), sizeof *logits);
    for (size_t k = 0; k < LEN(length); k++) {
        int total = length[k] + separator, at = separator;
        int32_t start[2] = { 0, total };
        struct batch b = { .token = ids };
        draw_ids(ids + separator, length[k], 60 + k, m.cfg.vocab);
        ids[0] = separator ? 3 : ids[0];
        b.seqs = seqs_of(start, 1);
        CHECK(model_reserve(&m, JOB_LOGITS, total) == 0);
        model_logits(&m, &b, NULL, false, logits);
        for (int t = 0; t + 1 < total; t++, predicted++)
            want += loss_of(logits + t * m.cfg.vocab, m.cfg.vocab, ids[t + 1]);
        nll_begin(&n);
        if (separator)
            CHECK(nll_feed(&n, ids, 1) == 0);
        for (int i = 0; at < total; i++) {
            int take = cut[i % cuts] < total - at ? cut[i % cuts] : total - at;
            CHECK(nll_feed(&n, ids + at, take) == 0);
            at += take;
        }
    }
    CHECK(!nll_end(&n));
    CHECK_NEAR(n.loss, want, 1e-5 * want);
    CHECK(n.predicted == predicted && n.documents == 2);
    for (int64_t i = 0; i < n.buckets; i++) {
        buckets += n.bucket_loss[i];
        counted += n.bucket_count[i];
    }
    CHECK_NEAR(buckets, n.loss, 1e-9 * want);
    CHECK(counted == n.predicted && n.longest == 1300 - !separator);
    nll_text(&n, "two wor", 7);
    nll_text(&n, "ds\n \tthree", 10);
    CHECK(n.words == 3 && n.bytes == 17);
    free(logits);
    nll_close(&n);
    golden_close(&m, &d);
}

/* Rows above the real vocabulary are never drawn, however likely; filters keep what they should. */
static void check_sampling(void)
{
    float logits[64];
    int32_t seen[64] = { 0 };
    struct sampler s = { .temperature = 0, .top_k = 0, .top_p = 1, .seed = 1 };
    double total = 0;

    for (int i = 0; i < 64; i++)
        logits[i] = i >= 50 ? 100 + (float)i : (float)sin(i);
    CHECK(sample(&s, logits, 50, 0) == argmax(logits, 50) && argmax(logits, 50) == 33);
    s.temperature = 1.5f;
    for (int64_t i = 0; i < 20000; i++)
        seen[sample(&s, logits, 50, i)]++;
    for (int i = 0; i < 50; i++)
        total += exp(logits[i] / 1.5);
    for (int i = 0; i < 50; i++)
        CHECK_NEAR(seen[i] / 20000.0, exp(logits[i] / 1.5) / total, 0.006);
    for (int i = 50; i < 64; i++)
        CHECK(seen[i] == 0);
    CHECK(sample(&s, logits, 50, 77) == sample(&s, logits, 50, 77));
    s.top_k = 1;
    for (int64_t i = 0; i < 100; i++)
        CHECK(sample(&s, logits, 50, i) == 33);
    s.top_k = 0;
    s.top_p = 1e-6f;
    for (int64_t i = 0; i < 100; i++)
        CHECK(sample(&s, logits, 50, i) == 33);
    for (int i = 0; i < 50; i++)
        logits[i] = i == 4 ? 2 : i == 9 ? 1.5f : i == 20 ? 1 : -20;
    s.temperature = 1;
    s.top_p = 0.8f;                                                /* 0.506 + 0.307 hold it: 20 is cut */
    memset(seen, 0, sizeof seen);
    for (int64_t i = 0; i < 4000; i++)
        seen[sample(&s, logits, 50, i)]++;
    CHECK(seen[4] + seen[9] == 4000);
    CHECK_NEAR(seen[4] / 4000.0, 1 / (1 + exp(-0.5)), 0.03);
}

/* Any number of documents side by side, whole and in parts: the same sums. */
static void check_nll_sides(const char *name)
{
    static const int64_t batch[] = { 1, 8, 64, 0 }, piece[] = { 0, 50, 1500 };
    struct model m;
    struct dev d;
    int32_t ids[2500];

    if (!golden_open(&m, &d, name, "cpu", &(struct model_use){ 0 })) {
        CHECK(!"the model loads");
        return;
    }
    for (size_t p = 0; p < LEN(piece); p++) {
        double loss = 0, first = 0;
        for (size_t b = 0; b < LEN(batch); b++) {
            struct nll n;
            CHECK(!nll_open(&n, &m, piece[p], batch[b]));
            for (int k = 0; k < 40; k++) {
                int count = k == 7 ? 2500 : k == 9 ? 1025 : k * 37 % 130;
                draw_ids(ids, count, 90 + (uint64_t)k, m.cfg.vocab);
                nll_begin(&n);
                CHECK(!nll_feed(&n, ids, count / 2) && !nll_feed(&n, ids + count / 2, count - count / 2));
            }
            nll_end(&n);
            loss = b ? loss : n.loss;
            first = b ? first : n.bucket_loss[0];
            CHECK(n.documents == 40 && n.predicted == n.tokens);
            CHECK_NEAR(n.loss, loss, 1e-6 * loss);
            CHECK_NEAR(n.bucket_loss[0], first, 1e-6 * first);
            CHECK(n.longest == (piece[p] ? piece[p] : 2499));
            nll_close(&n);
        }
    }
    golden_close(&m, &d);
}

int main(void)
{
    scratch_open();
    check_splits("palimpsa_d");
    check_splits("palimpsa_m_hybrid");
    check_splits("hf_mamba2");
    check_short_prompts("palimpsa_d");
    check_short_prompts("palimpsa_m");
    check_short_prompts("hf_mamba2_groups");
    check_neighbours("palimpsa_d");
    check_neighbours("palimpsa_m");
    check_neighbours("hf_mamba2");
    check_files("palimpsa_d", "palimpsa_d_nometa");
    check_nll("palimpsa_d", true, 0, (int[]){ 2000 }, 1);
    check_nll("palimpsa_d", true, 1, (int[]){ 1, 700, 3 }, 3);
    check_nll("hf_mamba2", false, 8, (int[]){ 64, 1, 0, 5 }, 4);
    check_nll_sides("palimpsa_m");
    check_sampling();
    scratch_close();
    return test_done("session");
}
