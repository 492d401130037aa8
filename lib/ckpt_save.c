/* ckpt_save.c - a checkpoint directory, written aside and renamed.
 *
 * dir.tmp gets every file, each synced; then one rename makes it dir. A process killed at any moment
 * leaves dir whole or absent. Optimizer state lies in slices on the ranks: each bucket is gathered in
 * the memory of its gradients, which are dead between steps, and rank 0 writes it by name, so the
 * file does not know how many ranks there were. */
#define _POSIX_C_SOURCE 200809L
#include "bpe.h"
#include "ckpt_parts.h"
#include "half.h"
#include "json.h"
#include "op.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PIECE = 1 << 22 };                      /* elements that pass through the host at a time */

static int write_text(const char *dir, const char *name, const char *text)
{
    char path[4096];

    if (!str_format(path, sizeof path, "%s/%s", dir, name))
        return fail("%s: path is too long", dir);
    return file_write(path, text, strlen(text));
}

/* Transformers rescales out_proj whenever the flag is set, also after loading it; weights that exist
 * need no initial scale. */
static int write_config(const char *dir, struct config c)
{
    char *text;
    int status;

    if (!c.native)
        c.rescale_prenorm = false;
    text = config_text(&c);
    status = text ? write_text(dir, "config.json", text) : -1;
    free(text);
    return status;
}

static int copy_file(const char *dir, const char *name, const char *from)
{
    char path[4096];
    size_t n;
    char *data = file_read(from, &n);
    int status = -1;

    if (data && !str_format(path, sizeof path, "%s/%s", dir, name))
        fail("%s: path is too long", dir);
    else if (data)
        status = file_write(path, data, n);
    free(data);
    return status;
}

/* The tokenizer, and what is said of it to others: beside it, or made. */
static int copy_tokenizer(const char *dir, const char *from)
{
    const char *slash = strrchr(from, '/');
    char config[4200];

    if (copy_file(dir, "tokenizer.json", from))
        return -1;
    if (str_format(config, sizeof config, "%.*stokenizer_config.json", slash ? (int)(slash + 1 - from) : 0, from) &&
        !access(config, R_OK))
        return copy_file(dir, "tokenizer_config.json", config);
    return bpe_config_write(dir);
}

/* seed and row are 64 bit, more than a JSON number carries: text. */
static int write_run(const char *dir, const struct run *r)
{
    struct text t = { 0 };
    int status;

    text_add(&t, "{\n  \"format\": 1,\n  \"step\": %lld,\n", (long long)r->step);
    text_add(&t, "  \"seed\": \"%llu\",\n", (unsigned long long)r->seed);
    text_add(&t, "  \"row\": \"%lld\",\n  \"data\": ", (long long)r->row);
    text_string(&t, r->data, strlen(r->data));
    text_add(&t, ",\n  \"options\": %s\n}\n", r->options ? r->options : "{}");
    status = write_text(dir, "run.json", t.at);
    text_free(&t);
    return status;
}

/* n elements of one type on the device to bytes of another in the file. */
static int put_elements(struct st_writer *w, struct dev *d, const void *data, enum dtype is,
                        enum st_type as, int64_t n)
{
    int64_t most = n < PIECE ? n : PIECE;
    char *in = mem_new((size_t)most, 4), *out = mem_new((size_t)most, 4);
    int status = 0;

    for (int64_t at = 0; at < n && !status; at += most) {
        size_t now = (size_t)(n - at < most ? n - at : most), size = dtype_size(is);
        char *from = in;
        op_get(d, in, (const char *)data + (size_t)at * size, now * size);
        for (size_t i = 0; is == F32 && as == ST_BF16 && i < now; i++)
            ((uint16_t *)(void *)out)[i] = bf16_of(((float *)(void *)in)[i]), from = out;
        for (size_t i = 0; is == BF16 && as == ST_F32 && i < now; i++)
            ((float *)(void *)out)[i] = float_of_bf16(((uint16_t *)(void *)in)[i]), from = out;
        status = st_write(w, from, now * st_type_size(as));
    }
    free(in);
    free(out);
    return status;
}

