/* test_safetensors.c - what is written reads back; every kind of broken file has its own message. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"
#include "half.h"
#include "json.h"
#include "test.h"
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/test_safetensors_XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[4][256];
    static int next;
    char *p = path[next = (next + 1) % 4];

    str_format(p, sizeof path[0], "%s/%s", dir, name);
    return p;
}

/* Opens bytes from memory and returns what was said on stderr ("" when it was accepted). */
static const char *verdict(const void *data, size_t n)
{
    static char said[512];
    int keep = dup(2);
    FILE *to = fopen(in_dir("stderr"), "w+");
    struct st *s;
    size_t got;

    dup2(fileno(to), 2);
    s = st_open_memory(data, n, "F");
    dup2(keep, 2);
    close(keep);
    rewind(to);
    got = fread(said, 1, sizeof said - 1, to);
    said[got] = 0;
    fclose(to);
    CHECK((s == NULL) == (got > 0));
    CHECK(!got || strchr(said, '\n') == said + got - 1);             /* one line */
    st_close(s);
    return said;
}

/* A file from a header and so many bytes of data. */
static const char *file_of(const char *header, size_t data)
{
    static char bytes[4096];
    size_t n = strlen(header);

    memset(bytes, 0, sizeof bytes);
    bytes[0] = (char)n, bytes[1] = (char)(n >> 8);
    memcpy(bytes + 8, header, n);
    return verdict(bytes, 8 + n + data);
}

static void test_round_trip(void)
{
    const char *path = in_dir("a.safetensors"), *value;
    float a[6] = { 1, -2, 0.5f, 1e30f, -0.0f, 3 }, back[6];
    uint16_t half[3] = { bf16_of(1.5f), bf16_of(-2), bf16_of(1e-3f) };
    int32_t ints[3] = { 1, -5, 7 }, iback[3];
    int64_t longs[2] = { 3, -4 };
    struct st_writer *w = st_create(path);
    struct st *s;

    st_describe(w, "format", "pt");
    st_describe(w, "odd \"key\"", "line\nbreak");
    st_declare(w, "longs", ST_I64, 1, (int64_t[]){ 2 });
    st_declare(w, "a.weight", ST_F32, 3, (int64_t[]){ 3, 1, 2 });
    st_declare(w, "ints", ST_I32, 1, (int64_t[]){ 3 });
    st_declare(w, "scalar", ST_F32, 0, NULL);
    st_declare(w, "none", ST_F32, 2, (int64_t[]){ 0, 5 });
    st_declare(w, "half", ST_BF16, 1, (int64_t[]){ 3 });
    CHECK(!st_write(w, longs, sizeof longs));
    CHECK(!st_write(w, a, 10) && !st_write(w, (char *)a + 10, 14));
    CHECK(!st_write(w, ints, sizeof ints) && !st_write(w, a, 4) && !st_write(w, half, 6));
    CHECK(access(path, F_OK));
    CHECK(!st_finish(w));

    s = st_open(path);
    CHECK(s && s->n == 6 && !strcmp(s->at[1].name, "a.weight") && !st_find(s, "a") && st_find(s, "none"));
    if (!s)
        return;
    CHECK(!st_float(st_find(s, "a.weight"), back) && !memcmp(a, back, sizeof a));
    CHECK(st_find(s, "a.weight")->ndim == 3 && st_find(s, "a.weight")->dim[2] == 2);
    CHECK(!st_float(st_find(s, "half"), back) && back[0] == 1.5f && back[1] == -2 && back[2] == float_of_bf16(half[2]));
    CHECK(!st_int(st_find(s, "ints"), iback) && !memcmp(ints, iback, sizeof ints));
    CHECK(!st_int(st_find(s, "longs"), iback) && iback[1] == -4);
    CHECK(!st_float(st_find(s, "scalar"), back) && back[0] == 1 && st_find(s, "scalar")->count == 1);
    CHECK(st_int(st_find(s, "half"), iback) == -1 && st_float(st_find(s, "ints"), back) == -1);
    CHECK((uintptr_t)s->at[0].data % 8 == 0);
    CHECK(st_metas(s) == 2 && !strcmp(st_meta(s, "format"), "pt") && !st_meta(s, "none"));
    CHECK(!strcmp(st_meta_at(s, 1, &value), "odd \"key\"") && !strcmp(value, "line\nbreak"));
    CHECK(!st_meta_at(s, 2, &value));
    st_close(s);

    w = st_create(in_dir("gone.safetensors"));
    st_declare(w, "a", ST_F32, 1, (int64_t[]){ 6 });
    CHECK(!st_write(w, a, 8));
    st_abort(w);
    CHECK(access(in_dir("gone.safetensors.tmp"), F_OK) && access(in_dir("gone.safetensors"), F_OK));
    CHECK(!st_create("/nonexistent/x.safetensors"));
}

/* Legal: no tensors, metadata or not. */
static void test_empty(void)
{
    struct st_writer *w = st_create(in_dir("empty.safetensors"));
    struct st *s;

    st_describe(w, "only", "this");
    CHECK(!st_finish(w));
    s = st_open(in_dir("empty.safetensors"));
    CHECK(s && s->n == 0 && st_metas(s) == 1 && !strcmp(st_meta(s, "only"), "this") && !st_find(s, "x"));
    st_close(s);
    CHECK(!*file_of("{}", 0) && !*file_of("{}    ", 0));
}

