/* config.c - config.json of every family, read into one struct.
 *
 * Which form a file has is told by its keys. Numbers that shape tensors must be there; where the
 * family's own code derives one (num_heads of state-spaces and fla files: expand * width / head_dim)
 * so do we. Switches that would change the model into one we do not have are refused by name. */
#include "config.h"
#include "config_said.h"
#include "json.h"
#include <math.h>

enum { MOST = CONFIG_MOST, NEEDED = -1 };

/* Reading goes on after a mistake, so that all missing keys are named at once. */
struct keys {
    const struct json *j;
    const char        *file;
    struct text        missing;
    bool               bad;
};

static void missing(struct keys *k, const char *key)
{
    text_add(&k->missing, "%s%s", k->missing.n ? ", " : "", key);
    k->bad = true;
}

/* Notes a mistake that was told and gives a size that is harmless until reading ends. */
static int64_t mistake(struct keys *k)
{
    k->bad = true;
    return 1;
}

/* key, or its other name; when both are there they must agree. absent NEEDED: an error. */
static int64_t size_of(struct keys *k, const char *key, const char *other, int64_t absent)
{
    int64_t a = absent, b = absent;
    int has_a = json_int(k->j, key, &a), has_b = other ? json_int(k->j, other, &b) : 0;

    if (has_a < 0 || has_b < 0)
        return mistake(k);
    if (!has_a && !has_b) {
        if (absent == NEEDED)
            missing(k, key);
        return absent == NEEDED ? 1 : absent;
    }
    if (has_a && has_b && a != b) {
        fail("%s: %s is %lld, but %s is %lld", k->file, key, (long long)a, other, (long long)b);
        return mistake(k);
    }
    if (!has_a)
        a = b;
    if (a < 0 || a > MOST) {
        fail("%s: %s is %lld", k->file, has_a ? key : other, (long long)a);
        return mistake(k);
    }
    return a;
}

static int count_of(struct keys *k, const char *key, const char *other, int64_t absent)
{
    return (int)size_of(k, key, other, absent);
}

static double real_of(struct keys *k, const char *key, const char *other, double absent)
{
    double a = absent, b = absent;
    int has_a = json_double(k->j, key, &a), has_b = other ? json_double(k->j, other, &b) : 0;

    if (has_a < 0 || has_b < 0)
        k->bad = true;
    if (has_a > 0 && has_b > 0 && a != b) {
        fail("%s: %s is %g, but %s is %g", k->file, key, a, other, b);
        k->bad = true;
    }
    return has_a > 0 ? a : b;
}

static bool flag_of(struct keys *k, const char *key, bool absent)
{
    if (json_bool(k->j, key, &absent) < 0)
        k->bad = true;
    return absent;
}

/* A token id: absent or null is none; a list (several ends) counts by its first. */
static int id_of(struct keys *k, const char *key)
{
    const struct json *j = json_at(k->j, key);
    double x = -1;

    if (json_is_array(j))
        j = json_first(j);
    if (j && (!json_number(j, &x) || x != floor(x) || x < -1 || x > MOST)) {
        fail("%s: %s: expected a token id", k->file, key);
        k->bad = true;
        x = -1;
    }
    return (int)x;
}

/* A switch whose other position is a model we do not have. */
static void must_be(struct keys *k, const char *key, bool want)
{
    if (flag_of(k, key, want) == want)
        return;
    fail("%s: %s is %s; only %s is supported", k->file, key, want ? "false" : "true",
         want ? "true" : "false");
    k->bad = true;
}

static void must_be_silu(struct keys *k)
{
    const char *act = "silu";

    if (json_string(k->j, "hidden_act", &act) < 0)
        k->bad = true;
    else if (strcmp(act, "silu") && strcmp(act, "swish")) {
        fail("%s: hidden_act is \"%s\"; only silu is supported", k->file, act);
        k->bad = true;
    }
}

