/* shard.h - files of token ids: .pts (docs/formats.md gives its bytes), llm.c's .bin, headerless
 * little endian integers. Writing makes sets of .pts files that appear only when all are whole.
 *
 * Every eot in a file begins a document. A marked file's token may be context only, as prompts are: it is
 * read as ~id. Frames are read through a cache that many shards share. */
#ifndef SHARD_H
#define SHARD_H
#include "base.h"
EXTERN_C_BEGIN
enum { SHARD_FRAME = 65536 };   /* tokens in a frame, unless a .pts says otherwise */

struct shard {
    enum { SHARD_PTS, SHARD_BIN, SHARD_RAW } kind;
    char    *path;
    int      width;             /* bytes of a token: 2 or 4 */
    int64_t  vocab;             /* 0 unknown */
    int64_t  eot;               /* -1: the file is one document */
    int64_t  tokens;
    int64_t  documents;         /* -1: not counted yet, see shard_documents */
    int64_t  frames, frame_tokens;
    int64_t  size;              /* bytes */
    int      number;            /* of this file in its set; .pts only */
    bool     last;              /* of its set */
    bool     marked;            /* tokens may be context only */
    char     tokenizer[65];     /* sha256 of tokenizer.json in hex; "" unknown */
    char     digest[65];        /* of header and frame index; else of the first kilobyte */
    int64_t  id_limit;          /* ids at or above are refused; may be lowered; then private: */
    uint64_t *at;               /* [frames+1] bytes where frames begin; NULL unless .pts */
    const uint8_t *memory;      /* the file, when it was opened in memory */
    int      fd;                /* -1: opened for each read */
    uint64_t device, inode, id;
};

/* raw_width 0 recognises .pts and .bin by their first bytes; 2 or 4 reads headerless integers. eot is for
 * .bin and raw: -1 means 50256 (GPT-2) in a .bin, one document in a raw file. 0, or -1 with the reason and s
 * needing no close. Sizes are checked here, frames when read. */
int  shard_open(struct shard *s, const char *path, int raw_width, int64_t eot);
int  shard_open_memory(struct shard *s, const void *data, size_t n, const char *name, int raw_width, int64_t eot);
void shard_close(struct shard *s);

struct shard_cache {
    int64_t  decoded;           /* frames read so far; what follows is private */
    struct shard_slot *slot;    /* [n] */
    int      n;
    uint64_t clock;
    size_t   frame_bytes;
    uint8_t *packed;            /* a frame as it lies in the file */
    void    *zstd;
};
void shard_cache_init(struct shard_cache *c, size_t frame_bytes, size_t bytes);  /* as many as fit, at least two */
void shard_cache_close(struct shard_cache *c);

/* Tokens first .. first + n - 1. 0, or -1 naming the frame that is torn or changed. */
int shard_read(struct shard *s, struct shard_cache *c, int64_t first, int64_t n, int32_t *out);
/* Where documents begin, ascending; the caller frees. Sets s->documents. Reads the index of a .pts, all of other
 * files. NULL with the reason. */
int64_t *shard_documents(struct shard *s, struct shard_cache *c);
/* Reads everything: every frame, and the documents against the separators. */
int shard_verify(struct shard *s, struct shard_cache *c);

struct shard_info {
    int64_t     vocab, eot;
    const char *tokenizer;      /* sha256 of tokenizer.json in hex; NULL unknown */
    int         width;          /* 0: 2 where the vocabulary fits, else 4 */
    bool        marked;         /* shard_prompt will be called */
    int64_t     limit;          /* a file of so many tokens takes no further document; 0: 100 M */
    int         frame_tokens;   /* 0: SHARD_FRAME */
};
/* Begins PREFIX_000000.pts and so on, called .pts.tmp until shard_finish. Refused where files of the set exist
 * or another process writes them; old .tmp files are replaced. */
struct shard_writer *shard_create(const char *prefix, const struct shard_info *info);
/* Adds eot and the n ids of a document, n may be 0. -1: said why, only shard_abort is left. */
int     shard_document(struct shard_writer *w, const int32_t *ids, int64_t n);
int     shard_prompt(struct shard_writer *w, const int32_t *ids, int64_t n);   /* likewise, of context only */
int     shard_append(struct shard_writer *w, const int32_t *ids, int64_t n);   /* more of them */
int64_t shard_written(const struct shard_writer *w);   /* tokens so far, separators included */
int     shard_finish(struct shard_writer *w);          /* publishes, frees; or shard_abort */
void    shard_abort(struct shard_writer *w);           /* removes it all, frees; w may be NULL */
EXTERN_C_END
#endif
