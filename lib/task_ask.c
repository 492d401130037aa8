/* task_ask.c - texts into requests. */
#include "task_ask.h"
#include "score_text.h"

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
