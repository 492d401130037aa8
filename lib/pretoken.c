/* pretoken.c - GPT-2's splitting expression by hand, because it is most of the time of tokenizing:
 *
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * In words: a contraction; else a run of letters, of numbers or of other characters, with the one
 * space before it; else white space, which leaves its last character to what follows. */
#define _POSIX_C_SOURCE 200809L
#include "pretoken.h"
#include "utf8.h"
#include <pthread.h>
#include <utf8proc.h>

const char pretoken_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

enum { CHAR_MANY = 4, CLASSED = 0x40000 };   /* a lead byte; no letter, number or space lies at or above */
static uint8_t class_of[CLASSED];
static uint8_t first_class[256];             /* of a byte: its class when ASCII, else CHAR_MANY */

/* White_Space of the Unicode database. */
static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

static void fill(void)
{
    for (int32_t c = 0; c < CLASSED; c++) {
        utf8proc_category_t k = utf8proc_category(c);

        class_of[c] = is_space((uint32_t)c) ? CHAR_SPACE :
                      k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO ? CHAR_LETTER :
                      k >= UTF8PROC_CATEGORY_ND && k <= UTF8PROC_CATEGORY_NO ? CHAR_NUMBER : CHAR_OTHER;
    }
    for (int c = 0; c < 256; c++)
        first_class[c] = c < 128 ? class_of[c] : CHAR_MANY;
}

void pretoken_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, fill);
}

enum char_class pretoken_class(uint32_t code)
{
    return code < CLASSED ? (enum char_class)class_of[code] : CHAR_OTHER;
}

static inline int class_at(const unsigned char *p, const unsigned char *end, int *length)
{
    uint32_t code = 0;

    *length = 1;
    if (first_class[*p] != CHAR_MANY)
        return first_class[*p];
    *length = utf8_read(p, end, &code);
    return (int)pretoken_class(code);
}

static inline const unsigned char *run(const unsigned char *p, const unsigned char *end, int class)
{
    int length;

    while (p < end) {
        if (first_class[*p] == class)
            p++;
        else if (first_class[*p] == CHAR_MANY && class_at(p, end, &length) == class)
            p += length;
        else
            break;
    }
    return p;
}

static size_t contraction(const unsigned char *p, const unsigned char *end)
{
    if (end - p < 2)
        return 0;
    if (p[1] == 's' || p[1] == 't' || p[1] == 'm' || p[1] == 'd')
        return 2;
    if (end - p >= 3 && ((p[1] == 'r' && p[2] == 'e') || (p[1] == 'v' && p[2] == 'e') || (p[1] == 'l' && p[2] == 'l')))
        return 3;
    return 0;
}

/* \s+(?!\S)|\s+ : all of it at the end of the text, else all but the last character. */
static size_t blanks(const unsigned char *p, const unsigned char *end)
{
    const unsigned char *q = run(p, end, CHAR_SPACE), *last = q;

    if (q == end)
        return (size_t)(q - p);
    while ((*--last & 0xC0) == 0x80)
        ;
    return (size_t)((last > p ? last : q) - p);
}

size_t pretoken_piece(const char *at, const char *stop)
{
    const unsigned char *p = (const unsigned char *)at, *end = (const unsigned char *)stop, *q = p;
    size_t short_form;
    int length, class;

    if (*p == '\'' && (short_form = contraction(p, end)))
        return short_form;
    if (*p == ' ' && end - p > 1)
        q = p + 1;
    class = class_at(q, end, &length);
    if (class == CHAR_SPACE)
        return blanks(p, end);
    return (size_t)(run(q + length, end, class) - p);
}

/* Whether the character that ends at p leaves a cut there: not white space, nor what stands for it. */
static bool cut_after(const unsigned char *first, const unsigned char *p)
{
    uint32_t code;

    for (int k = 1; k <= 4 && p - k >= first; k++)
        if (utf8_read(p - k, p, &code) == k)
            return pretoken_class(code) != CHAR_SPACE && code != 0x2581;
    return true;
}

size_t pretoken_cut(const char *text, size_t n, bool space, bool line)
{
    const unsigned char *first = (const unsigned char *)text;

    for (size_t i = n; i-- > 1 && (space || line);)
        if (((space && text[i] == ' ') || (line && text[i] == '\n')) && cut_after(first, first + i))
            return i;
    return 0;
}
