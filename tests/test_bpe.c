/* test_bpe.c - tokenizers against real vectors, against naive definitions, and against broken files. */
#define _POSIX_C_SOURCE 200809L
#include "bpe.h"
#include "bpe_train.h"
#include "json.h"
#include "pretoken.h"
#include "test.h"
#include "utf8.h"
#include <utf8proc.h>

static uint32_t seed = 1;

static uint32_t draw(uint32_t n)
{
    seed = seed * 1664525 + 1013904223;
    return (seed >> 8) % n;
}

/* Text of n characters, many of them on some border: spaces, quotes, marks, halves of characters. */
static size_t draw_text(char *out, size_t n, bool valid)
{
    static const char *const bits[] = {
        " ", "  ", "\n", "'s", "'ll", "'", "a", "the", "Z", "9", "12", "\xC3\xA9", "e\xCC\x81", "\xCC\xA3",
        "\xC2\xA0", "\xE3\x80\x80", "\xE4\xB8\xAD", "\xEA\xB0\x81", "\xE1\x84\x80\xE1\x85\xA1",
        "\xF0\x9F\xA6\x99", "\xE2\x96\x81", "<|endoftext|>", "</s>", "\t", "!?", "\xD9\xA1", "\xE2\x85\xA7",
        "\xE2\x80\x99"
    };
    static const char *const broken[] = { "\x80", "\xC3", "\xE2\x96", "\xFF", "\xED\xA0\x80", "\xC0\xAF", "\xF5" };
    size_t k = 0;

    while (k + 16 < n) {
        const char *s = !valid && draw(6) == 0 ? broken[draw(LEN(broken))] : bits[draw(LEN(bits))];

        memcpy(out + k, s, strlen(s));
        k += strlen(s);
        if (!draw(40))
            out[k++] = 0;
    }
    return k;
}

static struct bpe_ids encode(struct bpe_encoder *e, const char *text, size_t n, unsigned flags)
{
    struct bpe_ids ids = { 0 };

    CHECK(bpe_encode(e, &ids, text, n, flags) == ids.n);
    return ids;
}

static bool same(struct bpe_ids a, struct bpe_ids b)
{
    return a.n == b.n && (!a.n || !memcmp(a.at, b.at, (size_t)a.n * sizeof *a.at));
}

/* All of the ids, one at a time; also that nothing is given out before its character is complete. */
static size_t decode(const struct bpe *b, struct bpe_ids ids, char **out)
{
    struct bpe_decoder d;
    const char *bytes;
    size_t n = 0, cap = 0, k;

    *out = NULL;
    bpe_decoder_init(&d, b);
    for (int64_t i = 0; i <= ids.n; i++) {
        k = i < ids.n ? bpe_decode(&d, ids.at[i], &bytes) : bpe_decode_end(&d, &bytes);
        if (cap < n + k + 1)
            *out = mem_grow(*out, cap = 2 * (n + k + 1), 1);
        memcpy(*out + n, bytes, k);
        n += k;
    }
    bpe_decoder_free(&d);
    return n;
}

static void check_round_trip(const struct bpe *b, struct bpe_encoder *e, const char *text, size_t n)
{
    struct bpe_ids ids = encode(e, text, n, 0);
    char *back;
    size_t k = decode(b, ids, &back);

    CHECK(k == n && !memcmp(back, text, n));
    for (int64_t i = 0; i < ids.n; i++)
        CHECK(!bpe_is_control(b, ids.at[i]));
    free(back);
    bpe_ids_free(&ids);
}

/* Encoding parts, cut where bpe_cut allows it, is encoding the whole. Returns how many cuts there were. */
static int check_parts(const struct bpe *b, struct bpe_encoder *e, const char *text, size_t n)
{
    struct bpe_ids whole = encode(e, text, n, 0), parts = { 0 };
    size_t at = 0, want = 1 + draw(40), k;
    int cuts = 0;

    while (at < n) {
        size_t left = n - at < want ? n - at : want;

        k = left < n - at ? bpe_cut(b, text + at, left) : left;
        if (!k) {
            want *= 2;
            continue;
        }
        CHECK(bpe_encode(e, &parts, text + at, k, at ? BPE_CONTINUES : 0) >= 0);
        cuts += at > 0;
        at += k;
        want = 1 + draw(40);
    }
    CHECK(same(whole, parts));
    bpe_ids_free(&whole);
    bpe_ids_free(&parts);
    return cuts;
}

