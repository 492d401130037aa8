/* test_finetune.c - what is frozen keeps every bit and has no optimizer state, what is trained moves, gains at
 * their own rate; stopping and going on, alone or in company, changes nothing. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt_parts.h"
#include "convert_model.h"
#include "scratch.h"
#include "torch_file.h"
#include "train.h"
#include <unistd.h>

static void write_shard(const char *path)
{
    struct bytes b = { 0 };
    FILE *f;

    bytes_number(&b, 20240520, 4);
    bytes_number(&b, 1, 4);
    bytes_number(&b, 2000, 4);
    for (int i = 3; i < 256; i++)
        bytes_number(&b, 0, 4);
    for (uint64_t i = 0; i < 2000; i++)
        bytes_number(&b, i * i % 37 + i % 3, 2);
    f = fopen(path, "wb");
    REQUIRE(f && fwrite(b.at, 1, b.n, f) == b.n && !fclose(f));
    bytes_free(&b);
}

static struct train_options options(const char *out, const char *train)
{
    struct train_options o = train_defaults();

    o.from = place("meta");
    o.data = place("ids.bin");
    o.out = place(out);
    o.train = train;
    o.steps = 4, o.batch_tokens = 64, o.context = 32, o.warmup = 0, o.schedule = "constant", o.lr = 1e-2f;
    o.save_every = 2, o.val_every = 0, o.device = "cpu", o.threads = 1, o.quiet = true, o.keep = 4;
    return o;
}

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && !strcmp(s + n - m, tail);
}

/* Should this tensor be trained? Layer 1 of the model is metaplastic. */
static bool wanted(const char *name, const char *train, bool prior)
{
    bool gain = strstr(name, ".b_") != NULL;

    if (ends(name, ".Ip_log"))
        return prior;
    return !strcmp(train, "all") || (!strcmp(train, "plasticity") && gain) ||
           (!strcmp(train, "converted") && strstr(name, ".layers.1."));
}

/* Every tensor moved or kept its bits, and its state is there or not, as it should. */
static void check_run(const char *out, const char *train, bool prior)
{
    char dir[64], file[96];
    struct st *old = st_open(place("meta")), *now, *optim;
    int64_t states = 0;

    snprintf(dir, sizeof dir, "%s/step-000004", out);
    snprintf(file, sizeof file, "%s/optim.safetensors", dir);
    now = st_open(place(dir));
    optim = st_open(place(file));
    CHECK(old && now && optim && old->n == now->n);
    for (int64_t i = 0; old && now && optim && i < old->n; i++) {
        const struct st_tensor *a = &old->at[i], *b = st_find(now, a->name);
        bool want = wanted(a->name, train, prior), moved = !b || memcmp(a->data, b->data, (size_t)a->bytes);
        char name[160];
        if (moved != want)
            printf("%s %s with --train %s\n", a->name, moved ? "moved" : "stood", train);
        CHECK(moved == want);
        snprintf(name, sizeof name, "m.%s", a->name);
        CHECK((st_find(optim, name) != NULL) == want);
        states += want;
    }
    CHECK(optim && optim->n == 3 * states);
    st_close(old);
    st_close(now);
    st_close(optim);
}

static void test_parts(void)
{
    static const char *const parts[] = { "all", "plasticity", "converted" };

    for (size_t i = 0; i < LEN(parts); i++) {
        struct train_options o = options(parts[i], parts[i]);
        CHECK(!train_run(&o));
        check_run(parts[i], parts[i], false);
    }
    struct train_options o = options("prior", "plasticity");
    o.train_prior = true;
    CHECK(!train_run(&o));
    check_run("prior", "plasticity", true);
}

/* Two steps, then two more; one rank, then two: the same trained model. */
static void test_going_on(void)
{
    struct train_options o = options("halves", "plasticity");

    o.until = 2;
    CHECK(!train_run(&o));
    o.until = 0;
    CHECK(!train_run(&o));
    CHECK(scratch_same(place("halves/step-000004"), place("plasticity/step-000004")));
    CHECK(scratch_same(place("halves/step-000004/optim.safetensors"),
                       place("plasticity/step-000004/optim.safetensors")));
    o = options("halves", "all");
    scratch_listen();
    CHECK(train_run(&o) == 1 && scratch_heard("train = plasticity", "says all", ""));
    for (int ranks = 2; ranks <= 3; ranks++) {
        char out[24];
        snprintf(out, sizeof out, "ranks%d", ranks);
        o = options(out, "plasticity");
        o.ranks = ranks, o.batch_tokens = 192, o.until = 2;
        CHECK(!train_run(&o));
        o.until = 0, o.ranks = 1;
        CHECK(!train_run(&o));
        check_run(out, "plasticity", false);
    }
}

static float *values(const char *dir, const char *name, int64_t *n)
{
    struct st *s = st_open(place(dir));
    const struct st_tensor *t = s ? st_find(s, name) : NULL;
    float *x = mem_new(t ? (size_t)t->count : 1, sizeof *x);

    *n = t ? t->count : 0;
    if (t)
        st_float(t, x);
    st_close(s);
    return x;
}

/* Adam's first step is the rate times the sign of the gradient, so a factor shows as it is. */
static void test_rate(void)
{
    static const char *const names[] = { "backbone.layers.1.mixer.b_proj.weight", "backbone.layers.1.mixer.b_scale",
                                         "backbone.layers.1.mixer.in_proj.weight", "backbone.layers.0.mixer.D" };
    struct train_options o = options("one", "all");

    o.steps = 1, o.weight_decay = 0;
    CHECK(!train_run(&o));
    o.out = place("ten"), o.gain_rate = 10;
    CHECK(!train_run(&o));
    for (size_t i = 0; i < LEN(names); i++) {
        int64_t n, m;
        float *from = values("meta", names[i], &n), *one = values("one/step-000001", names[i], &m);
        float *ten = values("ten/step-000001", names[i], &m);
        CHECK(n && n == m);
        for (int64_t j = 0; j < n; j += 7)
            CHECK_NEAR(ten[j] - from[j], (i < 2 ? 10 : 1) * (one[j] - from[j]), 2e-5);
        free(from);
        free(one);
        free(ten);
    }
}

static void test_nothing_to_train(void)
{
    struct train_options o = options("none", "plasticity");

    o.from = place("plain");
    scratch_listen();
    CHECK(train_run(&o) == 1 && scratch_heard("no layer is metaplastic", "palimpsa convert", ""));
    o.train = "all", o.train_prior = true;
    scratch_listen();
    CHECK(train_run(&o) == 1 && scratch_heard("no layer is metaplastic", "--train-prior", ""));
}

int main(void)
{
    struct convert_options c;

    scratch_open();
    write_shard(place("ids.bin"));
    convert_store(place("plain"), HF(", \"norm_groups\": 1, \"tie_word_embeddings\": false"), ST_F32, false);
    c = convert_to(place("plain"), place("meta"), "palimpsa");
    c.layers = "1,", c.init = "paper";
    CHECK(!convert_run(&c, &said));
    test_parts();
    test_going_on();
    test_rate();
    test_nothing_to_train();
    scratch_close();
    return test_done("finetune");
}
