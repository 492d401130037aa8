/* seqs.c - cumulative lengths to per-token tables. */
#include "seqs.h"

struct seqs seqs_of(const int32_t *start, int n)
{
    struct seqs s = { .tokens = start[n], .n = n, .start = start };

    REQUIRE(n >= 0 && start[0] == 0);
    for (int i = 0; i < n; i++) {
        int64_t length = (int64_t)start[i + 1] - start[i];
        REQUIRE(length >= 0);
        if (length > s.longest)
            s.longest = length;
    }
    return s;
}

struct seqs seqs_alone(const struct seqs *s, int i, int32_t start[2])
{
    struct seqs one;

    start[0] = 0;
    start[1] = s->start[i + 1] - s->start[i];
    one = seqs_of(start, 1);
    if (s->dalone) {
        one.dstart = s->dalone + 2 * i;
        one.dseq = s->dalone + 2 * s->n;
    }
    return one;
}

int64_t seqs_even(const struct seqs *s)
{
    int64_t even = SEQ_TILE;

    if (!s->start)
        return INT64_MAX;
    for (; even < s->tokens; even *= 2) {
        int64_t t = 0;
        for (int i = 0; i < s->n && s->start[i] <= t; i++)
            if (s->start[i] == t)
                t += even;
        if (t >= s->tokens)
            break;
    }
    return even;
}

int64_t seqs_about(int64_t n)
{
    int64_t about = 1;

    while (about < n)
        about *= 2;
    return about;
}

void seqs_expand(const struct seqs *s, int32_t *seq, int32_t *pos)
{
    for (int i = 0; i < s->n; i++)
        for (int32_t t = s->start[i]; t < s->start[i + 1]; t++) {
            seq[t] = i;
            if (pos)
                pos[t] = t - s->start[i];
        }
}
