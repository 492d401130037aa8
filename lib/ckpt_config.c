/* ckpt_config.c - config.json held against the shapes in the file, before anything is allocated.
 *
 * With H heads of value size V, G key heads of size K, I = H V:
 *   mamba2:   dt_bias [H], norm [I], conv1d [I + 2 G K, 1, W], in_proj [2 I + 2 G K + H, width]
 *   palimpsa: A_log [H], q_proj [H K, width], v_proj [H V, width], q_conv1d [H K, 1, W],
 *             mlp.gate_proj [ffn, width]
 * The tensors decide; where config.json says otherwise both numbers are shown. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt_parts.h"
#include "torch.h"
#include "config_said.h"
#include <unistd.h>

struct held {                                  /* one config against one file */
    const struct config *c;
    const struct st     *s;
    const char          *path;                 /* of config.json */
    char                 prefix[64];           /* of the layer's tensors */
};

static const struct st_tensor *of_layer(const struct held *h, const char *name)
{
    char full[160];

    return str_format(full, sizeof full, "%s%s", h->prefix, name) ? st_find(h->s, full) : NULL;
}

static int conflict(const struct held *h, const char *key, int64_t said, const struct st_tensor *t,
                    int64_t found)
{
    return fail("%s: %s is %lld, but %s in %s makes it %lld", h->path, config_key(h->c, key),
                (long long)said, t->name, t->file, (long long)found);
}

/* t, when it is there, must say so. unit > 1: a dim that is a multiple of what the key means. */
static int agree(const struct held *h, const char *key, int64_t said, const struct st_tensor *t,
                 int64_t found, int64_t unit)
{
    if (!t || found == said * unit)
        return 0;
    if (unit > 1 && found % unit)
        return fail("%s: %s is %lld, but %s in %s has %lld of what must be a multiple of %lld",
                    h->path, config_key(h->c, key), (long long)said, t->name, t->file,
                    (long long)found, (long long)unit);
    return conflict(h, key, said, t, found / unit);
}

static int64_t dim(const struct st_tensor *t, int i)
{
    return t && i < t->ndim ? t->dim[i] : 0;
}

static int64_t last_dim(const struct st_tensor *t)
{
    return t && t->ndim ? t->dim[t->ndim - 1] : 0;
}

/* A parameter that one switch of the config brings. */
static int present(const struct held *h, const char *key, bool said, const char *name,
                   const char *beside)
{
    const struct st_tensor *t = of_layer(h, name), *near = of_layer(h, beside);

    if ((t != NULL) == said || !near)
        return 0;
    return fail("%s: %s is %s, but %s has %s%s%s", h->path, config_key(h->c, key),
                said ? "true" : "false", near->file, said ? "no " : "", h->prefix, name);
}

static int hold_gain(const struct held *h, int i, const char *in, const char *beside)
{
    const struct st_tensor *near = of_layer(h, beside), *t;
    char name[64];

    str_format(name, sizeof name, "%sb_scale", in);
    t = of_layer(h, name);
    if (near && (t != NULL) != h->c->gain[i])
        return fail("%s: layer %d %s metaplastic parameters, but %s has %s%s%s", h->path, i,
                    h->c->gain[i] ? "has" : "has no", near->file, t ? "" : "no ", h->prefix, name);
    str_format(name, sizeof name, "%sb_rank_proj.weight", in);
    t = of_layer(h, name);
    return agree(h, "beta_step_rank", h->c->rank, t, dim(t, 0), 1);
}

static int hold_mamba2(const struct held *h, int i)
{
    const struct config *c = h->c;
    const struct st_tensor *in = of_layer(h, "mixer.in_proj.weight");
    const struct st_tensor *dt = of_layer(h, "mixer.dt_bias"), *D = of_layer(h, "mixer.D");
    const struct st_tensor *norm = of_layer(h, "mixer.norm.weight");
    const struct st_tensor *conv = of_layer(h, "mixer.conv1d.weight");
    int64_t inner = (int64_t)c->heads * c->value, pair = 2 * (int64_t)c->groups;

    if (agree(h, "hidden_size", c->width, in, dim(in, 1), 1) ||
        agree(h, "num_heads", c->heads, dt, dim(dt, 0), 1) ||
        agree(h, "head_dim", c->value, norm, dim(norm, 0), c->heads) ||
        agree(h, "conv_kernel", c->conv, conv, last_dim(conv), 1) ||
        agree(h, "state_size", c->key, conv, dim(conv, 0) - inner, pair) ||
        agree(h, "state_size", c->key, in, dim(in, 0) - 2 * inner - c->heads, pair))
        return -1;
    if (D && D->count != (c->D_has_hdim ? inner : c->heads))
        return fail("%s: D has %s, but %s in %s has %lld numbers", h->path,
                    c->D_has_hdim ? "one number per channel" : "one number per head", D->name,
                    D->file, (long long)D->count);
    return present(h, "use_conv_bias", c->conv_bias, "mixer.conv1d.bias", "mixer.conv1d.weight") ||
           present(h, "use_bias", c->proj_bias, "mixer.in_proj.bias", "mixer.in_proj.weight") ||
           hold_gain(h, i, "mixer.", "mixer.dt_bias") ? -1 : 0;
}

