/* model_open.c - from a config to declared, allocated parameters and state; and what all of it will cost. */
#include "layer.h"
#include "model.h"
#include "model_parts.h"

static bool mlp_family(const struct config *c)
{
    return !strcmp(c->family, "palimpsa");
}

/* Parameters of a block: norm, mixer's, then the MLP's. layer.first is the mixer's first. */
struct param *model_param(const struct model *m, int layer, int which)
{
    const struct layer *l = &m->layer[layer];
    int mlp = layer + 1 < m->cfg.layers ? m->layer[layer + 1].first - 5 : m->norm - 4;

    return &m->params.at[which == MIX_NORM ? l->first - 1 : mlp + which - MLP_NORM];
}

static int declare(struct model *m, int bucket, const char *name, struct tensor shape, unsigned flags, float a, float b)
{
    struct param p = { .value = shape, .flags = flags, .bucket = bucket, .a = a, .b = b,
                       .draw = b > 0 ? draw_normal : draw_const };

    REQUIRE(str_format(p.name, sizeof p.name, "%s", name));
    return params_add(&m->params, p);
}

static void declare_layer(struct model *m, int i)
{
    const struct config *c = &m->cfg;
    struct layer *l = &m->layer[i];
    bool mlp = mlp_family(c);
    unsigned norm = PARAM_F32 | PARAM_NO_DECAY;
    char prefix[64], name[96];

    snprintf(prefix, sizeof prefix, "%s.layers.%d.", mlp ? "model" : "backbone", i);
    *l = (struct layer){ .mixer = mixer_find(c->mixer[i]), .cfg = c, .params = &m->params, .index = i };
    snprintf(name, sizeof name, "%s%s", prefix, mlp ? "attn_norm.weight" : "norm.weight");
    l->first = declare(m, BUCKET_F32, name, SHAPE(F32, c->width), norm, 1, 0) + 1;
    l->mixer->init(l, prefix);
    if (!c->ffn)
        return;
    snprintf(name, sizeof name, "%smlp_norm.weight", prefix);
    declare(m, BUCKET_F32, name, SHAPE(F32, c->width), norm, 1, 0);
    snprintf(name, sizeof name, "%smlp.gate_proj.weight", prefix);
    declare(m, BUCKET_LAYER + i, name, SHAPE(F32, c->ffn, c->width), 0, 0, c->init_std);
    snprintf(name, sizeof name, "%smlp.up_proj.weight", prefix);
    declare(m, BUCKET_LAYER + i, name, SHAPE(F32, c->ffn, c->width), 0, 0, c->init_std);
    snprintf(name, sizeof name, "%smlp.down_proj.weight", prefix);
    declare(m, BUCKET_LAYER + i, name, SHAPE(F32, c->width, c->ffn), 0, 0, c->init_std);
}

/* Freezes what is not asked for. The layer of a parameter follows from its place in the list. */
static void freeze(struct model *m, const struct model_use *use)
{
    int layer = -1;

    for (int i = 0; i < m->params.n; i++) {
        struct param *a = &m->params.at[i];
        bool gain = a->flags & PARAM_GAIN, meta;
        if (layer + 1 < m->cfg.layers && i == m->layer[layer + 1].first - 1)
            layer++;
        meta = layer >= 0 && i < m->norm && m->cfg.meta[layer];
        if (use->train_prior && gain && !(a->flags & PARAM_UNUSED))
            a->flags &= ~(unsigned)PARAM_FROZEN;
        if ((use->train == TRAIN_GAINS && !gain) || (use->train == TRAIN_META && !meta))
            a->flags |= PARAM_FROZEN;
        if (!(a->flags & PARAM_FROZEN) && i < m->norm && layer < m->first)
            m->first = layer < 0 ? 0 : layer;
    }
}

enum model_train model_train_of(const char *name)
{
    return !strcmp(name, "plasticity") ? TRAIN_GAINS : !strcmp(name, "converted") ? TRAIN_META : TRAIN_ALL;
}

