/* nll.h - the loss of a model on text: overall, per byte, per word, and by position.
 *
 * A document is scored from its first token on: the separator comes before it when the tokenizer has
 * one, else its first token is context only. Memory is carried through a document of any length in
 * pieces; perplexity per word is exp(total / words), bits per byte total / (bytes ln 2). */
#ifndef NLL_H
#define NLL_H
#include "opened.h"
EXTERN_C_BEGIN

enum { NLL_CHUNK = 1024, NLL_BUCKET = 256 };      /* tokens of a piece; positions of a line of the table */

struct nll {
    struct model *model;
    double   loss;                /* sum over predictions */
    int64_t  predicted, tokens, documents, bytes, words;
    int64_t  longest;
    double  *bucket_loss;         /* [buckets] by position in the document, NLL_BUCKET tokens each */
    int64_t *bucket_count;
    int64_t  buckets;
    const double *unigram;        /* [vocab] -log p of a baseline; NULL none */
    double   unigram_loss;
    struct model_state state;
    bool     mask;                /* what shards mark as context is not counted */
    int64_t  piece;               /* documents are cut into independent parts of so many tokens; 0: whole */
    int32_t  last;                /* the token that has been read but not fed; -1 at a document's start */
    int64_t  at;                  /* its position */
    bool     inside;              /* the text so far ends within a word */
};
int  nll_open(struct nll *n, struct model *m, int64_t piece);
void nll_begin(struct nll *n);                                      /* a new document: the empty memory */
/* The document's next ids, however it is cut into calls; each is scored given all before it. */
int  nll_feed(struct nll *n, const int32_t *ids, int64_t count);
void nll_text(struct nll *n, const char *text, size_t size);        /* counts bytes and words */
/* All rows of the shards once, in their order. tokenizer: sha256 of the model's, "" unknown; others' are refused. */
int  nll_shards(struct nll *n, const char *files, const char *tokenizer, int64_t context, int64_t limit);
void nll_close(struct nll *n);
/* -log of add-one smoothed frequencies of the ids in shards; the caller frees. NULL with the reason. */
double *unigram_of(const char *files, int64_t vocab);
EXTERN_C_END
#endif
