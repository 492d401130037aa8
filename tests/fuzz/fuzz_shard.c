/* fuzz_shard.c - any bytes as a token shard: refused, or every id below the vocabulary. libFuzzer entry. */
#include "shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct shard_cache cache;
    struct shard s;
    int32_t id[1000];

    if (shard_open_memory(&s, data, n, "fuzz", 0, -1))
        return 0;
    shard_cache_init(&cache, (size_t)s.frame_tokens * (size_t)s.width, 1);
    for (int64_t at = 0; at < s.tokens && at < 100000; at += 1000) {
        int64_t take = s.tokens - at < 1000 ? s.tokens - at : 1000;
        if (shard_read(&s, &cache, at, take, id))
            break;
        for (int64_t i = 0; i < take; i++)
            REQUIRE(id[i] >= 0 && id[i] < s.id_limit);
    }
    if (s.tokens < 100000)
        shard_verify(&s, &cache);
    free(shard_documents(&s, &cache));
    shard_close(&s);
    shard_cache_close(&cache);
    return 0;
}
