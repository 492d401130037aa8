/* test_opt.c - the option parser: every spelling, and every value that must be refused. */
#define _DEFAULT_SOURCE
#include "cmd.h"
#include "test.h"
#include <sys/wait.h>
#include <unistd.h>

struct all {
    int         i;
    int64_t     n;
    uint64_t    seed;
    float       lr;
    double      eps;
    bool        on, off, given;
    const char *out, *type, *text;
    struct opt_list many;
};

static const struct cmd cmd_test = { "test", "a test", "", NULL };
static struct all v;
static char last[512];                       /* what opt_parse said on stderr */

/* Parses a line split at spaces ("_" stands for an empty word); operands go to word[]. */
static const char *word[32];
static int parse_table(const char *line, const struct opt *opts)
{
    static char copy[512];
    char *rest = copy, *one;
    int n = 1, left, saved = dup(2), pipes[2];
    ssize_t got;

    str_format(copy, sizeof copy, "%s", line);
    word[0] = "test";
    while (n < 31 && (one = strsep(&rest, " ")))
        if (*one)
            word[n++] = strcmp(one, "_") ? one : "";
    word[n] = NULL;
    REQUIRE(!pipe(pipes) && dup2(pipes[1], 2) == 2);
    close(pipes[1]);
    left = opt_parse(&cmd_test, n, word, opts);
    dup2(saved, 2);
    close(saved);
    got = left < 0 ? read(pipes[0], last, sizeof last - 1) : 0;
    last[got > 0 ? got : 0] = 0;
    close(pipes[0]);
    return left;
}

static int parse(const char *line)
{
    const struct opt opts[] = {
        OPT("int", &v.i, "N", "an int", .range = "[-5,1e9]", .letter = 'i'),
        OPT("long", &v.n, "N", "a long", .given = &v.given),
        OPT("seed", &v.seed, "N", "a seed"),
        OPT("lr", &v.lr, "X", "a rate", .range = "(0,1]"),
        OPT("eps", &v.eps, "X", "a double", .range = "[0,)"),
        OPT("on", &v.on, NULL, "a flag"),
        OPT("off", &v.off, NULL, "another", .letter = 'f'),
        OPT("out", &v.out, "FILE", "a string", .letter = 'o'),
        OPT("type", &v.type, "T", "a choice", .choices = "fp32|bf16"),
        OPT("text", &v.text, "TEXT", "may be empty", .empty = true),
        OPT("many", &v.many, "X", "a list"),
        OPT_END
    };

    free(v.many.at);
    v = (struct all){ .i = 1, .n = 2, .seed = 3, .lr = .5f, .eps = .25, .off = true };
    return parse_table(line, opts);
}

#define REFUSED(line, message) do { CHECK(parse(line) == -1); \
    if (strcmp(last, "error: " message "\n")) { test_failed++; printf("FAIL %s: %s", line, last); } } while (0)

static void spellings(void)
{
    CHECK(parse("a --int 7 b --long=-3 -o x -- --int") == 3);
    CHECK(v.i == 7 && v.n == -3 && v.given && !strcmp(v.out, "x"));
    CHECK(!strcmp(word[0], "a") && !strcmp(word[1], "b") && !strcmp(word[2], "--int"));
    CHECK(parse("--on --no-off") == 0 && v.on && !v.off && !v.given);
    CHECK(parse("-f -i3 -ofile") == 0 && v.off && v.i == 3 && !strcmp(v.out, "file"));
    CHECK(parse("--int 3 --int 4 --on --no-on") == 0 && v.i == 4 && !v.on);
    CHECK(parse("--many a --many=b") == 0 && v.many.n == 2 && !strcmp(v.many.at[1], "b"));
    CHECK(parse("--text _ --out=--int") == 0 && !*v.text && !strcmp(v.out, "--int"));
    CHECK(parse("--type bf16 -") == 1 && !strcmp(v.type, "bf16") && !strcmp(word[0], "-"));
    CHECK(parse("--out --on") == 0 && !strcmp(v.out, "--on") && !v.on);
}

static void numbers(void)
{
    CHECK(parse("--long 32k") == 0 && v.n == 32000);
    CHECK(parse("--long 32Ki") == 0 && v.n == 32768);
    CHECK(parse("--long 1.5M") == 0 && v.n == 1500000);
    CHECK(parse("--long 15e9") == 0 && v.n == 15000000000);
    CHECK(parse("--long 2Gi") == 0 && v.n == 2147483648);
    CHECK(parse("--long -9223372036854775808") == 0 && v.n == INT64_MIN);
    CHECK(parse("--long 010") == 0 && v.n == 10);
    CHECK(parse("--seed 18446744073709551615") == 0 && v.seed == UINT64_MAX);
    CHECK(parse("--lr 1 --eps 1e300") == 0 && v.lr == 1.f && v.eps == 1e300);
    CHECK(parse("--lr 1e-3 --int -5") == 0 && v.lr == 1e-3f && v.i == -5);
}