/* Small parameters stay F32 whatever is asked: exp(A_log) and sums depend on them. */
static enum st_type stored_as(const struct param *a, enum dtype type)
{
    return type == BF16 && !(a->flags & PARAM_F32) ? ST_BF16 : ST_F32;
}

/* F32 tensors first, so that each type is aligned in the file. */
static int write_weights(const char *dir, struct model *m, enum dtype type)
{
    static const enum st_type order[] = { ST_F32, ST_BF16 };
    const struct params *p = &m->params;
    struct st_writer *w;
    char path[4096];
    int status = 0;

    if (!str_format(path, sizeof path, "%s/model.safetensors", dir))
        return fail("%s: path is too long", dir);
    w = st_create(path);
    if (!w)
        return -1;
    st_describe(w, "format", "pt");
    for (size_t k = 0; k < LEN(order); k++)
        for (int i = 0; i < p->n; i++)
            if (stored_as(&p->at[i], type) == order[k])
                st_declare(w, ckpt_name(p->at[i].name, m->cfg.native), order[k],
                           p->at[i].value.ndim, p->at[i].value.dim);
    for (size_t k = 0; k < LEN(order); k++)
        for (int i = 0; i < p->n && !status; i++) {
            struct tensor v = p->at[i].value;
            if (stored_as(&p->at[i], type) == order[k])
                status = put_elements(w, m->dev, v.data, v.type, order[k], tensor_count(v));
        }
    return st_finish(w) || status ? -1 : 0;
}

static struct st_writer *declare_optim(const char *dir, const struct params *p)
{
    static const char *const kinds[] = { "master", "m", "v" };
    struct st_writer *w;
    char path[4096], name[128];

    if (!str_format(path, sizeof path, "%s/optim.safetensors", dir)) {
        fail("%s: path is too long", dir);
        return NULL;
    }
    w = st_create(path);
    for (int b = 0; w && b < p->nbucket; b++)
        for (size_t kind = 0; kind < LEN(kinds); kind++)
            for (int i = 0; i < p->n; i++) {
                const struct param *a = &p->at[i];
                if (a->bucket != b || a->flags & PARAM_FROZEN)
                    continue;
                str_format(name, sizeof name, "%s.%s", kinds[kind], a->name);
                st_declare(w, name, ST_F32, a->value.ndim, a->value.dim);
            }
    return w;
}

/* One of a bucket's three states as a whole: what lies in slices is gathered in the gradients. */
static const float *whole(struct model *m, struct bucket *k, int kind, struct comm *c)
{
    struct tensor slice = kind == 0 ? k->master : kind == 1 ? k->m : k->v, mine;

    if (c->world == 1)
        return slice.data;
    if (kind == 0 && k->value.type == F32)
        return k->value.data;                  /* the master is the value, which every rank has */
    if (!k->slice)
        return NULL;
    mine = tensor_rows(k->grad, c->rank * k->slice, k->slice);
    op_cast(m->dev, tensor_rows(mine, 0, k->state), slice);
    c->gather(c, tensor_rows(k->grad, 0, c->world * k->slice), mine);
    return k->grad.data;
}

/* w is NULL on ranks that do not write, and where writing failed: the ranks still have to meet. */
static int write_optim(struct st_writer *w, struct model *m, struct comm *c)
{
    const struct params *p = &m->params;
    int status = w || c->rank ? 0 : -1;

    for (int b = 0; b < p->nbucket; b++) {
        for (int kind = 0; kind < 3; kind++) {
            const float *x = whole(m, &p->bucket[b], kind, c);
            for (int i = 0; i < p->n && w && !status; i++)
                if (p->at[i].bucket == b && !(p->at[i].flags & PARAM_FROZEN))
                    status = put_elements(w, m->dev, x + p->at[i].offset, F32, ST_F32,
                                          tensor_count(p->at[i].value));
        }
    }
    if (w && st_finish(w))
        status = -1;
    return status;
}

