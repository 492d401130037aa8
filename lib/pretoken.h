/* pretoken.h - where text is cut into the pieces inside which byte pairs merge. */
#ifndef PRETOKEN_H
#define PRETOKEN_H
#include "base.h"
EXTERN_C_BEGIN

extern const char pretoken_gpt2[];       /* the regular expression that pretoken_piece is */

enum char_class { CHAR_OTHER, CHAR_LETTER, CHAR_NUMBER, CHAR_SPACE };
void            pretoken_init(void);     /* before any of the rest; may be called again, from any thread */
enum char_class pretoken_class(uint32_t code);      /* \p{L}, \p{N}, White_Space, or none of them */

/* Length of the first piece of the valid UTF-8 in [p, end), which is not empty. */
size_t pretoken_piece(const char *p, const char *end);
/* The last place in text[1..n) before a space, or before a newline, and after neither white space nor
 * U+2581; 0 when there is none. A piece always ends there. */
size_t pretoken_cut(const char *text, size_t n, bool space, bool line);

/* PCRE2 with Unicode classes; compiled once, shared by threads that each bring a regex_room. */
struct regex;
struct regex_room;
struct regex      *regex_open(const char *pattern, const char *name);    /* NULL with the reason */
void               regex_close(struct regex *r);
struct regex_room *regex_room_open(void);
void               regex_room_close(struct regex_room *room);
/* The first match in the valid UTF-8 text[0..n) that starts at or after `from`: 1 and its [*start, *end),
 * 0 none, -1 with the reason when PCRE2 gives up. */
int regex_find(const struct regex *r, struct regex_room *room, const char *text, size_t n, size_t from,
               size_t *start, size_t *end);

EXTERN_C_END
#endif
