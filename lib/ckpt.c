/* ckpt.c - weights and optimizer state from their files straight into place.
 *
 * Everything is checked by name and shape before the first byte moves: a half-loaded model does not
 * exist. Tensors go from the mapped file to the device one at a time. */
#include "ckpt_parts.h"
#include "json.h"
#include "op.h"

/* Up to eight names, then how many more. */
struct names { struct text text; int n; };

static void names_add(struct names *l, const char *name)
{
    if (l->n++ < 8)
        text_add(&l->text, "%s%s", l->n > 1 ? ", " : "", name);
}

static int names_fail(struct names *l, const char *dir, const char *what)
{
    int status = 0;

    if (l->n > 8)
        status = fail("%s: %d %s: %s and %d more", dir, l->n, what, l->text.at, l->n - 8);
    else if (l->n)
        status = fail("%s: %d %s: %s", dir, l->n, what, l->text.at);
    text_free(&l->text);
    return status;
}

/* Dims of 1 do not count: the convolution is [C,1,W] in files of every family. */
static bool same_shape(const struct st_tensor *t, const struct tensor *v)
{
    int i = 0, j = 0;

    for (;;) {
        while (i < t->ndim && t->dim[i] == 1)
            i++;
        while (j < v->ndim && v->dim[j] == 1)
            j++;
        if (i == t->ndim || j == v->ndim)
            return i == t->ndim && j == v->ndim;
        if (t->dim[i++] != v->dim[j++])
            return false;
    }
}

static void add_shape(struct text *t, int ndim, const int64_t *dim)
{
    for (int i = 0; i < ndim; i++)
        text_add(t, "%s%lld", i ? " x " : "", (long long)dim[i]);
}

static int check_tensor(const struct st_tensor *t, const struct param *a)
{
    struct text said = { 0 };

    if (t->type != ST_F32 && t->type != ST_BF16 && t->type != ST_F16)
        return fail("%s: %s: expected F32, BF16 or F16, found %s", t->file, t->name,
                    st_type_name(t->type));
    if (same_shape(t, &a->value))
        return 0;
    add_shape(&said, a->value.ndim, a->value.dim);
    text_add(&said, ", found ");
    add_shape(&said, t->ndim, t->dim);
    fail("%s: %s: expected %s", t->file, t->name, said.at);
    text_free(&said);
    return -1;
}

/* Embedding and head of a tied model are one tensor under either name, or twice the same bytes. */
static int check_tied(const struct model *m, const struct st *s)
{
    const struct st_tensor *head = st_find(s, "lm_head.weight");
    const struct st_tensor *embed = ckpt_find(s, m->params.at[m->embed].name);

    if (!m->cfg.tied || !head || !embed)
        return 0;
    if (head->type == embed->type && head->bytes == embed->bytes &&
        (!head->bytes || !memcmp(head->data, embed->data, (size_t)head->bytes)))
        return 0;
    return fail("%s: %s and %s differ, but config.json ties them", head->file, embed->name,
                head->name);
}

/* The tensor for a parameter; the embedding of a tied model may lie under the head's name. */
const struct st_tensor *ckpt_source(const struct model *m, const struct st *s, int i)
{
    const struct st_tensor *t = ckpt_find(s, m->params.at[i].name);

    return !t && i == m->embed && m->cfg.tied ? st_find(s, "lm_head.weight") : t;
}

static bool is_known(struct model *m, const struct st *s, const char *name)
{
    const char *embed = m->params.at[m->embed].name;

    if (!strcmp(name, ckpt_name(embed, true)))
        return !strcmp(name, embed) || !st_find(s, embed);
    if (m->cfg.tied && !strcmp(name, "lm_head.weight"))
        return true;
    return params_find(&m->params, name) != NULL;
}

int ckpt_check(const char *dir, struct model *m, const struct st *s)
{
    struct names missing = { 0 }, unknown = { 0 };
    int status = 0;

    for (int i = 0; i < m->params.n; i++) {
        const struct st_tensor *t = ckpt_source(m, s, i);
        if (!t)
            names_add(&missing, m->params.at[i].name);
        else if (check_tensor(t, &m->params.at[i]))
            status = -1;
    }
    for (int64_t i = 0; i < s->n; i++)
        if (!is_known(m, s, s->at[i].name))
            names_add(&unknown, s->at[i].name);
    status |= names_fail(&missing, dir, "missing tensors");
    status |= names_fail(&unknown, dir, "unknown tensors");
    return status || check_tied(m, s) ? -1 : 0;
}

