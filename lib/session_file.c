/* session_file.c - the memory of one sequence as a file: with it "pending", the ids that were emitted but not fed, and
 * in the metadata which model it belongs to: another model's memory is refused. */
#include "session.h"
#include "model_state.h"

int session_save(const struct session *s, const char *path, const int32_t *pending, int64_t n)
{
    struct st_writer *w = st_create(path);
    char id[65], fed[32];

    if (!w)
        return -1;
    model_identity(s->model, id);
    snprintf(fed, sizeof fed, "%lld", (long long)s->fed);
    st_describe(w, "palimpsa_model", id);
    st_describe(w, "tokens", fed);
    state_declare(w, s->model, &s->state);
    st_declare(w, "pending", ST_I32, 1, &n);
    if (state_write(w, s->model, &s->state) || st_write(w, pending, (size_t)n * 4)) {
        st_abort(w);
        return -1;
    }
    return st_finish(w);
}

static int load(struct session *s, const struct st *in, const char *path, int32_t *pending, int64_t cap, int64_t *n)
{
    const struct st_tensor *p = st_find(in, "pending");
    const char *id = st_meta(in, "palimpsa_model"), *fed = st_meta(in, "tokens");
    char mine[65];

    model_identity(s->model, mine);
    if (!id || !fed || !p)
        return fail("%s: not a saved state", path);
    if (strcmp(id, mine))
        return fail("%s: the state of another model: expected %.12s, found %.12s", path, mine, id);
    if (p->count > cap)
        return fail("%s: expected at most %lld pending tokens, found %lld", path, (long long)cap, (long long)p->count);
    *n = p->count;
    s->fed = strtoll(fed, NULL, 10);
    s->fresh = false;
    if (st_int(p, pending))
        return -1;
    for (int64_t i = 0; i < *n; i++)
        if (pending[i] < 0 || pending[i] >= s->model->cfg.vocab)
            return fail("%s: pending token %d is outside the vocabulary of %lld", path, pending[i],
                        (long long)s->model->cfg.vocab);
    return state_read(in, path, s->model, &s->state);
}

int session_load(struct session *s, const char *path, int32_t *pending, int64_t cap, int64_t *n)
{
    struct st *in = st_open(path);
    int status;

    if (!in)
        return -1;
    status = load(s, in, path, pending, cap, n);
    st_close(in);
    return status;
}
