/* test_config.c - every family's config.json is read and written back; what is missing or
 * contradicts itself is named. */
#define _POSIX_C_SOURCE 200809L
#include "config.h"
#include "json.h"
#include "safetensors.h"
#include "test.h"
#include <unistd.h>

#define HF "\"model_type\": \"mamba2\", \"vocab_size\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 3, " \
           "\"state_size\": 8, \"n_groups\": 2, \"conv_kernel\": 4, \"tie_word_embeddings\": true"
#define D "\"model_type\": \"palimpsa\", \"vocab_size\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 2, " \
          "\"num_heads\": 2, \"head_dim\": 8, \"expand_v\": 2, \"conv_size\": 4, \"beta_step_rank\": 4"
#define NATIVE "\"d_model\": 64, \"n_layer\": 2, \"vocab_size\": 50277"

static struct config c;

static bool good(const char *text)
{
    return !config_parse(&c, text, strlen(text), "config.json");
}

/* Refused in one line that has every one of the words (up to three, "" for none). */
static bool bad(const char *text, const char *a, const char *b, const char *d)
{
    char said[1024], path[] = "/tmp/test_config_XXXXXX";
    int keep = dup(2), fd = mkstemp(path);
    FILE *f = fdopen(fd, "r");
    bool refused;
    size_t n;

    dup2(fd, 2);
    refused = !good(text);
    dup2(keep, 2);
    close(keep);
    rewind(f);
    n = fread(said, 1, sizeof said - 1, f);
    said[n] = 0;
    fclose(f);
    unlink(path);
    if (!refused || !strstr(said, a) || !strstr(said, b) || !strstr(said, d))
        printf("said: %s", said);
    return refused && strstr(said, a) && strstr(said, b) && strstr(said, d) &&
           strchr(said, '\n') == said + n - 1;
}

/* What is written reads back as the same numbers. */
static bool round_trip(void)
{
    struct config was = c;
    char *text = config_text(&was);
    bool same = text && good(text) && !memcmp(&was, &c, sizeof c);

    free(text);
    return same;
}

static void test_hf(void)
{
    CHECK(good("{" HF ", \"num_heads\": 4, \"head_dim\": 16, \"expand\": 2, "
               "\"time_step_limit\": [0.0, {\"__float__\": \"Infinity\"}]}") && isinf(c.dt_hi) && round_trip());
    CHECK(good("{" HF ", \"num_heads\": 4, \"head_dim\": 16, \"expand\": 2, \"time_step_limit\": [0.0, Infinity]}"));
    CHECK(!strcmp(c.family, "mamba2") && !strcmp(c.mixer[2], "mamba2") && !c.native && c.tied);
    CHECK(c.vocab == 64 && c.vocab_real == 64 && c.width == 32 && c.layers == 3 && c.ffn == 0);
    CHECK(c.heads == 4 && c.value == 16 && c.key == 8 && c.groups == 2 && c.norm_groups == 1 && c.conv == 4);
    CHECK(c.dt_lo == 0 && isinf(c.dt_hi) && c.A_lo == 1 && c.A_hi == 16 && c.eps == 1e-5f);
    CHECK(!c.meta[0] && !c.gain[0] && c.conv_bias && !c.proj_bias && c.residual_f32 && c.bos == -1);
    CHECK(round_trip());
    /* fla writes no num_heads; the ignored key of old Hugging Face files stays ignored */
    CHECK(good("{" HF ", \"head_dim\": 16, \"expand\": 2, \"norm_before_gate\": true}") && c.heads == 4);
    CHECK(!c.norm_before_gate);
    CHECK(good("{\"model_type\": \"mamba2\", \"vocab_size\": 64, \"hidden_size\": 32, \"num_hidden_layers\": 1, "
               "\"state_size\": 8, \"n_groups\": 3, \"conv_kernel\": 3, \"head_dim\": 16, \"num_heads\": 3, "
               "\"gate_after_norm\": true, \"norm_groups\": 3, \"time_step_limit\": [0.001, 0.5], "
               "\"real_vocab_size\": 60, \"norm_eps\": 1e-6, \"eos_token_id\": [7, 9], \"D_has_hdim\": true, "
               "\"A_init_range\": [2, 5], \"use_bias\": true, \"use_conv_bias\": false}"));
    CHECK(c.norm_before_gate && c.norm_groups == 3 && c.dt_hi == 0.5f && c.vocab_real == 60 && c.eps == 1e-6f);
    CHECK(c.eos == 7 && c.pad == -1 && c.D_has_hdim && !c.tied && c.A_lo == 2 && round_trip());
}

