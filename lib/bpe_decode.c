/* bpe_decode.c - ids to bytes. What a token looks like is worked out once, when the tokenizer is read;
 * decoding then copies, and holds back the beginning of a character until its end has come. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "utf8.h"

/* The decoder's steps: applied to each token in this order. */
struct shown {
    enum { SHOWN_BYTES, SHOWN_REPLACE, SHOWN_FALLBACK } kind[STEPS];
    struct buffer from[STEPS], to[STEPS];
    int  n;
    bool fused;
};

static int strip_read(struct bpe *b, const struct json *j, struct shown *s)
{
    const char *content = "";
    int64_t start = 0, stop = 0;

    if (json_string(j, "content", &content) < 0 || json_int(j, "start", &start) < 0 || json_int(j, "stop", &stop) < 0)
        return -1;
    if (!s->fused || strcmp(content, " ") || start != 1 || stop)
        return fail("%s: decoder: only a Strip of one space at the start, after Fuse, is supported", b->name);
    b->strip = true;
    return 0;
}

static int metaspace_read(struct bpe *b, const struct json *j, struct shown *s)
{
    const char *scheme = "always";
    bool legacy = true;

    if (component_string(b, j, "replacement", &s->from[s->n]) || json_bool(j, "add_prefix_space", &legacy) < 0)
        return -1;
    scheme = legacy ? scheme : "never";
    if (json_string(j, "prepend_scheme", &scheme) < 0)
        return -1;
    b->strip = strcmp(scheme, "never") != 0;
    buffer_add(&s->to[s->n], " ", 1);
    s->kind[s->n++] = SHOWN_REPLACE;
    return s->from[s->n - 1].n ? 0 : fail("%s: decoder: Metaspace without a replacement", b->name);
}

static int decoder_one(struct bpe *b, const struct json *j, const char *type)
{
    struct shown *s = b->shown;
    const struct json *pattern = json_at(j, "pattern");

    if (s->n == STEPS)
        return fail("%s: decoder: more than %d steps", b->name, STEPS);
    if (!strcmp(type, "Fuse")) {
        s->fused = true;
        return 0;
    }
    if (!strcmp(type, "Strip"))
        return strip_read(b, j, s);
    if (s->fused)
        return fail("%s: decoder: type \"%s\" after Fuse is not supported", b->name, type);
    if (!strcmp(type, "Metaspace"))
        return metaspace_read(b, j, s);
    if (!strcmp(type, "ByteLevel"))
        s->kind[s->n++] = SHOWN_BYTES;
    else if (!strcmp(type, "ByteFallback"))
        s->kind[s->n++] = SHOWN_FALLBACK;
    else if (!strcmp(type, "Replace") && json_is_object(pattern) && json_at(pattern, "String")) {
        s->kind[s->n] = SHOWN_REPLACE;
        if (component_string(b, pattern, "String", &s->from[s->n]) || component_string(b, j, "content", &s->to[s->n]))
            return -1;
        if (!s->from[s->n++].n)
            return fail("%s: decoder: an empty pattern", b->name);
    } else
        return fail("%s: decoder: type \"%s\" is not supported%s", b->name, type,
                    strcmp(type, "Replace") ? "" : " with this pattern");
    return 0;
}

