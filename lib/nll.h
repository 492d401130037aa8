/* nll.h - the loss of a model on text: overall, per byte, per word, and by position.
 *
 *   nll_open(&n, &model, 0, 0)
 *   nll_keep(&n, "sums.part", 60)                       perhaps: what is stopped goes on
 *   nll_begin(&n), nll_feed(&n, ids, count) ...         for every document
 *   nll_end(&n)                                         the sums are whole
 *   nll_close(&n)
 *
 * A document is scored from its first token on: the separator comes before it when the tokenizer has
 * one, else its first token is context only. Short ones go through the model side by side; through longer
 * ones the memory is carried in pieces, so that room does not grow with their length. Perplexity per word
 * is exp(total / words), bits per byte total / (bytes ln 2). nll_feed, nll_shards and nll_end: 0, or -1 with the
 * reason. */
#ifndef NLL_H
#define NLL_H
#include "opened.h"
EXTERN_C_BEGIN

enum { NLL_CHUNK = 1024, NLL_BUCKET = 256 };      /* tokens of a piece; positions of a line of the table */

struct nll_row {                  /* sequences on their way through the model */
    int32_t *token, *target, *start;
    int64_t  tokens, cap;
    int      n, most;
};

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
    int64_t  chunk;               /* tokens that go through the model at once, of one sequence */
    struct nll_row row;
    int32_t *held;                /* [chunk + 1] ids that were fed and are in no row; the first was predicted before */
    int64_t  nheld, at;           /* how many; the first one's position in its part */
    bool     inside;              /* the text so far ends within a word */
    void   (*shown)(void *arg, int64_t done, int64_t all);         /* progress through shards; may be NULL */
    void    *arg;
    struct nll_kept *kept;        /* the file of nll_keep; NULL none */
};
/* piece: see above; batch: sequences side by side, 0: as many as are useful. */
int  nll_open(struct nll *n, struct model *m, int64_t piece, int64_t batch);
/* Before text: every so many seconds sums and memory are kept in a file. When it is there they are taken up, and the
 * same text, fed from its beginning, passes by the model up to where they end. 0, or -1 with the reason. */
int  nll_keep(struct nll *n, const char *path, double every);
bool nll_passing(const struct nll *n);                              /* nothing was computed yet */
void nll_forget(struct nll *n);                                     /* removes the file */
void nll_begin(struct nll *n);                                      /* a new document: the empty memory */
int  nll_end(struct nll *n);                                        /* what is held goes through the model */
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
