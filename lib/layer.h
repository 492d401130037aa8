/* layer.h - forward and backward pairs that mixers and blocks are made of.
 *
 * A linear is y = x W', W [out,in]. All tensors are on p->dev; conversions between storage types use
 * d->temp, which the caller marks and pops. A frozen weight gets no gradient. */
#ifndef LAYER_H
#define LAYER_H
#include "mixer.h"
#include "op.h"
EXTERN_C_BEGIN

/* t itself when it has that type already, else a copy pushed on d->temp. */
struct tensor as_type(struct dev *d, struct tensor t, enum dtype type);

void linear_forward(struct dev *d, struct tensor y, struct tensor x, const struct param *w);
/* dx = dy W, or += when add (absent: not wanted); the weight's gradient += dy' x. */
void linear_backward(struct dev *d, struct tensor dx, struct tensor dy, struct tensor x, const struct param *w,
                     bool add);
/* The first of n weights that were declared one after the other, with those of them that follow it in memory and have
 * the same flags, as one. */
struct joined { struct tensor value, grad; int n; };
struct joined params_join(const struct param *w, int n);
/* linear_* of n such weights and the same x, in as few products; y and dy [T, sum of out] hold their columns. */
void linears_forward(struct dev *d, struct tensor y, struct tensor x, const struct param *w, int n);
void linears_backward(struct dev *d, struct tensor dx, struct tensor dy, struct tensor x, const struct param *w, int n,
                      bool add);

/* Declares one parameter named prefix + name. */
int layer_add(struct layer *l, const char *prefix, const char *name, struct tensor shape, unsigned flags,
              draw_fn *draw, float a, float b);

/* The scan's memory carried in and out for this layer, when the pass has state. */
void layer_carry(const struct layer *l, const struct pass *p, struct scan_io *x, int states);
/* Convolution tail i: what was carried in (absent when fresh), and where to write it. */
struct tensor layer_tail_in(const struct layer *l, const struct pass *p, int i);
struct tensor layer_tail_out(const struct layer *l, const struct pass *p, int i);
EXTERN_C_END
#endif
