/* task_prompt.c - prompts out of patterns, cut in the middle; greedy answers, several at a time. */
#include "task_prompt.h"
#include "utf8.h"
#include <math.h>

#define REPLACEMENT "\xEF\xBF\xBD"          /* U+FFFD */

/* What stands for {name}: from a row, or from a list of words. */
static const char *value_of(const char *name, const struct json *row, const struct prompt_word *word)
{
    const char *value = NULL;

    if (row)
        return json_string(row, name, &value) > 0 ? value : NULL;
    while (word->name && strcmp(word->name, name))
        word++;
    return word->name ? word->value : NULL;
}

static int fill(struct text *out, const char *pattern, const struct json *row, const struct prompt_word *word)
{
    text_add(out, "%s", "");
    for (const char *p = pattern; *p;) {
        size_t n = strcspn(p, "{}");
        const char *end = p[n] == '{' ? strchr(p + n, '}') : NULL, *value = NULL;
        char name[64];

        text_add(out, "%.*s", (int)n, p);
        p += n;
        if (!*p)
            break;
        if (p[0] == p[1]) {
            text_add(out, "%c", *p);
            p += 2;
            continue;
        }
        if (!end)
            return fail("prompt: a brace has no partner: %.40s", p);
        if (!str_format(name, sizeof name, "%.*s", (int)(end - p - 1), p + 1))
            return fail("prompt: a name in braces is too long");
        if (!(value = value_of(name, row, word)))
            return fail("prompt: %s no '%s'", row ? "the row has" : "there is", name);
        text_add(out, "%s", value);
        p = end + 1;
    }
    return 0;
}

int prompt_fill(struct text *out, const char *pattern, const struct json *row)
{
    return fill(out, pattern, row, NULL);
}

int prompt_fill_words(struct text *out, const char *pattern, const struct prompt_word *word)
{
    return fill(out, pattern, NULL, word);
}

/* How many bytes at p, where no character starts, are one broken beginning of one. */
static size_t broken(const unsigned char *p, const unsigned char *end)
{
    size_t need = *p < 0xC2 ? 1 : *p < 0xE0 ? 2 : *p < 0xF0 ? 3 : *p < 0xF5 ? 4 : 1, n = 1;
    unsigned char low = *p == 0xE0 ? 0xA0 : *p == 0xF0 ? 0x90 : 0x80;
    unsigned char high = *p == 0xED ? 0x9F : *p == 0xF4 ? 0x8F : 0xBF;

    if (need > 1 && p + 1 < end && p[1] >= low && p[1] <= high)
        for (n = 2; n < need && p + n < end && (p[n] & 0xC0) == 0x80;)
            n++;
    return n;
}

/* Text as Python would decode it: U+FFFD for every broken character. */
static void add_mended(struct text *out, const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s, *end = p + n;

    while (p < end) {
        size_t good = utf8_valid((const char *)p, (size_t)(end - p));

        text_add(out, "%.*s", (int)good, (const char *)p);
        p += good;
        if (p < end) {
            text_add(out, "%s", REPLACEMENT);
            p += broken(p, end);
        }
    }
}

/* The ids of "<0x00>" to "<0xFF>", when the vocabulary falls back to bytes. */
static bool fallback_ids(const struct bpe *b, int32_t id[256])
{
    char name[8];

    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "<0x%02X>", i);
        if ((id[i] = bpe_id(b, name)) < 0)
            return false;
    }
    return true;
}

static int byte_of(const int32_t id[256], int32_t x)
{
    for (int i = 0; i < 256; i++)
        if (id[i] == x)
            return i;
    return -1;
}

/* The length of the run of bytes at ids[0] that is no text as a whole: there each byte is broken. */
static int64_t broken_run(const int32_t id[256], const int32_t *ids, int64_t n)
{
    char *run = mem_new((size_t)n + 1, 1);
    int64_t k = 0;
    int c;
    bool good;

    while (k < n && (c = byte_of(id, ids[k])) >= 0)
        run[k++] = (char)c;
    good = utf8_valid(run, (size_t)k) == (size_t)k;
    free(run);
    return good ? 0 : k;
}

