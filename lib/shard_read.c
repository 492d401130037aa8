/* shard_read.c - token ids out of shards, a frame at a time, through a cache of decoded frames. */
#include "shard.h"
#include "sha256.h"
#include "shard_format.h"
#include <inttypes.h>
#include <zstd.h>

struct shard_slot {
    uint64_t shard;             /* 0: empty */
    int64_t  frame;
    uint64_t used;
    uint8_t *data;
};

void shard_cache_init(struct shard_cache *c, size_t frame_bytes, size_t bytes)
{
    size_t n = bytes / frame_bytes;

    *c = (struct shard_cache){ .frame_bytes = frame_bytes };
    c->n = n < 2 ? 2 : n > 1024 ? 1024 : (int)n;
    c->slot = mem_new((size_t)c->n, sizeof *c->slot);
    c->packed = mem_new(ZSTD_compressBound(frame_bytes), 1);
    c->zstd = ZSTD_createDCtx();
    REQUIRE(c->zstd);
}

void shard_cache_close(struct shard_cache *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->slot[i].data);
    free(c->slot);
    free(c->packed);
    ZSTD_freeDCtx(c->zstd);
    *c = (struct shard_cache){ 0 };
}

static int64_t frame_length(const struct shard *s, int64_t frame)
{
    int64_t left = s->tokens - frame * s->frame_tokens;

    return left < s->frame_tokens ? left : s->frame_tokens;
}

static int unpack(struct shard *s, struct shard_cache *c, int64_t frame, uint8_t *out, size_t want)
{
    size_t n = (size_t)(s->at[frame + 1] - s->at[frame]), got;
    unsigned long long said;

    if (shard_bytes(s, c->packed, n, s->at[frame]))
        return -1;
    said = ZSTD_getFrameContentSize(c->packed, n);
    if (said == ZSTD_CONTENTSIZE_ERROR || said == ZSTD_CONTENTSIZE_UNKNOWN)
        return fail("%s: frame %" PRId64 " at byte %" PRIu64 " is corrupt: not a sized zstd frame",
                    s->path, frame, s->at[frame]);
    if (said != want)
        return fail("%s: frame %" PRId64 " is corrupt: expected %zu bytes, found %llu", s->path,
                    frame, want, said);
    got = ZSTD_decompressDCtx(c->zstd, out, want, c->packed, n);
    if (ZSTD_isError(got))
        return fail("%s: frame %" PRId64 " at byte %" PRIu64 " is corrupt: %s", s->path, frame,
                    s->at[frame], ZSTD_getErrorName(got));
    if (got != want)
        return fail("%s: frame %" PRId64 " is corrupt: expected %zu bytes, found %zu", s->path,
                    frame, want, got);
    return 0;
}

static uint32_t id_at(const uint8_t *data, int width, int64_t i)
{
    return width == 2 ? ((const uint16_t *)data)[i] : ((const uint32_t *)data)[i];
}

/* The bit of a token that is context only. */
static uint32_t mark_of(const struct shard *s)
{
    return s->width == 2 ? 0x8000u : 0x80000000u;
}

/* Ids index tables of the model, so none beyond the vocabulary leaves this file. */
static int check_ids(const struct shard *s, const uint8_t *data, int64_t frame, int64_t n)
{
    uint32_t most = 0, keep = s->marked ? mark_of(s) - 1 : UINT32_MAX;

    if (s->width == 2)
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = ((const uint16_t *)data)[i] & keep;
            most = id > most ? id : most;
        }
    else
        for (int64_t i = 0; i < n; i++) {
            uint32_t id = ((const uint32_t *)data)[i] & keep;
            most = id > most ? id : most;
        }
    if (most < s->id_limit)
        return 0;
    for (int64_t i = 0; i < n; i++)
        if ((id_at(data, s->width, i) & keep) == most)
            return fail("%s: token %" PRId64 ": expected an id below %" PRId64 ", found %" PRIu32,
                        s->path, frame * s->frame_tokens + i, s->id_limit, most);
    return 0;
}

static struct shard_slot *load(struct shard *s, struct shard_cache *c, int64_t frame)
{
    int64_t length = frame_length(s, frame);
    size_t bytes = (size_t)length * (size_t)s->width;
    struct shard_slot *old = c->slot;
    int status;

    for (int i = 0; i < c->n; i++) {
        struct shard_slot *e = c->slot + i;
        if (e->shard == s->id && e->frame == frame) {
            e->used = ++c->clock;
            return e;
        }
        if (e->used < old->used)
            old = e;
    }

