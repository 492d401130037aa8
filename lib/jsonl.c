/* jsonl.c - a scanner for one JSON object. It checks what it walks over: strings, brackets, commas and
 * colons; a torn line never passes. Spelling of numbers and words inside other members is not its business. */
#include "jsonl.h"
#include "utf8.h"

enum { DEPTH = 512 };

struct scan {
    const char *p, *end;
    const char *wrong;
    int64_t     lone;
};

static const char torn[] = "the line ends inside a value";

static char peek(struct scan *s)
{
    while (s->p < s->end && (*s->p == ' ' || *s->p == '\t' || *s->p == '\r' || *s->p == '\n'))
        s->p++;
    return s->p < s->end ? *s->p : 0;
}

static bool wrong(struct scan *s, const char *what)
{
    if (!s->wrong)
        s->wrong = what;
    return false;
}

/* Steps over a string; [*from, *to) is between its quotes, *escaped whether that has a backslash. */
static bool string_skip(struct scan *s, const char **from, const char **to, bool *escaped)
{
    *escaped = false;
    *from = ++s->p;
    while (s->p < s->end && *s->p != '"') {
        if (*s->p == '\\') {
            *escaped = true;
            s->p++;
        }
        s->p++;
    }
    if (s->p >= s->end)
        return wrong(s, torn);
    *to = s->p++;
    return true;
}

/* A number or a word. */
static bool word_skip(struct scan *s)
{
    const char *first = s->p;

    while (s->p < s->end && !memchr(" \t\r\n,:[]{}\"", *s->p, 11))
        s->p++;
    return s->p > first || wrong(s, "expected a value");
}

/* Steps over any value. Brackets that are open are a stack of their closing halves. */
static bool value_skip(struct scan *s)
{
    char close[DEPTH];
    int depth = 0;
    const char *from, *to;
    bool escaped;

    do {
        char c = peek(s);

        if (!c)
            return wrong(s, torn);
        if (c == '"') {
            if (!string_skip(s, &from, &to, &escaped))
                return false;
        } else if (c == '{' || c == '[') {
            if (depth == DEPTH)
                return wrong(s, "brackets nested too deep");
            close[depth++] = c == '{' ? '}' : ']';
            s->p++;
        } else if (c == '}' || c == ']') {
            if (!depth || close[--depth] != c)
                return wrong(s, "brackets do not match");
            s->p++;
        } else if (c == ',' || c == ':') {
            if (!depth)
                return wrong(s, "expected a value");
            s->p++;
        } else if (!word_skip(s))
            return false;
    } while (depth);
    return true;
}

/* Four hexadecimal digits, or -1. */
static int32_t hex4(const char *p, const char *end)
{
    int32_t x = 0;

    if (end - p < 4)
        return -1;
    for (int i = 0; i < 4; i++) {
        char c = p[i] >= 'A' ? (char)(p[i] | 0x20) : p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;

        if (d < 0)
            return -1;
        x = 16 * x + d;
    }
    return x;
}

/* \uXXXX at p, with its second half if it has one. Returns how far it reaches, 0 when it is malformed. */
static int unicode(struct scan *s, const char *p, const char *end, uint32_t *code)
{
    int32_t high = hex4(p + 2, end), low;

    if (high < 0)
        return 0;
    *code = (uint32_t)high;
    if (high < 0xD800 || high > 0xDFFF)
        return 6;
    low = end - p >= 12 && p[6] == '\\' && p[7] == 'u' ? hex4(p + 8, end) : -1;
    if (high < 0xDC00 && low >= 0xDC00 && low <= 0xDFFF) {
        *code = 0x10000 + ((uint32_t)(high - 0xD800) << 10) + (uint32_t)(low - 0xDC00);
        return 12;
    }
    *code = 0xFFFD;
    s->lone++;
    return 6;
}

/* What [p, end) stands for, never longer than it is. */
static bool unescape(struct scan *s, const char *p, const char *end, struct jsonl *room, size_t *size)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char *out;

    if (room->cap < (size_t)(end - p))
        room->at = mem_grow(room->at, room->cap = 2 * (size_t)(end - p), 1);
    out = room->at;
    while (p < end) {
        const char *back = memchr(p, '\\', (size_t)(end - p)), *letter;
        size_t plain = (size_t)((back ? back : end) - p);
        uint32_t code = 0;
        int k;

        memcpy(out, p, plain);
        out += plain;
        p += plain;
        if (!back)
            break;
        if (p[1] == 'u') {
            k = unicode(s, p, end, &code);
            if (!k)
                return wrong(s, "a \\u without four hexadecimal digits");
            out += utf8_write(out, code);
            p += k;
        } else if (p[1] && (letter = strchr(from, p[1]))) {
            *out++ = to[letter - from];
            p += 2;
        } else
            return wrong(s, "an unknown escape in a string");
    }
    *size = (size_t)(out - room->at);
    return true;
}

/* One "key": value; sets *found when it is the field. */
static bool member(struct scan *s, const char *field, struct jsonl *room, const char **text, size_t *size,
                   bool *found)
{
    const char *from, *to;
    bool escaped, wanted;

    if (peek(s) != '"')
        return wrong(s, "expected a key in quotes");
    if (!string_skip(s, &from, &to, &escaped))
        return false;
    wanted = (size_t)(to - from) == strlen(field) && !memcmp(from, field, (size_t)(to - from));
    if (peek(s) != ':')
        return wrong(s, s->p < s->end ? "expected a colon after a key" : torn);
    s->p++;
    if (!wanted)
        return value_skip(s);
    if (*found)
        return wrong(s, "the field appears twice");
    *found = true;
    if (peek(s) != '"')
        return wrong(s, s->p < s->end ? "the field is not a string" : torn);
    if (!string_skip(s, &from, &to, &escaped))
        return false;
    *text = from;
    *size = (size_t)(to - from);
    if (!escaped)
        return true;
    if (!unescape(s, from, to, room, size))
        return false;
    *text = room->at;
    return true;
}

const char *jsonl_field(const char *line, size_t n, const char *field, struct jsonl *room,
                        const char **text, size_t *size, int64_t *lone)
{
    struct scan s = { .p = line, .end = line + n };
    bool found = false;

    if (peek(&s) != '{')
        return "expected a JSON object";
    s.p++;
    if (peek(&s) == '}')
        s.p++;
    else
        for (bool more = true; more; s.p++) {
            char c;

            if (!member(&s, field, room, text, size, &found))
                return s.wrong;
            c = peek(&s);
            if (c != ',' && c != '}')
                return s.p < s.end ? "expected a comma between members" : torn;
            more = c == ',';
        }
    if (peek(&s) || s.p < s.end)
        return "something follows the object";
    *lone += s.lone;
    return found ? NULL : "no such field";
}
