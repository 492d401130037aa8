/* documents.h - documents out of files, in blocks that fit in memory however long a document is.
 *
 * A text file is one document; a .jsonl file has one in each line that is not blank, under a field.
 * Either may be compressed. The reader is one thread's; a block, once filled, may be any thread's. */
#ifndef DOCUMENTS_H
#define DOCUMENTS_H
#include "jsonl.h"
EXTERN_C_BEGIN

enum document_format { BY_NAME, TEXT, JSONL };

struct documents_options {
    const char *const *file;             /* "-" is standard input */
    int                files;
    enum document_format format;         /* BY_NAME: .jsonl, also .jsonl.gz and .jsonl.zst; else text */
    const char        *field;
    const char        *prompt;           /* field that comes before it, a part of its own; NULL: none */
    size_t             bytes;            /* of a block, about; 0: a mebibyte */
    /* Where text[0..n) may be cut, 0 nowhere; NULL: documents are never cut. */
    size_t           (*cut)(const void *arg, const char *text, size_t n);
    const void        *cut_arg;
};
struct documents;

struct block {
    const char *file;                    /* for messages */
    const char *field;                   /* NULL: text is text, not lines of JSON */
    const char *prompt;
    int64_t     line;                    /* number of the first line */
    bool        begins;                  /* text: a document begins here, else an earlier one continues */
    char       *text;
    size_t      n, cap;
    struct jsonl room;
    int64_t     lone;                    /* surrogates replaced, added up by block_each */
    char        wrong[512];              /* why block_each stopped, "" when the taker did */
};

/* Looks at every file first: NULL, with the reason, if one cannot be read. */
struct documents *documents_open(const struct documents_options *o);
void    documents_close(struct documents *d);
int     documents_block(struct documents *d, struct block *b);      /* 1; 0 no more; -1 with the reason */
int64_t documents_taken(const struct documents *d);                 /* bytes of files read so far */
int64_t documents_size(const struct documents *d);                  /* of all files; -1 when one is a pipe */

/* Calls take for every document, or part of one, in the block; with a prompt, for that, which begins it, and then for
 * the field, which must hold something. 0, or -1: block.wrong is not printed yet. */
int  block_each(struct block *b, int (*take)(void *arg, const char *text, size_t n, bool begins), void *arg);
void block_free(struct block *b);

EXTERN_C_END
#endif
