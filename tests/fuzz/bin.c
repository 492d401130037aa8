/* bin.c - llm.c's .bin and headerless integers. The first byte chooses which. */
#include "shard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const int width[] = { 0, 2, 4, 3 };
    struct shard_cache cache;
    struct shard s;
    int64_t *start;

    if (!n || shard_open_memory(&s, data + 1, n - 1, "fuzz", width[data[0] & 3],
                                data[0] & 4 ? 7 : -1))
        return 0;
    shard_cache_init(&cache, (size_t)s.frame_tokens * (size_t)s.width, 1);
    if (s.kind != SHARD_PTS)
        REQUIRE(s.tokens * s.width <= s.size);
    start = s.tokens < 1000000 ? shard_documents(&s, &cache) : NULL;
    for (int64_t i = 0; start && i < s.documents; i++)
        REQUIRE(start[i] >= 0 && start[i] < s.tokens && (i == 0 || start[i] > start[i - 1]));
    free(start);
    shard_close(&s);
    shard_cache_close(&cache);
    return 0;
}
