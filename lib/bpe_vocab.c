/* bpe_vocab.c - the model of a tokenizer.json: tokens, merges, and what single bytes and characters are. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "utf8.h"

void buffer_add(struct buffer *b, const char *s, size_t n)
{
    if (b->cap - b->n < n) {
        b->cap = b->cap + b->cap / 2 > b->n + n ? b->cap + b->cap / 2 : b->n + n;
        b->at = mem_grow(b->at, b->cap, 1);
    }
    if (n)
        memcpy(b->at + b->n, s, n);
    b->n += n;
}

static uint64_t spelling_hash(const char *s, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u;

    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)s[i]) * 0x100000001B3u;
    return h ^ h >> 29;
}

static uint64_t table_size(int64_t entries)
{
    uint64_t size = 16;

    while (size < 2 * (uint64_t)entries)
        size *= 2;
    return size;
}

int32_t vocab_find(const struct bpe *b, const char *name, size_t n)
{
    for (uint64_t i = spelling_hash(name, n);; i++) {
        int32_t id = b->slot[i & b->slot_mask];

        if (id < 0)
            return -1;
        if (b->token[id].n_name == n && !memcmp(b->text.at + b->token[id].name, name, n))
            return id;
    }
}

/* name must be new, id in range and unused: the callers have checked. */
void vocab_add(struct bpe *b, int32_t id, const char *name, size_t n, uint8_t flags)
{
    uint64_t i = spelling_hash(name, n);

    while (b->slot[i & b->slot_mask] >= 0)
        i++;
    b->slot[i & b->slot_mask] = id;
    b->token[id] = (struct token){ .name = b->text.n, .n_name = n, .flags = flags, .used = true };
    buffer_add(&b->text, name, n);
}

/* GPT-2's alphabet: printable Latin-1 stands for itself, the other 68 bytes follow from U+0100. */
int32_t vocab_byte(uint32_t code)
{
    static const uint8_t gap[4][2] = { { 0, 33 }, { 127, 34 }, { 173, 1 }, { 0, 0 } };   /* first, how many */
    uint32_t k = code - 256;

    if (code < 256)
        return (code >= 33 && code <= 126) || (code >= 161 && code != 173) ? (int32_t)code : -1;
    for (int i = 0; gap[i][1]; k -= gap[i++][1])
        if (k < gap[i][1])
            return (int32_t)(gap[i][0] + k);
    return -1;
}

/* JSON's \u0000 arrives as C0 80 (json.c); inside it is the byte that it means. */
static size_t unescape_nul(char *s, size_t n)
{
    size_t to = 0;

    for (size_t i = 0; i < n; i++) {
        bool nul = (unsigned char)s[i] == 0xC0 && i + 1 < n && (unsigned char)s[i + 1] == 0x80;

        s[to++] = nul ? 0 : s[i];
        i += nul;
    }
    return to;
}

struct bytes json_bytes(struct buffer *room, const char *s)
{
    room->n = 0;
    buffer_add(room, s, strlen(s));
    room->n = unescape_nul(room->at, room->n);
    return bytes_of(room);
}

static int id_of(const struct bpe *b, const struct json *item, const char *what, int32_t *id)
{
    double x;

    if (!json_number(item, &x))
        return fail("%s: %s: the id is not a number", b->name, what);
    if (!(x >= 0 && x < (double)b->limit))
        return fail("%s: %s: id %.17g is not in a file of this size", b->name, what, x);
    *id = (int32_t)x;
    return x == (double)*id ? 0 : fail("%s: %s: id %.17g is not a whole number", b->name, what, x);
}

static int tokens_read(struct bpe *b, const struct json *vocab, const struct json *added)
{
    int64_t count = json_count(vocab) + (added ? json_count(added) : 0);
    struct buffer room = { 0 };
    int32_t id = -1, top = -1;
    int status = 0;

    for (struct json *t = json_first(vocab); t; t = json_next(t)) {
        if (id_of(b, t, json_key(t), &id))
            return -1;
        top = id > top ? id : top;
    }
    for (struct json *t = json_first(added); t; t = json_next(t)) {
        if (!json_is_object(t) || !json_at(t, "id") || id_of(b, json_at(t, "id"), "added_tokens", &id))
            return fail("%s: added_tokens: expected objects with an id", b->name);
        top = id > top ? id : top;
    }
    b->vocab = top + 1;
    b->token = mem_new((size_t)b->vocab, sizeof *b->token);
    b->slot_mask = table_size(count) - 1;
    b->slot = mem_new(b->slot_mask + 1, sizeof *b->slot);
    memset(b->slot, 0xFF, (b->slot_mask + 1) * sizeof *b->slot);
    for (struct json *t = json_first(vocab); t && !status; t = json_next(t)) {
        struct bytes name = json_bytes(&room, json_key(t));

        if (id_of(b, t, json_key(t), &id))
            status = -1;
        else if (b->token[id].used)
            status = fail("%s: two tokens have id %d", b->name, (int)id);
        else if (vocab_find(b, name.at, name.n) >= 0)
            status = fail("%s: token \"%s\" appears twice", b->name, json_key(t));
        else
            vocab_add(b, id, name.at, name.n, 0);
    }
    free(room.at);
    return status;
}

