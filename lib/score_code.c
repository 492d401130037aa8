/* score_code.c - how alike two lines of code are, in the two ways that fuzzywuzzy has.
 *
 *   difflib   2 M / (a + b), M the characters in matching blocks, found longest first, leftmost first
 *   indel     2 L / (a + b), L the length of the longest common subsequence
 * each times 100, rounded half to even. */
#include "score_parts.h"
#include <math.h>

/* Characters of b that difflib leaves out of its index: in a b of 200 or more, what is over 1% of it. */
static bool *popular(struct slice b)
{
    bool *is = mem_new((size_t)b.n + 1, sizeof *is);
    struct slices ones = { 0 };

    for (int64_t i = 0; i < b.n && b.n >= 200; i++)
        slices_add(&ones, (struct slice){ b.at + i, 1 });
    if (ones.n)
        qsort(ones.at, (size_t)ones.n, sizeof *ones.at, slice_order);
    for (int64_t i = 0, end; i < ones.n; i = end) {
        for (end = i; end < ones.n && *ones.at[end].at == *ones.at[i].at; end++)
            ;
        for (int64_t k = i; k < end && end - i > b.n / 100 + 1; k++)
            is[ones.at[k].at - b.at] = true;
    }
    free(ones.at);
    return is;
}

struct box { int64_t alo, ahi, blo, bhi; };

/* The longest block of equal characters in a box, the first in a, then in b; popular ones only extend it. */
static int64_t longest(struct slice a, struct slice b, const bool *skip, struct box in, int64_t *length,
                       int64_t *besti, int64_t *bestj)
{
    int64_t best = 0, *row = length, *next = length + b.n + 1, i0 = in.alo, j0 = in.blo;

    memset(length, 0, 2 * (size_t)(b.n + 1) * sizeof *length);
    for (int64_t i = in.alo; i < in.ahi; i++) {
        int64_t *swap = row;
        for (int64_t j = in.blo; j < in.bhi; j++) {          /* [j+1]: the run that ends at (i, j) */
            next[j + 1] = a.at[i] == b.at[j] && !skip[j] ? (j > in.blo ? row[j] : 0) + 1 : 0;
            if (next[j + 1] > best) {
                best = next[j + 1];
                i0 = i - best + 1;
                j0 = j - best + 1;
            }
        }
        row = next;
        next = swap;
    }
    while (i0 > in.alo && j0 > in.blo && a.at[i0 - 1] == b.at[j0 - 1])
        i0--, j0--, best++;
    while (i0 + best < in.ahi && j0 + best < in.bhi && a.at[i0 + best] == b.at[j0 + best])
        best++;
    *besti = i0;
    *bestj = j0;
    return best;
}

static int64_t matched(struct slice a, struct slice b)
{
    bool *skip = popular(b);
    int64_t *length = mem_new(2 * (size_t)(b.n + 1), sizeof *length), sum = 0, n = 0, i, j;
    struct box *todo = mem_new((size_t)(a.n + b.n) + 4, sizeof *todo);

    todo[n++] = (struct box){ 0, a.n, 0, b.n };
    while (n) {
        struct box x = todo[--n];
        int64_t k = longest(a, b, skip, x, length, &i, &j);

        sum += k;
        if (k && i > x.alo && j > x.blo)
            todo[n++] = (struct box){ x.alo, i, x.blo, j };
        if (k && i + k < x.ahi && j + k < x.bhi)
            todo[n++] = (struct box){ i + k, x.ahi, j + k, x.bhi };
    }
    free(todo);
    free(length);
    free(skip);
    return sum;
}

static int64_t common_subsequence(struct slice a, struct slice b)
{
    int64_t *row = mem_new((size_t)b.n + 1, sizeof *row), length;

    for (int64_t i = 0; i < a.n; i++)
        for (int64_t j = 0, corner = 0; j < b.n; j++) {
            int64_t above = row[j + 1];
            row[j + 1] = a.at[i] == b.at[j] ? corner + 1 : above > row[j] ? above : row[j];
            corner = above;
        }
    length = row[b.n];
    free(row);
    return length;
}

static double ratio_of(struct slice a, struct slice b, enum code_ratio ratio)
{
    int64_t same = ratio == RATIO_DIFFLIB ? matched(a, b) : common_subsequence(a, b);

    return a.n + b.n ? rint(100 * (2.0 * (double)same / (double)(a.n + b.n))) : 100;
}

double score_ratio(const char *a, const char *b, enum code_ratio ratio)
{
    struct runes x = runes_of(a), y = runes_of(b);
    double percent = ratio_of(slice_of(x), slice_of(y), ratio);

    free(x.at);
    free(y.at);
    return percent;
}

/* A line of prose or comment is not the answer. */
static bool is_code(struct slice line)
{
    for (int64_t i = 0; i < line.n; i++)
        if (line.at[i] == '`' || line.at[i] == '#' || (line.at[i] == '/' && i + 1 < line.n && line.at[i + 1] == '/'))
            return false;
    return true;
}

double score_code(const char *prediction, const char *answer, enum code_ratio ratio)
{
    struct runes p, a = runes_of(answer);
    struct slices lines = { 0 };
    struct slice code = { 0 };
    double percent;

    while (*prediction == '\n')
        prediction++;
    p = runes_of(prediction);
    slices_split_at(&lines, slice_of(p), '\n');
    for (int64_t i = 0; i < lines.n; i++)
        if (is_code(lines.at[i])) {
            code = lines.at[i];
            break;
        }
    percent = ratio_of(code, slice_of(a), ratio);
    free(lines.at);
    free(p.at);
    free(a.at);
    return percent / 100;
}
