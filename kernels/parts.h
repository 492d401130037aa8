/* parts.h - how much of the workspace a reduction asks for. Plain C, so that it is tested without a GPU.
 *
 * A call whose partial sums do not fit takes fewer parts or, backward of an embedding, fewer tokens at a time. */
#ifndef PARTS_H
#define PARTS_H
#include <stddef.h>
#include <stdint.h>

enum { PART_BYTES = 64 << 20 };         /* of the workspace */
enum { PIECE = 32, RANKS = 512, MOST_TURNS = 16 };      /* of backward of an embedding: embed_bwd.cu */

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

/* At most so many parts of so many floats each, and no more than there is room for, but one. */
static inline int64_t parts_fit(int64_t most, int64_t floats, size_t bytes)
{
    return max64(min64(most, (int64_t)(bytes / sizeof(float)) / floats), 1);
}

static inline int64_t embed_pieces(int64_t T) { return 2 * T / PIECE + 1; }

/* Bytes of struct groups for T tokens in chunks: sums of pieces, then counts of the chunks and the other integers. */
static inline size_t embed_bytes(int64_t T, int64_t V, int64_t D, int64_t chunk)
{
    const int64_t pieces = embed_pieces(T), ints = V + 3 + 2 * T + 2 * (T / PIECE + 1) + pieces;

    return sizeof(float) * (size_t)(pieces * D + ints + ceil_div(T, chunk) * V + 8);
}

/* Chunks as short as there is room for. */
static inline int64_t embed_chunk(int64_t T, int64_t V, int64_t D, size_t bytes)
{
    int64_t chunk = RANKS;

    while (chunk < RANKS * MOST_TURNS && embed_bytes(T, V, D, chunk) > bytes)
        chunk *= 2;
    return chunk;
}

/* Tokens at a time, all if there is room. */
static inline int64_t embed_tokens(int64_t T, int64_t V, int64_t D, size_t bytes)
{
    int64_t turns = 1;

    while (turns < T && embed_bytes(ceil_div(T, turns), V, D, RANKS * MOST_TURNS) > bytes)
        turns++;
    return ceil_div(T, turns);
}
#endif
