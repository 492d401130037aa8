/* test_convert_layers.c - layers made metaplastic: the right ones, next to the source, the rest to the byte. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt_parts.h"
#include "convert_model.h"
#include "json.h"
#include "opened.h"
#include "plasticity.h"
#include "scratch.h"
#include "torch_file.h"
#include <sys/stat.h>
#include <unistd.h>

/* C01, C11, C12, C16: in_proj's five blocks stay where they are, gates are not drawn again, new tensors are
 * only where they were asked. */
static void test_native_to_palimpsa(void)
{
    struct convert_options o = convert_to(place("tiny"), place("meta"), "palimpsa");
    float *rows = mem_new(296 * 64, sizeof *rows), A[8];
    const struct st_tensor *t;
    struct config c;
    struct st *s, *old;
    int fresh = 0;

    for (int i = 0; i < 296 * 64; i++)
        rows[i] = (float)(i / 64);
    for (int h = 0; h < 8; h++)
        A[h] = 0.123f;
    convert_store(place("tiny"), NATIVE, ST_F32, true);
    convert_put(place("tiny"), "backbone.layers.1.mixer.in_proj.weight", rows, 296, 64);
    convert_put(place("tiny"), "backbone.layers.4.mixer.A_log", A, 8, 0);
    o.layers = "1,4";
    CHECK(!convert_run(&o, &said) && said.swapped == 2 && !said.compared && !said.scored);
    for (int i = 0; i < 6; i++)
        CHECK(said.layer[i].action == (i == 1 || i == 4 ? LAYER_SWAPPED : LAYER_COPIED) &&
              isnan(said.layer[i].score));
    CHECK(!ckpt_config(place("meta"), &c) && !strcmp(c.family, "meta_mamba2") && c.rank == 16 && c.vocab_real == 50);
    for (int i = 0; i < 6; i++)
        CHECK(c.meta[i] == (i == 1 || i == 4) && c.gain[i] == c.meta[i]);
    s = ckpt_weights(place("meta"));
    old = ckpt_weights(place("tiny"));
    t = st_find(s, "backbone.layers.1.mixer.in_proj.weight");
    CHECK(t && t->dim[0] == 296 && t->dim[1] == 64 && !memcmp(t->data, rows, 296 * 64 * 4));
    t = st_find(s, "backbone.layers.4.mixer.A_log");
    CHECK(t && !memcmp(t->data, A, sizeof A));
    t = st_find(s, "backbone.layers.0.mixer.conv1d.weight");
    CHECK(t && t->dim[0] == 160 && t->dim[1] == 1 && t->dim[2] == 4);
    for (int64_t i = 0; i < s->n; i++) {
        t = ckpt_find(old, s->at[i].name);
        fresh += !t;
        CHECK(t || strstr(s->at[i].name, ".mixer.b_") || strstr(s->at[i].name, ".mixer.Ip_log"));
        CHECK(!t || !memcmp(t->data, s->at[i].data, (size_t)t->bytes));
    }
    CHECK(fresh == 8 && !st_find(s, "lm_head.weight"));
    t = st_find(s, "backbone.layers.1.mixer.b_scale");
    for (int h = 0; h < 8; h++) {
        float x;
        memcpy(&x, (const char *)t->data + 4 * h, 4);
        CHECK_NEAR(log1p(exp(x)), 1e-3, 1e-8);
    }
    st_close(s);
    st_close(old);
    /* what is there is not replaced; an unknown tensor is named */
    scratch_listen();
    CHECK(convert_run(&o, &said) == -1 && scratch_heard("meta", "exists", ""));
    convert_put(place("tiny"), "foo.bar", A, 8, 0);
    o.to = place("none");
    CHECK(convert_refused(&o, "foo.bar", "unknown"));
    free(rows);
    scratch_sweep(place("tiny"));
    scratch_sweep(place("meta"));
}

/* C16: none, some by score, all; twice the same; and back. */
static void test_layers(void)
{
    struct convert_options o = convert_to(place("six"), place("zero"), "palimpsa");
    float A[8];

    convert_store(place("six"), NATIVE, ST_F32, true);
    for (int h = 0; h < 8; h++)
        A[h] = -6;                                               /* forgets next to nothing */
    convert_put(place("six"), "backbone.layers.5.mixer.A_log", A, 8, 0);
    A[0] = -5;
    convert_put(place("six"), "backbone.layers.2.mixer.A_log", A, 8, 0);
    o.check = true;
    o.layers = "0";
    CHECK(!convert_run(&o, &said) && said.equal && said.swapped == 0 && said.kl == 0);
    o.to = place("two"), o.layers = "2", o.score = "bias-only";
    CHECK(!convert_run(&o, &said) && said.swapped == 2 && said.compared);
    CHECK_NEAR(said.kl, 0, 1e-5);
    for (int i = 0; i < 6; i++) {
        const struct convert_layer *l = &said.layer[i];
        CHECK(l->action == (i == 2 || i == 5 ? LAYER_SWAPPED : LAYER_COPIED));
        CHECK(l->low > 1 && l->low <= l->median && l->median <= l->high && l->score >= log(l->low) - 1e-9);
    }
    o.to = place("again");
    CHECK(!convert_run(&o, &said) && same_weights(place("two"), place("again")));
    o.seed = 2, o.to = place("seed");
    CHECK(!convert_run(&o, &said) && !scratch_same(place("two"), place("seed")));
}