/* GPT-2's alphabet back to bytes; a token with any other character stays as it is, as added ones do. */
static void show_bytes(struct buffer *out, struct bytes s)
{
    const unsigned char *p = (const unsigned char *)s.at, *end = p + s.n;

    while (p < end) {
        uint32_t code = 0;
        int k = utf8_read(p, end, &code);
        int32_t byte = k ? vocab_byte(code) : -1;

        if (byte < 0) {
            out->n = 0;
            buffer_add(out, s.at, s.n);
            return;
        }
        buffer_add(out, &(char){ (char)byte }, 1);
        p += k;
    }
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static struct bytes token_shown(const struct shown *s, struct bytes name, struct buffer two[2])
{
    for (int i = 0; i < s->n; i++) {
        struct buffer *to = &two[i & 1];
        const char *p = name.at;

        to->n = 0;
        if (s->kind[i] == SHOWN_BYTES)
            show_bytes(to, name);
        else if (s->kind[i] == SHOWN_REPLACE)
            replace_all(to, name, bytes_of(&s->from[i]), bytes_of(&s->to[i]));
        else if (name.n == 6 && !memcmp(p, "<0x", 3) && p[5] == '>' && hex(p[3]) >= 0 && hex(p[4]) >= 0) {
            buffer_add(to, &(char){ (char)(16 * hex(p[3]) + hex(p[4])) }, 1);
            return bytes_of(to);
        } else
            continue;
        name = bytes_of(to);
    }
    return name;
}

int decoder_read(struct bpe *b, const struct json *root)
{
    struct shown s = { .n = 0 };
    struct buffer two[2] = { { 0 }, { 0 } }, spelled = { 0 };
    int status;

    b->shown = &s;
    status = json_at(root, "decoder") ? component_each(b, json_at(root, "decoder"), "decoder", "decoders", decoder_one)
           : b->byte_level ? decoder_one(b, NULL, "ByteLevel") : 0;
    b->shown = NULL;
    for (int32_t id = 0; id < b->vocab && !status; id++) {
        struct token *t = &b->token[id];
        struct bytes shown;

        if (!t->n_shown) {
            t->shown = t->name;
            t->n_shown = t->n_name;
        }
        if (!t->used || ((t->flags & TOKEN_ADDED) && b->byte_level))
            continue;
        spelled.n = 0;
        buffer_add(&spelled, b->text.at + t->shown, t->n_shown);     /* b->text moves below */
        shown = token_shown(&s, bytes_of(&spelled), two);
        t->shown = b->text.n;
        t->n_shown = shown.n;
        buffer_add(&b->text, shown.at, shown.n);
    }
    for (int i = 0; i < STEPS; i++) {
        free(s.from[i].at);
        free(s.to[i].at);
    }
    free(two[0].at);
    free(two[1].at);
    free(spelled.at);
    return status;
}

void bpe_decoder_init(struct bpe_decoder *d, const struct bpe *b)
{
    *d = (struct bpe_decoder){ .bpe = b };
}

void bpe_decoder_free(struct bpe_decoder *d)
{
    free(d->at);
    *d = (struct bpe_decoder){ 0 };
}

/* Bytes at the end of [p, p + n) that begin a character without ending it. */
static size_t unfinished(const char *p, size_t n)
{
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        unsigned char c = (unsigned char)p[n - k];
        size_t whole = c < 0xC2 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 1;

        if ((c & 0xC0) == 0x80)
            continue;
        return whole > k ? k : 0;
    }
    return 0;
}

/* The held bytes lie at at[from..n); they move to the front before more is added. */
size_t bpe_decode(struct bpe_decoder *d, int32_t id, const char **bytes)
{
    const struct token *t = id >= 0 && id < d->bpe->vocab ? &d->bpe->token[id] : NULL;
    const char *s = t && t->used ? d->bpe->text.at + t->shown : "";
    size_t n = t && t->used ? t->n_shown : 0;

    if (d->n > d->from)
        memmove(d->at, d->at + d->from, d->n - d->from);
    d->n -= d->from;
    d->from = 0;
    if (n && !d->started && d->bpe->strip && *s == ' ') {
        s++;
        n--;
    }
    d->started = d->started || (t && t->n_shown);
    if (d->cap < d->n + n + 1)
        d->at = mem_grow(d->at, d->cap = 2 * (d->n + n) + 16, 1);
    memcpy(d->at + d->n, s, n);
    d->n += n;
    d->from = d->n - unfinished(d->at, d->n);
    *bytes = d->at;
    return d->from;
}

size_t bpe_decode_end(struct bpe_decoder *d, const char **bytes)
{
    size_t n = d->n - d->from;

    *bytes = d->at ? d->at + d->from : "";
    d->n = d->from = 0;
    d->started = false;
    return n;
}
