/* test_loader.c - rows of packed windows: what is in them, in which order, on how many readers. */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "loader.h"
#include "rng.h"
#include "heard.h"
#include "shard.h"
#include "test.h"

static const char HASH_A[] = "00112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";
static const char HASH_B[] = "a0112233445566778899aabbccddeeff0123456789abcdeffedcba9876543210";

/* Two names there, separated by a comma. */
static const char *all_in_dir(const char *a, const char *b)
{
    static char list[512];

    snprintf(list, sizeof list, "%s/%s,%s/%s", scratch, a, scratch, b);
    return list;
}

static bool refused(const struct loader_options *o, const char *why)
{
    struct loader l;
    int status;

    listen_begin();
    status = loader_open(&l, o);
    if (!status)
        loader_close(&l);
    return listen_end(why) && status;
}

/* The tokens as they are, cut into documents at the separators; the first must be one. */
static void write_tokens(const char *name, struct shard_info info, const int32_t *token, int64_t n)
{
    struct shard_writer *w = shard_create(in_dir(name), &info);

    CHECK(w && token[0] == info.eot);
    for (int64_t at = 0, end; w && at < n; at = end) {
        for (end = at + 1; end < n && token[end] != info.eot; )
            end++;
        CHECK(!shard_document(w, token + at + 1, end - at - 1));
    }
    CHECK(w && !shard_finish(w));
}

/* Documents of 0 to `most` ids, separator 0; ids count up, so that a token tells where it lies. */
static int32_t *corpus(int64_t n, int64_t most)
{
    int32_t *token = mem_new((size_t)n, sizeof *token);
    int64_t left = 0;

    for (int64_t i = 0; i < n; i++)
        if (left-- == 0)
            left = (int64_t)(rng_uniform(7, 1, (uint64_t)i) * (double)(most + 1));
        else
            token[i] = (int32_t)(1 + i % 60000);
    return token;
}

static void permutation(void)
{
    static const int64_t big = ((int64_t)1 << 40) + 7;
    static const int64_t count[] = { 1, 2, 3, 4, 5, 31, 64, 127, 128, 129, 400, 4096, 4100, 9001 };
    static const int64_t block[] = { 1, 3, 32 };
    uint8_t *seen = mem_new(9001, 1);
    int wrong = 0, moved = 0, changed = 0;
    double half = 0, step = 0;

    for (size_t k = 0; k < LEN(count) * LEN(block) * 3; k++) {
        int64_t n = count[k / 9], b = block[k / 3 % 3], epoch = (int64_t)k % 3;
        memset(seen, 0, (size_t)n);
        for (int64_t i = 0; i < n; i++) {
            int64_t to = loader_permute(i, n, b, 5, epoch);
            wrong += to < 0 || to >= n || seen[to];
            if (wrong)
                break;
            seen[to] = 1;
            if (n != 9001)
                continue;
            moved += to != i;
            changed += to != loader_permute(i, n, b, 5, epoch + 1) && to != loader_permute(i, n, b, 6, epoch);
        }
    }
    CHECK(wrong == 0);
    CHECK(moved > 9 * 8980 && changed > 9 * 8960);
    for (int64_t i = 0; i < 20000; i++) {
        int64_t to = loader_permute(i, big, 32, 5, 0), next = loader_permute(i + 1, big, 32, 5, 0);
        CHECK(to >= 0 && to < big);
        half += (double)to / (double)big / 20000;
        step += fabs((double)(next - to)) / (double)big / 20000;
    }
    CHECK_NEAR(half, 0.5, 0.06);            /* 5 groups of 128 places: a standard error of 0.012 */
    CHECK_NEAR(step, 1.0 / 3, 0.06);        /* neighbours in an epoch lie far apart */
    free(seen);
}

static bool row_is(const struct batch *b, const int32_t *token, const int32_t *target, const int32_t *start, int n)
{
    int64_t predicted = 0;

    for (int64_t i = 0; i < b->seqs.tokens; i++)
        predicted += target[i] >= 0;
    return b->seqs.n == n && b->predicted == predicted
        && !memcmp(b->token, token, (size_t)b->seqs.tokens * sizeof *token)
        && !memcmp(b->target, target, (size_t)b->seqs.tokens * sizeof *target)
        && !memcmp(b->seqs.start, start, (size_t)(n + 1) * sizeof *start);
}

