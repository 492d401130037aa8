/* test_shard.c - .pts files come back as they were written, and sets are whole or absent. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "shard.h"
#include "heard.h"
#include "shard_format.h"
#include "test.h"
#include <signal.h>
#include <sys/resource.h>

static const char HASH[] = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";

/* Below vocab - 1, which is the separator. */
static int32_t sample(int64_t i, int64_t vocab)
{
    return (int32_t)((uint64_t)(i * 2654435761u + 12345) % (uint64_t)(vocab - 1));
}

/* Documents of the given lengths whose ids continue one count; the separator is vocab - 1. */
static int write_set(const char *prefix, const struct shard_info *info, const int64_t *length,
                     int n)
{
    struct shard_writer *w = shard_create(prefix, info);
    int64_t count = 0;

    if (!w)
        return -1;
    for (int d = 0; d < n; d++) {
        int32_t *ids = mem_new((size_t)length[d] + 1, sizeof *ids);
        for (int64_t i = 0; i < length[d]; i++)
            ids[i] = sample(count++, info->vocab);
        if (shard_document(w, ids, length[d])) {
            free(ids);
            shard_abort(w);
            return -1;
        }
        free(ids);
    }
    return shard_finish(w);
}

static void three_documents(void)
{
    static const int32_t a[] = { 5, 6, 7 }, c[] = { 8 }, want[] = { 9, 5, 6, 7, 9, 9, 8 };
    static const int64_t begin[] = { 0, 4, 5 };
    struct shard_info info = { .vocab = 10, .eot = 9, .tokenizer = HASH };
    struct shard_writer *w = shard_create(in_dir("three"), &info);
    struct shard_cache cache;
    struct shard s;
    int32_t got[7];
    int64_t *start;

    CHECK(w != NULL);
    CHECK(!shard_document(w, a, 3) && !shard_document(w, NULL, 0) && !shard_document(w, c, 1));
    CHECK(shard_written(w) == 7);
    CHECK(exists("three_000000.pts.tmp") && !exists("three_000000.pts"));
    listen_begin();
    CHECK(shard_open(&s, in_dir("three_000000.pts.tmp"), 0, -1));
    CHECK(listen_end("unfinished"));
    CHECK(!shard_finish(w));
    CHECK(!exists("three_000000.pts.tmp") && exists("three_000000.pts"));

    CHECK(!shard_open(&s, in_dir("three_000000.pts"), 0, -1));
    CHECK(s.kind == SHARD_PTS && s.width == 2 && s.vocab == 10 && s.eot == 9 && s.last
          && s.number == 0);
    CHECK(s.tokens == 7 && s.documents == 3 && s.frames == 1 && s.frame_tokens == SHARD_FRAME);
    CHECK(!strcmp(s.tokenizer, HASH));
    shard_cache_init(&cache, SHARD_FRAME * 2, 1);
    memset(got, -1, sizeof got);
    CHECK(!shard_read(&s, &cache, 0, 7, got) && !memcmp(got, want, sizeof want));
    start = shard_documents(&s, &cache);
    CHECK(start && !memcmp(start, begin, sizeof begin));
    CHECK(!shard_verify(&s, &cache));
    free(start);
    shard_close(&s);
    shard_cache_close(&cache);
}

/* A vocabulary of 70,000: ids past 65,535 need four bytes and come back. */
static void wide_ids(void)
{
    static const int32_t ids[] = { 65536, 0, 69998, 65535 };
    struct shard_info info = { .vocab = 70000, .eot = 69999 };
    struct shard_writer *w = shard_create(in_dir("wide"), &info);
    struct shard_cache cache;
    struct shard s;
    int32_t got[5];

    CHECK(w && !shard_document(w, ids, 3) && !shard_append(w, ids + 3, 1) && !shard_finish(w));
    CHECK(!shard_open(&s, in_dir("wide_000000.pts"), 0, -1));
    CHECK(s.width == 4 && !s.tokenizer[0] && s.documents == 1);
    shard_cache_init(&cache, SHARD_FRAME * 4, 1);
    CHECK(!shard_read(&s, &cache, 0, 5, got));
    CHECK(got[0] == 69999 && !memcmp(got + 1, ids, sizeof ids));
    shard_close(&s);
    shard_cache_close(&cache);

    info.width = 2;
    listen_begin();
    CHECK(!shard_create(in_dir("narrow"), &info));
    CHECK(listen_end("70000 does not fit tokens of 2 bytes"));
    info.width = 0;
    w = shard_create(in_dir("narrow"), &info);
    listen_begin();
    CHECK(shard_document(w, (const int32_t[]){ 70000 }, 1));
    CHECK(listen_end("is 70000, expected an id below 70000"));
    shard_abort(w);
    CHECK(!exists("narrow_000000.pts.tmp"));
}