static int side(const struct bpe *b, const char *s, size_t n, int64_t line, int32_t *id)
{
    *id = vocab_find(b, s, n);
    if (*id < 0)
        return fail("%s: merge %lld: \"%.*s\" is not in the vocabulary", b->name, (long long)line,
                    n < 200 ? (int)n : 200, s);
    return 0;
}

/* A later merge of the same pair replaces the earlier one, as in the tool that writes these files. */
static void merge_add(struct bpe *b, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    uint64_t key = (uint64_t)left << 32 | (uint32_t)right, i = pair_hash(key);

    while (b->pair[i & b->pair_mask].key != PAIR_FREE && b->pair[i & b->pair_mask].key != key)
        i++;
    b->pair[i & b->pair_mask] = (struct pair){ key, rank, id };
    b->token[left].flags |= TOKEN_MERGES;
    b->token[right].flags |= TOKEN_MERGES;
}

/* "left right" in older files, ["left", "right"] in newer ones. */
static int merge_read(struct bpe *b, const struct json *m, int64_t line, struct buffer two[2])
{
    const struct json *l = json_is_array(m) ? json_first(m) : NULL, *r = l ? json_next(l) : NULL;
    const char *text = json_text(m), *space = text ? strchr(text, ' ') : NULL;
    struct bytes a, c;
    int32_t left, right, id;

    if (text && space && !strchr(space + 1, ' ')) {
        a = json_bytes(&two[0], text);
        c = json_bytes(&two[1], space + 1);
        a.n = (size_t)((const char *)memchr(a.at, ' ', a.n) - a.at);
        two[0].n = a.n;
    } else if (l && r && !json_next(r) && json_text(l) && json_text(r)) {
        a = json_bytes(&two[0], json_text(l));
        c = json_bytes(&two[1], json_text(r));
    } else
        return fail("%s: merge %lld: expected \"left right\" or [\"left\", \"right\"]", b->name, (long long)line);
    if (side(b, a.at, a.n, line, &left) || side(b, c.at, c.n, line, &right))
        return -1;
    buffer_add(&two[0], c.at, c.n);
    if (side(b, two[0].at, two[0].n, line, &id))
        return -1;
    merge_add(b, left, right, (uint32_t)line, id);
    return 0;
}

static int merges_read(struct bpe *b, const struct json *merges)
{
    struct buffer two[2] = { { 0 }, { 0 } };
    int64_t line = 0;
    int status = 0;

    if (!json_is_array(merges))
        return fail("%s: model: expected a list of merges", b->name);
    b->pair_mask = table_size(json_count(merges)) - 1;
    b->pair = mem_new(b->pair_mask + 1, sizeof *b->pair);
    for (uint64_t i = 0; i <= b->pair_mask; i++)
        b->pair[i].key = PAIR_FREE;
    for (struct json *m = json_first(merges); m && !status; m = json_next(m))
        status = merge_read(b, m, line++, two);
    free(two[0].at);
    free(two[1].at);
    return status;
}

/* Byte-level: what each byte is. Only bytes that no UTF-8 contains may lack a token; bpe_word.c writes
 * U+FFFD for those. Any other would vanish from the text. */
static int bytes_index(struct bpe *b)
{
    for (uint32_t code = 0; code < 512; code++) {
        int32_t byte = vocab_byte(code);
        char s[4];
        int32_t id;

        if (byte < 0)
            continue;
        id = vocab_find(b, s, (size_t)utf8_write(s, code));
        b->byte_id[byte] = id >= 0 ? id : b->unk;
        if (b->byte_id[byte] < 0 && byte != 0xC0 && byte != 0xC1 && byte < 0xF5)
            return fail("%s: byte %d has no token, and there is no unk_token", b->name, (int)byte);
    }
    return 0;
}

