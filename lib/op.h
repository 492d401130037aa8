/* op.h - how to call the verbs: op_<member>() for every member of struct ops (ops.h), same arguments.
 *
 * Each checks shapes and types once for all backends (BUG names the tensor), does nothing on a dry
 * device and accepts zero rows. Types: an activation is F32 or, on CUDA, BF16; the activations of one
 * call share one type, a gradient has the type of its tensor, and these are free to differ:
 *   add: y, a and b each;   rmsnorm: x, dx from y, dy, z, dz;   matmul: c is F32 or the type of a and b;
 *   embed: y is F32 or the type of w;   xent: grad too;   mul, gain: s (and ds) is F32 or the type of x;   cast: both.
 * F32 always: dt, decay, ddt, ddecay, rstd, rnorm, loss, state, next, sum, master, m, v, g, every
 * gradient of a weight and every weight but the matrices of matmul and embed. */
#ifndef OP_H
#define OP_H
#include "ops.h"
EXTERN_C_BEGIN

void *op_alloc  (struct dev *d, size_t bytes);
void op_release (struct dev *d, void *p);
void op_put     (struct dev *d, void *dev, const void *host, size_t bytes);
void op_get     (struct dev *d, void *host, const void *dev, size_t bytes);     /* zeros from a dry device */
void op_sync    (struct dev *d);
/* Scans may run side by side in lanes below LANES_MOST; what follows lane -1 waits for all. False: all is in order. */
enum { LANES_MOST = 16 };
bool op_lane    (struct dev *d, int lane);

/* Work that comes again with the same shapes and addresses costs one launch instead of many:
 *     op_record(d, &key, sizeof key);  ... verbs, and whatever they keep on the host ...  op_recorded(d);
 * The key says what decides the work besides the arenas, which are added to it. When the key is known the GPU
 * plays its recording, and the caller's verbs do nothing (d is dry meanwhile, its addresses real). No put and
 * no get between the two, and numbers that change from time to time belong in memory. Memory that is released
 * takes all recordings along. Elsewhere the two do nothing. */
void op_record  (struct dev *d, const void *key, size_t bytes);
void op_recorded(struct dev *d);
/* Every verb tells what it was given, so that a recording is never played for other work. */
void op_trace   (struct dev *d, struct tensor t);

void op_fill    (struct dev *d, struct tensor y, float value);
void op_cast    (struct dev *d, struct tensor y, struct tensor x);

void op_matmul  (struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags);
void op_embed   (struct dev *d, struct tensor y, struct tensor w, const int32_t *token);
void op_embed_bwd(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token);

void op_add     (struct dev *d, struct tensor y, struct tensor a, struct tensor b);
void op_map     (struct dev *d, enum map f, struct tensor y, struct tensor x);
void op_map_bwd (struct dev *d, enum map f, struct tensor dx, struct tensor dy, struct tensor x);
void op_mul     (struct dev *d, struct tensor y, struct tensor x, struct tensor s, bool add);
void op_mul_bwd (struct dev *d, struct tensor dx, struct tensor ds,
                 struct tensor dy, struct tensor x, struct tensor s, bool add);
void op_swiglu  (struct dev *d, struct tensor y, struct tensor gate, struct tensor up);
void op_swiglu_bwd(struct dev *d, struct tensor dgate, struct tensor dup,
                 struct tensor dy, struct tensor gate, struct tensor up);
void op_decay   (struct dev *d, struct tensor dt, struct tensor decay, struct tensor x,
                 struct tensor bias, struct tensor A_log, struct dt_range r);
void op_decay_bwd(struct dev *d, struct tensor dx, struct tensor dbias, struct tensor dA_log,
                 struct tensor ddt, struct tensor ddecay, struct tensor x,
                 struct tensor bias, struct tensor A_log, struct dt_range r);
void op_gain    (struct dev *d, struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s);
void op_gain_bwd(struct dev *d, struct tensor dx, struct tensor db_scale, struct tensor ds,
                 struct tensor db, struct tensor x, struct tensor b_scale, struct tensor s);

void op_rmsnorm (struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                 struct tensor z, enum gate g, float eps);
void op_rmsnorm_bwd(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                 struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add);
void op_l2norm  (struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x);
void op_l2norm_bwd(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm);
void op_xent    (struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits,
                 const int32_t *target, float scale);

void op_conv    (struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
                 struct tensor bias, struct tensor state, const struct seqs *s);
void op_conv_bwd(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                 struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s);
void op_rope    (struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign);

void op_sumsq   (struct dev *d, struct tensor sum, struct tensor x);
void op_adamw   (struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
                 struct tensor g, const struct adamw *h);

EXTERN_C_END
#endif