/* E = 9 begins each of five documents, two of them empty; the window of 4 cuts the fourth. */
static void by_hand(void)
{
    static const int32_t token[]  = { 9, 1, 2, 3, 9, 9, 4, 5, 6, 7, 9, 8 };
    static const int32_t target[] = { 1, 2, 3, -1, -1, 4, 5, 6, 7, -1, 8, -1 };
    static const int32_t joined[] = { 1, 2, 3, 9, 9, 4, 5, 6, 7, 9, 8, -1 };
    static const int32_t start[] = { 0, 4, 5, 8, 10, 12 }, window[] = { 0, 4, 8, 12 };
    static const int32_t halves[] = { 0, 4, 5, 8 };
    struct shard_info info = { .vocab = 10, .eot = 9, .tokenizer = HASH_A };
    struct loader_options o = { .files = in_dir("hand_*.pts"), .tokens = 12, .context = 4, .eot = -1 };
    struct loader l;
    struct batch b;
    char where[64];

    write_tokens("hand", info, token, 12);
    CHECK(!loader_open(&l, &o));
    CHECK(l.stream == 12 && l.documents == 4 && l.windows == 3 && l.rows == 1 && l.skipped == 0 && l.vocab == 10);
    CHECK(!strcmp(l.tokenizer, HASH_A) && strlen(l.identity) == 64);
    CHECK(!loader_read(&l, 0, &b) && row_is(&b, token, target, start, 5) && b.seqs.longest == 4);
    CHECK(!loader_read(&l, 3, &b) && row_is(&b, token, target, start, 5));
    CHECK(loader_epoch(&l, 3) == 3);
    loader_where(&l, 0, where, sizeof where);
    CHECK(!strcmp(where, "hand_000000.pts:0 +2"));
    loader_close(&l);

    o.join = true;
    CHECK(!loader_open(&l, &o));
    CHECK(!loader_read(&l, 0, &b) && row_is(&b, token, joined, window, 3));
    loader_close(&l);

    o.join = false;
    o.tokens = 8;
    CHECK(!loader_open(&l, &o) && l.rows == 1 && l.skipped == 0);
    CHECK(!loader_read(&l, 0, &b) && row_is(&b, token, target, halves, 3));
    loader_close(&l);

    o.tokens = 16;
    CHECK(refused(&o, "12 tokens in 1 file make 3 windows of 4, a row needs 4"));
    o.tokens = 10;
    CHECK(refused(&o, "a row of 10 tokens cannot hold windows of 4"));
}

/* Windows that begin at separators only: what lies between is counted. */
static void aligned(void)
{
    /*                                0           4     6        9              14    16 */
    static const int32_t token[]  = { 0, 1, 2, 3, 0, 5, 0, 6, 7, 0, 1, 2, 3, 4, 0, 1, 0, 1, 2 };
    static const int32_t first[]  = { 0, 1, 2, 3, 0, 5, 0, 6, 0, 1, 2, 3 };
    static const int32_t target[] = { 1, 2, 3, -1, 5, -1, 6, 7, 1, 2, 3, 4 };
    static const int32_t start[]  = { 0, 4, 6, 8, 12 };
    struct shard_info info = { .vocab = 10, .eot = 0 };
    struct loader_options o = { .files = in_dir("align_*"), .tokens = 12, .context = 4, .eot = -1, .align = true };
    struct loader l;
    struct batch b;
    int32_t *many = corpus(5000, 90);

    write_tokens("align", info, token, LEN(token));
    CHECK(!loader_open(&l, &o));
    CHECK(l.windows == 4 && l.rows == 1 && l.skipped == 3 && l.documents == 6);
    CHECK(!loader_read(&l, 0, &b) && row_is(&b, first, target, start, 4));
    loader_close(&l);
    o.tokens = 16;
    CHECK(!loader_open(&l, &o) && l.windows == 4 && l.rows == 1 && l.skipped == 3);
    loader_close(&l);

    info = (struct shard_info){ .vocab = 65536, .eot = 0, .limit = 1700, .frame_tokens = 64 };
    write_tokens("begins", info, many, 5000);
    o = (struct loader_options){ .files = in_dir("begins_*"), .tokens = 64, .context = 32,
                                 .eot = -1, .align = true, .shuffle = true, .seed = 3 };
    CHECK(!loader_open(&l, &o));
    CHECK(l.rows > 20 && l.skipped == 5000 - 32 * l.windows);
    for (int64_t r = 0; r < 2 * l.rows; r++)
        CHECK(!loader_read(&l, r, &b) && b.token[0] == 0 && b.token[32] == 0);
    loader_close(&l);
    free(many);
}

