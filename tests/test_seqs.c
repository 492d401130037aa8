/* test_seqs.c - packed sequences: where they begin evenly. */
#include "rng.h"
#include "seqs.h"
#include "test.h"

/* The definition, token by token. */
static int64_t plainly(const struct seqs *s)
{
    for (int64_t even = SEQ_TILE;; even *= 2) {
        bool all = true;
        for (int64_t t = 0; t < s->tokens && all; t += even) {
            bool begins = false;
            for (int i = 0; i < s->n; i++)
                begins |= s->start[i] == t;
            all = begins;
        }
        if (all)
            return even;
    }
}

static bool agrees(const int32_t *start, int n)
{
    struct seqs s = seqs_of(start, n);

    return seqs_even(&s) == plainly(&s);
}

int main(void)
{
    int32_t start[65];
    struct seqs s;

    CHECK(agrees((int32_t[]){ 0, 512, 1024 }, 2));
    CHECK(agrees((int32_t[]){ 0, 0, 64, 128, 128, 192 }, 5));
    CHECK(agrees((int32_t[]){ 0, 64, 256, 300, 512, 700 }, 5));
    CHECK(agrees((int32_t[]){ 0, 1 }, 1));
    CHECK(agrees((int32_t[]){ 0, 4096, 8192, 8192 }, 3));
    s = seqs_of((int32_t[]){ 0, 512, 1024, 1280 }, 3);
    CHECK(seqs_even(&s) == 512);
    s = seqs_of((int32_t[]){ 0, 100, 1280 }, 2);
    CHECK(seqs_even(&s) >= 1280);
    CHECK(seqs_about(0) == 1 && seqs_about(1) == 1 && seqs_about(64) == 64 && seqs_about(65) == 128);
    s.start = NULL;
    CHECK(seqs_even(&s) == INT64_MAX);
    for (int round = 0; round < 500; round++) {        /* pieces of 0 to 3 tiles, now and then a token more */
        for (int i = 0, at = 0; i <= 64; i++) {
            start[i] = at;
            at += (int)(rng_bits(1, (uint64_t)round, (uint64_t)i) % (round % 3 ? 2 : 4)) * SEQ_TILE * (1 << round % 4);
            at += rng_bits(2, (uint64_t)round, (uint64_t)i) % 200 == 0;
        }
        CHECK(agrees(start, 64));
    }
    return test_done("seqs");
}
