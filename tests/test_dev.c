/* test_dev.c - devices by name, what they refuse, and the memory they own. */
#include "op.h"
#include "test.h"

/* Asking for too much is part of the test, also under the address sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void test_names(void)
{
    struct dev d;
    char text[64];

    CHECK(dev_open(&d, "naive", F32, 0) == 0 && d.kind == DEV_NAIVE && d.threads == 1);
    CHECK(!strcmp(dev_describe(&d, text, sizeof text), "naive"));
    dev_close(&d);
    CHECK(dev_open(&d, "cpu", F32, 2) == 0 && d.kind == DEV_CPU && d.threads == 2);
    CHECK(!strcmp(dev_describe(&d, text, sizeof text), "cpu (2 threads)"));
    dev_close(&d);
    CHECK(dev_open(&d, "cpu", F32, 1) == 0 && !strcmp(dev_describe(&d, text, sizeof text), "cpu (1 thread)"));
    dev_close(&d);
    CHECK(dev_open(&d, "cpu", F32, 0) == 0 && d.threads >= 1 && !d.dry);
    dev_close(&d);
    CHECK(dev_open(&d, "auto", F32, 0) == 0 && d.kind != DEV_NAIVE);
    dev_close(&d);
}

/* Each prints one line that names what was asked; nothing is left open. */
static void test_refusals(void)
{
    static const char *const names[] = {
        "", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda1", "cpu:0", "cuda:9999", "cuda:99"
    };
    struct dev d;

    for (size_t i = 0; i < LEN(names); i++)
        CHECK(dev_open(&d, names[i], F32, 0) == -1 && !d.ops);
    CHECK(dev_open(&d, "cpu", BF16, 0) == -1);
    CHECK(dev_open(&d, "naive", BF16, 0) == -1);
    CHECK(dev_open(&d, "cpu", F32, -1) == -1);
    dev_close(&d);
#ifndef PALIMPSA_CUDA
    CHECK(dev_open(&d, "cuda", F32, 0) == -1);
    CHECK(dev_open(&d, "auto", BF16, 0) == -1);
#endif
}

static void test_memory(void)
{
    struct dev d, dry;
    struct tensor a, b;
    size_t mark;

    CHECK(dev_open(&d, "cpu", F32, 0) == 0);
    dry = dev_dry(&d);
    mark = arena_mark(&dry.keep);
    a = arena_push(&dry.keep, SHAPE(F32, 100, 7));
    op_fill(&dry, a, 1);
    CHECK(!a.data && dry.keep.peak >= 2800 && dry.kind == DEV_CPU && dry.dry);
    arena_pop(&dry.keep, mark);

    CHECK(dev_reserve(&d, dry.keep.peak, 0) == 0);
    a = arena_push(&d.keep, SHAPE(F32, 100, 7));
    CHECK(a.data && (uintptr_t)a.data % ARENA_ALIGN == 0);
    op_fill(&d, a, 2.5f);
    CHECK(((float *)a.data)[699] == 2.5f);
    arena_pop(&d.keep, 0);
    CHECK(dev_reserve(&d, 1 << 20, 1 << 20) == 0 && d.keep.size >= 1 << 20);
    a = arena_push(&d.keep, SHAPE(F32, 1 << 18));
    b = arena_push(&d.temp, SHAPE(F32, 1 << 18));
    CHECK(a.data && b.data && d.keep.used == d.keep.size);
    arena_pop(&d.keep, 0);
    arena_pop(&d.temp, 0);
    CHECK(dev_reserve(&d, (size_t)1 << 60, 0) == -1);
    CHECK(dev_reserve(&d, 0, 0) == 0 && d.keep.base && d.temp.base);
    dev_close(&d);
    CHECK(!d.keep.base && !d.ops);
}

int main(void)
{
    test_names();
    test_refusals();
    test_memory();
    return test_done("dev");
}