static uint64_t row_hash(struct loader *l, int64_t index)
{
    struct batch b;
    uint64_t h = 0;

    if (loader_read(l, index, &b))
        return 0;
    for (int64_t i = 0; i < b.seqs.tokens; i++)
        h = rng_mix(h ^ (uint64_t)(uint32_t)b.token[i] ^ (uint64_t)(uint32_t)b.target[i] << 32);
    for (int i = 0; i <= b.seqs.n; i++)
        h = rng_mix(h ^ (uint64_t)b.seqs.start[i]);
    return h;
}

/* One corpus in one file or in several: the same rows, in any order of asking, by any reader. */
static void pure_rows(void)
{
    struct shard_info info = { .vocab = 65536, .eot = 0, .frame_tokens = 256 };
    struct loader_options o = { .files = in_dir("one_*.pts"), .tokens = 384, .context = 96,
                                .seed = 11, .shuffle = true, .eot = -1 };
    struct loader one, parts;
    int32_t *token = corpus(20011, 150);
    uint64_t want[150];
    pid_t child;
    int status;

    write_tokens("one", info, token, 20011);
    info.limit = 3000;
    write_tokens("parts", info, token, 20011);
    CHECK(!loader_open(&one, &o));
    o.files = in_dir("parts_*.pts");
    CHECK(!loader_open(&parts, &o));
    CHECK(one.windows == 208 && one.rows == 52 && one.skipped == 20011 - 208 * 96);
    CHECK(strcmp(one.identity, parts.identity));
    for (int64_t r = 0; r < 150; r++)
        want[r] = row_hash(&one, r);
    for (int64_t i = 0; i < 150; i++) {
        int64_t r = loader_permute(i, 150, 1, 1, 0);
        CHECK(want[r] && row_hash(&parts, r) == want[r]);
    }
    child = fork();
    for (int64_t r = 0; r < 150; r++)
        if (row_hash(&parts, r) != want[r]) {
            CHECK(child);
            if (!child)
                _exit(1);
        }
    if (!child)
        _exit(0);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
    loader_close(&one);
    loader_close(&parts);
    free(token);
}

/* Every window is visited once an epoch, however many read; no shuffle is the stream in order. */
static void every_window_once(void)
{
    struct loader_options o = { .files = in_dir("parts_*.pts"), .tokens = 96, .context = 96, .seed = 2,
                                .shuffle = true, .eot = -1 };
    char where[128], last[128] = "";
    struct loader l;
    int repeats = 0;

    CHECK(!loader_open(&l, &o));
    CHECK(l.windows == 208 && l.rows == 208);
    for (int64_t ranks = 1; ranks <= 4; ranks *= 2) {
        char seen[208][64] = { 0 };
        for (int64_t rank = 0; rank < ranks; rank++)
            for (int64_t r = 208 + rank; r < 416; r += ranks) {         /* the second epoch */
                CHECK(loader_epoch(&l, r) == 1);
                loader_where(&l, r, seen[r - 208], sizeof seen[0]);
            }
        for (int i = 0; i < 208; i++)
            for (int k = 0; k < i; k++)
                repeats += !strcmp(seen[i], seen[k]);
    }
    CHECK(repeats == 0);
    for (int64_t r = 0; r < 208; r++) {
        char again[128];
        loader_where(&l, r, where, sizeof where);
        loader_where(&l, r + 208, again, sizeof again);
        repeats += !strcmp(where, again);
    }
    CHECK(repeats < 8);                         /* two epochs agree in one place on average */
    loader_close(&l);

    o.shuffle = false;
    CHECK(!loader_open(&l, &o));
    for (int64_t r = 0; r < 208; r++) {
        loader_where(&l, r, where, sizeof where);
        CHECK(r == 0 || strncmp(last, where, strlen("parts_000000.pts")) <= 0);
        memcpy(last, where, sizeof last);
    }
    CHECK(!strncmp(last, "parts_000006.pts:", 17));
    loader_where(&l, 0, where, sizeof where);
    CHECK(!strcmp(where, "parts_000000.pts:0"));
    loader_where(&l, 40, where, sizeof where);
    CHECK(!strncmp(where, "parts_000001.pts:", 17));
    loader_close(&l);
}

/* However a step is cut into rows, it has the same windows, also across the end of an epoch. */
static void rows_of_any_size(void)
{
    struct loader_options o = { .files = in_dir("parts_*.pts"), .tokens = 96, .context = 96, .seed = 2,
                                .shuffle = true, .eot = -1 };
    struct loader narrow, wide;
    struct batch b;

    CHECK(!loader_open(&narrow, &o));
    o.tokens = 3 * 96;
    CHECK(!loader_open(&wide, &o));
    CHECK(wide.windows == 208 && wide.windows % 3);
    for (int64_t r = 60; r < 80; r++) {
        int32_t got[3 * 96];
        CHECK(!loader_read(&wide, r, &b));
        memcpy(got, b.token, sizeof got);
        for (int64_t i = 0; i < 3; i++) {
            CHECK(!loader_read(&narrow, 3 * r + i, &b));
            CHECK(!memcmp(got + 96 * i, b.token, 96 * sizeof *got));
        }
    }
    loader_close(&narrow);
    loader_close(&wide);
}

