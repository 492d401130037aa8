/* bpe_added.c - added tokens: strings that are cut out of a text before it is split, leftmost first and
 * the longest of those. Tokens marked "normalized" are looked for in normalized text, in their own
 * normalized spelling; the others in the text as it came. A control token that is not wanted stays text,
 * as a whole: what it contains is not looked at again. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "utf8.h"
#include <utf8proc.h>

static int added_one(struct bpe *b, const struct json *j, struct added *a, struct buffer *room)
{
    const char *content = NULL;
    bool special = false;
    struct bytes name;
    int32_t id;
    int64_t given = 0;

    if (json_int(j, "id", &given) < 1 || json_string(j, "content", &content) < 1 ||
        json_bool(j, "special", &special) < 0)
        return fail("%s: added_tokens: expected objects with an id and a content", b->name);
    a->normalized = !special;
    if (json_bool(j, "lstrip", &a->lstrip) < 0 || json_bool(j, "rstrip", &a->rstrip) < 0 ||
        json_bool(j, "single_word", &a->word) < 0 || json_bool(j, "normalized", &a->normalized) < 0)
        return -1;
    name = json_bytes(room, content);
    if (!name.n)
        return fail("%s: added_tokens: an empty content", b->name);
    id = vocab_find(b, name.at, name.n);
    if (id >= 0 && id != given)
        return fail("%s: added_tokens: \"%s\" has id %lld here and %d in the vocabulary", b->name, content,
                    (long long)given, (int)id);
    if (id < 0 && b->token[given].used)
        return fail("%s: added_tokens: \"%s\" has the id %lld of another token", b->name, content, (long long)given);
    if (id < 0)
        vocab_add(b, (int32_t)given, name.at, name.n, TOKEN_ADDED);
    a->id = (int32_t)given;
    b->token[given].flags |= special ? TOKEN_CONTROL : 0;
    return 0;
}

int added_read(struct bpe *b, const struct json *root)
{
    const struct json *list = json_at(root, "added_tokens");
    struct buffer room = { 0 };
    int status = 0;

    b->added = mem_new(list ? (size_t)json_count(list) : 0, sizeof *b->added);
    for (struct json *j = json_first(list); j && !status; j = json_next(j))
        status = added_one(b, j, &b->added[b->addeds++], &room);
    free(room.at);
    return status;
}

static int32_t node_new(struct trie *t, uint8_t byte)
{
    if (!(t->n & (t->n - 1)))                        /* full: sizes are powers of two */
        t->node = mem_grow(t->node, t->n ? 2 * (size_t)t->n : 1, sizeof *t->node);
    if (!t->n)
        t->node[t->n++] = (struct trie_node){ 0, 0, -1, 0 };
    if (!(t->n & (t->n - 1)))
        t->node = mem_grow(t->node, 2 * (size_t)t->n, sizeof *t->node);
    t->node[t->n] = (struct trie_node){ 0, 0, -1, byte };
    return t->n++;
}

static void trie_add(struct trie *t, struct bytes s, int32_t added)
{
    unsigned char first = (unsigned char)s.at[0];
    int32_t at = t->root[first];

    if (!at)
        at = t->root[first] = node_new(t, first);
    for (size_t i = 1; i < s.n; i++) {
        unsigned char byte = (unsigned char)s.at[i];
        int32_t child = t->node[at].child;

        while (child && t->node[child].byte != byte)
            child = t->node[child].sibling;
        if (!child) {
            child = node_new(t, byte);
            t->node[child].sibling = t->node[at].child;
            t->node[at].child = child;
        }
        at = child;
    }
    t->node[at].added = added;
}

static bool is_ascii(struct bytes s)
{
    for (size_t i = 0; i < s.n; i++)
        if ((unsigned char)s.at[i] >= 0x80)
            return false;
    return true;
}

