/* shard_write.c - a set of .pts files, written aside and published when all of it is on the disk.
 *
 * Every file is PREFIX_NNNNNN.pts.tmp until shard_finish, which renames the last one first and
 * number 0 at the end. So a killed run leaves no .pts; or, killed between two renames, it leaves
 * PREFIX_000000.pts.tmp beside them, and shard_open refuses a file that has this neighbour. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "shard.h"
#include "json.h"
#include "sha256.h"
#include "shard_format.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

enum { LIMIT = 100000000, LEVEL = 3 };

struct shard_writer {
    char     *prefix, *dir;
    struct shard_info info;
    uint8_t   tokenizer[32];
    int       lock;             /* descriptor of number 0, locked while the set is being written */
    int       fd, number;       /* of the file being written */
    bool      failed;
    int64_t   before;           /* tokens in the files already closed */
    int64_t   tokens, documents, frames, held;
    uint64_t  offset;           /* bytes written */
    uint64_t *at, *start;       /* frame and document index */
    int64_t   at_cap, start_cap;
    uint8_t  *frame, *packed;   /* `held` tokens wait in frame */
    ZSTD_CCtx *zstd;
};

static int file_name(const struct shard_writer *w, char out[4096], int number, bool aside)
{
    if (str_format(out, 4096, "%s_%06d.pts%s", w->prefix, number, aside ? ".tmp" : ""))
        return 0;
    return fail("%s: the path is too long", w->prefix);
}

static int write_all(struct shard_writer *w, const void *data, size_t n)
{
    const uint8_t *from = data;

    while (n) {
        ssize_t put = write(w->fd, from, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0) {
            w->failed = true;
            return fail("%s_%06d.pts.tmp: %s", w->prefix, w->number,
                        put < 0 ? strerror(errno) : "nothing written");
        }
        from += put;
        n -= (size_t)put;
        w->offset += (uint64_t)put;
    }
    return 0;
}

/* PREFIX_NNNNNN.pts in the directory refuse the set; PREFIX_NNNNNN.pts.tmp are left-overs. */
static int visit_set(const struct shard_writer *w, bool remove_aside)
{
    const char *slash = strrchr(w->prefix, '/'), *base = slash ? slash + 1 : w->prefix;
    size_t n = strlen(base);
    DIR *dir = opendir(w->dir);
    int status = 0;

    if (!dir)
        return fail("%s: %s", w->dir, strerror(errno));
    for (struct dirent *e; !status && (e = readdir(dir)); ) {
        const char *tail = e->d_name + n;
        char path[4096];
        if (strncmp(e->d_name, base, n) || *tail++ != '_' || strspn(tail, "0123456789") != 6)
            continue;
        tail += 6;
        if (!strcmp(tail, ".pts"))
            status = fail("%s/%s: exists; remove the set or choose another name", w->dir,
                          e->d_name);
        else if (remove_aside && !strcmp(tail, ".pts.tmp")
                 && strcmp(e->d_name + n, "_000000.pts.tmp")
                 && str_format(path, sizeof path, "%s/%s", w->dir, e->d_name)
                 && unlink(path) && errno != ENOENT)
            status = fail("%s: %s", path, strerror(errno));
    }
    closedir(dir);
    return status;
}

/* Makes the next file with a header of zeros, which no reader takes for a shard. */
static int begin_file(struct shard_writer *w)
{
    static const uint8_t zero[PTS_HEADER];
    char path[4096];

    if (w->number > PTS_NUMBER_MAX)
        return fail("%s: more than %d files; raise the limit of tokens in one", w->prefix,
                    PTS_NUMBER_MAX + 1);
    if (file_name(w, path, w->number, true))
        return -1;
    w->fd = w->number ? open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : dup(w->lock);
    if (w->fd < 0)
        return fail("%s: %s", path, strerror(errno));
    w->tokens = w->documents = w->frames = w->held = 0;
    w->offset = 0;
    return write_all(w, zero, sizeof zero);
}