static void epochs(void)
{
    struct shard_info info = { .vocab = 65536, .eot = 0 };
    struct loader_options o = { .files = in_dir("short_*"), .tokens = 100, .context = 50, .seed = 1, .shuffle = true,
                                .eot = -1 };
    int32_t *token = corpus(1000, 40);
    struct loader l;
    struct batch b;

    write_tokens("short", info, token, 1000);
    CHECK(!loader_open(&l, &o) && l.rows == 10);
    for (int64_t r = 0; r < 50; r++) {
        CHECK(loader_epoch(&l, r) == r / 10);
        CHECK(!loader_read(&l, r, &b));
    }
    loader_close(&l);
    free(token);
}

static void refusals(void)
{
    static const int32_t token[] = { 9, 1, 2, 3, 9, 1, 2, 3 };
    struct shard_info info = { .vocab = 10, .eot = 9, .tokenizer = HASH_A };
    struct loader_options o = { .tokens = 4, .context = 4, .eot = -1 };
    struct loader l;
    char identity[65];

    write_tokens("a", info, token, 8);
    info.tokenizer = HASH_B;
    write_tokens("b", info, token, 8);
    info = (struct shard_info){ .vocab = 11, .eot = 9, .tokenizer = HASH_A };
    write_tokens("c", info, token, 8);
    info.vocab = 10;
    write_tokens("d", info, token, 8);
    o.files = all_in_dir("a_*", "b_*");
    CHECK(refused(&o, "b_000000.pts: tokenizer: expected 0011"));
    o.files = all_in_dir("a_*", "c_*");
    CHECK(refused(&o, "c_000000.pts: vocabulary: expected 10 as in "));
    o.files = all_in_dir("a_*", "a_000000.pts");
    CHECK(refused(&o, "a_000000.pts: the same file as "));
    CHECK(!link(in_dir("a_000000.pts"), in_dir("z.pts")));
    o.files = all_in_dir("a_*", "z.pts");
    CHECK(refused(&o, "z.pts: the same file as "));
    o.files = in_dir("absent_*");
    CHECK(refused(&o, "absent_*: no such file"));
    o.files = "";
    CHECK(refused(&o, "no data files are named"));
    o.files = scratch;
    CHECK(refused(&o, "expected a file, found a directory"));
    o.files = in_dir("a_*");
    o.vocab = 9;
    CHECK(refused(&o, "vocabulary: expected at most 9, found 10"));

    o.vocab = 0;
    CHECK(!loader_open(&l, &o));
    memcpy(identity, l.identity, 65);
    loader_close(&l);
    CHECK(!loader_open(&l, &o) && !strcmp(identity, l.identity));
    loader_close(&l);
    o.files = all_in_dir("d_*", "a_*");
    CHECK(!loader_open(&l, &o) && strcmp(identity, l.identity) && l.stream == 16 && l.documents == 4);
    loader_close(&l);
    CHECK(!rename(in_dir("a_000000.pts"), in_dir("e_000000.pts")));
    o.files = in_dir("e_*");
    CHECK(!loader_open(&l, &o) && strcmp(identity, l.identity));
    loader_close(&l);
}

/* Headerless files: with a separator one stream of documents, without one a document each. */
static void raw_files(void)
{
    static const uint16_t a[] = { 1, 2, 3, 7, 4 }, b[] = { 5, 7, 6 };
    static const int32_t token[] = { 1, 2, 3, 7, 4, 5, 7, 6 };
    static const int32_t apart[] = { 2, 3, 7, 4, -1, 7, 6, -1 }, apart_start[] = { 0, 4, 5, 8 };
    static const int32_t split[] = { 2, 3, -1, 4, 5, -1, 6, -1 }, split_start[] = { 0, 3, 4, 6, 8 };
    struct loader_options o = { .tokens = 8, .context = 4, .raw_width = 2, .eot = -1 };
    FILE *f = fopen(in_dir("raw1"), "wb"), *g = fopen(in_dir("raw2"), "wb");
    struct loader l;
    struct batch row;

    CHECK(f && fwrite(a, sizeof a, 1, f) && !fclose(f) && g && fwrite(b, sizeof b, 1, g) && !fclose(g));
    o.files = in_dir("raw[12]");
    CHECK(!loader_open(&l, &o) && l.documents == 2 && l.vocab == 0);
    CHECK(!loader_read(&l, 0, &row) && row_is(&row, token, apart, apart_start, 3));
    loader_close(&l);
    o.eot = 7;
    CHECK(!loader_open(&l, &o) && l.documents == -1);
    CHECK(!loader_read(&l, 0, &row) && row_is(&row, token, split, split_start, 4));
    loader_close(&l);
    o.vocab = 7;
    CHECK(!loader_open(&l, &o));
    listen_begin();
    CHECK(loader_read(&l, 0, &row));
    CHECK(listen_end("raw1: token 3: expected an id below 7, found 7"));
    loader_close(&l);
    o.raw_width = 0;
    CHECK(refused(&o, "raw1: too short to be a token shard"));
}

