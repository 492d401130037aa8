/* mqar_set.c - examples side by side in memory: example i begins where those of all kinds before it end. */
#include "mqar_set.h"
#include "task.h"

/* Where example i has its tokens and its places, in units of the set's arrays. */
static void place(const struct mqar_set *s, int64_t i, int64_t *token, int64_t *at)
{
    *token = i / s->mix.n * s->tokens;
    *at = i / s->mix.n * s->pairs;
    for (int64_t k = 0; k < i % s->mix.n; k++) {
        *token += s->mix.at[k].length;
        *at += s->mix.at[k].pairs;
    }
}

void mqar_set_fill(struct mqar_set *s, int64_t first)
{
    #pragma omp parallel
    {
        struct mqar_maker maker[MQAR_MIX];

        for (int k = 0; k < s->mix.n; k++)
            mqar_maker_open(&maker[k], &s->mix.at[k]);
        #pragma omp for schedule(static)
        for (int64_t i = 0; i < s->n; i++) {
            int64_t token, at;
            place(s, i, &token, &at);
            mqar_make(&maker[i % s->mix.n], s->seed, first + i / s->mix.n, s->token + token, s->at + at);
        }
        for (int k = 0; k < s->mix.n; k++)
            mqar_maker_close(&maker[k]);
    }
}

void mqar_set_open(struct mqar_set *s, const struct mqar_mix *mix, uint64_t seed, int64_t n)
{
    int64_t token, at;

    *s = (struct mqar_set){ .mix = *mix, .seed = seed, .n = n };
    for (int k = 0; k < mix->n; k++) {
        s->tokens += mix->at[k].length;
        s->pairs += mix->at[k].pairs;
    }
    place(s, n, &token, &at);
    s->token = mem_new((size_t)token, sizeof *s->token);
    s->at = mem_new((size_t)at, sizeof *s->at);
    mqar_set_fill(s, 0);
}

void mqar_set_close(struct mqar_set *s)
{
    free(s->token);
    free(s->at);
    *s = (struct mqar_set){ 0 };
}

void mqar_row_open(struct mqar_row *r, const struct mqar_mix *mix, int64_t most)
{
    size_t tokens = (size_t)(most * mqar_mix_longest(mix));

    *r = (struct mqar_row){ .most = most, .token = mem_new(tokens, 4), .target = mem_new(tokens, 4),
                            .start = mem_new((size_t)most + 1, 4), .at = mem_new(tokens / 4 + 1, 4) };
}

void mqar_row_close(struct mqar_row *r)
{
    free(r->token);
    free(r->target);
    free(r->start);
    free(r->at);
    *r = (struct mqar_row){ 0 };
}

struct batch mqar_row_fill(struct mqar_row *r, const struct mqar_set *s, const int64_t *which, int64_t n)
{
    int32_t end = 0;

    REQUIRE(n <= r->most);
    r->asked = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct mqar *q = &s->mix.at[which[i] % s->mix.n];
        int64_t token, at;
        place(s, which[i], &token, &at);
        r->start[i] = end;
        memcpy(r->token + end, s->token + token, (size_t)q->length * 4);
        for (int64_t t = 0; t < q->length; t++)
            r->target[end + t] = -1;
        for (int64_t j = 0; j < q->pairs; j++) {
            int32_t here = end + s->at[at + j];
            r->target[here] = s->token[token + 2 * j + 1];
            r->at[r->asked++] = here;
        }
        end += (int32_t)q->length;
    }
    r->start[n] = end;
    return (struct batch){ r->token, r->target, seqs_of(r->start, (int)n), r->asked };
}

void mqar_score(struct mqar_score *out, struct model *m, const struct mqar_set *s, struct mqar_row *r,
                void (*progress)(void *arg, int64_t done, int64_t all), void *arg)
{
    int64_t *which = mem_new((size_t)r->most, sizeof *which), n, kinds = s->mix.n, done[MQAR_MIX] = { 0 };
    bool *right = mem_new((size_t)(r->most * mqar_mix_longest(&s->mix) / 4 + 1), sizeof *right);
    double *share = mem_new((size_t)s->n, sizeof *share);      /* [kinds][of one kind] */
    int64_t each = s->n / kinds;

    for (int64_t i = 0; i < each * kinds; i += n) {
        const bool *yes = right;
        struct batch b;
        for (n = 0; n < r->most && i + n < each * kinds; n++)
            which[n] = i + n;
        b = mqar_row_fill(r, s, which, n);
        model_right(m, &b, &(struct pass){ .alone = r->alone }, r->at, r->asked, right);
        for (int64_t j = 0; j < n; j++) {
            int64_t kind = which[j] % kinds, sum = 0;
            for (int64_t k = 0; k < s->mix.at[kind].pairs; k++)
                sum += *yes++;
            share[kind * each + done[kind]++] = (double)sum / (double)s->mix.at[kind].pairs;
        }
        if (progress)
            progress(arg, i + n, each * kinds);
    }
    for (int64_t k = 0; k < kinds; k++) {
        out[k] = (struct mqar_score){ .error = error_of_mean(share + k * each, each), .n = each,
                                      .labels = each * s->mix.at[k].pairs };
        for (int64_t i = 0; i < each; i++)
            out[k].accuracy += share[k * each + i] / (double)each;
    }
    free(which);
    free(right);
    free(share);
}
