/* bpe_train.c - byte pair encoding, learned: join the pair of neighbours that occurs most often, count
 * again, repeat. Counting again costs only the words that hold the pair, because every pair knows them. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_train.h"
#include "bpe_parts.h"
#include "utf8.h"

struct word { size_t at; int64_t count; uint32_t n; uint32_t hash; };   /* bytes text.at[at..at + n) */

struct bpe_words {
    struct buffer text;
    struct word  *word;
    int64_t       n, cap, skipped;
    uint32_t     *slot;                  /* index + 1; 0: free */
    uint64_t      mask;
};

/* A pair, how often it occurs, and the words where it has occurred. */
struct seen {
    uint64_t key;                        /* left << 32 | right */
    int64_t  count;
    uint32_t *word;
    uint32_t n, cap;
    bool     touched, merged;
};
struct entry { int64_t count; uint64_t key; uint32_t seen; };
struct spelling { size_t at, n; };       /* in training.text */

struct training {
    const struct bpe_words *words;
    int32_t   *symbol;                   /* of all words, word i at start[i] */
    int64_t   *start;
    uint32_t  *length;
    struct seen *seen;
    uint32_t   n, cap;
    uint32_t  *slot;
    uint64_t   mask;
    struct entry *heap;
    int64_t    heap_n, heap_cap;
    uint32_t  *touched;                  /* pairs that the merge at hand made more frequent */
    uint32_t   touched_n, touched_cap;
    struct buffer text;                  /* bytes of tokens */
    struct spelling *token;
    int32_t   *token_slot;               /* id + 1; 0: free */
    uint64_t   token_mask;
    int64_t    tokens;
    uint64_t  *merge;                    /* [merges] left << 32 | right */
    int64_t    merges, merge_cap;
    int32_t    byte_id[256];
    struct buffer letter[256];           /* how GPT-2's alphabet spells a byte */
};

struct bpe_words *bpe_words_open(void)
{
    struct bpe_words *w = mem_new(1, sizeof *w);

    pretoken_init();
    w->mask = 65535;
    w->slot = mem_new(w->mask + 1, sizeof *w->slot);
    return w;
}

void bpe_words_close(struct bpe_words *w)
{
    if (!w)
        return;
    free(w->text.at);
    free(w->word);
    free(w->slot);
    free(w);
}

int64_t bpe_words_distinct(const struct bpe_words *w)
{
    return w->n;
}

int64_t bpe_words_skipped(const struct bpe_words *w)
{
    return w->skipped;
}

static uint32_t word_hash(const char *s, size_t n)
{
    uint64_t h = n;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h >> 32);
}

static void words_rehash(struct bpe_words *w)
{
    w->mask = 2 * w->mask + 1;
    free(w->slot);
    w->slot = mem_new(w->mask + 1, sizeof *w->slot);
    for (int64_t i = 0; i < w->n; i++) {
        uint64_t k = w->word[i].hash;

        while (w->slot[k & w->mask])
            k++;
        w->slot[k & w->mask] = (uint32_t)i + 1;
    }
}

static void word_add(struct bpe_words *w, const char *s, size_t n)
{
    uint32_t hash = word_hash(s, n);
    uint64_t k;

    if (n > BPE_WORD_MOST) {
        w->skipped++;
        return;
    }
    for (k = hash; w->slot[k & w->mask]; k++) {
        struct word *old = &w->word[w->slot[k & w->mask] - 1];

        if (old->hash == hash && old->n == n && !memcmp(w->text.at + old->at, s, n)) {
            old->count++;
            return;
        }
    }
    if (w->n == w->cap)
        w->word = mem_grow(w->word, (size_t)(w->cap = 2 * w->cap + 1024), sizeof *w->word);
    w->word[w->n++] = (struct word){ w->text.n, 1, (uint32_t)n, hash };
    buffer_add(&w->text, s, n);
    w->slot[k & w->mask] = (uint32_t)w->n;
    REQUIRE(w->n < UINT32_MAX / 2);
    if ((uint64_t)w->n > w->mask / 2)
        words_rehash(w);
}

