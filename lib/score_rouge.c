/* score_rouge.c - ROUGE-L as the Python package `rouge` 1.0.1 computes it.
 *
 *   U = the distinct words of the longest common subsequences of all pairs of sentences, one of the answer and one
 *       of the prediction
 *   p = |U| / distinct words of the prediction, r = |U| / those of the answer, f = 2 p r / (p + r + 1e-8)
 *
 * Its habits are kept: sentences end at '.', one of white space alone holds the empty word; which of several
 * longest subsequences counts follows its walk through the table; and that walk is a recursion there, so that
 * a pair of sentences with a path longer than Python's stack makes the whole score 0. */
#include "score_parts.h"

enum { PYTHON_DEPTH = 991 };       /* calls left below the official script's frames, of 1000 */

struct sentences {
    int32_t *word;                 /* numbers that stand for the words */
    int64_t *start;                /* [n+1] */
    int64_t  n;
};
struct known { struct slice text; int32_t *id; };

static int known_order(const void *a, const void *b)
{
    return slice_order(&((const struct known *)a)->text, &((const struct known *)b)->text);
}

/* The words of each sentence as slices of the text; the empty word for one that has none. */
static struct sentences read_sentences(struct slices *words, struct slice text)
{
    struct slices parts = { 0 };
    struct sentences s = { 0 };

    slices_split_at(&parts, text, '.');
    s.start = mem_new((size_t)parts.n + 1, sizeof *s.start);
    for (int64_t i = 0; i < parts.n; i++) {
        int64_t before = words->n;

        if (!parts.at[i].n)
            continue;
        slices_split(words, parts.at[i]);
        if (words->n == before)
            slices_add(words, (struct slice){ text.at, 0 });
        s.start[++s.n] = words->n;
    }
    s.word = mem_new((size_t)words->n + 1, sizeof *s.word);
    free(parts.at);
    return s;
}

/* Numbers the words of both texts, equal ones alike; returns how many there are. */
static int32_t number_words(struct slices *a, int32_t *ida, struct slices *b, int32_t *idb)
{
    struct known *all = mem_new((size_t)(a->n + b->n), sizeof *all);
    int64_t n = 0;
    int32_t next = -1;

    for (int64_t i = 0; i < a->n; i++)
        all[n++] = (struct known){ a->at[i], ida + i };
    for (int64_t i = 0; i < b->n; i++)
        all[n++] = (struct known){ b->at[i], idb + i };
    qsort(all, (size_t)n, sizeof *all, known_order);
    for (int64_t i = 0; i < n; i++) {
        next += !i || known_order(&all[i - 1], &all[i]) != 0;
        *all[i].id = next;
    }
    free(all);
    return next + 1;
}

static int64_t distinct(const int32_t *word, int64_t n, bool *seen, int32_t kinds)
{
    int64_t count = 0;

    memset(seen, 0, (size_t)kinds * sizeof *seen);
    for (int64_t i = 0; i < n; i++) {
        count += !seen[word[i]];
        seen[word[i]] = true;
    }
    return count;
}

/* Marks the words of the subsequence that the package finds; false when its recursion would not end well. */
static bool mark_common(const int32_t *x, int64_t n, const int32_t *y, int64_t m, int64_t depth, bool *in)
{
    uint16_t *table;
    int64_t w = m + 1, calls = 1, i = n, j = m;

    if ((n < m ? n : m) >= depth)
        return false;
    table = mem_new((size_t)((n + 1) * w), sizeof *table);
    for (int64_t a = 1; a <= n; a++)
        for (int64_t b = 1; b <= m; b++) {
            uint16_t up = table[(a - 1) * w + b], left = table[a * w + b - 1];
            uint16_t both = (uint16_t)(table[(a - 1) * w + b - 1] + 1);
            table[a * w + b] = x[a - 1] == y[b - 1] ? both : up > left ? up : left;
        }
    for (; i && j && calls <= depth; calls++)
        if (x[i - 1] == y[j - 1]) {
            in[x[i - 1]] = true;
            i--, j--;
        } else if (table[(i - 1) * w + j] > table[i * w + j - 1])
            i--;
        else
            j--;
    free(table);
    return calls <= depth;
}

static double common_share(const struct sentences *hyp, const struct sentences *ref, int32_t kinds, int64_t depth)
{
    bool *in = mem_new((size_t)kinds, sizeof *in), *seen = mem_new((size_t)kinds, sizeof *seen), fits = true;
    double n = (double)distinct(hyp->word, hyp->start[hyp->n], seen, kinds);
    double m = (double)distinct(ref->word, ref->start[ref->n], seen, kinds), p, r;
    int64_t count = 0;

    for (int64_t a = 0; a < ref->n && fits; a++)
        for (int64_t b = 0; b < hyp->n && fits; b++)
            fits = mark_common(ref->word + ref->start[a], ref->start[a + 1] - ref->start[a],
                               hyp->word + hyp->start[b], hyp->start[b + 1] - hyp->start[b], depth, in);
    for (int32_t i = 0; i < kinds; i++)
        count += in[i];
    free(in);
    free(seen);
    r = (double)count / m;
    p = (double)count / n;
    return fits ? 2.0 * ((p * r) / (p + r + 1e-8)) : 0;
}

double score_rouge_l_runes(struct slice prediction, struct slice answer, int64_t depth)
{
    struct slices a = { 0 }, b = { 0 };
    struct sentences hyp = read_sentences(&a, prediction), ref = read_sentences(&b, answer);
    double f = 0;

    if (hyp.n && ref.n)
        f = common_share(&hyp, &ref, number_words(&a, hyp.word, &b, ref.word), depth);
    free(hyp.word);
    free(hyp.start);
    free(ref.word);
    free(ref.start);
    free(a.at);
    free(b.at);
    return f;
}

double score_rouge_l(const char *prediction, const char *answer)
{
    struct runes p = runes_of(prediction), a = runes_of(answer);
    double f = score_rouge_l_runes(slice_of(p), slice_of(a), PYTHON_DEPTH);

    free(p.at);
    free(a.at);
    return f;
}