void prompt_decode(struct text *out, const struct bpe *b, const int32_t *ids, int64_t n)
{
    struct bpe_decoder d = { 0 };
    struct text raw = { 0 };
    const char *bytes;
    int32_t id[256], before = -1;
    bool fallback = fallback_ids(b, id);
    size_t k;

    bpe_decoder_init(&d, b);
    for (int64_t i = 0; i < n; i++) {
        bool begins = fallback && byte_of(id, ids[i]) >= 0 && byte_of(id, before) < 0;
        int64_t run = begins ? broken_run(id, ids + i, n - i) : 0;

        before = ids[i];
        if (run) {
            k = bpe_decode_end(&d, &bytes);
            text_add(&raw, "%.*s", (int)k, bytes);
            for (int64_t j = 0; j < run; j++)
                text_add(&raw, "%s", REPLACEMENT);
            d.started = true;
            i += run - 1;
        } else if (!bpe_is_control(b, ids[i])) {
            k = bpe_decode(&d, ids[i], &bytes);
            text_add(&raw, "%.*s", (int)k, bytes);
        }
    }
    k = bpe_decode_end(&d, &bytes);
    text_add(&raw, "%.*s", (int)k, bytes);
    bpe_decoder_free(&d);
    text_add(out, "%s", "");
    add_mended(out, raw.at, raw.n);
    text_free(&raw);
}

int prompt_cut(struct task_run *r, struct text *prompt, int64_t most)
{
    struct bpe_ids ids = { 0 };
    struct text whole = { 0 };
    int64_t half = most / 2;
    int status = task_encode(r, prompt->at, prompt->n, &ids);

    if (!status && ids.n > most) {
        prompt_decode(&whole, r->m->bpe, ids.at, half);
        prompt_decode(&whole, r->m->bpe, ids.at + ids.n - half, half);
        text_free(prompt);
        *prompt = whole;
        status = 1;
    }
    bpe_ids_free(&ids);
    return status;
}

int prompt_wrap(struct text *prompt, const char *chat)
{
    const char *at = strstr(chat, "{prompt}");
    struct text whole = { 0 };

    if (!at)
        return fail("chat: expected {prompt} in '%s'", chat);
    text_add(&whole, "%.*s%s%s", (int)(at - chat), chat, prompt->at, at + strlen("{prompt}"));
    text_free(prompt);
    *prompt = whole;
    return 0;
}

int greedy_stops(const struct opened *m, int32_t stop[2])
{
    int32_t eos = m->model.cfg.eos, eot = bpe_eot(m->bpe);
    int n = 0;

    if (eos >= 0)
        stop[n++] = eos;
    if (eot >= 0 && eot != eos)
        stop[n++] = eot;
    return n;
}

int greedy_side(const struct task_run *r)
{
    return r->batch > 0 && r->batch < 4096 ? (int)r->batch : 8;
}

static bool is_stop(const struct greedy *g, int32_t id)
{
    for (int i = 0; i < g->stops; i++)
        if (g->stop[i] == id)
            return true;
    return false;
}

/* The likeliest id; with `free_of` none that stops. Ids that the tokenizer does not know are never taken. */
static int32_t choose(float *logits, int64_t vocab, const struct greedy *g, bool free_of)
{
    for (int i = 0; i < g->stops && free_of; i++)
        if (g->stop[i] < vocab)
            logits[g->stop[i]] = -INFINITY;
    return argmax(logits, vocab);
}

void greedy(struct session *s, const struct bpe *b, const struct bpe_ids *prompt, int n, const struct greedy *g,
            struct bpe_ids *out)
{
    int64_t rows = s->model->cfg.vocab, vocab = s->model->cfg.vocab_real, open = n;
    float *logits = mem_new((size_t)(s->n * rows), sizeof *logits);
    const int32_t **ids = mem_new((size_t)s->n, sizeof *ids);
    int64_t *count = mem_new((size_t)s->n, sizeof *count);

    vocab = bpe_vocab(b) < vocab ? bpe_vocab(b) : vocab;
    for (int i = 0; i < n; i++) {
        ids[i] = prompt[i].at;
        count[i] = prompt[i].n;
        open -= !prompt[i].n;
    }
    s->fresh = true;
    s->fed = 0;
    for (int64_t made = 0; made < g->most && open; made++) {
        session_feed(s, ids, count, logits);
        for (int i = 0; i < n; i++) {
            int32_t id;
            if (!count[i])
                continue;
            id = choose(logits + i * rows, vocab, g, g->one && !made);
            bpe_ids_reserve(&out[i], 1);
            out[i].at[out[i].n++] = id;
            ids[i] = &out[i].at[out[i].n - 1];
            count[i] = !is_stop(g, id);
            open -= !count[i];
        }
    }
    free(logits);
    free(ids);
    free(count);
}