static void must_be_empty(struct keys *k, const char *key)
{
    if (json_count(json_at(k->j, key)) <= 0)
        return;
    fail("%s: %s: attention layers are not supported", k->file, key);
    k->bad = true;
}

/* [lo, hi] with 0 <= lo <= hi; hi may be Infinity. */
static void pair_of(struct keys *k, const char *key, float *lo, float *hi)
{
    const struct json *j = json_at(k->j, key), *first = json_first(j);
    double a, b;

    if (!j)
        return;
    if (!json_is_array(j) || json_count(j) != 2 || !json_number(first, &a) ||
        !json_number(json_next(first), &b) || !(a >= 0) || !(b >= a)) {
        fail("%s: %s: expected two numbers [low, high]", k->file, key);
        k->bad = true;
        return;
    }
    *lo = (float)a;
    *hi = (float)b;
}

/* "ramp", or absent for the family's own. */
static void read_init(struct keys *k, struct config *c)
{
    const char *init = NULL;

    if (json_string(k->j, "init", &init) < 0)
        k->bad = true;
    else if (init && strcmp(init, "ramp")) {
        fail("%s: init is \"%s\"; only \"ramp\" is known", k->file, init);
        k->bad = true;
    }
    c->ramp = init != NULL;
}

static void read_timing(struct keys *k, struct config *c, const char *min, const char *max,
                        const char *floor_key)
{
    c->dt_min = (float)real_of(k, min, NULL, 1e-3);
    c->dt_max = (float)real_of(k, max, NULL, 0.1);
    c->dt_floor = (float)real_of(k, floor_key, NULL, 1e-4);
}

/* Which layers are metaplastic. metaplastic_layers says where the parameters are;
 * metaplasticity false leaves them there and unused. */
static void read_meta(struct keys *k, struct config *c)
{
    const struct json *list = json_at(k->j, "metaplastic_layers");
    bool on = flag_of(k, "metaplasticity", true);

    if (list && !json_is_array(list)) {
        fail("%s: metaplastic_layers: expected a list of layers", k->file);
        k->bad = true;
        return;
    }
    for (int i = 0; i < c->layers; i++)
        c->gain[i] = !list;
    for (const struct json *e = json_first(list); e; e = json_next(e)) {
        double x;
        if (!json_number(e, &x) || x != floor(x) || x < 0 || x >= c->layers || c->gain[(int)x]) {
            fail("%s: metaplastic_layers: expected distinct layers from 0 to %d", k->file,
                 c->layers - 1);
            k->bad = true;
            return;
        }
        c->gain[(int)x] = true;
    }
    for (int i = 0; i < c->layers; i++)
        c->meta[i] = on && c->gain[i];
}

/* Each layer's mixer: the family's own, or as "mixers" says, one name for all or a list. */
static void read_mixers(struct keys *k, struct config *c)
{
    const struct json *j = json_at(k->j, "mixers"), *e = json_is_array(j) ? json_first(j) : j;
    const char *own = config_mixer(c);

    for (int i = 0; i < c->layers && !k->bad; i++) {
        const char *name = j ? json_text(e) : own;
        if (!name || !*name || !str_format(c->mixer[i], sizeof c->mixer[i], "%s", name)) {
            fail("%s: mixers: expected the name of a mixer, or a list of %d", k->file, c->layers);
            k->bad = true;
        }
        e = json_is_array(j) && e ? json_next(e) : e;
    }
    if (json_is_array(j) && !k->bad && json_count(j) != c->layers) {
        fail("%s: mixers: expected %d names, found %lld", k->file, c->layers,
             (long long)json_count(j));
        k->bad = true;
    }
}

