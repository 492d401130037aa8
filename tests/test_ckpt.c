/* test_ckpt.c - what is saved loads again, bit for bit; what does not fit is named before anything
 * happens. */
#define _DEFAULT_SOURCE
#include "ckpt.h"
#include "half.h"
#include "json.h"
#include "safetensors.h"
#include "scratch.h"
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

static struct dev dev;
static struct comm self;

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
        CHECK(!ckpt_save(scratch("copy/"), &m, NULL, NULL, &self, NULL, F32));
        CHECK(scratch_same(from, scratch("copy")));
        CHECK(!ckpt_config(scratch("copy"), &c) && !memcmp(&c, &m.cfg, sizeof c));
        /* again over the same place */
        CHECK(!ckpt_save(scratch("copy"), &m, NULL, NULL, &self, scratch("copy/config.json"), F32));
        CHECK(!access(scratch("copy/tokenizer.json"), F_OK));
        CHECK(access(scratch("copy.tmp"), F_OK) && access(scratch("copy.old"), F_OK));
        model_close(&m);
    }
    scratch_sweep(scratch("copy"));
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

    make(scratch("native"), NATIVE "}");
    s = st_open(scratch("native"));
    CHECK(s && st_find(s, "backbone.embedding.weight") && !st_find(s, "lm_head.weight"));
    t = st_find(s, "backbone.layers.1.mixer.in_proj.weight");
    CHECK(t && t->dim[0] == 296 && t->dim[1] == 64);
    t = st_find(s, "backbone.layers.0.mixer.conv1d.weight");
    CHECK(t && t->ndim == 3 && t->dim[0] == 160 && t->dim[1] == 1 && t->dim[2] == 4);
    st_close(s);
    CHECK(!open_loaded(&m, scratch("native")) && m.cfg.native && m.cfg.vocab == 64 && m.cfg.vocab_real == 61);
    CHECK(!ckpt_save(scratch("again"), &m, NULL, NULL, &self, NULL, F32));
    CHECK(scratch_same(scratch("native"), scratch("again")));
    model_close(&m);

    /* rows are what the tensor has, whatever the multiple says; fewer than the ids is a conflict */
    scratch_write(scratch("native/config.json"), NATIVE ", \"tie_embeddings\": true}");
    scratch_write(scratch("native/config.json"), "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 50, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}}");
    CHECK(!ckpt_config(scratch("native"), &c) && c.vocab == 64 && c.vocab_real == 50);
    scratch_write(scratch("native/config.json"), "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 65, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}}");
    scratch_listen();
    CHECK(ckpt_config(scratch("native"), &c) == -1);
    CHECK(scratch_heard("vocab_size", "72", "64"));

    scratch_write(scratch("native/config.json"), NATIVE ", \"hidden_size\": 4096}");
    scratch_listen();
    CHECK(ckpt_config(scratch("native"), &c) == -1);
    CHECK(scratch_heard("4096", "64", "hidden_size"));
    scratch_write(scratch("native/config.json"), "{\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 61, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 32}}");
    scratch_listen();
    CHECK(ckpt_config(scratch("native"), &c) == -1);
    CHECK(scratch_heard("ssm_cfg.d_state is 32", "16", "conv1d"));
    scratch_write(scratch("native/config.json"), "{\"d_model\": 64, \"n_layer\": 3, \"vocab_size\": 61, \"ssm_cfg\": "
               "{\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}}");
    scratch_listen();
    CHECK(ckpt_config(scratch("native"), &c) == -1);
    CHECK(scratch_heard("n_layer is 3", "2", ""));
    scratch_sweep(scratch("again"));
    scratch_sweep(scratch("native"));
}

