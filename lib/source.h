/* source.h - bytes of a file, of standard input ("-"), and what gzip or zstd made of them. */
#ifndef SOURCE_H
#define SOURCE_H
#include "base.h"
EXTERN_C_BEGIN

struct source;

/* Compression is recognised by the first bytes, whatever the name. NULL with the reason on stderr. */
struct source *source_open(const char *path);
void           source_close(struct source *s);
/* Up to n bytes; 0 at the end, -1 with the reason (unreadable, torn, corrupt). */
int64_t        source_read(struct source *s, void *out, size_t n);
int64_t        source_taken(const struct source *s);      /* bytes read from the file so far */

EXTERN_C_END
#endif