void bpe_words_add(struct bpe_words *w, const char *text, size_t n)
{
    while (n) {
        size_t valid = utf8_valid(text, n), bad = utf8_invalid(text + valid, n - valid), k;

        for (const char *p = text, *end = p + valid; p < end; p += k)
            word_add(w, p, k = pretoken_piece(p, end));
        if (bad)
            word_add(w, text + valid, bad);
        text += valid + bad;
        n -= valid + bad;
    }
}

/* The better entry: more frequent, then of smaller ids. */
static bool above(struct entry a, struct entry b)
{
    return a.count != b.count ? a.count > b.count : a.key < b.key;
}

static void heap_push(struct training *t, uint32_t seen)
{
    struct entry e = { t->seen[seen].count, t->seen[seen].key, seen };
    int64_t i = t->heap_n++;

    if (t->heap_n > t->heap_cap)
        t->heap = mem_grow(t->heap, (size_t)(t->heap_cap = 2 * t->heap_cap + 1024), sizeof *t->heap);
    for (; i && above(e, t->heap[(i - 1) / 2]); i = (i - 1) / 2)
        t->heap[i] = t->heap[(i - 1) / 2];
    t->heap[i] = e;
}

static struct entry heap_pop(struct training *t)
{
    struct entry top = t->heap[0], e = t->heap[--t->heap_n];
    int64_t i = 0;

    for (int64_t k; (k = 2 * i + 1) < t->heap_n; i = k) {
        k += k + 1 < t->heap_n && above(t->heap[k + 1], t->heap[k]);
        if (!above(t->heap[k], e))
            break;
        t->heap[i] = t->heap[k];
    }
    t->heap[i] = e;
    return top;
}

static void seen_rehash(struct training *t)
{
    t->mask = 2 * t->mask + 1;
    free(t->slot);
    t->slot = mem_new(t->mask + 1, sizeof *t->slot);
    for (uint32_t i = 0; i < t->n; i++) {
        uint64_t k = pair_hash(t->seen[i].key);

        while (t->slot[k & t->mask])
            k++;
        t->slot[k & t->mask] = i + 1;
    }
}

static uint32_t seen_find(struct training *t, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right, k = pair_hash(key);

    for (; t->slot[k & t->mask]; k++)
        if (t->seen[t->slot[k & t->mask] - 1].key == key)
            return t->slot[k & t->mask] - 1;
    if (t->n == t->cap)
        t->seen = mem_grow(t->seen, t->cap = 2 * t->cap + 1024, sizeof *t->seen);
    t->seen[t->n++] = (struct seen){ .key = key };
    t->slot[k & t->mask] = t->n;
    if (t->n > t->mask / 2)
        seen_rehash(t);
    return t->n - 1;
}

/* The pair occurs `by` more times, in this word. Words come in order, so a repetition is the last one. */
static void count_more(struct training *t, uint32_t i, uint32_t word, int64_t by)
{
    struct seen *p = &t->seen[i];

    p->count += by;
    if (p->n && p->word[p->n - 1] == word)
        return;
    if (p->n == p->cap)
        p->word = mem_grow(p->word, p->cap = p->cap + p->cap / 2 + 4, sizeof *p->word);
    p->word[p->n++] = word;
}

static void touch(struct training *t, uint32_t i)
{
    if (t->seen[i].touched)
        return;
    t->seen[i].touched = true;
    if (t->touched_n == t->touched_cap)
        t->touched = mem_grow(t->touched, t->touched_cap = 2 * t->touched_cap + 64, sizeof *t->touched);
    t->touched[t->touched_n++] = i;
}

/* Replaces left right by id in one word, and keeps the counts of the pairs around true. */
static void word_merge(struct training *t, uint32_t word, int32_t left, int32_t right, int32_t id)
{
    int32_t *s = t->symbol + t->start[word];
    uint32_t n = t->length[word], to = 0;
    int64_t count = t->words->word[word].count;

    for (uint32_t i = 0; i < n; i++) {
        if (i + 1 == n || s[i] != left || s[i + 1] != right) {
            s[to++] = s[i];
            continue;
        }
        if (to) {                                    /* the symbol before is already in its final form */
            uint32_t made;

            t->seen[seen_find(t, s[to - 1], left)].count -= count;
            made = seen_find(t, s[to - 1], id);
            count_more(t, made, word, count);
            touch(t, made);
        }
        if (i + 2 < n) {
            uint32_t made;

            t->seen[seen_find(t, right, s[i + 2])].count -= count;
            made = seen_find(t, id, s[i + 2]);
            count_more(t, made, word, count);
            touch(t, made);
        }
        s[to++] = id;
        i++;
    }
    t->length[word] = to;
}

