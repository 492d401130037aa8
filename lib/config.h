/* config.h - the numbers that make a model, and config.json of every family we read and write.
 *
 * Families (model_type): palimpsa, meta_mamba2, mamba2 (Hugging Face's and fla's keys), and the
 * state-spaces form (d_model, n_layer, ssm_cfg), which is family mamba2 with `native` set. */
#ifndef CONFIG_H
#define CONFIG_H
#include "base.h"
EXTERN_C_BEGIN
enum { MAX_LAYERS = 256 };

struct config {
    char    family[24];              /* "palimpsa", "meta_mamba2", "mamba2" */
    char    mixer[MAX_LAYERS][24];   /* one mixer a layer, by the name of its file */
    bool    meta[MAX_LAYERS];        /* this layer's recurrence is metaplastic */
    bool    gain[MAX_LAYERS];        /* this layer has b_* and Ip_log (the ablation keeps them, unused) */
    bool    native;                  /* came from state-spaces names and keys */
    int64_t vocab;                   /* rows of the embedding */
    int64_t vocab_real;              /* ids that mean something; <= vocab; the rest is never emitted */
    int     layers, width, ffn;      /* ffn 0: blocks without MLP */
    int     heads, groups;           /* H; key and query heads (n_groups for mamba2, H for palimpsa) */
    int     key, value;              /* K (state_size) and V (head_dim) of a head; inner width = heads*value */
    int     conv, rank;              /* width of the short convolution; beta_step_rank */
    int     norm_groups;             /* of the mixer's gated norm (mamba2); 1 in Hugging Face's */
    bool    norm_before_gate;        /* native option; default false: gate, then norm */
    bool    conv_bias, proj_bias;    /* use_conv_bias; use_bias on in_proj and out_proj */
    bool    D_has_hdim;              /* native option: D is [H*V] */
    bool    use_gate;                /* palimpsa's output gate */
    bool    tied;                    /* head = embedding */
    bool    residual_f32;            /* residual stream in fp32 whatever the storage type */
    float   eps;                     /* of every RMSNorm */
    float   dt_lo, dt_hi;            /* time_step_limit: clamp of dt; hi may be INFINITY */
    /* initialisation (math.md, section 2) */
    float   init_std;                /* initializer_range */
    bool    ramp;                    /* A and dt go evenly over the heads; every matrix is N(0, init_std) */
    float   A_lo, A_hi;              /* A ~ U(lo, hi) */
    float   dt_min, dt_max, dt_floor;
    bool    rescale_prenorm;         /* out_proj kaiming-uniform / sqrt(layers) */
    int     bos, eos, pad;           /* ids; -1: none */
    int     context;                 /* length it was trained at (max_position_embeddings); 0 unknown */
};

/* text need not end in NUL; name is the file it came from, for messages. 0, or -1 with the reason:
 * a missing or contradicting number is named, nothing falls back to another model's defaults. */
int   config_parse(struct config *c, const char *text, size_t n, const char *name);
/* path: a config.json, a directory that holds one, or the name of a preset (data/models/NAME.json). */
int   config_read(struct config *c, const char *path);
/* The same model as text in its family's own keys (native: state-spaces keys). The caller frees; NULL with
 * the reason when these keys cannot say it. */
char *config_text(const struct config *c);
int   config_check(const struct config *c, const char *name);      /* what must agree: groups | heads, ... */
const char *config_mixer(const struct config *c);                  /* the mixer that is the family's own */
int64_t config_parameters(const struct config *c);                 /* how many, tied counted once */
/* The least multiple that is at least n. */
int64_t vocab_padded(int64_t n, int64_t multiple);
EXTERN_C_END
#endif
