/* test_prompts.c - what shards mark as context stays marked however it is written, cut, packed and read. */
#define _POSIX_C_SOURCE 200809L
#include "heard.h"
#include "loader.h"
#include "rng.h"
#include "shard.h"
#include "shard_format.h"
#include "test.h"

enum { TOKENS = 3000 };

struct corpus { int32_t id[TOKENS]; bool context[TOKENS], begins[TOKENS]; int64_t n; int64_t vocab; };

/* Documents of a prompt of 0 to 40 ids and a response of 1 to 40; some are plain. */
static void make(struct corpus *c, const char *name, int64_t vocab)
{
    struct shard_info info = { .vocab = vocab, .eot = 0, .marked = true, .limit = 700, .frame_tokens = 128 };
    struct shard_writer *w = shard_create(in_dir(name), &info);

    REQUIRE(w);
    *c = (struct corpus){ .vocab = vocab };
    for (int d = 0; c->n < TOKENS - 100; d++) {
        int prompt = (int)(rng_uniform(1, 2, (uint64_t)d) * 41);
        int n = prompt + 1 + (int)(rng_uniform(1, 3, (uint64_t)d) * 40);
        int32_t *at = c->id + c->n;
        bool plain = d % 7 == 3;
        c->begins[c->n++] = true;
        for (int i = 0; i < n; i++, c->n++) {
            c->id[c->n] = 1 + (int32_t)(rng_bits(5, 6, (uint64_t)c->n) % (uint64_t)(vocab - 1));
            c->context[c->n] = !plain && i < prompt;
        }
        if (plain)
            CHECK(!shard_document(w, at + 1, n));
        else
            CHECK(!shard_prompt(w, at + 1, prompt) && !shard_append(w, at + 1 + prompt, n - prompt));
    }
    CHECK(!shard_finish(w));
}

static void written(const char *name, int64_t vocab, int width)
{
    static struct corpus c;
    char first[64];
    struct shard_cache cache;
    struct shard s;
    int32_t got[TOKENS];

    make(&c, name, vocab);
    str_format(first, sizeof first, "%s_000000.pts", name);
    CHECK(!shard_open(&s, in_dir(first), 0, -1));
    CHECK(s.marked && s.width == width && s.tokens > 700 && s.tokens < c.n);
    shard_cache_init(&cache, 128 * 4, 1);
    CHECK(!shard_read(&s, &cache, 0, s.tokens, got) && !shard_verify(&s, &cache));
    for (int64_t i = 0; i < s.tokens; i++)
        CHECK(got[i] == (c.context[i] ? ~c.id[i] : c.id[i]));
    s.id_limit = 2;                                        /* marks do not hide ids that are too large */
    shard_cache_close(&cache);
    shard_cache_init(&cache, 128 * 4, 1);
    listen_begin();
    CHECK(shard_read(&s, &cache, 0, s.tokens, got));
    CHECK(listen_end("expected an id below 2, found"));
    shard_close(&s);
    shard_cache_close(&cache);
}

/* Rows of every size against the corpus itself. */
static void packed(const char *name, int64_t vocab, int64_t context, bool mask, bool join, bool shuffle)
{
    static struct corpus c;
    char files[64];
    struct loader_options o = { .context = context, .tokens = 3 * context, .eot = -1, .mask = mask, .join = join,
                                .shuffle = shuffle, .seed = 4 };
    struct loader l;
    struct batch b;
    int64_t masked = 0;

    make(&c, name, vocab);
    str_format(files, sizeof files, "%s_*.pts", name);
    o.files = in_dir(files);
    REQUIRE(!loader_open(&l, &o));
    CHECK(l.marked && l.stream == c.n);
    for (int64_t r = 0; r < l.rows; r++) {
        char where[256];
        int64_t predicted = 0;
        CHECK(!loader_read(&l, r, &b));
        loader_where(&l, r, where, sizeof where);
        for (int w = 0; w < 3 && !shuffle; w++)
            for (int64_t t = 0; t < context; t++) {
                int64_t i = (r * 3 + w) * context + t, k = w * context + t;
                bool last = i + 1 == c.n, next = !last && (join || !c.begins[i + 1]);
                int32_t want = next && !(mask && c.context[i + 1]) ? c.id[i + 1] : -1;
                CHECK(b.token[k] == c.id[i] && b.target[k] == want);
                masked += next && c.context[i + 1] && b.target[k] < 0;
            }
        for (int64_t k = 0; k < 3 * context; k++) {
            CHECK(b.token[k] >= 0 && b.token[k] < vocab && b.target[k] >= -1 && b.target[k] < vocab);
            predicted += b.target[k] >= 0;
        }
        CHECK(predicted == b.predicted);
    }
    CHECK(shuffle || mask == (masked > 0));
    loader_close(&l);
}

static void refusals(void)
{
    struct shard_info info = { .vocab = 40000, .eot = 0, .width = 2, .marked = true };
    struct shard_writer *w;

    listen_begin();
    CHECK(!shard_create(in_dir("narrow"), &info));
    CHECK(listen_end("40000 does not fit tokens of 2 bytes"));
    info = (struct shard_info){ .vocab = 10, .eot = 0, .marked = true };
    w = shard_create(in_dir("bad"), &info);
    listen_begin();
    CHECK(w && shard_prompt(w, (const int32_t[]){ 1, 10 }, 2));
    CHECK(listen_end("is 10, expected an id below 10"));
    shard_abort(w);
    /* a separator among a prompt's ids begins a document like any other */
    w = shard_create(in_dir("inner"), &info);
    CHECK(w && !shard_prompt(w, (const int32_t[]){ 1, 0, 2 }, 3) && !shard_append(w, (const int32_t[]){ 3 }, 1) &&
          !shard_finish(w));
    {
        struct shard_cache cache;
        struct shard s;
        int32_t got[5];
        CHECK(!shard_open(&s, in_dir("inner_000000.pts"), 0, -1) && s.documents == 2);
        shard_cache_init(&cache, 1 << 18, 1);
        CHECK(!shard_read(&s, &cache, 0, 5, got) && got[0] == 0 && got[1] == ~1 && got[2] == 0 && got[3] == ~2 &&
              got[4] == 3 && !shard_verify(&s, &cache));
        shard_close(&s);
        shard_cache_close(&cache);
    }
}

int main(void)
{
    char name[16];
    int n = 0;

    scratch_open();
    written("two", 32768, 2);
    written("four", 32769, 4);
    for (int64_t context = 1; context < 90; context = context * 3 + 1)
        for (int k = 0; k < 8; k++) {
            snprintf(name, sizeof name, "p%d", n++);
            packed(name, k & 1 ? 500 : 60000, context, k & 2, k & 4, false);
        }
    packed("mixed", 500, 16, true, false, true);
    refusals();
    scratch_close();
    return test_done("prompts");
}
