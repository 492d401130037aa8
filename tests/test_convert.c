/* test_convert.c - conversions between forms: what is kept is kept to the byte, and nothing is left behind
 * where something was refused. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt_parts.h"
#include "convert_model.h"
#include "json.h"
#include "scratch.h"
#include "torch_file.h"
#include <sys/stat.h>
#include <unistd.h>

/* What fla writes of a model: Hugging Face's tensors, no num_heads, norm_eps, keys of its own (its config class). */
static void write_as_fla(const char *from, const char *to)
{
    char path[600], other[600], *text;
    const char *const left_out[] = { "  \"num_heads\": 4,\n", "  \"layer_norm_epsilon\": 1e-05,\n" };
    static const char more[] = ",\n  \"fuse_cross_entropy\": true,\n  \"fuse_norm\": true,\n  \"use_cache\": true\n}\n";
    struct text t = { 0 };
    size_t n;

    str_format(path, sizeof path, "%s/config.json", from);
    text = file_read(path, &n);
    for (size_t i = 0; text && i < LEN(left_out); i++) {
        char *at = strstr(text, left_out[i]);
        CHECK(at != NULL);
        if (at)
            memmove(at, at + strlen(left_out[i]), strlen(at + strlen(left_out[i])) + 1);
    }
    text_add(&t, "%.*s%s", (int)(strrchr(text, '}') - text - 1), text, more);
    mkdir(to, 0777);
    str_format(other, sizeof other, "%s/config.json", to);
    CHECK(!file_write(other, t.at, t.n));
    str_format(path, sizeof path, "%s/model.safetensors", from);
    str_format(other, sizeof other, "%s/model.safetensors", to);
    CHECK(scratch_copy(path, other));
    text_free(&t);
    free(text);
}

/* C04: state-spaces to Hugging Face's form, that to fla's, and back; and from there. */
static void test_round_trips(void)
{
    static const char *const native[] = { "state_spaces_mamba2", "state_spaces_mamba2_bf16" };

    for (size_t i = 0; i < LEN(native); i++) {
        CHECK(!convert_turn(convert_golden(native[i]), place("hf"), "hf") && said.equal);
        write_as_fla(place("hf"), place("fla"));
        CHECK(!convert_turn(place("fla"), place("ss"), "state-spaces") && said.equal && said.kl == 0);
        CHECK(same_weights(convert_golden(native[i]), place("ss")));
        CHECK(same_config(convert_golden(native[i]), place("ss")));
        scratch_sweep(place("fla"));
        scratch_sweep(place("ss"));
        CHECK(!convert_turn(place("hf"), place("ss"), "state-spaces") && said.equal && said.kl == 0);
        CHECK(same_weights(convert_golden(native[i]), place("ss")));
        CHECK(same_config(convert_golden(native[i]), place("ss")));
        scratch_sweep(place("hf"));
        scratch_sweep(place("ss"));
    }
    CHECK(!convert_turn(convert_golden("hf_mamba2"), place("ss"), "state-spaces") && said.equal);
    CHECK(!convert_turn(place("ss"), place("hf"), "hf") && said.equal && said.predicted == 63);
    CHECK(same_weights(convert_golden("hf_mamba2"), place("hf")));
    CHECK(same_config(convert_golden("hf_mamba2"), place("hf")));
    scratch_sweep(place("hf"));
    scratch_sweep(place("ss"));
    /* per-group and whole norms are different models, and the forms know only one each */
    CHECK(!convert_turn(convert_golden("hf_mamba2_groups"), place("hf"), "hf") && said.equal);
    CHECK(same_weights(convert_golden("hf_mamba2_groups"), place("hf")));
    CHECK(same_config(convert_golden("hf_mamba2_groups"), place("hf")));
    scratch_listen();
    CHECK(convert_turn(convert_golden("hf_mamba2_groups"), place("ss"), "state-spaces") == -1);
    CHECK(scratch_heard("ngroups is 2", "the norm has 1", "") && convert_absent(place("ss")));
    scratch_sweep(place("hf"));
}

