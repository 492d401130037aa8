/* mqar.c - one example of the recall task, out of its number.
 *
 *   tokens 0..2n-1 = k1 v1 k2 v2 ..;  weights w_i = i^(a-1), a = 0.01, of the slots i = 1..(L-2n)/2 behind them
 *   key j is asked at 2n + 2 (i_j - 1), i_1 .. i_n drawn one after the other without replacement, by weight
 *
 * The draw is a race: slot i arrives at E_i / w_i, E_i exponential, and the order of arrival is distributed as
 * successive weighted sampling is (Efraimidis and Spirakis 2006). So n of n slots cost no more than one. */
#include "mqar.h"
#include "rng.h"
#include <math.h>

enum { KEYS, VALUES, SLOTS, FILLER };                /* streams of one example */
enum { LONGEST = 1 << 24 };

int mqar_check(const struct mqar *q, const char *name)
{
    if (q->length < 4 || q->length > LONGEST)
        return fail("%s: expected a length from 4 to %d, found %lld", name, LONGEST, (long long)q->length);
    if (q->length % 2)
        return fail("%s: expected an even length, found %lld", name, (long long)q->length);
    if (q->pairs < 1)
        return fail("%s: expected at least one pair, found %lld", name, (long long)q->pairs);
    if (q->pairs > q->length / 4)
        return fail("%s: a length of %lld has room for %lld pairs, found %lld", name, (long long)q->length,
                    (long long)q->length / 4, (long long)q->pairs);
    if (q->vocab <= q->length || q->vocab > LONGEST)
        return fail("%s: a length of %lld needs a vocabulary from %lld to %d, found %lld", name, (long long)q->length,
                    (long long)q->length + 1, LONGEST, (long long)q->vocab);
    return 0;
}

void mqar_maker_open(struct mqar_maker *m, const struct mqar *q)
{
    int64_t slots = (q->length - 2 * q->pairs) / 2;

    *m = (struct mqar_maker){
        .q = *q, .seen = mem_new((size_t)q->vocab / 64 + 1, sizeof *m->seen),
        .reach = mem_new((size_t)slots, sizeof *m->reach), .slot = mem_new((size_t)slots, sizeof *m->slot),
    };
    for (int64_t i = 0; i < slots; i++)
        m->reach[i] = pow((double)(i + 1), 1 - 0.01);
}

void mqar_maker_close(struct mqar_maker *m)
{
    free(m->seen);
    free(m->reach);
    free(m->slot);
    *m = (struct mqar_maker){ 0 };
}

/* Below n, which is at most 2^24: the bias is under 2^-8 of a part in a million. */
static int32_t below(uint64_t bits, int64_t n)
{
    return (int32_t)((bits >> 32) * (uint64_t)n >> 32);
}

/* n distinct tokens of [from, to) into every second place. At least half of them stay free, so few are drawn twice. */
static void distinct(struct mqar_maker *m, uint64_t example, int stream, int64_t from, int64_t to, int32_t *token)
{
    uint64_t count = 0;

    for (int64_t j = 0; j < m->q.pairs; j++) {
        int32_t t;
        do
            t = (int32_t)from + below(rng_bits(example, (uint64_t)stream, count++), to - from);
        while (m->seen[t / 64] >> t % 64 & 1);
        m->seen[t / 64] |= (uint64_t)1 << t % 64;
        token[2 * j] = t;
    }
    for (int64_t j = 0; j < m->q.pairs; j++)
        m->seen[token[2 * j] / 64] = 0;
}

static int by_time(const void *a, const void *b)
{
    const struct mqar_slot *x = a, *y = b;

    if (x->time != y->time)
        return x->time < y->time ? -1 : 1;
    return (x->slot > y->slot) - (x->slot < y->slot);
}

void mqar_make(struct mqar_maker *m, uint64_t seed, int64_t i, int32_t *token, int32_t *at)
{
    int64_t L = m->q.length, n = m->q.pairs, W = m->q.vocab, slots = (L - 2 * n) / 2;
    uint64_t example = rng_bits(rng_bits(seed, (uint64_t)L, (uint64_t)n), rng_stream("mqar"), (uint64_t)i);

    distinct(m, example, KEYS, 1, W / 2, token);
    distinct(m, example, VALUES, W / 2, W, token + 1);
    for (int64_t t = 2 * n; t < L; t++)
        token[t] = m->q.random ? below(rng_bits(example, FILLER, (uint64_t)t), W) : 0;
    for (int64_t j = 0; j < slots; j++)
        m->slot[j] = (struct mqar_slot){ -log(1 - rng_uniform(example, SLOTS, (uint64_t)j)) * m->reach[j], (int32_t)j };
    qsort(m->slot, (size_t)slots, sizeof *m->slot, by_time);
    for (int64_t j = 0; j < n; j++) {
        at[j] = (int32_t)(2 * n) + 2 * m->slot[j].slot;
        token[at[j]] = token[2 * j];
    }
}

uint64_t mqar_seed(uint64_t seed, const char *set)
{
    return rng_bits(seed, rng_stream(set), 0);
}

/* "64:8" at *s, which moves behind it. */
static int read_one(struct mqar *q, const char **s, const char *name)
{
    char *end;

    q->length = strtoll(*s, &end, 10);
    if (end == *s || *end != ':')
        return fail("%s: expected LENGTH:PAIRS, found '%s'", name, *s);
    *s = end + 1;
    q->pairs = strtoll(*s, &end, 10);
    if (end == *s || (*end && *end != '+' && *end != ','))
        return fail("%s: expected LENGTH:PAIRS, found '%s'", name, *s);
    *s = end;
    return mqar_check(q, name);
}

int mqar_mixes(struct mqar_mix **out, const char *text, int64_t vocab, bool random, const char *name)
{
    struct mqar_mix *mix = NULL;
    int n = 0;

    for (const char *s = text, *next; ; s = next + 1) {
        struct mqar q = { .vocab = vocab, .random = random };
        next = s;
        if (read_one(&q, &next, name)) {
            free(mix);
            return -1;
        }
        if (s == text || s[-1] == ',') {
            mix = mem_grow(mix, (size_t)n + 1, sizeof *mix);
            mix[n++].n = 0;
        }
        if (mix[n - 1].n == MQAR_MIX) {
            free(mix);
            return fail("%s: more than %d in one mix", name, MQAR_MIX);
        }
        mix[n - 1].at[mix[n - 1].n++] = q;
        if (!*next)
            break;
    }
    *out = mix;
    return n;
}

int64_t mqar_mix_longest(const struct mqar_mix *m)
{
    int64_t longest = 0;

    for (int i = 0; i < m->n; i++)
        longest = m->at[i].length > longest ? m->at[i].length : longest;
    return longest;
}

double mqar_mix_mean(const struct mqar_mix *m)
{
    double mean = 0;

    for (int i = 0; i < m->n; i++)
        mean += (double)m->at[i].length / m->n;
    return mean;
}

bool mqar_mix_text(const struct mqar_mix *m, char *out, size_t size)
{
    size_t n = 0;

    for (int i = 0; i < m->n && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%lld:%lld", i ? "+" : "", (long long)m->at[i].length,
                              (long long)m->at[i].pairs);
    return n < size;
}
