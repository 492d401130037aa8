/* model_state.c - memory between the device and a file. */
#include "model_state.h"
#include "op.h"
#include "sha256.h"

void model_identity(struct model *m, char out[65])
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

struct walk { const struct model *m; struct st_writer *w; const struct st *in; const char *path; };

/* Calls f for every tensor of the memory, with its name in the file. */
static int each(struct walk *a, const struct model_state *s,
                int (*f)(struct walk *a, const char *name, struct tensor t))
{
    for (int l = 0; l < a->m->cfg.layers; l++)
        for (int i = 0; i < MIXER_STATES; i++) {
            char name[64];
            if (!s->at[l][i].ndim)
                continue;
            snprintf(name, sizeof name, "layers.%d.state.%d", l, i);
            if (f(a, name, s->at[l][i]))
                return -1;
        }
    return 0;
}

static int declare(struct walk *a, const char *name, struct tensor t)
{
    st_declare(a->w, name, ST_F32, t.ndim - 1, t.dim + 1);
    return 0;
}

static int write_one(struct walk *a, const char *name, struct tensor t)
{
    int64_t n = tensor_count(t);
    float *host = mem_new((size_t)n, sizeof *host);
    int status;

    (void)name;
    op_get(a->m->dev, host, t.data, (size_t)n * 4);
    status = st_write(a->w, host, (size_t)n * 4);
    free(host);
    return status;
}

static int read_one(struct walk *a, const char *name, struct tensor t)
{
    const struct st_tensor *in = st_find(a->in, name);
    int64_t n = tensor_count(t);
    float *host;
    int status;

    if (!in || in->count != n)
        return fail("%s: expected %s with %lld numbers, found %lld", a->path, name, (long long)n,
                    in ? (long long)in->count : 0LL);
    host = mem_new((size_t)n, sizeof *host);
    status = st_float(in, host);
    if (!status)
        op_put(a->m->dev, t.data, host, (size_t)n * 4);
    free(host);
    return status;
}

void state_declare(struct st_writer *w, const struct model *m, const struct model_state *s)
{
    REQUIRE(s->nseq == 1);
    each(&(struct walk){ .m = m, .w = w }, s, declare);
}

int state_write(struct st_writer *w, const struct model *m, const struct model_state *s)
{
    return each(&(struct walk){ .m = m, .w = w }, s, write_one);
}

int state_read(const struct st *in, const char *path, const struct model *m, const struct model_state *s)
{
    REQUIRE(s->nseq == 1);
    return each(&(struct walk){ .m = m, .in = in, .path = path }, s, read_one);
}
