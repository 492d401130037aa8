/* convert_model.c - see convert_model.h. */
#define _POSIX_C_SOURCE 200809L
#include "convert_model.h"
#include "ckpt_parts.h"
#include "scratch.h"
#include <sys/stat.h>
#include <unistd.h>

struct convert_report said;

/* A path in the scratch directory that stays valid for long: options point to several. */
const char *place(const char *name)
{
    static char path[64][512];
    static int next;
    char *p = path[next = (next + 1) % 64];

    str_format(p, sizeof path[0], "%s/%s", scratch_root, name);
    return p;
}

/* A model of the config, drawn; native ones hold a tied head under one name unless both. */
void convert_store(const char *dir, const char *text, enum st_type type, bool both)
{
    struct model_use use = { 0 };
    struct st_writer *w;
    struct config c;
    struct model m;
    char path[600];

    mkdir(dir, 0777);
    str_format(path, sizeof path, "%s/config.json", dir);
    scratch_write(path, text);
    REQUIRE(!config_parse(&c, text, strlen(text), "test") && !model_declare(&m, NULL, &c, &use));
    str_format(path, sizeof path, "%s/model.safetensors", dir);
    w = st_create(path);
    for (int i = 0; i < m.params.n + (both && c.tied); i++) {
        const struct param *a = &m.params.at[i < m.params.n ? i : m.embed];
        st_declare(w, i < m.params.n ? ckpt_name(a->name, c.native) : "lm_head.weight", type, a->value.ndim,
                   a->value.dim);
    }
    for (int i = 0; i < m.params.n + (both && c.tied); i++) {
        const struct param *a = &m.params.at[i < m.params.n ? i : m.embed];
        for (int64_t j = 0; j < tensor_count(a->value); j++) {
            float x = a->draw(7, (uint64_t)(i % m.params.n), j, a);
            uint16_t half = bf16_of(x);
            if (type == ST_F32)
                st_write(w, &x, 4);
            else
                st_write(w, &half, 2);
        }
    }
    CHECK(!st_finish(w));
    model_close(&m);
}

struct convert_options convert_to(const char *from, const char *to, const char *form)
{
    struct convert_options o = convert_defaults();

    o.from = from;
    o.to = to;
    o.form = form;
    o.device = "naive";
    o.threads = 1;
    return o;
}

int convert_turn(const char *from, const char *to, const char *form)
{
    struct convert_options o = convert_to(from, to, form);

    o.check = true;
    return convert_run(&o, &said);
}

bool convert_absent(const char *dir)
{
    char aside[600];

    str_format(aside, sizeof aside, "%s.tmp", dir);
    return access(dir, F_OK) && access(aside, F_OK);
}

bool convert_refused(const struct convert_options *o, const char *a, const char *b)
{
    scratch_listen();
    return convert_run(o, &said) == -1 && scratch_heard("error: ", a, b) && convert_absent(o->to);
}

/* The same tensors whatever file they lie in. */
bool same_weights(const char *one, const char *two)
{
    struct st *a = ckpt_weights(one), *b = ckpt_weights(two);
    bool same = a && b && a->n == b->n;

    for (int64_t i = 0; same && i < a->n; i++) {
        const struct st_tensor *s = &a->at[i], *t = st_find(b, s->name);
        same = t && t->type == s->type && t->ndim == s->ndim && !memcmp(t->dim, s->dim, sizeof t->dim) &&
               !memcmp(t->data, s->data, (size_t)t->bytes);
        if (!same)
            printf("%s differs\n", s->name);
    }
    st_close(a);
    st_close(b);
    return same;
}

/* In meaning: everything but how fresh weights would be drawn, and what state-spaces files never say. */
bool same_config(const char *one, const char *two)
{
    struct config a, b;

    if (ckpt_config(one, &a) || ckpt_config(two, &b))
        return false;
    a.rescale_prenorm = b.rescale_prenorm = false;
    a.init_std = b.init_std, a.bos = b.bos, a.eos = b.eos, a.pad = b.pad, a.context = b.context;
    return !memcmp(&a, &b, sizeof a);
}

const char *convert_golden(const char *name)
{
    static char path[2][512];
    static int next;
    char *p = path[next = !next];

    str_format(p, sizeof path[0], "%s/models/%s", test_golden(), name);
    return p;
}

/* Replaces or adds one tensor; everything else as it was. */
void convert_put(const char *dir, const char *name, const float *x, int64_t rows, int64_t columns)
{
    struct st *s = st_open(dir);
    struct st_writer *w = st_create(place("put"));
    const int64_t dim[2] = { rows, columns };
    char path[600];

    for (int64_t i = 0; i < s->n; i++)
        if (strcmp(s->at[i].name, name))
            st_declare(w, s->at[i].name, s->at[i].type, s->at[i].ndim, s->at[i].dim);
    st_declare(w, name, ST_F32, columns ? 2 : 1, dim);
    for (int64_t i = 0; i < s->n; i++)
        if (strcmp(s->at[i].name, name))
            st_write(w, s->at[i].data, (size_t)s->at[i].bytes);
    st_write(w, x, (size_t)(rows * (columns ? columns : 1)) * 4);
    CHECK(!st_finish(w));
    st_close(s);
    str_format(path, sizeof path, "%s/model.safetensors", dir);
    rename(place("put"), path);
}
