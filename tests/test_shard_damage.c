/* test_shard_damage.c - torn, flipped, lying and changing shards are refused by name. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "shard.h"
#include "heard.h"
#include "sha256.h"
#include "shard_format.h"
#include "test.h"
#include <sys/stat.h>

static uint8_t *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = mem_new(1 << 20, 1);

    *n = f ? fread(data, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return data;
}

/* Opens and reads everything. 1 as written, 0 refused, -1 wrong ids accepted. */
static int judge(const uint8_t *data, size_t n, struct shard_cache *cache, const int32_t *want,
                 int64_t tokens)
{
    struct shard s;
    int32_t got[512];
    int verdict = 0;

    if (shard_open_memory(&s, data, n, "damaged", 0, -1))
        return 0;
    if (s.tokens <= 512 && s.frame_tokens == 16 && !shard_verify(&s, cache)
        && !shard_read(&s, cache, 0, s.tokens, got))
        verdict = s.tokens == tokens && !memcmp(got, want, (size_t)tokens * sizeof *got) ? 1 : -1;
    shard_close(&s);
    return verdict;
}

static void damage(void)
{
    struct shard_cache cache;
    struct shard s;
    int32_t want[80];
    uint8_t *data, *bad;
    size_t n;
    int accepted = 0;

    data = slurp(in_dir("damage_000000.pts"), &n);
    bad = mem_new(n + 1, 1);
    shard_cache_init(&cache, 1 << 16, 1);
    CHECK(!shard_open_memory(&s, data, n, "whole", 0, -1) && s.tokens == 80);
    CHECK(!shard_read(&s, &cache, 0, 80, want));
    shard_close(&s);
    CHECK(judge(data, n, &cache, want, 80) == 1);

    listen_begin();
    for (size_t cut = 0; cut < n; cut++) {
        memcpy(bad, data, cut);
        CHECK(judge(bad, cut, &cache, want, 80) == 0);
    }
    memcpy(bad, data, n);
    bad[n] = 0;
    CHECK(judge(bad, n + 1, &cache, want, 80) == 0);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bad, data, n);
            bad[i] ^= (uint8_t)(1 << bit);
            int verdict = judge(bad, n, &cache, want, 80);
            CHECK(verdict >= 0);
            accepted += verdict;
        }
    listen_stop();
    /* zstd ignores one bit of a frame's descriptor; everything else is under a checksum */
    CHECK(accepted <= 5);
    printf("damage: %zu bits flipped, %d of them ignored by zstd, the rest refused\n", 8 * n,
           accepted);
    free(data);
    free(bad);
    shard_cache_close(&cache);
}

/* Makes the digests right again, so that only the numbers lie. */
static void sign(uint8_t *data, size_t n)
{
    size_t index = (size_t)get_u64(data + PTS_AT_INDEX);
    size_t frames = 8 * ((size_t)get_u64(data + PTS_AT_FRAMES) + 1);
    size_t end = n - PTS_TRAILER, documents = index + frames;
    struct sha256 sum;

    if (index > end || frames > end || documents > end)
        return;
    sha256_init(&sum);
    sha256_add(&sum, data, PTS_HEADER);
    sha256_add(&sum, data + index, frames);
    sha256_end(&sum, data + end + PTS_TRAILER_INDEX);
    sha256_init(&sum);
    sha256_add(&sum, data + documents, end - documents);
    sha256_end(&sum, data + end + PTS_TRAILER_DOCUMENTS);
}

