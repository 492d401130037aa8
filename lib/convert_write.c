/* convert_write.c - the result's files, each tensor from the mapped source straight into place.
 *
 * Kept tensors are copied byte for byte, or through float when another type is asked; what decays and
 * norms are made of stays F32 then, as does all that is read once per token. */
#define _POSIX_C_SOURCE 200809L
#include "bpe.h"
#include "convert_parts.h"
#include "json.h"
#include "rng.h"
#include <math.h>
#include <unistd.h>

enum { PIECE = 1 << 20 };                /* numbers in hand at a time */

struct entry {
    const char             *name;
    const struct st_tensor *from;        /* NULL: fresh */
    const struct param     *param;
    enum st_type            type;
    int64_t                 rows;        /* of the first dim, when there is one */
};
struct entries { struct entry *at; int n; };

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && !strcmp(s + n - m, tail);
}

/* softplus^-1; of what is large, itself. */
static float raw(double scale)
{
    return (float)(scale > 30 ? scale : log(expm1(scale)));
}

/* The scale of b that makes a head's evidence the wanted share of its prior, which is 1: evidence grows with it. */
static double matched(const struct convert *c, const struct param *a, int64_t head)
{
    double most = 1e6, least = 1e-6, scale = most;
    int layer = 0;

    REQUIRE(sscanf(a->name, "backbone.layers.%d.", &layer) == 1);
    if (c->evidence[layer * c->src.heads + head] > 0)
        scale = c->o->gain / c->evidence[layer * c->src.heads + head];
    return scale > most ? most : scale < least ? least : scale;
}

float convert_fresh(const struct convert *c, const struct param *a, int64_t j)
{
    struct param p = *a;

    if (ends(a->name, ".b_scale") && !strcmp(c->o->init, "near"))
        return raw(c->o->eps);
    if (ends(a->name, ".b_scale") && !strcmp(c->o->init, "gain"))
        return raw(matched(c, a, j));
    if (ends(a->name, ".b_scale"))
        p.draw = draw_uniform, p.a = 0.1f, p.b = 1;
    return p.draw(c->o->seed, rng_stream(a->name), j, &p);
}

/* A fresh matrix is stored as the matrices around it. */
static enum st_type stored_as(const struct convert *c, const struct st_tensor *t, const struct param *a)
{
    const char *dtype = c->o->dtype;

    if (!dtype && t)
        return t->type;
    if (a->flags & PARAM_F32)
        return ST_F32;
    if (dtype)
        return !strcmp(dtype, "bf16") ? ST_BF16 : ST_F32;
    return ckpt_source(&c->from, c->st, c->from.embed)->type == ST_BF16 ? ST_BF16 : ST_F32;
}

static void add_entry(struct convert *c, struct entries *l, const char *name, const struct st_tensor *t,
                      const struct param *a)
{
    bool rows = a->bucket == BUCKET_EMBED;

    l->at[l->n++] = (struct entry){ name, t, a, stored_as(c, t, a), rows ? c->dst.vocab : 0 };
}

/* Where the result's parameter i comes from: a head that was tied is the embedding; unused gains are drawn anew. */
static const struct st_tensor *origin(struct convert *c, int i)
{
    const struct param *a = &c->into.params.at[i];
    const struct param *old = params_find(&c->from.params, a->name);
    int layer = a->bucket - BUCKET_LAYER;

    if (!old && i == c->into.head)
        return ckpt_source(&c->from, c->st, c->from.embed);
    if (!old)
        return NULL;
    if (sscanf(a->name, "%*[a-z].layers.%d.", &layer) == 1 && c->chosen[layer] && (old->flags & PARAM_UNUSED))
        return NULL;
    return ckpt_source(&c->from, c->st, (int)(old - c->from.params.at));
}

/* torch's own state dictionaries hold a tied head under both names, and mamba_ssm asks for both. */
static struct entries list_entries(struct convert *c)
{
    struct params *p = &c->into.params;
    struct entries l = { mem_new((size_t)p->n + 1, sizeof *l.at), 0 };

    for (int i = 0; i < p->n; i++)
        add_entry(c, &l, ckpt_name(p->at[i].name, c->dst.native), origin(c, i), &p->at[i]);
    if (c->dst.native && c->dst.tied)
        add_entry(c, &l, "lm_head.weight", origin(c, c->into.embed), &p->at[c->into.embed]);
    return l;
}

static void declare(struct st_writer *w, const struct entry *e)
{
    int64_t dim[ST_DIMS] = { 0 };
    int n = e->from ? e->from->ndim : e->param->value.ndim;

    memcpy(dim, e->from ? e->from->dim : e->param->value.dim, sizeof *dim * (size_t)n);
    if (e->rows)
        dim[0] = e->rows;
    st_declare(w, e->name, e->type, n, dim);
}

