/* ops.h - the verbs. A backend is one filled-in struct ops. Callers never touch it: for every member there is a
 * function op_<member>() (op.h), which checks shapes and types once for all backends, so a backend may trust its
 * arguments. On the host an absent member means the naive one; on a dry device nothing is called. Outputs first, then
 * inputs, then scalars. [T,...] tensors may have an outer stride. Gradients of weights (F32) accumulate (+=), of
 * activations are overwritten (=). An absent optional tensor has data NULL. Weights are F32 except the matrices. */
#ifndef OPS_H
#define OPS_H
#include "dev.h"
#include "seqs.h"
struct products; struct recall;                      /* op_step.h */
EXTERN_C_BEGIN
enum { MM_TA = 1, MM_TB = 2, MM_ADD = 4 };           /* transpose a, transpose b, c += */
enum map { MAP_SIGMOID, MAP_SILU }; enum gate { GATE_NONE, GATE_AFTER_NORM, GATE_BEFORE_NORM };
struct adamw { float lr, beta1, beta2, eps, decay, scale; int64_t step; };   /* step counts from 1 */
struct dt_range { float lo, hi; };                   /* clamp of dt; hi may be INFINITY */
struct ops {
    const char *name;
    void *(*alloc)   (struct dev *d, size_t bytes);                                 /* NULL when there is none */
    void  (*release) (struct dev *d, void *p);
    void  (*put)     (struct dev *d, void *dev, const void *host, size_t bytes);
    void  (*get)     (struct dev *d, void *host, const void *dev, size_t bytes);    /* waits for the device */
    void  (*sync)    (struct dev *d), (*lane)(struct dev *d, int lane);             /* lane: op.h; may be absent */
    bool  (*record)  (struct dev *d, const void *key, size_t bytes);                /* op.h tells; may be absent */
    void  (*recorded)(struct dev *d, uint64_t trace);
    void  (*fill)    (struct dev *d, struct tensor y, float value);
    void  (*cast)    (struct dev *d, struct tensor y, struct tensor x);             /* also a strided copy */
    /* dense: c [m,n] = a [m,k] b [k,n]; c F32 when a and b are BF16 and MM_ADD accumulates a weight gradient */
    void  (*matmul)  (struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags);
    void  (*embed)   (struct dev *d, struct tensor y, struct tensor w, const int32_t *token);       /* [T,D] [V,D] */
    void  (*embed_bwd)(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token);
    /* elementwise; y may be a or x itself */
    void  (*add)     (struct dev *d, struct tensor y, struct tensor a, struct tensor b);
    void  (*map)     (struct dev *d, enum map f, struct tensor y, struct tensor x);
    void  (*map_bwd) (struct dev *d, enum map f, struct tensor dx, struct tensor dy, struct tensor x);
    /* y = x*s, or y += x*s when add; x,y [T,H,V]; s [T,H], or a weight [H] F32: then ds accumulates.
     * Backward: dx likewise (add: +=), ds = sum_v dy*x; an absent dx or ds is not wanted */
    void  (*mul)     (struct dev *d, struct tensor y, struct tensor x, struct tensor s, bool add);
    void  (*mul_bwd) (struct dev *d, struct tensor dx, struct tensor ds, struct tensor dy, struct tensor x,
                      struct tensor s, bool add);
    void  (*swiglu)  (struct dev *d, struct tensor y, struct tensor gate, struct tensor up);        /* silu(gate)*up */
    void  (*swiglu_bwd)(struct dev *d, struct tensor dgate, struct tensor dup, struct tensor dy, struct tensor gate,
                      struct tensor up);
    /* dt = clamp(softplus(x + bias)), decay = -exp(A_log) dt; F32 [T,H] x3, weights [H] x2. Backward: ddt and
     * ddecay come in (ddt may be absent); where the clamp acts dx and dbias get 0. */
    void  (*decay)   (struct dev *d, struct tensor dt, struct tensor decay, struct tensor x, struct tensor bias,
                      struct tensor A_log, struct dt_range r);
    void  (*decay_bwd)(struct dev *d, struct tensor dx, struct tensor dbias, struct tensor dA_log, struct tensor ddt,
                struct tensor ddecay, struct tensor x, struct tensor bias, struct tensor A_log, struct dt_range r);
    /* precision gain b = sigmoid(x) * softplus(b_scale) * s; b,x [T,H,V], b_scale [H], s [T,H]; ds += */
    void  (*gain)    (struct dev *d, struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s);
    void  (*gain_bwd)(struct dev *d, struct tensor dx, struct tensor db_scale, struct tensor ds, struct tensor db,
                      struct tensor x, struct tensor b_scale, struct tensor s);
    /* rows: y = w * x / sqrt(mean x^2 + eps) over the last dim of [T,G,C]; w [C] or [G*C]; rstd [T,G] F32. z [T,G,C]
     * is a gate: AFTER y *= silu(z); BEFORE x*silu(z) is normalised. add, without a gate: dx +=. l2norm's y may be x */
    void  (*rmsnorm) (struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                      struct tensor z, enum gate g, float eps);
    void  (*rmsnorm_bwd)(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                      struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add);
    void  (*l2norm)  (struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x);   /* 1/max(|x|,1e-12) */
    void  (*l2norm_bwd)(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm);
    /* loss [T] = -log softmax(logits)[target], 0 where it is -1; grad: scale * loss's, may be logits or absent */
    void  (*xent)    (struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits,
                      const int32_t *target, float scale);
    /* y = silu(causal depthwise conv + bias); x,y [T,C], w [C,W], bias [C] or absent. state, next [N,W-1,C]
     * F32: the last W-1 inputs of each sequence, oldest first; may be absent, or one memory. */
    void  (*conv)    (struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
                      struct tensor bias, struct tensor state, const struct seqs *s);
    void  (*conv_bwd)(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                      struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s);
    void  (*rope)    (struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign);
    /* optimizer: sum [1] F32 += sum x^2 (added up in double); w = value, may be master itself */
    void  (*sumsq)   (struct dev *d, struct tensor sum, struct tensor x);
    void  (*adamw)   (struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
                      struct tensor g, const struct adamw *h);
    void  (*products)(struct dev *d, const struct products *p);
    void  (*recall)  (struct dev *d, const struct recall *r, const struct seqs *s);
};
extern const struct ops ops_naive, ops_cpu, ops_cuda;
EXTERN_C_END
#endif