/* Biases of the projections, a skip per channel, groups, odd kernels: carried, and computed. */
static void test_rare_switches(void)
{
    struct convert_options o = convert_to(place("rare"), place("hf"), "hf");

    convert_store(place("rare"), "{\"d_model\": 32, \"n_layer\": 2, \"vocab_size\": 33, \"tie_embeddings\": false, "
                  "\"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_state\": 8, \"headdim\": 16, "
                  "\"ngroups\": 2, \"bias\": true, "
                  "\"conv_bias\": false, \"D_has_hdim\": true, \"norm_before_gate\": true, \"d_conv\": 3, "
                  "\"dt_limit\": [0.01, 0.5]}}", ST_F32, false);
    CHECK(!convert_run(&o, &said));
    o = convert_to(place("hf"), place("back"), "state-spaces");
    CHECK(!convert_run(&o, &said));
    CHECK(same_weights(place("rare"), place("back")) && same_config(place("rare"), place("back")));
    o.check = true, o.to = place("other");
    CHECK(!convert_run(&o, &said) && said.equal);
    scratch_sweep(place("other"));
    scratch_sweep(place("rare"));
    scratch_sweep(place("hf"));
    scratch_sweep(place("back"));
}

/* C03: a .bin with transposed views and two names on one storage gives what the same numbers as safetensors give. */
static void test_bin(void)
{
    enum { MOST = 64 };
    static char storage_name[MOST][8];
    struct bytes storage[MOST] = { 0 }, pickle;
    struct view v[MOST] = { 0 };
    struct archive a;
    struct st *s;
    FILE *f;

    convert_store(place("plain"), "{\"d_model\": 32, \"n_layer\": 2, \"vocab_size\": 33, \"ssm_cfg\": "
                  "{\"layer\": \"Mamba2\", \"d_state\": 8, \"headdim\": 16}}", ST_BF16, true);
    s = st_open(place("plain"));
    for (int i = 0; i < s->n; i++) {
        const struct st_tensor *t = &s->at[i];
        bool tied = !strcmp(t->name, "lm_head.weight"), turned = strstr(t->name, "out_proj") != NULL;
        v[i] = (struct view){ t->name, storage_name[i], t->type, t->count, 0, t->ndim, { 0 }, { 0 } };
        snprintf(storage_name[i], sizeof storage_name[i], "%d", i);
        for (int d = t->ndim - 1, n = 1; d >= 0; n *= (int)t->dim[d--]) {
            v[i].dim[d] = t->dim[d];
            v[i].stride[d] = turned ? (d ? t->dim[0] : 1) : n;
        }
        if (tied)
            v[i].storage = storage_name[0];                      /* the embedding's */
        for (int64_t j = 0; j < t->count; j++) {
            int64_t at = turned ? j % t->dim[0] * t->dim[1] + j / t->dim[0] : j;
            bytes_add(&storage[i], (const char *)t->data + 2 * at, 2);
        }
    }
    CHECK(!strcmp(s->at[0].name, "backbone.embedding.weight"));
    pickle = pickle_of(v, (int)s->n);
    a = archive_of(pickle, storage, (int)s->n);
    mkdir(place("bin"), 0777);
    scratch_copy(place("plain/config.json"), place("bin/config.json"));
    f = fopen(place("bin/pytorch_model.bin"), "wb");
    fwrite(a.file.at, 1, a.file.n, f);
    fclose(f);
    CHECK(!convert_turn(place("plain"), place("from_plain"), "hf") && said.equal);
    CHECK(!convert_turn(place("bin"), place("from_bin"), "hf") && said.equal);
    CHECK(same_weights(place("from_plain"), place("from_bin")));
    for (int i = 0; i < s->n; i++)
        bytes_free(&storage[i]);
    st_close(s);
    archive_free(&a);
    bytes_free(&pickle);
}

static int64_t rows_of(const char *dir, const char *name)
{
    struct st *s = ckpt_weights(dir);
    const struct st_tensor *t = s ? st_find(s, name) : NULL;
    int64_t rows = t ? t->dim[0] : -1;

    st_close(s);
    return rows;
}