static void refusals(void)
{
    REFUSED("--int 7x", "--int: expected a whole number in [-5,1e9], found '7x'");
    REFUSED("--int _", "--int: expected a whole number in [-5,1e9], found ''");
    REFUSED("--int=", "--int: expected a whole number in [-5,1e9], found ''");
    REFUSED("--int -6", "--int: expected a whole number in [-5,1e9], found '-6'");
    REFUSED("-i 1.5", "--int: expected a whole number in [-5,1e9], found '1.5'");
    REFUSED("--int 99999999999", "--int: expected a whole number in [-5,1e9], found '99999999999'");
    REFUSED("--long 9223372036854775808", "--long: expected a whole number, found '9223372036854775808'");
    REFUSED("--long 9223372036854775807k", "--long: expected a whole number, found '9223372036854775807k'");
    REFUSED("--long 1e400", "--long: expected a whole number, found '1e400'");
    REFUSED("--long 3q", "--long: expected a whole number, found '3q'");
    REFUSED("--long 3kk", "--long: expected a whole number, found '3kk'");
    REFUSED("--long nan", "--long: expected a whole number, found 'nan'");
    REFUSED("--long 0x10", "--long: expected a whole number, found '0x10'");
    REFUSED("--seed -1", "--seed: expected a whole number from 0, found '-1'");
    REFUSED("--seed 18446744073709551616", "--seed: expected a whole number from 0, found '18446744073709551616'");
    REFUSED("--lr nan", "--lr: expected a number in (0,1], found 'nan'");
    REFUSED("--lr inf", "--lr: expected a number in (0,1], found 'inf'");
    REFUSED("--lr 0", "--lr: expected a number in (0,1], found '0'");
    REFUSED("--lr 1.01", "--lr: expected a number in (0,1], found '1.01'");
    REFUSED("--lr 1e-100", "--lr: expected a number in (0,1], found '1e-100'");
    REFUSED("--lr 1e-3z", "--lr: expected a number in (0,1], found '1e-3z'");
    REFUSED("--eps 1e999", "--eps: expected a number in [0,), found '1e999'");
    REFUSED("--eps _", "--eps: expected a number in [0,), found ''");
    REFUSED("--out _", "--out: expected FILE, found nothing");
    REFUSED("--type fp", "--type: expected fp32|bf16, found 'fp'");
    REFUSED("--type fp32|bf16", "--type: expected fp32|bf16, found 'fp32|bf16'");
    REFUSED("--on=1", "--on: takes no value");
    REFUSED("--no-on=1", "--no-on: takes no value");
    REFUSED("a --out", "--out: expected a value after it");
    REFUSED("-o", "-o: expected a value after it");
    REFUSED("--ou x", "palimpsa test has no option '--ou', did you mean --out; see palimpsa test --help");
    REFUSED("--no-int", "palimpsa test has no option '--no-int', did you mean --no-on; see palimpsa test --help");
    REFUSED("--zzzzzz=3", "palimpsa test has no option '--zzzzzz'; see palimpsa test --help");
    REFUSED("-q", "palimpsa test has no option '-q'; see palimpsa test --help");
}

static void required(void)
{
    const char *out = NULL;
    const struct opt opts[] = { OPT("out", &out, "FILE", "where to", .need = true), OPT_END };

    CHECK(parse_table("--out x", opts) == 0);
    CHECK(parse_table("x", opts) == -1);
    CHECK(!strcmp(last, "error: palimpsa test: --out is required; see palimpsa test --help\n"));
}

/* --help ends the process with 0 and says what a variable held before; fork to see it. */
static void help(void)
{
    int pipes[2], status = -1;
    char text[4096];
    ssize_t n, got = 0;
    pid_t child;

    fflush(stdout);
    REQUIRE(!pipe(pipes));
    child = fork();
    if (!child) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        close(pipes[1]);
        parse("--help");
        _exit(9);
    }
    close(pipes[1]);
    while ((n = read(pipes[0], text + got, sizeof text - 1 - (size_t)got)) > 0)
        got += n;
    text[got] = 0;
    close(pipes[0]);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    CHECK(!strncmp(text, "usage: palimpsa test\n\na test\n\noptions:\n", 39));
    CHECK(strstr(text, "\n  --lr X                    a rate, in (0,1] (default 0.5)\n") != NULL);
    CHECK(strstr(text, "\n  -f, --no-off              another\n") != NULL);
    CHECK(strstr(text, "\n  --type T                  a choice: fp32|bf16\n") != NULL);
}

int main(void)
{
    spellings();
    numbers();
    refusals();
    required();
    help();
    CHECK(words_miss("plto", "plot") == 1 && words_miss("toke", "tokenize") == 0);
    CHECK(words_miss("x", "xyz") == WORDS_FAR && words_miss("eval", "plot") == WORDS_FAR);
    CHECK(words_miss("", "plot") == WORDS_FAR);
    free(v.many.at);
    return test_done("opt");
}
