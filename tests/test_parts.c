/* Reductions of a GPU ask for no more than the workspace, whatever the shape: the plans alone, without a GPU. */
#include "../kernels/parts.h"
#include "test.h"

enum { SMS = 132 };                      /* of an H200 */

/* Floats of struct groups, laid out as groups_of does. */
static int64_t laid_out(int64_t T, int64_t V, int64_t D, int64_t chunk)
{
    return ceil_div(embed_pieces(T) * D, 4) * 4 + ceil_div(T, chunk) * V + 2 + V + 1 + 2 * T + 2 * (T / PIECE + 1)
           + embed_pieces(T);
}

/* Backward of an embedding goes through T tokens `turns` times. */
static void check_embed(int64_t T, int64_t V, int64_t D, int64_t turns)
{
    int64_t each = embed_tokens(T, V, D, PART_BYTES), n = 0;

    for (int64_t from = 0; from < T; from += each, n++) {
        int64_t now = min64(each, T - from), chunk = embed_chunk(now, V, D, PART_BYTES);
        CHECK(chunk <= RANKS * MOST_TURNS);
        CHECK(embed_bytes(now, V, D, chunk) <= PART_BYTES);
        CHECK((size_t)laid_out(now, V, D, chunk) * sizeof(float) <= embed_bytes(now, V, D, chunk));
    }
    if (n != turns)
        printf("embedding of %lld tokens, vocabulary %lld, width %lld:\n", (long long)T, (long long)V, (long long)D);
    CHECK_NEAR((double)n, (double)turns, 0);
}

/* Some values come more than PIECE times, as often as makes the most pieces. */
static void check_pieces(void)
{
    for (int64_t T = 1; T < 5000; T++) {
        int64_t large = T / (PIECE + 1), rest = large ? T - large * (PIECE + 1) : 0;
        CHECK(2 * large + ceil_div(rest, PIECE) <= embed_pieces(T));
        CHECK(large <= T / PIECE + 1);
    }
}

/* Parts that a kernel takes which would like `most`; floats of each. */
static void check_fit(int64_t most, int64_t floats, int64_t parts)
{
    int64_t n = parts_fit(most, floats, PART_BYTES);

    CHECK_NEAR((double)n, (double)parts, 0);
    CHECK((size_t)(n * floats) * sizeof(float) <= PART_BYTES || n == 1);
}

int main(void)
{
    check_embed(262584, 300, 8208, 9);           /* whole: 541,111,596 bytes */
    check_embed(521, 300, 8208, 1);
    check_embed(262144, 50288, 128, 1);
    check_embed(32768, 50288, 768, 1);
    check_embed(65536, 8192, 128, 1);
    check_embed(131072, 50288, 2048, 2);
    check_embed(1048576, 151936, 4096, 18);
    check_embed(1, 1, 1, 1);
    check_embed(0, 1, 1, 0);
    check_pieces();
    CHECK_NEAR((double)embed_bytes(262584, 300, 8208, RANKS * MOST_TURNS), 541111596, 0);
    CHECK_NEAR((double)embed_chunk(32768, 50288, 768, PART_BYTES), RANKS, 0);

    check_fit(16 * SMS / ceil_div(8208, 128), 8208 * 5, 32);     /* convolution */
    check_fit(16 * SMS, 17, 16 * SMS);
    check_fit(0, 300000 * 5, 1);
    check_fit(4 * SMS, 2 * 8208, 4 * SMS);       /* decay */
    check_fit(4 * SMS, 2 * 65536, 128);
    check_fit(8 * SMS, 8208, 8 * SMS);           /* norm */
    check_fit(16 * SMS, 16384, 1024);
    return test_done("parts");
}