/* C05: padding comes and goes, real ids keep their logits. C06: both names or one. */
static void test_vocabulary(void)
{
    static const int64_t multiple[] = { 1, 8, 16, 64, 128 }, rows[] = { 50277, 50280, 50288, 50304, 50304 };
    struct convert_options o;
    struct config c;
    char text[256];

    for (size_t i = 0; i < LEN(multiple); i++) {
        snprintf(text, sizeof text, "{\"d_model\": 64, \"n_layer\": 1, \"vocab_size\": 50277, \"ssm_cfg\": "
                 "{\"layer\": \"Mamba2\"}, \"pad_vocab_size_multiple\": %d}", (int)multiple[i]);
        CHECK(!config_parse(&c, text, strlen(text), "t") && c.vocab == rows[i] && c.vocab_real == 50277);
    }
    convert_store(place("v0"), "{\"d_model\": 4, \"n_layer\": 1, \"vocab_size\": 50277, \"ssm_cfg\": {\"layer\": "
                  "\"Mamba2\", \"headdim\": 4, \"d_state\": 4}, \"pad_vocab_size_multiple\": 16}", ST_F32, false);
    o = convert_to(place("v0"), place("v1"), "hf");
    o.repad = 64, o.check = true;
    CHECK(!convert_run(&o, &said) && said.equal && said.before == said.after);
    CHECK(rows_of(place("v1"), "backbone.embeddings.weight") == 50304);
    CHECK(!ckpt_config(place("v1"), &c) && c.vocab == 50304 && c.vocab_real == 50277);
    o = convert_to(place("v1"), place("v2"), "hf");
    o.repad = 16, o.check = true;
    CHECK(!convert_run(&o, &said) && said.equal);
    CHECK(!convert_turn(place("v0"), place("v3"), "hf") && same_weights(place("v2"), place("v3")) &&
          same_config(place("v2"), place("v3")));
    /* tied with only the embedding; then both, with equal logits */
    o = convert_to(place("v3"), place("untied"), "hf");
    o.untie = o.check = true;
    CHECK(rows_of(place("v3"), "lm_head.weight") == -1);
    CHECK(!convert_run(&o, &said) && said.equal && rows_of(place("untied"), "lm_head.weight") == 50288);
    CHECK(!ckpt_config(place("untied"), &c) && !c.tied);
    for (int i = 0; i < 4; i++) {
        snprintf(text, sizeof text, "v%d", i);
        scratch_sweep(place(text));
    }
    scratch_sweep(place("untied"));
}

/* C09, C10: Infinity survives; in bf16 what decays and norms are made of stays F32. */
static void test_types(void)
{
    struct convert_options o = convert_to(place("hf32"), place("hf16"), "hf");
    struct config c;
    char *text;
    struct st *s;
    size_t n;

    convert_store(place("hf32"), HF(", \"norm_groups\": 2"), ST_F32, false);
    o.dtype = "bf16";
    CHECK(!convert_run(&o, &said));
    text = file_read(place("hf16/config.json"), &n);
    CHECK(text && strstr(text, "[0.0, Infinity]"));
    free(text);
    CHECK(!ckpt_config(place("hf16"), &c) && isinf(c.dt_hi) && c.dt_lo == 0 && c.norm_groups == 2 && c.groups == 2);
    s = ckpt_weights(place("hf16"));
    for (int64_t i = 0; s && i < s->n; i++) {
        bool matrix = strstr(s->at[i].name, "proj.weight") || strstr(s->at[i].name, "embeddings") ||
                      strstr(s->at[i].name, "lm_head");
        CHECK(s->at[i].type == (matrix ? ST_BF16 : ST_F32));
        CHECK((uintptr_t)s->at[i].data % st_type_size(s->at[i].type) == 0);
    }
    st_close(s);
    /* from bf16 to fp32 and back is exact */
    convert_store(place("all16"), HF(""), ST_BF16, false);
    o = convert_to(place("all16"), place("all32"), "hf");
    o.dtype = "fp32", o.check = true;
    CHECK(!convert_run(&o, &said) && said.equal);
    s = ckpt_weights(place("all32"));
    for (int64_t i = 0; s && i < s->n; i++)
        CHECK(s->at[i].type == ST_F32);
    st_close(s);
    o = convert_to(place("all16"), place("meta16"), "palimpsa");
    o.layers = "0,", o.check = true;
    CHECK(!convert_run(&o, &said) && said.kl < 1e-4);
    s = ckpt_weights(place("meta16"));
    CHECK(s && st_find(s, "backbone.layers.0.mixer.b_proj.weight")->type == ST_BF16);
    CHECK(s && st_find(s, "backbone.layers.0.mixer.b_scale")->type == ST_F32);
    st_close(s);
}