int ckpt_load(const char *dir, struct model *m)
{
    struct st *s = ckpt_weights(dir);
    int status;

    if (!s)
        return -1;
    status = ckpt_check(dir, m, s);
    for (int i = 0; i < m->params.n && !status; i++) {
        const struct st_tensor *t = ckpt_source(m, s, i);
        float *x = mem_new((size_t)t->count, sizeof *x);
        status = st_float(t, x);
        if (!status)
            param_put(m->dev, &m->params.at[i].value, x);
        free(x);
        st_drop(t);
    }
    st_close(s);
    return status;
}

/* The three tensors of a trained parameter in optim.safetensors. */
static const char *const kinds[] = { "master", "m", "v" };

static const struct st_tensor *state_of(const struct st *s, const struct param *a, int kind)
{
    char name[128];

    return str_format(name, sizeof name, "%s.%s", kinds[kind], a->name) ? st_find(s, name) : NULL;
}

static int check_state(const char *path, const struct params *p, const struct st *s)
{
    struct names missing = { 0 };
    int64_t known = 0;
    int status = 0;

    for (int i = 0; i < p->n; i++)
        for (int kind = 0; kind < 3 && !(p->at[i].flags & PARAM_FROZEN); kind++) {
            const struct st_tensor *t = state_of(s, &p->at[i], kind);
            if (!t)
                names_add(&missing, p->at[i].name);
            else if (t->type != ST_F32)
                status = fail("%s: %s: expected F32, found %s", path, t->name,
                              st_type_name(t->type));
            else if (check_tensor(t, &p->at[i]))
                status = -1;
            known += t != NULL;
        }
    status |= names_fail(&missing, path, "missing states of trained parameters");
    if (!status && known != s->n)
        status = fail("%s: holds %lld states, the parameters trained here have %lld", path,
                      (long long)s->n, (long long)known);
    return status;
}

/* The part of a parameter's state that this rank owns, from the mapped file to the device. */
static void put_slice(struct dev *d, const struct bucket *k, const struct param *a, float *slice,
                      const char *from, int rank)
{
    int64_t first = rank * k->slice, last = first + k->slice, n = tensor_count(a->value);
    int64_t lo = a->offset > first ? a->offset : first;
    int64_t hi = a->offset + n < last ? a->offset + n : last;

    if (lo < hi)
        op_put(d, slice + (lo - first), from + 4 * (lo - a->offset), (size_t)(hi - lo) * 4);
}

/* A master in F32 storage is the value itself, and every rank holds all of that. */
static void put_state(struct model *m, const struct st *s, const struct param *a, int rank)
{
    struct bucket *k = &m->params.bucket[a->bucket];
    const struct st_tensor *master = state_of(s, a, 0);

    if (k->value.type == F32)
        op_put(m->dev, a->value.data, master->data, (size_t)master->bytes);
    else
        put_slice(m->dev, k, a, k->master.data, master->data, rank);
    put_slice(m->dev, k, a, k->m.data, state_of(s, a, 1)->data, rank);
    put_slice(m->dev, k, a, k->v.data, state_of(s, a, 2)->data, rank);
}

int ckpt_load_optim(const char *dir, struct model *m, struct comm *c)
{
    struct params *p = &m->params;
    char path[4096];
    struct st *s;
    int status;

    if (!str_format(path, sizeof path, "%s/optim.safetensors", dir))
        return fail("%s: path is too long", dir);
    s = st_open(path);
    if (!s)
        return -1;
    params_master(p, m->dev, c->rank);
    status = check_state(path, p, s);
    for (int i = 0; i < p->n && !status; i++)
        if (!(p->at[i].flags & PARAM_FROZEN))
            put_state(m, s, &p->at[i], c->rank);
    st_close(s);
    return status;
}