static void test_inner_width(void)
{
    struct config c;
    struct model m;

    make(scratch("inner"), HF ", \"tie_word_embeddings\": true}");       /* 2 x 8 = 16, not 2 x 32 */
    scratch_write(scratch("inner/config.json"), HF ", \"tie_word_embeddings\": true, \"expand\": 2}");
    scratch_listen();
    CHECK(config_read(&c, scratch("inner")) == -1);
    CHECK(scratch_heard("64", "16", "expand"));
    CHECK(!open_loaded(&m, scratch("inner")) && m.cfg.heads == 2 && m.cfg.value == 8);
    model_close(&m);
    scratch_write(scratch("inner/config.json"), HF ", \"use_bias\": true, \"tie_word_embeddings\": true}");
    scratch_listen();
    CHECK(ckpt_config(scratch("inner"), &c) == -1);
    CHECK(scratch_heard("use_bias is true", "no backbone.layers.0.mixer.in_proj.bias", ""));
    scratch_sweep(scratch("inner"));
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

    make(scratch("tied"), HF ", \"tie_word_embeddings\": true}");
    s = st_open(scratch("tied"));
    CHECK(!st_float(st_find(s, "backbone.embeddings.weight"), embed));
    st_close(s);
    /* only the embedding; both and equal; only the head: the same weights */
    for (int form = 0; form < 3; form++) {
        if (form)
            rewrite(scratch("tied"), form == 2 ? "backbone.embeddings.weight" : NULL,
                    form == 1 ? "lm_head.weight" : NULL, embed, 24, 32);
        CHECK(!open_loaded(&m, scratch("tied")));
        param_get(&dev, &m.params.at[m.embed].value, back);
        CHECK(m.head == m.embed && !memcmp(embed, back, 24 * 32 * 4));
        model_close(&m);
    }
    /* neither flag nor head: tied, since there is nothing else; flag false and no head: a conflict */
    make(scratch("tied"), HF ", \"tie_word_embeddings\": true}");
    scratch_write(scratch("tied/config.json"), HF "}");
    CHECK(!ckpt_config(scratch("tied"), &c) && c.tied);
    scratch_write(scratch("tied/config.json"), HF ", \"tie_word_embeddings\": false}");
    scratch_listen();
    CHECK(ckpt_config(scratch("tied"), &c) == -1);
    CHECK(scratch_heard("tie_word_embeddings is false", "lm_head.weight", ""));
    /* both, different, tied: names both */
    embed[3] += 1;
    rewrite(scratch("tied"), NULL, "lm_head.weight", embed, 24, 32);
    scratch_write(scratch("tied/config.json"), HF ", \"tie_word_embeddings\": true}");
    scratch_listen();
    CHECK(refused(scratch("tied")));
    CHECK(scratch_heard("backbone.embeddings.weight", "lm_head.weight", "differ"));
    scratch_write(scratch("tied/config.json"), HF "}");
    CHECK(!open_loaded(&m, scratch("tied")) && m.head != m.embed);
    model_close(&m);

    rewrite(scratch("tied"), "lm_head.weight", "foo.bar", embed, 1, 1);
    scratch_write(scratch("tied/config.json"), HF ", \"tie_word_embeddings\": true}");
    scratch_listen();
    CHECK(refused(scratch("tied")));
    CHECK(scratch_heard("1 unknown tensors: foo.bar", "", ""));
    rewrite(scratch("tied"), "foo.bar", NULL, NULL, 0, 0);
    rewrite(scratch("tied"), "backbone.layers.1.mixer.D", NULL, NULL, 0, 0);
    scratch_listen();
    CHECK(refused(scratch("tied")));
    CHECK(scratch_heard("1 missing tensors: backbone.layers.1.mixer.D", "", ""));
    rewrite(scratch("tied"), NULL, "backbone.layers.1.mixer.D", embed, 1, 2);
    CHECK(!refused(scratch("tied")));
    rewrite(scratch("tied"), "backbone.norm_f.weight", "backbone.norm_f.weight", embed, 2, 16);
    scratch_listen();
    CHECK(refused(scratch("tied")));
    CHECK(scratch_heard("backbone.norm_f.weight: expected 32, found 2 x 16", "", ""));
    scratch_sweep(scratch("tied"));
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

    make(scratch("half"), HF ", \"tie_word_embeddings\": true}");
    CHECK(!open_loaded(&m, scratch("half")));
    CHECK(!ckpt_save(scratch("half"), &m, NULL, NULL, &self, NULL, BF16));
    model_close(&m);
    s = st_open(scratch("half"));
    for (int64_t i = 0; s && i < s->n; i++) {
        bool matrix = strstr(s->at[i].name, "proj.weight") || strstr(s->at[i].name, "embeddings");
        CHECK(s->at[i].type == (matrix ? ST_BF16 : ST_F32));
        CHECK((uintptr_t)s->at[i].data % st_type_size(s->at[i].type) == 0);
    }
    st_close(s);
    CHECK(!open_loaded(&m, scratch("half")));
    model_close(&m);

    /* a source that stores A_log in bf16: exp of the rounded number, not a rounded exp */
    rewrite_as(ST_BF16, scratch("half"), name, name, eleven, 1, 2);
    CHECK(!open_loaded(&m, scratch("half")));
    param_get(&dev, &params_find(&m.params, name)->value, A);
    CHECK_NEAR(expf(A[0]), 10.9203, 1e-4);
    model_close(&m);
    scratch_sweep(scratch("half"));
}