/* Whoever signs wrong numbers is still refused, by name and with both numbers. */
static void lies(void)
{
    static const struct { int at; bool wide; uint64_t value; const char *why; } lie[] = {
        { PTS_AT_VERSION, false, 2, "expected version 1, found 2" },
        { PTS_AT_WIDTH, false, 3, "expected tokens of 2 or 4 bytes, found 3" },
        { PTS_AT_VOCAB, true, 65537, "a vocabulary of 65537 does not fit 2 bytes" },
        { PTS_AT_VOCAB, true, 200, "expected a separator below 200, found 299" },
        { PTS_AT_FRAME, false, 0, "expected frames of 1 to 1048576 tokens, found 0" },
        { PTS_AT_FRAME, false, 32, "80 tokens in frames of 32 cannot make 5 frames" },
        { PTS_AT_FRAMES, true, UINT64_MAX, "cannot make 18446744073709551615 frames" },
        { PTS_AT_TOKENS, true, UINT64_MAX - 3, "18446744073709551612 tokens" },
        { PTS_AT_TOKENS, true, 77, "frame 4 is corrupt: expected 26 bytes, found 32" },
        { PTS_AT_DOCUMENTS, true, 81, "expected 1 to 80 documents, found 81" },
        { PTS_AT_DOCUMENTS, true, 2, "torn: expected 489 bytes, found 497" },
        { PTS_AT_INDEX, true, 1 << 30, "torn: expected " },
        { PTS_AT_NUMBER, false, 1000000, "the place in the set is not one" },
        { PTS_AT_MARKED, false, 7, "expected 0 or 1 for marks of context, found 7" },
        { PTS_AT_RESERVED, false, 7, "expected zero in byte 112, found 7" },
    };
    size_t n, documents;
    uint8_t *data = slurp(in_dir("damage_000000.pts"), &n), *bad = mem_new(n, 1);
    struct shard_cache cache;
    int32_t id[80];
    struct shard s;

    CHECK(n == 497);
    shard_cache_init(&cache, 1 << 16, 1);
    for (size_t i = 0; i < LEN(lie); i++) {
        memcpy(bad, data, n);
        if (lie[i].wide)
            put_u64(bad + lie[i].at, lie[i].value);
        else
            put_u32(bad + lie[i].at, (uint32_t)lie[i].value);
        sign(bad, n);
        listen_begin();
        if (!shard_open_memory(&s, bad, n, "lie.pts", 0, -1)) {
            CHECK(shard_read(&s, &cache, 0, s.tokens, id));
            shard_close(&s);
        }
        CHECK(listen_end(lie[i].why));
    }
    documents = n - PTS_TRAILER - 3 * 8;
    memcpy(bad, data, n);
    put_u64(bad + documents + 8, get_u64(bad + documents + 8) - 1);
    sign(bad, n);
    CHECK(!shard_open_memory(&s, bad, n, "lie.pts", 0, -1));
    listen_begin();
    CHECK(shard_verify(&s, &cache));
    CHECK(listen_end("lie.pts: the document index does not match the separators"));
    shard_close(&s);
    put_u64(bad + documents + 8, 80);
    sign(bad, n);
    CHECK(!shard_open_memory(&s, bad, n, "lie.pts", 0, -1));
    listen_begin();
    CHECK(!shard_documents(&s, &cache));
    CHECK(listen_end("lie.pts: document 1 cannot begin at token 80"));
    shard_close(&s);
    shard_cache_close(&cache);
    free(data);
    free(bad);
}

static void cut_file(const char *from, const char *to, size_t n)
{
    size_t size;
    uint8_t *data = slurp(from, &size);
    FILE *f = fopen(to, "wb");

    CHECK(f && fwrite(data, 1, n, f) == n && !fclose(f));
    free(data);
}

/* Messages name the file, what was expected and what was found. */
static void messages(void)
{
    char want[128];
    struct shard s;
    struct stat st;

    CHECK(!stat(in_dir("damage_000000.pts"), &st));
    cut_file(in_dir("damage_000000.pts"), in_dir("cut.pts"), (size_t)st.st_size - 3);
    snprintf(want, sizeof want, "cut.pts: torn: expected %lld bytes, found %lld",
             (long long)st.st_size, (long long)st.st_size - 3);
    listen_begin();
    CHECK(shard_open(&s, in_dir("cut.pts"), 0, -1));
    CHECK(listen_end(want));
    cut_file("/dev/zero", in_dir("zero.pts"), 4096);
    listen_begin();
    CHECK(shard_open(&s, in_dir("zero.pts"), 0, -1));
    CHECK(listen_end("zero.pts: never finished"));
    listen_begin();
    CHECK(shard_open(&s, in_dir("nowhere.pts"), 0, -1));
    CHECK(listen_end("nowhere.pts: No such file"));
    listen_begin();
    CHECK(shard_open(&s, scratch, 0, -1));
    CHECK(listen_end("found a directory"));
    listen_begin();
    CHECK(shard_open(&s, in_dir("damage_000000.pts"), 2, -1));
    CHECK(listen_end("found a .pts shard"));
}

/* A file that shrinks or is replaced while open is noticed at the next read. */
static void changed_in_use(void)
{
    struct shard_cache cache;
    struct shard s;
    int32_t got[80];
    size_t n;

    free(slurp(in_dir("damage_000000.pts"), &n));
    cut_file(in_dir("damage_000000.pts"), in_dir("live.pts"), n);
    shard_cache_init(&cache, 32, 1);
    CHECK(!shard_open(&s, in_dir("live.pts"), 0, -1));
    CHECK(!truncate(in_dir("live.pts"), 140));
    listen_begin();
    CHECK(shard_read(&s, &cache, 0, 80, got));
    CHECK(listen_end("live.pts: cut while in use"));
    close(s.fd);
    s.fd = -1;
    listen_begin();
    CHECK(shard_read(&s, &cache, 0, 80, got));
    CHECK(listen_end("live.pts: replaced while in use"));
    shard_close(&s);
    shard_cache_close(&cache);
}

int main(void)
{
    struct shard_info info = { .vocab = 300, .eot = 299, .frame_tokens = 16 };
    struct shard_writer *w;
    int32_t id[77];

    for (int i = 0; i < 77; i++)
        id[i] = i * 31 % 299;
    scratch_open();
    w = shard_create(in_dir("damage"), &info);
    CHECK(w && !shard_document(w, id, 30) && !shard_document(w, id, 0));
    CHECK(w && !shard_document(w, id + 30, 47) && !shard_finish(w));
    damage();
    lies();
    messages();
    changed_in_use();
    scratch_close();
    return test_done("shard_damage");
}
