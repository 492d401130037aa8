/* model.h - embedding, a stack of (mixer, MLP) blocks, head. Knows nothing of ranks, files or time. */
#ifndef MODEL_H
#define MODEL_H
#include "loader.h"
#include "mixer.h"
EXTERN_C_BEGIN
struct model_block {                           /* what forward leaves for backward, one per layer */
    struct tensor x, normed, rstd;       /* block input, its norm (the mixer's input) */
    struct tensor mid, mid_normed, mid_rstd;   /* input of the MLP half */
    struct tensor gate_up;               /* [T,2 ffn] */
    void         *saved;                 /* the mixer's struct */
    size_t        mark;                  /* where this block starts in dev->keep */
};
struct model {
    struct config cfg;
    struct dev   *dev;
    struct params params;
    struct layer *layer;                 /* [cfg.layers] */
    struct model_block *block;                 /* [cfg.layers] */
    int           embed, head, norm;     /* parameter indices; head == embed when tied */
    bool          recompute;             /* keep only block inputs; redo the block in backward */
    int           first;                 /* the lowest layer that learns: backward ends there */
    int32_t      *host;                  /* a row on its way to the device */
    int64_t       host_room;
    struct ahead *ahead;                 /* a row that is there before its trip */
    struct tensor loss;                  /* on the device, between the halves of model_learn */
};
/* Everything; metaplastic parameters; all parameters of metaplastic layers. */
enum model_train { TRAIN_ALL, TRAIN_GAINS, TRAIN_META };
enum model_train model_train_of(const char *name);           /* "all", "plasticity", "converted" */
struct model_use {
    int  world;                          /* ranks that share the optimizer */
    bool learn, optim;                   /* allocate gradients; and the optimizer's state */
    bool recompute, decay_all;
    enum model_train train;              /* the rest is frozen */
    bool train_prior;                    /* Ip_log too, which is frozen otherwise */
};

/* Names, shapes and flags of all parameters, without storage. model_close frees. 0, or -1 with the reason. */
int    model_declare(struct model *m, struct dev *d, const struct config *c, const struct model_use *use);
/* Declares and allocates; weights are not set (params_init, ckpt_load). 0, or -1 with the reason. */
int    model_open (struct model *m, struct dev *d, const struct config *c, const struct model_use *use);
void   model_close(struct model *m);
/* Loss of each token into nll (host, or NULL), 0 without a target; returns the sum. p: state and watch, or NULL. */
double model_loss (struct model *m, const struct batch *b, const struct pass *p, float *nll);
/* Loss summed over predictions, and grad += scale * d loss. done is told each bucket whose gradients are final. */
double model_learn(struct model *m, const struct batch *b, float scale, void (*done)(void *arg, int bucket), void *arg);
/* Logits [rows, vocab] host floats of every token, or of the last one of every sequence (an empty
 * sequence's row means nothing). */
void   model_logits(struct model *m, const struct batch *b, const struct pass *p, bool last, float *logits);

/* How many of the n tokens at[] have a target that is likelier than every other id; right [n], or NULL, says which.
 * Logits exist only of tokens with a target, when these are few. Room as for JOB_LOSS. */
int64_t model_right(struct model *m, const struct batch *b, const struct pass *p, const int32_t *at, int64_t n,
                    bool *right);
/* Forward without a head, for the state alone. */
void   model_feed  (struct model *m, const struct batch *b, const struct pass *p);

/* Forward in steps, for models whose layers are not all there at once: x [tokens,width] F32 is the residual stream.
 * logits: [tokens, vocab] host floats. */
void   model_enter(struct model *m, const struct batch *b, struct tensor x);
void   model_pass (struct model *m, const struct batch *b, const struct pass *p, int layer, struct tensor x);
void   model_leave(struct model *m, struct tensor x, float *logits);

/* State for nseq sequences, one entry a layer, allocated on the device. */
struct model_state { struct tensor (*at)[MIXER_STATES]; void *memory; size_t bytes; int64_t nseq; };
int  model_state_open (struct model *m, struct model_state *s, int64_t nseq);
void model_state_close(struct model *m, struct model_state *s);
/* Sequence i of to becomes sequence which[i] of from; which [to->nseq]. */
void model_state_pick (struct model *m, struct model_state *to, const struct model_state *from, const int32_t *which);

/* Bytes, by dry runs of the same code that will run. */
struct model_plan { size_t weights, grads, optimizer, keep, temp, state; };
enum model_job { JOB_LEARN, JOB_LOSS, JOB_LOGITS };
int model_plan(struct model_plan *out, const struct dev *d, const struct config *c, const struct model_use *use,
               enum model_job job, int64_t tokens, int64_t nseq);
/* Grows the device's arenas to what the job needs on rows of so many tokens. 0, or -1 with the reason. */
int model_reserve(struct model *m, enum model_job job, int64_t tokens);
EXTERN_C_END
#endif
