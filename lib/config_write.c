/* config_write.c - a config as its family's own code reads it back.
 *
 * What a form cannot say is refused, not dropped. Ours on top of Hugging Face's keys, each only where
 * it says something: metaplastic_layers, mixers, real_vocab_size, norm_groups, gate_after_norm,
 * D_has_hdim, A_init_range, init. */
#include "config.h"
#include "json.h"
#include <math.h>

static void member(struct text *t, const char *key)
{
    text_add(t, "%s\n  \"%s\": ", t->n > 1 ? "," : "", key);
}

static void put_int(struct text *t, const char *key, int64_t x)
{
    member(t, key);
    text_add(t, "%lld", (long long)x);
}

static void put_flag(struct text *t, const char *key, bool on)
{
    member(t, key);
    text_add(t, on ? "true" : "false");
}

static void put_string(struct text *t, const char *key, const char *s)
{
    member(t, key);
    text_string(t, s, strlen(s));
}

/* The fewest digits that read back as the same float: 0.02, not 0.0199999996. */
static void add_float(struct text *t, float x)
{
    char s[32];
    int digits = 1;

    do
        snprintf(s, sizeof s, "%.*g", digits, (double)x);
    while (strtof(s, NULL) != x && digits++ < 9);
    text_real(t, strtod(s, NULL));
}

static void put_float(struct text *t, const char *key, float x)
{
    member(t, key);
    add_float(t, x);
}

static void put_pair(struct text *t, const char *key, float lo, float hi)
{
    member(t, key);
    text_add(t, "[");
    add_float(t, lo);
    text_add(t, ", ");
    add_float(t, hi);
    text_add(t, "]");
}

static void put_id(struct text *t, const char *key, int id)
{
    member(t, key);
    if (id < 0)
        text_add(t, "null");
    else
        text_add(t, "%d", id);
}

/* The ratio that Python's int(ratio * size) turns back into product. */
static double ratio_of(int64_t product, int64_t size)
{
    double ratio = (double)product / (double)size;

    while ((int64_t)(ratio * (double)size) < product)
        ratio = nextafter(ratio, INFINITY);
    return ratio;
}

static void put_ratio(struct text *t, const char *key, int64_t product, int64_t size)
{
    member(t, key);
    if (product % size)
        text_real(t, ratio_of(product, size));
    else
        text_add(t, "%lld", (long long)(product / size));
}

static void put_timing(struct text *t, const struct config *c)
{
    put_float(t, "time_step_min", c->dt_min);
    put_float(t, "time_step_max", c->dt_max);
    put_float(t, "time_step_floor", c->dt_floor);
}

static int put_meta(struct text *t, const struct config *c)
{
    int meta = 0, gain = 0, n = 0;

    for (int i = 0; i < c->layers; i++) {
        meta += c->meta[i];
        gain += c->gain[i];
        if (c->meta[i] && !c->gain[i])
            return fail("layer %d is metaplastic without the parameters for it", i);
    }
    if (meta && meta != gain)
        return fail("%d of %d layers with metaplastic parameters use them: config.json says all or "
                    "none", meta, gain);
    put_flag(t, "metaplasticity", meta || !gain);
    put_int(t, "beta_step_rank", c->rank);
    if (gain == c->layers)
        return 0;
    member(t, "metaplastic_layers");
    for (int i = 0; i < c->layers; i++)
        if (c->gain[i])
            text_add(t, "%s%d", n++ ? ", " : "[", i);
    text_add(t, "%s]", n ? "" : "[");
    return 0;
}

/* Only where a layer has another mixer than its family's: published readers know nothing of the key. */
static void put_mixers(struct text *t, const struct config *c)
{
    bool own = true;

    for (int i = 0; i < c->layers; i++)
        own &= !strcmp(c->mixer[i], config_mixer(c));
    if (own)
        return;
    member(t, "mixers");
    for (int i = 0; i < c->layers; i++) {
        text_add(t, i ? ", " : "[");
        text_string(t, c->mixer[i], strlen(c->mixer[i]));
    }
    text_add(t, "]");
}

static void put_common(struct text *t, const struct config *c, const char *architecture)
{
    member(t, "architectures");
    text_add(t, "[\"%s\"]", architecture);
    put_string(t, "model_type", c->family);
    put_int(t, "vocab_size", c->vocab);
    if (c->vocab_real != c->vocab)
        put_int(t, "real_vocab_size", c->vocab_real);
    put_int(t, "hidden_size", c->width);
    put_int(t, "num_hidden_layers", c->layers);
    put_int(t, "num_heads", c->heads);
    put_mixers(t, c);
    put_flag(t, "tie_word_embeddings", c->tied);
    put_float(t, "initializer_range", c->init_std);
    if (c->ramp)
        put_string(t, "init", "ramp");
    put_id(t, "bos_token_id", c->bos);
    put_id(t, "eos_token_id", c->eos);
    put_id(t, "pad_token_id", c->pad);
    if (c->context)
        put_int(t, "max_position_embeddings", c->context);
}

static int write_palimpsa(struct text *t, const struct config *c)
{
    put_common(t, c, "PalimpsaForCausalLM");
    put_int(t, "head_dim", c->key);
    put_int(t, "expand_k", 1);
    put_ratio(t, "expand_v", c->value, c->key);
    put_int(t, "conv_size", c->conv);
    put_int(t, "intermediate_size", c->ffn);
    put_float(t, "norm_eps", c->eps);
    put_flag(t, "use_gate", c->use_gate);
    put_flag(t, "use_short_conv", true);
    put_flag(t, "use_residual", true);
    put_flag(t, "residual_in_fp32", c->residual_f32);
    put_string(t, "hidden_act", "swish");
    if (c->A_lo > 0 || c->A_hi != 16)
        put_pair(t, "A_init_range", c->A_lo, c->A_hi);
    put_timing(t, c);
    return put_meta(t, c);
}

