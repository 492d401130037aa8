/* bpe_train.h - learns a byte-level BPE vocabulary from text.
 *
 *   struct bpe_words *w = bpe_words_open();
 *   bpe_words_add(w, text, n);                          any number of times
 *   bpe_train(w, 32000, &json, &learned);               the text of a tokenizer.json
 *   bpe_words_close(w);
 * Ids: 0 <|endoftext|>, a control token; 1 to 256 the bytes, in the order of the characters that spell
 * them; then the merges in the order learned. */
#ifndef BPE_TRAIN_H
#define BPE_TRAIN_H
#include "json.h"
EXTERN_C_BEGIN

enum { BPE_TRAIN_LEAST = 257, BPE_TRAIN_MOST = 1 << 24, BPE_WORD_MOST = 1024 };

struct bpe_words;

struct bpe_words *bpe_words_open(void);
void    bpe_words_close(struct bpe_words *w);
/* Counts the pieces of text under GPT-2's expression. Longer ones than BPE_WORD_MOST bytes teach nothing. */
void    bpe_words_add(struct bpe_words *w, const char *text, size_t n);
int64_t bpe_words_distinct(const struct bpe_words *w);
int64_t bpe_words_skipped(const struct bpe_words *w);

/* Joins the most frequent pair until there are vocab tokens or no pair occurs twice; of equally frequent
 * pairs the one with the smaller ids, the left one first. *tokens is how many there are in the end.
 * Appends to out. progress may be NULL; it is called now and then. */
void bpe_train(const struct bpe_words *w, int64_t vocab, struct text *out, int64_t *tokens,
               void (*progress)(int64_t tokens));

EXTERN_C_END
#endif
