/* test_mamba2_rare.c - biases of the projections and a skip per channel: what they mean, on both host rows. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt.h"
#include "convert_model.h"
#include "op.h"
#include "rng.h"
#include "scratch.h"
#include "session.h"
#include <math.h>

#define CONFIG(bias, hdim) "{\"d_model\": 24, \"n_layer\": 2, \"vocab_size\": 33, \"tie_embeddings\": false, " \
    "\"ssm_cfg\": {\"layer\": \"Mamba2\", \"d_state\": 8, \"headdim\": 16, \"ngroups\": 1, \"bias\": " bias \
    ", \"D_has_hdim\": " hdim "}}"

enum { T = 75, V = 48, MOST = 128 };
static int32_t token[T], target[T], start[4] = { 0, 1, 33, T };
static const char *const rare[] = { "mixer.in_proj.bias", "mixer.out_proj.bias", "mixer.D", "mixer.in_proj.weight" };

static struct batch batch(void)
{
    return (struct batch){ .token = token, .target = target, .seqs = seqs_of(start, 3) };
}

static void load(struct model *m, struct dev *d, const char *dir, const char *device)
{
    struct model_use use = { .learn = true };
    struct config c;

    REQUIRE(!dev_open(d, device, F32, 2) && !ckpt_config(dir, &c) && !model_open(m, d, &c, &use) &&
            !ckpt_load(dir, m) && !model_reserve(m, JOB_LEARN, T) && !model_reserve(m, JOB_LOGITS, T) &&
            m->cfg.vocab <= V);
}

static void unload(struct model *m, struct dev *d)
{
    model_close(m);
    dev_close(d);
}

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);

    return n >= k && !strcmp(s + n - k, tail);
}

/* Numbers that matter in place of the zeros and ones that a fresh bias and D are. */
static void store(const char *dir, const char *config)
{
    struct dev d;
    struct model m;
    float x[256];

    convert_store(dir, config, ST_F32, false);
    load(&m, &d, dir, "cpu");
    for (int i = 0; i < m.params.n; i++) {
        const struct param *p = &m.params.at[i];
        int64_t n = tensor_count(p->value);
        if (!ends(p->name, rare[0]) && !ends(p->name, rare[1]) && !ends(p->name, rare[2]))
            continue;
        for (int64_t j = 0; j < n; j++)
            x[j] = (float)(rng_uniform(3, rng_stream(p->name), (uint64_t)j) - 0.4);
        convert_put(dir, p->name, x, n, 0);
    }
    unload(&m, &d);
}

static double logits(const char *dir, const char *device, float *out)
{
    struct batch b = batch();
    struct model m;
    struct dev d;
    double loss;

    load(&m, &d, dir, device);
    model_logits(&m, &b, NULL, false, out);
    loss = model_loss(&m, &b, NULL, NULL);
    unload(&m, &d);
    return loss;
}

/* Both rows, and every gradient. */
static void test_rows(const char *dir)
{
    struct batch b = batch();
    static float one[T * V], two[T * V];
    struct model m, n;
    struct dev d, e;

    CHECK_NEAR(logits(dir, "naive", one), logits(dir, "cpu", two), 1e-4);
    CHECK(test_distance(two, one, (int64_t)T * V) < 1e-5);
    load(&m, &d, dir, "naive");
    load(&n, &e, dir, "cpu");
    params_zero_grad(&m.params, &d);
    params_zero_grad(&n.params, &e);
    model_learn(&m, &b, 1, NULL, NULL);
    model_learn(&n, &b, 1, NULL, NULL);
    for (int i = 0; i < m.params.n; i++) {
        struct tensor g = m.params.at[i].grad, h = n.params.at[i].grad;
        CHECK(test_distance(h.data, g.data, tensor_count(g)) < 1e-4);
    }
    unload(&m, &d);
    unload(&n, &e);
}

/* <gradient, u> against the loss along u, for every kind of parameter in question. */
static void test_gradients(const char *dir)
{
    struct batch b = batch();
    struct model m;
    struct dev d;

    load(&m, &d, dir, "naive");
    params_zero_grad(&m.params, &d);
    model_learn(&m, &b, 1, NULL, NULL);
    for (int i = 0; i < m.params.n; i++) {
        struct param *p = &m.params.at[i];
        int64_t n = tensor_count(p->value);
        float *w = p->value.data, *g = p->grad.data, *old = mem_new((size_t)n, sizeof *old);
        double want = 0, got, step = 4e-3, loss[2];
        bool wanted = false;
        for (size_t k = 0; k < LEN(rare); k++)
            wanted |= ends(p->name, rare[k]);
        memcpy(old, w, (size_t)n * sizeof *old);
        for (int64_t j = 0; j < n; j++)
            want += g[j] * (rng_uniform(9, 1, (uint64_t)j) - 0.5);
        for (int side = 0; side < 2; side++) {
            for (int64_t j = 0; j < n; j++)
                w[j] = old[j] + (float)((side ? -step : step) * (rng_uniform(9, 1, (uint64_t)j) - 0.5));
            loss[side] = model_loss(&m, &b, NULL, NULL);
        }
        memcpy(w, old, (size_t)n * sizeof *old);
        got = (loss[0] - loss[1]) / (2 * step);
        if (wanted)
            CHECK_NEAR(got, want, 0.02 * fabs(want) + 2e-3);
        free(old);
    }
    unload(&m, &d);
}

