/* task_ask.c - requests into packed rows, per-token losses into sums.
 *
 * log p(continuation | context) = sum over its tokens of log softmax(logits)[token]. Rows hold whole requests
 * without padding, so that what lies beside a request cannot change it. */
#define _POSIX_C_SOURCE 200809L
#include "task_ask.h"
#include "nll.h"
#include "score_text.h"
#include "session.h"
#include <math.h>

enum { ROW = 4096, SIDE = 16 };          /* tokens of a row; requests of a session */

static char *copy(const char *s)
{
    size_t n = strlen(s) + 1;

    return memcpy(mem_new(n, 1), s, n);
}

void asks_add(struct asks *a, const char *context, const char *continuation)
{
    if (a->n == a->cap)
        a->at = mem_grow(a->at, (size_t)(a->cap = 2 * a->cap + 64), sizeof *a->at);
    a->at[a->n++] = (struct ask){ .context = copy(context), .continuation = copy(continuation), .greedy = -1 };
}

void asks_free(struct asks *a)
{
    for (int64_t i = 0; i < a->n; i++) {
        free(a->at[i].context);
        free(a->at[i].continuation);
        free(a->at[i].id);
    }
    free(a->at);
    *a = (struct asks){ 0 };
}

int32_t ask_prefix(const struct opened *m)
{
    int32_t id = bpe_bos(m->bpe) >= 0 ? bpe_bos(m->bpe) : bpe_eot(m->bpe);

    id = id >= 0 ? id : m->model.cfg.bos;
    return id >= 0 ? id : fail("%s: the tokenizer has no separator to stand before a text", m->dir);
}

/* Bytes of text without the white space at its end. */
static size_t trimmed(const char *text)
{
    struct runes r = runes_of(text);
    size_t n = strlen(text);
    int64_t k = r.n;

    while (k > 0 && rune_is_space(r.at[k - 1])) {
        k--;
        do
            n--;
        while (n && ((unsigned char)text[n] & 0xC0) == 0x80);
    }
    free(r.at);
    return n;
}

static int encode_empty(struct task_run *r, struct ask *a, struct bpe_ids *ids)
{
    int32_t prefix = ask_prefix(r->m);

    if (prefix < 0)
        return -1;
    bpe_ids_reserve(ids, 1);
    ids->at[ids->n++] = prefix;
    if (bpe_encode(r->m->encoder, ids, a->continuation, strlen(a->continuation), 0) < 0)
        return -1;
    a->scored = ids->n - 1;
    if (ids->n > 1 && ids->at[1] == prefix) {          /* it is there already */
        memmove(ids->at, ids->at + 1, (size_t)--ids->n * sizeof *ids->at);
        a->scored--;
    }
    return 0;
}

/* ids: the context's, then what the whole has beyond as many. */
static int encode_pair(struct task_run *r, struct ask *a, struct bpe_ids *ids)
{
    struct bpe_ids whole = { 0 };
    struct text both = { 0 };
    int64_t context;
    int status;

    text_add(&both, "%s%s", a->context, a->continuation);
    status = task_encode(r, a->context, trimmed(a->context), ids) || task_encode(r, both.at, both.n, &whole);
    context = ids->n;
    a->scored = whole.n > context ? whole.n - context : 0;
    bpe_ids_reserve(ids, a->scored);
    if (a->scored)
        memcpy(ids->at + context, whole.at + context, (size_t)a->scored * sizeof *ids->at);
    ids->n += a->scored;
    bpe_ids_free(&whole);
    text_free(&both);
    return status ? -1 : 0;
}

static int encode(struct task_run *r, struct ask *a)
{
    struct bpe_ids ids = { 0 };
    int64_t from = 0;

    if (a->context[0] ? encode_pair(r, a, &ids) : encode_empty(r, a, &ids)) {
        bpe_ids_free(&ids);
        return -1;
    }
    if (r->context && ids.n > r->context + 1) {
        from = ids.n - r->context - 1;
        a->cut = true;
    }
    a->n = ids.n - from;
    a->id = mem_new((size_t)a->n + 1, sizeof *a->id);
    memcpy(a->id, ids.at + from, (size_t)a->n * sizeof *a->id);
    bpe_ids_free(&ids);
    if (a->cut && r->skip_long && a->scored >= a->n)
        a->scored = a->n - 1;                          /* it will not count */
    if (!a->scored || a->scored >= a->n)
        return fail("request: '%.40s' has no token to score after '%.40s'%s", a->continuation, a->context,
                    a->scored ? " within --context" : "");
    return 0;
}

int asks_encode(struct task_run *r, struct asks *a)
{
    for (int64_t i = 0; i < a->n; i++)
        if (encode(r, &a->at[i]))
            return -1;
    return 0;
}

/* One row of n requests. */
static void answer_row(struct model *m, struct ask *a, int64_t n, int64_t tokens)
{
    int32_t *token = mem_new((size_t)tokens, sizeof *token), *target = mem_new((size_t)tokens, sizeof *target);
    int32_t *start = mem_new((size_t)n + 1, sizeof *start);
    float *nll = mem_new((size_t)tokens, sizeof *nll);
    struct batch b = { .token = token, .target = target };

    for (int64_t i = 0; i < n; i++) {
        int64_t from = start[i], inputs = a[i].n - 1;
        start[i + 1] = (int32_t)(from + inputs);
        for (int64_t t = 0; t < inputs; t++) {
            bool scored = t >= inputs - a[i].scored;
            token[from + t] = a[i].id[t];
            target[from + t] = scored ? a[i].id[t + 1] : -1;
            b.predicted += scored;
        }
    }
    b.seqs = seqs_of(start, (int)n);
    model_loss(m, &b, NULL, nll);
    for (int64_t i = 0; i < n; i++) {
        a[i].log_prob = 0;
        for (int64_t t = start[i + 1] - a[i].scored; t < start[i + 1]; t++)
            a[i].log_prob -= nll[t];
    }
    free(token);
    free(target);
    free(start);
    free(nll);
}

