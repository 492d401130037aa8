/* documents.c - reads ahead by one block and a bit: what lies behind the last line, or behind the last
 * place where text may be cut, is carried over to the next block. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "documents.h"
#include "source.h"
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 1 << 20 };

struct documents {
    struct documents_options o;
    int            next;                 /* file */
    struct source *source;               /* of file next - 1; NULL between files */
    const char    *name;
    bool           jsonl, ended;         /* of that file */
    bool           begins;
    int64_t        line;
    char          *carry;
    size_t         n, cap;
    int64_t        taken, size;
};

static const char *shown(const char *path)
{
    return strcmp(path, "-") ? path : "standard input";
}

/* A file that cannot be read fails the run before it has cost an hour. */
static int look(struct documents *d, const char *path)
{
    struct stat st;

    if (!strcmp(path, "-")) {
        d->size = -1;
        return 0;
    }
    if (stat(path, &st) || access(path, R_OK))
        return fail("%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return fail("%s: is a directory", path);
    if (!S_ISREG(st.st_mode))
        d->size = -1;
    else if (d->size >= 0)
        d->size += (int64_t)st.st_size;
    return 0;
}

struct documents *documents_open(const struct documents_options *o)
{
    struct documents *d = mem_new(1, sizeof *d);

    d->o = *o;
    if (!d->o.bytes)
        d->o.bytes = BLOCK;
    for (int i = 0; i < o->files; i++)
        if (look(d, o->file[i])) {
            documents_close(d);
            return NULL;
        }
    return d;
}

void documents_close(struct documents *d)
{
    if (!d)
        return;
    source_close(d->source);
    free(d->carry);
    free(d);
}

int64_t documents_taken(const struct documents *d)
{
    return d->taken + (d->source ? source_taken(d->source) : 0);
}

int64_t documents_size(const struct documents *d)
{
    return d->size;
}

static bool named_jsonl(const char *path)
{
    static const char *const tails[] = { ".jsonl", ".jsonl.gz", ".jsonl.zst" };
    size_t n = strlen(path);

    for (size_t i = 0; i < LEN(tails); i++)
        if (n >= strlen(tails[i]) && !strcmp(path + n - strlen(tails[i]), tails[i]))
            return true;
    return false;
}

static int begin_file(struct documents *d)
{
    const char *path = d->o.file[d->next++];

    d->source = source_open(path);
    if (!d->source)
        return -1;
    d->name = shown(path);
    d->jsonl = d->o.format == JSONL || (d->o.format == BY_NAME && named_jsonl(path));
    d->ended = false;
    d->begins = true;
    d->line = 1;
    d->n = 0;
    return 0;
}

static void end_file(struct documents *d)
{
    d->taken += source_taken(d->source);
    source_close(d->source);
    d->source = NULL;
}

static void block_reserve(struct block *b, size_t n)
{
    if (b->cap < n)
        b->text = mem_grow(b->text, b->cap = n, 1);
}

/* Where the block may end so that the rest can start another; 0 nowhere yet. */
static size_t end_of(const struct documents *d, const struct block *b)
{
    if (!d->jsonl)
        return d->o.cut ? d->o.cut(d->o.cut_arg, b->text, b->n) : 0;
    for (size_t i = b->n; i > 0; i--)
        if (b->text[i - 1] == '\n')
            return i;
    return 0;
}

static int64_t lines(const char *text, size_t n)
{
    int64_t count = 0;

    for (const char *p = text, *end = text + n; p < end && (p = memchr(p, '\n', (size_t)(end - p))); p++)
        count++;
    return count;
}

/* Reads until the block has its size and a place to end, or the file its end. */
static int fill(struct documents *d, struct block *b, size_t *end)
{
    size_t want = d->o.bytes;

    *end = 0;
    while (!d->ended && !*end) {
        block_reserve(b, want);
        while (b->n < want && !d->ended) {
            int64_t got = source_read(d->source, b->text + b->n, want - b->n);

            if (got < 0)
                return -1;
            d->ended = got == 0;
            b->n += (size_t)got;
        }
        if (!d->ended)
            *end = end_of(d, b);
        want *= 2;
    }
    if (d->ended)
        *end = b->n;
    return 0;
}

int documents_block(struct documents *d, struct block *b)
{
    size_t end;

    do {
        if (!d->source && d->next == d->o.files)
            return 0;
        if (!d->source && begin_file(d))
            return -1;
        b->file = d->name;
        b->field = d->jsonl ? d->o.field : NULL;
        b->prompt = d->o.prompt;
        if (b->prompt && !b->field)
            return fail("%s: expected lines of JSON with \"%s\" and \"%s\", found text", b->file, b->prompt,
                        d->o.field);
        b->line = d->line;
        b->begins = d->begins;
        b->lone = 0;
        b->wrong[0] = 0;
        block_reserve(b, d->n > d->o.bytes ? d->n : d->o.bytes);
        memcpy(b->text, d->carry ? d->carry : "", d->n);
        b->n = d->n;
        if (fill(d, b, &end))
            return -1;
        d->n = b->n - end;
        if (d->cap < d->n)
            d->carry = mem_grow(d->carry, d->cap = 2 * d->n, 1);
        if (d->n)
            memcpy(d->carry, b->text + end, d->n);
        b->n = end;
        d->begins = false;
        if (d->jsonl)
            d->line += lines(b->text, end);
        if (d->ended)
            end_file(d);
    } while (!b->n && (b->field || !b->begins));     /* an empty text file is a document, all the same */
    return 1;
}

static bool blank(const char *p, const char *end)
{
    while (p < end && (*p == ' ' || *p == '\t' || *p == '\r'))
        p++;
    return p == end;
}

static const char *find(struct block *b, const char *p, const char *stop, const char *field, const char **text,
                        size_t *n, int64_t line)
{
    const char *wrong = jsonl_field(p, (size_t)(stop - p), field, &b->room, text, n, &b->lone);

    if (wrong)
        str_format(b->wrong, sizeof b->wrong, "%.200s:%lld: %s, looking for \"%.100s\"", b->file, (long long)line,
                   wrong, field);
    return wrong;
}

int block_each(struct block *b, int (*take)(void *arg, const char *text, size_t n, bool begins), void *arg)
{
    const char *p = b->text, *end = p + b->n, *stop, *text = "";
    int64_t line = b->line;
    size_t n = 0;

    if (!b->field)
        return take(arg, p, b->n, b->begins);
    for (; p < end; p = stop + 1, line++) {
        stop = memchr(p, '\n', (size_t)(end - p));
        stop = stop ? stop : end;
        if (blank(p, stop))
            continue;
        if (b->prompt && (find(b, p, stop, b->prompt, &text, &n, line) || take(arg, text, n, true)))
            return -1;
        if (find(b, p, stop, b->field, &text, &n, line))
            return -1;
        if (b->prompt && !n) {
            str_format(b->wrong, sizeof b->wrong, "%.200s:%lld: \"%.100s\" is empty, so there is nothing to learn",
                       b->file, (long long)line, b->field);
            return -1;
        }
        if (take(arg, text, n, !b->prompt))
            return -1;
    }
    return 0;
}

void block_free(struct block *b)
{
    free(b->text);
    free(b->room.at);
    *b = (struct block){ 0 };
}