static int end_frame(struct shard_writer *w)
{
    size_t bytes = (size_t)w->held * (size_t)w->info.width;
    size_t n = ZSTD_compress2(w->zstd, w->packed, ZSTD_compressBound(bytes), w->frame, bytes);

    if (ZSTD_isError(n))
        BUG("zstd: %s", ZSTD_getErrorName(n));
    if (w->frames + 2 > w->at_cap)
        w->at = mem_grow(w->at, (size_t)(w->at_cap = 2 * w->at_cap + 64), sizeof *w->at);
    w->at[w->frames++] = w->offset;
    w->held = 0;
    return write_all(w, w->packed, n);
}

static void fill_header(const struct shard_writer *w, uint8_t h[PTS_HEADER], uint64_t index,
                        bool last)
{
    memset(h, 0, PTS_HEADER);
    memcpy(h + PTS_AT_MAGIC, PTS_MAGIC, 8);
    put_u32(h + PTS_AT_VERSION, PTS_VERSION);
    put_u32(h + PTS_AT_WIDTH, (uint32_t)w->info.width);
    put_u64(h + PTS_AT_VOCAB, (uint64_t)w->info.vocab);
    put_u64(h + PTS_AT_EOT, (uint64_t)w->info.eot);
    memcpy(h + PTS_AT_TOKENIZER, w->tokenizer, 32);
    put_u64(h + PTS_AT_TOKENS, (uint64_t)w->tokens);
    put_u64(h + PTS_AT_DOCUMENTS, (uint64_t)w->documents);
    put_u64(h + PTS_AT_FRAMES, (uint64_t)w->frames);
    put_u32(h + PTS_AT_FRAME, (uint32_t)w->info.frame_tokens);
    put_u32(h + PTS_AT_NUMBER, (uint32_t)w->number);
    put_u64(h + PTS_AT_INDEX, index);
    put_u32(h + PTS_AT_LAST, last);
    put_u32(h + PTS_AT_MARKED, w->info.marked);
}

/* Indexes, trailer and, once these are written, the header; then all of it to the disk. */
static int end_file(struct shard_writer *w, bool last)
{
    uint8_t header[PTS_HEADER], trailer[PTS_TRAILER];
    size_t frames, documents = 8 * (size_t)w->documents;
    struct sha256 sum;
    int fd;

    if (w->held && end_frame(w))
        return -1;
    frames = 8 * ((size_t)w->frames + 1);
    w->at[w->frames] = w->offset;
    fill_header(w, header, w->offset, last);
    sha256_init(&sum);
    sha256_add(&sum, header, sizeof header);
    sha256_add(&sum, w->at, frames);
    sha256_end(&sum, trailer + PTS_TRAILER_INDEX);
    sha256_init(&sum);
    sha256_add(&sum, w->start, documents);
    sha256_end(&sum, trailer + PTS_TRAILER_DOCUMENTS);
    memcpy(trailer + PTS_TRAILER_MARK, PTS_MARK, 8);

    if (write_all(w, w->at, frames) || write_all(w, w->start, documents)
        || write_all(w, trailer, sizeof trailer))
        return -1;
    if (lseek(w->fd, 0, SEEK_SET) || write_all(w, header, sizeof header))
        return -1;
    fd = w->fd;
    w->fd = -1;
    if (fsync(fd)) {
        fail("%s_%06d.pts.tmp: %s", w->prefix, w->number, strerror(errno));
        close(fd);
        return -1;
    }
    if (close(fd))
        return fail("%s_%06d.pts.tmp: %s", w->prefix, w->number, strerror(errno));
    w->before += w->tokens;
    w->tokens = 0;
    w->number++;
    return 0;
}

static int read_hex(uint8_t out[32], const char *hex)
{
    static const char digit[] = "0123456789abcdef";

    for (int i = 0; i < 64; i++) {
        const char *d = hex[i] ? strchr(digit, hex[i]) : NULL;
        if (!d)
            return -1;
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | (d - digit));
    }
    return hex[64] ? -1 : 0;
}

