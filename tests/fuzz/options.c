/* options.c - any words as a command line; a number that is accepted lies in its range. */
#include "cmd.h"
#include <math.h>

static const struct cmd cmd_fuzz = { "fuzz", "fuzz", "", NULL };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int i = 1, argc = 1;
    int64_t whole = 0;
    uint64_t seed = 0;
    float real = .5f;
    bool on = false;
    const char *type = "a", *argv[32] = { "fuzz" };
    struct opt_list many = { 0 };
    const struct opt opts[] = {
        OPT("int", &i, "N", "", .range = "[1,9)", .letter = 'i'), OPT("long", &whole, "N", ""),
        OPT("seed", &seed, "N", ""), OPT("real", &real, "X", "", .range = "(0,1]"),
        OPT("on", &on, NULL, "", .letter = 'f'), OPT("type", &type, "T", "", .choices = "a|b"),
        OPT("many", &many, "X", "", .letter = 'm'), OPT_END
    };
    char *copy = mem_new(n + 1, 1);

    memcpy(copy, data, n);
    for (size_t at = 0; at < n && argc < 31; at += strlen(copy + at) + 1) {
        argv[argc++] = copy + at;
        copy[at + strcspn(copy + at, "\n")] = 0;
        if (!strcmp(argv[argc - 1], "--help"))       /* would end the process, as it should */
            argc--;
    }
    if (opt_parse(&cmd_fuzz, argc, argv, opts) >= 0) {
        REQUIRE(i >= 1 && i < 9 && real > 0 && real <= 1);
        REQUIRE(!strcmp(type, "a") || !strcmp(type, "b"));
    }
    free(many.at);
    free(copy);
    return 0;
}
