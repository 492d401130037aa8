/* sha256.h - SHA-256 (FIPS 180-4): names the exact bytes of a tokenizer, a shard set, a file. */
#ifndef SHA256_H
#define SHA256_H
#include "base.h"
EXTERN_C_BEGIN

struct sha256 {
    uint32_t state[8];
    uint64_t bytes;
    uint8_t  block[64];
};

/* init, any number of adds, then one end. */
void sha256_init(struct sha256 *s);
void sha256_add(struct sha256 *s, const void *data, size_t n);
void sha256_end(struct sha256 *s, uint8_t digest[32]);
void sha256_end_hex(struct sha256 *s, char out[65]);      /* lower case, ends with 0 */

void sha256_hex(const void *data, size_t n, char out[65]);

EXTERN_C_END
#endif
