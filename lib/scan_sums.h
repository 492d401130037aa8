/* scan_sums.h - what the units of work of a backward pass share, added up in a fixed order.
 *
 * Heads that share q or k, and blocks of rows of a memory, add up their dq, dk and ddecay. A unit
 * of work, which is one block of one head, leaves its part in scratch, tile by tile; when all
 * units have done some tiles, the parts are summed. So no result depends on who did what. */
#ifndef SCAN_SUMS_H
#define SCAN_SUMS_H
#include "scan.h"

struct scan_sums {
    int64_t heads, blocks, width;        /* blocks of a head; K padded */
    int64_t tiles;                       /* between two sums */
    float  *scratch;                     /* scan_sums_floats() of them; set by the caller */
};
struct scan_part {
    float *dq, *dk;                      /* [SEQ_TILE,width] */
    float *ddecay;                       /* [SEQ_TILE] */
};

struct scan_sums scan_sums_of(const struct seqs *s, const struct scan_io *x, int64_t blocks);
int64_t          scan_sums_floats(struct scan_sums u);
struct scan_part scan_part_of(struct scan_sums u, int64_t unit, int64_t tile);
/* By all threads of a parallel region: the tokens of tiles [first, first + tiles). */
void scan_sums_add(struct scan_sums u, const struct seqs *s, const struct scan_io *x,
                   const struct scan_io *g, int64_t first);
#endif