static void test_no_model(void)
{
    struct st_writer *w;
    struct config c;
    struct model m;

    mkdir(scratch("none"), 0777);
    scratch_write(scratch("none/config.json"), HF "}");
    scratch_listen();
    CHECK(ckpt_config(scratch("none"), &c) == -1);
    CHECK(scratch_heard("model.safetensors", "", ""));
    scratch_write(scratch("none/pytorch_model.bin"), "PK");
    scratch_listen();
    CHECK(ckpt_config(scratch("none"), &c) == -1);
    CHECK(scratch_heard("pytorch_model.bin", "zip", ""));
    w = st_create(scratch("none/model.safetensors"));
    st_describe(w, "only", "words");
    CHECK(!st_finish(w));
    scratch_listen();
    CHECK(ckpt_config(scratch("none"), &c) == -1);
    CHECK(scratch_heard("no tensors", "no model", ""));
    unlink(scratch("none/config.json"));
    scratch_write(scratch("none/params.json"), "{\"dim\": 4096}");
    scratch_listen();
    CHECK(ckpt_config(scratch("none"), &c) == -1);
    CHECK(scratch_heard("params.json", "", ""));
    /* a save that fails leaves nothing */
    make(scratch("fine"), HF ", \"tie_word_embeddings\": true}");
    CHECK(!open_loaded(&m, scratch("fine")));
    scratch_listen();
    CHECK(ckpt_save(scratch("lost"), &m, NULL, NULL, &self, scratch("no such tokenizer"), F32) == -1);
    CHECK(scratch_heard("no such tokenizer", "", ""));
    CHECK(access(scratch("lost"), F_OK) && access(scratch("lost.tmp"), F_OK));
    model_close(&m);
    /* a directory of other things is not replaced */
    CHECK(!open_loaded(&m, scratch("fine")));
    scratch_write(scratch("fine/notes.txt"), "mine");
    scratch_listen();
    CHECK(ckpt_save(scratch("fine"), &m, NULL, NULL, &self, NULL, F32) == -1);
    CHECK(scratch_heard("notes.txt", "", ""));
    CHECK(!access(scratch("fine/notes.txt"), F_OK) && !access(scratch("fine/model.safetensors"), F_OK));
    model_close(&m);
    scratch_sweep(scratch("fine"));
    scratch_sweep(scratch("none"));
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
    CHECK(!ckpt_save(scratch("shakespeare"), &m, NULL, NULL, &self, NULL, F32));
    model_close(&m);
    CHECK(!open_loaded(&m, scratch("shakespeare")) && m.cfg.native && m.cfg.vocab_real == 65);
    model_close(&m);
    scratch_sweep(scratch("shakespeare"));
    str_format(path, sizeof path, "%s/data/checkpoints/mamba2-char-shakespeare/hf-sharded-bf16", test_reference());
    CHECK(!open_loaded(&m, path) && !m.cfg.native && m.cfg.vocab == 80);
    model_close(&m);
}

int main(void)
{
    scratch_open();
    CHECK(!dev_open(&dev, "naive", F32, 1));
    CHECK(!comm_fork(&self, 1));
    comm_use(&self, &dev);
    test_goldens();
    test_native();
    test_inner_width();
    test_tied();
    test_half();
    test_no_model();
    test_published();
    dev_close(&dev);
    scratch_close();
    return test_done("ckpt");
}
