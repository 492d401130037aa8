/* test_mqar.c - the recall task is the one that was defined: its example, its refusals, its distributions. */
#define _POSIX_C_SOURCE 200809L
#include "heard.h"
#include "mqar.h"
#include "test.h"

static bool good(int64_t length, int64_t pairs, int64_t vocab)
{
    return !mqar_check(&(struct mqar){ length, pairs, vocab, false }, "mqar");
}

/* What must hold of every example. */
static bool sound(const struct mqar *q, const int32_t *token, const int32_t *at)
{
    int64_t n = q->pairs;

    for (int64_t j = 0; j < n; j++) {
        if (token[2 * j] < 1 || token[2 * j] >= q->vocab / 2 || token[2 * j + 1] < q->vocab / 2 ||
            token[2 * j + 1] >= q->vocab || at[j] < 2 * n || at[j] >= q->length || at[j] % 2 ||
            token[at[j]] != token[2 * j])
            return false;
        for (int64_t k = 0; k < j; k++)
            if (token[2 * k] == token[2 * j] || token[2 * k + 1] == token[2 * j + 1] || at[k] == at[j])
                return false;
    }
    return true;
}

static void test_examples(const struct mqar *q)
{
    struct mqar_maker m, other;
    int32_t *token = mem_new((size_t)q->length, 4), *at = mem_new((size_t)q->pairs, 4);
    int32_t *again = mem_new((size_t)q->length, 4), *there = mem_new((size_t)q->pairs, 4);
    int64_t zeros = 0, same = 0;

    mqar_maker_open(&m, q);
    mqar_maker_open(&other, q);
    for (int64_t i = 0; i < 200; i++) {
        mqar_make(&m, 7, i, token, at);
        CHECK(sound(q, token, at));
        for (int64_t t = 2 * q->pairs; t < q->length; t++)
            zeros += token[t] == 0;
        mqar_make(&other, 8, i, again, there);
        same += !memcmp(token, again, (size_t)q->length * 4);
        mqar_make(&other, 7, i, again, there);               /* by itself, whatever came before */
        CHECK(!memcmp(token, again, (size_t)q->length * 4) && !memcmp(at, there, (size_t)q->pairs * 4));
    }
    CHECK(same < 100);                                       /* of the smallest there are three in all */
    CHECK(q->random ? zeros < 200 * q->length / 8 : zeros == 200 * (q->length - 3 * q->pairs));
    mqar_maker_close(&m);
    mqar_maker_close(&other);
    free(token), free(at), free(again), free(there);
}

/* Vocabulary 12, length 16, 2 pairs, the example that is often printed (and below the vocabulary that runs may
 * have): keys 2 and 4 with values 8 and 7 occur, and are asked with these labels. */
static void test_printed(void)
{
    struct mqar q = { 16, 2, 12, false };
    struct mqar_maker m;
    int32_t token[16], at[2];
    int64_t seen = 0;

    mqar_maker_open(&m, &q);
    for (int64_t i = 0; i < 20000; i++) {
        int labels = 0;
        mqar_make(&m, 1, i, token, at);
        if (token[0] != 2 || token[1] != 8 || token[2] != 4 || token[3] != 7)
            continue;
        seen++;
        for (int t = 4; t < 16; t++) {
            int32_t label = t == at[0] ? token[1] : t == at[1] ? token[3] : -100;
            CHECK(label == (token[t] == 4 ? 7 : token[t] == 2 ? 8 : -100));
            labels += label >= 0;
        }
        CHECK(labels == 2);
    }
    CHECK(seen > 10);                                        /* 20000 / (5 4 6 5) = 33 */
    mqar_maker_close(&m);
}

static double chi_square(const int64_t *count, const double *p, int n, int64_t total)
{
    double sum = 0;

    for (int i = 0; i < n; i++) {
        double want = p[i] * (double)total;
        sum += ((double)count[i] - want) * ((double)count[i] - want) / want;
    }
    return sum;
}

/* Ordered draws of 3 of 6 slots against successive sampling, and keys against uniform ones. 120 cells: 99.9% of
 * chi-square with 119 degrees of freedom is below 172 (and above 77), with 14 below 36.1, with 15 below 37.7; keys
 * of one example differ, which only makes their counts more even. */