    REQUIRE((size_t)s->frame_tokens * (size_t)s->width <= c->frame_bytes);
    old->shard = 0;
    if (!old->data)
        old->data = mem_new(c->frame_bytes, 1);
    if (s->kind == SHARD_PTS)
        status = unpack(s, c, frame, old->data, bytes);
    else
        status = shard_bytes(s, old->data, bytes, (uint64_t)(s->size - s->tokens * s->width)
                             + (uint64_t)(frame * s->frame_tokens * s->width));
    if (status || check_ids(s, old->data, frame, length))
        return NULL;
    *old = (struct shard_slot){ s->id, frame, ++c->clock, old->data };
    c->decoded++;
    return old;
}

static void copy_marked(const struct shard *s, int32_t *out, const uint8_t *data, int64_t from, int64_t n)
{
    uint32_t mark = mark_of(s);

    for (int64_t i = 0; i < n; i++) {
        uint32_t id = id_at(data, s->width, from + i);
        out[i] = id & mark ? ~(int32_t)(id & (mark - 1)) : (int32_t)id;
    }
}

int shard_read(struct shard *s, struct shard_cache *c, int64_t first, int64_t n, int32_t *out)
{
    REQUIRE(first >= 0 && n >= 0 && first <= s->tokens && n <= s->tokens - first);
    while (n) {
        int64_t frame = first / s->frame_tokens, skip = first % s->frame_tokens;
        int64_t take = frame_length(s, frame) - skip;
        const struct shard_slot *e = load(s, c, frame);

        if (!e)
            return -1;
        take = take < n ? take : n;
        if (s->marked)
            copy_marked(s, out, e->data, skip, take);
        else if (s->width == 2)
            for (int64_t i = 0; i < take; i++)
                out[i] = ((const uint16_t *)e->data)[skip + i];
        else
            memcpy(out, e->data + 4 * skip, 4 * (size_t)take);
        out += take;
        first += take;
        n -= take;
    }
    return 0;
}

static int64_t *read_documents(struct shard *s)
{
    size_t n = (size_t)s->documents;
    uint64_t end = (uint64_t)s->size - PTS_TRAILER, *start = mem_new(n, sizeof *start);
    uint8_t recorded[32], digest[32];
    struct sha256 sum;

    if (shard_bytes(s, start, 8 * n, end - 8 * n)
        || shard_bytes(s, recorded, 32, end + PTS_TRAILER_DOCUMENTS)) {
        free(start);
        return NULL;
    }
    sha256_init(&sum);
    sha256_add(&sum, start, 8 * n);
    sha256_end(&sum, digest);
    if (memcmp(digest, recorded, 32)) {
        fail("%s: document index is corrupt: its sha256 differs from the recorded one", s->path);
        free(start);
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        if ((i == 0 && start[0]) || (i && start[i] <= start[i - 1])
            || start[i] >= (uint64_t)s->tokens) {
            fail("%s: document %zu cannot begin at token %" PRIu64, s->path, i, start[i]);
            free(start);
            return NULL;
        }
    return (int64_t *)start;
}

/* Positions of the separator, from the tokens themselves. NULL on a torn file. */
static int64_t *find_documents(struct shard *s, struct shard_cache *c, int64_t *count)
{
    int64_t step = s->frame_tokens, cap = 1024, n = 0, *start = mem_new((size_t)cap, sizeof *start);
    int32_t *id = mem_new((size_t)step, sizeof *id);

    for (int64_t at = 0; at < s->tokens; at += step) {
        int64_t length = s->tokens - at < step ? s->tokens - at : step;
        if (shard_read(s, c, at, length, id)) {
            free(start);
            start = NULL;
            break;
        }
        if (cap - n < length)
            start = mem_grow(start, (size_t)(cap = 2 * cap + length), sizeof *start);
        for (int64_t i = 0; i < length; i++)
            if ((id[i] < 0 ? ~id[i] : id[i]) == s->eot)
                start[n++] = at + i;
    }
    free(id);
    *count = n;
    return start;
}

int64_t *shard_documents(struct shard *s, struct shard_cache *c)
{
    int64_t n, *start;

    if (s->kind == SHARD_PTS)
        return read_documents(s);
    if (s->kind == SHARD_RAW && s->eot < 0)
        return mem_new(1, sizeof *start);
    start = find_documents(s, c, &n);
    if (start)
        s->documents = n;
    return start;
}

int shard_verify(struct shard *s, struct shard_cache *c)
{
    int64_t n, *found = find_documents(s, c, &n), *start = found ? shard_documents(s, c) : NULL;
    int status = -1;

    if (!start)
        status = -1;
    else if (s->kind == SHARD_PTS && n != s->documents)
        fail("%s: expected %" PRId64 " separators, found %" PRId64, s->path, s->documents, n);
    else if (s->kind == SHARD_PTS && memcmp(start, found, sizeof *start * (size_t)n))
        fail("%s: the document index does not match the separators", s->path);
    else
        status = 0;
    free(found);
    free(start);
    return status;
}