static int write_mamba2(struct text *t, const struct config *c)
{
    bool meta = !strcmp(c->family, "meta_mamba2");

    put_common(t, c, meta ? "MetaMamba2ForCausalLM" : "Mamba2ForCausalLM");
    put_int(t, "head_dim", c->value);
    put_int(t, "state_size", c->key);
    put_int(t, "n_groups", c->groups);
    put_ratio(t, "expand", (int64_t)c->heads * c->value, c->width);
    put_int(t, "conv_kernel", c->conv);
    put_flag(t, "use_conv_bias", c->conv_bias);
    put_flag(t, "use_bias", c->proj_bias);
    put_float(t, "layer_norm_epsilon", c->eps);
    put_float(t, "norm_eps", c->eps);
    put_flag(t, "rms_norm", true);
    put_flag(t, "residual_in_fp32", c->residual_f32);
    put_flag(t, "rescale_prenorm_residual", c->rescale_prenorm);
    put_string(t, "hidden_act", "silu");
    put_int(t, "chunk_size", 256);
    put_int(t, "time_step_rank", (c->width + 15) / 16);
    put_pair(t, "time_step_limit", c->dt_lo, c->dt_hi);
    put_timing(t, c);
    if (c->groups != 1 || c->norm_groups != 1)
        put_int(t, "norm_groups", c->norm_groups);
    if (c->norm_before_gate)
        put_flag(t, "gate_after_norm", true);
    if (c->D_has_hdim)
        put_flag(t, "D_has_hdim", true);
    if (c->A_lo != (meta ? 0 : 1) || c->A_hi != 16)
        put_pair(t, "A_init_range", c->A_lo, c->A_hi);
    return meta ? put_meta(t, c) : 0;
}

/* The multiple that makes vocab out of vocab_real; published ones first. 0 when there is none. */
static int64_t multiple_of(const struct config *c)
{
    static const int64_t usual[] = { 16, 8, 1, 64, 128, 32, 4, 2, 256, 512, 1024 };

    for (size_t i = 0; i < LEN(usual); i++)
        if (vocab_padded(c->vocab_real, usual[i]) == c->vocab)
            return usual[i];
    return 0;
}

/* Only what differs from mamba_ssm's defaults goes into ssm_cfg. */
static void put_ssm(struct text *out, const struct config *c)
{
    struct text t = { 0 };
    int64_t inner = (int64_t)c->heads * c->value;

    text_add(&t, "{");
    put_string(&t, "layer", "Mamba2");
    if (c->key != 128)
        put_int(&t, "d_state", c->key);
    if (c->conv != 4)
        put_int(&t, "d_conv", c->conv);
    if (c->value != 64)
        put_int(&t, "headdim", c->value);
    if (c->groups != 1)
        put_int(&t, "ngroups", c->groups);
    if (inner != 2 * (int64_t)c->width)
        put_ratio(&t, "expand", inner, c->width);
    if (c->norm_before_gate)
        put_flag(&t, "norm_before_gate", true);
    if (c->D_has_hdim)
        put_flag(&t, "D_has_hdim", true);
    if (!c->conv_bias)
        put_flag(&t, "conv_bias", false);
    if (c->proj_bias)
        put_flag(&t, "bias", true);
    if (c->dt_lo > 0 || !isinf(c->dt_hi))
        put_pair(&t, "dt_limit", c->dt_lo, c->dt_hi);
    if (c->A_lo != 1 || c->A_hi != 16)
        put_pair(&t, "A_init_range", c->A_lo, c->A_hi);
    member(out, "ssm_cfg");
    for (const char *p = t.at; *p; p++)
        text_add(out, *p == '\n' ? "\n  " : "%c", *p);
    text_add(out, "\n  }");
    text_free(&t);
}

static int write_native(struct text *t, const struct config *c)
{
    if (strcmp(c->family, "mamba2"))
        return fail("state-spaces configs have no metaplastic layers");
    if (c->norm_groups != c->groups)
        return fail("state-spaces models normalise per group: ngroups is %d, but the norm has %d",
                    c->groups, c->norm_groups);
    if (c->ramp)
        return fail("state-spaces configs have no \"init\"");
    if (c->eps != 1e-5f)
        return fail("state-spaces models have a norm epsilon of 1e-5, this one %g", (double)c->eps);
    put_int(t, "d_model", c->width);
    put_int(t, "d_intermediate", 0);
    put_int(t, "n_layer", c->layers);
    put_int(t, "vocab_size", multiple_of(c) ? c->vocab_real : c->vocab);
    if (!multiple_of(c))
        put_int(t, "real_vocab_size", c->vocab_real);
    put_ssm(t, c);
    member(t, "attn_layer_idx");
    text_add(t, "[]");
    member(t, "attn_cfg");
    text_add(t, "{}");
    put_flag(t, "rms_norm", true);
    put_flag(t, "residual_in_fp32", c->residual_f32);
    put_flag(t, "fused_add_norm", true);
    put_int(t, "pad_vocab_size_multiple", multiple_of(c) ? multiple_of(c) : 1);
    put_flag(t, "tie_embeddings", c->tied);
    return 0;
}

char *config_text(const struct config *c)
{
    struct text t = { 0 };
    int status;

    text_add(&t, "{");
    status = c->native ? write_native(&t, c) : strcmp(c->family, "palimpsa") ? write_mamba2(&t, c) :
             write_palimpsa(&t, c);
    if (status) {
        text_free(&t);
        return NULL;
    }
    text_add(&t, "\n}\n");
    return t.at;
}