static void test_broken(void)
{
    static const char html[] = "<!DOCTYPE html>\n<html><body>404</body></html>";
    unsigned char huge[64] = { 0, 0, 0, 0, 0, 0, 0, 0x10 };
    char *bytes;
    size_t n = 0;

    bytes = file_read(in_dir("a.safetensors"), &n);
    CHECK(!*verdict(bytes, n));
    CHECK(strstr(verdict(bytes, n / 2), "cut short"));
    CHECK(strstr(verdict(bytes, n - 1), "cut short: expected"));
    CHECK(strstr(verdict(bytes, 20), "the header alone"));
    bytes = mem_grow(bytes, n + 8, 1);
    memset(bytes + n, 0, 8);
    CHECK(strstr(verdict(bytes, n + 8), "8 bytes after the last tensor"));
    for (size_t cut = 0; cut < n; cut++)
        CHECK(*verdict(bytes, cut));
    free(bytes);

    CHECK(strstr(verdict("\1\2\3\4", 4), "file of 4 bytes"));
    CHECK(strstr(verdict(huge, sizeof huge), "1152921504606846976"));
    CHECK(strstr(verdict(html, sizeof html - 1), "HTML"));
    CHECK(strstr(verdict("version https://git-lfs.github.com/spec/v1\n", 43), "LFS"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8), "overlap"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[12,16]}}", 16), "gap of 4"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8), "expected 12 bytes"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F9\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8), "dtype, found F9"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8), "list of counts"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\","
                         "\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0), "counts"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8), "data_offsets"));
    CHECK(strstr(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[2]}}", 0), "data_offsets"));
    CHECK(strstr(file_of("{\"a\":3}", 0), "expected an object"));
    CHECK(strstr(file_of("{\"a\":{},\"a\":{}}", 0), "twice"));
    CHECK(strstr(file_of("{\"__metadata__\":{\"a\":3}}", 0), "expected a string"));
    CHECK(strstr(file_of("[]", 0), "starts with '{'"));
    CHECK(strstr(file_of("{\"a\"", 0), "not valid JSON"));
}

static void write_one(const char *file, const char *name, float x)
{
    struct st_writer *w = st_create(in_dir(file));

    st_declare(w, name, ST_F32, 1, (int64_t[]){ 1 });
    CHECK(!st_write(w, &x, 4) && !st_finish(w));
}

static struct st *open_index(const char *index)
{
    CHECK(!file_write(in_dir("shards/model.safetensors.index.json"), index, strlen(index)));
    return st_open(in_dir("shards"));
}

static void test_shards(void)
{
    struct st *s;
    float x = 0;

    mkdir(in_dir("shards"), 0777);
    CHECK(!st_open(in_dir("shards")));
    write_one("shards/m-1.safetensors", "one", 1);
    write_one("shards/m-2.safetensors", "two", 2);
    s = open_index("{\"metadata\": {}, \"weight_map\": {\"two\": \"m-2.safetensors\", \"one\": \"m-1.safetensors\"}}");
    CHECK(s && s->n == 2 && !st_float(st_find(s, "two"), &x) && x == 2 && strstr(st_find(s, "one")->file, "m-1"));
    st_close(s);
    CHECK(!open_index("{\"weight_map\": {\"two\": \"m-1.safetensors\", \"one\": \"m-2.safetensors\"}}"));
    CHECK(!open_index("{\"weight_map\": {\"two\": \"m-2.safetensors\", \"one\": \"m-1.safetensors\", "
                      "\"x\": \"m-1.safetensors\"}}"));
    CHECK(!open_index("{\"weight_map\": {\"two\": \"m-2.safetensors\", \"one\": \"../m-1.safetensors\"}}"));
    CHECK(!open_index("{\"weight_map\": {\"two\": \"m-2.safetensors\", \"one\": \"m-3.safetensors\"}}"));
    CHECK(!open_index("{\"weight_map\": {\"two\": 3}}") && !open_index("{}"));
    write_one("shards/m-1.safetensors", "two", 1);
    CHECK(!open_index("{\"weight_map\": {\"two\": \"m-2.safetensors\", \"one\": \"m-1.safetensors\"}}"));
}

static void test_halves(void)
{
    CHECK(float_of_f16(0x3c00) == 1 && float_of_f16(0xc000) == -2 && float_of_f16(0x0001) == 0x1p-24f);
    CHECK(float_of_f16(0x7bff) == 65504 && isinf(float_of_f16(0xfc00)) && isnan(float_of_f16(0x7e00)));
    CHECK(bf16_of(1.00390625f) == 0x3f80 && bf16_of(1.01171875f) == 0x3f82 && isnan(float_of_bf16(bf16_of(NAN))));
}

static void test_published(void)
{
    char path[512];
    struct st *s;
    float head[2];
    const char *root = test_reference();

    if (!root)
        return;
    str_format(path, sizeof path, "%s/data/checkpoints/mamba2-char-shakespeare/hf-sharded-bf16", root);
    if (access(path, F_OK))
        return;
    s = st_open(path);
    CHECK(s && s->n == 38 && st_find(s, "backbone.norm_f.weight"));
    CHECK(s && st_find(s, "backbone.embeddings.weight")->dim[0] == 80);
    st_close(s);
    str_format(path, sizeof path, "%s/data/checkpoints/safetensors/candle/jfk-codes.safetensors", root);
    s = st_open(path);
    CHECK(s && s->n == 1 && s->at[0].type == ST_I64 && s->at[0].count == 1656 && st_float(s->at, head) == -1);
    st_close(s);
}

int main(void)
{
    CHECK(mkdtemp(dir));
    test_round_trip();
    test_empty();
    test_broken();
    test_shards();
    test_halves();
    test_published();
    for (size_t i = 0; i < 7; i++)
        unlink(in_dir((const char *[]){ "a.safetensors", "empty.safetensors", "stderr", "shards/m-1.safetensors",
                      "shards/m-2.safetensors", "shards/model.safetensors.index.json", "x" }[i]));
    rmdir(in_dir("shards"));
    CHECK(!rmdir(dir));
    return test_done("safetensors");
}