/* Small tokenizers of our own: trained, or spelled out. */
static struct text trained(int64_t vocab)
{
    static const char corpus[] = "the cat sat on the mat, the catty cat; that's what they'll say: the mat's the cat's. "
        "aaaa aaaaa aaaaaaa bbbb abab ababab \xC3\xA9t\xC3\xA9 \xC3\xA9t\xC3\xA9s 1234 1234 12 12\n\n\n  the  mat\n\n";
    struct bpe_words *w = bpe_words_open();
    struct text json = { 0 };
    int64_t tokens;

    bpe_words_add(w, corpus, sizeof corpus - 1);
    bpe_train(w, vocab, &json, &tokens, NULL);
    bpe_words_close(w);
    return json;
}

static struct bpe *small_bytes(void)
{
    struct text json = trained(300);
    struct bpe *b = bpe_parse(json.at, json.n, "trained");

    CHECK(b);
    text_free(&json);
    return b;
}

/* <unk> <s> </s>, 256 bytes from 3, then the letters and merges given; `extra` goes before the model. */
static struct text pieces_json(const char *extra, const char *const *letters, int n, const char *merges,
                               const char *more)
{
    struct text t = { 0 };
    int id = 3;

    text_add(&t,
             "{ %s, \"model\": { \"type\": \"BPE\", \"unk_token\": \"<unk>\", %s "
             "\"vocab\": { \"<unk>\": 0, \"<s>\": 1, \"</s>\": 2",
             extra, more);
    for (int i = 0; i < 256; i++)
        text_add(&t, ", \"<0x%02X>\": %d", i, id++);
    for (int i = 0; i < n; i++)
        text_add(&t, ", \"%s\": %d", letters[i], id++);
    text_add(&t, "}, \"merges\": [ %s ] } }", merges);
    return t;
}

#define SPECIAL "\"added_tokens\": [{\"id\": 1, \"content\": \"<s>\", \"special\": true, \"normalized\": false}, " \
                "{\"id\": 2, \"content\": \"</s>\", \"special\": true, \"normalized\": false}]"
#define MARKS "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [" \
              "{\"type\": \"Prepend\", \"prepend\": \"\xE2\x96\x81\"}, " \
              "{\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"\xE2\x96\x81\"}]}"
#define SHOWN "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [" \
              "{\"type\": \"Replace\", \"pattern\": {\"String\": \"\xE2\x96\x81\"}, \"content\": \" \"}, " \
              "{\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, " \
              "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}]}"
#define BOS "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [" \
            "{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, " \
            "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}]}"

static const char *const letters[] = { "\xE2\x96\x81", "a", "b", "ab", ("\xE2\x96\x81" "ab"),
    "\xE2\x96\x81\xE2\x96\x81", "bb" };
static const char letter_merges[] =
    "\"a b\", [\"\xE2\x96\x81\", \"ab\"], \"\xE2\x96\x81 \xE2\x96\x81\", [\"b\", \"b\"]";

static struct bpe *small_pieces(const char *more)
{
    struct text json = pieces_json(SPECIAL ", " MARKS ", " SHOWN ", " BOS, letters, LEN(letters),
                                   letter_merges, more);
    struct bpe *b = bpe_parse(json.at, json.n, "pieces");

    CHECK(b);
    text_free(&json);
    return b;
}

/* Space is 259, a 260, b 261, ab 262, _ab 263, __ 264, bb 265. */
static void test_pieces(void)
{
    static const struct { const char *text; int32_t id[8]; int n; } cases[] = {
        { "ab", { 263 }, 1 }, { " ab", { 259, 263 }, 2 }, { "abb", { 263, 261 }, 2 },
        { "bb", { 259, 265 }, 2 }, { "", { 0 }, 0 }, { "  ", { 264, 259 }, 2 },
        { "a\n", { 259, 260, 3 + '\n' }, 3 }, { "a</s>", { 259, 260, 63, 50, 118, 65 }, 6 },
        { "\xC3\xA9", { 259, 3 + 0xC3, 3 + 0xA9 }, 3 }, { "\xFF" "ab", { 259, 3 + 0xFF, 262 }, 3 },
    };
    struct bpe *b = small_pieces("\"byte_fallback\": true,");
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids ids;

    CHECK(bpe_vocab(b) == 266 && bpe_eot(b) == 2 && bpe_bos(b) == 1 && bpe_can_cut(b));
    for (size_t i = 0; i < LEN(cases); i++) {
        ids = encode(e, cases[i].text, strlen(cases[i].text), 0);
        CHECK(ids.n == cases[i].n && !memcmp(ids.at ? (void *)ids.at : "", cases[i].id,
                                             sizeof(int32_t) * (size_t)cases[i].n));
        bpe_ids_free(&ids);
    }
    ids = encode(e, "a</s> ab", 8, BPE_CONTROL);         /* what follows a token is prefixed again */
    CHECK(ids.n == 5 && ids.at[1] == 260 && ids.at[2] == 2 && ids.at[3] == 259 && ids.at[4] == 263);
    bpe_ids_free(&ids);
    ids = encode(e, "ab\0ab", 5, 0);
    CHECK(ids.n == 3 && ids.at[1] == 3 && bpe_nuls(e) == 1 && bpe_invalid(e) == 1);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);

    b = small_pieces("\"fuse_unk\": true,");
    e = bpe_encoder_open(b);
    ids = encode(e, "azz\xC3\xA9" "b", 6, 0);
    CHECK(ids.n == 4 && ids.at[2] == 0 && ids.at[3] == 261);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);
}

