/* test_bpe_files.c - tokenizer.json files that must be refused, and published ones against the ids that
 * the tools of their authors give. */
#define _POSIX_C_SOURCE 200809L
#include "bpe.h"
#include "json.h"
#include "sha256.h"
#include "test.h"
#include <fcntl.h>
#include <unistd.h>

/* What one call prints on stderr, which is a line or nothing. */
static struct bpe *parse_saying(const char *json, char *said, size_t size)
{
    char name[] = "/tmp/test_bpe_XXXXXX";
    int kept = dup(2), fd = mkstemp(name);
    struct bpe *b;
    ssize_t n;

    REQUIRE(kept >= 0 && fd >= 0);
    fflush(stderr);
    dup2(fd, 2);
    b = bpe_parse(json, strlen(json), "T");
    fflush(stderr);
    dup2(kept, 2);
    n = pread(fd, said, size - 1, 0);
    said[n > 0 ? n : 0] = 0;
    close(fd);
    close(kept);
    unlink(name);
    return b;
}

/* The parts of a small file; any of them can be replaced. Vocabulary: 256 byte letters come from `bytes`. */
struct file { const char *model, *added, *normalizer, *pre, *post, *decoder, *vocab, *merges; };

static char *build(struct file f)
{
    struct text t = { 0 };
    int id = 0;

    text_add(&t, "{\"added_tokens\": %s, \"normalizer\": %s, \"pre_tokenizer\": %s, ", f.added ? f.added : "[]",
             f.normalizer ? f.normalizer : "null",
             f.pre ? f.pre : "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}");
    text_add(&t, "\"post_processor\": %s, \"decoder\": %s, \"model\": {%s \"vocab\": {", f.post ? f.post : "null",
             f.decoder ? f.decoder : "null", f.model ? f.model : "");
    for (int code = 33; code < 324; code++)
        if (code < 127 || (code > 160 && code != 173)) {
            char s[3] = { (char)code, 0, 0 };

            if (code >= 128) {
                s[0] = (char)(0xC0 | code >> 6);
                s[1] = (char)(0x80 | (code & 63));
            }
            text_add(&t, "%s", id ? ", " : "");
            text_string(&t, s, strlen(s));
            text_add(&t, ": %d", id++);
        }
    REQUIRE(id == 256);
    text_add(&t, "%s}, \"merges\": %s}}", f.vocab ? f.vocab : "", f.merges ? f.merges : "[]");
    return t.at;
}

static const struct { struct file f; const char *says; } refused[] = {
    { { .model = "\"type\": \"Unigram\"," }, "model: type \"Unigram\" is not supported" },
    { { .model = "\"dropout\": 0.1," }, "dropout 0.1" },
    { { .model = "\"end_of_word_suffix\": \"</w>\"," }, "end_of_word_suffix \"</w>\"" },
    { { .model = "\"continuing_subword_prefix\": \"##\"," }, "continuing_subword_prefix \"##\"" },
    { { .model = "\"unk_token\": \"<unk>\"," }, "unk_token \"<unk>\" is not in the vocabulary" },
    { { .model = "\"byte_fallback\": 3," }, "byte_fallback: expected true or false" },
    { { .normalizer = "{\"type\": \"Lowercase\"}" }, "normalizer: type \"Lowercase\" is not supported" },
    { { .normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Nmt\"}]}" },
      "normalizer: type \"Nmt\"" },
    { { .normalizer = "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"x\"}" },
      "an empty pattern" },
    { { .normalizer = "[]" }, "normalizer: expected an object with a type" },
    { { .pre = "{\"type\": \"BertPreTokenizer\"}" },
      "pre_tokenizer: type \"BertPreTokenizer\" is not supported" },
    { { .pre = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": \"Isolated\"}" },
      "regex \"(\": missing closing parenthesis" },
    { { .pre = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a\"}, \"behavior\": \"Odd\"}" },
      "behavior \"Odd\"" },
    { { .pre = "null" }, "neither byte_fallback nor unk_token" },
    { { .decoder = "{\"type\": \"WordPiece\"}" }, "decoder: type \"WordPiece\" is not supported" },
    { { .decoder = "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}" },
      "after Fuse" },
    { { .post = "{\"type\": \"BertProcessing\"}" },
      "post_processor: type \"BertProcessing\" is not supported" },
    { { .post = "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}]}" },
      "\"<s>\" is not in the vocabulary" },
    { { .vocab = ", \"ab\": 300000" }, "ab: id 300000 is not in a file of this size" },
    { { .vocab = ", \"ab\": -1" }, "id -1" },
    { { .vocab = ", \"ab\": 1.5" }, "id 1.5 is not a whole number" },
    { { .vocab = ", \"ab\": 8666666666666666666666666666" }, "is not in a file of this size" },
    { { .vocab = ", \"ab\": NaN" }, "is not in a file of this size" },
    { { .vocab = ", \"ab\": 0" }, "two tokens have id 0" },
    { { .vocab = ", \"ab\": 256, \"ab\": 257" }, "key \"ab\" appears twice" },
    { { .merges = "[\"a b\"]" }, "merge 0: \"ab\" is not in the vocabulary" },
    { { .merges = "[\"a zz\"]" }, "merge 0: \"zz\" is not in the vocabulary" },
    { { .merges = "[\"a\"]" }, "merge 0: expected" },
    { { .merges = "[\"a b c\"]" }, "merge 0: expected" },
    { { .merges = "[[\"a\", \"b\", \"c\"]]" }, "merge 0: expected" },
    { { .merges = "7" }, "expected a list of merges" },
    { { .added = "[{\"id\": 5, \"content\": \"<s>\"}]" }, "has the id 5 of another token" },
    { { .added = "[{\"id\": 300, \"content\": \"a\"}]" }, "has id 300 here and" },
    { { .added = "[{\"id\": 256, \"content\": \"\"}]" }, "empty content" },
    { { .added = "[7]" }, "expected objects with an id" },
    { { .added = "[{\"id\": 64, \"content\": \"a\", \"special\": true}]" },
      "control token \"a\" can also come from text" },
};

