/* score_text.c - Python's idea of characters, from the Unicode tables of utf8proc. */
#include "score_text.h"
#include "utf8.h"
#include <utf8proc.h>

struct runes runes_of(const char *utf8)
{
    const unsigned char *p = (const unsigned char *)utf8, *end = p + strlen(utf8);
    struct runes r = { mem_new(strlen(utf8) + 1, sizeof *r.at), 0 };

    while (p < end) {
        uint32_t code = 0;
        int n = utf8_read(p, end, &code);

        if (!n && end - p > 1 && p[0] == 0xC0 && p[1] == 0x80)
            n = 2;                                    /* NUL, as json.h reads it */
        else if (!n)
            n = 1, code = 0xDC00u + *p;               /* Python's surrogateescape */
        r.at[r.n++] = code;
        p += n;
    }
    return r;
}

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT;
}

static bool is_case_ignorable(uint32_t c)
{
    static const uint32_t middle[] = { 0x27, 0x2E, 0x3A, 0xB7, 0x387, 0x55F, 0x5F4, 0x2018, 0x2019, 0x2024, 0x2027,
                                       0xFE13, 0xFE52, 0xFE55, 0xFF07, 0xFF0E, 0xFF1A };
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    for (size_t i = 0; i < LEN(middle); i++)
        if (c == middle[i])
            return true;
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
           k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK;
}

/* A capital sigma at i that ends a word becomes the final form. */
static bool sigma_is_final(struct runes r, int64_t i)
{
    int64_t before = i - 1, after = i + 1;

    while (before >= 0 && is_case_ignorable(r.at[before]))
        before--;
    while (after < r.n && is_case_ignorable(r.at[after]))
        after++;
    return before >= 0 && is_cased(r.at[before]) && (after == r.n || !is_cased(r.at[after]));
}

/* Simple mappings but for the two that are not: final sigma, and the dotted capital I, which becomes two. */
struct runes runes_lower(const char *utf8)
{
    struct runes r = runes_of(utf8), out = { mem_new((size_t)(2 * r.n + 1), sizeof *out.at), 0 };

    for (int64_t i = 0; i < r.n; i++)
        if (r.at[i] == 0x3A3)
            out.at[out.n++] = sigma_is_final(r, i) ? 0x3C2 : 0x3C3;
        else if (r.at[i] == 0x130) {
            out.at[out.n++] = 'i';
            out.at[out.n++] = 0x307;
        } else
            out.at[out.n++] = (uint32_t)utf8proc_tolower((utf8proc_int32_t)r.at[i]);
    free(r.at);
    return out;
}

struct slice slice_of(struct runes r)
{
    return (struct slice){ r.at, r.n };
}

bool rune_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool rune_is_digit(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_ND;
}

bool rune_is_word(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);

    return c == '_' || (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO);
}

bool rune_is_ascii_mark(uint32_t c)
{
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
}

bool slice_is(struct slice a, const char *ascii)
{
    if (a.n != (int64_t)strlen(ascii))
        return false;
    for (int64_t i = 0; i < a.n; i++)
        if (a.at[i] != (unsigned char)ascii[i])
            return false;
    return true;
}

int slice_order(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    int64_t n = x->n < y->n ? x->n : y->n;

    for (int64_t i = 0; i < n; i++)
        if (x->at[i] != y->at[i])
            return x->at[i] < y->at[i] ? -1 : 1;
    return x->n < y->n ? -1 : x->n > y->n;
}

void slices_add(struct slices *s, struct slice part)
{
    if (s->n == s->cap)
        s->at = mem_grow(s->at, (size_t)(s->cap = s->cap ? 2 * s->cap : 32), sizeof *s->at);
    s->at[s->n++] = part;
}

void slices_split(struct slices *out, struct slice text)
{
    for (int64_t i = 0, from = 0; i <= text.n; i++)
        if (i == text.n || rune_is_space(text.at[i])) {
            if (i > from)
                slices_add(out, (struct slice){ text.at + from, i - from });
            from = i + 1;
        }
}

void slices_split_at(struct slices *out, struct slice text, uint32_t mark)
{
    for (int64_t i = 0, from = 0; i <= text.n; i++)
        if (i == text.n || text.at[i] == mark) {
            slices_add(out, (struct slice){ text.at + from, i - from });
            from = i + 1;
        }
}
