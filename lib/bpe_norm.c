/* bpe_norm.c - the normalizer: Unicode forms, a prefix, replacements.
 *
 * A Unicode form is computed only where it can differ from the text: between two characters that no
 * form changes, text may be cut, and NFC(a b) = NFC(a) NFC(b) when b begins with an ASCII character. */
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

/* Appends the form of valid text. */
static void form_add(struct buffer *out, const char *at, size_t n, int form)
{
    utf8proc_ssize_t cap = (utf8proc_ssize_t)n + 32, got;
    int32_t *code = NULL;

    do {
        code = mem_grow(code, (size_t)cap + 1, sizeof *code);
        got = utf8proc_decompose((const utf8proc_uint8_t *)at, (utf8proc_ssize_t)n, code, cap,
                                 (utf8proc_option_t)form);
        REQUIRE(got >= 0);
        if (got <= cap)
            break;
        cap = got;
    } while (true);
    got = utf8proc_reencode(code, got, (utf8proc_option_t)form);
    REQUIRE(got >= 0);
    buffer_add(out, (const char *)code, (size_t)got);
    free(code);
}

/* The lowest lead byte of a character that the form may change or join to the one before it. */
static unsigned char first_changed(int form)
{
    return form == (UTF8PROC_STABLE | UTF8PROC_COMPOSE) ? 0xCC : 0xC2;     /* U+0300: the first combining mark */
}

static void form_apply(struct buffer *out, struct bytes text, int form)
{
    const unsigned char *p = (const unsigned char *)text.at, *end = p + text.n, *done = p, *start, *q;
    unsigned char least = first_changed(form);
    uint32_t code;
    int k;

    while (p < end) {
        while (p < end && *p < least)
            p++;
        if (p == end)
            break;
        if (!utf8_read(p, end, &code)) {
            p++;
            continue;
        }
        start = p;                                    /* with the character before, which a mark may join */
        for (q = p; q > done && p - q < 4 && start == p; q--)
            if (utf8_read(q - 1, end, &code) == p - (q - 1))
                start = q - 1;
        for (q = p; q < end && *q >= 0x80 && (k = utf8_read(q, end, &code)); q += k)
            ;
        buffer_add(out, (const char *)done, (size_t)(start - done));
        form_add(out, (const char *)start, (size_t)(q - start), form);
        done = p = q;
    }
    buffer_add(out, (const char *)done, (size_t)(end - done));
}

static bool form_needed(struct bytes text, int form)
{
    unsigned char least = first_changed(form);

    for (size_t i = 0; i < text.n; i++)
        if ((unsigned char)text.at[i] >= least)
            return true;
    return false;
}

int normalize(const struct bpe *b, struct regex_room *room, struct bytes *out, struct bytes text,
              bool continues, struct buffer two[2])
{
    for (int i = 0; i < b->norms; i++) {
        const struct norm *step = &b->norm[i];
        struct buffer *to = &two[i & 1];

        to->n = 0;
        if (step->kind == NORM_FORM && !form_needed(text, step->form))
            continue;
        if (step->kind == NORM_PREPEND && (!text.n || continues))
            continue;
        if (step->kind == NORM_FORM)
            form_apply(to, text, step->form);
        else if (step->kind == NORM_PREPEND) {
            buffer_add(to, step->to.at, step->to.n);
            buffer_add(to, text.at, text.n);
        } else if (!step->regex)
            replace_all(to, text, (struct bytes){ step->from.at, step->from.n }, (struct bytes){ step->to.at, step->to.n });
        else if (replace_regex(to, room, text, step))
            return -1;
        text = (struct bytes){ to->at ? to->at : "", to->n };
    }
    *out = text;
    return 0;
}
