/* nll.c - rows through the model, losses into sums. */
#include "nll_parts.h"
#include <math.h>

static void row_open(struct nll_row *r, int64_t cap, int64_t most)
{
    r->cap = cap;
    r->most = (int)most;
    r->token = mem_new((size_t)cap, sizeof *r->token);
    r->target = mem_new((size_t)cap, sizeof *r->target);
    r->start = mem_new((size_t)most + 1, sizeof *r->start);
}

int nll_open(struct nll *n, struct model *m, int64_t piece, int64_t batch)
{
    enum { WIDE = 8192, ROW = 4096 };
    int64_t row;

    *n = (struct nll){ .model = m, .piece = piece };
    n->chunk = !piece ? NLL_CHUNK : piece < WIDE ? piece : WIDE;
    batch = batch > 4096 ? 4096 : batch;
    row = batch ? batch * n->chunk : n->chunk > ROW ? n->chunk : ROW;
    row_open(&n->row, row, batch ? batch : ROW);
    n->held = mem_new((size_t)n->chunk + 1, sizeof *n->held);
    if (model_reserve(m, JOB_LOSS, row))
        return -1;
    return model_state_open(m, &n->state, 1);
}

void nll_close(struct nll *n)
{
    if (n->state.at)
        model_state_close(n->model, &n->state);
    free(n->row.token);
    free(n->row.target);
    free(n->row.start);
    free(n->held);
    free(n->bucket_loss);
    free(n->bucket_count);
    free(n->kept);
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
    struct pass pass = p ? *p : (struct pass){ 0 };
    float *loss;

    if (nll_passes(n, b))
        return;
    loss = mem_new((size_t)b->seqs.tokens, sizeof *loss);
    pass.alone = true;                   /* the number of sequences side by side changes nothing */
    model_loss(n->model, b, &pass, loss);
    for (int i = 0; i < b->seqs.n; i++)
        for (int32_t t = b->seqs.start[i]; t < b->seqs.start[i + 1]; t++)
            if (b->target[t] >= 0)
                count(n, offset + t - b->seqs.start[i], loss[t], b->target[t]);
    free(loss);
    nll_scored(n);
}

/* The sequences that wait, side by side. */
static void flush(struct nll *n)
{
    struct nll_row *r = &n->row;

    if (r->n)
        score(n, &(struct batch){ .token = r->token, .target = r->target, .seqs = seqs_of(r->start, r->n) }, NULL, 0);
    r->n = 0;
    r->tokens = 0;
}

/* A whole sequence; one that is longer than a chunk goes alone, in pieces. */
static void add_sequence(struct nll *n, const int32_t *token, const int32_t *target, int64_t count)
{
    struct nll_row *r = &n->row;

    n->tokens += count;
    for (int64_t at = 0, take; count > n->chunk && at < count; at += take) {
        struct pass p = { .state = n->state.at, .fresh = at == 0 };
        int32_t start[2] = { 0, 0 };
        take = count - at < n->chunk ? count - at : n->chunk;
        start[1] = (int32_t)take;
        score(n, &(struct batch){ .token = token + at, .target = target + at, .seqs = seqs_of(start, 1) }, &p, at);
    }
    if (count > n->chunk || !count)
        return;
    if (r->n == r->most || r->tokens + count > r->cap)
        flush(n);
    memcpy(r->token + r->tokens, token, (size_t)count * sizeof *token);
    memcpy(r->target + r->tokens, target, (size_t)count * sizeof *target);
    r->tokens += count;
    r->start[++r->n] = (int32_t)r->tokens;
}

/* What is held, but for its last id, which is only predicted; whole: it is all of its part. */
static void feed_held(struct nll *n, bool whole)
{
    int64_t count = n->nheld - 1;
    struct pass p = { .state = n->state.at, .fresh = n->at == 0 };
    int32_t start[2] = { 0, (int32_t)count };

    if (count > 0 && whole && !n->at)
        add_sequence(n, n->held, n->held + 1, count);
    else if (count > 0) {
        n->tokens += count;
        score(n, &(struct batch){ .token = n->held, .target = n->held + 1, .seqs = seqs_of(start, 1) }, &p, n->at);
    }
}

int nll_end(struct nll *n)
{
    feed_held(n, true);
    n->nheld = 0;
    n->at = 0;
    flush(n);
    return nll_whole(n);
}

void nll_begin(struct nll *n)
{
    feed_held(n, true);
    n->documents++;
    n->nheld = 0;
    n->at = 0;
    n->inside = false;
}

int nll_feed(struct nll *n, const int32_t *ids, int64_t total)
{
    for (int64_t i = 0; i < total; i++)
        if (ids[i] < 0 || ids[i] >= n->model->cfg.vocab)
            return fail("id %d is outside the model's vocabulary of %lld", ids[i], (long long)n->model->cfg.vocab);
    for (int64_t i = 0; i < total; i++) {
        int64_t most = n->piece && n->piece - n->at < n->chunk ? n->piece - n->at : n->chunk, fed;

        /* Another id comes, so what is held goes on: only then is it known not to end here. */
        if ((fed = n->nheld - 1) == most) {
            bool ends = n->piece && n->at + fed == n->piece;
            feed_held(n, ends);
            n->held[0] = n->held[fed];
            n->nheld = 1;
            n->at = ends ? 0 : n->at + fed;
        }
        n->held[n->nheld++] = ids[i];
    }
    return nll_wrong(n);
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
    for (int64_t i = 0; i < l.rows && !status && (!limit || n->tokens < limit); i++) {
        struct batch b;
        const int32_t *at;
        if ((status = loader_read(&l, i, &b)))
            break;
        at = b.seqs.start;
        for (int k = 0; k < b.seqs.n; k++)
            add_sequence(n, b.token + at[k], b.target + at[k], at[k + 1] - at[k]);
        if (n->shown)
            n->shown(n->arg, i + 1, l.rows);
        status = nll_wrong(n);
    }
    flush(n);
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
