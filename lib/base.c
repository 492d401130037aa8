/* base.c - one way to complain, one way to get memory. */
#define _POSIX_C_SOURCE 200809L
#include "base.h"
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

static bool quiet, over;       /* over: what say_over wrote stands there without its newline */

/* One write per line, so that lines of several ranks do not mix. */
static void line(const char *head, const char *fmt, va_list ap)
{
    char text[2048];
    int n = snprintf(text, sizeof text, "%s", head);

    vsnprintf(text + n, sizeof text - (size_t)n, fmt, ap);
    fprintf(stderr, "%s%s\n", over ? "\n" : "", text);
    over = false;
}

int fail(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    line("error: ", fmt, ap);
    va_end(ap);
    return -1;
}

void warn(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    line("warning: ", fmt, ap);
    va_end(ap);
}

void say(const char *fmt, ...)
{
    va_list ap;

    if (quiet)
        return;
    va_start(ap, fmt);
    line("", fmt, ap);
    va_end(ap);
}

void say_quiet(bool on)
{
    quiet = on;
}

void say_over(const char *fmt, ...)
{
    char text[512];
    va_list ap;

    if (quiet || !isatty(STDERR_FILENO))
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "\r%s\033[K", text);
    over = true;
}

void bug_at(const char *file, int line_number, const char *fmt, ...)
{
    char head[256];
    va_list ap;

    snprintf(head, sizeof head, "BUG %s:%d: ", file, line_number);
    va_start(ap, fmt);
    line(head, fmt, ap);
    va_end(ap);
    abort();
}

static void *memory_or_exit(void *p, size_t n, size_t size)
{
    if (!p && n && size) {
        fail("out of memory: %zu x %zu bytes", n, size);
        exit(1);
    }
    return p;
}

void *mem_new(size_t n, size_t size)
{
    return memory_or_exit(calloc(n ? n : 1, size ? size : 1), n, size);
}

void *mem_grow(void *p, size_t n, size_t size)
{
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes))
        return memory_or_exit(NULL, n, size);
    return memory_or_exit(realloc(p, bytes ? bytes : 1), n, size);
}

bool str_format(char *out, size_t size, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(out, size, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < size)
        return true;
    if (size)
        out[0] = 0;
    return false;
}

double time_now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The kernel notes in clock ticks after its own start when a process began: the 22nd field of stat, the 20th
 * after the name, which is in brackets and may hold anything. */
double time_alive(void)
{
    char text[1024] = "", *at;
    struct timespec t = { 0 };
    FILE *f = fopen("/proc/self/stat", "r");
    double ticks = 0;

    if (f) {
        text[fread(text, 1, sizeof text - 1, f)] = 0;
        fclose(f);
    }
    at = strrchr(text, ')');
    for (int i = 0; at && i < 20; i++)
        at = strchr(at + 1, ' ');
    if (at)
        ticks = strtod(at, NULL);
    clock_gettime(CLOCK_BOOTTIME, &t);
    return ticks > 0 ? (double)t.tv_sec + 1e-9 * (double)t.tv_nsec - ticks / (double)sysconf(_SC_CLK_TCK) : 0;
}
