/* test_bpe_train.c - a learned vocabulary against learning as it is defined, and against itself. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_train.h"
#include "bpe.h"
#include "pretoken.h"
#include "test.h"

static struct text train(const char *text, size_t n, int64_t vocab, int64_t *tokens)
{
    struct bpe_words *w = bpe_words_open();
    struct text json = { 0 };

    bpe_words_add(w, text, n);
    bpe_train(w, vocab, &json, tokens, NULL);
    bpe_words_close(w);
    return json;
}

/* The pieces of a text as lists of ids; 257 and up are learned. */
enum { WORDS = 2000, LONGEST = 40 };
struct piece { int32_t id[LONGEST]; int n; };

static int32_t byte_id(unsigned char byte)
{
    int32_t id = 1;

    for (int code = 33; code < 324; code++)          /* the order of the characters that spell bytes */
        if (code < 127 || (code > 160 && code != 173)) {
            int k = code - 256, b = code < 256 ? code : k < 33 ? k : k < 67 ? k + 94 : 173;

            if (b == byte)
                return id;
            id++;
        }
    return -1;
}

/* The most frequent pair, of equals the one with the smaller left and then right id. Its count. */
static int64_t best_pair(const struct piece *p, int n, int32_t top, int32_t best[2])
{
    static int32_t count[600][600];
    int32_t most = 0;

    memset(count, 0, sizeof count);
    for (int i = 0; i < n; i++)
        for (int k = 0; k + 1 < p[i].n; k++)
            count[p[i].id[k]][p[i].id[k + 1]]++;
    for (int32_t a = 0; a < top; a++)
        for (int32_t b = 0; b < top; b++)
            if (count[a][b] > most) {
                most = count[a][b];
                best[0] = a;
                best[1] = b;
            }
    return most;
}

static void join(struct piece *p, const int32_t pair[2], int32_t id)
{
    int to = 0;

    for (int k = 0; k < p->n; k++) {
        bool here = k + 1 < p->n && p->id[k] == pair[0] && p->id[k + 1] == pair[1];

        p->id[to++] = here ? id : p->id[k];
        k += here;
    }
    p->n = to;
}

/* Counts everything again for every merge. The strings of tokens tell whether both learned the same. */
static void test_definition(void)
{
    static const char *const parts[] = { "the", "cat", "sat", "on", "that", "mat", "aaaa", "aaa", "abab", "ba",
                                         "\xC3\xA9t", "then" };
    static struct piece piece[WORDS];
    static char spelled[600][64];
    char text[8000];
    size_t n = 0, k;
    int words = 0;
    int64_t tokens;
    int32_t top = 257;
    struct text json;
    struct bpe *b;
    uint32_t seed = 7;

    while (n < sizeof text - 20) {
        seed = seed * 1664525 + 1013904223;
        n += (size_t)snprintf(text + n, 20, "%s%s", parts[(seed >> 16) % LEN(parts)], (seed >> 28) < 9 ? " " : "");
    }
    pretoken_init();
    for (const char *p = text; p < text + n; p += k, words++) {
        k = pretoken_piece(p, text + n);
        REQUIRE(words < WORDS && k < LONGEST);
        piece[words].n = (int)k;
        for (size_t i = 0; i < k; i++)
            piece[words].id[i] = byte_id((unsigned char)p[i]);
    }
    for (int i = 0; i < 256; i++)
        spelled[byte_id((unsigned char)i)][0] = (char)i;
    json = train(text, n, 400, &tokens);
    b = bpe_parse(json.at, json.n, "trained");
    CHECK(b && tokens > 300);
    for (int32_t best[2]; top < 400 && best_pair(piece, words, top, best) > 1; top++) {
        struct bpe_decoder d;
        const char *bytes;
        char both[sizeof *spelled];

        snprintf(both, sizeof both, "%.31s%.31s", spelled[best[0]], spelled[best[1]]);
        memcpy(spelled[top], both, sizeof both);
        for (int i = 0; i < words; i++)
            join(&piece[i], best, top);
        bpe_decoder_init(&d, b);
        k = bpe_decode(&d, top, &bytes);
        k += bpe_decode_end(&d, &bytes);             /* what a token holds of an unfinished character */
        CHECK(k == strlen(spelled[top]) && !memcmp(d.at, spelled[top], k));
        bpe_decoder_free(&d);
    }
    CHECK(top == tokens && tokens == bpe_vocab(b));
    bpe_close(b);
    text_free(&json);
}

/* Encoding the text it learned from uses what it learned, and is the same however the text was given. */
static void test_itself(void)
{
    static const char text[] = "low lower lowest low low newer newest wide wider widest <|endoftext|> low";
    int64_t tokens, again;
    struct text one = train(text, sizeof text - 1, 300, &tokens), two;
    struct bpe_words *w = bpe_words_open();
    struct bpe *b = bpe_parse(one.at, one.n, "one");
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids ids = { 0 };

    bpe_words_add(w, text, 3);                       /* cut at spaces: pieces are the same */
    bpe_words_add(w, text + 3, sizeof text - 1 - 3);
    CHECK(bpe_words_distinct(w) == 12);
    two = (struct text){ 0 };
    bpe_train(w, 300, &two, &again, NULL);
    CHECK(again == tokens && one.n == two.n && !memcmp(one.at, two.at, one.n));
    CHECK(tokens < 300 && bpe_eot(b) == 0);          /* no pair occurs twice any more */
    CHECK(bpe_encode(e, &ids, " low", 4, 0) == 1 && bpe_encode(e, &ids, "<|endoftext|>", 13, 0) > 1);
    for (int64_t i = 0; i < ids.n; i++)
        CHECK(!bpe_is_control(b, ids.at[i]));
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    bpe_close(b);
    bpe_words_close(w);
    text_free(&one);
    text_free(&two);
}

/* The smallest vocabulary, no text at all, bytes that are not UTF-8, and a piece that is too long. */
static void test_ends(void)
{
    char *longest = mem_new(BPE_WORD_MOST + 2, 1);
    struct bpe_words *w = bpe_words_open();
    int64_t tokens;
    struct text json = train("", 0, 257, &tokens);
    struct bpe *b = bpe_parse(json.at, json.n, "least");

    CHECK(tokens == 257 && b && bpe_vocab(b) == 257);
    bpe_close(b);
    text_free(&json);
    json = train("\xFF\xFE\xFF\xFE \xFF\xFE\0\0\0\0", 11, 280, &tokens);
    b = bpe_parse(json.at, json.n, "bytes");
    CHECK(b && tokens > 257);
    bpe_close(b);
    text_free(&json);

    memset(longest, 'a', BPE_WORD_MOST + 1);
    bpe_words_add(w, longest, BPE_WORD_MOST + 1);
    CHECK(bpe_words_skipped(w) == 1 && !bpe_words_distinct(w));
    bpe_words_add(w, longest, BPE_WORD_MOST);        /* its pairs are all one pair: joined 9 times, to 1024 */
    json = (struct text){ 0 };
    bpe_train(w, 300, &json, &tokens, NULL);
    CHECK(bpe_words_distinct(w) == 1 && tokens == 257 + 9);
    text_free(&json);
    bpe_words_close(w);
    free(longest);
}

int main(void)
{
    test_definition();
    test_itself();
    test_ends();
    return test_done("bpe_train");
}