/* Otherwise: <0x00> to <0xFF>, characters, and whether words may be cut before every U+2581. */
static int letters_index(struct bpe *b)
{
    static const char mark[] = "\xE2\x96\x81";
    int64_t letters = 0;

    for (int k = 0; k < 256; k++) {
        char s[8];

        b->byte_id[k] = str_format(s, sizeof s, "<0x%02X>", k) ? vocab_find(b, s, 6) : -1;
        if (b->byte_fallback && b->byte_id[k] < 0)
            return fail("%s: byte_fallback, but no token %s", b->name, s);
    }
    if (!b->byte_fallback && b->unk < 0)
        return fail("%s: neither byte_fallback nor unk_token: text outside the vocabulary would vanish", b->name);
    b->letter_mask = table_size(b->vocab) - 1;
    b->letter = mem_new(b->letter_mask + 1, sizeof *b->letter);
    for (uint64_t i = 0; i <= b->letter_mask; i++)
        b->letter[i].id = -1;
    b->word_start = vocab_find(b, mark, 3) >= 0 && !b->ignore_merges;      /* which asks for whole pieces */
    b->line_apart = b->word_start && b->byte_fallback && vocab_find(b, "\n", 1) < 0 &&
                    !(b->token[b->byte_id['\n']].flags & TOKEN_MERGES);
    for (int32_t id = 0; id < b->vocab; id++) {
        const char *s = b->text.at + b->token[id].name;
        size_t n = b->token[id].n_name;
        uint32_t code = 0;
        uint64_t i;

        for (size_t k = 1; b->token[id].used && k + 3 <= n; k++)
            if (!memcmp(s + k, mark, 3) && (k < 3 || memcmp(s + k - 3, mark, 3)))
                b->word_start = false;
        if (!b->token[id].used || !n ||
            utf8_read((const unsigned char *)s, (const unsigned char *)s + n, &code) != (int)n)
            continue;
        for (i = letter_hash(code); b->letter[i & b->letter_mask].id >= 0; i++)
            ;
        b->letter[i & b->letter_mask] = (struct letter){ code, id };
        letters++;
    }
    return letters || b->byte_fallback ? 0 : fail("%s: no token is a single character", b->name);
}

int32_t letter_find(const struct bpe *b, uint32_t code)
{
    for (uint64_t i = letter_hash(code);; i++) {
        const struct letter *l = &b->letter[i & b->letter_mask];

        if (l->id < 0 || l->code == code)
            return l->id;
    }
}

/* The options that change what a merge is: none of the files this reads sets them. */
static int plain_model(struct bpe *b, const struct json *model)
{
    static const char *const affix[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    const char *type = "BPE", *text;
    double dropout = 0;

    if (!json_is_object(model))
        return fail("%s: expected an object \"model\"", b->name);
    if (json_string(model, "type", &type) < 0 || json_double(model, "dropout", &dropout) < 0)
        return -1;
    if (strcmp(type, "BPE"))
        return fail("%s: model: type \"%s\" is not supported, only BPE is", b->name, type);
    if (dropout != 0)
        return fail("%s: model: dropout %g is not supported", b->name, dropout);
    for (size_t i = 0; i < LEN(affix); i++) {
        text = "";
        if (json_string(model, affix[i], &text) < 0)
            return -1;
        if (*text)
            return fail("%s: model: %s \"%s\" is not supported", b->name, affix[i], text);
    }
    if (json_bool(model, "byte_fallback", &b->byte_fallback) < 0 || json_bool(model, "fuse_unk", &b->fuse_unk) < 0 ||
        json_bool(model, "ignore_merges", &b->ignore_merges) < 0)
        return -1;
    return 0;
}

int vocab_read(struct bpe *b, const struct json *root)
{
    const struct json *model = json_at(root, "model"), *vocab = json_at(model, "vocab");
    const struct json *added = json_at(root, "added_tokens");
    const char *unk = NULL;

    if (plain_model(b, model))
        return -1;
    if (!json_is_object(vocab) || !json_count(vocab))
        return fail("%s: model: expected a vocabulary", b->name);
    if (added && !json_is_array(added))
        return fail("%s: added_tokens: expected a list", b->name);
    if (tokens_read(b, vocab, added) || merges_read(b, json_at(model, "merges")))
        return -1;
    if (json_string(model, "unk_token", &unk) < 0)
        return -1;
    b->unk = unk ? vocab_find(b, unk, strlen(unk)) : -1;
    if (unk && b->unk < 0)
        return fail("%s: model: unk_token \"%s\" is not in the vocabulary", b->name, unk);
    return b->byte_level ? bytes_index(b) : letters_index(b);
}