static void test_palimpsa(void)
{
    CHECK(good("{" D ", \"hidden_ratio\": 4, \"intermediate_size\": null}"));
    CHECK(!strcmp(c.family, "palimpsa") && !strcmp(c.mixer[1], "palimpsa") && c.ffn == 256);
    CHECK(c.key == 8 && c.value == 16 && c.heads == 2 && c.groups == 2 && c.rank == 4 && c.use_gate);
    CHECK(c.meta[0] && c.meta[1] && c.gain[1] && c.A_lo == 0 && c.A_hi == 16 && c.init_std == 0.02f);
    CHECK(round_trip());
    CHECK(good("{" D ", \"intermediate_size\": 96, \"metaplasticity\": false, \"use_gate\": false}"));
    CHECK(c.ffn == 96 && !c.meta[0] && c.gain[0] && !c.use_gate && round_trip());
    CHECK(good("{" D ", \"intermediate_size\": 96, \"metaplastic_layers\": [1]}"));
    CHECK(!c.meta[0] && !c.gain[0] && c.meta[1] && c.gain[1] && round_trip());
    CHECK(good("{" D ", \"intermediate_size\": 96, \"metaplastic_layers\": []}") && !c.gain[1] && round_trip());
    CHECK(bad("{" D ", \"intermediate_size\": 96, \"metaplastic_layers\": [2]}", "metaplastic_layers", "", ""));
    CHECK(bad("{" D ", \"intermediate_size\": 96, \"metaplastic_layers\": [1, 1]}", "distinct", "", ""));
    CHECK(good("{" D ", \"intermediate_size\": 0}") && c.ffn == 0 && !c.ramp && round_trip());
    CHECK(good("{" D ", \"intermediate_size\": 0, \"init\": \"ramp\", \"A_init_range\": [0.01, 0.16]}"));
    CHECK(c.ramp && c.A_lo == 0.01f && c.A_hi == 0.16f && round_trip());
    CHECK(bad("{" D ", \"intermediate_size\": 0, \"init\": \"ramp\"}", "A_init_range", "above 0", ""));
    CHECK(bad("{" D ", \"intermediate_size\": 0, \"init\": \"zeros\"}", "init is", "zeros", "ramp"));
    CHECK(bad("{" D "}", "missing", "hidden_ratio", ""));
    CHECK(bad("{" D ", \"intermediate_size\": 96, \"use_short_conv\": false}", "use_short_conv", "", ""));
    CHECK(bad("{" D ", \"intermediate_size\": 96, \"hidden_act\": \"gelu\"}", "gelu", "", ""));
    CHECK(good("{" D ", \"intermediate_size\": 96}"));                /* expand_v of any two sizes */
    for (c.key = 1; c.key < 100; c.key += 7)
        for (c.value = 1; c.value < 100; c.value += 6) {
            struct config was = c;
            CHECK(round_trip());
            c = was;
        }
}

static void test_native(void)
{
    CHECK(good("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\", \"headdim\": 16, \"d_state\": 16}, "
               "\"pad_vocab_size_multiple\": 16}"));
    CHECK(c.native && !strcmp(c.family, "mamba2") && c.vocab == 50288 && c.vocab_real == 50277 && c.tied);
    CHECK(c.heads == 8 && c.value == 16 && c.key == 16 && c.groups == 1 && c.norm_groups == 1 && c.conv == 4);
    CHECK(c.eps == 1e-5f && !c.norm_before_gate && round_trip());
    /* in_proj has 2I + 2GS + H rows, conv1d I + 2GS channels */
    CHECK(2 * c.heads * c.value + 2 * c.groups * c.key + c.heads == 296);
    CHECK(good("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_state\": 32, \"headdim\": 16, "
               "\"expand\": 2, \"ngroups\": 2}}"));
    CHECK(c.groups == 2 && c.norm_groups == 2 && c.vocab == 50280 && round_trip());
    CHECK(2 * c.heads * c.value + 2 * c.groups * c.key + c.heads == 392);
    CHECK(good("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\", \"norm_before_gate\": true, \"D_has_hdim\": true, "
               "\"dt_limit\": [0.01, Infinity], \"A_init_range\": [1, 8], \"conv_bias\": false, \"bias\": true, "
               "\"d_conv\": 3, \"expand\": 1.5, \"headdim\": 32}, \"tie_embeddings\": false, "
               "\"pad_vocab_size_multiple\": 1}"));
    CHECK(c.norm_before_gate && c.D_has_hdim && c.dt_lo == 0.01f && c.A_hi == 8 && c.heads == 3 && round_trip());
    CHECK(bad("{" NATIVE ", \"ssm_cfg\": {}}", "ssm_cfg.layer", "Mamba1", ""));
    CHECK(bad("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\"}, \"attn_layer_idx\": [3]}", "attn_layer_idx", "", ""));
    CHECK(bad("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\"}, \"hidden_size\": 4096}", "4096", "64", "d_model"));
    CHECK(bad("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\"}, \"model_type\": \"palimpsa\"}",
              "mixes", "palimpsa", ""));
    CHECK(bad("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\", \"headdim\": 48}}", "128", "48", ""));
    CHECK(vocab_padded(50277, 1) == 50277 && vocab_padded(50277, 8) == 50280 && vocab_padded(50277, 16) == 50288);
    CHECK(vocab_padded(50277, 64) == 50304 && vocab_padded(50277, 128) == 50304);
    CHECK(bad("{\"d_model\": 0, \"n_layer\": 2, \"vocab_size\": 5, \"ssm_cfg\": {\"layer\": \"Mamba2\"}}",
              "-1", "expand", ""));
    CHECK(bad("{" NATIVE ", \"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_ssm\": 64}}", "d_ssm", "", ""));
    /* per-group norms and metaplastic layers cannot be said in the other form */
    CHECK(good("{" HF ", \"head_dim\": 16, \"expand\": 2}"));
    c.native = true;
    CHECK(!config_text(&c));
}