/* What a checkpoint's directory may hold: ours, and what travels with a tokenizer. */
static bool ours(const char *name)
{
    static const char *const names[] = {
        "config.json", "model.safetensors", "tokenizer.json", "optim.safetensors", "run.json", "convert.json",
        "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
        "tokenizer.model", "generation_config.json",
    };

    for (size_t i = 0; i < LEN(names); i++) {
        size_t n = strlen(names[i]);
        if (!strncmp(name, names[i], n) && (!name[n] || !strcmp(name + n, ".tmp")))
            return true;
    }
    return !strcmp(name, ".") || !strcmp(name, "..");
}

/* A directory that holds anything else is not ours to replace or delete. Absent is fine. */
static int check_ours(const char *dir)
{
    DIR *d = opendir(dir);
    int status = 0;

    if (!d)
        return errno == ENOENT ? 0 : fail("%s: %s", dir, strerror(errno));
    for (struct dirent *e; !status && (e = readdir(d));)
        if (!ours(e->d_name))
            status = fail("%s: exists and holds %s, which no checkpoint has; choose another directory",
                          dir, e->d_name);
    closedir(d);
    return status;
}

int ckpt_remove(const char *dir)
{
    DIR *d = opendir(dir);
    int status = check_ours(dir);

    if (!d)
        return status;
    for (struct dirent *e; !status && (e = readdir(d));)
        if (e->d_name[0] != '.' && unlinkat(dirfd(d), e->d_name, 0))
            status = fail("%s/%s: %s", dir, e->d_name, strerror(errno));
    closedir(d);
    if (!status && rmdir(dir))
        status = fail("%s: %s", dir, strerror(errno));
    return status;
}

/* What stood under the name steps aside only when its successor is complete. */
static int publish(const char *aside, const char *dir)
{
    char old[4096];

    if (!str_format(old, sizeof old, "%s.old", dir))
        return fail("%s: path is too long", dir);
    if (ckpt_remove(old))
        return -1;
    if (rename(dir, old) && errno != ENOENT)
        return fail("%s: %s", dir, strerror(errno));
    if (rename(aside, dir))
        return fail("%s: %s", dir, strerror(errno));
    return file_sync_parent(dir) || ckpt_remove(old) ? -1 : 0;
}

static int begin(const char *aside, const char *dir)
{
    if (check_ours(dir) || ckpt_remove(aside))
        return -1;
    return mkdir(aside, 0777) ? fail("%s: %s", aside, strerror(errno)) : 0;
}

/* The same verdict on every rank. */
static int share(struct model *m, struct comm *c, int status)
{
    float bad = status ? 1 : 0;
    struct tensor x = SHAPE(F32, 1);

    if (c->world == 1)
        return status;
    x.data = m->params.bucket[0].grad.data;
    op_put(m->dev, x.data, &bad, sizeof bad);
    c->sum(c, x);
    op_get(m->dev, &bad, x.data, sizeof bad);
    return bad > 0 ? -1 : 0;
}

int ckpt_save(const char *dir, struct model *m, const struct optim *o, const struct run *r,
              struct comm *c, const char *tokenizer, enum dtype type)
{
    char path[4000], aside[4096];
    size_t n = strlen(dir);
    int status = 0;
    bool begun;

    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (!str_format(path, sizeof path, "%.*s", (int)n, dir))
        return fail("%s: path is too long", dir);
    str_format(aside, sizeof aside, "%s.tmp", path);
    if (o && m->dev->type == F32)
        type = F32;                            /* resuming is exact: stored weights are the weights */
    if (!c->rank)
        status = begin(aside, path);
    begun = !c->rank && !status;
    if (begun)
        status = write_config(aside, m->cfg) || write_weights(aside, m, type) ||
                 (tokenizer && copy_tokenizer(aside, tokenizer)) ? -1 : 0;
    if (o) {
        struct st_writer *w = c->rank || status ? NULL : declare_optim(aside, &m->params);
        if (write_optim(w, m, c))
            status = -1;
    }
    if (!c->rank && !status && r)
        status = write_run(aside, r);
    if (!c->rank && !status)
        status = publish(aside, path);
    if (begun && status)
        ckpt_remove(aside);                    /* on a full disk every byte counts */
    return o ? share(m, c, status) : status;
}