static int hold_palimpsa(const struct held *h, int i)
{
    const struct config *c = h->c;
    const struct st_tensor *q = of_layer(h, "attn.q_proj.weight");
    const struct st_tensor *v = of_layer(h, "attn.v_proj.weight");
    const struct st_tensor *conv = of_layer(h, "attn.q_conv1d.weight");
    const struct st_tensor *A = of_layer(h, "attn.A_log");
    const struct st_tensor *gate = of_layer(h, "mlp.gate_proj.weight");

    return agree(h, "hidden_size", c->width, q, dim(q, 1), 1) ||
           agree(h, "num_heads", c->heads, A, dim(A, 0), 1) ||
           agree(h, "head_dim", c->key, q, dim(q, 0), c->heads) ||
           agree(h, "head_dim x expand_v", c->value, v, dim(v, 0), c->heads) ||
           agree(h, "conv_kernel", c->conv, conv, last_dim(conv), 1) ||
           agree(h, "intermediate_size", c->ffn, gate, dim(gate, 0), 1) ||
           present(h, "use_gate", c->use_gate, "attn.g_proj.weight", "attn.q_proj.weight") ||
           hold_gain(h, i, "attn.", "attn.A_log") ? -1 : 0;
}

/* One more than the highest layer any name speaks of, up to what can be opened. */
static int64_t count_layers(const struct st *s, const char *stem, const struct st_tensor **last)
{
    size_t n = strlen(stem);
    int64_t most = 0;

    for (int64_t i = 0; i < s->n; i++) {
        char *end;
        long layer;
        if (strncmp(s->at[i].name, stem, n))
            continue;
        layer = strtol(s->at[i].name + n, &end, 10);
        if (*end != '.' || layer < most || layer > INT32_MAX - 1)
            continue;
        most = layer + 1;
        *last = &s->at[i];
    }
    return most;
}

static int hold_ends(struct held *h, struct config *c, const struct config_said *said)
{
    bool mlp = !strcmp(c->family, "palimpsa");
    const struct st_tensor *head = st_find(h->s, "lm_head.weight");
    const struct st_tensor *t = ckpt_find(h->s, mlp ? "model.embeddings.weight" :
                                                "backbone.embeddings.weight");

    if (!head && t && !c->tied && said->tied)
        return fail("%s: %s is false, but %s has no lm_head.weight", h->path,
                    config_key(c, "tie_word_embeddings"), t->file);
    if (!head && !said->tied)
        c->tied = true;
    t = t ? t : head;
    if (!t)
        return fail("%s: has neither an embedding nor lm_head.weight: is it a language model?",
                    h->s->at[0].file);
    if (agree(h, "hidden_size", c->width, t, dim(t, 1), 1))
        return -1;
    if (c->native && dim(t, 0) >= c->vocab_real)
        c->vocab = dim(t, 0);                  /* whatever multiple it was padded to */
    return agree(h, "vocab_size", c->vocab, t, dim(t, 0), 1);
}

static int hold(struct held *h, struct config *c, const struct config_said *said)
{
    bool mlp = !strcmp(c->family, "palimpsa");
    const char *stem = mlp ? "model.layers." : "backbone.layers.";
    const struct st_tensor *last = NULL;
    int64_t layers = count_layers(h->s, stem, &last);

    if (hold_ends(h, c, said) || agree(h, "num_hidden_layers", c->layers, last, layers, 1))
        return -1;
    for (int i = 0; i < c->layers; i++) {
        str_format(h->prefix, sizeof h->prefix, "%s%d.", stem, i);
        if (strcmp(c->mixer[i], config_mixer(c)))
            continue;                          /* ckpt_load holds it against its declared shapes */
        if (mlp ? hold_palimpsa(h, i) : hold_mamba2(h, i))
            return -1;
    }
    return config_check(c, h->path);
}

const char *ckpt_name(const char *name, bool native)
{
    if (native && !strcmp(name, "backbone.embeddings.weight"))
        return "backbone.embedding.weight";
    return name;
}

const struct st_tensor *ckpt_find(const struct st *s, const char *name)
{
    const struct st_tensor *t = st_find(s, name);

    return t ? t : st_find(s, ckpt_name(name, true));
}

static bool holds(const char *dir, const char *name)
{
    char path[4096];

    return str_format(path, sizeof path, "%s/%s", dir, name) && !access(path, F_OK);
}

struct st *ckpt_weights(const char *dir)
{
    bool safe = holds(dir, "model.safetensors") || holds(dir, "model.safetensors.index.json");
    char path[4200];
    struct st *s;

    if (!safe && holds(dir, "pytorch_model.bin")) {
        snprintf(path, sizeof path, "%s/pytorch_model.bin", dir);
        s = torch_open(path);
    } else if (!safe && holds(dir, "pytorch_model.bin.index.json")) {
        snprintf(path, sizeof path, "%s/pytorch_model.bin.index.json", dir);
        s = torch_open_index(path);
    } else {
        snprintf(path, sizeof path, "%s/model.safetensors", dir);
        s = st_open(dir);
    }
    if (s && !s->n) {
        fail("%s: holds no tensors: there is no model in it", path);
        st_close(s);
        return NULL;
    }
    return s;
}

int ckpt_config(const char *dir, struct config *c)
{
    struct config_said said;
    struct held h = { .c = c };
    char path[4096], *text;
    struct st *s;
    size_t n;
    int status;

    text = config_load(dir, &n, path, sizeof path);
    if (!text)
        return -1;
    status = config_parse_said(c, &said, text, n, path);
    free(text);
    if (status || !(s = ckpt_weights(dir)))
        return -1;
    h.s = s;
    h.path = path;
    status = c->heads > 0 && c->groups > 0 ? hold(&h, c, &said) : config_check(c, path);
    st_close(s);
    if (!status && !strcmp(c->family, "mamba2") && c->groups > 1 && !said.norm_groups)
        warn("%s: n_groups is %d: the gated norm spans the whole width, as in Transformers up to 5.22; "
             "\"norm_groups\": %d would make it per group, as mamba_ssm and later ones do", path,
             c->groups, c->groups);
    return status;
}
