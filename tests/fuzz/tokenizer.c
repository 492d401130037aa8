/* tokenizer.c - a small tokenizer.json and a text, split at a NUL; what is read encodes and decodes
 * any text, in one piece and cut in two, to the same ids. */
#include "bpe.h"

static void encode(struct bpe *b, const char *text, size_t n)
{
    struct bpe_encoder *e = bpe_encoder_open(b);
    struct bpe_ids whole = { 0 }, parts = { 0 };
    struct bpe_decoder d;
    size_t cut = bpe_can_cut(b) ? bpe_cut(b, text, n) : 0;
    const char *bytes;

    REQUIRE(cut == 0 || cut < n);
    if (bpe_encode(e, &whole, text, n, 0) >= 0 && cut && bpe_encode(e, &parts, text, cut, 0) >= 0 &&
        bpe_encode(e, &parts, text + cut, n - cut, BPE_CONTINUES) >= 0)
        REQUIRE(whole.n == parts.n && !memcmp(whole.at, parts.at, (size_t)whole.n * sizeof *whole.at));
    bpe_decoder_init(&d, b);
    for (int64_t i = 0; i < whole.n; i++) {
        REQUIRE(whole.at[i] >= 0 && whole.at[i] < bpe_vocab(b));
        bpe_decode(&d, whole.at[i], &bytes);
    }
    bpe_decode_end(&d, &bytes);
    bpe_decoder_free(&d);
    bpe_ids_free(&whole);
    bpe_ids_free(&parts);
    bpe_encoder_close(e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    const uint8_t *nul = memchr(data, 0, n);
    size_t head = nul ? (size_t)(nul - data) : n;
    struct bpe *b = bpe_parse((const char *)data, head, "fuzz");

    if (b && nul)
        encode(b, (const char *)nul + 1, n - head - 1);
    if (b)
        bpe_close(b);
    return 0;
}
