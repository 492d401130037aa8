/* loader.h - token shards to packed rows. A row is a pure function of (seed, index): resuming is
 * asking for the next index, and no loader state is ever saved.
 *
 * The corpus is one stream: the shards in order of their names, in each its documents, each
 * beginning with the separator. It is cut into windows of `context` tokens; a row is tokens/context
 * windows side by side, and a window may cross from one shard into the next. Within a window every
 * separator starts a new sequence. The last token of a sequence has no target, except at the end of
 * a window whose document goes on: its target is the next token of the stream. Epoch e visits all
 * windows once, in an order that is a keyed permutation of (seed, e); shuffle off keeps the
 * stream's order. */
#ifndef LOADER_H
#define LOADER_H
#include "seqs.h"
EXTERN_C_BEGIN

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
    bool        align;          /* a window starts at the first document start after the last one */
    bool        join;           /* documents do not reset the state: a window is one sequence */
    bool        mask;           /* what shards mark as context is not predicted */
    int         raw_width;      /* 2 or 4: headerless files of such integers; 0: .pts, llm.c .bin */
    int64_t     eot;            /* separator of .bin and raw; -1: 50256; in raw, none */
    int64_t     vocab;          /* of the model: larger vocabularies and ids are refused; 0: any */
};
struct loader {
    struct loader_options o;
    int64_t     stream;         /* tokens in all shards */
    int64_t     documents;      /* -1 unknown */
    int64_t     windows;        /* per epoch */
    int64_t     rows;           /* whole rows in an epoch; a row may begin in one epoch and end in the next */
    int64_t     skipped;        /* tokens never visited in an epoch (tail, align) */
    int64_t     vocab, eot;     /* of the shards; 0 unknown, and -1: no separator */
    bool        marked;         /* some shard marks context */
    char        tokenizer[65];  /* sha256 of tokenizer.json in hex; "" unknown */
    char        identity[65];   /* sha256 of names, sizes, headers: a run resumes on no others */
    void       *priv;
};
int  loader_open (struct loader *l, const struct loader_options *o);  /* 0, or -1 with the reason */
/* Row `index` counted over all epochs. b points into l until the next call. 0, or -1 (torn). */
int  loader_read (struct loader *l, int64_t index, struct batch *b);
void loader_close(struct loader *l);

/* Where a row's windows begin: "NAME:TOKEN NAME:TOKEN ...", then "+N" for those that do not fit. */
void loader_where(const struct loader *l, int64_t index, char *out, size_t size);
/* The i-th of n windows in an epoch's order, a bijection of 0 .. n - 1 for each (seed, epoch):
 * blocks of neighbours are scattered, then the windows of 128 blocks at a time are shuffled. */
int64_t loader_permute(int64_t i, int64_t n, int64_t block, uint64_t seed, int64_t epoch);
/* The epoch, from 0, in which row `index` begins. */
static inline int64_t loader_epoch(const struct loader *l,
                                   int64_t index)
{
    return index * (l->o.tokens / l->o.context) / l->windows;
}

EXTERN_C_END
#endif
