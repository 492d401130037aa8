/* bpe.h - text to token ids and back, by a Hugging Face tokenizer.json whose model is BPE.
 *
 *   struct bpe *b = bpe_open("tokenizer.json");           NULL with one line of reason on stderr
 *   struct bpe_encoder *e = bpe_encoder_open(b);           one per thread; b itself is read-only and shared
 *   struct bpe_ids ids = { 0 };
 *   bpe_encode(e, &ids, text, n, 0);                       appends to ids.at[0..ids.n)
 *   bpe_ids_free(&ids), bpe_encoder_close(e), bpe_close(b);
 *
 * Text is bytes. Its characters never become a control token (`"special": true`) unless BPE_CONTROL
 * is given; the other added tokens are always matched. No beginning or end token is added. Bytes that
 * are not UTF-8 survive: each is a symbol of its own that no normalizer touches. docs/tokenizers.md
 * has the rules in full. */
#ifndef BPE_H
#define BPE_H
#include "base.h"
EXTERN_C_BEGIN

struct bpe;
struct bpe_encoder;

struct bpe *bpe_open(const char *path);
struct bpe *bpe_parse(const char *text, size_t n, const char *name);    /* the same, of a file's content */
void        bpe_close(struct bpe *b);

int32_t     bpe_vocab(const struct bpe *b);          /* largest id + 1, added tokens included */
int32_t     bpe_eot(const struct bpe *b);            /* the separator before a document, -1 when there is none */
int32_t     bpe_bos(const struct bpe *b);            /* what the post-processor puts first, -1 when nothing */
int32_t     bpe_id(const struct bpe *b, const char *token);     /* as spelled in tokenizer.json, -1 when absent */
bool        bpe_is_control(const struct bpe *b, int32_t id);
const char *bpe_sha256(const struct bpe *b);         /* of the file's bytes, in hex */

/* A growing list of ids; starts as { 0 }. */
struct bpe_ids { int32_t *at; int64_t n, cap; };
void bpe_ids_reserve(struct bpe_ids *ids, int64_t more);
void bpe_ids_free(struct bpe_ids *ids);

enum {
    BPE_CONTROL   = 1,       /* control tokens spelled in the text become themselves (prompts of our own making) */
    BPE_CONTINUES = 2        /* the text follows an earlier part of its document, cut by bpe_cut */
};

struct bpe_encoder *bpe_encoder_open(const struct bpe *b);
void                bpe_encoder_close(struct bpe_encoder *e);
/* Appends the ids of text and returns how many, or -1 with the reason (a regex that gives up). */
int64_t bpe_encode(struct bpe_encoder *e, struct bpe_ids *out, const char *text, size_t n, unsigned flags);
/* Bytes that were not UTF-8, and NUL bytes, in all that this encoder was given. */
int64_t bpe_invalid(const struct bpe_encoder *e);
int64_t bpe_nuls(const struct bpe_encoder *e);

/* The last place in text[0..n) where a document may be cut so that encoding both parts, the second
 * with BPE_CONTINUES, equals encoding the whole; 0 when there is none. Needs a byte of what follows,
 * so n itself is never an answer. bpe_can_cut says whether this tokenizer has such places at all. */
size_t bpe_cut(const struct bpe *b, const char *text, size_t n);
bool   bpe_can_cut(const struct bpe *b);

/* Writes dir/tokenizer_config.json for Transformers, unless it is there or there is no tokenizer. 0, or -1 with the
 * reason. */
int bpe_config_write(const char *dir);

/* Ids to bytes, one at a time: bpe_decoder_init(&d, b), then bpe_decode for every id, then
 * bpe_decode_end. *bytes points into d and lives until the next call; the return value is their
 * number. The bytes of a character that is not complete yet are held back; nothing is altered. */
struct bpe_decoder {
    const struct bpe *bpe;
    char  *at;
    size_t from, n, cap;     /* [from, n) is held */
    bool   started;
};
void   bpe_decoder_init(struct bpe_decoder *d, const struct bpe *b);
size_t bpe_decode(struct bpe_decoder *d, int32_t id, const char **bytes);    /* an unknown id has no bytes */
size_t bpe_decode_end(struct bpe_decoder *d, const char **bytes);            /* what is still held; starts over */
void   bpe_decoder_free(struct bpe_decoder *d);

EXTERN_C_END
#endif