/* Mixers that do not exist are refused by name. */
static int known(const struct config *c)
{
    char names[256] = "";
    size_t n = 0;

    if (config_check(c, "model"))
        return -1;
    for (const struct mixer *m = NULL; (m = mixer_next(m));)
        n += (size_t)snprintf(names + n, sizeof names - n, " %s", m->name);
    for (int i = 0; i < c->layers; i++)
        if (!mixer_find(c->mixer[i]))
            return fail("model: layer %d: expected one of the mixers%s, found %s", i, names, c->mixer[i]);
    return 0;
}

int model_declare(struct model *m, struct dev *d, const struct config *c, const struct model_use *use)
{
    bool mlp = mlp_family(c);

    if (known(c))
        return -1;
    *m = (struct model){ .cfg = *c, .dev = d, .recompute = use->recompute,
                          .params.decay_all = use->decay_all };
    m->layer = mem_new((size_t)c->layers, sizeof *m->layer);
    m->block = mem_new((size_t)c->layers, sizeof *m->block);
    m->embed = declare(m, BUCKET_EMBED, mlp ? "model.embeddings.weight" : "backbone.embeddings.weight",
                       SHAPE(F32, c->vocab, c->width), 0, 0, c->init_std);
    for (int i = 0; i < c->layers; i++) {
        declare_layer(m, i);
        m->block[i].saved = mem_new(1, m->layer[i].mixer->saved);
    }
    m->norm = declare(m, BUCKET_F32, mlp ? "model.norm.weight" : "backbone.norm_f.weight", SHAPE(F32, c->width),
                      PARAM_F32 | PARAM_NO_DECAY, 1, 0);
    m->head = m->embed;
    if (!c->tied)
        m->head = declare(m, BUCKET_EMBED, "lm_head.weight", SHAPE(F32, c->vocab, c->width), 0, 0, c->init_std);
    for (int i = 0; i < c->layers; i++)
        m->layer[i].cfg = &m->cfg;
    m->first = c->layers;
    freeze(m, use);
    return 0;
}

int model_open(struct model *m, struct dev *d, const struct config *c, const struct model_use *use)
{
    if (model_declare(m, d, c, use))
        return -1;
    if (params_alloc(&m->params, d, use->world ? use->world : 1, use->learn, use->optim)) {
        model_close(m);
        return -1;
    }
    return 0;
}

void model_close(struct model *m)
{
    for (int i = 0; m->block && i < m->cfg.layers; i++)
        free(m->block[i].saved);
    free(m->block);
    free(m->layer);
    free(m->host);
    free(m->ahead);
    params_free(&m->params, m->dev);
    m->block = NULL;
    m->layer = NULL;
    m->host = NULL;
    m->ahead = NULL;
    m->host_room = 0;
}

