/* torch.c - any bytes as weights of torch. The first byte chooses: a whole archive, or a pickle in a good one. */
#include "torch.h"
#include "torch_file.h"

static void use(struct st *s)
{
    for (int64_t i = 0; s && i < s->n; i++) {
        const struct st_tensor *t = &s->at[i];
        unsigned sum = 0;
        REQUIRE(st_find(s, t->name) == t && t->count >= 0);
        for (int64_t j = 0; j < t->bytes; j++)
            sum += ((const unsigned char *)t->data)[j];
        REQUIRE(sum <= 255u * (uint64_t)t->bytes);
    }
    st_close(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static float numbers[64];
    const struct bytes storage[2] = { { (char *)numbers, sizeof numbers, 0 }, { (char *)numbers, 16, 0 } };
    struct archive a;

    if (!n)
        return 0;
    if (data[0] & 1) {
        use(torch_open_memory(data + 1, n - 1, "fuzz"));
        return 0;
    }
    a = archive_of((struct bytes){ (char *)data + 1, n - 1, 0 }, storage, 2);
    use(torch_open_memory(a.file.at, a.file.n, "fuzz"));
    archive_free(&a);
    return 0;
}