/* C02, C08, C17 and friends: one line, no directory. */
static void test_refusals(void)
{
    struct convert_options o = convert_to(place("bad"), place("out"), "hf");

    convert_store(place("bad"), NATIVE, ST_F32, true);
    scratch_write(place("bad/config.json"), "{\"d_model\": 64, \"hidden_size\": 4096, \"n_layer\": 6, "
                  "\"vocab_size\": 50, \"ssm_cfg\": {\"layer\": \"Mamba2\"}, \"pad_vocab_size_multiple\": 16}");
    CHECK(convert_refused(&o, "4096", "64"));
    scratch_write(place("bad/params.json"), "{\"dim\": 4096}");
    unlink(place("bad/config.json"));
    CHECK(convert_refused(&o, "params.json", ""));
    scratch_write(place("bad/config.json"), NATIVE);
    o.calibrate = place("text.txt");
    scratch_write(place("text.txt"), "Call me Ishmael.");
    CHECK(convert_refused(&o, "text.txt", "tokenizer.json"));
    o.calibrate = place("absent.pts");
    CHECK(convert_refused(&o, "absent.pts", ""));
    o.calibrate = NULL, o.to = place("no/such/place");
    CHECK(convert_refused(&o, "no/such/place", "No such file"));
    o.to = place("bad");
    scratch_listen();
    CHECK(convert_run(&o, &said) == -1 && scratch_heard("exists", "", ""));
}

/* What travels with the tokenizer travels; what an interrupted run left is cleared; strangers are not. */
static void test_directory(void)
{
    struct convert_options o = convert_to(convert_golden("hf_mamba2"), place("out/"), "hf");
    char *text;
    size_t n;

    mkdir(place("src"), 0777);
    scratch_copy(convert_golden("hf_mamba2/config.json"), place("src/config.json"));
    scratch_copy(convert_golden("hf_mamba2/model.safetensors"), place("src/model.safetensors"));
    scratch_write(place("src/tokenizer.json"), "{\"anything\": 1}");
    scratch_write(place("src/tokenizer_config.json"), "{}");
    scratch_write(place("src/README.md"), "not copied");
    o.from = place("src");
    mkdir(place("out.tmp"), 0777);
    scratch_write(place("out.tmp/model.safetensors.tmp"), "half");
    CHECK(!convert_run(&o, &said));
    text = file_read(place("out/tokenizer.json"), &n);
    CHECK(text && !strcmp(text, "{\"anything\": 1}") && !access(place("out/tokenizer_config.json"), F_OK));
    CHECK(access(place("out/README.md"), F_OK) && !access(place("out/convert.json"), F_OK));
    CHECK(access(place("out.tmp"), F_OK));
    free(text);
    mkdir(place("mine.tmp"), 0777);
    scratch_write(place("mine.tmp/notes.txt"), "mine");
    o.to = place("mine");
    scratch_listen();
    CHECK(convert_run(&o, &said) == -1 && scratch_heard("notes.txt", "", ""));
    CHECK(!access(place("mine.tmp/notes.txt"), F_OK) && access(place("mine"), F_OK));
}

int main(void)
{
    scratch_open();
    test_round_trips();
    test_rare_switches();
    test_bin();
    test_vocabulary();
    test_types();
    test_refusals();
    test_directory();
    scratch_close();
    return test_done("convert");
}
