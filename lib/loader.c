/* loader.c - rows out of shards.
 *
 *   row r: places g = r * width + i of the endless order, i < width = tokens / context;
 *   place g: epoch e = g / windows, window perm_e(g % windows)
 *
 * perm_e shuffles blocks of neighbouring windows, about a frame of tokens each, takes them by
 * groups, and shuffles the windows of a group: the frames of a group fit in the cache, so that a
 * frame is decoded about twice an epoch and not once for each of its windows. A corpus of one group
 * is shuffled freely. Each shuffle of 0 .. n - 1 is a Feistel network on 2 h bits, 4^h >= n,
 *   (left, right) -> (right, left ^ F(right)),  F keyed by (seed, e, round),
 * applied again while its value is not below n: walking a cycle keeps a bijection a bijection. */
#define _POSIX_C_SOURCE 200809L
#include "loader.h"
#include "rng.h"
#include "sha256.h"
#include "shard.h"
#include <glob.h>
#include <inttypes.h>
#include <unistd.h>

enum {
    BLOCK  = SHARD_FRAME,       /* tokens of windows that stay together */
    GROUP  = 128,               /* blocks that are shuffled into each other */
    CACHED = 3 * GROUP,         /* frames: a block lies in two, and one group follows another */
    CACHE  = 32 << 20,          /* bytes, where frames are small */
    ROUNDS = 6
};

struct corpus {
    struct shard *shard;
    int      n;
    int64_t *base;              /* [n+1] where each shard begins in the stream */
    int64_t *aligned;           /* [windows] where each begins; NULL: at multiples of context */
    struct shard_cache cache;
    int32_t *token;             /* [tokens+1]: a window is read with the token after it */
    int32_t *target;            /* [tokens] */
    int32_t *start;             /* [tokens+1] */
};

