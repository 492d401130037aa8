/* bpe_steps.h - what happens to text before it meets the model: steps read from tokenizer.json. */
#ifndef BPE_STEPS_H
#define BPE_STEPS_H
#include "pretoken.h"

struct bytes { const char *at; size_t n; };
struct buffer { char *at; size_t n, cap; };
static inline struct bytes bytes_of(const struct buffer *b) { return (struct bytes){ b->at ? b->at : "", b->n }; }
void buffer_add(struct buffer *b, const char *s, size_t n);

enum norm_kind { NORM_FORM, NORM_PREPEND, NORM_REPLACE };
struct norm {
    enum norm_kind kind;
    int            form;             /* utf8proc options of NFC and its like */
    struct buffer  from, to;
    struct regex  *regex;            /* instead of `from` */
};

enum pre_kind {
    PRE_GPT2,                        /* pretoken_piece */
    PRE_SPLIT,                       /* at matches of regex or literal */
    PRE_DIGITS,                      /* at numbers; one by one when `each` */
    PRE_PREFIX,                      /* a space before text that begins with none */
    PRE_METASPACE                    /* `literal` for spaces and before the text; `each`: cut before it */
};
enum behavior { ISOLATED, REMOVED, CONTIGUOUS, WITH_PREVIOUS, WITH_NEXT };   /* what becomes of a match */
struct pre {
    enum pre_kind  kind;
    enum behavior  behavior;
    bool           invert;           /* what lies between matches is the match */
    bool           each;
    bool           prefix, first;    /* metaspace: puts `literal` before a text; only before the first */
    bool           before_space;     /* a split: known to cut between a letter and a space */
    struct buffer  literal;
    struct regex  *regex;
};
enum { STEPS = 16 };                 /* more in one file are refused */

struct bpe;
/* Applies the normalizer; *out is text itself or lies in one of the buffers. 0, or -1 (a regex gave up). */
int  normalize(const struct bpe *b, struct regex_room *regex, struct bytes *out, struct bytes text,
               bool continues, struct buffer room[3]);
void replace_all(struct buffer *out, struct bytes text, struct bytes from, struct bytes to);

/* Walks a text for added tokens, { .text = ..., .control = ... } starts. added_next gives an id and where
 * it stands, or -1 when there is no more; spaces that belong to a token are inside [start, end). */
struct added_walk {
    struct bytes text;
    bool         normalized, control;
    size_t       from, taken;        /* private */
    size_t       start, end;
};
int32_t added_next(const struct bpe *b, struct added_walk *w);

/* Ids of a piece: the cache and the room to merge in. */
struct words;
struct bpe_ids;
struct words *words_open(void);
void words_close(struct words *w);
void words_encode(const struct bpe *b, struct words *w, struct bpe_ids *out, const char *at, size_t n);
#endif
