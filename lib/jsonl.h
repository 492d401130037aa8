/* jsonl.h - one string out of a line of JSON, NUL bytes and all, without building a tree. */
#ifndef JSONL_H
#define JSONL_H
#include "base.h"
EXTERN_C_BEGIN

/* Room for what escapes stand for; starts as { 0 }, the caller frees at. */
struct jsonl { char *at; size_t cap; };

/* Finds the member `field` of the object that line[0..n) is. *text points into the line when the string
 * has no escapes, else into room. A surrogate without its partner becomes U+FFFD and is counted in
 * *lone. NULL, or what is wrong with the line. */
const char *jsonl_field(const char *line, size_t n, const char *field, struct jsonl *room,
                        const char **text, size_t *size, int64_t *lone);

EXTERN_C_END
#endif