/* A request longer than a row, in pieces with its memory carried. */
static int answer_long(struct model *m, struct ask *a)
{
    struct nll n;
    double before;
    int status = nll_open(&n, m, 0);

    if (!status) {
        nll_begin(&n);
        status = nll_feed(&n, a->id, a->n - a->scored);
        before = n.loss;
        status = status ? status : nll_feed(&n, a->id + a->n - a->scored, a->scored);
        a->log_prob = before - n.loss;
    }
    nll_close(&n);
    return status;
}

static int answer_rows(struct task_run *r, struct asks *a)
{
    struct model *m = &r->m->model;
    struct task_clock clock = { 0 };

    if (model_reserve(m, JOB_LOSS, ROW))
        return -1;
    for (int64_t i = 0; i < a->n;) {
        int64_t n = 0, tokens = 0;

        task_progress(&clock, r->task->name, i, a->n);
        while (i + n < a->n && tokens + a->at[i + n].n - 1 <= ROW && (!r->batch || n < r->batch))
            tokens += a->at[i + n++].n - 1;
        if (n)
            answer_row(m, &a->at[i], n, tokens);
        else if (n++, answer_long(m, &a->at[i]))
            return -1;
        i += n;
    }
    return 0;
}

static double log_softmax(const float *logits, int64_t n, int32_t at)
{
    double top = logits[0], sum = 0;

    for (int64_t i = 1; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < n; i++)
        sum += exp(logits[i] - top);
    return logits[at] - top - log(sum);
}

/* Contexts first, then the continuations one token at a time: the only way to see what the model prefers. */
static void answer_side(struct session *s, struct ask *a, int n, float *logits, int64_t usable)
{
    const int32_t **ids = mem_new((size_t)s->n, sizeof *ids);
    int64_t *count = mem_new((size_t)s->n, sizeof *count), V = s->model->cfg.vocab;
    bool more = true;

    for (int i = 0; i < n; i++) {
        ids[i] = a[i].id;
        count[i] = a[i].n - a[i].scored;
        a[i].log_prob = 0;
        a[i].greedy = 1;
    }
    s->fresh = true;
    for (int64_t step = 0; more; step++) {
        session_feed(s, ids, count, logits);
        more = false;
        for (int i = 0; i < n; i++) {
            int64_t at = a[i].n - a[i].scored + step;
            if (at >= a[i].n) {
                count[i] = 0;
                continue;
            }
            a[i].log_prob += log_softmax(logits + i * V, V, a[i].id[at]);
            a[i].greedy &= argmax(logits + i * V, usable) == a[i].id[at];
            ids[i] = a[i].id + at;
            count[i] = at + 1 < a[i].n;
            more |= count[i] > 0;
        }
    }
    free(ids);
    free(count);
}

static int answer_greedy(struct task_run *r, struct asks *a)
{
    struct model *m = &r->m->model;
    int side = r->batch > 0 && r->batch < 4096 ? (int)r->batch : SIDE;
    int64_t usable = bpe_vocab(r->m->bpe) < m->cfg.vocab_real ? bpe_vocab(r->m->bpe) : m->cfg.vocab_real;
    struct task_clock clock = { 0 };
    struct session s;
    float *logits;

    if (session_open(&s, m, side))
        return -1;
    logits = mem_new((size_t)(side * m->cfg.vocab), sizeof *logits);
    for (int64_t i = 0; i < a->n; i += side) {
        task_progress(&clock, r->task->name, i, a->n);
        answer_side(&s, &a->at[i], (int)(a->n - i < side ? a->n - i : side), logits, usable);
    }
    free(logits);
    session_close(&s);
    return 0;
}

int asks_answer(struct task_run *r, struct asks *a, bool look)
{
    return look ? answer_greedy(r, a) : answer_rows(r, a);
}

void ask_log(FILE *f, const char *task, int64_t doc, int64_t choice, int64_t gold, const struct ask *a)
{
    struct text t = { 0 };

    text_add(&t, "{\"task\": \"%s\", \"doc\": %lld, \"choice\": %lld, \"gold\": %lld, \"context\": ", task,
             (long long)doc, (long long)choice, (long long)gold);
    text_string(&t, a->context, strlen(a->context));
    text_add(&t, ", \"continuation\": ");
    text_string(&t, a->continuation, strlen(a->continuation));
    text_add(&t, ", \"tokens\": %lld, \"scored\": %lld, \"cut\": %s, \"log_prob\": %.9g", (long long)a->n,
             (long long)a->scored, a->cut ? "true" : "false", a->log_prob);
    text_add(&t, a->greedy < 0 ? ", \"greedy\": null}\n" : ", \"greedy\": %s}\n", a->greedy ? "true" : "false");
    fputs(t.at, f);
    text_free(&t);
}