static size_t state_bytes(const struct model *m, int64_t nseq, struct tensor (*at)[MIXER_STATES])
{
    size_t bytes = 0;

    for (int i = 0; i < m->cfg.layers; i++) {
        struct tensor shape[MIXER_STATES] = { 0 };
        m->layer[i].mixer->state(&m->layer[i], nseq, shape);
        for (int j = 0; j < MIXER_STATES; j++) {
            if (at)
                at[i][j] = shape[j];
            bytes += ((size_t)tensor_count(shape[j]) * 4 + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
        }
    }
    return bytes;
}

int model_state_open(struct model *m, struct model_state *s, int64_t nseq)
{
    size_t offset = 0;

    *s = (struct model_state){ .nseq = nseq, .at = mem_new((size_t)m->cfg.layers, sizeof *s->at) };
    s->bytes = state_bytes(m, nseq, s->at);
    s->memory = op_alloc(m->dev, s->bytes);
    if (!s->memory) {
        free(s->at);
        return fail("the state of %lld sequences does not fit on the device: %zu bytes", (long long)nseq, s->bytes);
    }
    for (int i = 0; i < m->cfg.layers; i++)
        for (int j = 0; j < MIXER_STATES; j++) {
            struct tensor *t = &s->at[i][j];
            if (!t->ndim)
                continue;
            t->data = (char *)s->memory + offset;
            offset += ((size_t)tensor_count(*t) * 4 + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
            op_fill(m->dev, *t, 0);
        }
    return 0;
}

void model_state_close(struct model *m, struct model_state *s)
{
    if (s->memory)
        op_release(m->dev, s->memory);
    free(s->at);
    *s = (struct model_state){ 0 };
}

/* Through an embedding lookup: the sequences of a state are the rows of a table. */
void model_state_pick(struct model *m, struct model_state *to, const struct model_state *from, const int32_t *which)
{
    struct dev *d = m->dev;
    size_t mark = arena_mark(&d->temp);
    struct tensor ids = arena_push(&d->temp, SHAPE(I32, to->nseq));

    op_put(d, ids.data, which, (size_t)to->nseq * 4);
    for (int i = 0; i < m->cfg.layers; i++)
        for (int j = 0; j < MIXER_STATES; j++) {
            struct tensor y = to->at[i][j], x = from->at[i][j];
            int64_t size = y.ndim ? tensor_count(y) / to->nseq : 0;
            struct tensor rows = SHAPE(F32, to->nseq, size), table = SHAPE(F32, from->nseq, size);
            if (!size)
                continue;
            rows.data = y.data;
            table.data = x.data;
            op_embed(d, rows, table, ids.data);
        }
    arena_pop(&d->temp, mark);
}

/* One dry run; n documents share the row. Forward jobs leave room for a watcher's copy of a tensor. */
static void dry_run(struct model *m, enum model_job job, int64_t tokens, int n, size_t peak[2])
{
    struct batch b = { .seqs = { .tokens = tokens, .n = n, .longest = n > 1 ? tokens / n + 1 : tokens } };
    struct pass p = { .fresh = true, .want_var = true };

    if (job == JOB_LEARN)
        model_learn(m, &b, 1, NULL, NULL);
    for (int alone = 0; job != JOB_LEARN && alone < 2; alone++) {
        p.alone = alone;
        if (job == JOB_LOSS)
            model_loss(m, &b, &p, NULL);
        else
            model_logits(m, &b, &p, false, NULL), model_logits(m, &b, &p, true, NULL);
    }
    if (job != JOB_LEARN) {
        int64_t inner = (int64_t)m->cfg.heads * (m->cfg.value > m->cfg.key ? m->cfg.value : m->cfg.key);
        m->dev->temp.peak += (size_t)(tokens * inner) * 4 + ARENA_ALIGN;
    }
    peak[0] = m->dev->keep.peak > peak[0] ? m->dev->keep.peak : peak[0];
    peak[1] = m->dev->temp.peak > peak[1] ? m->dev->temp.peak : peak[1];
}

int model_plan(struct model_plan *out, const struct dev *d, const struct config *c, const struct model_use *use,
               enum model_job job, int64_t tokens, int64_t nseq)
{
    struct dev dry = dev_dry(d);
    struct model m;
    size_t peak[2] = { 0, 0 }, bytes[3];

    if (model_declare(&m, &dry, c, use))
        return -1;
    params_layout(&m.params, d->type, use->world ? use->world : 1);
    params_bytes(&m.params, d->type, use->optim, bytes);
    for (int i = 0; i < m.params.n; i++)
        m.params.at[i].grad = tensor_like(m.params.at[i].value);
    for (int i = 0; i < m.params.n; i++)
        if (!(m.params.at[i].flags & PARAM_F32))
            m.params.at[i].value.type = d->type;
    dry_run(&m, job, tokens, 1, peak);
    dry_run(&m, job, tokens, (int)tokens, peak);
    *out = (struct model_plan){ bytes[0], use->learn ? bytes[1] : 0, bytes[2], peak[0], peak[1],
                                nseq ? state_bytes(&m, nseq, NULL) : 0 };
    model_close(&m);
    return 0;
}

int model_reserve(struct model *m, enum model_job job, int64_t tokens)
{
    struct model_use use = { .recompute = m->recompute };
    struct model_plan plan;
    struct dev *d = m->dev;

    if (model_plan(&plan, d, &m->cfg, &use, job, tokens, 0))
        return -1;
    if (plan.keep <= d->keep.size && plan.temp <= d->temp.size)
        return 0;
    return dev_reserve(d, plan.keep > d->keep.size ? plan.keep : d->keep.size,
                       plan.temp > d->temp.size ? plan.temp : d->temp.size);
}
