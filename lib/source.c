/* source.c - one loop for plain, gzip and zstd input: a compressed file may be several streams one after
 * the other, and one that ends in the middle of a stream is an error, not an end. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "source.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

enum { CHUNK = 256 * 1024 };

struct source {
    char    *path;
    enum { PLAIN, GZIP, ZSTD } kind;
    int      fd;
    bool     ended;                      /* no more bytes in the file */
    bool     within;                     /* a compressed stream has begun and not ended */
    bool     failed;
    int64_t  taken;
    uint8_t *chunk;
    size_t   at, n;                      /* chunk[at..n) waits */
    z_stream gz;
    ZSTD_DStream *zstd;
};

/* Fills the chunk when it is empty. */
static int refill(struct source *s)
{
    ssize_t got;

    if (s->at < s->n || s->ended)
        return 0;
    s->at = s->n = 0;
    do
        got = read(s->fd, s->chunk, CHUNK);
    while (got < 0 && errno == EINTR);
    if (got < 0)
        return fail("%s: %s", s->path, strerror(errno));
    s->ended = got == 0;
    s->n = (size_t)got;
    s->taken += got;
    return 0;
}

/* The first bytes may come from a pipe, a few at a time. */
static int recognise(struct source *s)
{
    static const uint8_t gzip[] = { 0x1F, 0x8B }, zstd[] = { 0x28, 0xB5, 0x2F, 0xFD };

    while (s->n < 4 && !s->ended) {
        ssize_t got = read(s->fd, s->chunk + s->n, CHUNK - s->n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return fail("%s: %s", s->path, strerror(errno));
        s->ended = got == 0;
        s->n += (size_t)got;
        s->taken += got;
    }
    if (s->n >= 2 && !memcmp(s->chunk, gzip, 2)) {
        s->kind = GZIP;
        if (inflateInit2(&s->gz, 15 + 16) != Z_OK)
            return fail("%s: no memory for gzip", s->path);
    } else if (s->n >= 4 && !memcmp(s->chunk, zstd, 4)) {
        s->kind = ZSTD;
        s->zstd = ZSTD_createDStream();
        if (!s->zstd)
            return fail("%s: no memory for zstd", s->path);
    }
    return 0;
}

struct source *source_open(const char *path)
{
    struct source *s = mem_new(1, sizeof *s);
    bool standard = !strcmp(path, "-");
    const char *name = standard ? "standard input" : path;
    size_t n = strlen(name) + 1;

    s->path = memcpy(mem_new(n, 1), name, n);
    s->chunk = mem_new(CHUNK, 1);
    s->fd = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    if (s->fd < 0)
        fail("%s: %s", path, strerror(errno));
    else if (!recognise(s))
        return s;
    source_close(s);
    return NULL;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    if (s->fd > STDIN_FILENO)
        close(s->fd);
    if (s->kind == GZIP)
        inflateEnd(&s->gz);
    ZSTD_freeDStream(s->zstd);
    free(s->chunk);
    free(s->path);
    free(s);
}

int64_t source_taken(const struct source *s)
{
    return s->taken;
}

/* Each takes what waits in the chunk and gives up to n bytes; -1 when it cannot be. */
static int64_t plain(struct source *s, uint8_t *out, size_t n)
{
    size_t k = s->n - s->at < n ? s->n - s->at : n;

    memcpy(out, s->chunk + s->at, k);
    s->at += k;
    return (int64_t)k;
}

static int64_t gunzip(struct source *s, uint8_t *out, size_t n)
{
    int code;

    if (!s->within && inflateReset(&s->gz) != Z_OK)
        return fail("%s: gzip fails", s->path);
    s->within = true;
    s->gz.next_in = s->chunk + s->at;
    s->gz.avail_in = (uInt)(s->n - s->at);
    s->gz.next_out = out;
    s->gz.avail_out = n < CHUNK ? (uInt)n : CHUNK;
    code = inflate(&s->gz, Z_NO_FLUSH);
    n = (size_t)(s->gz.next_out - out);
    s->at = s->n - s->gz.avail_in;
    if (code == Z_STREAM_END)
        s->within = false;
    else if (code != Z_OK && code != Z_BUF_ERROR)
        return fail("%s: not valid gzip data near byte %lld: %s", s->path,
                    (long long)(s->taken - (int64_t)(s->n - s->at)), s->gz.msg ? s->gz.msg : "corrupt");
    return (int64_t)n;
}

static int64_t unzstd(struct source *s, uint8_t *out, size_t n)
{
    ZSTD_inBuffer in = { s->chunk + s->at, s->n - s->at, 0 };
    ZSTD_outBuffer to = { out, n, 0 };
    size_t left = ZSTD_decompressStream(s->zstd, &to, &in);

    s->at += in.pos;
    if (ZSTD_isError(left))
        return fail("%s: not valid zstd data near byte %lld: %s", s->path,
                    (long long)(s->taken - (int64_t)(s->n - s->at)), ZSTD_getErrorName(left));
    s->within = left != 0;
    return (int64_t)to.pos;
}

/* A decompressor may still hold output when the file is at its end; only when it has none is a stream
 * that goes on a torn one. */
int64_t source_read(struct source *s, void *out, size_t n)
{
    int64_t got = 0;

    REQUIRE(n);
    while (!got && !s->failed) {
        bool last;

        if (refill(s)) {
            s->failed = true;
            break;
        }
        last = s->at == s->n && s->ended;
        if (last && !s->within)
            return 0;
        got = s->kind == GZIP ? gunzip(s, out, n) : s->kind == ZSTD ? unzstd(s, out, n) : plain(s, out, n);
        if (!got && last)
            got = fail("%s: the compressed data ends too early", s->path);
        s->failed = got < 0;
    }
    return s->failed ? -1 : got;
}