/* Everything that both have: draws depend on a parameter's place among the others. */
static void copy_common(const char *from, const char *to)
{
    struct st *a = st_open(from), *b = st_open(to);
    struct st_writer *w = st_create(place("copy"));

    REQUIRE(a && b && w);
    for (int64_t i = 0; i < b->n; i++)
        st_declare(w, b->at[i].name, ST_F32, b->at[i].ndim, b->at[i].dim);
    for (int64_t i = 0; i < b->n; i++) {
        const struct st_tensor *t = st_find(a, b->at[i].name);
        CHECK(t && t->bytes == b->at[i].bytes && !st_write(w, t->data, (size_t)t->bytes));
    }
    CHECK(!st_finish(w));
    st_close(a);
    st_close(b);
    rename(place("copy"), place("plain/model.safetensors"));
}

/* The last heads of in_proj's bias are dt_bias, and a D that is the same in all channels of a head is that head's. */
static void test_meaning(void)
{
    static float one[T * V], two[T * V];
    float in[256], dt[8], D[64], head[8];
    int64_t rows = 0, heads = 0;
    struct model m;
    struct dev d;

    store(place("bias"), CONFIG("true", "false"));
    store(place("hdim"), CONFIG("false", "true"));
    convert_store(place("plain"), CONFIG("false", "false"), ST_F32, false);
    copy_common(place("bias"), place("plain"));
    load(&m, &d, place("bias"), "cpu");
    for (int layer = 0; layer < 2; layer++) {
        char name[96], place_of[96];
        struct param *p;
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.dt_bias", layer);
        p = params_find(&m.params, name);
        heads = tensor_count(p->value);
        param_get(&d, &p->value, dt);
        snprintf(place_of, sizeof place_of, "backbone.layers.%d.mixer.in_proj.bias", layer);
        p = params_find(&m.params, place_of);
        rows = tensor_count(p->value);
        memset(in, 0, sizeof in);
        for (int64_t h = 0; h < heads; h++)
            in[rows - heads + h] = 0.3f * (float)h - 0.2f;
        convert_put(place("bias"), place_of, in, rows, 0);
        for (int64_t h = 0; h < heads; h++)
            dt[h] += 0.3f * (float)h - 0.2f;
        convert_put(place("plain"), name, dt, heads, 0);
        memset(in, 0, sizeof in);
        snprintf(place_of, sizeof place_of, "backbone.layers.%d.mixer.out_proj.bias", layer);
        convert_put(place("bias"), place_of, in, 24, 0);
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.D", layer);
        for (int64_t i = 0; i < 48; i++)
            D[i] = head[i / 16] = 0.5f * (float)(i / 16) - 0.7f;
        convert_put(place("bias"), name, head, heads, 0);
        convert_put(place("plain"), name, head, heads, 0);
    }
    unload(&m, &d);
    CHECK(heads == 3 && rows == 2 * 48 + 2 * 8 + 3);
    logits(place("bias"), "cpu", one);
    logits(place("plain"), "cpu", two);
    CHECK(test_distance(one, two, (int64_t)T * V) < 1e-5);

    convert_store(place("plain2"), CONFIG("false", "false"), ST_F32, false);
    for (int layer = 0; layer < 2; layer++) {
        char name[96];
        snprintf(name, sizeof name, "backbone.layers.%d.mixer.D", layer);
        convert_put(place("hdim"), name, D, 48, 0);
        convert_put(place("plain2"), name, head, 3, 0);
    }
    logits(place("hdim"), "cpu", one);
    logits(place("plain2"), "cpu", two);
    CHECK(test_distance(one, two, (int64_t)T * V) < 1e-6);
}

/* One token at a time, and with a metaplastic layer. */
static void test_decoding(const char *dir)
{
    static float whole[T * V], part[V];
    struct batch b = batch();
    struct convert_options o = convert_to(dir, place("meta"), "palimpsa");
    struct model m;
    struct dev d;

    o.layers = "1,", o.check = true;
    CHECK(!convert_run(&o, &said) && said.swapped == 1 && said.kl < 1e-4);
    load(&m, &d, place("meta"), "cpu");
    model_logits(&m, &b, NULL, false, whole);
    for (int s = 0; s < 3; s++) {
        struct session session;
        REQUIRE(!session_open(&session, &m, 1));
        for (int t = start[s]; t < start[s + 1]; t++) {
            const int32_t *id = token + t;
            session_feed(&session, &id, (int64_t[]){ 1 }, part);
            CHECK(test_distance(part, whole + (int64_t)t * m.cfg.vocab, m.cfg.vocab) < 1e-4);
        }
        session_close(&session);
    }
    unload(&m, &d);
}

int main(void)
{
    scratch_open();
    for (int t = 0; t < T; t++) {
        token[t] = (t * t * 7 + t) % 33;
        target[t] = t % 11 == 5 ? -1 : (t * 5 + 2) % 33;
    }
    store(place("rare"), CONFIG("true", "true"));
    test_rows(place("rare"));
    test_gradients(place("rare"));
    test_meaning();
    test_decoding(place("rare"));
    scratch_close();
    return test_done("mamba2_rare");
}
