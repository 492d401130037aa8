/* test_nll_kept.c - losses that were stopped anywhere and go on: the same sums, to the last bit. */
#include "golden_model.h"
#include "nll.h"
#include "rng.h"
#include "scratch.h"
#include "test.h"

enum { DOCS = 12, LONG = 2600 };

static double unigram[4096];

/* The first documents; the third has many pieces, so memory is carried. other: ids from that token on differ. */
static int feed(struct nll *n, int documents, int64_t other)
{
    static int32_t ids[LONG];
    int64_t before = 0;
    int status = 0;

    for (int i = 0; i < documents && !status; i++) {
        int64_t count = i == 2 ? LONG : 40 + 31 * i;
        for (int64_t t = 0; t < count; t++, before++)
            ids[t] = (int32_t)((rng_bits(3, (uint64_t)i, (uint64_t)t) + (before >= other)) % 61);
        nll_begin(n);
        status = nll_feed(n, ids, count);
    }
    return status;
}

static struct nll open_nll(struct model *m, const char *path)
{
    struct nll n;

    CHECK(!nll_open(&n, m, 0, 2));
    n.unigram = unigram;
    CHECK(!path || !nll_keep(&n, path, 0));
    return n;
}

static void same(const struct nll *a, const struct nll *b)
{
    CHECK(a->loss == b->loss && a->unigram_loss == b->unigram_loss && a->predicted == b->predicted);
    CHECK(a->tokens == b->tokens && a->documents == b->documents && a->longest == b->longest);
    for (int64_t i = 0; i * NLL_BUCKET < a->longest; i++)
        CHECK(a->bucket_loss[i] == b->bucket_loss[i] && a->bucket_count[i] == b->bucket_count[i]);
}

/* Stopped after each number of documents, and once more: what it has then, in the end the sums of one go. */
static void goes_on(struct model *m, const char *path)
{
    struct nll whole = open_nll(m, NULL), n;
    int64_t seen = 0;

    CHECK(!feed(&whole, DOCS, INT64_MAX) && !nll_end(&whole));
    CHECK(whole.predicted == 5012 && whole.loss > 0 && !nll_passing(&whole));
    for (int stop = 2; stop <= DOCS; stop++) {
        n = open_nll(m, path);
        CHECK(nll_passing(&n) == (seen > 0) && n.predicted == seen);
        CHECK(!feed(&n, stop, INT64_MAX));
        CHECK(!nll_passing(&n) && n.predicted >= seen);
        seen = n.predicted;
        nll_close(&n);
    }
    n = open_nll(m, path);
    CHECK(!feed(&n, DOCS, INT64_MAX) && !nll_end(&n));
    same(&n, &whole);
    nll_close(&n);
    n = open_nll(m, path);                       /* all of it passes */
    CHECK(!feed(&n, DOCS, INT64_MAX) && nll_passing(&n) && !nll_end(&n) && !nll_passing(&n));
    same(&n, &whole);
    nll_forget(&n);
    nll_close(&n);
    nll_close(&whole);
}

static bool refused(struct model *m, const char *path, const char *why)
{
    struct nll n;
    int status;

    CHECK(!nll_open(&n, m, 0, 2));
    n.unigram = unigram;
    scratch_listen();
    status = nll_keep(&n, path, 0);
    nll_close(&n);
    return scratch_heard(path, why, "") && status;
}

static void refusals(struct model *m, struct model *other, const char *path)
{
    struct nll n = open_nll(m, path);

    CHECK(!feed(&n, 3, INT64_MAX) && !nll_end(&n));           /* the sums of three documents */
    nll_close(&n);
    CHECK(refused(other, path, "the sums of another model or unigram"));
    unigram[5] += 1;
    CHECK(refused(m, path, "the sums of another model or unigram"));
    unigram[5] -= 1;
    for (int k = 0; k < 2; k++) {
        n = open_nll(m, path);
        scratch_listen();
        if (k)
            CHECK(!feed(&n, 1, INT64_MAX) && nll_end(&n) < 0);
        else
            CHECK(feed(&n, DOCS, 70) < 0 && nll_end(&n) < 0); /* one id of the second is another */
        CHECK(scratch_heard(path, k ? "the sums of a longer text" : "the sums of another text or settings", ""));
        nll_close(&n);
    }
    CHECK(scratch_write(path, "{}"));
    CHECK(refused(m, path, "expected"));
}

int main(void)
{
    struct model m, other;
    struct dev d, e;

    scratch_open();
    for (int i = 0; i < (int)LEN(unigram); i++)
        unigram[i] = 1 + 0.25 * i;
    if (golden_open(&m, &d, "palimpsa_d", "cpu", &(struct model_use){ 0 }) &&
        golden_open(&other, &e, "palimpsa_m", "cpu", &(struct model_use){ 0 })) {
        goes_on(&m, scratch("a.part"));
        goes_on(&other, scratch("b.part"));
        refusals(&m, &other, scratch("c.part"));
        golden_close(&m, &d);
        golden_close(&other, &e);
    } else
        CHECK(!"the models load");
    scratch_close();
    return test_done("nll_kept");
}