/* More than 2^31 tokens, in a file that is a hole but for its end. */
static void past_2_31(void)
{
    const int64_t n = ((int64_t)1 << 31) + 64 * 1000 + 5, at = n - 5 - 64;
    struct loader_options o = { .files = in_dir("hole"), .tokens = 128, .context = 64, .raw_width = 2, .eot = 3 };
    int fd = open(in_dir("hole"), O_RDWR | O_CREAT, 0600);
    uint16_t mark[] = { 3, 41, 42 };
    struct loader l;
    struct batch b;

    if (fd < 0 || ftruncate(fd, 2 * n) || pwrite(fd, mark, sizeof mark, 2 * (at + 10)) != sizeof mark) {
        printf("no room for a sparse file of 4 GiB: rows past 2^31 tokens not tested\n");
        close(fd);
        return;
    }
    close(fd);
    CHECK(!loader_open(&l, &o));
    CHECK(l.stream == n && l.windows == n / 64 && l.rows == n / 128 && l.skipped == 5);
    CHECK(!loader_read(&l, l.rows - 1, &b));
    CHECK(b.seqs.n == 3 && b.seqs.start[2] == 64 + 10 && b.token[64 + 11] == 41 && b.token[64 + 12] == 42);
    CHECK(b.token[64 + 10] == 3 && b.target[64 + 9] == -1 && b.target[64 + 10] == 41);
    loader_close(&l);
    o.shuffle = true;
    CHECK(!loader_open(&l, &o) && !loader_read(&l, 3 * l.rows + 1, &b));
    loader_close(&l);
    unlink(in_dir("hole"));
}

/* Published shards against their own bytes. */
static void published(const char *name, int header, int raw_width, int64_t eot)
{
    char path[512];
    struct loader_options o = { .files = path, .tokens = 1024, .context = 256, .raw_width = raw_width, .eot = eot };
    struct loader l;
    struct batch b;
    uint16_t *token;
    FILE *f;

    snprintf(path, sizeof path, "%s/data/shards/%s", test_reference(), name);
    f = fopen(path, "rb");
    if (!f) {
        printf("%s: not there, not tested\n", path);
        return;
    }
    CHECK(!fseek(f, header, SEEK_SET));
    token = mem_new(1 << 20, sizeof *token);
    CHECK(fread(token, 2, 1 << 20, f) > 0);
    fclose(f);
    CHECK(!loader_open(&l, &o) && l.rows > 30);
    for (int64_t r = 0; r < l.rows; r++) {
        int wrong = 0, sequences = 0;
        CHECK(!loader_read(&l, r, &b));
        for (int64_t i = 0; i < 1024; i++) {
            int64_t at = r * 1024 + i;
            bool end = at + 1 == l.stream || (eot >= 0 && token[at + 1] == eot);
            sequences += i % 256 == 0 || (eot >= 0 && token[at] == eot);
            wrong += b.token[i] != token[at] || b.target[i] != (end ? -1 : token[at + 1]);
        }
        CHECK(wrong == 0 && sequences == b.seqs.n);
    }
    loader_close(&l);
    free(token);
}

int main(void)
{
    scratch_open();
    permutation();
    by_hand();
    aligned();
    pure_rows();
    every_window_once();
    rows_of_any_size();
    epochs();
    refusals();
    raw_files();
    past_2_31();
    if (test_reference()) {
        published("llmc/tiny_shakespeare_train.bin", 1024, 0, 50256);
        published("llmc/tiny_shakespeare_val.bin", 1024, 0, 50256);
        published("nanogpt/shakespeare/val.bin", 0, 2, -1);
        published("nanogpt/shakespeare_char/val.bin", 0, 2, 0);
    }
    scratch_close();
    return test_done("loader");
}