static void read_common(struct keys *k, struct config *c, struct config_said *said)
{
    c->layers = count_of(k, "num_hidden_layers", "n_layer", NEEDED);
    c->width = count_of(k, "hidden_size", "d_model", NEEDED);
    c->vocab = size_of(k, "vocab_size", NULL, NEEDED);
    c->vocab_real = size_of(k, "real_vocab_size", NULL, c->vocab);
    c->tied = flag_of(k, "tie_word_embeddings", false);
    said->tied = json_at(k->j, "tie_word_embeddings") != NULL;
    c->init_std = (float)real_of(k, "initializer_range", NULL, 0.02);
    read_init(k, c);
    c->bos = id_of(k, "bos_token_id");
    c->eos = id_of(k, "eos_token_id");
    c->pad = id_of(k, "pad_token_id");
    c->context = count_of(k, "max_position_embeddings", NULL, 0);
    if (c->layers > MAX_LAYERS) {
        fail("%s: %d layers; at most %d are supported", k->file, c->layers, MAX_LAYERS);
        k->bad = true;
        c->layers = 1;
    }
    read_mixers(k, c);
}

/* A ratio times a size where only a whole number makes sense, up to the ratio's rounding. */
static int scaled(struct keys *k, const char *key, double ratio, int size)
{
    double x = ratio * size;

    if (x >= 1 && x <= MOST && fabs(x - round(x)) < 1e-6)
        return (int)round(x);
    fail("%s: %s %g times %d is not a size", k->file, key, ratio, size);
    k->bad = true;
    return 1;
}

/* What fla computes when intermediate_size is null. */
static int ffn_width(struct keys *k, int width)
{
    double ratio = real_of(k, "hidden_ratio", NULL, 0), x = width * ratio * 2 / 3;

    if (!json_at(k->j, "hidden_ratio"))
        missing(k, "intermediate_size or hidden_ratio");
    else if (!(x >= 1 && x <= MOST)) {
        fail("%s: hidden_ratio is %g", k->file, ratio);
        k->bad = true;
    }
    return k->bad ? 1 : (int)vocab_padded((int64_t)x, 256);
}

static void read_palimpsa(struct keys *k, struct config *c, struct config_said *said)
{
    int head;

    read_common(k, c, said);
    c->heads = c->groups = count_of(k, "num_heads", NULL, NEEDED);
    head = count_of(k, "head_dim", NULL, NEEDED);
    c->key = scaled(k, "expand_k", real_of(k, "expand_k", NULL, 1), head);
    if (!json_at(k->j, "expand_v"))
        missing(k, "expand_v");
    c->value = scaled(k, "expand_v", real_of(k, "expand_v", NULL, 1), head);
    c->conv = count_of(k, "conv_size", NULL, NEEDED);
    c->rank = count_of(k, "beta_step_rank", NULL, NEEDED);
    c->ffn = count_of(k, "intermediate_size", NULL, 0);
    if (!json_at(k->j, "intermediate_size"))
        c->ffn = ffn_width(k, c->width);
    c->eps = (float)real_of(k, "norm_eps", NULL, 1e-6);
    c->use_gate = flag_of(k, "use_gate", true);
    c->residual_f32 = flag_of(k, "residual_in_fp32", false);
    c->A_lo = 0;
    c->A_hi = 16;
    pair_of(k, "A_init_range", &c->A_lo, &c->A_hi);
    c->dt_hi = INFINITY;
    read_timing(k, c, "time_step_min", "time_step_max", "time_step_floor");
    read_meta(k, c);
    must_be(k, "use_short_conv", true);
    must_be(k, "use_residual", true);
    must_be(k, "conv_bias", false);
    must_be_silu(k);
    must_be_empty(k, "attn");
}

/* expand * width as Python's int() has it; -1 when that is no size. */
static int64_t inner_of(double expand, int width)
{
    double x = expand * width;

    return x >= 1 && x <= MOST ? (int64_t)x : -1;
}

/* mamba2 and meta_mamba2 of Hugging Face and fla. Their norm_before_gate key does nothing in the
 * code that wrote it (gate, then norm, always); gate_after_norm is ours and does. */
