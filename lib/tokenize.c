/* tokenize.c - a ring of blocks. The calling thread fills them from the files and, in the same order,
 * hands out their ids; workers take filled blocks one after the other and encode them. */
#define _POSIX_C_SOURCE 200809L
#include "tokenize.h"
#include "bpe_train.h"
#include "shard.h"
#include "pretoken.h"
#include <pthread.h>

struct part { int64_t end; bool begins; };       /* ids up to end */

struct slot {
    struct block   block;
    struct bpe_ids ids;
    struct part   *part;
    int64_t        parts, part_cap, bytes;
    bool           done, failed;
    const struct tokenize_options *o;            /* while it is encoded */
    struct bpe_encoder *encoder;
};
struct ring {
    const struct tokenize_options *o;
    struct slot    *slot;
    int64_t         slots, filled, taken, written;       /* written <= taken <= filled <= written + slots */
    bool            quit;
    int64_t         invalid, nuls;
    pthread_mutex_t lock;
    pthread_cond_t  work, done;
};

static int encode_part(void *arg, const char *text, size_t n, bool begins)
{
    struct slot *s = arg;

    if (bpe_encode(s->encoder, &s->ids, text, n, s->o->flags | (begins ? 0 : BPE_CONTINUES)) < 0)
        return -1;
    if (s->parts == s->part_cap)
        s->part = mem_grow(s->part, (size_t)(s->part_cap = 2 * s->part_cap + 16), sizeof *s->part);
    s->part[s->parts++] = (struct part){ s->ids.n, begins };
    s->bytes += (int64_t)n;
    return 0;
}

static void *worker(void *arg)
{
    struct ring *r = arg;
    struct bpe_encoder *encoder = bpe_encoder_open(r->o->bpe);

    pthread_mutex_lock(&r->lock);
    while (true) {
        struct slot *s;

        while (r->taken == r->filled && !r->quit)
            pthread_cond_wait(&r->work, &r->lock);
        if (r->taken == r->filled || r->quit)
            break;
        s = &r->slot[r->taken++ % r->slots];
        pthread_mutex_unlock(&r->lock);
        s->o = r->o;
        s->encoder = encoder;
        s->ids.n = s->parts = s->bytes = 0;
        s->failed = block_each(&s->block, encode_part, s) != 0;
        pthread_mutex_lock(&r->lock);
        s->done = true;
        pthread_cond_signal(&r->done);
    }
    r->invalid += bpe_invalid(encoder);
    r->nuls += bpe_nuls(encoder);
    pthread_mutex_unlock(&r->lock);
    bpe_encoder_close(encoder);
    return NULL;
}

/* Waits for the oldest block and hands it out. */
static int write_block(struct ring *r, struct tokenize_totals *t,
                       int (*put)(void *, const int32_t *, int64_t, bool), void *arg)
{
    struct slot *s = &r->slot[r->written % r->slots];
    int64_t from = 0;

    pthread_mutex_lock(&r->lock);
    while (!s->done)
        pthread_cond_wait(&r->done, &r->lock);
    s->done = false;
    pthread_mutex_unlock(&r->lock);
    for (int64_t i = 0; i < s->parts; i++) {
        struct part p = s->part[i];

        if (put(arg, s->ids.at ? s->ids.at + from : NULL, p.end - from, p.begins))
            return -1;
        t->documents += p.begins;
        from = p.end;
    }
    t->tokens += from;
    t->bytes += s->bytes;
    t->invalid += s->block.lone;
    r->written++;
    if (s->failed && s->block.wrong[0])
        fail("%s", s->block.wrong);
    return s->failed ? -1 : 0;
}

/* Rewrites the line at most twice a second. */
static void show_progress(const struct documents *d, const struct tokenize_totals *t, double start, double *next)
{
    double now = time_now(), rate = 1e-6 * (double)t->bytes / (now - start + 1e-9);
    char share[32] = "";

    if (now < *next)
        return;
    *next = now + 0.5;
    if (documents_size(d) > 0)
        str_format(share, sizeof share, "%5.1f%%  ", 100.0 * (double)documents_taken(d) / (double)documents_size(d));
    fprintf(stderr, "\r%s%.1f MB of text, %.2f M tokens, %.1f MB/s ", share, 1e-6 * (double)t->bytes,
            1e-6 * (double)t->tokens, rate);
    fflush(stderr);
}

/* Fills while there is room, else writes. 0 at the end of all files. */
static int turn(struct ring *r, struct documents *d, struct tokenize_totals *t,
                int (*put)(void *, const int32_t *, int64_t, bool), void *arg)
{
    double start = time_now(), next = start + 0.5;
    bool ended = false;

    while (!ended || r->written < r->filled) {
        int got;

        if (r->o->progress)
            show_progress(d, t, start, &next);
        if (ended || r->filled - r->written == r->slots) {
            if (write_block(r, t, put, arg))
                return -1;
            continue;
        }
        got = documents_block(d, &r->slot[r->filled % r->slots].block);
        if (got < 0)
            return -1;
        ended = !got;
        pthread_mutex_lock(&r->lock);
        r->filled += got;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
    }
    return 0;
}

static void ring_close(struct ring *r)
{
    for (int64_t i = 0; i < r->slots; i++) {
        block_free(&r->slot[i].block);
        bpe_ids_free(&r->slot[i].ids);
        free(r->slot[i].part);
    }
    free(r->slot);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->work);
    pthread_cond_destroy(&r->done);
}

