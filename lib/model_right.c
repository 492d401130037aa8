/* model_right.c - whether the likeliest next token is the target, at few of many tokens.
 *
 *   right  <=>  -log softmax(2^30 logits)[target] < log 2
 *
 * A power of two scales a float exactly, and two different logits that matter differ by more than 2^-23, so that the
 * sharpened softmax is 1 at the greatest logit and 0 elsewhere. Logits that are equal to the last bit share it. */
#include "model.h"
#include "model_parts.h"

int64_t model_right(struct model *m, const struct batch *b, const struct pass *p, const int32_t *at, int64_t n,
                    bool *right)
{
    float *nll = mem_new((size_t)b->seqs.tokens + 1, sizeof *nll);
    int64_t total = 0;

    model_sharp_loss(m, b, p, 0x1p30f, nll);
    for (int64_t i = 0; i < n; i++) {
        bool yes = nll[at[i]] < 0.6931f;
        REQUIRE(b->target[at[i]] >= 0);
        total += yes;
        if (right)
            right[i] = yes;
    }
    free(nll);
    return total;
}