static void read_mamba2(struct keys *k, struct config *c, struct config_said *said)
{
    read_common(k, c, said);
    said->expand = real_of(k, "expand", NULL, 0);
    said->inner = json_at(k->j, "expand") ? inner_of(said->expand, c->width) : 0;
    c->value = count_of(k, "head_dim", NULL, NEEDED);
    c->heads = count_of(k, "num_heads", NULL, said->inner && c->value > 0 ? 0 : NEEDED);
    if (!c->heads)
        c->heads = (int)(said->inner / c->value);
    c->key = count_of(k, "state_size", NULL, NEEDED);
    c->groups = count_of(k, "n_groups", NULL, NEEDED);
    c->conv = count_of(k, "conv_kernel", NULL, NEEDED);
    c->eps = (float)real_of(k, "layer_norm_epsilon", "norm_eps", 1e-5);
    c->norm_groups = count_of(k, "norm_groups", NULL, 1);
    said->norm_groups = json_at(k->j, "norm_groups") != NULL;
    c->norm_before_gate = flag_of(k, "gate_after_norm", false);
    c->D_has_hdim = flag_of(k, "D_has_hdim", false);
    c->conv_bias = flag_of(k, "use_conv_bias", true);
    c->proj_bias = flag_of(k, "use_bias", false);
    c->residual_f32 = flag_of(k, "residual_in_fp32", true);
    c->rescale_prenorm = flag_of(k, "rescale_prenorm_residual", false);
    c->use_gate = true;
    c->dt_hi = INFINITY;
    pair_of(k, "time_step_limit", &c->dt_lo, &c->dt_hi);
    read_timing(k, c, "time_step_min", "time_step_max", "time_step_floor");
    c->A_lo = 1;
    c->A_hi = 16;
    if (!strcmp(c->family, "meta_mamba2")) {
        c->A_lo = 0;
        read_meta(k, c);
        c->rank = count_of(k, "beta_step_rank", NULL, NEEDED);
    }
    pair_of(k, "A_init_range", &c->A_lo, &c->A_hi);
    must_be(k, "rms_norm", true);
    must_be_silu(k);
    must_be_empty(k, "attn");
}

/* mamba_ssm: absent keys mean what its Mamba2 class means by them. */
static void read_native(struct keys *k, struct config *c, struct config_said *said)
{
    struct keys ssm = { json_at(k->j, "ssm_cfg"), k->file, { 0 }, false };
    const char *layer = "none (which means Mamba1)";
    int64_t multiple;

    c->native = true;
    read_common(k, c, said);
    c->tied = flag_of(k, "tie_embeddings", true);
    said->tied = json_at(k->j, "tie_embeddings") != NULL;
    multiple = size_of(k, "pad_vocab_size_multiple", NULL, 8);
    c->vocab = vocab_padded(c->vocab, multiple > 0 ? multiple : 1);
    c->residual_f32 = flag_of(k, "residual_in_fp32", true);
    if (json_string(ssm.j, "layer", &layer) < 0 || strcmp(layer, "Mamba2")) {
        fail("%s: ssm_cfg.layer: expected \"Mamba2\", found %s", k->file, layer);
        k->bad = true;
    }
    c->key = count_of(&ssm, "d_state", NULL, 128);
    c->conv = count_of(&ssm, "d_conv", NULL, 4);
    c->value = count_of(&ssm, "headdim", NULL, 64);
    c->groups = c->norm_groups = count_of(&ssm, "ngroups", NULL, 1);
    said->norm_groups = true;
    said->expand = real_of(&ssm, "expand", NULL, 2);
    said->inner = inner_of(said->expand, c->width);
    if (c->value > 0)
        c->heads = (int)(said->inner / c->value);
    if (json_at(ssm.j, "d_ssm") && size_of(&ssm, "d_ssm", NULL, 0) != said->inner) {
        fail("%s: ssm_cfg.d_ssm: only the whole inner width is supported", k->file);
        ssm.bad = true;
    }
    c->eps = 1e-5f;
    c->norm_before_gate = flag_of(&ssm, "norm_before_gate", false);
    c->D_has_hdim = flag_of(&ssm, "D_has_hdim", false);
    c->conv_bias = flag_of(&ssm, "conv_bias", true);
    c->proj_bias = flag_of(&ssm, "bias", false);
    c->use_gate = true;
    c->rescale_prenorm = true;
    c->dt_hi = INFINITY;
    pair_of(&ssm, "dt_limit", &c->dt_lo, &c->dt_hi);
    read_timing(&ssm, c, "dt_min", "dt_max", "dt_init_floor");
    c->A_lo = 1;
    c->A_hi = 16;
    pair_of(&ssm, "A_init_range", &c->A_lo, &c->A_hi);
    must_be(&ssm, "rmsnorm", true);
    must_be(k, "rms_norm", true);
    must_be_empty(k, "attn_layer_idx");
    if (count_of(k, "d_intermediate", NULL, 0)) {
        fail("%s: d_intermediate: blocks with an MLP are not supported in this form", k->file);
        k->bad = true;
    }
    k->bad = k->bad || ssm.bad;
}