static size_t cut(const void *bpe, const char *text, size_t n)
{
    return bpe_cut(bpe, text, n);
}

/* Starts the workers, takes turns, and stops them, whatever happened. */
static int run(struct ring *r, struct documents *d, struct tokenize_totals *t,
               int (*put)(void *, const int32_t *, int64_t, bool), void *arg)
{
    pthread_t *thread = mem_new((size_t)r->o->threads, sizeof *thread);
    int started = 0, status = 0;

    while (started < r->o->threads && !pthread_create(&thread[started], NULL, worker, r))
        started++;
    status = started ? turn(r, d, t, put, arg) : fail("cannot start a thread");
    pthread_mutex_lock(&r->lock);
    r->quit = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
    free(thread);
    return status;
}

int tokenize_run(const struct tokenize_options *o, struct tokenize_totals *t,
                 int (*put)(void *arg, const int32_t *ids, int64_t n, bool begins), void *arg)
{
    struct documents_options from = { .file = o->file, .files = o->files, .format = o->format, .field = o->field,
                                      .prompt = o->prompt, .cut = bpe_can_cut(o->bpe) ? cut : NULL, .cut_arg = o->bpe };
    struct documents *d = documents_open(&from);
    struct ring r = { .o = o, .slots = 2 * (int64_t)o->threads + 1 };
    double start = time_now();
    int status;

    *t = (struct tokenize_totals){ 0 };
    if (!d)
        return -1;
    r.slot = mem_new((size_t)r.slots, sizeof *r.slot);
    pthread_mutex_init(&r.lock, NULL);
    pthread_cond_init(&r.work, NULL);
    pthread_cond_init(&r.done, NULL);
    status = run(&r, d, t, put, arg);
    t->invalid += r.invalid;
    t->nuls += r.nuls;
    t->seconds = time_now() - start;
    if (o->progress)
        fprintf(stderr, "\r%78s\r", "");
    ring_close(&r);
    documents_close(d);
    return status;
}

static int put_shard(void *arg, const int32_t *ids, int64_t n, bool begins)
{
    return begins ? shard_document(arg, ids, n) : shard_append(arg, ids, n);
}

static int put_pair(void *arg, const int32_t *ids, int64_t n, bool begins)
{
    return begins ? shard_prompt(arg, ids, n) : shard_append(arg, ids, n);
}

int tokenize_shards(const struct tokenize_options *o, struct tokenize_totals *t, const char *prefix, int32_t eot)
{
    struct shard_info info = { .vocab = bpe_vocab(o->bpe), .eot = eot, .tokenizer = bpe_sha256(o->bpe),
                               .marked = o->prompt };
    struct shard_writer *w = shard_create(prefix, &info);

    if (!w)
        return -1;
    if (tokenize_run(o, t, o->prompt ? put_pair : put_shard, w)) {
        shard_abort(w);
        return -1;
    }
    return shard_finish(w);
}

struct counting { struct bpe_words *words; struct tokenize_totals *totals; };

static int count_words(void *arg, const char *text, size_t n, bool begins)
{
    struct counting *c = arg;

    bpe_words_add(c->words, text, n);
    c->totals->documents += begins;
    c->totals->bytes += (int64_t)n;
    return 0;
}

static size_t cut_words(const void *arg, const char *text, size_t n)
{
    (void)arg;
    return pretoken_cut(text, n, true, true);
}

static int count_files(const struct tokenize_options *o, struct counting *c)
{
    struct documents_options from = { .file = o->file, .files = o->files, .format = o->format, .field = o->field,
                                      .prompt = o->prompt, .cut = cut_words };
    struct documents *d = documents_open(&from);
    struct block block = { 0 };
    double start = time_now(), next = start + 0.5;
    int got;

    if (!d)
        return -1;
    while ((got = documents_block(d, &block)) > 0) {
        if (block_each(&block, count_words, c)) {
            got = fail("%s", block.wrong);
            break;
        }
        if (o->progress)
            show_progress(d, c->totals, start, &next);
    }
    block_free(&block);
    documents_close(d);
    return got;
}

static void show_learned(int64_t tokens)
{
    if (tokens % 256 == 0)
        fprintf(stderr, "\r%lld tokens learned%40s", (long long)tokens, "");
}

int tokenize_train(const struct tokenize_options *o, struct tokenize_totals *t, int64_t vocab, const char *path)
{
    struct counting c = { bpe_words_open(), t };
    struct text json = { 0 };
    double start = time_now();
    int status;

    *t = (struct tokenize_totals){ 0 };
    status = count_files(o, &c);
    if (!status) {
        bpe_train(c.words, vocab, &json, &t->tokens, o->progress ? show_learned : NULL);
        if (o->progress)
            fprintf(stderr, "\r%78s\r", "");
        if (bpe_words_skipped(c.words))
            warn("%lld pieces of more than %d bytes were left out", (long long)bpe_words_skipped(c.words),
                 BPE_WORD_MOST);
        if (t->tokens < vocab)
            warn("%lld tokens, not %lld: no pair occurs twice any more", (long long)t->tokens, (long long)vocab);
        status = file_write(path, json.at, json.n);
    }
    t->seconds = time_now() - start;
    text_free(&json);
    bpe_words_close(c.words);
    return status;
}
