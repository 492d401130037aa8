/* plasticity.h - how sure a metaplastic memory is: figures per layer and head, and doubt per token.
 *
 * Figures (docs/math.md, section 4), averaged over sequences: spread q99(I)/q01(I) of the precision
 * I = J + Ip over the V*K entries of the final state; gain mean(J)/Ip; window 1/(1 - exp(mean decay));
 * mean b. Doubt of a token: the variance of what its query read, over what it would be in an empty
 * memory, averaged over metaplastic heads: 1 knows nothing about the query, 0 knows all. */
#ifndef PLASTICITY_H
#define PLASTICITY_H
#include "model.h"
EXTERN_C_BEGIN
struct plasticity_head { double spread, gain, window, b, b_scale; };

struct plasticity {
    struct model           *model;
    struct plasticity_head *at;          /* [layers][heads]; spread 0 where a layer is not metaplastic */
    double                 *decay, *b;   /* [layers][heads] sums over tokens */
    int64_t                 tokens, sequences;
    struct model_state      state;
};
int  plasticity_open(struct plasticity *p, struct model *m, int64_t longest);
void plasticity_clear(struct plasticity *p);         /* as if nothing had been added */
/* One sequence of at most `longest` tokens, from the empty memory. */
void plasticity_add(struct plasticity *p, const int32_t *ids, int64_t n);
void plasticity_finish(struct plasticity *p);
void plasticity_close(struct plasticity *p);

/* A watcher for passes with want_var: doubt_watch with a struct doubt as its argument. */
struct doubt { struct dev *dev; double *sum, *prior; int64_t tokens; };    /* [tokens] each */
void   doubt_open(struct doubt *d, struct dev *dev, int64_t tokens);
void   doubt_watch(void *arg, const struct layer *l, const struct seqs *s, const struct scan_io *x);
double doubt_of(const struct doubt *d, int64_t token);      /* NAN when no layer is metaplastic */
void   doubt_close(struct doubt *d);
EXTERN_C_END
#endif
