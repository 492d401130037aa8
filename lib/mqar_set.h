/* mqar_set.h - examples of a mix held in memory, and rows of a batch made of some of them. */
#ifndef MQAR_SET_H
#define MQAR_SET_H
#include "model.h"
#include "mqar.h"
EXTERN_C_BEGIN

struct mqar_set {
    struct mqar_mix mix;             /* example i is of kind i % mix.n */
    uint64_t seed;
    int64_t  n;                      /* examples */
    int64_t  tokens, pairs;          /* of one example of every kind together */
    int32_t *token, *at;
};
struct mqar_row {
    int64_t  most;                   /* sequences it has room for */
    int32_t *token, *target, *start, *at;
    int64_t  asked;                  /* labels, at token at[0], at[1], .. of the row */
    bool     alone;                  /* examples are scored as if alone: their number side by side changes nothing */
};
/* n examples, made by all threads; first is the number of the first of each kind. */
void mqar_set_open(struct mqar_set *s, const struct mqar_mix *mix, uint64_t seed, int64_t n);
void mqar_set_fill(struct mqar_set *s, int64_t first);
void mqar_set_close(struct mqar_set *s);

void mqar_row_open(struct mqar_row *r, const struct mqar_mix *mix, int64_t most);
/* Examples which[0..n-1] side by side, each a sequence of its own; the batch points into r. */
struct batch mqar_row_fill(struct mqar_row *r, const struct mqar_set *s, const int64_t *which, int64_t n);
void mqar_row_close(struct mqar_row *r);

/* Share of labels that are the likeliest token, by kind, and its standard error over examples. Room as for JOB_LOSS
 * on rows of r->most sequences. progress may be NULL. */
struct mqar_score { double accuracy, error; int64_t n, labels; };
void mqar_score(struct mqar_score *out, struct model *m, const struct mqar_set *s, struct mqar_row *r,
                void (*progress)(void *arg, int64_t done, int64_t all), void *arg);
EXTERN_C_END
#endif
