/* arena.c - push and pop; every tensor starts on a 256-byte line, which suits SIMD and the GPU. */
#include "arena.h"

struct tensor arena_push(struct arena *a, struct tensor t)
{
    size_t bytes = (size_t)tensor_count(t) * dtype_size(t.type);

    REQUIRE(t.data == NULL && tensor_dense(t));
    bytes = (bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    if (a->base) {
        if (bytes > a->size - a->used)
            BUG("arena full: %zu used + %zu asked > %zu", a->used, bytes, a->size);
        t.data = a->base + a->used;
    }
    a->used += bytes;
    if (a->used > a->peak)
        a->peak = a->used;
    return t;
}

size_t arena_mark(const struct arena *a)
{
    return a->used;
}

void arena_pop(struct arena *a, size_t mark)
{
    REQUIRE(mark <= a->used);
    a->used = mark;
}
