/* test_ckpt.c - what is saved loads again, bit for bit, on any number of ranks; what does not fit is
 * named before anything happens; an interrupted save never shows. */
#define _DEFAULT_SOURCE
#include "ckpt.h"
#include "half.h"
#include "json.h"
#include "op.h"
#include "safetensors.h"
#include "test.h"
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char root[] = "/tmp/test_ckpt_XXXXXX";
static struct dev dev;
static struct comm self;

static const char *at(const char *name)
{
    static char path[8][512];
    static int next;
    char *p = path[next = (next + 1) % 8];

    str_format(p, sizeof path[0], "%s/%s", root, name);
    return p;
}

/* Deletes a tree of two levels. */
static void sweep(const char *dir)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1024];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        str_format(path, sizeof path, "%s/%s", dir, e->d_name);
        if (unlink(path))
            sweep(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

/* Runs f and returns what it said on stderr. */
static char said[4096];
static int keep_stderr, say_fd;

static void listen_begin(void)
{
    char path[] = "/tmp/test_ckpt_said_XXXXXX";

    fflush(stderr);
    keep_stderr = dup(2);
    say_fd = mkstemp(path);
    unlink(path);
    dup2(say_fd, 2);
}

static bool heard(const char *a, const char *b, const char *c)
{
    ssize_t n;

    dup2(keep_stderr, 2);
    close(keep_stderr);
    n = pread(say_fd, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    close(say_fd);
    if (strstr(said, a) && strstr(said, b) && strstr(said, c))
        return true;
    printf("said: %s", said);
    return false;
}

static void write_file(const char *path, const char *text)
{
    CHECK(!file_write(path, text, strlen(text)));
}

static void copy_file(const char *from, const char *to)
{
    size_t n = 0;
    char *data = file_read(from, &n);

    CHECK(data && !file_write(to, data, n));
    free(data);
}

static int open_loaded(struct model *m, const char *dir)
{
    struct config c;
    struct model_use use = { .world = 1 };

    if (ckpt_config(dir, &c) || model_open(m, &dev, &c, &use))
        return -1;
    if (ckpt_load(dir, m)) {
        model_close(m);
        return -1;
    }
    return 0;
}

static bool refused(const char *dir)
{
    struct model m;

    if (open_loaded(&m, dir))
        return true;
    model_close(&m);
    return false;
}

static bool same_tensors(const char *one, const char *two)
{
    struct st *a = st_open(one), *b = st_open(two);
    bool same = a && b && a->n == b->n;

    for (int64_t i = 0; same && i < a->n; i++) {
        const struct st_tensor *t = st_find(b, a->at[i].name);
        same = t && t->type == a->at[i].type && t->ndim == a->at[i].ndim &&
               !memcmp(t->dim, a->at[i].dim, sizeof t->dim) && !memcmp(t->data, a->at[i].data, (size_t)t->bytes);
    }
    st_close(a);
    st_close(b);
    return same;
}

/* Load, save without a step: every tensor byte-equal, the config the same. */
static void test_goldens(void)
{
    static const char *const names[] = {
        "hf_mamba2", "hf_mamba2_groups", "palimpsa_d", "palimpsa_d_nogate", "palimpsa_d_nometa",
        "palimpsa_m", "palimpsa_m_hybrid", "palimpsa_m_nometa",
    };

    for (size_t i = 0; i < LEN(names); i++) {
        char from[512];
        struct model m;
        struct config c;
        str_format(from, sizeof from, "%s/models/%s", test_golden(), names[i]);
        CHECK(!open_loaded(&m, from));
        CHECK(!ckpt_save(at("copy/"), &m, NULL, NULL, &self, NULL, F32));
        CHECK(same_tensors(from, at("copy")));
        CHECK(!ckpt_config(at("copy"), &c) && !memcmp(&c, &m.cfg, sizeof c));
        /* again over the same place */
        CHECK(!ckpt_save(at("copy"), &m, NULL, NULL, &self, at("copy/config.json"), F32));
        CHECK(!access(at("copy/tokenizer.json"), F_OK) && access(at("copy.tmp"), F_OK) && access(at("copy.old"), F_OK));
        model_close(&m);
    }
    sweep(at("copy"));
}

/* A model of our own making in dir; native: state-spaces names and keys. */
static void make(const char *dir, const char *config)
{
    struct config c;
    struct model m;
    struct model_use use = { .world = 1 };

    CHECK(!config_parse(&c, config, strlen(config), "made"));
    CHECK(!model_open(&m, &dev, &c, &use));
    params_init(&m.params, &dev, 5, 0);
    CHECK(!ckpt_save(dir, &m, NULL, NULL, &self, NULL, F32));
    model_close(&m);
}

#define NATIVE "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 61, \"pad_vocab_size_multiple\": 16, " \
               "\"ssm_cfg\": {\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}"
#define HF "{\"model_type\": \"mamba2\", \"vocab_size\": 24, \"hidden_size\": 32, \"num_hidden_layers\": 2, " \
           "\"num_heads\": 2, \"head_dim\": 8, \"state_size\": 8, \"n_groups\": 1, \"conv_kernel\": 4"

static void test_native(void)
{
    const struct st_tensor *t;
    struct config c;
    struct model m;
    struct st *s;

    make(at("native"), NATIVE "}");
    s = st_open(at("native"));
    CHECK(s && st_find(s, "backbone.embedding.weight") && !st_find(s, "lm_head.weight"));
    t = st_find(s, "backbone.layers.1.mixer.in_proj.weight");
    CHECK(t && t->dim[0] == 296 && t->dim[1] == 64);
    t = st_find(s, "backbone.layers.0.mixer.conv1d.weight");
    CHECK(t && t->ndim == 3 && t->dim[0] == 160 && t->dim[1] == 1 && t->dim[2] == 4);
    st_close(s);
    CHECK(!open_loaded(&m, at("native")) && m.cfg.native && m.cfg.vocab == 64 && m.cfg.vocab_real == 61);
    CHECK(!ckpt_save(at("again"), &m, NULL, NULL, &self, NULL, F32) && same_tensors(at("native"), at("again")));
    model_close(&m);

    /* rows are what the tensor has, whatever the multiple says; fewer than the ids is a conflict */
    write_file(at("native/config.json"), NATIVE ", \"tie_embeddings\": true}");
    write_file(at("native/config.json"), "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 50, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}}");
    CHECK(!ckpt_config(at("native"), &c) && c.vocab == 64 && c.vocab_real == 50);
    write_file(at("native/config.json"), "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 65, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}}");
    listen_begin();
    CHECK(ckpt_config(at("native"), &c) == -1);
    CHECK(heard("vocab_size", "72", "64"));

    write_file(at("native/config.json"), NATIVE ", \"hidden_size\": 4096}");
    listen_begin();
    CHECK(ckpt_config(at("native"), &c) == -1);
    CHECK(heard("4096", "64", "hidden_size"));
    write_file(at("native/config.json"), "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 61, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 32}}");
    listen_begin();
    CHECK(ckpt_config(at("native"), &c) == -1);
    CHECK(heard("ssm_cfg.d_state is 32", "16", "conv1d"));
    write_file(at("native/config.json"), "{\"d_model\": 64, \"n_layer\": 3, \"vocab_size\": 61, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}}");
    listen_begin();
    CHECK(ckpt_config(at("native"), &c) == -1);
    CHECK(heard("n_layer is 3", "2", ""));
    sweep(at("again"));
    sweep(at("native"));
}

static void test_inner_width(void)
{
    struct config c;
    struct model m;

    make(at("inner"), HF ", \"tie_word_embeddings\": true}");       /* 2 x 8 = 16, not 2 x 32 */
    write_file(at("inner/config.json"), HF ", \"tie_word_embeddings\": true, \"expand\": 2}");
    listen_begin();
    CHECK(config_read(&c, at("inner")) == -1);
    CHECK(heard("64", "16", "expand"));
    CHECK(!open_loaded(&m, at("inner")) && m.cfg.heads == 2 && m.cfg.value == 8);
    model_close(&m);
    write_file(at("inner/config.json"), HF ", \"use_bias\": true, \"tie_word_embeddings\": true}");
    listen_begin();
    CHECK(ckpt_config(at("inner"), &c) == -1);
    CHECK(heard("use_bias is true", "no backbone.layers.0.mixer.in_proj.bias", ""));
    sweep(at("inner"));
}

/* Rewrites dir's model.safetensors without `drop`, with `extra` added. */
static void rewrite_as(enum st_type type, const char *dir, const char *drop, const char *extra,
                       const void *data, int rows, int cols)
{
    char path[600], final[600];
    struct st *s = st_open(dir);
    struct st_writer *w;

    str_format(path, sizeof path, "%s/new", dir);
    str_format(final, sizeof final, "%s/model.safetensors", dir);
    w = st_create(path);
    for (int64_t i = 0; i < s->n; i++)
        if (!drop || strcmp(s->at[i].name, drop))
            st_declare(w, s->at[i].name, s->at[i].type, s->at[i].ndim, s->at[i].dim);
    if (extra)
        st_declare(w, extra, type, 2, (int64_t[]){ rows, cols });
    for (int64_t i = 0; i < s->n; i++)
        if (!drop || strcmp(s->at[i].name, drop))
            CHECK(!st_write(w, s->at[i].data, (size_t)s->at[i].bytes));
    if (extra)
        CHECK(!st_write(w, data, (size_t)rows * (size_t)cols * st_type_size(type)));
    CHECK(!st_finish(w));
    st_close(s);
    CHECK(!rename(path, final));
}

static void rewrite(const char *dir, const char *drop, const char *extra, const float *data, int rows, int cols)
{
    rewrite_as(ST_F32, dir, drop, extra, data, rows, cols);
}

static void test_tied(void)
{
    float *embed = mem_new(24 * 32, 4), *back = mem_new(24 * 32, 4);
    struct config c;
    struct model m;
    struct st *s;

    make(at("tied"), HF ", \"tie_word_embeddings\": true}");
    s = st_open(at("tied"));
    CHECK(!st_float(st_find(s, "backbone.embeddings.weight"), embed));
    st_close(s);
    /* only the embedding; both and equal; only the head: the same weights */
    for (int form = 0; form < 3; form++) {
        if (form)
            rewrite(at("tied"), form == 2 ? "backbone.embeddings.weight" : NULL,
                    form == 1 ? "lm_head.weight" : NULL, embed, 24, 32);
        CHECK(!open_loaded(&m, at("tied")));
        param_get(&dev, &m.params.at[m.embed].value, back);
        CHECK(m.head == m.embed && !memcmp(embed, back, 24 * 32 * 4));
        model_close(&m);
    }
    /* neither flag nor head: tied, since there is nothing else; flag false and no head: a conflict */
    make(at("tied"), HF ", \"tie_word_embeddings\": true}");
    write_file(at("tied/config.json"), HF "}");
    CHECK(!ckpt_config(at("tied"), &c) && c.tied);
    write_file(at("tied/config.json"), HF ", \"tie_word_embeddings\": false}");
    listen_begin();
    CHECK(ckpt_config(at("tied"), &c) == -1);
    CHECK(heard("tie_word_embeddings is false", "lm_head.weight", ""));
    /* both, different, tied: names both */
    embed[3] += 1;
    rewrite(at("tied"), NULL, "lm_head.weight", embed, 24, 32);
    write_file(at("tied/config.json"), HF ", \"tie_word_embeddings\": true}");
    listen_begin();
    CHECK(refused(at("tied")));
    CHECK(heard("backbone.embeddings.weight", "lm_head.weight", "differ"));
    write_file(at("tied/config.json"), HF "}");
    CHECK(!open_loaded(&m, at("tied")) && m.head != m.embed);
    model_close(&m);

    rewrite(at("tied"), "lm_head.weight", "foo.bar", embed, 1, 1);
    write_file(at("tied/config.json"), HF ", \"tie_word_embeddings\": true}");
    listen_begin();
    CHECK(refused(at("tied")));
    CHECK(heard("1 unknown tensors: foo.bar", "", ""));
    rewrite(at("tied"), "foo.bar", NULL, NULL, 0, 0);
    rewrite(at("tied"), "backbone.layers.1.mixer.D", NULL, NULL, 0, 0);
    listen_begin();
    CHECK(refused(at("tied")));
    CHECK(heard("1 missing tensors: backbone.layers.1.mixer.D", "", ""));
    rewrite(at("tied"), NULL, "backbone.layers.1.mixer.D", embed, 1, 2);
    CHECK(!refused(at("tied")));
    rewrite(at("tied"), "backbone.norm_f.weight", "backbone.norm_f.weight", embed, 2, 16);
    listen_begin();
    CHECK(refused(at("tied")));
    CHECK(heard("backbone.norm_f.weight: expected 32, found 2 x 16", "", ""));
    sweep(at("tied"));
    free(embed);
    free(back);
}

static void test_half(void)
{
    static const char name[] = "backbone.layers.0.mixer.A_log";
    const uint16_t eleven[] = { bf16_of(logf(11)), 0 };
    struct model m;
    struct st *s;
    float A[2];

    make(at("half"), HF ", \"tie_word_embeddings\": true}");
    CHECK(!open_loaded(&m, at("half")));
    CHECK(!ckpt_save(at("half"), &m, NULL, NULL, &self, NULL, BF16));
    model_close(&m);
    s = st_open(at("half"));
    for (int64_t i = 0; s && i < s->n; i++) {
        bool matrix = strstr(s->at[i].name, "proj.weight") || strstr(s->at[i].name, "embeddings");
        CHECK(s->at[i].type == (matrix ? ST_BF16 : ST_F32));
        CHECK((uintptr_t)s->at[i].data % st_type_size(s->at[i].type) == 0);
    }
    st_close(s);
    CHECK(!open_loaded(&m, at("half")));
    model_close(&m);

    /* a source that stores A_log in bf16: exp of the rounded number, not a rounded exp */
    rewrite_as(ST_BF16, at("half"), name, name, eleven, 1, 2);
    CHECK(!open_loaded(&m, at("half")));
    param_get(&dev, &params_find(&m.params, name)->value, A);
    CHECK_NEAR(expf(A[0]), 10.9203, 1e-4);
    model_close(&m);
    sweep(at("half"));
}

static void test_no_model(void)
{
    struct st_writer *w;
    struct config c;
    struct model m;

    mkdir(at("none"), 0777);
    write_file(at("none/config.json"), HF "}");
    listen_begin();
    CHECK(ckpt_config(at("none"), &c) == -1);
    CHECK(heard("model.safetensors", "", ""));
    write_file(at("none/pytorch_model.bin"), "PK");
    listen_begin();
    CHECK(ckpt_config(at("none"), &c) == -1);
    CHECK(heard("pytorch_model.bin", "safetensors", ""));
    w = st_create(at("none/model.safetensors"));
    st_describe(w, "only", "words");
    CHECK(!st_finish(w));
    listen_begin();
    CHECK(ckpt_config(at("none"), &c) == -1);
    CHECK(heard("no tensors", "no model", ""));
    unlink(at("none/config.json"));
    write_file(at("none/params.json"), "{\"dim\": 4096}");
    listen_begin();
    CHECK(ckpt_config(at("none"), &c) == -1);
    CHECK(heard("params.json", "", ""));
    /* a directory of other things is not replaced */
    make(at("fine"), HF ", \"tie_word_embeddings\": true}");
    CHECK(!open_loaded(&m, at("fine")));
    write_file(at("fine/notes.txt"), "mine");
    listen_begin();
    CHECK(ckpt_save(at("fine"), &m, NULL, NULL, &self, NULL, F32) == -1);
    CHECK(heard("notes.txt", "", ""));
    CHECK(!access(at("fine/notes.txt"), F_OK) && !access(at("fine/model.safetensors"), F_OK));
    model_close(&m);
    sweep(at("fine"));
    sweep(at("none"));
}

/* State as a function of name, kind and index, whatever the slices. */
static float state(const struct param *a, int kind, int64_t i)
{
    uint64_t h = (uint64_t)i * 2654435761u + (uint64_t)kind * 97 + (uint64_t)a->name[strlen(a->name) - 3] * 131 +
                 (uint64_t)a->offset;

    return (float)(h % 10007) / 997;
}

enum { FILL, COMPARE };

/* Fills this rank's slices, or counts what differs. */
static int64_t states(struct model *m, struct comm *c, int what)
{
    int64_t wrong = 0;

    for (int i = 0; i < m->params.n; i++) {
        const struct param *a = &m->params.at[i];
        struct bucket *k = &m->params.bucket[a->bucket];
        float *at_kind[] = { k->master.data, k->m.data, k->v.data };
        if (a->flags & PARAM_FROZEN)
            continue;
        for (int kind = 0; kind < 3; kind++)
            for (int64_t j = 0; j < tensor_count(a->value); j++) {
                int64_t s = a->offset + j - c->rank * k->slice;
                if (s < 0 || s >= k->slice)
                    continue;
                if (what == FILL)
                    at_kind[kind][s] = state(a, kind, j);
                else
                    wrong += at_kind[kind][s] != state(a, kind, j);
            }
    }
    return wrong;
}

/* F32 masters are values: other ranks' parts come by gathering. */
static void gather_values(struct model *m, struct comm *c)
{
    for (int b = 0; b < m->params.nbucket; b++) {
        struct bucket *k = &m->params.bucket[b];
        c->gather(c, k->value, tensor_rows(k->value, c->rank * k->slice, k->slice));
    }
}

/* Saves to, or loads from, dir with so many ranks. */
static int optim_ranks(int world, const char *dir, bool save)
{
    struct run r = { .step = 7, .seed = 18446744073709551615u, .row = 1234567890123, .data = "abc",
                     .options = "{\"lr\": 0.001, \"list\": [1, null]}" }, back;
    struct model_use use = { .world = world, .learn = true, .optim = true };
    struct optim o = { 0 };
    struct config c;
    struct comm comm;
    struct model m;
    int status = 1;

    if (comm_fork(&comm, world))
        return 1;
    comm_use(&comm, &dev);
    if (config_read(&c, "palimpsa-tiny") || model_open(&m, &dev, &c, &use))
        return comm_join(&comm, 1);
    params_init(&m.params, &dev, 3, comm.rank);
    if (save) {
        states(&m, &comm, FILL);
        gather_values(&m, &comm);
        status = ckpt_save(dir, &m, &o, &r, &comm, NULL, BF16) != 0;
    } else if (!ckpt_load(dir, &m) && !ckpt_load_optim(dir, &m, &comm) && !ckpt_run_read(dir, &back)) {
        status = states(&m, &comm, COMPARE) != 0 || back.step != 7 || back.seed != r.seed || back.row != r.row ||
                 strcmp(back.data, "abc") || strcmp(back.options, r.options);
        free(back.options);
    }
    model_close(&m);
    return comm_join(&comm, status);
}

/* In a process of its own: OpenMP's threads do not survive a fork, so this one must not start any. */
static int optim_world(int world, const char *dir, bool save)
{
    int status = 0;
    pid_t child = fork();

    if (!child)
        exit(optim_ranks(world, dir, save));
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}

static void test_optim(void)
{
    static const int worlds[] = { 1, 2, 3 };
    char dir[512], first[512];

    str_format(first, sizeof first, "%s", at("optim1"));
    for (size_t i = 0; i < LEN(worlds); i++) {
        str_format(dir, sizeof dir, "%s/optim%d", root, worlds[i]);
        CHECK(!optim_world(worlds[i], dir, true));
        for (size_t j = 0; j < LEN(worlds); j++)
            CHECK(!optim_world(worlds[j], dir, false));
        if (i) {
            char a[600], b[600];
            str_format(a, sizeof a, "%s/optim.safetensors", first);
            str_format(b, sizeof b, "%s/optim.safetensors", dir);
            CHECK(same_tensors(a, b));
            CHECK(same_tensors(first, dir));
        }
    }
    for (size_t i = 1; i < LEN(worlds); i++) {
        str_format(dir, sizeof dir, "%s/optim%d", root, worlds[i]);
        sweep(dir);
    }
}

/* Copies the checkpoint of test_optim as step n of RUN. */
static void add_step(int n)
{
    static const char *const files[] = { "config.json", "model.safetensors", "optim.safetensors", "run.json" };
    char dir[300], to[600], from[600];

    str_format(dir, sizeof dir, "run/step-%06d", n);
    mkdir(at(dir), 0777);
    for (size_t i = 0; i < LEN(files); i++) {
        str_format(from, sizeof from, "%s/optim1/%s", root, files[i]);
        str_format(to, sizeof to, "%s/%s/%s", root, dir, files[i]);
        copy_file(from, to);
    }
}

static bool have(int n)
{
    char dir[300];

    str_format(dir, sizeof dir, "run/step-%06d", n);
    return !access(at(dir), F_OK);
}

static bool latest_is(int n)
{
    char out[1024], want[64];

    str_format(want, sizeof want, n < 0 ? "" : "/run/step-%06d", n);
    if (ckpt_latest(at("run"), out, sizeof out))
        return false;
    return n < 0 ? !out[0] : strlen(out) > strlen(want) && !strcmp(out + strlen(root), want);
}

static void test_run_directory(void)
{
    int lock, status = 0;
    pid_t child;

    CHECK(latest_is(-1));
    mkdir(at("run"), 0777);
    CHECK(latest_is(-1));
    for (int n = 10; n <= 50; n += 10)
        add_step(n);
    mkdir(at("run/step-000060.tmp"), 0777);
    mkdir(at("run/step-x"), 0777);
    add_step(1000000);
    CHECK(latest_is(1000000));
    CHECK(!truncate(at("run/step-1000000/optim.safetensors"), 5000));
    CHECK(latest_is(50));
    unlink(at("run/step-000050/run.json"));
    listen_begin();
    CHECK(latest_is(40));
    CHECK(heard("step-000050", "warning", "interrupted"));
    /* 40 is the newest whole one: it stays, though two torn ones are newer */
    ckpt_prune(at("run"), 1, 20);
    CHECK(have(40) && have(50) && have(20) && !have(30) && !have(10) && access(at("run/step-000060.tmp"), F_OK));
    ckpt_prune(at("run"), 0, 0);
    CHECK(have(20));
    add_step(60);
    ckpt_prune(at("run"), 2, 0);
    CHECK(have(60) && have(40) && !have(20) && latest_is(60));
    sweep(at("run/step-1000000"));
    CHECK(latest_is(60));

    lock = ckpt_lock(at("run"));
    CHECK(lock >= 0);
    child = fork();
    if (!child) {
        close(lock);
        _exit(ckpt_lock(at("run")) < 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(lock);
    lock = ckpt_lock(at("run"));
    CHECK(lock >= 0);
    close(lock);
    sweep(at("run"));
}

/* Killed while saving, over and over: the newest step that shows is whole. */
static void test_kill(void)
{
    char out[1024];

    mkdir(at("run"), 0777);
    add_step(1);
    for (int trial = 0; trial < 5; trial++) {
        pid_t child = fork();
        if (!child) {
            struct run r = { .options = "{}" };
            struct optim o = { 0 };
            struct model m;
            struct model_use use = { .world = 1, .learn = true, .optim = true };
            struct config c;
            if (config_read(&c, "mamba2-tiny") || model_open(&m, &dev, &c, &use))
                _exit(1);
            params_init(&m.params, &dev, 3, 0);
            for (r.step = 2;; r.step++) {
                char dir[600];
                str_format(dir, sizeof dir, "%s/run/step-%06lld", root, (long long)(2 + r.step % 3));
                if (ckpt_save(dir, &m, &o, &r, &self, NULL, F32))
                    _exit(1);
            }
        }
        for (int wait = 0; wait < 2000 && access(at("run/step-000004.tmp"), F_OK); wait++)
            usleep(5000);
        usleep(6000 * (useconds_t)trial);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        CHECK(!ckpt_latest(at("run"), out, sizeof out) && out[0]);
        CHECK(!strstr(out, ".tmp") && !strstr(out, ".old"));
    }
    sweep(at("run"));
    sweep(at("optim1"));
}

/* A published state-spaces model, its sharded bf16 twin, and goldens in every family. */
static void test_published(void)
{
    char path[512];
    struct model m;

    if (!test_reference())
        return;
    str_format(path, sizeof path, "%s/data/checkpoints/mamba2-char-shakespeare", test_reference());
    if (access(path, F_OK))
        return;
    CHECK(!open_loaded(&m, path));
    CHECK(m.cfg.native && m.cfg.vocab == 80 && m.cfg.vocab_real == 65 && m.cfg.heads == 8 && m.cfg.key == 32);
    CHECK(!ckpt_save(at("shakespeare"), &m, NULL, NULL, &self, NULL, F32));
    model_close(&m);
    CHECK(!open_loaded(&m, at("shakespeare")) && m.cfg.native && m.cfg.vocab_real == 65);
    model_close(&m);
    sweep(at("shakespeare"));
    str_format(path, sizeof path, "%s/data/checkpoints/mamba2-char-shakespeare/hf-sharded-bf16", test_reference());
    CHECK(!open_loaded(&m, path) && !m.cfg.native && m.cfg.vocab == 80);
    model_close(&m);
}

int main(void)
{
    CHECK(mkdtemp(root));
    CHECK(!dev_open(&dev, "naive", F32, 1));
    CHECK(!comm_fork(&self, 1));
    comm_use(&self, &dev);
    test_optim();                              /* these fork */
    test_run_directory();
    test_kill();
    test_goldens();
    test_native();
    test_inner_width();
    test_tied();
    test_half();
    test_no_model();
    test_published();
    dev_close(&dev);
    sweep(root);
    return test_done("ckpt");
}