/* Merging as it is defined: the lowest rank, leftmost first, until there is none. */
static int64_t merge_naive(const struct bpe *b, const struct json *merges, const char *text, size_t n,
                           int32_t *out)
{
    char (*symbol)[64] = mem_new(n, sizeof *symbol);

    for (size_t i = 0; i < n; i++)
        symbol[i][0] = text[i];
    while (true) {
        size_t at = n;

        for (struct json *m = json_first(merges); m && at == n; m = json_next(m)) {
            const char *space = strchr(json_text(m), ' ');
            size_t left = (size_t)(space - json_text(m));

            for (size_t i = 0; i + 1 < n && at == n; i++)
                if (strlen(symbol[i]) == left && !memcmp(symbol[i], json_text(m), left) &&
                    !strcmp(symbol[i + 1], space + 1))
                    at = i;
        }
        if (at == n)
            break;
        memcpy(symbol[at] + strlen(symbol[at]), symbol[at + 1], strlen(symbol[at + 1]) + 1);
        memmove(symbol[at + 1], symbol[at + 2], (n - at - 2) * sizeof *symbol);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = bpe_id(b, symbol[i]);
    free(symbol);
    return (int64_t)n;
}

static void test_merging(void)
{
    struct text text = trained(290);
    struct json *root = json_parse(text.at, text.n, "trained");
    struct bpe *b = bpe_parse(text.at, text.n, "trained");
    struct bpe_encoder *e = bpe_encoder_open(b);

    for (int i = 0; i < 200; i++) {
        char word[150];
        int32_t want[150];
        size_t n = 1 + draw(i < 100 ? 48 : 149);         /* both ways to merge, and the cache */
        struct bpe_ids ids;
        int64_t k;

        for (size_t c = 0; c < n; c++)
            word[c] = "abthe"[draw(i % 2 ? 2 : 5)];
        ids = encode(e, word, n, 0);
        k = merge_naive(b, json_at(json_at(root, "model"), "merges"), word, n, want);
        CHECK(ids.n == k && !memcmp(ids.at, want, (size_t)k * sizeof *want));
        bpe_ids_free(&ids);
    }
    bpe_encoder_close(e);
    bpe_close(b);
    json_free(root);
    text_free(&text);
}

/* A megabyte of one letter must not take time that grows with its square. */
static void test_long_word(void)
{
    struct bpe *b = small_bytes();
    struct bpe_encoder *e = bpe_encoder_open(b);
    size_t n = 1 << 20;
    char *text = mem_new(n, 1);
    double start = time_now();

    memset(text, 'a', n);
    check_round_trip(b, e, text, n);
    memset(text, ' ', n);
    check_round_trip(b, e, text, n);
    CHECK(time_now() - start < 20);
    free(text);
    bpe_encoder_close(e);
    bpe_close(b);
}

static void test_bytes(void)
{
    struct bpe *b = small_bytes();
    struct bpe_encoder *e = bpe_encoder_open(b);
    char text[512];
    struct bpe_ids ids;
    size_t n;
    int cuts = 0;

    CHECK(bpe_vocab(b) > 270 && bpe_eot(b) == 0 && bpe_bos(b) == -1 && bpe_is_control(b, 0) &&
          !bpe_is_control(b, 1));
    for (int i = 0; i < 2000; i++) {
        n = draw_text(text, 20 + draw(400), i % 2);
        check_round_trip(b, e, text, n);
        cuts += check_parts(b, e, text, n);
    }
    CHECK(cuts > 500);
    for (int i = 0; i < 256; i++)
        text[i] = (char)i;
    check_round_trip(b, e, text, 256);
    ids = encode(e, "a <|endoftext|> b", 17, BPE_CONTROL);
    CHECK(ids.n == 5 && ids.at[2] == 0);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);

    e = bpe_encoder_open(b);
    ids = encode(e, "a\xC3 \xE2\x96\xC3\xA9\0\xFF", 9, 0);
    CHECK(bpe_invalid(e) == 4 && bpe_nuls(e) == 1);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);
}

