/* task_text.h - small changes to texts that several tasks make. */
#ifndef TASK_TEXT_H
#define TASK_TEXT_H
#include "json.h"
#include "score_text.h"
EXTERN_C_BEGIN

/* These free text; the caller frees the answer. */
char        *text_replaced(char *text, const char *from, const char *to);
char        *wikitext_page(char *text);
void         text_slice(struct text *t, struct slice s);
struct slice slice_strip(struct slice s);                                     /* str.strip() */

EXTERN_C_END
#endif