static void test_refusals(void)
{
    char said[512];

    for (size_t i = 0; i < LEN(refused); i++) {
        char *json = build(refused[i].f);
        struct bpe *b = parse_saying(json, said, sizeof said);

        CHECK(!b);
        CHECK(!strncmp(said, "error: T", 8) && strchr(said, '\n') == said + strlen(said) - 1);
        if (!strstr(said, refused[i].says))
            printf("case %zu says %s", i, said);
        CHECK(strstr(said, refused[i].says));
        bpe_close(b);
        free(json);
    }
    CHECK(!parse_saying("", said, sizeof said) && !parse_saying("[]", said, sizeof said) &&
          !parse_saying("{}", said, sizeof said));
}

/* Every prefix of a good file is refused, and so is a byte of it that is missing. */
static void test_torn(void)
{
    char *json = build((struct file){ .vocab = ", \"ab\": 256", .merges = "[\"a b\"]" }), said[512];
    size_t n = strlen(json);
    struct bpe *b = parse_saying(json, said, sizeof said);

    CHECK(b && !said[0] && bpe_vocab(b) == 257 && bpe_eot(b) == -1);
    bpe_close(b);
    for (size_t k = 0; k < n; k += 1 + n / 100) {
        char byte = json[k];

        json[k] = 0;
        b = parse_saying(json, said, sizeof said);
        CHECK(!b && said[0]);
        json[k] = byte;
    }
    free(json);
}

/* Added tokens: spaces they take, neighbours they need, longest first, and byte letters that merge. */
static void test_added(void)
{
    static const char added[] = "["
        "{\"id\": 256, \"content\": \"<a>\", \"lstrip\": true}, {\"id\": 257, \"content\": \"<b>\", \"rstrip\": true},"
        "{\"id\": 258, \"content\": \"cat\", \"single_word\": true}, {\"id\": 259, \"content\": \"  \"},"
        "{\"id\": 260, \"content\": \"   \"}, {\"id\": 261, \"content\": \"<|endoftext|>\", \"special\": true}]";
    static const struct { const char *text; unsigned flags; int32_t id[9]; int n; } cases[] = {
        { "x <a>y", 0, { 87, 256, 88 }, 3 }, { "x<b> \ty", 0, { 87, 257, 88 }, 3 }, { "cat", 0, { 258 }, 1 },
        { "cats", 0, { 66, 64, 83, 82 }, 4 }, { "!cat?", 0, { 0, 258, 30 }, 3 },
        { "     x", 0, { 260, 259, 87 }, 3 },
        { "x<|endoftext|>", BPE_CONTROL, { 87, 261 }, 2 }, { "<|", 0, { 27, 91 }, 2 },
    };
    char *json = build((struct file){ .added = added });
    struct bpe *b = bpe_parse(json, strlen(json), "added");
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids ids = { 0 };

    CHECK(bpe_vocab(b) == 262 && bpe_eot(b) == 261 && !bpe_can_cut(b));       /* rstrip reaches over a cut */
    for (size_t i = 0; i < LEN(cases); i++) {
        ids.n = 0;
        CHECK(bpe_encode(e, &ids, cases[i].text, strlen(cases[i].text), cases[i].flags) == cases[i].n);
        CHECK(!memcmp(ids.at, cases[i].id, sizeof(int32_t) * (size_t)cases[i].n));
    }
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);
    free(json);
}