/* The id of bytes, a new one unless another pair has made them before. */
static int32_t token_of(struct training *t, const char *s, size_t n)
{
    uint64_t k = word_hash(s, n);

    for (; t->token_slot[k & t->token_mask]; k++) {
        int32_t id = t->token_slot[k & t->token_mask] - 1;

        if (t->token[id].n == n && !memcmp(t->text.at + t->token[id].at, s, n))
            return id;
    }
    t->token[t->tokens] = (struct spelling){ t->text.n, n };
    buffer_add(&t->text, s, n);
    t->token_slot[k & t->token_mask] = (int32_t)++t->tokens;
    return (int32_t)t->tokens - 1;
}

/* The special token, then single bytes in the order of the characters that spell them. */
static void tokens_begin(struct training *t, int64_t vocab)
{
    t->token = mem_new((size_t)vocab, sizeof *t->token);
    for (t->token_mask = 1023; t->token_mask < 2 * (uint64_t)vocab;)
        t->token_mask = 2 * t->token_mask + 1;
    t->token_slot = mem_new(t->token_mask + 1, sizeof *t->token_slot);
    t->tokens = 1;
    for (uint32_t code = 0; code < 512; code++)
        if (vocab_byte(code) >= 0) {
            int32_t byte = vocab_byte(code);
            char spelled[4];

            t->byte_id[byte] = token_of(t, &(char){ (char)byte }, 1);
            buffer_add(&t->letter[byte], spelled, (size_t)utf8_write(spelled, code));
        }
}

static void pairs_begin(struct training *t)
{
    const struct bpe_words *w = t->words;

    t->symbol = mem_new(w->text.n, sizeof *t->symbol);
    t->start = mem_new((size_t)w->n, sizeof *t->start);
    t->length = mem_new((size_t)w->n, sizeof *t->length);
    t->mask = 65535;
    t->slot = mem_new(t->mask + 1, sizeof *t->slot);
    for (size_t i = 0; i < w->text.n; i++)
        t->symbol[i] = t->byte_id[(unsigned char)w->text.at[i]];
    for (int64_t i = 0; i < w->n; i++) {
        const int32_t *s = t->symbol + w->word[i].at;

        t->start[i] = (int64_t)w->word[i].at;
        t->length[i] = w->word[i].n;
        for (uint32_t k = 0; k + 1 < w->word[i].n; k++)
            count_more(t, seen_find(t, s[k], s[k + 1]), (uint32_t)i, w->word[i].count);
    }
    for (uint32_t i = 0; i < t->n; i++)
        heap_push(t, i);
}

/* Joins one pair everywhere. Its list of words is taken away first: the merge adds to other lists only,
 * but may move the table that all of them are in. */
static void pair_merge(struct training *t, uint32_t at)
{
    struct seen p = t->seen[at];
    int32_t left = (int32_t)(p.key >> 32), right = (int32_t)p.key, id;
    size_t a = t->token[left].n, b = t->token[right].n;
    char both[BPE_WORD_MOST];

    REQUIRE(a + b <= sizeof both);
    memcpy(both, t->text.at + t->token[left].at, a);
    memcpy(both + a, t->text.at + t->token[right].at, b);
    id = token_of(t, both, a + b);
    if (!p.merged) {
        if (t->merges == t->merge_cap)
            t->merge = mem_grow(t->merge, (size_t)(t->merge_cap = 2 * t->merge_cap + 256), sizeof *t->merge);
        t->merge[t->merges++] = p.key;
    }
    t->seen[at] = (struct seen){ .key = p.key, .merged = true };
    t->touched_n = 0;
    for (uint32_t i = 0; i < p.n; i++)
        word_merge(t, p.word[i], left, right, id);
    free(p.word);
    t->seen[at].count = 0;               /* a pair of equals takes itself away while it merges */
    for (uint32_t i = 0; i < t->touched_n; i++) {
        t->seen[t->touched[i]].touched = false;
        if (t->seen[t->touched[i]].count > 1)
            heap_push(t, t->touched[i]);
    }
}

