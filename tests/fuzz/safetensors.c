/* safetensors.c - any bytes, opened as a safetensors file; every tensor it admits is read to its end. */
#define _GNU_SOURCE
#include "safetensors.h"
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    char path[64];
    int fd = memfd_create("fuzz", 0);
    struct st *f;

    REQUIRE(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    REQUIRE(str_format(path, sizeof path, "/proc/self/fd/%d", fd));
    f = st_open(path);
    for (int64_t i = 0; f && i < f->n; i++) {
        const struct st_tensor *t = &f->at[i];
        float *values = mem_new((size_t)t->count, sizeof *values);

        REQUIRE(t->bytes <= (int64_t)n && st_find(f, t->name));
        if (t->type == ST_I64 || t->type == ST_I32)
            st_int(t, (int32_t *)values);
        else if (t->type <= ST_F64)
            st_float(t, values);
        free(values);
    }
    for (int64_t i = 0; f && i < st_metas(f); i++) {
        const char *value, *key = st_meta_at(f, i, &value);
        REQUIRE(st_meta(f, key) && value);
    }
    st_close(f);
    close(fd);
    return 0;
}
