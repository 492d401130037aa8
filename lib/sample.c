/* sample.c - one id from logits: greedy, or the softmax at a temperature, cut to the top k and the top p. */
#include "rng.h"
#include "session.h"

struct candidate { float logit; int32_t id; };

int32_t argmax(const float *logits, int64_t vocab)
{
    int64_t best = 0;

    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Best first; equal logits by id, so that the order never depends on the sort. */
static int better_first(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;

    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

int32_t sample(const struct sampler *s, const float *logits, int64_t vocab, int64_t index)
{
    struct candidate *c;
    double total = 0, kept = 0, u;
    int64_t n = vocab, i;
    int32_t id;

    if (s->temperature <= 0)
        return argmax(logits, vocab);
    c = mem_new((size_t)vocab, sizeof *c);
    for (i = 0; i < vocab; i++)
        c[i] = (struct candidate){ logits[i], (int32_t)i };
    qsort(c, (size_t)vocab, sizeof *c, better_first);
    if (s->top_k > 0 && s->top_k < n)
        n = s->top_k;
    for (i = 0; i < n; i++)
        total += exp((c[i].logit - c[0].logit) / (double)s->temperature);
    for (i = 0; i < n && (i == 0 || kept < s->top_p * total); i++)
        kept += exp((c[i].logit - c[0].logit) / (double)s->temperature);
    n = i;
    u = rng_uniform(s->seed, rng_stream("sample"), (uint64_t)index) * kept;
    for (i = 0; i + 1 < n; i++) {
        u -= exp((c[i].logit - c[0].logit) / (double)s->temperature);
        if (u < 0)
            break;
    }
    id = c[i].id;
    free(c);
    return id;
}
