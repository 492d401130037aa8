/* shard.c - opening files of token ids: no size is believed before it is compared with the file. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "shard.h"
#include "sha256.h"
#include "shard_format.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

enum {
    BIN_MAGIC  = 20240520,      /* llm.c: 256 int32 of header, then uint16 tokens of GPT-2 */
    BIN_HEADER = 1024,
    BIN_EOT    = 50256,
    FD_KEPT    = 512            /* descriptors from here on are closed between reads */
};

static int open_file(struct shard *s, struct stat *st)
{
    int fd;

    if (stat(s->path, st))
        return fail("%s: %s", s->path, strerror(errno));
    if (!S_ISREG(st->st_mode))
        return fail("%s: expected a file, found %s", s->path,
                    S_ISDIR(st->st_mode) ? "a directory" : "something else");
    fd = open(s->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail("%s: %s", s->path, strerror(errno));
    if (fstat(fd, st)) {
        close(fd);
        return fail("%s: %s", s->path, strerror(errno));
    }
    return fd;
}

static int reopen(struct shard *s)
{
    struct stat st;
    int fd = open_file(s, &st);

    if (fd < 0)
        return -1;
    if (st.st_size != s->size || (uint64_t)st.st_dev != s->device
        || (uint64_t)st.st_ino != s->inode) {
        close(fd);
        return fail("%s: replaced while in use: expected %" PRId64 " bytes, found %lld", s->path,
                    s->size, (long long)st.st_size);
    }
    return fd;
}

int shard_bytes(struct shard *s, void *out, size_t n, uint64_t offset)
{
    uint8_t *to = out;
    int fd = s->fd, status = 0;

    REQUIRE(offset <= (uint64_t)s->size && n <= (uint64_t)s->size - offset);
    if (s->memory) {
        memcpy(out, s->memory + offset, n);
        return 0;
    }
    if (fd < 0 && (fd = reopen(s)) < 0)
        return -1;
    while (n) {
        ssize_t got = pread(fd, to, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            status = got < 0
                ? fail("%s: %s", s->path, strerror(errno))
                : fail("%s: cut while in use: expected %" PRId64 " bytes, found %" PRIu64, s->path,
                       s->size, offset);
            break;
        }
        to += got;
        n -= (size_t)got;
        offset += (uint64_t)got;
    }
    if (s->fd < 0)
        close(fd);
    return status;
}

/* Frame k is at[k] .. at[k + 1]; none is longer than zstd makes a frame of such tokens. */
static int check_frames(struct shard *s, uint64_t index)
{
    size_t most = ZSTD_compressBound((size_t)s->frame_tokens * (size_t)s->width);

    if (s->at[0] != PTS_HEADER)
        return fail("%s: expected the first frame at byte %d, found %" PRIu64, s->path, PTS_HEADER,
                    s->at[0]);
    for (int64_t k = 0; k < s->frames; k++)
        if (s->at[k + 1] <= s->at[k] || s->at[k + 1] - s->at[k] > most)
            return fail("%s: expected frame %" PRId64 " to take 1 to %zu bytes, found %" PRId64,
                        s->path, k, most, (int64_t)(s->at[k + 1] - s->at[k]));
    if (s->at[s->frames] != index)
        return fail("%s: expected the frames to end at byte %" PRIu64 ", found %" PRIu64, s->path,
                    index, s->at[s->frames]);
    return 0;
}

static int read_index(struct shard *s, const uint8_t *header, uint64_t index)
{
    uint8_t trailer[PTS_TRAILER], digest[32];
    size_t bytes = 8 * ((size_t)s->frames + 1);
    struct sha256 sum;

    if (shard_bytes(s, trailer, sizeof trailer, (uint64_t)s->size - sizeof trailer))
        return -1;
    if (memcmp(trailer + PTS_TRAILER_MARK, PTS_MARK, 8))
        return fail("%s: the mark of a whole file is missing at its end", s->path);
    s->at = mem_new((size_t)s->frames + 1, sizeof *s->at);
    if (shard_bytes(s, s->at, bytes, index))
        return -1;

    sha256_init(&sum);
    sha256_add(&sum, header, PTS_HEADER);
    sha256_add(&sum, s->at, bytes);
    sha256_end(&sum, digest);
    if (memcmp(digest, trailer + PTS_TRAILER_INDEX, sizeof digest))
        return fail("%s: header or frame index is corrupt: its sha256 is not the recorded one",
                    s->path);
    sha256_hex(digest, sizeof digest, s->digest);
    return check_frames(s, index);
}

/* The numbers of the header must agree with each other and with the size of the file. */
static int check_header(struct shard *s, const uint8_t *h)
{
    uint64_t vocab = get_u64(h + PTS_AT_VOCAB), eot = get_u64(h + PTS_AT_EOT);
    uint64_t tokens = get_u64(h + PTS_AT_TOKENS), documents = get_u64(h + PTS_AT_DOCUMENTS);
    uint64_t frames = get_u64(h + PTS_AT_FRAMES), index = get_u64(h + PTS_AT_INDEX);
    uint64_t size = (uint64_t)s->size, room = size / 8;
    uint32_t version = get_u32(h + PTS_AT_VERSION), width = get_u32(h + PTS_AT_WIDTH);
    uint32_t frame = get_u32(h + PTS_AT_FRAME), marked = get_u32(h + PTS_AT_MARKED);

    if (version != PTS_VERSION)
        return fail("%s: expected version %d, found %" PRIu32, s->path, PTS_VERSION, version);
    if (width != 2 && width != 4)
        return fail("%s: expected tokens of 2 or 4 bytes, found %" PRIu32, s->path, width);
    if (marked > 1)
        return fail("%s: expected 0 or 1 for marks of context, found %" PRIu32, s->path, marked);
    if (vocab < 1 || vocab > (width == 4 ? (uint64_t)INT32_MAX : marked ? 32768u : 65536u))
        return fail("%s: a vocabulary of %" PRIu64 " does not fit %" PRIu32 " bytes%s", s->path,
                    vocab, width, marked ? " with marks" : "");
    if (eot >= vocab)
        return fail("%s: expected a separator below %" PRIu64 ", found %" PRIu64, s->path, vocab,
                    eot);
    if (frame < 1 || frame > PTS_FRAME_MAX)
        return fail("%s: expected frames of 1 to %d tokens, found %" PRIu32, s->path, PTS_FRAME_MAX,
                    frame);
    if (tokens < 1 || tokens > INT64_MAX / 8 || frames != (tokens - 1) / frame + 1)
        return fail("%s: %" PRIu64 " tokens in frames of %" PRIu32 " cannot make %" PRIu64
                    " frames", s->path, tokens, frame, frames);
    if (documents < 1 || documents > tokens)
        return fail("%s: expected 1 to %" PRIu64 " documents, found %" PRIu64, s->path, tokens,
                    documents);
    if (frames >= room || documents >= room || index < PTS_HEADER || index > size
        || index + 8 * (frames + 1) + 8 * documents + PTS_TRAILER != size)
        return fail("%s: torn: expected %" PRIu64 " bytes, found %" PRIu64, s->path,
                    index + 8 * (frames + 1) + 8 * documents + PTS_TRAILER, size);
    if (get_u32(h + PTS_AT_NUMBER) > PTS_NUMBER_MAX || get_u32(h + PTS_AT_LAST) > 1)
        return fail("%s: the place in the set is not one", s->path);
    for (int i = PTS_AT_RESERVED; i < PTS_HEADER; i++)
        if (h[i])
            return fail("%s: expected zero in byte %d, found %d", s->path, i, h[i]);
    return 0;
}

static int open_pts(struct shard *s, const uint8_t *h)
{
    static const char digit[] = "0123456789abcdef";
    static const uint8_t unknown[32];
    const uint8_t *t = h + PTS_AT_TOKENIZER;

    if (check_header(s, h))
        return -1;
    s->kind = SHARD_PTS;
    s->width = (int)get_u32(h + PTS_AT_WIDTH);
    s->vocab = s->id_limit = (int64_t)get_u64(h + PTS_AT_VOCAB);
    s->eot = (int64_t)get_u64(h + PTS_AT_EOT);
    s->tokens = (int64_t)get_u64(h + PTS_AT_TOKENS);
    s->documents = (int64_t)get_u64(h + PTS_AT_DOCUMENTS);
    s->frames = (int64_t)get_u64(h + PTS_AT_FRAMES);
    s->frame_tokens = get_u32(h + PTS_AT_FRAME);
    s->number = (int)get_u32(h + PTS_AT_NUMBER);
    s->last = get_u32(h + PTS_AT_LAST);
    s->marked = get_u32(h + PTS_AT_MARKED);
    for (int i = 0; i < 32 && memcmp(t, unknown, 32); i++) {
        s->tokenizer[2 * i] = digit[t[i] >> 4];
        s->tokenizer[2 * i + 1] = digit[t[i] & 15];
    }
    return read_index(s, h, get_u64(h + PTS_AT_INDEX));
}

static int open_plain(struct shard *s, int64_t header, int width, int64_t tokens, int64_t eot)
{
    uint8_t head[BIN_HEADER];
    size_t n = s->size < BIN_HEADER ? (size_t)s->size : BIN_HEADER;

    s->kind = header ? SHARD_BIN : SHARD_RAW;
    s->width = width;
    s->id_limit = width == 2 ? 65536 : INT32_MAX;
    s->eot = eot;
    s->tokens = tokens;
    s->documents = s->kind == SHARD_RAW && eot < 0 ? 1 : -1;
    s->frame_tokens = SHARD_FRAME;
    s->frames = (tokens - 1) / SHARD_FRAME + 1;
    if (eot >= s->id_limit)
        return fail("%s: separator %" PRId64 " does not fit tokens of %d bytes", s->path, eot,
                    width);
    if (shard_bytes(s, head, n, 0))
        return -1;
    sha256_hex(head, n, s->digest);
    return 0;
}

static int open_bin(struct shard *s, const uint8_t *h, int64_t eot)
{
    uint32_t version = get_u32(h + 4), tokens = get_u32(h + 8);

    if (version != 1)
        return fail("%s: expected version 1 of the .bin format, found %" PRIu32, s->path, version);
    if (tokens < 1 || tokens > INT32_MAX)
        return fail("%s: expected 1 to %d tokens, found %" PRIu32, s->path, INT32_MAX, tokens);
    if (s->size != BIN_HEADER + 2 * (int64_t)tokens)
        return fail("%s: torn: expected %" PRId64 " bytes for %" PRIu32 " tokens, found %" PRId64,
                    s->path, BIN_HEADER + 2 * (int64_t)tokens, tokens, s->size);
    return open_plain(s, BIN_HEADER, 2, tokens, eot < 0 ? BIN_EOT : eot);
}

static int open_raw(struct shard *s, const uint8_t *h, size_t n, int width, int64_t eot)
{
    if (n >= 8 && !memcmp(h, PTS_MAGIC, 8))
        return fail("%s: expected headerless tokens, found a .pts shard", s->path);
    if (s->size >= BIN_HEADER && get_u32(h) == BIN_MAGIC && get_u32(h + 4) == 1)
        return fail("%s: expected headerless tokens, found the header of llm.c", s->path);
    if (s->size < width || s->size % width)
        return fail("%s: expected a multiple of %d bytes, found %" PRId64, s->path, width, s->size);
    return open_plain(s, 0, width, s->size / width, eot);
}

/* The first bytes decide what the file is. */
static int recognise(struct shard *s, int raw_width, int64_t eot)
{
    static const uint8_t unwritten[PTS_HEADER];
    uint8_t h[PTS_HEADER] = { 0 };
    size_t n = s->size < PTS_HEADER ? (size_t)s->size : PTS_HEADER;

    if (raw_width && raw_width != 2 && raw_width != 4)
        return fail("%s: expected raw tokens of 2 or 4 bytes, not %d", s->path, raw_width);
    if (shard_bytes(s, h, n, 0))
        return -1;
    if (raw_width)
        return open_raw(s, h, n, raw_width, eot);
    if (s->size < PTS_HEADER)
        return fail("%s: too short to be a token shard: %" PRId64 " bytes", s->path, s->size);
    if (!memcmp(h, PTS_MAGIC, 8))
        return open_pts(s, h);
    if (get_u32(h) == BIN_MAGIC)
        return open_bin(s, h, eot);
    if (!memcmp(h, unwritten, sizeof h))
        return fail("%s: never finished: its header was not written", s->path);
    return fail("%s: expected a token shard (PALTOKEN, or .bin with magic %d), found neither",
                s->path, BIN_MAGIC);
}

static int finish_open(struct shard *s, int raw_width, int64_t eot)
{
    static atomic_uint_fast64_t opened;

    s->id = atomic_fetch_add(&opened, 1) + 1;
    if (recognise(s, raw_width, eot)) {
        shard_close(s);
        return -1;
    }
    if (s->fd >= FD_KEPT) {
        close(s->fd);
        s->fd = -1;
    }
    return 0;
}

static char *copy_text(const char *text)
{
    size_t n = strlen(text) + 1;

    return memcpy(mem_new(n, 1), text, n);
}

/* A set is published from its last file to its first: PREFIX_000000.pts.tmp goes last. */
static int check_published(const char *path)
{
    static const char tail[] = "_000000.pts.tmp";
    size_t n = strlen(path);
    char first[4096];

    if (n >= 4 && !strcmp(path + n - 4, ".tmp"))
        return fail("%s: an unfinished file", path);
    if (n < 11 || strcmp(path + n - 4, ".pts") || path[n - 11] != '_'
        || n - 11 + sizeof tail > sizeof first)
        return 0;
    memcpy(first, path, n - 11);
    memcpy(first + n - 11, tail, sizeof tail);
    if (!access(first, F_OK))
        return fail("%s: its set is not complete: %s lies beside it", path, first);
    return 0;
}

int shard_open(struct shard *s, const char *path, int raw_width, int64_t eot)
{
    struct stat st;

    *s = (struct shard){ .fd = -1, .documents = -1 };
    if (check_published(path))
        return -1;
    s->path = copy_text(path);
    s->fd = open_file(s, &st);
    if (s->fd < 0) {
        shard_close(s);
        return -1;
    }
    s->size = st.st_size;
    s->device = (uint64_t)st.st_dev;
    s->inode = (uint64_t)st.st_ino;
    return finish_open(s, raw_width, eot);
}

int shard_open_memory(struct shard *s, const void *data, size_t n, const char *name, int raw_width,
                      int64_t eot)
{
    *s = (struct shard){ .fd = -1, .documents = -1, .memory = data, .size = (int64_t)n,
                         .path = copy_text(name) };
    return finish_open(s, raw_width, eot);
}

void shard_close(struct shard *s)
{
    free(s->path);
    free(s->at);
    if (s->fd >= 0)
        close(s->fd);
    *s = (struct shard){ .fd = -1 };
}