static void test_refusals(void)
{
    CHECK(bad("{" HF ", \"expand\": 2, \"num_heads\": 8, \"head_dim\": 64, \"hidden_size\": 32}", "twice", "", ""));
    CHECK(bad("{\"model_type\": \"mamba2\", \"vocab_size\": 64, \"hidden_size\": 512, \"num_hidden_layers\": 3, "
              "\"state_size\": 8, \"n_groups\": 2, \"conv_kernel\": 4, \"expand\": 2, "
              "\"num_heads\": 8, \"head_dim\": 64}",
              "1024", "512", "expand"));
    CHECK(bad("{" HF "}", "missing head_dim", "num_heads", ""));
    CHECK(bad("{" HF ", \"head_dim\": 16}", "missing num_heads", "", ""));
    CHECK(bad("{\"model_type\": \"mamba2\"}", "num_hidden_layers", "hidden_size", "vocab_size"));
    CHECK(bad("{" HF ", \"head_dim\": 16, \"num_heads\": 3}", "num_heads 3", "n_groups 2", ""));
    CHECK(bad("{" HF ", \"head_dim\": 16, \"num_heads\": 4, \"layer_norm_epsilon\": 1e-5, \"norm_eps\": 1e-6}",
              "norm_eps", "1e-05", "1e-06"));
    CHECK(bad("{" HF ", \"head_dim\": 0, \"num_heads\": 4}", "head_dim", "", ""));
    CHECK(bad("{" HF ", \"head_dim\": -3, \"num_heads\": 4}", "head_dim is -3", "", ""));
    CHECK(bad("{" HF ", \"head_dim\": \"16\", \"num_heads\": 4}", "head_dim: expected an integer", "", ""));
    CHECK(bad("{" HF ", \"head_dim\": 16, \"num_heads\": 4, \"time_step_limit\": [0.5, 0.1]}",
              "time_step_limit", "", ""));
    CHECK(bad("{" HF ", \"head_dim\": 16, \"num_heads\": 4, \"rms_norm\": false}", "rms_norm", "", ""));
    CHECK(bad("{" HF ", \"head_dim\": 16, \"expand\": 1e300}", "num_heads", "", ""));
    CHECK(bad("{\"model_type\": \"llama\"}", "llama", "", "") && bad("{\"dim\": 3}", "no model_type", "", ""));
    CHECK(bad("[1]", "object", "", "") && bad("{", "JSON", "", ""));
}

static void test_presets(void)
{
    static const struct { const char *name; int64_t parameters; } known[] = {
        { "palimpsa-170m", 172337792 },    { "palimpsa-760m", 776248880 },
        { "meta_mamba2-170m", 170353248 }, { "meta_mamba2-760m", 785468896 },
        { "mamba2-170m", 167034528 },      { "mamba2-760m", 768657696 },
        { "mamba2-2.7b", 2702599680 },     { "palimpsa-tiny", 143252 },
        { "meta_mamba2-tiny", 96104 },     { "mamba2-tiny", 93016 },
        { "palimpsa-small", 15725376 },    { "meta_mamba2-small", 14874336 },
        { "mamba2-small", 14579232 },
    };

    for (size_t i = 0; i < LEN(known); i++) {
        CHECK(!config_read(&c, known[i].name));
        CHECK(config_parameters(&c) == known[i].parameters);
        CHECK(round_trip());
    }
    CHECK(config_read(&c, "no-such-preset") == -1 && config_read(&c, "no/such/file") == -1);
}

