/* session_file.c - the memory of one sequence as a safetensors file.
 *
 * "layers.L.state.I" [H,V,K] or [W-1,C], "pending" the ids that were emitted but not fed, and in the
 * metadata which model it belongs to: another model's memory is refused. */
#include "op.h"
#include "safetensors.h"
#include "session.h"
#include "sha256.h"

/* Config and the first numbers of every weight: any training step changes it. */
static void model_identity(struct model *m, char out[65])
{
    char *text = config_text(&m->cfg);
    float *w = NULL;
    struct sha256 h;

    sha256_init(&h);
    sha256_add(&h, text, strlen(text));
    for (int i = 0; i < m->params.n; i++) {
        struct tensor t = tensor_flat(m->params.at[i].value);
        int64_t n = tensor_count(t) < 1024 ? tensor_count(t) : 1024;
        t = (struct tensor){ .data = t.data, .dim = { n, 1, 1, 1 }, .row = 1, .ndim = 1, .type = t.type };
        w = mem_grow(w, (size_t)n, sizeof *w);
        param_get(m->dev, &t, w);
        sha256_add(&h, w, (size_t)n * sizeof *w);
    }
    sha256_end_hex(&h, out);
    free(w);
    free(text);
}

/* Calls f for every tensor of the state, with its name in the file. */
static int each_state(struct session *s, int (*f)(void *arg, const char *name, struct tensor t), void *arg)
{
    for (int l = 0; l < s->model->cfg.layers; l++)
        for (int i = 0; i < MIXER_STATES; i++) {
            char name[64];
            if (!s->state.at[l][i].ndim)
                continue;
            snprintf(name, sizeof name, "layers.%d.state.%d", l, i);
            if (f(arg, name, s->state.at[l][i]))
                return -1;
        }
    return 0;
}

struct file { struct session *s; struct st_writer *w; struct st *in; const char *path; };

static int declare(void *arg, const char *name, struct tensor t)
{
    struct file *f = arg;

    st_declare(f->w, name, ST_F32, t.ndim - 1, t.dim + 1);
    return 0;
}

static int write_one(void *arg, const char *name, struct tensor t)
{
    struct file *f = arg;
    int64_t n = tensor_count(t);
    float *host = mem_new((size_t)n, sizeof *host);
    int status;

    (void)name;
    op_get(f->s->model->dev, host, t.data, (size_t)n * 4);
    status = st_write(f->w, host, (size_t)n * 4);
    free(host);
    return status;
}

static int read_one(void *arg, const char *name, struct tensor t)
{
    struct file *f = arg;
    const struct st_tensor *in = st_find(f->in, name);
    int64_t n = tensor_count(t);
    float *host;
    int status;

    if (!in || in->count != n)
        return fail("%s: expected %s with %lld numbers, found %lld", f->path, name, (long long)n,
                    in ? (long long)in->count : 0LL);
    host = mem_new((size_t)n, sizeof *host);
    status = st_float(in, host);
    if (!status)
        op_put(f->s->model->dev, t.data, host, (size_t)n * 4);
    free(host);
    return status;
}

int session_save(const struct session *s, const char *path, const int32_t *pending, int64_t n)
{
    struct session copy = *s;
    struct file f = { .s = &copy, .w = st_create(path), .path = path };
    char id[65], fed[32];

    if (!f.w)
        return -1;
    REQUIRE(s->n == 1);
    model_identity(s->model, id);
    snprintf(fed, sizeof fed, "%lld", (long long)s->fed);
    st_describe(f.w, "palimpsa_model", id);
    st_describe(f.w, "tokens", fed);
    each_state(&copy, declare, &f);
    st_declare(f.w, "pending", ST_I32, 1, &n);
    if (each_state(&copy, write_one, &f) || st_write(f.w, pending, (size_t)n * 4)) {
        st_abort(f.w);
        return -1;
    }
    return st_finish(f.w);
}

static int load(struct session *s, struct file *f, int32_t *pending, int64_t cap, int64_t *n)
{
    const struct st_tensor *p = st_find(f->in, "pending");
    const char *id = st_meta(f->in, "palimpsa_model"), *fed = st_meta(f->in, "tokens");
    char mine[65];

    model_identity(s->model, mine);
    if (!id || !fed || !p)
        return fail("%s: not a saved state", f->path);
    if (strcmp(id, mine))
        return fail("%s: the state of another model: expected %.12s, found %.12s", f->path, mine, id);
    if (p->count > cap)
        return fail("%s: expected at most %lld pending tokens, found %lld", f->path, (long long)cap,
                    (long long)p->count);
    *n = p->count;
    s->fed = strtoll(fed, NULL, 10);
    s->fresh = false;
    if (st_int(p, pending))
        return -1;
    for (int64_t i = 0; i < *n; i++)
        if (pending[i] < 0 || pending[i] >= s->model->cfg.vocab)
            return fail("%s: pending token %d is outside the vocabulary of %lld", f->path, pending[i],
                        (long long)s->model->cfg.vocab);
    return each_state(s, read_one, f);
}

int session_load(struct session *s, const char *path, int32_t *pending, int64_t cap, int64_t *n)
{
    struct file f = { .s = s, .in = st_open(path), .path = path };
    int status;

    REQUIRE(s->n == 1);
    if (!f.in)
        return -1;
    status = load(s, &f, pending, cap, n);
    st_close(f.in);
    return status;
}
