/* shard.c - any bytes as a token shard: refused, or every id below the vocabulary. The digests are
 * made right, so that what lies behind them is reached. */
#include "shard.h"
#include "sha256.h"
#include "shard_format.h"

/* Over the places where the header says that the indexes lie, if the file has such places. */
static void sign(uint8_t *data, size_t n)
{
    uint64_t index, end = n - PTS_TRAILER, frames, documents;
    struct sha256 sum;

    if (n < PTS_HEADER + PTS_TRAILER)
        return;
    index = get_u64(data + PTS_AT_INDEX);
    frames = get_u64(data + PTS_AT_FRAMES);
    documents = get_u64(data + PTS_AT_DOCUMENTS);
    if (index > end || frames >= n / 8 || documents >= n / 8
        || index + 8 * (frames + 1) + 8 * documents != end)
        return;
    sha256_init(&sum);
    sha256_add(&sum, data, PTS_HEADER);
    sha256_add(&sum, data + index, 8 * (frames + 1));
    sha256_end(&sum, data + end + PTS_TRAILER_INDEX);
    sha256_init(&sum);
    sha256_add(&sum, data + end - 8 * documents, 8 * documents);
    sha256_end(&sum, data + end + PTS_TRAILER_DOCUMENTS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    uint8_t *copy = mem_new(n, 1);
    struct shard_cache cache;
    struct shard s;
    int32_t id[1000];

    memcpy(copy, data, n);
    sign(copy, n);
    if (shard_open_memory(&s, copy, n, "fuzz", 0, -1)) {
        free(copy);
        return 0;
    }
    shard_cache_init(&cache, (size_t)s.frame_tokens * (size_t)s.width, 1);
    for (int64_t at = 0; at < s.tokens && at < 100000; at += 1000) {
        int64_t take = s.tokens - at < 1000 ? s.tokens - at : 1000;
        if (shard_read(&s, &cache, at, take, id))
            break;
        for (int64_t i = 0; i < take; i++)
            REQUIRE((s.marked && id[i] < 0 ? ~id[i] : id[i]) >= 0 && (id[i] < 0 ? ~id[i] : id[i]) < s.id_limit);
    }
    if (s.tokens < 100000)
        shard_verify(&s, &cache);
    free(shard_documents(&s, &cache));
    shard_close(&s);
    shard_cache_close(&cache);
    free(copy);
    return 0;
}
