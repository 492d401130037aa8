/* json_text.c - the writing half of json.h: a growing text, and whole files that appear at once. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <unistd.h>

static void text_room(struct text *t, size_t more)
{
    size_t cap = t->cap ? t->cap : 256;

    while (cap - t->n <= more)                      /* one byte stays for the NUL */
        cap *= 2;
    if (cap != t->cap)
        t->at = mem_grow(t->at, cap, 1);
    t->cap = cap;
}

void text_add(struct text *t, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    REQUIRE(n >= 0);
    text_room(t, (size_t)n);
    va_start(ap, fmt);
    vsnprintf(t->at + t->n, t->cap - t->n, fmt, ap);
    va_end(ap);
    t->n += (size_t)n;
}

void text_string(struct text *t, const char *s, size_t n)
{
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";       /* byte, letter, byte, letter */

    text_room(t, 6 * n + 2);
    t->at[t->n++] = '"';
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        const char *pair = NULL;

        for (size_t k = 0; k + 1 < sizeof named && !pair; k += 2)
            if (named[k] == (char)c)
                pair = named + k;
        if (pair) {
            t->at[t->n++] = '\\';
            t->at[t->n++] = pair[1];
        } else if (c < 0x20)
            t->n += (size_t)snprintf(t->at + t->n, 7, "\\u%04x", c);
        else
            t->at[t->n++] = (char)c;
    }
    t->at[t->n++] = '"';
    t->at[t->n] = 0;
}

void text_real(struct text *t, double x)
{
    char s[40];

    if (!isfinite(x)) {
        text_add(t, "%s", isnan(x) ? "NaN" : x > 0 ? "Infinity" : "-Infinity");
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(s, sizeof s, "%.*g", digits, x);
        if (strtod(s, NULL) == x)
            break;
    }
    text_add(t, strpbrk(s, ".e") ? "%s" : "%s.0", s);                /* typed readers want a real */
}

void text_free(struct text *t)
{
    free(t->at);
    *t = (struct text){ 0 };
}

/* Reads until the end, so that a pipe is a file too. */
char *file_read(const char *path, size_t *n)
{
    struct stat st;
    size_t cap, used = 0;
    ssize_t got = 1;
    char *data = NULL;
    int fd = open(path, O_RDONLY);

    if (fd < 0 || fstat(fd, &st)) {
        fail("%s: %s", path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return NULL;
    }
    cap = st.st_size > 0 ? (size_t)st.st_size + 1 : 65536;
    data = mem_new(cap, 1);
    while (got > 0) {
        if (used + 1 >= cap)
            data = mem_grow(data, cap *= 2, 1);
        got = read(fd, data + used, cap - used - 1);
        if (got < 0 && errno == EINTR)
            got = 1;
        else if (got > 0)
            used += (size_t)got;
    }
    if (got < 0) {
        fail("%s: %s", path, strerror(errno));
        free(data);
        data = NULL;
    } else {
        data[used] = 0;
        *n = used;
    }
    close(fd);
    return data;
}

/* The directory entry must reach the disk too, else a crash brings the old name back. */
int file_sync_parent(const char *path)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + 1 : 1, fd, status;

    if (!str_format(dir, sizeof dir, "%.*s", n, slash ? path : "."))
        return fail("%s: path is too long", path);
    fd = open(dir, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        return fail("%s: %s", dir, strerror(errno));
    status = fsync(fd) ? fail("%s: %s", dir, strerror(errno)) : 0;
    close(fd);
    return status;
}

int dir_make(const char *path)
{
    char part[4096];
    size_t n = strlen(path);

    if (!str_format(part, sizeof part, "%s", path))
        return fail("%s: path is too long", path);
    for (size_t i = n > 0; i <= n; i++)
        if (i == n || part[i] == '/') {
            part[i] = 0;
            if (mkdir(part, 0777) && errno != EEXIST)
                return fail("%s: %s", path, strerror(errno));
            part[i] = path[i];
        }
    return 0;
}

int file_write(const char *path, const void *data, size_t n)
{
    char aside[4096];
    const char *p = data;
    int fd, status = 0;

    if (!str_format(aside, sizeof aside, "%s.tmp", path))
        return fail("%s: path is too long", path);
    fd = open(aside, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    if (fd < 0)
        return fail("%s: %s", aside, strerror(errno));
    while (n && !status) {
        ssize_t put = write(fd, p, n);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            status = fail("%s: %s", aside, strerror(errno));
        else {
            p += put;
            n -= (size_t)put;
        }
    }
    if (!status && fsync(fd))
        status = fail("%s: %s", aside, strerror(errno));
    if (close(fd) && !status)
        status = fail("%s: %s", aside, strerror(errno));
    if (!status && rename(aside, path))
        status = fail("%s: %s", path, strerror(errno));
    if (status)
        unlink(aside);
    return status ? status : file_sync_parent(path);
}
