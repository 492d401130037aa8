/* pretoken_regex.c - regular expressions of tokenizer.json, compiled by PCRE2.
 *
 * They are written for Oniguruma in Ruby's syntax. Where the two agree on the spelling but not on the
 * meaning (\h) the expression is refused rather than misread; ^ and $ match at every line, as there. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "pretoken.h"
#include <pcre2.h>

struct regex {
    pcre2_code *code;
    char        name[256];               /* for messages */
};
struct regex_room {
    pcre2_match_data    *match;
    pcre2_match_context *context;
    pcre2_jit_stack     *stack;
};

struct regex *regex_open(const char *pattern, const char *name)
{
    PCRE2_UCHAR reason[128];
    PCRE2_SIZE at = 0;
    int error = 0;
    pcre2_code *code;
    struct regex *r;

    if (strstr(pattern, "\\h") || strstr(pattern, "\\H")) {
        fail("%s: regex \"%.80s\": \\h means different things to different engines", name, pattern);
        return NULL;
    }
    code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    if (!code) {
        pcre2_get_error_message(error, reason, sizeof reason);
        fail("%s: regex \"%.80s\": %s at %zu", name, pattern, (const char *)reason, (size_t)at);
        return NULL;
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);     /* where there is no JIT, the interpreter does */
    r = mem_new(1, sizeof *r);
    r->code = code;
    str_format(r->name, sizeof r->name, "%.255s", name);
    return r;
}

void regex_close(struct regex *r)
{
    if (!r)
        return;
    pcre2_code_free(r->code);
    free(r);
}

struct regex_room *regex_room_open(void)
{
    struct regex_room *room = mem_new(1, sizeof *room);

    room->match = pcre2_match_data_create(1, NULL);
    room->context = pcre2_match_context_create(NULL);
    room->stack = pcre2_jit_stack_create(32 * 1024, 4096 * 1024, NULL);
    if (room->match && room->context && room->stack) {
        pcre2_jit_stack_assign(room->context, NULL, room->stack);
        return room;
    }
    fail("out of memory for regular expressions");
    exit(1);
}

void regex_room_close(struct regex_room *room)
{
    if (!room)
        return;
    pcre2_match_data_free(room->match);
    pcre2_match_context_free(room->context);
    pcre2_jit_stack_free(room->stack);
    free(room);
}

/* The default, and the steps that going back over a long run of white space takes. */
static uint32_t match_limit(size_t n)
{
    return n < UINT32_MAX / 32 ? 10000000 + 16 * (uint32_t)n : UINT32_MAX;
}

int regex_find(const struct regex *r, struct regex_room *room, const char *text, size_t n, size_t from,
               size_t *start, size_t *end)
{
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(room->match);
    PCRE2_UCHAR reason[128];
    int found;

    pcre2_set_match_limit(room->context, match_limit(n));
    found = pcre2_match(r->code, (PCRE2_SPTR)text, n, from, PCRE2_NO_UTF_CHECK, room->match, room->context);

    if (found == PCRE2_ERROR_NOMATCH)
        return 0;
    if (found < 0) {
        pcre2_get_error_message(found, reason, sizeof reason);
        return fail("%s: a regex gives up: %s", r->name, (const char *)reason);
    }
    *start = at[0];
    *end = at[1];
    if (*end < *start)                               /* \K inside a lookahead */
        *end = *start;
    return 1;
}