/* Files end at documents, never inside one; a cache of two frames reads every range alike. */
static void many_files(void)
{
    static const int64_t length[] = { 0, 30, 200, 0, 0, 1, 99, 98, 517, 3 };
    struct shard_info info = { .vocab = 1000, .eot = 999, .limit = 100, .frame_tokens = 16 };
    int64_t count = 0, tokens = 0;
    struct shard_cache cache;
    int files = 0, document = 0;

    CHECK(!write_set(in_dir("many"), &info, length, LEN(length)));
    shard_cache_init(&cache, 16 * 2, 1);
    for (;; files++) {
        char name[64];
        struct shard s;
        snprintf(name, sizeof name, "many_%06d.pts", files);
        if (!exists(name))
            break;
        CHECK(!shard_open(&s, in_dir(name), 0, -1));
        CHECK(s.number == files && s.frames == (s.tokens + 15) / 16);
        int32_t *all = mem_new((size_t)s.tokens, sizeof *all), part[40];
        CHECK(!shard_read(&s, &cache, 0, s.tokens, all));
        CHECK(all[0] == 999);
        for (int64_t i = 0; i < s.tokens; i++)
            if (all[i] == 999)
                document++;
            else
                CHECK(all[i] == sample(count++, 1000));
        for (int64_t i = 0; i + 40 <= s.tokens; i += 7) {
            CHECK(!shard_read(&s, &cache, i, 40, part));
            CHECK(!memcmp(part, all + i, sizeof part));
        }
        CHECK(!shard_verify(&s, &cache));
        CHECK(s.last == (tokens + s.tokens == 948 + 10));
        tokens += s.tokens;
        free(all);
        shard_close(&s);
    }
    CHECK(files == 4 && document == 10 && count == 948 && tokens == 958);
    shard_cache_close(&cache);
}

/* A cache of three frames forgets the one that was not asked for the longest. */
static void least_recently_used(void)
{
    static const int64_t frame[] = { 0, 1, 2, 0, 3, 0, 2, 1 };
    static const int decoded[]   = { 1, 2, 3, 3, 4, 4, 4, 5 };
    struct shard_cache cache;
    struct shard s;
    int32_t id;

    CHECK(!shard_open(&s, in_dir("many_000000.pts"), 0, -1) && s.frames > 4);
    shard_cache_init(&cache, 16 * 2, 3 * 16 * 2);
    for (size_t i = 0; i < LEN(frame); i++) {
        CHECK(!shard_read(&s, &cache, 16 * frame[i] + 5, 1, &id));
        CHECK(cache.decoded == decoded[i]);
    }
    shard_close(&s);
    shard_cache_close(&cache);
}