/* Tokens and merges as tokenizer.json spells them. */
static void spell(const struct training *t, int32_t id, struct buffer *out)
{
    for (size_t i = 0; i < t->token[id].n; i++) {
        unsigned char byte = (unsigned char)t->text.at[t->token[id].at + i];

        buffer_add(out, t->letter[byte].at, t->letter[byte].n);
    }
}

static void write_model(const struct training *t, struct text *out)
{
    struct buffer name = { 0 };

    text_add(out, "    \"vocab\": {\n      \"<|endoftext|>\": 0");
    for (int32_t id = 1; id < t->tokens; id++) {
        name.n = 0;
        spell(t, id, &name);
        text_add(out, ",\n      ");
        text_string(out, name.at, name.n);
        text_add(out, ": %d", (int)id);
    }
    text_add(out, "\n    },\n    \"merges\": [");
    for (int64_t i = 0; i < t->merges; i++) {
        name.n = 0;
        spell(t, (int32_t)(t->merge[i] >> 32), &name);
        buffer_add(&name, " ", 1);
        spell(t, (int32_t)t->merge[i], &name);
        text_add(out, i ? ",\n      " : "\n      ");
        text_string(out, name.at, name.n);
    }
    text_add(out, t->merges ? "\n    ]\n" : "]\n");
    free(name.at);
}

static void write_json(const struct training *t, struct text *out)
{
    static const char level[] = "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, "
                                "\"use_regex\": true}";

    text_add(out, "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [\n"
             "    {\"id\": 0, \"content\": \"<|endoftext|>\", \"single_word\": false, \"lstrip\": false, "
             "\"rstrip\": false, \"normalized\": false, \"special\": true}\n  ],\n  \"normalizer\": null,\n"
             "  \"pre_tokenizer\": %s,\n  \"post_processor\": %s,\n  \"decoder\": %s,\n", level, level, level);
    text_add(out, "  \"model\": {\n    \"type\": \"BPE\",\n    \"dropout\": null,\n    \"unk_token\": null,\n"
             "    \"continuing_subword_prefix\": null,\n    \"end_of_word_suffix\": null,\n    \"fuse_unk\": false,\n"
             "    \"byte_fallback\": false,\n");
    write_model(t, out);
    text_add(out, "  }\n}\n");
}

static void training_free(struct training *t)
{
    for (uint32_t i = 0; i < t->n; i++)
        free(t->seen[i].word);
    for (int i = 0; i < 256; i++)
        free(t->letter[i].at);
    free(t->symbol);
    free(t->start);
    free(t->length);
    free(t->seen);
    free(t->slot);
    free(t->heap);
    free(t->touched);
    free(t->text.at);
    free(t->token);
    free(t->token_slot);
    free(t->merge);
}

void bpe_train(const struct bpe_words *w, int64_t vocab, struct text *out, int64_t *tokens,
               void (*progress)(int64_t tokens))
{
    struct training t = { .words = w };

    REQUIRE(vocab >= BPE_TRAIN_LEAST && vocab <= BPE_TRAIN_MOST);
    tokens_begin(&t, vocab);
    pairs_begin(&t);
    while (t.tokens < vocab && t.heap_n) {
        struct entry top = heap_pop(&t);
        int64_t count = t.seen[top.seen].count;

        if (count != top.count) {                    /* it lost occurrences to another merge */
            if (count > 1 && count < top.count)
                heap_push(&t, top.seen);
            continue;
        }
        if (count < 2)
            break;
        pair_merge(&t, top.seen);
        if (progress)
            progress(t.tokens);
    }
    *tokens = t.tokens;
    write_json(&t, out);
    training_free(&t);
}