/* Which reader; NULL with the reason. */
static void (*form_of(struct keys *k, struct config *c))(struct keys *, struct config *,
                                                         struct config_said *)
{
    const char *type = NULL;
    bool ssm = json_at(k->j, "ssm_cfg") || (json_at(k->j, "d_model") && json_at(k->j, "n_layer"));
    bool hf = json_at(k->j, "hidden_size") && json_at(k->j, "num_hidden_layers");

    if (json_string(k->j, "model_type", &type) < 0)
        return NULL;
    if (type && strcmp(type, "palimpsa") && strcmp(type, "meta_mamba2") && strcmp(type, "mamba2")) {
        fail("%s: model_type is \"%s\"; supported are palimpsa, meta_mamba2 and mamba2", k->file,
             type);
        return NULL;
    }
    if (!type && !ssm) {
        fail("%s: no model_type, and none of the keys of a state-spaces config (d_model, n_layer, "
             "ssm_cfg)", k->file);
        return NULL;
    }
    if (type && ssm && (hf || strcmp(type, "mamba2"))) {
        fail("%s: mixes model_type \"%s\" with the keys of a state-spaces config", k->file, type);
        return NULL;
    }
    str_format(c->family, sizeof c->family, "%s", type ? type : "mamba2");
    return ssm ? read_native : strcmp(c->family, "palimpsa") ? read_mamba2 : read_palimpsa;
}

int config_parse_said(struct config *c, struct config_said *said, const char *text, size_t n,
                      const char *name)
{
    struct json *j = json_parse(text, n, name);
    struct keys k = { j, name, { 0 }, false };
    void (*read)(struct keys *, struct config *, struct config_said *) = NULL;

    memset(c, 0, sizeof *c);
    memset(said, 0, sizeof *said);
    c->norm_groups = 1;
    if (j && !json_is_object(j))
        fail("%s: expected an object", name);
    else if (j)
        read = form_of(&k, c);
    if (read)
        read(&k, c, said);
    if (k.missing.n)
        fail("%s: missing %s", name, k.missing.at);
    text_free(&k.missing);
    json_free(j);
    return read && !k.bad ? 0 : -1;
}

int config_parse(struct config *c, const char *text, size_t n, const char *name)
{
    struct config_said said;

    if (config_parse_said(c, &said, text, n, name))
        return -1;
    if (said.inner && said.inner != (int64_t)c->heads * c->value)
        return fail("%s: expand %g x %s %d = %lld, but num_heads %d x head_dim %d = %lld", name,
                    said.expand, config_key(c, "hidden_size"), c->width, (long long)said.inner,
                    c->heads, c->value, (long long)c->heads * c->value);
    return config_check(c, name);
}