/* A set is there when all of it is: after a kill while writing, and at each point of publishing. */
static void killed(void)
{
    static const int64_t length[] = { 99, 99, 99, 5 };
    struct shard_info info = { .vocab = 500, .eot = 499, .limit = 100, .frame_tokens = 32 };
    struct shard s;
    pid_t child = fork();
    int status;

    if (!child) {
        struct shard_writer *w = shard_create(in_dir("kill"), &info);
        int32_t ids[99] = { 0 };
        for (int i = 0; i < 3; i++)
            if (!w || shard_document(w, ids, 99))
                _exit(1);
        raise(SIGKILL);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    CHECK(exists("kill_000000.pts.tmp") && exists("kill_000002.pts.tmp"));
    CHECK(!exists("kill_000000.pts") && !exists("kill_000001.pts") && !exists("kill_000002.pts"));

    info.limit = 250;
    CHECK(!write_set(in_dir("kill"), &info, length, LEN(length)));
    CHECK(exists("kill_000000.pts") && exists("kill_000001.pts"));
    CHECK(!exists("kill_000000.pts.tmp") && !exists("kill_000001.pts.tmp")
          && !exists("kill_000002.pts.tmp"));
    CHECK(!shard_open(&s, in_dir("kill_000001.pts"), 0, -1));
    shard_close(&s);
    listen_begin();
    CHECK(!shard_create(in_dir("kill"), &info));
    CHECK(listen_end(".pts: exists; remove the set"));
    CHECK(!exists("kill_000000.pts.tmp"));

    CHECK(!rename(in_dir("kill_000000.pts"), in_dir("kill_000000.pts.tmp")));
    listen_begin();
    CHECK(shard_open(&s, in_dir("kill_000001.pts"), 0, -1));
    CHECK(listen_end("its set is not complete"));
    CHECK(!rename(in_dir("kill_000000.pts.tmp"), in_dir("kill_000000.pts")));
}

/* A separator among the ids begins a document like any other. */
static void separator_inside(void)
{
    struct shard_info info = { .vocab = 50, .eot = 0 };
    struct shard_writer *w = shard_create(in_dir("inside"), &info);
    struct shard_cache cache;
    struct shard s;

    CHECK(w && !shard_document(w, (const int32_t[]){ 4, 0, 5 }, 3) && !shard_finish(w));
    shard_cache_init(&cache, SHARD_FRAME * 2, 1);
    CHECK(!shard_open(&s, in_dir("inside_000000.pts"), 0, -1) && s.documents == 2
          && !shard_verify(&s, &cache));
    shard_close(&s);
    shard_cache_close(&cache);
}

static void two_writers(void)
{
    struct shard_info info = { .vocab = 50, .eot = 0 };
    struct shard_writer *w = shard_create(in_dir("twice"), &info);

    CHECK(w && !shard_document(w, NULL, 0));
    listen_begin();
    CHECK(!shard_create(in_dir("twice"), &info));
    CHECK(listen_end("another process is writing this set"));
    CHECK(!shard_finish(w) && exists("twice_000000.pts"));

    w = shard_create(in_dir("empty"), &info);
    listen_begin();
    CHECK(shard_finish(w));
    CHECK(listen_end("no documents"));
    CHECK(!exists("empty_000000.pts.tmp"));
    w = shard_create(in_dir("two/new/set"), &info);        /* directories are made, but not of a file */
    CHECK(w && !shard_document(w, NULL, 0) && !shard_finish(w) && exists("two/new/set_000000.pts"));
    listen_begin();
    CHECK(!shard_create(in_dir("twice_000000.pts/set"), &info));
    CHECK(listen_end("twice_000000.pts: "));
}

/* No room for the file: one line, nothing left behind. In a child, for the limit stays. */
static void disk_full(void)
{
    struct shard_info info = { .vocab = 50000, .eot = 0, .limit = 50 };
    pid_t child = fork();
    int status;

    if (!child) {
        struct rlimit room = { 200000, 200000 };
        struct shard_writer *w = shard_create(in_dir("full"), &info);
        int32_t *ids = mem_new(200000, sizeof *ids);
        bool right = w && !shard_document(w, ids, 100);
        for (int i = 0; i < 200000; i++)
            ids[i] = sample(i, 50000);
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &room);
        listen_begin();
        right = right && shard_document(w, ids, 200000) && shard_document(w, ids, 1)
             && shard_finish(w);
        _exit(listen_end("full_000001.pts.tmp: File too large") && right ? 0 : 1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!exists("full_000000.pts.tmp") && !exists("full_000000.pts")
          && !exists("full_000001.pts.tmp"));
}

static void plain_files(void)
{
    uint32_t header[256] = { 20240520, 1, 5 };
    uint16_t tokens[] = { 50256, 1, 2, 50256, 3 };
    struct shard_cache cache;
    struct shard s;
    int64_t *start;
    int32_t got[5];
    FILE *f = fopen(in_dir("a.bin"), "wb");

    CHECK(f && fwrite(header, 1024, 1, f) && fwrite(tokens, 10, 1, f) && !fclose(f));
    shard_cache_init(&cache, SHARD_FRAME * 4, 1);
    CHECK(!shard_open(&s, in_dir("a.bin"), 0, -1));
    CHECK(s.kind == SHARD_BIN && s.eot == 50256 && s.tokens == 5 && s.documents == -1
          && s.vocab == 0);
    CHECK(!shard_read(&s, &cache, 1, 4, got) && got[0] == 1 && got[2] == 50256 && got[3] == 3);
    start = shard_documents(&s, &cache);
    CHECK(start && s.documents == 2 && start[0] == 0 && start[1] == 3);
    free(start);
    shard_close(&s);

    header[2] = 6;
    uint8_t *bad = memcpy(mem_new(1034, 1), header, 1024);
    memcpy(bad + 1024, tokens, 10);
    listen_begin();
    CHECK(shard_open_memory(&s, bad, 1034, "b.bin", 0, -1));
    CHECK(listen_end("b.bin: torn: expected 1036 bytes for 6 tokens, found 1034"));
    put_u32(bad + 4, 2);
    listen_begin();
    CHECK(shard_open_memory(&s, bad, 1034, "b.bin", 0, -1));
    CHECK(listen_end("expected version 1 of the .bin format, found 2"));

    listen_begin();
    CHECK(shard_open_memory(&s, tokens, 9, "r.bin", 2, -1));
    CHECK(listen_end("expected a multiple of 2 bytes, found 9"));
    CHECK(!shard_open_memory(&s, tokens, 10, "r.bin", 2, -1));
    CHECK(s.tokens == 5 && s.documents == 1 && s.eot == -1);
    s.id_limit = 50257;
    CHECK(!shard_read(&s, &cache, 0, 5, got) && got[0] == 50256);
    shard_close(&s);
    CHECK(!shard_open_memory(&s, tokens, 10, "r.bin", 2, -1));
    s.id_limit = 50000;
    listen_begin();
    CHECK(shard_read(&s, &cache, 0, 5, got));
    CHECK(listen_end("r.bin: token 0: expected an id below 50000, found 50256"));
    shard_close(&s);
    put_u32(bad, 0x80000001u);
    CHECK(!shard_open_memory(&s, bad, 4, "w.bin", 4, -1));
    listen_begin();
    CHECK(shard_read(&s, &cache, 0, 1, got));
    CHECK(listen_end("found 2147483649"));
    shard_close(&s);
    free(bad);
    shard_cache_close(&cache);
}

/* Published shards, where they are at hand. */
static void published(void)
{
    static const char *const name[] = { "train", "val" };
    struct shard_cache cache;

    if (!test_reference())
        return;
    shard_cache_init(&cache, SHARD_FRAME * 4, 1 << 20);
    for (int i = 0; i < 2; i++) {
        char path[512];
        struct shard s;
        int64_t *start;
        snprintf(path, sizeof path, "%s/data/shards/llmc/tiny_shakespeare_%s.bin", test_reference(),
                 name[i]);
        if (access(path, R_OK))
            continue;
        CHECK(!shard_open(&s, path, 0, -1));
        start = shard_documents(&s, &cache);
        CHECK(start && s.tokens == (i ? 32768 : 305260));
        printf("%s: %lld tokens, %lld documents\n", name[i], (long long)s.tokens,
               (long long)s.documents);
        free(start);
        shard_close(&s);
    }
    shard_cache_close(&cache);
}

int main(void)
{
    scratch_open();
    three_documents();
    wide_ids();
    many_files();
    least_recently_used();
    killed();
    separator_inside();
    two_writers();
    disk_full();
    plain_files();
    published();
    scratch_close();
    return test_done("shard");
}