/* Our goldens: the sum of the tensors in the file is what we count. */
static void test_goldens(void)
{
    static const char *const names[] = {
        "hf_mamba2", "hf_mamba2_groups", "palimpsa_d", "palimpsa_d_nogate", "palimpsa_d_nometa",
        "palimpsa_m", "palimpsa_m_hybrid", "palimpsa_m_nometa",
    };

    for (size_t i = 0; i < LEN(names); i++) {
        char path[1024];
        struct st *s;
        int64_t n = 0;
        str_format(path, sizeof path, "%s/models/%s", test_golden(), names[i]);
        CHECK(!config_read(&c, path));
        CHECK((s = st_open(path)) != NULL);
        for (int64_t k = 0; s && k < s->n; k++)
            n += s->at[k].count;
        CHECK(n == config_parameters(&c));
        CHECK(round_trip());
        st_close(s);
    }
}

static void test_published(void)
{
    static const struct { const char *name; int64_t parameters; } known[] = {
        { "AntonV_mamba2-130m-hf", 128989632 },   { "state-spaces_mamba2-130m", 128989632 },
        { "state-spaces_mamba2-2.7b", 2702599680 }, { "brunopio_mamba2-370m", 368346624 },
        { "rwitz2_mamba2-700m-c1.1", 780161280 },   { "fla-org_flame/mamba2_340M.json", 382387712 },
    };
    static const char *const refused[] = {
        "brunopio_mamba2attn-2.7b", "fla-hub_mamba-2.7B-100B", "llama2-13b-finetune",
        "fla-org_flame/transformer_340M.json",
    };
    char path[1024];

    if (!test_reference())
        return;
    str_format(path, sizeof path, "%s/data/checkpoints/configs", test_reference());
    if (access(path, F_OK))
        return;
    for (size_t i = 0; i < LEN(known); i++) {
        str_format(path, sizeof path, "%s/data/checkpoints/configs/%s", test_reference(), known[i].name);
        CHECK(!config_read(&c, path) && config_parameters(&c) == known[i].parameters && round_trip());
    }
    for (size_t i = 0; i < LEN(refused); i++) {
        str_format(path, sizeof path, "%s/data/checkpoints/configs/%s", test_reference(), refused[i]);
        CHECK(config_read(&c, path) == -1);
    }
}

static void test_foreign(void)
{
    char dir[] = "/tmp/test_config_XXXXXX", path[128];

    CHECK(mkdtemp(dir));
    str_format(path, sizeof path, "%s/params.json", dir);
    CHECK(!file_write(path, "{\"dim\": 4096}", 13));
    CHECK(config_read(&c, dir) == -1);
    unlink(path);
    CHECK(config_read(&c, dir) == -1);
    rmdir(dir);
}

/* A block of a known family with other mixers: all alike, or one by one; written only when it says something. */
static void test_mixers(void)
{
    static const char head[] = "{\"model_type\": \"palimpsa\", \"vocab_size\": 64, \"hidden_size\": 32, "
        "\"num_hidden_layers\": 2, \"num_heads\": 2, \"head_dim\": 8, \"expand_v\": 2, \"intermediate_size\": 96, "
        "\"beta_step_rank\": 4, \"conv_size\": 4, \"norm_eps\": 1e-6";
    static const struct { const char *tail, *first, *second; } cases[] = {
        { "}", "palimpsa", "palimpsa" },
        { ", \"mixers\": \"other\"}", "other", "other" },
        { ", \"mixers\": [\"palimpsa\", \"other\"]}", "palimpsa", "other" },
        { ", \"mixers\": [\"other\"]}", NULL, NULL },
        { ", \"mixers\": [\"a\", \"b\", \"c\"]}", NULL, NULL },
        { ", \"mixers\": [\"a\", 2]}", NULL, NULL },
    };

    for (size_t i = 0; i < LEN(cases); i++) {
        struct config first, again;
        char text[1024], *out;
        int status;
        snprintf(text, sizeof text, "%s%s", head, cases[i].tail);
        status = config_parse(&first, text, strlen(text), "mixers.json");
        CHECK(status == (cases[i].first ? 0 : -1));
        if (status)
            continue;
        CHECK(!strcmp(first.mixer[0], cases[i].first) && !strcmp(first.mixer[1], cases[i].second));
        out = config_text(&first);
        CHECK(!strstr(out, "mixers") == !strcmp(cases[i].second, "palimpsa"));
        CHECK(!config_parse(&again, out, strlen(out), "again") && !strcmp(again.mixer[1], cases[i].second));
        free(out);
    }
}

int main(void)
{
    test_hf();
    test_palimpsa();
    test_native();
    test_refusals();
    test_presets();
    test_goldens();
    test_published();
    test_foreign();
    test_mixers();
    return test_done("config");
}
