/* bpe_norm.c - the normalizer: Unicode forms, a prefix, replacements.
 *
 * A Unicode form is computed only where it can differ from the text: NFC(a b) = NFC(a) NFC(b) when b
 * begins with a character that joins none before it, and most characters do not. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "utf8.h"
#include <utf8proc.h>

void replace_all(struct buffer *out, struct bytes text, struct bytes from, struct bytes to)
{
    const char *p = text.at, *end = p + text.n, *hit;

    while ((size_t)(end - p) >= from.n && (hit = memchr(p, from.at[0], (size_t)(end - p) - from.n + 1))) {
        bool same = !memcmp(hit, from.at, from.n);

        buffer_add(out, p, (size_t)(hit - p));
        buffer_add(out, same ? to.at : hit, same ? to.n : 1);
        p = hit + (same ? from.n : 1);
    }
    buffer_add(out, p, (size_t)(end - p));
}

/* Matches do not reach across bytes that are not UTF-8. */
static int replace_regex(struct buffer *out, struct regex_room *room, struct bytes text, const struct norm *step)
{
    for (size_t at = 0; at < text.n;) {
        const char *p = text.at + at;
        size_t n = utf8_valid(p, text.n - at), from = 0, done = 0, start, end;
        int found = 0;

        while (from <= n && (found = regex_find(step->regex, room, p, n, from, &start, &end)) > 0) {
            buffer_add(out, p + done, start - done);
            buffer_add(out, step->to.at, step->to.n);
            done = end;
            from = end > start ? end : end + 1;
            while (from < n && ((unsigned char)p[from] & 0xC0) == 0x80)
                from++;
        }
        if (found < 0)
            return -1;
        buffer_add(out, p + done, n - done);
        at += n;
        n = utf8_invalid(text.at + at, text.n - at);
        buffer_add(out, text.at + at, n);
        at += n;
    }
    return 0;
}

static int combining(int32_t code)
{
    return utf8proc_get_property(code)->combining_class;
}

/* Canonical order: a run of marks by combining class, equal ones as they came. Text can be one long
 * run, so counting, in room behind the text, does what insertion would need the square of its length for. */
static void order(int32_t *code, size_t n, int32_t *room)
{
    for (size_t i = 0, end; i < n; i = end + 1) {
        size_t count[257] = { 0 };

        for (end = i; end < n && combining(code[end]); end++)
            count[combining(code[end]) + 1]++;
        if (end - i < 2)
            continue;
        for (int k = 1; k <= 256; k++)
            count[k] += count[k - 1];
        for (size_t k = i; k < end; k++)
            room[count[combining(code[k])]++] = code[k];
        memcpy(code + i, room, (end - i) * sizeof *code);
    }
}

/* Appends the form of valid text. */
static void form_add(struct buffer *out, struct buffer *room, const unsigned char *at, size_t n, int form)
{
    const unsigned char *end = at + n;
    size_t cap = 0, k = 0;
    utf8proc_ssize_t got;
    uint32_t letter = 0;
    int32_t *code = NULL;
    int boundary = 0;

    for (; at < end; at += utf8_read(at, end, &letter)) {
        utf8_read(at, end, &letter);
        if (cap - k < 32) {                          /* more than any character becomes */
            cap = 2 * cap + n + 32;
            if (room->cap < 2 * cap * sizeof *code)
                room->at = mem_grow(room->at, room->cap = 2 * cap * sizeof *code, 1);
            code = (int32_t *)(void *)room->at;
        }
        got = utf8proc_decompose_char((int32_t)letter, code + k, (utf8proc_ssize_t)(cap - k),
                                      (utf8proc_option_t)form, &boundary);
        REQUIRE(got >= 0 && (size_t)got <= cap - k);
        k += (size_t)got;
    }
    order(code, k, code + cap);
    got = utf8proc_reencode(code, (utf8proc_ssize_t)k, (utf8proc_option_t)form);
    REQUIRE(got >= 0);
    buffer_add(out, room->at, (size_t)got);
}

/* Whether a form leaves the character alone and never joins it to the one before. For NFC this is
 * its quick check: what it may change has a decomposition, is a mark, or is a conjoining Hangul letter. */
static bool inert(uint32_t code, int form)
{
    const utf8proc_property_t *p;

    if (form != (UTF8PROC_STABLE | UTF8PROC_COMPOSE))
        return code < 0x80;
    if (code < 0x300)
        return true;
    p = utf8proc_get_property((int32_t)code);
    return !p->combining_class && p->decomp_seqindex == UINT16_MAX && !(code >= 0x1100 && code < 0x1200) &&
           !(p->category >= UTF8PROC_CATEGORY_MN && p->category <= UTF8PROC_CATEGORY_ME);
}

/* Appends the form of text; only what lies between inert characters is computed, with the one before it. */
static void form_apply(struct buffer *out, struct buffer *room, struct bytes text, int form)
{
    const unsigned char *p = (const unsigned char *)text.at, *end = p + text.n, *done = p, *before = p, *q;
    uint32_t code = 0;

    while (p < end) {
        int k = *p < 0x80 ? 1 : utf8_read(p, end, &code);

        if (*p < 0x80 || (k && inert(code, form))) {
            before = p;
            p += k;
            continue;
        }
        if (!k) {
            before = ++p;
            continue;
        }
        for (q = p; q < end && *q >= 0x80 && (k = utf8_read(q, end, &code)) && !inert(code, form); q += k)
            ;
        buffer_add(out, (const char *)done, (size_t)(before - done));
        form_add(out, room, before, (size_t)(q - before), form);
        done = p = before = q;
    }
    buffer_add(out, (const char *)done, (size_t)(end - done));
}

/* The lowest byte of a character that is not inert. */
static bool form_needed(struct bytes text, int form)
{
    unsigned char least = form == (UTF8PROC_STABLE | UTF8PROC_COMPOSE) ? 0xCC : 0x80;

    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char)text.at[i] >= least)
            return true;
    return false;
}

int normalize(const struct bpe *b, struct regex_room *regex, struct bytes *out, struct bytes text,
              bool continues, struct buffer room[3])
{
    for (int i = 0; i < b->norms; i++) {
        const struct norm *step = &b->norm[i];
        struct buffer *to = &room[i & 1];

        to->n = 0;
        if (step->kind == NORM_FORM && !form_needed(text, step->form))
            continue;
        if (step->kind == NORM_PREPEND && (!text.n || continues))
            continue;
        if (step->kind == NORM_FORM)
            form_apply(to, &room[2], text, step->form);
        else if (step->kind == NORM_PREPEND) {
            buffer_add(to, step->to.at, step->to.n);
            buffer_add(to, text.at, text.n);
        } else if (!step->regex)
            replace_all(to, text, bytes_of(&step->from), bytes_of(&step->to));
        else if (replace_regex(to, regex, text, step))
            return -1;
        text = bytes_of(to);
    }
    *out = text;
    return 0;
}
