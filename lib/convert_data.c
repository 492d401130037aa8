/* convert_data.c - calibration tokens: rows of shards, a text through the source's tokenizer, or drawn ids. */
#define _POSIX_C_SOURCE 200809L
#include "bpe.h"
#include "convert_parts.h"
#include "documents.h"
#include "rng.h"
#include <sys/stat.h>

struct reading { struct bpe *bpe; struct bpe_encoder *encoder; struct bpe_ids ids; int64_t most; };

static int take(void *arg, const char *text, size_t n, bool begins)
{
    struct reading *r = arg;
    int32_t eot = bpe_eot(r->bpe);

    if (r->ids.n >= r->most)
        return 0;
    if (begins && eot >= 0) {
        bpe_ids_reserve(&r->ids, 1);
        r->ids.at[r->ids.n++] = eot;
    }
    return bpe_encode(r->encoder, &r->ids, text, n, begins ? 0 : BPE_CONTINUES) < 0 ? -1 : 0;
}

static size_t cut(const void *arg, const char *text, size_t n)
{
    return bpe_cut(arg, text, n);
}

static int read_text(struct reading *r, const char *file)
{
    struct documents_options o = { .file = &file, .files = 1, .field = "text", .bytes = 1 << 16,
                                   .cut = bpe_can_cut(r->bpe) ? cut : NULL, .cut_arg = r->bpe };
    struct documents *d = documents_open(&o);
    struct block b = { 0 };
    int more = -1;

    while (d && r->ids.n < r->most && (more = documents_block(d, &b)) > 0)
        if (block_each(&b, take, r)) {
            more = b.wrong[0] ? fail("%s", b.wrong) : -1;
            break;
        }
    block_free(&b);
    if (d)
        documents_close(d);
    return more < 0 ? -1 : 0;
}

/* Rows of ids, each predicting its next within the row. */
static int set_rows(struct calibration *c, const int32_t *ids, int64_t n, int64_t length, int64_t vocab,
                    const char *name)
{
    c->length = n < length ? n : length;
    if (c->length < 2)
        return fail("%s: %lld tokens are too few to measure on", name, (long long)n);
    c->rows = n / c->length;
    c->ids = mem_new((size_t)(c->rows * c->length), sizeof *c->ids);
    c->target = mem_new((size_t)(c->rows * c->length), sizeof *c->target);
    for (int64_t i = 0; i < c->rows * c->length; i++) {
        if (ids[i] < 0 || ids[i] >= vocab)
            return fail("%s: id %d is outside the model's vocabulary of %lld", name, ids[i], (long long)vocab);
        c->ids[i] = ids[i];
        c->target[i] = (i + 1) % c->length ? ids[i + 1] : -1;
    }
    return 0;
}

static int open_text(struct calibration *c, const struct convert_options *o, const struct config *cfg)
{
    struct reading r = { .most = o->tokens };
    char path[4200];
    int status = -1;

    if (!str_format(path, sizeof path, "%s/tokenizer.json", o->from))
        return fail("%s: path is too long", o->from);
    r.bpe = bpe_open(path);
    if (!r.bpe)
        return fail("%s: a text needs the model's tokenizer.json; token shards (.pts, .bin) do not", o->calibrate);
    r.encoder = bpe_encoder_open(r.bpe);
    if (!read_text(&r, o->calibrate))
        status = set_rows(c, r.ids.at, r.ids.n < o->tokens ? r.ids.n : o->tokens, o->context, cfg->vocab,
                          o->calibrate);
    bpe_ids_free(&r.ids);
    bpe_encoder_close(r.encoder);
    bpe_close(r.bpe);
    return status;
}

static int open_shards(struct calibration *c, const struct convert_options *o, const struct config *cfg)
{
    struct loader_options l = { .files = o->calibrate, .tokens = o->context, .context = o->context, .eot = -1,
                                .vocab = cfg->vocab };

    if (loader_open(&c->loader, &l))
        return -1;
    c->shards = true;
    c->length = o->context;
    c->rows = o->tokens / o->context < 1 ? 1 : o->tokens / o->context;
    if (c->rows > c->loader.rows)
        c->rows = c->loader.rows;
    return c->rows > 0 ? 0 : fail("%s: fewer than the %lld tokens of a row", o->calibrate, (long long)o->context);
}

/* 64 ids that are the same in every run. */
static int draw_ids(struct calibration *c, const struct config *cfg)
{
    int32_t ids[64];

    for (uint64_t i = 0; i < LEN(ids); i++)
        ids[i] = (int32_t)(rng_uniform(0, rng_stream("convert"), i) * (double)cfg->vocab_real);
    return set_rows(c, ids, LEN(ids), LEN(ids), cfg->vocab, "check");
}

static bool is_shards(const char *name)
{
    struct stat st;
    size_t n = strlen(name);

    return stat(name, &st) || (n > 4 && (!strcmp(name + n - 4, ".pts") || !strcmp(name + n - 4, ".bin")));
}

int calibration_open(struct calibration *c, const struct convert_options *o, const struct config *cfg)
{
    int status;

    *c = (struct calibration){ 0 };
    if (!o->calibrate)
        status = draw_ids(c, cfg);
    else
        status = is_shards(o->calibrate) ? open_shards(c, o, cfg) : open_text(c, o, cfg);
    if (status)
        calibration_close(c);
    return status;
}

int calibration_row(struct calibration *c, int64_t i, struct batch *b)
{
    if (c->shards)
        return loader_read(&c->loader, i, b);
    c->start[1] = (int32_t)c->length;
    *b = (struct batch){ .token = c->ids + i * c->length, .target = c->target + i * c->length,
                         .seqs = seqs_of(c->start, 1), .predicted = c->length - 1 };
    return 0;
}

void calibration_close(struct calibration *c)
{
    if (c->shards)
        loader_close(&c->loader);
    free(c->ids);
    free(c->target);
    *c = (struct calibration){ 0 };
}