static int put(struct st_writer *w, enum st_type type, const float *x, int64_t n)
{
    uint16_t *half;
    int status;

    if (type == ST_F32)
        return st_write(w, x, (size_t)n * 4);
    half = mem_new((size_t)n, sizeof *half);
    for (int64_t i = 0; i < n; i++)
        half[i] = bf16_of(x[i]);
    status = st_write(w, half, (size_t)n * 2);
    free(half);
    return status;
}

/* Elements [0,n) of a tensor in another type. */
static int put_cast(struct st_writer *w, const struct entry *e, int64_t n)
{
    float *x = mem_new(PIECE, sizeof *x);
    int status = 0;

    for (int64_t at = 0; at < n && !status; at += PIECE) {
        struct st_tensor part = *e->from;
        part.count = n - at < PIECE ? n - at : PIECE;
        part.data = (const char *)e->from->data + (size_t)at * st_type_size(e->from->type);
        part.bytes = part.count * (int64_t)st_type_size(part.type);
        status = st_float(&part, x) || put(w, e->type, x, part.count) ? -1 : 0;
    }
    free(x);
    return status;
}

/* New rows of the vocabulary are zero; cut ones mean nothing. */
static int put_zeros(struct st_writer *w, size_t bytes)
{
    static const char zeros[4096];
    int status = 0;

    for (; bytes && !status; bytes -= bytes < sizeof zeros ? bytes : sizeof zeros)
        status = st_write(w, zeros, bytes < sizeof zeros ? bytes : sizeof zeros);
    return status;
}

static int put_kept(struct st_writer *w, const struct entry *e)
{
    const struct st_tensor *t = e->from;
    int64_t row = e->rows ? t->count / t->dim[0] : 0, have = t->count, want = e->rows ? e->rows * row : have;
    int64_t n = have < want ? have : want;
    int status;

    if (e->type == t->type)
        status = st_write(w, t->data, (size_t)n * st_type_size(t->type));
    else
        status = put_cast(w, e, n);
    st_drop(t);
    return status ? status : put_zeros(w, (size_t)(want - n) * st_type_size(e->type));
}

static int put_fresh(const struct convert *c, struct st_writer *w, const struct entry *e)
{
    int64_t n = tensor_count(e->param->value);
    float *x = mem_new((size_t)n, sizeof *x);
    int status;

    for (int64_t j = 0; j < n; j++)
        x[j] = convert_fresh(c, e->param, j);
    status = put(w, e->type, x, n);
    free(x);
    return status;
}

/* Wide types first, so that each is aligned in the file. */
static int write_weights(struct convert *c)
{
    struct entries l = list_entries(c);
    struct st_writer *w;
    char path[4200];
    int status = 0;

    snprintf(path, sizeof path, "%s/model.safetensors", c->aside);
    w = st_create(path);
    if (w)
        st_describe(w, "format", "pt");
    for (size_t size = 4; w && size >= 2; size -= 2)
        for (int i = 0; i < l.n; i++)
            if (st_type_size(l.at[i].type) == size)
                declare(w, &l.at[i]);
    for (size_t size = 4; w && size >= 2 && !status; size -= 2)
        for (int i = 0; i < l.n && !status; i++)
            if (st_type_size(l.at[i].type) == size)
                status = l.at[i].from ? put_kept(w, &l.at[i]) : put_fresh(c, w, &l.at[i]);
    if (w && status)
        st_abort(w);
    else if (w)
        status = st_finish(w);
    free(l.at);
    return w ? status : -1;
}

/* What travels with the tokenizer, as it is. */
static int copy_tokenizer(const struct convert *c)
{
    static const char *const names[] = {
        "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
        "merges.txt", "tokenizer.model", "generation_config.json",
    };
    int status = 0;

    for (size_t i = 0; i < LEN(names) && !status; i++) {
        char from[4200], to[4200], *data;
        size_t n;
        if (!str_format(from, sizeof from, "%s/%s", c->o->from, names[i]) || access(from, F_OK))
            continue;
        snprintf(to, sizeof to, "%s/%s", c->aside, names[i]);
        data = file_read(from, &n);
        status = data ? file_write(to, data, n) : -1;
        free(data);
    }
    return status ? status : bpe_config_write(c->aside);
}

int convert_write(struct convert *c)
{
    char path[4200], *text = config_text(&c->dst);
    int status;

    if (!text)
        return -1;
    snprintf(path, sizeof path, "%s/config.json", c->aside);
    status = file_write(path, text, strlen(text));
    free(text);
    return status || copy_tokenizer(c) || write_weights(c) ? -1 : 0;
}
