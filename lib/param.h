/* param.h - every weight of the model by name, and the buckets that store, reduce and update them.
 *
 * A bucket is the unit of storage, of communication and of the optimizer: the parameters of one
 * layer, contiguous. Within it decayed parameters come first, then undecayed, then frozen ones; gains lie
 * on both sides of the first cut. What is trained is padded so that every rank owns an equal slice; what is
 * frozen has no gradient (in bucket 0 one that nobody reads), is in no slice and never sent. Bucket 0
 * holds all PARAM_F32 parameters of the model (A_log, dt_bias, D, norms, convolutions: small), bucket 1
 * the embedding and head, then one a layer. */
#ifndef PARAM_H
#define PARAM_H
#include "ops.h"
EXTERN_C_BEGIN
/* UNUSED implies FROZEN; GAIN: what makes a memory metaplastic (b_*, Ip_log), with a rate of its own. */
enum { PARAM_NO_DECAY = 1, PARAM_FROZEN = 2, PARAM_F32 = 4, PARAM_UNUSED = 8, PARAM_GAIN = 16 };
enum { BUCKET_F32, BUCKET_EMBED, BUCKET_LAYER };              /* + layer index */

/* One initial value: a function of (seed, stream of the name, element index), so the same on any
 * number of ranks. a, b and c are the numbers of the distribution. */
struct param;
typedef float draw_fn(uint64_t seed, uint64_t stream, int64_t i, const struct param *p);
draw_fn draw_const;             /* a */
draw_fn draw_normal;            /* N(a, b) */
draw_fn draw_uniform;           /* U(a, b) */
draw_fn draw_log_uniform;       /* log U(a, b), open at a */
draw_fn draw_dt_bias;           /* softplus^-1(dt), dt log-uniform in [a, b], at least c */
draw_fn draw_log_ramp;          /* log of a .. b, evenly over the elements */
draw_fn draw_dt_ramp;           /* softplus^-1 of b .. a, evenly over the elements, at least c */

struct param {
    char          name[96];         /* as in the checkpoint: "model.layers.3.attn.q_proj.weight" */
    struct tensor value, grad;      /* views into the bucket, set by params_alloc */
    int64_t       offset;           /* elements into the bucket */
    unsigned      flags;
    int           bucket;
    draw_fn      *draw;
    float         a, b, c;
};
struct bucket {
    struct tensor value;            /* [count] working copy, dev->type (or F32) */
    struct tensor grad;             /* [world * slice] F32; in bucket 0 [count] */
    struct tensor master, m, v;     /* [state] F32: this rank's part of what is trained; master may be value itself */
    int64_t       decayed, trained; /* the two cuts: [0,decayed) decays, [decayed,trained) not, the rest is frozen */
    int64_t       gain[2];          /* [gain[0],gain[1]) has the rate of gains; gain[0] <= decayed <= gain[1] */
    int64_t       count, slice;     /* the ranks' slices are the first world * slice <= count elements */
    int64_t       state;            /* of a slice, how many elements at most are trained */
};
struct params {
    struct param  *at;
    int            n, cap;
    struct bucket *bucket;
    int            nbucket;
    bool           decay_all;       /* weight decay on everything, as the released training did */
    void          *memory[5];       /* F32 values, other values, grad, master, moments: on the device */
};
/* Declares one; returns its index. Pointers into at[] move while declaring. */
int  params_add(struct params *p, struct param like);      /* of it name, value's shape, flags to c are read */
/* Lays out buckets and allocates. learn: also gradients; optim: also master and moments. 0 or -1. */
int  params_alloc(struct params *p, struct dev *d, int world, bool learn, bool optim);
void params_init(struct params *p, struct dev *d, uint64_t seed, int rank);
void params_master(struct params *p, struct dev *d, int rank);     /* master = value (after loading weights) */
void params_zero_grad(struct params *p, struct dev *d);
struct param *params_find(struct params *p, const char *name);
/* Reads or writes one parameter's whole value as float, through the host; [count] floats. */
void param_get(struct dev *d, const struct tensor *t, float *out);
void param_put(struct dev *d, const struct tensor *t, const float *in);
/* Bytes that params_alloc will ask for: weights, gradients, optimizer. */
void params_bytes(const struct params *p, enum dtype type, bool optim, size_t bytes[3]);
/* Lays buckets out without storage; params_alloc calls it. */
void params_layout(struct params *p, enum dtype type, int world);
void params_free(struct params *p, struct dev *d);
EXTERN_C_END
#endif