static int check_info(struct shard_writer *w)
{
    struct shard_info *i = &w->info;
    int64_t most = i->marked ? 32768 : 65536;      /* of two bytes; a mark takes one bit */

    if (!w->prefix[0] || w->prefix[strlen(w->prefix) - 1] == '/')
        return fail("'%s': expected DIR/NAME, found a directory", w->prefix);
    if (i->vocab < 1 || i->vocab > INT32_MAX || i->eot < 0 || i->eot >= i->vocab)
        return fail("%s: separator %" PRId64 " is not in a vocabulary of %" PRId64, w->prefix,
                    i->eot, i->vocab);
    if (!i->width)
        i->width = i->vocab <= most ? 2 : 4;
    if ((i->width != 2 && i->width != 4) || (i->width == 2 && i->vocab > most))
        return fail("%s: a vocabulary of %" PRId64 " does not fit tokens of %d bytes", w->prefix,
                    i->vocab, i->width);
    if (i->tokenizer && i->tokenizer[0] && read_hex(w->tokenizer, i->tokenizer))
        return fail("%s: '%s' is not a sha256 in hex", w->prefix, i->tokenizer);
    if (!i->limit)
        i->limit = LIMIT;
    if (!i->frame_tokens)
        i->frame_tokens = SHARD_FRAME;
    if (i->limit < 1 || i->frame_tokens < 1 || i->frame_tokens > PTS_FRAME_MAX)
        return fail("%s: cannot write %" PRId64 " tokens in frames of %d", w->prefix, i->limit,
                    i->frame_tokens);
    return 0;
}

/* Number 0 carries the lock. It is emptied when the lock is ours and no file of the set exists. */
static int claim(struct shard_writer *w)
{
    char path[4096];

    if (file_name(w, path, 0, true) || visit_set(w, false))
        return -1;
    w->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (w->lock < 0)
        return fail("%s: %s", path, strerror(errno));
    if (flock(w->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        close(w->lock);
        w->lock = -1;
        return fail("%s: another process is writing this set", w->prefix);
    }
    if (visit_set(w, true)) {       /* published meanwhile: leave nothing beside that set */
        unlink(path);
        return -1;
    }
    return ftruncate(w->lock, 0) ? fail("%s: %s", path, strerror(errno)) : 0;
}

static void writer_free(struct shard_writer *w)
{
    if (w->fd >= 0)
        close(w->fd);
    if (w->lock >= 0)
        close(w->lock);
    ZSTD_freeCCtx(w->zstd);
    free(w->prefix);
    free(w->dir);
    free(w->at);
    free(w->start);
    free(w->frame);
    free(w->packed);
    free(w);
}

struct shard_writer *shard_create(const char *prefix, const struct shard_info *info)
{
    struct shard_writer *w = mem_new(1, sizeof *w);
    const char *slash = strrchr(prefix, '/');
    size_t dir = slash == prefix ? 1 : slash ? (size_t)(slash - prefix) : 0;
    size_t n = strlen(prefix), bytes;

    w->info = *info;
    w->fd = w->lock = -1;
    w->prefix = memcpy(mem_new(n + 1, 1), prefix, n);
    w->dir = memcpy(mem_new(dir + 2, 1), dir ? prefix : ".", dir ? dir : 1);
    if (check_info(w) || dir_make(w->dir)) {
        writer_free(w);
        return NULL;
    }
    bytes = (size_t)w->info.frame_tokens * (size_t)w->info.width;
    w->frame = mem_new(bytes, 1);
    w->packed = mem_new(ZSTD_compressBound(bytes), 1);
    w->at = mem_new((size_t)(w->at_cap = 64), sizeof *w->at);
    w->start = mem_new((size_t)(w->start_cap = 64), sizeof *w->start);
    w->zstd = ZSTD_createCCtx();
    REQUIRE(w->zstd);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_compressionLevel, LEVEL);
    ZSTD_CCtx_setParameter(w->zstd, ZSTD_c_checksumFlag, 1);
    if (claim(w)) {
        writer_free(w);
        return NULL;
    }
    if (begin_file(w)) {
        shard_abort(w);
        return NULL;
    }
    return w;
}