struct paths {
    char **at;
    int    n;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void paths_free(struct paths *p)
{
    for (int i = 0; i < p->n; i++)
        free(p->at[i]);
    free(p->at);
    *p = (struct paths){ 0 };
}

static void paths_push(struct paths *p, const char *path)
{
    size_t n = strlen(path) + 1;

    p->at = mem_grow(p->at, (size_t)p->n + 1, sizeof *p->at);
    p->at[p->n++] = memcpy(mem_new(n, 1), path, n);
}

/* One part between commas: a file of that very name, whatever brackets are in it, or a pattern. */
static int paths_add(struct paths *p, const char *pattern)
{
    glob_t found;
    int status;

    if (!access(pattern, F_OK)) {
        paths_push(p, pattern);
        return 0;
    }
    status = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (status == GLOB_NOMATCH)
        return fail("%s: no such file", pattern);
    if (status)
        return fail("%s: cannot be listed", pattern);
    if (found.gl_pathc > 1000000 || p->n > 1000000) {
        globfree(&found);
        return fail("%s: more than a million files", pattern);
    }
    for (size_t i = 0; i < found.gl_pathc; i++)
        paths_push(p, found.gl_pathv[i]);
    globfree(&found);
    return 0;
}

/* All files of the list, in byte order of their names whatever the locale. */
static int paths_find(struct paths *p, const char *files)
{
    int status = 0;

    *p = (struct paths){ 0 };
    while (!status && *files) {
        size_t n = strcspn(files, ",");
        char *part = memcpy(mem_new(n + 1, 1), files, n);
        status = n ? paths_add(p, part) : 0;
        free(part);
        files += n + (files[n] == ',');
    }
    if (!status && !p->n)
        status = fail("no data files are named");
    if (status)
        paths_free(p);
    else
        qsort(p->at, (size_t)p->n, sizeof *p->at, by_name);
    return status;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static const char *or_unknown(const char *tokenizer)
{
    return tokenizer[0] ? tokenizer : "unknown";
}

/* Every shard must mean the same by its ids as the first. */
static int check_same(const struct corpus *c, int i)
{
    const struct shard *a = c->shard, *b = c->shard + i;

    for (int k = 0; k < i; k++)
        if (c->shard[k].device == b->device && c->shard[k].inode == b->inode)
            return fail("%s: the same file as %s", b->path, c->shard[k].path);
    if (a->kind != b->kind)
        return fail("%s: %s is of another format", b->path, a->path);
    if (strcmp(a->tokenizer, b->tokenizer))
        return fail("%s: tokenizer: expected %s as in %s, found %s", b->path,
                    or_unknown(a->tokenizer), a->path, or_unknown(b->tokenizer));
    if (a->vocab != b->vocab)
        return fail("%s: vocabulary: expected %" PRId64 " as in %s, found %" PRId64, b->path,
                    a->vocab, a->path, b->vocab);
    if (a->eot != b->eot)
        return fail("%s: separator: expected %" PRId64 " as in %s, found %" PRId64, b->path, a->eot,
                    a->path, b->eot);
    return 0;
}

static int open_shards(struct loader *l, struct corpus *c, const struct paths *p)
{
    c->shard = mem_new((size_t)p->n, sizeof *c->shard);
    c->base = mem_new((size_t)p->n + 1, sizeof *c->base);
    for (; c->n < p->n; c->n++) {
        struct shard *s = c->shard + c->n;
        if (shard_open(s, p->at[c->n], l->o.raw_width, l->o.eot))
            return -1;
        if (check_same(c, c->n)) {
            shard_close(s);
            return -1;
        }
        if (l->o.vocab && s->vocab > l->o.vocab) {
            fail("%s: vocabulary: expected at most %" PRId64 ", found %" PRId64, s->path,
                 l->o.vocab, s->vocab);
            shard_close(s);
            return -1;
        }
        if (l->o.vocab && l->o.vocab < s->id_limit)
            s->id_limit = l->o.vocab;
        l->marked |= s->marked;
        c->base[c->n + 1] = c->base[c->n] + s->tokens;
    }
    return 0;
}

/* Parts of a set are a legitimate choice (the rest may validate) or an unfinished copy: say it. */
static void say_parts(const struct corpus *c)
{
    for (int i = 0; i < c->n; i++) {
        const struct shard *a = c->shard + i, *b = i + 1 < c->n ? a + 1 : NULL;
        size_t n = strlen(a->path);
        bool same = b && n >= 10 && strlen(b->path) == n && !memcmp(a->path, b->path, n - 10);
        if (a->kind != SHARD_PTS)
            return;
        if (same ? b->number != a->number + 1 : !a->last)
            say("%s: the set it belongs to goes on with files that are not given", a->path);
    }
}

static void count_documents(struct loader *l, const struct corpus *c)
{
    l->documents = 0;
    for (int i = 0; i < c->n && l->documents >= 0; i++)
        l->documents = c->shard[i].documents < 0 ? -1 : l->documents + c->shard[i].documents;
}

static int align_windows(struct loader *l, struct corpus *c)
{
    int64_t cap = 0, free_from = 0, n = 0;

    for (int i = 0; i < c->n; i++) {
        int64_t *start = shard_documents(c->shard + i, &c->cache);
        if (!start)
            return -1;
        for (int64_t d = 0; d < c->shard[i].documents; d++) {
            int64_t at = c->base[i] + start[d];
            if (at < free_from || l->o.context > l->stream - at)
                continue;
            if (n == cap)
                c->aligned = mem_grow(c->aligned, (size_t)(cap = 2 * cap + 1024),
                                      sizeof *c->aligned);
            c->aligned[n++] = at;
            free_from = at + l->o.context;
        }
        free(start);
    }
    l->windows = n;
    return 0;
}

static void identify(struct loader *l, const struct corpus *c)
{
    struct sha256 sum;
    char line[160];

    sha256_init(&sum);
    str_format(line, sizeof line, "%d %" PRId64 "\n", c->shard->width, c->shard->eot);
    sha256_add(&sum, line, strlen(line));
    for (int i = 0; i < c->n; i++) {
        const struct shard *s = c->shard + i;
        const char *name = base_name(s->path);
        str_format(line, sizeof line, " %" PRId64 " %" PRId64 " %s\n", s->size, s->tokens,
                   s->digest);
        sha256_add(&sum, name, strlen(name));
        sha256_add(&sum, line, strlen(line));
    }
    sha256_end_hex(&sum, l->identity);
}

static int measure(struct loader *l, struct corpus *c)
{
    const struct loader_options *o = &l->o;
    int64_t width = o->tokens / o->context;
    size_t frame = 0;

    for (int i = 0; i < c->n; i++) {
        size_t bytes = (size_t)c->shard[i].frame_tokens * (size_t)c->shard[i].width;
        frame = bytes > frame ? bytes : frame;
    }
    shard_cache_init(&c->cache, frame, frame < CACHE / CACHED ? CACHE : frame * CACHED);
    l->stream = c->base[c->n];
    l->windows = l->stream / o->context;
    if (o->align && align_windows(l, c))
        return -1;
    l->rows = l->windows / width;
    l->skipped = l->stream - l->windows * o->context;
    if (!l->rows)
        return fail("%s: %" PRId64 " tokens in %d file%s make %" PRId64 " windows of %" PRId64
                    "%s, a row needs %" PRId64, o->files, l->stream, c->n, c->n == 1 ? "" : "s",
                    l->windows, o->context, o->align ? " that start documents" : "", width);
    l->vocab = c->shard->vocab;
    l->eot = c->shard->eot;
    memcpy(l->tokenizer, c->shard->tokenizer, sizeof l->tokenizer);
    count_documents(l, c);
    identify(l, c);
    return 0;
}

int loader_open(struct loader *l, const struct loader_options *o)
{
    struct paths paths;
    struct corpus *c;
    int status;

    *l = (struct loader){ .o = *o, .documents = -1 };
    if (o->context < 1 || o->tokens < 1 || o->tokens >= INT32_MAX || o->tokens % o->context)
        return fail("a row of %" PRId64 " tokens cannot hold windows of %" PRId64, o->tokens,
                    o->context);
    if (paths_find(&paths, o->files ? o->files : ""))
        return -1;
    l->priv = c = mem_new(1, sizeof *c);
    status = open_shards(l, c, &paths) || measure(l, c) ? -1 : 0;
    paths_free(&paths);
    if (status) {
        loader_close(l);
        return -1;
    }
    say_parts(c);
    c->token = mem_new((size_t)o->tokens + 1, sizeof *c->token);
    c->target = mem_new((size_t)o->tokens, sizeof *c->target);
    c->start = mem_new((size_t)o->tokens + 1, sizeof *c->start);
    return 0;
}

void loader_close(struct loader *l)
{
    struct corpus *c = l->priv;

    if (!c)
        return;
    for (int i = 0; i < c->n; i++)
        shard_close(c->shard + i);
    shard_cache_close(&c->cache);
    free(c->shard);
    free(c->base);
    free(c->aligned);
    free(c->token);
    free(c->target);
    free(c->start);
    free(c);
    l->priv = NULL;
}

static uint64_t feistel(uint64_t x, uint64_t n, uint64_t key)
{
    int h = 1;

    while (n > (uint64_t)1 << 2 * h)
        h++;
    do {
        uint64_t mask = ((uint64_t)1 << h) - 1, left = x >> h, right = x & mask;
        for (uint64_t round = 0; round < ROUNDS; round++) {
            uint64_t next = left ^ (rng_bits(key, round, right) & mask);
            left = right;
            right = next;
        }
        x = left << h | right;
    } while (x >= n);
    return x;
}

/* The last block may be short: its missing places are walked over like those of feistel. */
int64_t loader_permute(int64_t i, int64_t n, int64_t block, uint64_t seed, int64_t epoch)
{
    uint64_t key = rng_bits(seed, rng_stream("loader"), (uint64_t)epoch);
    uint64_t x = (uint64_t)i, size = (uint64_t)block, blocks;

    REQUIRE(block > 0 && i >= 0 && i < n && n <= INT64_MAX / 8 && block <= INT64_MAX / 8 / GROUP);
    blocks = ((uint64_t)n - 1) / size + 1;
    do {
        uint64_t group = x / (GROUP * size), first = group * GROUP;
        uint64_t taken = blocks - first < GROUP ? blocks - first : GROUP;
        x = feistel(x - first * size, taken * size, rng_bits(key, 1, group));
        x = feistel(first + x / size, blocks, rng_bits(key, 0, 0)) * size + x % size;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}

/* Where window w of row index begins in the stream. */
static int64_t window_start(const struct loader *l, int64_t index, int64_t w)
{
    const struct corpus *c = l->priv;
    int64_t place = index * (l->o.tokens / l->o.context) + w, i = place % l->windows;

    if (l->o.shuffle)
        i = loader_permute(i, l->windows, l->o.context < BLOCK ? BLOCK / l->o.context : 1,
                           l->o.seed, place / l->windows);
    return c->aligned ? c->aligned[i] : i * l->o.context;
}

/* The shard that holds a token of the stream. */
static int shard_of(const struct corpus *c, int64_t at)
{
    int low = 0, high = c->n;

    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (c->base[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int read_stream(struct corpus *c, int64_t at, int64_t n, int32_t *out)
{
    for (int i = shard_of(c, at); n; i++) {
        int64_t left = c->base[i + 1] - at, take = left < n ? left : n;
        if (shard_read(c->shard + i, &c->cache, at - c->base[i], take, out))
            return -1;
        at += take;
        out += take;
        n -= take;
    }
    return 0;
}

/* A token that is context only comes as ~id; it is the id from here on. */
static bool take_mark(int32_t *token)
{
    bool context = *token < 0;

    if (context)
        *token = ~*token;
    return context;
}

/* Reads the window at `at` of the stream to place `to` of the row and begins its sequences. */
static int read_window(struct loader *l, int64_t at, int64_t to, int *sequences, int64_t *predicted)
{
    struct corpus *c = l->priv;
    int64_t n = l->o.context, eot = c->shard->eot, more = at + n < l->stream;
    int file = shard_of(c, at);             /* without a separator, documents begin with files */
    int64_t edge = eot < 0 ? c->base[file + 1] : INT64_MAX;
    int32_t *token = c->token + to, *target = c->target + to;

    if (read_stream(c, at, n + more, token))
        return -1;
    take_mark(token);
    c->start[(*sequences)++] = (int32_t)to;
    for (int64_t t = 0; t < n - 1 + more; t++) {
        bool context = take_mark(token + t + 1) && l->o.mask, begins = token[t + 1] == eot;
        if (at + t + 1 == edge) {
            begins = true;
            file++;
            edge = file < c->n ? c->base[file + 1] : INT64_MAX;
        }
        if (!begins || l->o.join) {
            target[t] = context ? -1 : token[t + 1];
            *predicted += !context;
            continue;
        }
        target[t] = -1;
        if (t + 1 < n)
            c->start[(*sequences)++] = (int32_t)(to + t + 1);
    }
    if (!more)
        target[n - 1] = -1;
    return 0;
}

int loader_read(struct loader *l, int64_t index, struct batch *b)
{
    struct corpus *c = l->priv;
    int64_t width = l->o.tokens / l->o.context, predicted = 0;
    int sequences = 0;

    REQUIRE(index >= 0);
    for (int64_t w = 0; w < width; w++)
        if (read_window(l, window_start(l, index, w), w * l->o.context, &sequences, &predicted))
            return -1;
    c->start[sequences] = (int32_t)l->o.tokens;
    *b = (struct batch){ c->token, c->target, seqs_of(c->start, sequences), predicted };
    return 0;
}

void loader_where(const struct loader *l, int64_t index, char *out, size_t size)
{
    const struct corpus *c = l->priv;
    int64_t width = l->o.tokens / l->o.context;
    size_t used = 0;

    if (size)
        out[0] = 0;
    for (int64_t w = 0; w < width; w++) {
        int64_t at = window_start(l, index, w);
        int i = shard_of(c, at);
        char one[512], rest[32];
        bool fits = str_format(one, sizeof one, "%s%s:%" PRId64, w ? " " : "",
                               base_name(c->shard[i].path), at - c->base[i]);
        size_t keep = w + 1 < width ? sizeof rest : 1;  /* room for " +N" but for the last */
        if (fits && used + strlen(one) + keep <= size) {
            memcpy(out + used, one, strlen(one) + 1);
            used += strlen(one);
            continue;
        }
        if (str_format(rest, sizeof rest, "%s+%" PRId64, w ? " " : "", width - w)
            && used + strlen(rest) < size)
            memcpy(out + used, rest, strlen(rest) + 1);
        return;
    }
}