static void test_statistics(void)
{
    struct mqar q = { 18, 3, 32, false };
    struct mqar_maker m;
    enum { SAMPLES = 100000, SLOTS = 6, CELLS = 120 };
    int32_t token[18], at[3];
    int64_t count[CELLS] = { 0 }, key[15] = { 0 }, value[16] = { 0 };
    double p[CELLS], w[SLOTS], sum = 0, even[16];
    int cell[SLOTS][SLOTS][SLOTS], n = 0;

    for (int i = 0; i < SLOTS; i++)
        sum += w[i] = 0.01 * pow(i + 1, 0.01 - 1);
    for (int a = 0; a < SLOTS; a++)
    for (int b = 0; b < SLOTS; b++)
    for (int c = 0; c < SLOTS; c++) {
        if (a == b || a == c || b == c)
            continue;
        p[n] = w[a] / sum * w[b] / (sum - w[a]) * w[c] / (sum - w[a] - w[b]);
        cell[a][b][c] = n++;
    }
    CHECK(n == CELLS);
    mqar_maker_open(&m, &q);
    for (int64_t i = 0; i < SAMPLES; i++) {
        mqar_make(&m, 3, i, token, at);
        CHECK(sound(&q, token, at));
        count[cell[(at[0] - 6) / 2][(at[1] - 6) / 2][(at[2] - 6) / 2]]++;
        for (int j = 0; j < 3; j++) {
            key[token[2 * j] - 1]++;
            value[token[2 * j + 1] - 16]++;
        }
    }
    mqar_maker_close(&m);
    CHECK(chi_square(count, p, CELLS, SAMPLES) < 172);
    CHECK(chi_square(count, p, CELLS, SAMPLES) > 77);        /* and not better than chance allows */
    for (int i = 0; i < 16; i++)
        even[i] = 1 / 15.;
    CHECK(chi_square(key, even, 15, 3 * SAMPLES) < 36.1);
    for (int i = 0; i < 16; i++)
        even[i] = 1 / 16.;
    CHECK(chi_square(value, even, 16, 3 * SAMPLES) < 37.7);
}

/* The slot of the first key among the 56 of a longer example: weights and their sums are right to the end. 99.9% of
 * chi-square with 55 degrees of freedom is below 93.2 (and above 28.1). */
static void test_slots(void)
{
    enum { SAMPLES = 100000, SLOTS = 56 };
    struct mqar q = { 128, 8, 8192, false };
    struct mqar_maker m;
    int32_t token[128], at[8];
    int64_t count[SLOTS] = { 0 };
    double p[SLOTS], sum = 0, found;

    for (int i = 0; i < SLOTS; i++)
        sum += p[i] = 0.01 * pow(i + 1, 0.01 - 1);
    for (int i = 0; i < SLOTS; i++)
        p[i] /= sum;
    mqar_maker_open(&m, &q);
    for (int64_t i = 0; i < SAMPLES; i++) {
        mqar_make(&m, 9, i, token, at);
        count[(at[0] - 16) / 2]++;
    }
    mqar_maker_close(&m);
    found = chi_square(count, p, SLOTS, SAMPLES);
    CHECK(found > 28.1 && found < 93.2);
}

static bool refused(int64_t length, int64_t pairs, int64_t vocab, const char *words)
{
    bool ok;

    listen_begin();
    ok = !good(length, pairs, vocab);
    return listen_end(words) && ok;
}

static bool list_refused(const char *list, const char *words)
{
    struct mqar_mix *mix = NULL;
    bool ok;

    listen_begin();
    ok = mqar_mixes(&mix, list, 8192, false, "--lengths") < 0;
    return listen_end(words) && ok;
}

static void test_refusals(void)
{
    CHECK(good(16, 2, 17) && good(16, 4, 17) && good(4, 1, 5));
    CHECK(refused(15, 2, 8192, "mqar: expected an even length, found 15"));
    CHECK(refused(16, 2, 16, "needs a vocabulary from 17"));
    CHECK(refused(16, 5, 8192, "room for 4 pairs, found 5"));
    CHECK(refused(16, 0, 8192, "at least one pair"));
    CHECK(refused(2, 1, 8192, "a length from 4"));
    CHECK(list_refused("", "--lengths: expected LENGTH:PAIRS, found ''"));
    CHECK(list_refused("64", "expected LENGTH:PAIRS, found '64'"));
    CHECK(list_refused("64:8,", "expected LENGTH:PAIRS, found ''"));
    CHECK(list_refused("64:8x", "expected LENGTH:PAIRS"));
    CHECK(list_refused("64:8+63:4", "even length, found 63"));
    CHECK(list_refused("99999999999999999999:8", "a length from 4"));
}

static void test_lists(void)
{
    struct mqar_mix *mix = NULL;
    char text[64];

    CHECK(mqar_mixes(&mix, "512:128,64:8+128:16", 8192, true, "--lengths") == 2);
    CHECK(mix[0].n == 1 && mix[0].at[0].length == 512 && mix[0].at[0].pairs == 128 && mix[0].at[0].random);
    CHECK(mix[1].n == 2 && mix[1].at[1].pairs == 16 && mix[1].at[1].vocab == 8192);
    CHECK(mqar_mix_longest(&mix[1]) == 128);
    CHECK(mqar_mix_text(&mix[1], text, sizeof text) && !strcmp(text, "64:8+128:16"));
    CHECK(!mqar_mix_text(&mix[1], text, 8));
    free(mix);
}

int main(void)
{
    scratch_open();
    test_examples(&(struct mqar){ 64, 8, 8192, false });
    test_examples(&(struct mqar){ 64, 16, 65, false });
    test_examples(&(struct mqar){ 4, 1, 5, false });
    test_examples(&(struct mqar){ 50, 7, 129, true });
    test_examples(&(struct mqar){ 1024, 256, 8192, false });     /* every slot is asked */
    test_printed();
    test_statistics();
    test_slots();
    test_refusals();
    test_lists();
    scratch_close();
    return test_done("mqar");
}