/* More layers later, what is there stays; and back, where only what was added goes. */
static void test_more_layers(void)
{
    struct convert_options o = convert_to(place("two"), place("more"), "palimpsa");
    o.layers = "0,";
    CHECK(!convert_run(&o, &said) && said.swapped == 1 && said.layer[0].action == LAYER_SWAPPED &&
          said.layer[2].action == LAYER_KEPT && said.layer[3].action == LAYER_COPIED);
    o.to = place("none"), o.layers = "2,";
    CHECK(convert_refused(&o, "layer 2 is metaplastic already", ""));
    o.layers = "6";
    CHECK(convert_refused(&o, "--layers 6", "from 0 to 4"));
    o.layers = "9,";
    CHECK(convert_refused(&o, "distinct layers from 0 to 5", ""));
    o.layers = "1,1";
    CHECK(convert_refused(&o, "distinct layers", ""));
    o.layers = "some";
    CHECK(convert_refused(&o, "--layers some", "all"));
    o.layers = "2";
    CHECK(convert_refused(&o, "--calibrate", "--layers 3,17"));
    o.layers = NULL, o.form = "hf";
    CHECK(convert_refused(&o, "layers 2, 5", "--drop"));
    o.layers = "1,";
    CHECK(convert_refused(&o, "no metaplastic layers", ""));
    o = convert_to(place("more"), place("back"), "state-spaces");
    o.drop = true;
    CHECK(!convert_run(&o, &said) && said.layer[2].action == LAYER_DROPPED);
    CHECK(same_weights(place("six"), place("back")));
    o = convert_to(place("more"), place("bare"), "palimpsa");
    o.drop = o.check = true;
    CHECK(!convert_run(&o, &said) && said.layer[0].action == LAYER_DROPPED);
    CHECK(!convert_turn(place("bare"), place("bare2"), "hf") && said.equal);
    o.to = place("none"), o.layers = "1";
    CHECK(convert_refused(&o, "--drop", "--layers"));
    o = convert_to(place("six"), place("every"), "palimpsa");
    o.layers = "all", o.init = "paper", o.check = true;
    CHECK(!convert_run(&o, &said) && said.swapped == 6 && said.kl > 0);
    o.layers = NULL, o.to = place("none");
    CHECK(convert_refused(&o, "choosing 1 of 6", "--calibrate"));
    o.layers = "0,", o.init = "gain";
    CHECK(convert_refused(&o, "--init gain", "expected --calibrate"));
}

/* The ablation's unused parameters are drawn anew where they are put to use, and go elsewhere. */
static void test_palimpsa_family(void)
{
    struct convert_options o = convert_to(convert_golden("palimpsa_d_nometa"), place("d"), "palimpsa");
    struct st *a, *b;
    struct config c;

    CHECK(!convert_turn(convert_golden("palimpsa_d_nometa"), place("same"), "palimpsa") && said.equal);
    CHECK(same_weights(convert_golden("palimpsa_d_nometa"), place("same")));
    o.layers = "1,", o.check = true;
    CHECK(!convert_run(&o, &said));
    CHECK(said.layer[1].action == LAYER_RENEWED && said.layer[0].action == LAYER_DROPPED);
    CHECK(said.kl < 1e-3 && !said.equal);
    CHECK(!ckpt_config(place("d"), &c) && c.meta[1] && !c.gain[0]);
    a = ckpt_weights(place("d"));
    b = ckpt_weights(convert_golden("palimpsa_d_nometa"));
    CHECK(a && st_find(a, "model.layers.1.attn.b_scale") && !st_find(a, "model.layers.0.attn.b_scale"));
    CHECK(a && st_find(a, "model.layers.0.attn.bs_proj.weight"));
    for (int64_t i = 0; a && b && i < a->n; i++) {
        const struct st_tensor *t = st_find(b, a->at[i].name);
        if (!strstr(a->at[i].name, "layers.1.attn.b_") && !strstr(a->at[i].name, "layers.1.attn.Ip_log"))
            CHECK(t && !memcmp(t->data, a->at[i].data, (size_t)t->bytes));
    }
    st_close(a);
    st_close(b);
    o.init = "gain", o.to = place("x");
    CHECK(convert_refused(&o, "--init gain is for Mamba2's layers", "family palimpsa"));
    o = convert_to(convert_golden("palimpsa_d"), place("x"), "hf");
    CHECK(convert_refused(&o, "family palimpsa", "hf"));
    o = convert_to(convert_golden("palimpsa_m_hybrid"), place("x"), "hf");
    CHECK(convert_refused(&o, "layers 1 have", "--drop"));
    CHECK(!convert_turn(convert_golden("palimpsa_m_hybrid"), place("hybrid"), "palimpsa") && said.equal);
    CHECK(same_weights(convert_golden("palimpsa_m_hybrid"), place("hybrid")));
    CHECK(same_config(convert_golden("palimpsa_m_hybrid"), place("hybrid")));
}

