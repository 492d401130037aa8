/* test_tokenize.c - from files to shards: what is read, in which order, on how many threads, and what is
 * left behind when something is wrong. */
#define _POSIX_C_SOURCE 200809L
#include "tokenize.h"
#include "bpe_train.h"
#include "shard.h"
#include "source.h"
#include "test.h"
#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

static char dir[] = "/tmp/test_tokenize_XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[32][256];
    static int next;
    char *p = path[next++ % 32];

    str_format(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

static void write_file(const char *path, const void *data, size_t n)
{
    REQUIRE(!file_write(path, data, n));
}

/* Whether the directory has a file that begins and ends so. */
static bool has_file(const char *begin, const char *end)
{
    DIR *d = opendir(dir);
    bool found = false;

    for (struct dirent *e; (e = readdir(d));) {
        size_t n = strlen(e->d_name), k = strlen(end);

        if (!strncmp(e->d_name, begin, strlen(begin)) && n >= k && !strcmp(e->d_name + n - k, end))
            found = true;
    }
    closedir(d);
    return found;
}

static struct bpe *learned(void)
{
    static const char text[] = "the cat sat on the mat. the cat, that cat! it sat; it sat on it.\n"
                               "the mat\n\nthe mat 12 12";
    struct bpe_words *w = bpe_words_open();
    struct text json = { 0 };
    int64_t tokens;
    struct bpe *b;

    bpe_words_add(w, text, sizeof text - 1);
    bpe_train(w, 280, &json, &tokens, NULL);
    b = bpe_parse(json.at, json.n, "learned");
    bpe_words_close(w);
    text_free(&json);
    return b;
}

static int64_t read_all(struct source *s, char *out, size_t size)
{
    int64_t n = 0, got = 0;

    REQUIRE(size > 8);
    while (n + 8 < (int64_t)size && (got = source_read(s, out + n, 1 + (size_t)n % 7)) > 0)
        n += got;
    return got < 0 ? -1 : n;
}

static size_t gzip_member(char *out, size_t size, const char *text, size_t n)
{
    z_stream z = { .next_in = (Bytef *)(uintptr_t)text, .avail_in = (uInt)n,
                   .next_out = (Bytef *)out, .avail_out = (uInt)size };

    REQUIRE(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    REQUIRE(deflate(&z, Z_FINISH) == Z_STREAM_END);
    deflateEnd(&z);
    return size - z.avail_out;
}

/* Two streams one after the other, read whole; then cut at every byte: an end, an error, never a part. */
static void check_streams(const char *data, size_t first, size_t n, const char *text)
{
    const char *path = in_dir("stream");
    char out[512];
    struct source *s;

    write_file(path, data, n);
    s = source_open(path);
    CHECK(s && read_all(s, out, sizeof out) == (int64_t)strlen(text) && !memcmp(out, text, strlen(text)));
    CHECK(s && source_taken(s) == (int64_t)n);
    source_close(s);
    for (size_t k = 4; k < n; k += k < first && k + 3 > first ? first - k : 3) {
        int64_t got;

        write_file(path, data, k);
        s = source_open(path);
        got = s ? read_all(s, out, sizeof out) : -1;
        CHECK(k == first ? got > 0 : got == -1);
        source_close(s);
    }
}

static void test_source(void)
{
    static const char a[] = "first stream, first stream. ", b[] = "and a second";
    char data[512], both[64];
    size_t n, first;

    snprintf(both, sizeof both, "%s%s", a, b);
    first = gzip_member(data, sizeof data, a, strlen(a));
    n = first + gzip_member(data + first, sizeof data - first, b, strlen(b));
    check_streams(data, first, n, both);
    data[first - 7] ^= 1;                            /* a checksum */
    write_file(in_dir("stream"), data, n);
    struct source *s = source_open(in_dir("stream"));
    CHECK(read_all(s, both, sizeof both) == -1);
    source_close(s);

    snprintf(both, sizeof both, "%s%s", a, b);
    first = ZSTD_compress(data, sizeof data, a, strlen(a), 3);
    n = first + ZSTD_compress(data + first, sizeof data - first, b, strlen(b), 3);
    check_streams(data, first, n, both);
    write_file(in_dir("plain"), "\x1F", 1);
    s = source_open(in_dir("plain"));
    CHECK(read_all(s, both, sizeof both) == 1 && both[0] == 0x1F);
    source_close(s);
    CHECK(!source_open(in_dir("absent")));
}

static void test_jsonl(void)
{
    static const struct { const char *line, *text; size_t n; int lone; } good[] = {
        { "{\"text\":\"abc\"}", "abc", 3, 0 },
        { " { \"a\" : [1, {\"text\": 2}, \"]}\"] , \"text\" : \"\" } ", "", 0, 0 },
        { "{\"text\":\"\\u0041\\n\\\"\\\\\\/\\ud83e\\udd99\\u00e9\"}",
          "A\n\"\\/\xF0\x9F\xA6\x99\xC3\xA9", 11, 0 },
        { "{\"text\":\"a\\u0000b\\ud800c\\udc00\"}", "a\0b\xEF\xBF\xBD" "c\xEF\xBF\xBD", 10, 2 },
        { "{\"x\":-1.5e3,\"y\":null,\"text\":\"\\ud800\\u0041\",\"z\":{}}", "\xEF\xBF\xBD" "A", 4, 1 },
        { "{\"text\":\"\xFF\xC3\"}", "\xFF\xC3", 2, 0 },
    };
    static const char *const bad[] = {
        "", "[]", "{", "{}", "{\"text\":1}", "{\"text\":null}", "{\"text\":\"a\"", "{\"text\":\"a",
        "{\"text\":\"a\\", "{\"text\":\"\\u12\"}", "{\"text\":\"\\q\"}", "{\"text\":\"a\"}x",
        "{\"text\":\"a\",\"text\":\"b\"}",
        "{\"a\":[}],\"text\":\"a\"}", "{\"a\" \"text\":\"b\"}", "{text:\"b\"}", "{\"a\":,\"text\":\"b\"}",
        "{\"text\":\"a\",}",
        "{\"a\":{\"text\":\"b\"}}"
    };
    struct jsonl room = { 0 };
    const char *text;
    size_t n;

    for (size_t i = 0; i < LEN(good); i++) {
        int64_t lone = 0;

        CHECK(!jsonl_field(good[i].line, strlen(good[i].line), "text", &room, &text, &n, &lone));
        CHECK(n == good[i].n && !memcmp(text, good[i].text, n) && lone == good[i].lone);
    }
    for (size_t i = 0; i < LEN(bad); i++) {
        int64_t lone = 0;

        CHECK(jsonl_field(bad[i], strlen(bad[i]), "text", &room, &text, &n, &lone));
    }
    free(room.at);
}

/* A line of JSON for each of many documents, with what is hard in them, and the same as a text file. */
static size_t make_documents(struct text *t, int documents)
{
    static const char *const words[] = { "the ", "cat", " sat", "\n", "on ", "that <|endoftext|>",
        "\xC3\xA9", " ", "\xE2\x82", ".", "12" };
    uint32_t seed = 5;

    for (int i = 0; i < documents; i++) {
        struct text body = { 0 };
        int n = i % 7 == 3 ? 0 : i % 50 == 9 ? 4000 : 60;

        for (int k = 0; k < n; k++) {
            seed = seed * 1664525 + 1013904223;
            text_add(&body, "%s", words[(seed >> 16) % LEN(words)]);
        }
        text_add(t, "{\"id\": %d, \"text\": ", i);
        text_string(t, body.at ? body.at : "", body.n);
        text_add(t, "}\n%s", i % 5 ? "" : "  \n");
        text_free(&body);
    }
    return t->n;
}

struct found { struct bpe_ids ids; int64_t documents; };

static int take(void *arg, const int32_t *ids, int64_t n, bool begins)
{
    struct found *f = arg;

    bpe_ids_reserve(&f->ids, n + 1);
    if (begins) {
        f->documents++;
        f->ids.at[f->ids.n++] = -1;
    }
    for (int64_t i = 0; i < n; i++)
        f->ids.at[f->ids.n++] = ids[i];
    return 0;
}

/* Any number of threads gives the same ids, and one text file the ids of its whole text. */
static void test_threads(const struct bpe *b)
{
    struct text lines = { 0 }, once = { 0 };
    size_t n = make_documents(&lines, 400);
    const char *const files[] = { in_dir("some.jsonl"), in_dir("some.txt") };
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids whole = { 0 };
    struct found one = { 0 };
    struct tokenize_options o = { .bpe = b, .file = files, .files = 2, .field = "text" };
    struct tokenize_totals t;
    struct shard s;

    text_add(&once, "%.*s", (int)n, lines.at);
    while (lines.n < 3 << 20)                        /* several blocks, one document */
        text_add(&lines, "%s", once.at);
    write_file(files[0], lines.at, n);
    write_file(files[1], lines.at, lines.n);
    for (int threads = 1; threads <= 5; threads += 2) {
        struct found f = { 0 };

        o.threads = threads;
        CHECK(!tokenize_run(&o, &t, take, &f));
        CHECK(f.documents == 401 && t.documents == 401 && t.tokens == f.ids.n - 401 && t.invalid > 0 &&
              t.nuls == 0);
        if (threads > 1)
            CHECK(f.ids.n == one.ids.n && !memcmp(f.ids.at, one.ids.at, (size_t)f.ids.n * sizeof *f.ids.at));
        if (threads > 1)
            bpe_ids_free(&f.ids);
        else
            one = f;
    }
    CHECK(!tokenize_shards(&o, &t, in_dir("parts"), bpe_eot(b)));       /* a document in parts is one */
    CHECK(!shard_open(&s, in_dir("parts_000000.pts"), 0, -1));
    CHECK(s.documents == 401 && s.tokens == one.ids.n);
    shard_close(&s);
    bpe_encode(e, &whole, lines.at, lines.n, 0);
    CHECK(whole.n < one.ids.n && one.ids.at[one.ids.n - whole.n - 1] == -1 &&
          !memcmp(whole.at, one.ids.at + one.ids.n - whole.n, (size_t)whole.n * sizeof *whole.at));
    bpe_ids_free(&whole);
    bpe_ids_free(&one.ids);
    bpe_encoder_close(e);
    text_free(&lines);
    text_free(&once);
}

/* Three documents, one of them empty: a separator before each, and between them the texts, which never
 * contain it, whatever they spell. */
static void test_shards(const struct bpe *b)
{
    static const char *const texts[] = { "the cat <|endoftext|> sat", "", ("a\0b\xFF" "c") };
    static const size_t sizes[] = { 25, 0, 5 };
    const char *const files[] = { in_dir("a.txt"), in_dir("b.txt"), in_dir("c.txt") };
    struct tokenize_options o = { .bpe = b, .file = files, .files = 3, .field = "text", .threads = 2 };
    struct tokenize_totals t;
    struct shard s;
    struct shard_cache cache;
    int32_t ids[256];
    int64_t *start;

    for (int i = 0; i < 3; i++)
        write_file(files[i], texts[i], sizes[i]);
    CHECK(!tokenize_shards(&o, &t, in_dir("set"), bpe_eot(b)));
    CHECK(t.documents == 3 && t.bytes == 30 && t.invalid == 1 && t.nuls == 1);
    CHECK(!shard_open(&s, in_dir("set_000000.pts"), 0, -1));
    shard_cache_init(&cache, SHARD_FRAME * 4, 1);
    start = shard_documents(&s, &cache);
    CHECK(s.documents == 3 && s.tokens == t.tokens + 3 && s.vocab == bpe_vocab(b));
    CHECK(!strcmp(s.tokenizer, bpe_sha256(b)));
    CHECK(s.tokens <= 256 && !shard_read(&s, &cache, 0, s.tokens, ids));
    for (int i = 0; i < 3; i++) {
        int64_t end = i < 2 ? start[i + 1] : s.tokens;
        struct bpe_decoder d;
        const char *bytes;
        char text[64];
        size_t n = 0, k;

        CHECK(ids[start[i]] == bpe_eot(b));
        bpe_decoder_init(&d, b);
        for (int64_t j = start[i] + 1; j <= end; j++, n += k) {
            k = j < end ? bpe_decode(&d, ids[j], &bytes) : bpe_decode_end(&d, &bytes);
            CHECK(j == end || !bpe_is_control(b, ids[j]));
            memcpy(text + n, bytes, k);
        }
        CHECK(n == sizes[i] && !memcmp(text, texts[i], n));
        bpe_decoder_free(&d);
    }
    free(start);
    shard_cache_close(&cache);
    shard_close(&s);
    CHECK(tokenize_shards(&o, &t, in_dir("set"), bpe_eot(b)));       /* it exists */
}

/* Whatever goes wrong on the way, nothing of the set remains. */
static void test_failures(const struct bpe *b)
{
    static const char torn[] = "{\"text\": \"the cat\"}\n{\"text\": \"the";
    static const char other[] = "{\"text\": \"a\"}\n\n{\"body\": \"b\"}\n";
    const char *const sets[][2] = {
        { in_dir("a.txt"), in_dir("absent.txt") }, { in_dir("torn.jsonl"), in_dir("a.txt") },
        { in_dir("a.txt"), in_dir("other.jsonl") }, { in_dir("a.txt"), in_dir("cut.jsonl.zst") },
        { in_dir("a.txt"), dir }
    };
    char packed[256];
    size_t n = ZSTD_compress(packed, sizeof packed, other, sizeof other - 1, 3);
    struct tokenize_totals t;

    write_file(in_dir("torn.jsonl"), torn, sizeof torn - 1);
    write_file(in_dir("other.jsonl"), other, sizeof other - 1);
    write_file(in_dir("cut.jsonl.zst"), packed, n - 3);
    for (size_t i = 0; i < LEN(sets); i++) {
        struct tokenize_options o = { .bpe = b, .file = sets[i], .files = 2, .field = "text", .threads = 2 };

        CHECK(tokenize_shards(&o, &t, in_dir("bad"), bpe_eot(b)) == -1);
        CHECK(!has_file("bad", ""));
    }
    write_file(in_dir("empty.jsonl"), "\n", 1);
    struct tokenize_options none = { .bpe = b, .file = (const char *[]){ in_dir("empty.jsonl") }, .files = 1,
                                     .field = "text", .threads = 1 };
    CHECK(tokenize_shards(&none, &t, in_dir("bad"), bpe_eot(b)) == -1 && !has_file("bad", ""));
}

static void remove_all(void)
{
    DIR *d = opendir(dir);

    for (struct dirent *e; (e = readdir(d));)
        if (e->d_name[0] != '.')
            unlink(in_dir(e->d_name));
    closedir(d);
    rmdir(dir);
}

int main(void)
{
    struct bpe *b = learned();

    REQUIRE(mkdtemp(dir) && b);
    test_source();
    test_jsonl();
    test_threads(b);
    test_shards(b);
    test_failures(b);
    bpe_close(b);
    remove_all();
    return test_done("tokenize");
}
