/* bpe_parts.h - the inside of a tokenizer, shared by the bpe_*.c files and nobody else. */
#ifndef BPE_PARTS_H
#define BPE_PARTS_H
#include "bpe.h"
#include "bpe_steps.h"
#include "json.h"

struct pair { uint64_t key; uint32_t rank; int32_t id; };       /* key: left << 32 | right */
#define PAIR_FREE UINT64_MAX
struct letter { uint32_t code; int32_t id; };                   /* a token of one character; free: id -1 */
static inline uint64_t pair_hash(uint64_t key) { return (key * 0x9E3779B97F4A7C15u) >> 32; }
static inline uint64_t letter_hash(uint32_t code) { return code * 0x9E3779B1u >> 8; }

enum { TOKEN_CONTROL = 1, TOKEN_ADDED = 2, TOKEN_MERGES = 4 };  /* ADDED: not in the model; MERGES: on a side of one */
struct token {
    size_t  name, n_name;                /* in bpe.text, as spelled in the file */
    size_t  shown, n_shown;              /* in bpe.text, as decoded */
    uint8_t flags;
    bool    used;
};
struct added { int32_t id; bool lstrip, rstrip, word, normalized; };

/* Added tokens to look for, as a tree of bytes. */
struct trie_node { int32_t child, sibling, added; uint8_t byte; };      /* added: index, -1 none */
struct trie {
    struct trie_node *node;              /* [n], 0 is none */
    int32_t n, root[256];
};

struct bpe {
    char           *name, sha256[65];
    int64_t         limit;               /* ids are below it: the file's size and 2^24 */
    struct token   *token;               /* [vocab] */
    int32_t         vocab, eot, bos, unk;
    struct buffer   text;                /* what tokens point into */
    int32_t        *slot;                /* spelling to id */
    uint64_t        slot_mask;
    struct pair    *pair;
    uint64_t        pair_mask;
    struct letter  *letter;
    uint64_t        letter_mask;
    int32_t         byte_id[256];        /* byte-level: every byte; otherwise the <0xXX> tokens, -1 without */
    bool            byte_level, byte_fallback, fuse_unk, ignore_merges;
    bool            word_start;          /* no token has U+2581 after another character */
    bool            line_apart;          /* a newline is a byte token that merges with nothing */
    struct norm     norm[STEPS];
    struct pre      pre[STEPS];
    int             norms, pres;
    struct added   *added;
    int64_t         addeds;
    struct trie     raw, normal;         /* looked for before and after normalizing */
    bool            cut_space, cut_line; /* bpe_cut may fall before a space, before a newline */
    bool            prefixes;            /* something is put before a text */
    struct shown   *shown;               /* while the decoder is read */
    bool            strip;               /* decoding drops one space at the start of a text */
};

/* The first of these that is a control token ends documents in the models that are published with it; NULL ends. */
extern const char *const bpe_separators[];

/* bpe_vocab.c */
struct bytes json_bytes(struct buffer *room, const char *s);     /* a JSON string, NUL bytes restored, in room */
int     vocab_read(struct bpe *b, const struct json *root);
void    vocab_add(struct bpe *b, int32_t id, const char *name, size_t n, uint8_t flags);
int32_t vocab_find(const struct bpe *b, const char *name, size_t n);
int32_t letter_find(const struct bpe *b, uint32_t code);         /* -1: no token is this character */
int32_t vocab_byte(uint32_t code);       /* the byte that GPT-2's alphabet spells so, or -1 */
/* bpe_json.c, bpe_added.c, bpe_decode.c: post-processor, added tokens and decoder come after the vocabulary */
int     component_each(struct bpe *b, const struct json *j, const char *what, const char *key,
                       int (*one)(struct bpe *, const struct json *, const char *type));
int     component_string(const struct bpe *b, const struct json *j, const char *key, struct buffer *out);
int     components_read(struct bpe *b, const struct json *root);
int     post_processor_read(struct bpe *b, const struct json *root);
int     added_read(struct bpe *b, const struct json *root);
int     added_build(struct bpe *b);
int     decoder_read(struct bpe *b, const struct json *root);
#endif
