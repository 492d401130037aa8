/* launch.cuh - the launchers that cuda.cu puts into its table; ops.h says what each does. */
#ifndef LAUNCH_CUH
#define LAUNCH_CUH
#include "ops.h"

bool cuda_record   (struct dev *d, const void *key, size_t bytes);
void cuda_recorded (struct dev *d, uint64_t trace);
#define T struct tensor
void cuda_fill     (struct dev *d, T y, float value);
void cuda_cast     (struct dev *d, T y, T x);
void cuda_matmul   (struct dev *d, T c, T a, T b, int flags);
void cuda_embed    (struct dev *d, T y, T w, const int32_t *token);
void cuda_embed_bwd(struct dev *d, T dw, T dy, const int32_t *token);
void cuda_add      (struct dev *d, T y, T a, T b);
void cuda_map      (struct dev *d, enum map f, T y, T x);
void cuda_map_bwd  (struct dev *d, enum map f, T dx, T dy, T x);
void cuda_mul      (struct dev *d, T y, T x, T s, bool add);
void cuda_mul_bwd  (struct dev *d, T dx, T ds, T dy, T x, T s, bool add);
void cuda_swiglu   (struct dev *d, T y, T gate, T up);
void cuda_swiglu_bwd(struct dev *d, T dgate, T dup, T dy, T gate, T up);
void cuda_decay    (struct dev *d, T dt, T decay, T x, T bias, T A_log, struct dt_range r);
void cuda_decay_bwd(struct dev *d, T dx, T dbias, T dA_log, T ddt, T ddecay, T x, T bias, T A_log, struct dt_range r);
void cuda_gain     (struct dev *d, T b, T x, T b_scale, T s);
void cuda_gain_bwd (struct dev *d, T dx, T db_scale, T ds, T db, T x, T b_scale, T s);
void cuda_rmsnorm  (struct dev *d, T y, T rstd, T x, T w, T z, enum gate g, float eps);
void cuda_rmsnorm_bwd(struct dev *d, T dx, T dw, T dz, T dy, T x, T w, T z, T rstd, enum gate g, bool add);
void cuda_l2norm   (struct dev *d, T y, T rnorm, T x);
void cuda_l2norm_bwd(struct dev *d, T dx, T dy, T y, T rnorm);
void cuda_xent     (struct dev *d, T loss, T grad, T logits, const int32_t *target, float scale);
void cuda_conv     (struct dev *d, T y, T next, T x, T w, T bias, T state, const struct seqs *s);
void cuda_conv_bwd (struct dev *d, T dx, T dw, T dbias, T dy, T x, T w, T bias, const struct seqs *s);
void cuda_rope     (struct dev *d, T y, T x, const int32_t *pos, float base, int sign);
void cuda_sumsq    (struct dev *d, T sum, T x);
void cuda_adamw    (struct dev *d, T w, T master, T m, T v, T g, const struct adamw *h);
#undef T
void cuda_products (struct dev *d, const struct products *p);
void cuda_recall   (struct dev *d, const struct recall *r, const struct seqs *s);

/* What cuda_matmul needs for a device. */
struct blas *blas_open(void);                            /* NULL, with the reason on stderr, when it cannot */
void         blas_close(struct blas *b);

void cuda_lane(struct dev *d, int lane);
bool lanes_run(const struct lanes *l);                   /* does what follows belong to a lane? l may be NULL */
void lanes_close(struct lanes *l);                       /* may be NULL */

/* What cuda_record needs. */
struct graphs *graphs_open(void);
void           graphs_forget(struct graphs *g);          /* all recordings */
bool           graphs_recording(const struct graphs *g);
#endif
