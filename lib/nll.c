/* nll.c - rows through the model, losses into sums. */
#include "nll.h"
#include <math.h>

int nll_open(struct nll *n, struct model *m, int64_t piece)
{
    *n = (struct nll){ .model = m, .piece = piece, .last = -1 };
    if (model_reserve(m, JOB_LOSS, NLL_CHUNK))
        return -1;
    return model_state_open(m, &n->state, 1);
}

void nll_close(struct nll *n)
{
    if (n->state.at)
        model_state_close(n->model, &n->state);
    free(n->bucket_loss);
    free(n->bucket_count);
}

static void count(struct nll *n, int64_t position, double loss, int32_t target)
{
    int64_t b = position / NLL_BUCKET, old = n->buckets;

    if (b >= n->buckets) {
        n->buckets = 2 * b + 8;
        n->bucket_loss = mem_grow(n->bucket_loss, (size_t)n->buckets, sizeof *n->bucket_loss);
        n->bucket_count = mem_grow(n->bucket_count, (size_t)n->buckets, sizeof *n->bucket_count);
        for (int64_t i = old; i < n->buckets; i++)
            n->bucket_loss[i] = 0, n->bucket_count[i] = 0;
    }
    n->loss += loss;
    n->predicted++;
    n->bucket_loss[b] += loss;
    n->bucket_count[b]++;
    n->longest = position + 1 > n->longest ? position + 1 : n->longest;
    if (n->unigram)
        n->unigram_loss += n->unigram[target];
}

static void score(struct nll *n, const struct batch *b, const struct pass *p, int64_t offset)
{
    float *loss = mem_new((size_t)b->seqs.tokens, sizeof *loss);

    model_loss(n->model, b, p, loss);
    for (int i = 0; i < b->seqs.n; i++)
        for (int32_t t = b->seqs.start[i]; t < b->seqs.start[i + 1]; t++)
            if (b->target[t] >= 0)
                count(n, offset + t - b->seqs.start[i], loss[t], b->target[t]);
    n->tokens += b->seqs.tokens;
    free(loss);
}

void nll_begin(struct nll *n)
{
    n->documents++;
    n->last = -1;
    n->at = 0;
    n->inside = false;
}

/* Feeds the token in hand and all of ids but the last one, which is then the one in hand. */
int nll_feed(struct nll *n, const int32_t *ids, int64_t total)
{
    int32_t token[NLL_CHUNK], start[2] = { 0, 0 };

    for (int64_t i = 0; i < total; i++)
        if (ids[i] < 0 || ids[i] >= n->model->cfg.vocab)
            return fail("id %d is outside the model's vocabulary of %lld", ids[i], (long long)n->model->cfg.vocab);
    if (n->last < 0 && total > 0)
        n->last = *ids++, total--;
    while (total > 0) {
        int64_t in = n->piece ? n->at % n->piece : n->at, take = total < NLL_CHUNK ? total : NLL_CHUNK;
        struct pass p = { .state = n->state.at, .fresh = in == 0 };
        struct batch b = { .token = token, .target = ids };
        if (n->piece && take > n->piece - in)
            take = n->piece - in;
        token[0] = n->last;
        memcpy(token + 1, ids, (size_t)(take - 1) * sizeof *ids);
        start[1] = (int32_t)take;
        b.seqs = seqs_of(start, 1);
        score(n, &b, &p, in);
        n->last = ids[take - 1];
        n->at += take;
        ids += take;
        total -= take;
    }
    return 0;
}

void nll_text(struct nll *n, const char *text, size_t size)
{
    n->bytes += (int64_t)size;
    for (size_t i = 0; i < size; i++) {
        bool space = text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
        n->words += !space && !n->inside;
        n->inside = !space;
    }
}

int nll_shards(struct nll *n, const char *files, const char *tokenizer, int64_t context, int64_t limit)
{
    struct loader_options o = { .files = files, .tokens = context, .context = context, .eot = -1,
                                .vocab = n->model->cfg.vocab, .mask = n->mask };
    struct loader l;
    int status = 0;

    if (loader_open(&l, &o))
        return -1;
    if (tokenizer[0] && l.tokenizer[0] && strcmp(tokenizer, l.tokenizer))
        status = fail("%s: these shards were made by tokenizer %.12s, the model's is %.12s", files, l.tokenizer,
                      tokenizer);
    else if (n->mask && !l.marked)
        status = fail("%s: --mask-prompt needs shards that mark prompts, as tokenize --prompt-field makes them",
                      files);
    else if (model_reserve(n->model, JOB_LOSS, context))
        status = -1;
    for (int64_t i = 0; i < l.rows && !status && (!limit || n->tokens < limit); i++) {
        struct batch b;
        status = loader_read(&l, i, &b);
        if (!status)
            score(n, &b, NULL, 0);
    }
    n->documents += l.documents > 0 ? l.documents : 0;
    loader_close(&l);
    return status;
}

double *unigram_of(const char *files, int64_t vocab)
{
    struct loader_options o = { .files = files, .tokens = 256, .context = 256, .eot = -1, .vocab = vocab,
                                .join = true };
    struct loader l;
    double *p, total = (double)vocab;

    if (loader_open(&l, &o))
        return NULL;
    p = mem_new((size_t)vocab, sizeof *p);
    for (int64_t i = 0; i < vocab; i++)
        p[i] = 1;
    for (int64_t i = 0; i < l.rows; i++) {
        struct batch b;
        if (loader_read(&l, i, &b)) {
            free(p);
            loader_close(&l);
            return NULL;
        }
        for (int64_t t = 0; t < b.seqs.tokens; t++)
            p[b.token[t]]++, total++;
    }
    for (int64_t i = 0; i < vocab; i++)
        p[i] = -log(p[i] / total);
    loader_close(&l);
    return p;
}