/* A character that spans tokens comes out whole, and what is broken comes out too, in the end. */
static void test_decoder(void)
{
    struct text json = trained(257);
    struct bpe *b = bpe_parse(json.at, json.n, "trained");
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids ids = encode(e, "\xF0\x9F\xA6\x99z\xE2\x96z\xC3", 9, 0);
    static const size_t want[] = { 0, 0, 0, 4, 1, 0, 0, 3, 0 };
    struct bpe_decoder d;
    const char *bytes;

    CHECK(bpe_vocab(b) == 257 && ids.n == 9);
    bpe_decoder_init(&d, b);
    for (size_t i = 0; i < LEN(want); i++)
        CHECK(bpe_decode(&d, ids.at[i], &bytes) == want[i]);
    CHECK(bpe_decode(&d, 5000, &bytes) == 0 && bpe_decode(&d, -1, &bytes) == 0);
    CHECK(bpe_decode_end(&d, &bytes) == 1 && *bytes == '\xC3' && bpe_decode_end(&d, &bytes) == 0);
    bpe_decoder_free(&d);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);
    text_free(&json);
}

/* The splitter by hand against the expression that it stands for. */
static bool check_pieces(const struct regex *r, struct regex_room *room, const char *text, size_t n)
{
    size_t at = 0, start = 0, end = 0;
    bool same = true;

    while (at < n && same) {
        size_t k = pretoken_piece(text + at, text + n);

        same = regex_find(r, room, text, n, at, &start, &end) == 1 && start == at && end == at + k;
        at += k;
    }
    CHECK(same);
    return same;
}

static void test_splitter(void)
{
    struct regex *r = regex_open(pretoken_gpt2, "test"), *unassigned = regex_open("\\p{Cn}", "test");
    struct regex_room *room = regex_room_open();
    char text[400];
    size_t start, end;

    pretoken_init();
    for (int i = 0; i < 3000; i++)
        check_pieces(r, room, text, draw_text(text, 17 + draw(380), true));
    for (uint32_t code = 1; code < 0x40000; code++) {        /* every character among others */
        int n = 0, k;

        if ((code >= 0xD800 && code < 0xE000) || code == 0x180E)    /* white space to PCRE2 */
            continue;
        text[n++] = 'a';
        n += k = utf8_write(text + n, code);
        text[n++] = ' ';
        n += utf8_write(text + n, code);
        text[n++] = '1';
        if (utf8proc_category((int32_t)code) == UTF8PROC_CATEGORY_CN ||
            regex_find(unassigned, room, text + 1, (size_t)k, 0, &start, &end))
            continue;                                /* one of the two libraries is newer */
        if (!check_pieces(r, room, text, (size_t)n))
            break;
    }
    regex_close(unassigned);
    regex_close(r);
    regex_room_close(room);
}

/* What the normalizer makes equal encodes equally. */
static void test_normalizer(void)
{
    static const char *const pairs[][2] = {
        { "e\xCC\x81t\xC3\xA9", "\xC3\xA9te\xCC\x81" },
        { "\xE1\x84\x92\xE1\x85\xA1\xE1\x86\xAB", "\xED\x95\x9C" },
        { "a\xCC\xA3\xCC\x81", "a\xCC\x81\xCC\xA3" }, { "\xE2\x84\xAB", "\xC3\x85" },
    };
    struct text json = trained(300), edited = { 0 };
    char *null = strstr(json.at, "\"normalizer\": null");
    struct bpe *b;
    struct bpe_encoder *e;

    text_add(&edited, "%.*s\"normalizer\": {\"type\": \"NFC\"}%s", (int)(null - json.at), json.at, null + 18);
    b = bpe_parse(edited.at, edited.n, "NFC");
    e = bpe_encoder_open(b);
    for (size_t i = 0; i < LEN(pairs); i++) {
        struct bpe_ids x = encode(e, pairs[i][0], strlen(pairs[i][0]), 0);
        struct bpe_ids y = encode(e, pairs[i][1], strlen(pairs[i][1]), 0);

        CHECK(same(x, y));
        bpe_ids_free(&x);
        bpe_ids_free(&y);
    }
    for (int i = 0; i < 1000; i++) {
        char text[300];

        check_parts(b, e, text, draw_text(text, 20 + draw(200), i % 2));
    }
    bpe_encoder_close(e);
    bpe_close(b);
    text_free(&json);
    text_free(&edited);
}

int main(void)
{
    test_pieces();
    test_merging();
    test_long_word();
    test_bytes();
    test_decoder();
    test_splitter();
    test_normalizer();
    return test_done("bpe");
}