/* tinyshakespeare in the ids of the published checkpoint, as an llm.c shard. */
static bool write_shard(const char *path)
{
    char from[600], *chars, *text;
    size_t n, nchars;
    struct json *j;
    const char *list;
    struct bytes b = { 0 };
    FILE *f;

    str_format(from, sizeof from, "%s/data/checkpoints/mamba2-char-shakespeare/chars.json", test_reference());
    chars = file_read(from, &nchars);
    str_format(from, sizeof from, "%s/data/text/tinyshakespeare/input.txt", test_reference());
    if (access(from, F_OK)) {
        free(chars);
        return false;
    }
    text = file_read(from, &n);
    j = json_parse(chars, nchars, "chars.json");
    REQUIRE(text && json_string(j, "chars", &list) == 1);
    bytes_number(&b, 20240520, 4);
    bytes_number(&b, 1, 4);
    bytes_number(&b, 4100, 4);
    for (int i = 3; i < 256; i++)
        bytes_number(&b, 0, 4);
    for (size_t i = 0; i < 4100; i++) {
        const char *at = strchr(list, text[1000000 + i]);
        bytes_number(&b, at ? (uint64_t)(at - list) : 1, 2);
    }
    f = fopen(path, "wb");
    fwrite(b.at, 1, b.n, f);
    fclose(f);
    json_free(j);
    bytes_free(&b);
    free(chars);
    free(text);
    return true;
}

/* Heads' evidence is what was asked, give or take that gates are not exactly half open and figures are of the end. */
static void check_gain(const char *dir, double want)
{
    struct plasticity p = { 0 };
    struct loader_options lo = { .files = place("held.bin"), .tokens = 512, .context = 512, .eot = -1, .join = true };
    struct opened m;
    struct loader l;
    double sum = 0;
    int n;

    REQUIRE(!opened_open(&m, dir, "cpu", "fp32", 2, &(struct model_use){ 0 }) && !loader_open(&l, &lo) &&
            !plasticity_open(&p, &m.model, 512));
    for (int64_t i = 0; i < 4; i++) {
        struct batch b;
        REQUIRE(!loader_read(&l, i, &b));
        plasticity_add(&p, b.token, 512);
    }
    plasticity_finish(&p);
    n = m.model.cfg.layers * m.model.cfg.heads;
    for (int i = 0; i < n; i++) {
        CHECK(p.at[i].gain > want / 3 && p.at[i].gain < want * 3);
        sum += p.at[i].gain;
    }
    printf("gain: wanted %g, mean %.4f\n", want, sum / n);
    CHECK(sum / n > want * 0.7 && sum / n < want * 1.4);
    plasticity_close(&p);
    loader_close(&l);
    opened_close(&m);
}

/* A trained model: the converted one starts next to it, whichever layers were taken. */
static void test_trained(void)
{
    struct convert_options o = convert_to(NULL, NULL, "palimpsa");
    static const char *const layers[] = { "0", "1", "all" };
    char from[600], to[32];

    if (!test_reference())
        return;
    str_format(from, sizeof from, "%s/data/checkpoints/mamba2-char-shakespeare", test_reference());
    if (access(from, F_OK) || !write_shard(place("held.bin")))
        return;
    o.from = from, o.calibrate = place("held.bin"), o.context = 512, o.tokens = 2048, o.device = "cpu", o.threads = 2;
    for (size_t i = 0; i < LEN(layers); i++) {
        snprintf(to, sizeof to, "k%zu", i);
        o.to = place(to), o.layers = layers[i];
        CHECK(!convert_run(&o, &said) && said.scored && said.tokens == 2048 && said.predicted == 2048);
        printf("layers %s: loss %.6f -> %.6f, KL %.3g\n", layers[i], said.before, said.after, said.kl);
        CHECK(said.before < 2.6 && fabs(said.after - said.before) < 0.002 && said.kl < 1e-3);
        CHECK(said.equal == (i == 0));
    }
    o.to = place("paper"), o.init = "paper";
    CHECK(!convert_run(&o, &said));
    printf("layers all, paper: loss %.6f -> %.6f, KL %.3g\n", said.before, said.after, said.kl);
    for (double gain = 0.03; gain < 1; gain *= 10) {
        o.to = place(gain < 0.1 ? "gain0" : "gain1"), o.init = "gain", o.gain = gain;
        CHECK(!convert_run(&o, &said));
        printf("layers all, gain %g: loss %.6f -> %.6f, KL %.3g\n", gain, said.before, said.after, said.kl);
        check_gain(o.to, gain);
    }
    o = convert_to(NULL, place("sharded"), "state-spaces");
    str_format(from, sizeof from, "%s/data/checkpoints/mamba2-char-shakespeare/hf-sharded-bf16", test_reference());
    o.from = from, o.check = true;
    CHECK(!convert_run(&o, &said) && said.equal);
}

int main(void)
{
    scratch_open();
    test_native_to_palimpsa();
    test_layers();
    test_more_layers();
    test_palimpsa_family();
    test_trained();
    scratch_close();
    return test_done("convert_layers");
}
