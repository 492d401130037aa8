/* score_text.h - text as code points, with the notions of space, word, digit and case that Python's str has:
 * the official scores are what Python computed. Private to the score modules. */
#ifndef SCORE_TEXT_H
#define SCORE_TEXT_H
#include "base.h"
EXTERN_C_BEGIN

struct runes { uint32_t *at; int64_t n; };            /* code points; the caller frees at */
struct slice { const uint32_t *at; int64_t n; };      /* a part of runes */
struct slices { struct slice *at; int64_t n, cap; };

struct runes runes_of(const char *utf8);              /* a byte that is not UTF-8 is a code point of its own */
struct runes runes_lower(const char *utf8);           /* str.lower() of it */
struct slice slice_of(struct runes r);

bool rune_is_space(uint32_t c);                       /* str.isspace() */
bool rune_is_digit(uint32_t c);                       /* \d of a regex */
bool rune_is_word(uint32_t c);                        /* \w of a regex */
bool rune_is_ascii_mark(uint32_t c);                  /* string.punctuation */

bool slice_is(struct slice a, const char *ascii);
int  slice_order(const void *a, const void *b);       /* of two struct slice, for qsort */
void slices_add(struct slices *s, struct slice part);
void slices_split(struct slices *out, struct slice text);                     /* str.split() */
void slices_split_at(struct slices *out, struct slice text, uint32_t mark);   /* str.split(mark) */

EXTERN_C_END
#endif
