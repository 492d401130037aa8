/* scratch.h - for tests of files: a directory that goes away, what was said on stderr, and whether two
 * files hold the same tensors. */
#ifndef SCRATCH_H
#define SCRATCH_H
#include "test.h"

extern char scratch_root[];
void        scratch_open(void);
void        scratch_close(void);
const char *scratch(const char *name);              /* a path inside; the last eight stay valid */
void        scratch_sweep(const char *dir);         /* deletes a tree */
bool        scratch_write(const char *path, const char *text);
bool        scratch_copy(const char *from, const char *to);
bool        scratch_same(const char *a, const char *b);

/* Between the two, stderr is caught; the second says whether every one of three words was in it. */
void scratch_listen(void);
bool scratch_heard(const char *a, const char *b, const char *c);
#endif
