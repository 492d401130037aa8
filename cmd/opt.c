/* opt.c - option tables handed to getopt_long, and values refused with one line naming the option. */
#define _GNU_SOURCE
#include "cmd.h"
#include <errno.h>
#include <float.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <unistd.h>

enum { CODE_HELP = 256, CODE_FIRST };        /* above every letter; two codes an option: yes and no */

void cmd_exit(int status)
{
    errno = 0;
    bool bad = ferror(stdout);

    if (fclose(stdout) || bad) {
        fail("stdout: %s", errno ? strerror(errno) : "not everything could be written");
        status = status ? status : 1;
    }
    exit(status);
}

/* Levenshtein distance where swapping two neighbours counts once. */
int words_miss(const char *a, const char *b)
{
    enum { LONGEST = 40 };
    int d[LONGEST + 1][LONGEST + 1], m = (int)strnlen(a, LONGEST + 1), n = (int)strnlen(b, LONGEST + 1);

    if (m < 2 || m > LONGEST || n > LONGEST)
        return WORDS_FAR;
    if (!strncmp(a, b, (size_t)m))
        return 0;
    for (int i = 0; i <= m; i++)
    for (int j = 0; j <= n; j++) {
        int best = i ? j ? d[i - 1][j - 1] + (a[i - 1] != b[j - 1]) : i : j;

        if (i && d[i - 1][j] + 1 < best)
            best = d[i - 1][j] + 1;
        if (j && d[i][j - 1] + 1 < best)
            best = d[i][j - 1] + 1;
        if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
            best = d[i - 2][j - 2] + 1;
        d[i][j] = best;
    }
    return d[m][n] <= 1 + m / 4 ? d[m][n] : WORDS_FAR;
}

/* Is x inside a range like "(0,1]" or "[1,)"? A missing end is no limit. */
static bool in_range(const char *range, double x)
{
    char *end;
    const char *comma = range ? strchr(range, ',') : NULL;
    double lo, hi;

    if (!range)
        return true;
    lo = strtod(range + 1, &end);
    if (end != range + 1 && (*range == '(' ? x <= lo : x < lo))
        return false;
    REQUIRE(comma);
    hi = strtod(comma + 1, &end);
    return end == comma + 1 || (*end == ')' ? x < hi : x <= hi);
}

/* The factor behind k, M, G, T, Ki, Mi, Gi, Ti or nothing; 0 for anything else. */
static int64_t suffix(const char *s)
{
    static const char letters[] = "kMGT";
    const char *at = *s ? strchr(letters, *s == 'K' ? 'k' : *s) : NULL;
    int64_t factor = 1, base = s[0] && s[1] == 'i' ? 1024 : 1000;

    if (!*s)
        return 1;
    if (!at || s[base == 1024 ? 2 : 1])
        return 0;
    for (const char *p = letters; p <= at; p++)
        factor *= base;
    return factor;
}

/* "128", "32k", "1.5M", "15e9": any text whose value is a whole number. */
static bool whole_number(const char *s, int64_t *out)
{
    char *end;
    int64_t factor, x;
    double real;

    errno = 0;
    x = strtoll(s, &end, 10);
    if (end == s || (*s != '-' && *s != '+' && (*s < '0' || *s > '9')))
        return false;
    if (*end != '.' && *end != 'e' && *end != 'E') {
        factor = suffix(end);
        return !errno && factor && !__builtin_mul_overflow(x, factor, out);
    }
    real = strtod(s, &end);
    factor = suffix(end);
    real *= (double)factor;
    if (!factor || !(fabs(real) <= 9007199254740992.0) || real != floor(real))
        return false;
    *out = (int64_t)real;
    return true;
}