static char *reference_file(const char *format, const char *name, size_t *n)
{
    char path[4096];

    str_format(path, sizeof path, format, test_reference(), name);
    return file_read(path, n);
}

static struct bpe *reference_open(const char *name)
{
    char path[4096];
    struct bpe *b;

    str_format(path, sizeof path, "%s/data/tokenizers/%s/tokenizer.json", test_reference(), name);
    b = bpe_open(path);
    CHECK(b);
    return b;
}

/* Texts with a line between them, and a line of ids for each; the last of the 47 is empty. */
static void test_vectors(const char *name, const char *vectors)
{
    static const char between[] = "\n__ggml_vocab_test__\n";
    size_t n, m;
    char *texts = reference_file("%s/data/tokenizers/llamacpp-vectors/ggml-vocab-%s.gguf.inp", vectors, &n);
    char *ids = reference_file("%s/data/tokenizers/llamacpp-vectors/ggml-vocab-%s.gguf.out", vectors, &m);
    struct bpe *b = reference_open(name);
    struct bpe_encoder *e = bpe_encoder_open(b);
    char *text = texts, *line = ids;
    int count = 0;

    for (; text && line; count++) {
        char *end = strstr(text, between), *stop = strchr(line, '\n');
        size_t length = end ? (size_t)(end - text) : strlen(text);
        struct bpe_ids got = { 0 };
        int64_t k = 0;

        CHECK(bpe_encode(e, &got, text, length, 0) >= 0);
        if (stop)
            *stop = 0;
        for (char *p = line; *p == ' '; k++) {
            long id = strtol(p, &p, 10);

            CHECK(k < got.n && got.at[k] == id);
        }
        CHECK(k == got.n);
        bpe_ids_free(&got);
        text = end ? end + strlen(between) : NULL;
        line = stop ? stop + 1 : NULL;
    }
    CHECK(count == 47 && !text && !line);
    bpe_encoder_close(e);
    bpe_close(b);
    free(texts);
    free(ids);
}

/* Whole files: the number of ids, their hash, and the way back. */
static void test_file(const char *name, const char *file, int64_t want, const char *hash)
{
    struct bpe *b = reference_open(name);
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids ids = { 0 };
    struct bpe_decoder d;
    size_t n, at = 0, k;
    char *text = reference_file("%s/data/%s", file, &n), hex[65];
    const char *bytes;
    bool same = true;

    CHECK(bpe_encode(e, &ids, text, n, 0) == want);
    sha256_hex(ids.at, (size_t)ids.n * sizeof *ids.at, hex);
    CHECK(!strcmp(hex, hash));
    bpe_decoder_init(&d, b);
    for (int64_t i = 0; i <= ids.n; i++, at += k) {
        k = i < ids.n ? bpe_decode(&d, ids.at[i], &bytes) : bpe_decode_end(&d, &bytes);
        same = same && at + k <= n && !memcmp(text + at, bytes, k);
    }
    CHECK(same && at == n);
    bpe_decoder_free(&d);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);
    free(text);
}

static void test_files(void)
{
    size_t n;
    char *text = reference_file("%s/data/tokenizers/%s", "golden_encodings.json", &n);
    struct json *root = json_parse(text, n, "golden_encodings.json");

    CHECK(json_count(root) == 9);
    for (struct json *j = json_first(root); j; j = json_next(j)) {
        const char *name = "", *file = "", *hash = "";
        int64_t tokens = 0;

        CHECK(json_string(j, "tokenizer", &name) == 1 && json_string(j, "file", &file) == 1 &&
              json_int(j, "n_tokens", &tokens) == 1 && json_string(j, "sha256_int32le", &hash) == 1);
        test_file(strncmp(name, "llama2", 6) ? name : "llama2", file, tokens, hash);
    }
    json_free(root);
    free(text);
}

int main(void)
{
    test_refusals();
    test_torn();
    test_added();
    if (!test_reference())
        return test_skip("bpe_files", "the published tokenizers: PALIMPSA_REFERENCE is not set");
    test_vectors("gpt2", "gpt-2");
    test_vectors("gpt-neox-20b", "mpt");
    test_vectors("llama2", "llama-spm");
    test_files();
    return test_done("bpe_files");
}
