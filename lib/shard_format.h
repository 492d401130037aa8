/* shard_format.h - where things lie in a .pts file, for its reader and its writer.
 *
 *   header 128 | frames | frame index, frames + 1 offsets | document index | trailer 72
 * All numbers are little endian; so are the hosts this is built for. */
#ifndef SHARD_FORMAT_H
#define SHARD_FORMAT_H
#include "base.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "token shards are read and written on little endian hosts only"
#endif

#define PTS_MAGIC   "PALTOKEN"
#define PTS_MARK    "NEKOTLAP"          /* the last 8 bytes of a whole file */
#define PTS_VERSION 1

enum {
    PTS_AT_MAGIC     = 0,               /* 8 bytes */
    PTS_AT_VERSION   = 8,               /* u32 */
    PTS_AT_WIDTH     = 12,              /* u32 */
    PTS_AT_VOCAB     = 16,              /* u64 */
    PTS_AT_EOT       = 24,              /* u64 */
    PTS_AT_TOKENIZER = 32,              /* 32 bytes, zeros when unknown */
    PTS_AT_TOKENS    = 64,              /* u64 */
    PTS_AT_DOCUMENTS = 72,              /* u64 */
    PTS_AT_FRAMES    = 80,              /* u64 */
    PTS_AT_FRAME     = 88,              /* u32 tokens in a frame */
    PTS_AT_NUMBER    = 92,              /* u32 of this file in its set */
    PTS_AT_INDEX     = 96,              /* u64 byte where the frame index begins */
    PTS_AT_LAST      = 104,             /* u32 1 in the last file of a set */
    PTS_AT_MARKED    = 108,             /* u32 1: the highest bit of a token says that it is context only */
    PTS_AT_RESERVED  = 112,             /* zeros */
    PTS_HEADER       = 128,

    PTS_TRAILER_INDEX     = 0,          /* sha256 of header and frame index */
    PTS_TRAILER_DOCUMENTS = 32,         /* sha256 of the document index */
    PTS_TRAILER_MARK      = 64,
    PTS_TRAILER           = 72,

    PTS_FRAME_MAX  = 1 << 20,           /* tokens; bounds what a header makes a reader allocate */
    PTS_NUMBER_MAX = 999999             /* six digits: names sort as numbers do */
};

static inline uint32_t get_u32(const uint8_t *p)
{
    uint32_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static inline uint64_t get_u64(const uint8_t *p)
{
    uint64_t x;

    memcpy(&x, p, sizeof x);
    return x;
}

static inline void put_u32(uint8_t *p, uint32_t x)
{
    memcpy(p, &x, sizeof x);
}

static inline void put_u64(uint8_t *p, uint64_t x)
{
    memcpy(p, &x, sizeof x);
}

/* Inside the library: n bytes of the file from offset on. 0, or -1 with the reason. */
struct shard;
int shard_bytes(struct shard *s, void *out, size_t n, uint64_t offset);
#endif