/* A separator is never marked: it begins a document wherever it stands. */
static int add_token(struct shard_writer *w, int32_t id, bool context)
{
    uint32_t mark = context && id != w->info.eot ? w->info.width == 2 ? 0x8000u : 0x80000000u : 0;


    if (id == w->info.eot) {
        if (w->documents == w->start_cap)
            w->start = mem_grow(w->start, (size_t)(w->start_cap *= 2), sizeof *w->start);
        w->start[w->documents++] = (uint64_t)w->tokens;
    }
    if (w->info.width == 2)
        ((uint16_t *)w->frame)[w->held++] = (uint16_t)((uint32_t)id | mark);
    else
        ((uint32_t *)w->frame)[w->held++] = (uint32_t)id | mark;
    w->tokens++;
    return w->held == w->info.frame_tokens ? end_frame(w) : 0;
}

static int check_ids(struct shard_writer *w, const int32_t *ids, int64_t n)
{
    if (w->failed)
        return -1;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= w->info.vocab) {
            w->failed = true;
            return fail("%s: token %" PRId64 " of a document is %d, expected an id below %" PRId64,
                        w->prefix, i, (int)ids[i], w->info.vocab);
        }
    return 0;
}

static int add_ids(struct shard_writer *w, const int32_t *ids, int64_t n, bool context)
{
    for (int64_t i = 0; i < n; i++)
        if (add_token(w, ids[i], context))
            return -1;
    return 0;
}

static int add_document(struct shard_writer *w, const int32_t *ids, int64_t n, bool context)
{
    if (check_ids(w, ids, n))
        return -1;
    if (w->tokens >= w->info.limit && (end_file(w, false) || begin_file(w))) {
        w->failed = true;
        return -1;
    }
    return add_token(w, (int32_t)w->info.eot, false) || add_ids(w, ids, n, context) ? -1 : 0;
}

int shard_document(struct shard_writer *w, const int32_t *ids, int64_t n)
{
    return add_document(w, ids, n, false);
}

int shard_prompt(struct shard_writer *w, const int32_t *ids, int64_t n)
{
    REQUIRE(w->info.marked);
    return add_document(w, ids, n, true);
}

int shard_append(struct shard_writer *w, const int32_t *ids, int64_t n)
{
    REQUIRE(shard_written(w));
    return check_ids(w, ids, n) || add_ids(w, ids, n, false) ? -1 : 0;
}

int64_t shard_written(const struct shard_writer *w)
{
    return w->before + w->tokens;
}

static int sync_directory(const struct shard_writer *w)
{
    int fd = open(w->dir, O_RDONLY | O_CLOEXEC), status = 0;

    if (fd < 0)
        return fail("%s: %s", w->dir, strerror(errno));
    if (fsync(fd) && errno != EINVAL && errno != EROFS)     /* where directories cannot be synced */
        status = fail("%s: %s", w->dir, strerror(errno));
    close(fd);
    return status;
}

static int publish(const struct shard_writer *w)
{
    char aside[4096], path[4096];

    for (int i = w->number - 1; i >= 0; i--) {
        if (!i && sync_directory(w))
            return -1;
        if (file_name(w, aside, i, true) || file_name(w, path, i, false))
            return -1;
        if (rename(aside, path))
            return fail("%s: cannot be renamed to %s: %s", aside, path, strerror(errno));
    }
    return sync_directory(w);
}

int shard_finish(struct shard_writer *w)
{
    if (!w->failed && !shard_written(w))
        w->failed = fail("%s: no documents, nothing to write", w->prefix);
    if (w->failed || end_file(w, true) || publish(w)) {
        shard_abort(w);
        return -1;
    }
    writer_free(w);
    return 0;
}

/* Also files already renamed: there were none of this set before it was claimed. */
void shard_abort(struct shard_writer *w)
{
    char path[4096];

    if (!w)
        return;
    for (int i = w->number; i >= 0; i--)
        for (int aside = 0; aside < 2; aside++)
            if (!file_name(w, path, i, aside))
                unlink(path);
    writer_free(w);
}
