/* The recurrences obey the laws of check_scan.h on the host, in every shape that tiles and vectors care about. */
#include "check_scan.h"
#include "test.h"

static struct dev cpu = { .kind = DEV_CPU, .type = F32, .threads = 2 }, naive = { .kind = DEV_NAIVE, .type = F32, .threads = 1 };

static void law(const char *scan, struct scan_error e)
{
    if (!(e.worst <= 1))
        printf("FAIL %s, %s: %g times what is allowed\n", scan, e.where, e.worst), test_failed++;
}

#define LENGTHS(...) .length = (const int32_t[]){ __VA_ARGS__ }, .n = (int)LEN(((const int32_t[]){ __VA_ARGS__ }))

static const struct scan_case small[] = {
    { .Hq = 2, .Hk = 1, .H = 4, .K = 5, .V = 3, LENGTHS(1, 7, 0, 4), .state = true, .var = true, .seed = 1 },
    { .Hq = 1, .Hk = 1, .H = 1, .K = 4, .V = 6, LENGTHS(9), .seed = 2 },
    { .Hq = 3, .Hk = 3, .H = 3, .K = 1, .V = 1, LENGTHS(2, 2), .state = true, .seed = 3 },
};

int main(void)
{
    for (const struct scan *f = scan_next(NULL); f; f = scan_next(f))
        for (size_t i = 0; i < LEN(small); i++) {
            struct scan_error e = check_scan_definition(f, &small[i]);
            printf("%s definition %g %s\n", f->name, e.worst, e.where);
            law(f->name, e);
            law(f->name, check_scan(&naive, f, &small[i]));
            law(f->name, check_scan(&cpu, f, &small[i]));
        }
    return test_done("scan");
}