/* Whether a cut before a space or newline could fall inside this token, or unseen right behind it. */
static bool token_spans(const struct bpe *b, const struct added *a, struct bytes s)
{
    if (a->rstrip || (b->prefixes && a->normalized && !is_ascii(s)))
        return true;
    for (size_t i = 1; i < s.n; i++)
        if ((s.at[i] == ' ' || s.at[i] == '\n') && s.at[i - 1] != ' ' && s.at[i - 1] != '\n')
            return true;
    return false;
}

int added_build(struct bpe *b)
{
    struct regex_room *regex = regex_room_open();
    struct buffer room[3] = { { 0 }, { 0 }, { 0 } };
    int status = 0;

    for (int64_t i = 0; i < b->addeds && !status; i++) {
        const struct added *a = &b->added[i];
        struct token *t = &b->token[a->id];
        struct bytes name = { b->text.at + t->name, t->n_name }, s = name;

        if (a->normalized)
            status = normalize(b, regex, &s, name, false, room);
        if (status || !s.n)
            continue;
        if (token_spans(b, a, name))
            b->cut_space = b->cut_line = false;
        trie_add(a->normalized ? &b->normal : &b->raw, s, (int32_t)i);
        if (s.at == name.at)
            continue;
        t->shown = b->text.n;            /* decoding it gives back what was found */
        t->n_shown = s.n;
        buffer_add(&b->text, s.at, s.n);
    }
    for (int i = 0; i < 3; i++)
        free(room[i].at);
    regex_room_close(regex);
    return status;
}

/* The longest token at p: its index in b->added, or -1. */
static int32_t longest(const struct trie *t, const unsigned char *p, const unsigned char *end, size_t *n)
{
    int32_t at = t->root[*p], found = -1;

    for (const unsigned char *q = p + 1; at; q++) {
        if (t->node[at].added >= 0) {
            found = t->node[at].added;
            *n = (size_t)(q - p);
        }
        if (q == end)
            break;
        at = t->node[at].child;
        while (at && t->node[at].byte != *q)
            at = t->node[at].sibling;
    }
    return found;
}

/* The character that ends just before p, 0 where there is none. */
static uint32_t before(const unsigned char *first, const unsigned char *p, int *n)
{
    uint32_t code;

    for (*n = 1; *n <= 4 && p - *n >= first; ++*n)
        if (utf8_read(p - *n, p, &code) == *n)
            return code;
    *n = 0;
    return 0;
}

static uint32_t after(const unsigned char *p, const unsigned char *end, int *n)
{
    uint32_t code = 0;

    *n = p < end ? utf8_read(p, end, &code) : 0;
    return *n ? code : 0;
}

/* \w of the tool that writes these files: letters, marks, digits, connectors, joiners. */
static bool is_word(uint32_t code)
{
    utf8proc_category_t k = utf8proc_category((int32_t)code);

    return code && ((k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) || k == UTF8PROC_CATEGORY_PC ||
                    code == 0x200C || code == 0x200D || (code >= 0x24B6 && code <= 0x24E9));
}

int32_t added_next(const struct bpe *b, struct added_walk *w)
{
    const struct trie *t = w->normalized ? &b->normal : &b->raw;
    const unsigned char *first = (const unsigned char *)w->text.at, *end = first + w->text.n, *p, *start, *stop;
    size_t n = 0;
    int k;

    for (p = first + w->from; t->n && p < end; p++) {
        int32_t i = t->root[*p] ? longest(t, p, end, &n) : -1;
        const struct added *a = &b->added[i < 0 ? 0 : i];

        if (i < 0)
            continue;
        start = p;
        stop = p + n;
        p = stop - 1;
        if (!w->control && bpe_is_control(b, a->id))
            continue;
        if (a->word && (is_word(before(first, start, &k)) || is_word(after(stop, end, &k))))
            continue;
        while (a->lstrip && start > first + w->taken && pretoken_class(before(first, start, &k)) == CHAR_SPACE && k)
            start -= k;
        while (a->rstrip && pretoken_class(after(stop, end, &k)) == CHAR_SPACE && k)
            stop += k;
        w->from = w->taken = (size_t)(stop - first);
        w->start = (size_t)(start - first);
        w->end = w->taken;
        return a->id;
    }
    return -1;
}
