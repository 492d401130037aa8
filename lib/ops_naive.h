/* ops_naive.h - private to ops_naive*.c: the scalar functions in double. */
#ifndef OPS_NAIVE_H
#define OPS_NAIVE_H
#include "ops_host.h"
#include <math.h>

static inline double sigmoid(double x)  { return 1 / (1 + exp(-x)); }
static inline double softplus(double x) { return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static inline double silu(double x)     { return x * sigmoid(x); }
static inline double silu_slope(double x)
{
    double s = sigmoid(x);

    return s * (1 + x * (1 - s));
}

void rmsnorm_naive(struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                   struct tensor z, enum gate g, float eps);
void rmsnorm_bwd_naive(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                       struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add);
void l2norm_naive(struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x);
void l2norm_bwd_naive(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm);
void xent_naive(struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits, const int32_t *target,
                float scale);
void conv_naive(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
                struct tensor bias, struct tensor state, const struct seqs *s);
void conv_bwd_naive(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                    struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s);
void rope_naive(struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign);
void sumsq_naive(struct dev *d, struct tensor sum, struct tensor x);
void adamw_naive(struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
                 struct tensor g, const struct adamw *h);
#endif
