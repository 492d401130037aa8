/* base.h - errors, talk, memory and the few macros everybody needs. Includes nothing of ours.
 *
 * The world's fault (files, arguments, shards): `return fail("FILE: expected X, found Y")`, and the
 * caller unwinds. Our fault: BUG. Only cmd/ chooses an exit status. */
#ifndef BASE_H
#define BASE_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef __cplusplus
#define EXTERN_C_BEGIN extern "C" {
#define EXTERN_C_END }
#define NORETURN [[noreturn]]
#else
#define EXTERN_C_BEGIN
#define EXTERN_C_END
#define NORETURN _Noreturn
#endif
#define PRINTF(f, a) __attribute__((format(printf, f, a)))
#define LEN(a) (sizeof(a) / sizeof *(a))

EXTERN_C_BEGIN

/* One line on stderr, "error: ...". Always returns -1. */
int  fail(const char *fmt, ...) PRINTF(1, 2);
void warn(const char *fmt, ...) PRINTF(1, 2);       /* "warning: ..." */
void say(const char *fmt, ...) PRINTF(1, 2);        /* talk on stderr; silent after say_quiet(true) */
void say_quiet(bool quiet);
/* Talk that the next of it overwrites, for progress; only on a terminal. Any other line goes below it. */
void say_over(const char *fmt, ...) PRINTF(1, 2);

NORETURN void bug_at(const char *file, int line, const char *fmt, ...) PRINTF(3, 4);
#define BUG(...) bug_at(__FILE__, __LINE__, __VA_ARGS__)
#define REQUIRE(cond) do { if (!(cond)) BUG("requires %s", #cond); } while (0)

/* Zeroed memory for n objects. Never NULL: when there is none it says how much was asked and ends
 * the process with status 1, so sizes that come from a file are checked against the file first.
 * The caller frees with free(). */
void *mem_new(size_t n, size_t size);
void *mem_grow(void *p, size_t n, size_t size);     /* realloc with the same promise; the new part is not zeroed */

/* snprintf into a fixed buffer that must fit; false (and an empty string) when it does not. */
bool str_format(char *out, size_t size, const char *fmt, ...) PRINTF(3, 4);

double time_now(void);                              /* seconds of a monotonic clock */
double time_alive(void);                            /* since this process began, loading of libraries included */

EXTERN_C_END
#endif