/* Seeds use all 64 bits, which int64_t lacks. */
static bool whole_unsigned(const char *s, uint64_t *out)
{
    char *end;

    errno = 0;
    *out = strtoull(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && !errno;
}

static bool real_number(const char *s, double *out)
{
    char *end;

    *out = strtod(s, &end);
    return end != s && !*end && (unsigned char)*s > ' ' && isfinite(*out);
}

static bool among(const char *choices, const char *s)
{
    size_t n = strcspn(s, "|");

    if (!n || s[n])
        return false;
    for (const char *p = choices; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (!strncmp(p, s, n) && (p[n] == '|' || !p[n]))
            return true;
    return false;
}

static int refuse(const struct opt *o, const char *what, const char *found)
{
    const char *in = o->range ? " in " : "";

    return fail("--%s: expected %s%s%s, found '%s'", o->name, what, in, o->range ? o->range : "", found);
}

static int set_string(const struct opt *o, const char *s)
{
    if (!*s && !o->empty)
        return fail("--%s: expected %s, found nothing", o->name, o->arg);
    if (o->choices && !among(o->choices, s))
        return fail("--%s: expected %s, found '%s'", o->name, o->choices, s);
    if (o->kind == OPT_STR_)
        *(const char **)o->value = s;
    else {
        struct opt_list *l = o->value;
        l->at = mem_grow(l->at, (size_t)l->n + 1, sizeof *l->at);
        l->at[l->n++] = s;
    }
    return 0;
}

static int set_whole(const struct opt *o, const char *s)
{
    int64_t x = 0;
    uint64_t u = 0;
    bool ok = o->kind == OPT_U64_ ? whole_unsigned(s, &u) : whole_number(s, &x);

    if (!ok || (o->kind == OPT_INT_ && (x < INT_MIN || x > INT_MAX)))
        return refuse(o, o->kind == OPT_U64_ ? "a whole number from 0" : "a whole number", s);
    if (!in_range(o->range, o->kind == OPT_U64_ ? (double)u : (double)x))
        return refuse(o, "a whole number", s);
    if (o->kind == OPT_INT_)
        *(int *)o->value = (int)x;
    else if (o->kind == OPT_LONG_)
        *(int64_t *)o->value = x;
    else
        *(uint64_t *)o->value = u;
    return 0;
}

static int set_real(const struct opt *o, const char *s)
{
    double x;
    bool ok = real_number(s, &x) && (o->kind == OPT_DOUBLE_ || fabs(x) <= FLT_MAX);

    if (ok && o->kind == OPT_FLOAT_)
        x = (float)x;                        /* the value that will be used: 1e-100 is 0 */
    if (!ok || !in_range(o->range, x))
        return refuse(o, "a number", s);
    if (o->kind == OPT_FLOAT_)
        *(float *)o->value = (float)x;
    else
        *(double *)o->value = x;
    return 0;
}

/* Later lists follow earlier ones. */
static int set_numbers(const struct opt *o, const char *s)
{
    struct opt_numbers *l = o->value;

    for (bool more = true; more;) {
        size_t n = strcspn(s, ",");
        char one[64];
        int64_t whole;
        double x = NAN;
        bool ok = str_format(one, sizeof one, "%.*s", (int)n, s);

        if (ok && whole_number(one, &whole))
            x = (double)whole;
        else
            ok = ok && real_number(one, &x);
        if (!ok || !in_range(o->range, x))
            return refuse(o, "numbers", one);
        l->at = mem_grow(l->at, (size_t)l->n + 1, sizeof *l->at);
        l->at[l->n++] = x;
        more = s[n];
        s += n + more;
    }
    return 0;
}

static int set_value(const struct opt *o, const char *s)
{
    switch (o->kind) {
    case OPT_INT_: case OPT_LONG_: case OPT_U64_: return set_whole(o, s);
    case OPT_FLOAT_: case OPT_DOUBLE_:            return set_real(o, s);
    case OPT_STR_: case OPT_LIST_:                return set_string(o, s);
    case OPT_NUMBERS_:                            return set_numbers(o, s);
    case OPT_BOOL_: case OPT_END_:                break;
    }
    BUG("--%s takes no value", o->name);
}

/* The value an option has before parsing, as text; "" when there is none to speak of. */
static void default_text(const struct opt *o, char *out, size_t size)
{
    const char *s;

    out[0] = 0;
    switch (o->kind) {
    case OPT_BOOL_:   str_format(out, size, "%s", *(bool *)o->value ? "yes" : ""); break;
    case OPT_INT_:    str_format(out, size, "%d", *(int *)o->value); break;
    case OPT_LONG_:   str_format(out, size, "%lld", (long long)*(int64_t *)o->value); break;
    case OPT_U64_:    str_format(out, size, "%llu", (unsigned long long)*(uint64_t *)o->value); break;
    case OPT_FLOAT_:  str_format(out, size, "%g", (double)*(float *)o->value); break;
    case OPT_DOUBLE_: str_format(out, size, "%g", *(double *)o->value); break;
    case OPT_STR_:
        s = *(const char **)o->value;
        str_format(out, size, "%s", s ? s : "");
        break;
    case OPT_LIST_: case OPT_NUMBERS_: case OPT_END_: break;
    }
}

/* Prints words, breaking lines before column 80; every line after the first is indented. */
static void print_wrapped(const char *words, int column)
{
    enum { INDENT = 28, WIDTH = 79 };

    if (column >= INDENT) {
        printf("\n");
        column = 0;
    }
    printf("%*s", INDENT - column, "");
    column = INDENT;
    for (const char *p = words; *p;) {
        int n = (int)strcspn(p, " ");

        if (column > INDENT && column + 1 + n > WIDTH) {
            printf("\n%*s", INDENT, "");
            column = INDENT;
        }
        column += printf("%s%.*s", column > INDENT ? " " : "", n, p);
        p += n + (p[n] == ' ');
    }
    printf("\n");
}

static void help_line(const struct opt *o)
{
    char value[160], words[1024];
    int column = o->letter ? printf("  -%c, --", o->letter) : printf("  --");
    bool no = o->kind == OPT_BOOL_ && *(bool *)o->value;

    column += printf("%s%s%s%s", no ? "no-" : "", o->name, o->arg ? " " : "", o->arg ? o->arg : "");
    default_text(o, value, sizeof value);
    str_format(words, sizeof words, "%s%s%s%s%s%s%s%s%s%s", o->help,
               o->choices ? ": " : "", o->choices ? o->choices : "",
               o->range ? ", in " : "", o->range ? o->range : "",
               o->kind == OPT_LIST_ ? " (may be repeated)" : "", o->need ? " (required)" : "",
               *value && !o->need && !no ? " (default " : "", *value && !o->need && !no ? value : "",
               *value && !o->need && !no ? ")" : "");
    print_wrapped(words, column);
}

void opt_help(const struct cmd *c, const struct opt *opts)
{
    printf("usage: palimpsa %s%s%s\n\n%s\n\noptions:\n", c->name, *c->usage ? " " : "", c->usage, c->brief);
    for (; opts->kind; opts++)
        help_line(opts);
    printf("  --help");
    print_wrapped("print this and exit", 8);
}

/* What getopt_long wants, made from our table. */
struct table {
    const struct opt *opt;
    int               n;
    struct option    *longs;         /* per option: name and, for a flag, no-name; then help, then zeros */
    char            (*no)[64];       /* "no-" names */
    char             *letters;
    bool             *given;
};

static void table_open(struct table *t, const struct opt *opts)
{
    int k = 0;
    char *letter;

    *t = (struct table){ .opt = opts };
    while (opts[t->n].kind)
        t->n++;
    t->longs   = mem_new(2 * (size_t)t->n + 2, sizeof *t->longs);
    t->no      = mem_new((size_t)t->n, sizeof *t->no);
    t->letters = letter = mem_new(2 * (size_t)t->n + 3, 1);
    t->given   = mem_new((size_t)t->n, sizeof *t->given);
    *letter++ = '-';                 /* operands come in order, as code 1 */
    *letter++ = ':';                 /* a missing value comes as ':' */
    for (int i = 0; i < t->n; i++) {
        bool flag = opts[i].kind == OPT_BOOL_;

        t->longs[k++] = (struct option){ opts[i].name, flag ? no_argument : required_argument, NULL,
                                         CODE_FIRST + 2 * i };
        REQUIRE(str_format(t->no[i], sizeof t->no[i], "no-%s", opts[i].name));
        if (flag)
            t->longs[k++] = (struct option){ t->no[i], no_argument, NULL, CODE_FIRST + 2 * i + 1 };
        if (opts[i].letter)
            *letter++ = opts[i].letter;
        if (opts[i].letter && !flag)
            *letter++ = ':';
    }
    t->longs[k] = (struct option){ "help", no_argument, NULL, CODE_HELP };
}

static void table_close(struct table *t)
{
    free(t->longs);
    free(t->no);
    free(t->letters);
    free(t->given);
}

/* Which entry of longs is spelled exactly so, up to an '='; getopt_long would also take a prefix. */
static const struct option *table_exact(const struct table *t, const char *word)
{
    size_t n = strcspn(word, "=");

    for (const struct option *l = t->longs; l->name; l++)
        if (strlen(l->name) == n && !strncmp(l->name, word, n))
            return l;
    return NULL;
}

static int unknown_option(const struct table *t, const struct cmd *c, const char *word)
{
    const char *near = NULL;
    char name[64];
    int best = WORDS_FAR;

    str_format(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (const struct option *l = t->longs; l->name && !strncmp(word, "--", 2); l++)
        if (words_miss(name + 2, l->name) < best) {
            near = l->name;
            best = words_miss(name + 2, l->name);
        }
    return fail("palimpsa %s has no option '%s'%s%s; see palimpsa %s --help", c->name, *name ? name : word,
                near ? ", did you mean --" : "", near ? near : "", c->name);
}

/* One option: `code` came from getopt_long while it looked at `word`. */
static int take(const struct table *t, const struct cmd *c, int code, const char *word)
{
    const struct option *exact = strncmp(word, "--", 2) ? NULL : table_exact(t, word + 2);
    int i = -1;

    if (!strncmp(word, "--", 2) && !exact)
        return unknown_option(t, c, word);
    if (code == ':')
        return fail("%s: expected a value after it", word);
    if (code == '?' && exact)
        return fail("--%s: takes no value", exact->name);
    if (code == CODE_HELP) {
        opt_help(c, t->opt);
        cmd_exit(0);
    }
    for (int k = 0; code < CODE_HELP && k < t->n; k++)
        if (t->opt[k].letter && t->opt[k].letter == code)
            i = k;
    if (code >= CODE_FIRST)
        i = (code - CODE_FIRST) / 2;
    if (i < 0)
        return unknown_option(t, c, word);
    t->given[i] = true;
    if (t->opt[i].given)
        *t->opt[i].given = true;
    if (t->opt[i].kind != OPT_BOOL_)
        return set_value(&t->opt[i], optarg);
    *(bool *)t->opt[i].value = code < CODE_HELP || (code - CODE_FIRST) % 2 == 0;
    return 0;
}

int opt_parse(const struct cmd *c, int argc, const char **argv, const struct opt *opts)
{
    struct table t;
    int left = 0, status = 0, code, at = 1;

    table_open(&t, opts);
    opterr = 0;
    optind = 0;                      /* glibc and musl: start over */
    while (!status && (code = getopt_long(argc, (char *const *)(void *)argv, t.letters, t.longs, NULL)) != -1) {
        if (code == 1)
            argv[left++] = optarg;
        else
            status = take(&t, c, code, argv[at]);
        at = optind;
    }
    for (int i = optind; !status && i < argc; i++)
        argv[left++] = argv[i];
    for (int i = 0; !status && i < t.n; i++)
        if (opts[i].need && !t.given[i])
            status = fail("palimpsa %s: --%s is required; see palimpsa %s --help", c->name, opts[i].name, c->name);
    table_close(&t);
    return status ? -1 : left;
}
