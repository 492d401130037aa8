/* score.c - F1 over words, numbers found, classes named.
 *
 *   F1 = 2 p r / (p + r), p and r the common words (with multiplicity) over the prediction's and the answer's */
#include "score.h"
#include "score_parts.h"

double score_common(struct slices *a, struct slices *b)
{
    int64_t same = 0;
    double p, r;

    if (!a->n || !b->n)
        return 0;
    qsort(a->at, (size_t)a->n, sizeof *a->at, slice_order);
    qsort(b->at, (size_t)b->n, sizeof *b->at, slice_order);
    for (int64_t i = 0, j = 0; i < a->n && j < b->n;) {
        int order = slice_order(&a->at[i], &b->at[j]);

        same += order == 0;
        i += order <= 0;
        j += order >= 0;
    }
    if (!same)
        return 0;
    p = (double)same / (double)a->n;
    r = (double)same / (double)b->n;
    return 2 * p * r / (p + r);
}

/* Lower case without punctuation, then without articles; the words stay in `text`. */
static struct runes normal_words(struct slices *out, const char *s)
{
    struct runes text = runes_lower(s);
    int64_t n = 0;

    for (int64_t i = 0; i < text.n; i++)
        if (!rune_is_ascii_mark(text.at[i]))
            text.at[n++] = text.at[i];
    text.n = n;
    for (int64_t i = 0; i < n;) {
        int64_t end = i;
        struct slice word;

        while (end < n && rune_is_word(text.at[end]))
            end++;
        word = (struct slice){ text.at + i, end - i };
        if (slice_is(word, "a") || slice_is(word, "an") || slice_is(word, "the"))
            for (int64_t k = i; k < end; k++)
                text.at[k] = ' ';
        i = end > i ? end : i + 1;
    }
    slices_split(out, slice_of(text));
    return text;
}

double score_f1(const char *prediction, const char *answer)
{
    struct slices a = { 0 }, b = { 0 };
    struct runes p = normal_words(&a, prediction), q = normal_words(&b, answer);
    double f = score_common(&a, &b);

    free(p.at);
    free(q.at);
    free(a.at);
    free(b.at);
    return f;
}

/* The runs of digits, in order. */
static void numbers(struct slices *out, struct slice text)
{
    for (int64_t i = 0, from = 0; i <= text.n; i++)
        if (i == text.n || !rune_is_digit(text.at[i])) {
            if (i > from)
                slices_add(out, (struct slice){ text.at + from, i - from });
            from = i + 1;
        }
}

/* The share of the prediction's numbers that are the answer, spelled the same. */
static double share_of_numbers(const char *prediction, struct slice answer)
{
    struct runes p = runes_of(prediction);
    struct slices found = { 0 };
    int64_t right = 0;
    double share;

    numbers(&found, slice_of(p));
    for (int64_t i = 0; i < found.n; i++)
        right += slice_order(&found.at[i], &answer) == 0;
    share = found.n ? (double)right / (double)found.n : 0;
    free(found.at);
    free(p.at);
    return share;
}

double score_count(const char *prediction, const char *answer)
{
    struct runes a = runes_of(answer);
    double share = share_of_numbers(prediction, slice_of(a));

    free(a.at);
    return share;
}

double score_retrieval(const char *prediction, const char *answer, bool chinese)
{
    const char *head = chinese ? "\xE6\xAE\xB5\xE8\x90\xBD" : "Paragraph ", *at = answer;
    double share = -1;

    while (share < 0 && (at = strstr(at, head))) {
        struct runes a = runes_of(at += strlen(head));
        int64_t n = 0;

        while (n < a.n && rune_is_digit(a.at[n]))
            n++;
        if (n)
            share = share_of_numbers(prediction, (struct slice){ a.at, n });
        free(a.at);
    }
    return share;
}

/* The official loop takes terms out of the list it walks, and so passes over the one after each. */
double score_class(const char *prediction, const char *answer, const char *const *classes, int n)
{
    const char **named = mem_new((size_t)n + 1, sizeof *named);
    int count = 0;
    bool right = false;

    for (int i = 0; i < n; i++)
        if (strstr(prediction, classes[i]))
            named[count++] = classes[i];
    for (int i = 0; i < count; i++) {
        int first = 0;

        if (!strstr(answer, named[i]) || !strcmp(named[i], answer))
            continue;
        while (strcmp(named[first], named[i]))
            first++;
        memmove(named + first, named + first + 1, (size_t)(count - first - 1) * sizeof *named);
        count--;
    }
    for (int i = 0; i < count; i++)
        right |= !strcmp(named[i], answer);
    free(named);
    return right ? 1.0 / count : 0;
}
