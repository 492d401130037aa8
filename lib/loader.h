/* loader.h - token shards to packed rows. A row is a pure function of (seed, index): resuming is
 * asking for the next index, and no loader state is ever saved.
 *
 * The corpus is one stream: the shards in order of their names, in each its documents, each
 * beginning with the separator. It is cut into windows of `context` tokens plus one target; a row
 * is tokens/context windows side by side. Within a window every document starts a new sequence, and
 * the last token of a sequence that ends before its window has no target. Epoch e visits all windows once, in
 * an order that is a keyed permutation of (seed, e); shuffle off keeps the stream's order. */
#ifndef LOADER_H
#define LOADER_H
#include "seqs.h"
EXTERN_C_BEGIN
struct shard;

struct batch {
    const int32_t *token;       /* [tokens] host */
    const int32_t *target;      /* [tokens], -1 where there is nothing to predict */
    struct seqs    seqs;        /* host pointers only; model_* uploads */
    int64_t        predicted;   /* targets that are not -1 */
};
struct loader_options {
    const char *files;          /* a glob, a file, or several separated by commas */
    int64_t     tokens;         /* in a row; a multiple of context */
    int64_t     context;
    uint64_t    seed;
    bool        shuffle;
    bool        align;          /* windows start at document starts only; the skipped tail of a long document is counted */
    bool        join;           /* documents do not reset the state: a window is one sequence */
    int         raw_width;      /* 2 or 4: headerless files of such integers; 0: .pts or llm.c .bin */
    int64_t     eot;            /* for .bin and raw: the separator; -1: documents unknown, one per file */
};
struct loader {
    struct loader_options o;
    int64_t     stream;         /* tokens in all shards */
    int64_t     documents;      /* -1 unknown */
    int64_t     windows;        /* per epoch */
    int64_t     rows;           /* whole rows per epoch */
    int64_t     skipped;        /* tokens never visited in an epoch (tail, align) */
    int64_t     vocab;          /* of the shards; 0 unknown */
    char        tokenizer[65];  /* sha256 of tokenizer.json in hex; "" unknown */
    char        identity[65];   /* sha256 over names, sizes and headers of the shards: a run refuses to resume on others */
    void       *priv;
};
int  loader_open (struct loader *l, const struct loader_options *o);      /* 0, or -1 with the reason */
/* Row `index` counted over all epochs. b points into l until the next call. 0, or -1 (torn shard). */
int  loader_read (struct loader *l, int64_t index, struct batch *b);
void loader_close(struct loader *l);
EXTERN_C_END
#endif
