/* tokenize.h - files of text to documents of ids, on several threads, in the order of the text.
 *
 * The ids do not depend on the number of threads or on how documents are cut into blocks, and memory
 * does not grow with the input, except with a single line of JSON, a single word, or a document of a
 * tokenizer that bpe_can_cut denies. */
#ifndef TOKENIZE_H
#define TOKENIZE_H
#include "bpe.h"
#include "documents.h"
EXTERN_C_BEGIN

struct tokenize_options {
    const struct bpe *bpe;
    const char *const *file;             /* "-" is standard input */
    int         files;
    enum document_format format;
    const char *field;                   /* of a line of JSON */
    const char *prompt;                  /* field before it that shards mark as context; NULL: none */
    int         threads;
    unsigned    flags;                   /* BPE_CONTROL or 0 */
    bool        progress;                /* a line on stderr that is rewritten */
};
struct tokenize_totals {
    int64_t documents, tokens;           /* separators not included */
    int64_t bytes;                       /* of text */
    int64_t invalid, nuls;               /* bytes that were not UTF-8; NUL bytes */
    double  seconds;
};

/* Calls put for every document, or for parts of one, from this thread. 0, or -1 with the reason. */
int tokenize_run(const struct tokenize_options *o, struct tokenize_totals *t,
                 int (*put)(void *arg, const int32_t *ids, int64_t n, bool begins), void *arg);
/* Writes shards PREFIX_000000.pts and so on, all or none; eot goes before each document. */
int tokenize_shards(const struct tokenize_options *o, struct tokenize_totals *t, const char *prefix, int32_t eot);
/* Learns a vocabulary from the files and writes it as tokenizer.json; t->tokens is its size. Of the
 * options it reads the files and progress. */
int tokenize_train(const struct tokenize_options *o, struct tokenize_totals *t, int64_t vocab, const char *path);

EXTERN_C_END
#endif
