/* utf8.h - characters out of bytes that may not be UTF-8 (RFC 3629: no overlong forms, no surrogates,
 * nothing above U+10FFFF). */
#ifndef UTF8_H
#define UTF8_H
#include "base.h"

/* Length of the character at p and its code point, or 0 when the byte at p starts none. p < end. */
static inline int utf8_read(const unsigned char *p, const unsigned char *end, uint32_t *code)
{
    static const uint32_t least[5] = { 0, 0, 0x80, 0x800, 0x10000 };
    uint32_t c = *p;
    int n = c < 0xC2 ? 0 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : c < 0xF5 ? 4 : 0;

    if (c < 0x80) {
        *code = c;
        return 1;
    }
    if (!n || end - p < n)
        return 0;
    c &= 0x7Fu >> n;
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xC0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3Fu);
    }
    if (c < least[n] || (c >= 0xD800 && c < 0xE000) || c > 0x10FFFF)
        return 0;
    *code = c;
    return n;
}

/* Writes code (a valid one) and returns its length, at most 4. */
static inline int utf8_write(char *out, uint32_t code)
{
    int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char lead[5] = { 0, 0, 0xC0, 0xE0, 0xF0 };

    for (int i = n - 1; i > 0; i--, code >>= 6)
        out[i] = (char)(0x80 | (code & 0x3F));
    out[0] = (char)(lead[n == 1 ? 0 : n] | code);
    return n;
}

/* Length of the longest valid beginning of text. */
static inline size_t utf8_valid(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    uint32_t code;

    while (p < end) {
        uint64_t eight;
        int k;

        while (end - p >= 8) {
            memcpy(&eight, p, 8);
            if (eight & 0x8080808080808080u)
                break;
            p += 8;
        }
        if (p == end || !(k = utf8_read(p, end, &code)))
            break;
        p += k;
    }
    return (size_t)(p - (const unsigned char *)text);
}

/* Length of the longest beginning of text in which no byte starts a character. */
static inline size_t utf8_invalid(const char *text, size_t n)
{
    const unsigned char *p = (const unsigned char *)text, *end = p + n;
    uint32_t code;

    while (p < end && !utf8_read(p, end, &code))
        p++;
    return (size_t)(p - (const unsigned char *)text);
}
#endif
