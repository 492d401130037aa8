/* seqs.h - packed sequences. There is no batch dimension: B sequences are B entries of one row, and
 * decoding is a row of N sequences of length one. Sequences may be empty. */
#ifndef SEQS_H
#define SEQS_H
#include "arena.h"
EXTERN_C_BEGIN

enum { SEQ_TILE = 64 };        /* scans save their state every SEQ_TILE tokens of the row, wherever documents start */

struct seqs {
    int64_t        tokens;     /* T, in the row */
    int            n;          /* N */
    int64_t        longest;
    const int32_t *start;      /* [n+1] cumulative lengths, host; start[0] = 0, start[n] = tokens */
    const int32_t *dstart;     /* [n+1] the same on the device, then `tokens` up to [room]: empty sequences */
    int64_t        room;       /* 0: n. What is launched for so many serves every row with as much room */
    const int32_t *dseq;       /* [tokens] device: which sequence a token belongs to */
    const int32_t *dalone;     /* [n,2] device: for each sequence 0 and its length; then [tokens] zeros; may be NULL */
};

/* Fills tokens, n, longest, start (kept by pointer); the device pointers stay NULL. */
struct seqs seqs_of(const int32_t *start, int n);
/* Writes the sequence of each token, and its position in it (pos may be NULL). */
void        seqs_expand(const struct seqs *s, int32_t *seq, int32_t *pos);
/* Sequence i as a row of its own; start [2] is kept by pointer. */
struct seqs seqs_alone(const struct seqs *s, int i, int32_t start[2]);
/* The least SEQ_TILE * 2^i of which every multiple before T begins a sequence; T or more: only the row's start is sure.
 * Needs `start`; NULL: INT64_MAX. */
int64_t     seqs_even(const struct seqs *s);
/* The least power of two that is not less than n: plans that a recording may repeat for other rows go by it. */
int64_t     seqs_about(int64_t n);
static inline int64_t seqs_tiles(const struct seqs *s) { return (s->tokens + SEQ_TILE - 1) / SEQ_TILE; }
EXTERN_C_END
#endif
