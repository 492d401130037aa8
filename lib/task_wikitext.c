/* task_wikitext.c - perplexity of WikiText's pages, as lm-evaluation-harness defines it.
 *
 *   word_perplexity = exp(-sum log p(page) / sum words(page)), byte_perplexity likewise, bits = its log2
 *
 * log p is that of the page without the corpus's spaced punctuation, after a separator; words and bytes are
 * those of the page as it is in the file. Memory is carried through a page of any length; with --context N
 * a page falls into windows of N inputs, the last one reaching back over its neighbour to be full. */
#define _POSIX_C_SOURCE 200809L
#include "task_ask.h"
#include "task_text.h"
#include <errno.h>
#include <math.h>

struct page { int64_t first, n, words, bytes; };      /* its windows among the requests */
struct pages { struct asks asks; struct page *at; int64_t n, cap; };

/* /' 5/ becomes a text that was meant as a pattern. */
static char *replace_slashes(char *text)
{
    struct text out = { 0 };
    const char *p = text;

    text_add(&out, "%s", "");
    for (size_t n = strcspn(p, "/"); text_add(&out, "%.*s", (int)n, p), *(p += n); n = strcspn(p, "/")) {
        bool hit = !strncmp(p, "/' ", 3) && p[3] >= '0' && p[3] <= '9' && p[4] == '/';
        text_add(&out, hit ? "/'[0-9]/" : "/");
        p += hit ? 5 : 1;
    }
    free(text);
    return out.at;
}

/* White space inside a pair of brackets or quotes goes. */
static char *tighten(char *text, uint32_t open, uint32_t close)
{
    struct runes r = runes_of(text);
    struct text out = { 0 };
    int64_t i = 0;

    while (i < r.n) {
        int64_t from = i, end;

        while (i < r.n && r.at[i] != open)
            i++;
        for (end = i + 1; end < r.n && r.at[end] != close;)
            end++;
        if (i >= r.n || end >= r.n) {
            text_slice(&out, (struct slice){ r.at + from, r.n - from });
            break;
        }
        text_slice(&out, (struct slice){ r.at + from, i + 1 - from });
        text_slice(&out, slice_strip((struct slice){ r.at + i + 1, end - i - 1 }));
        text_slice(&out, (struct slice){ r.at + end, 1 });
        i = end + 1;
    }
    text_add(&out, "%s", "");
    free(r.at);
    free(text);
    return out.at;
}

/* The page as it was before the corpus was tokenized, nearly; text is freed, the caller frees the answer. */
char *wikitext_page(char *text)
{
    static const char *const early[][2] = {
        { " @-@ ", "-" }, { " @,@ ", "," }, { " @.@ ", "." }, { " : ", ": " }, { " ; ", "; " }, { " . ", ". " },
        { " ! ", "! " }, { " ? ", "? " }, { " , ", ", " }
    };
    static const char *const late[][2] = {
        { "= = = =", "====" }, { "= = =", "===" }, { "= =", "==" }, { " \xC2\xB0 ", "\xC2\xB0" }, { " \n", "\n" },
        { "\n ", "\n" }, { " N ", " 1 " }, { " 's", "'s" }
    };
    static const char pairs[][2] = { { '(', ')' }, { '[', ']' }, { '{', '}' }, { '"', '"' }, { '\'', '\'' } };

    text = replace_slashes(text_replaced(text, "s '", "s'"));
    for (size_t i = 0; i < LEN(early); i++)
        text = text_replaced(text, early[i][0], early[i][1]);
    for (size_t i = 0; i < LEN(pairs); i++)
        text = tighten(text, (uint32_t)pairs[i][0], (uint32_t)pairs[i][1]);
    for (size_t i = 0; i < LEN(late); i++)
        text = text_replaced(text, late[i][0], late[i][1]);
    return text;
}

/* The parts that white space divides, an empty one at either end included. */
static int64_t count_words(const char *text)
{
    struct runes r = runes_of(text);
    int64_t words = 1;

    for (int64_t i = 0; i < r.n; i++)
        words += rune_is_space(r.at[i]) && !(i && rune_is_space(r.at[i - 1]));
    free(r.at);
    return words;
}

/* A line " = Title = " and no deeper one. */
static bool is_title(const char *line, size_t n)
{
    char *s = mem_new(n + 1, 1);
    struct runes r;
    struct slice x;
    bool is;

    memcpy(s, line, n);
    s = text_replaced(text_replaced(s, "= = =", "==="), "= =", "==");
    r = runes_of(s);
    x = slice_strip(slice_of(r));
    is = x.n >= 2 && x.at[0] == '=' && x.at[1] == ' ' && x.at[x.n - 2] == ' ' && x.at[x.n - 1] == '=';
    free(r.at);
    free(s);
    return is;
}

/* Windows of run->context inputs, each predicting what no earlier one did. */
static void add_windows(struct task_run *r, struct pages *p, const struct bpe_ids *ids)
{
    int64_t most = r->context ? r->context : ids->n, predicted = 0, all = ids->n - 1;     /* ids[0]: the separator */

    for (int64_t end; predicted < all; predicted = end) {
        struct ask *a;
        int64_t from;

        end = all - predicted < most ? all : predicted + most;
        from = end > most ? end - most : 0;
        asks_add(&p->asks, "", "");
        a = &p->asks.at[p->asks.n - 1];
        a->n = end - from + 1;
        a->scored = end - predicted;
        a->id = mem_new((size_t)a->n, sizeof *a->id);
        memcpy(a->id, ids->at + from, (size_t)a->n * sizeof *a->id);
        p->at[p->n - 1].n++;
    }
}

static int add_page(struct task_run *r, struct pages *p, const char *text, size_t n)
{
    struct bpe_ids ids = { 0 };
    char *page = mem_new(n + 1, 1);
    int32_t prefix = ask_prefix(r->m);
    int status;

    memcpy(page, text, n);
    if (strspn(page, " \t\r\n") == n || (r->limit && p->n >= r->limit)) {
        free(page);
        return 0;
    }
    if (p->n == p->cap)
        p->at = mem_grow(p->at, (size_t)(p->cap = 2 * p->cap + 64), sizeof *p->at);
    p->at[p->n++] = (struct page){ .first = p->asks.n, .words = count_words(page), .bytes = (int64_t)n };
    page = wikitext_page(page);
    bpe_ids_reserve(&ids, 1);
    ids.at[ids.n++] = prefix;
    status = prefix < 0 || bpe_encode(r->m->encoder, &ids, page, strlen(page), 0) < 0 ? -1 : 0;
    if (!status)
        add_windows(r, p, &ids);
    bpe_ids_free(&ids);
    free(page);
    return status;
}

/* Pages begin at titles; the newline before a title belongs to neither. */
static int read_pages(struct task_run *r, struct pages *p, const char *path)
{
    size_t n = 0;
    char *text = file_read(path, &n);
    int status = text ? 0 : -1;

    for (size_t at = 0, from = 0, line; !status && at <= n; at += line + 1) {
        line = strcspn(text + at, "\n");
        if (is_title(text + at, line) && at) {
            status = add_page(r, p, text + from, at - 1 - from);
            from = at;
        }
        if (at + line >= n && !status)
            status = add_page(r, p, text + from, n - from);
    }
    free(text);
    return status;
}

/* exp(-sum log p / sum weight), and how far the sample moves it: to first order, as of a ratio of sums. */
static void report(struct task_run *r, const struct pages *p, const char *metric, bool words, bool bits)
{
    struct result x = { .task = r->task->name, .metric = metric, .n = p->n, .open = true };
    double sum = 0, weight = 0, spread = 0, rate;

    for (int pass = 0; pass < 2; pass++) {
        rate = pass ? sum / weight : 0;
        for (int64_t i = 0; i < p->n; i++) {
            double ll = 0, w = (double)(words ? p->at[i].words : p->at[i].bytes);
            for (int64_t k = 0; k < p->at[i].n; k++)
                ll += p->asks.at[p->at[i].first + k].log_prob;
            sum += pass ? 0 : ll;
            weight += pass ? 0 : w;
            spread += pass ? (ll - rate * w) * (ll - rate * w) : 0;
        }
    }
    x.value = bits ? -rate / log(2) : exp(-rate);
    x.error = sqrt(spread * (double)p->n / (double)(p->n - 1)) / weight * (bits ? 1 / log(2) : x.value);
    result_show(r->results, &x);
}

static int write_log(struct task_run *r, const struct pages *p)
{
    FILE *f = r->log ? fopen(r->log, "w") : NULL;

    if (!r->log)
        return 0;
    for (int64_t i = 0; f && i < p->n; i++) {
        double ll = 0;
        for (int64_t k = 0; k < p->at[i].n; k++)
            ll += p->asks.at[p->at[i].first + k].log_prob;
        fprintf(f, "{\"task\": \"%s\", \"doc\": %lld, \"words\": %lld, \"bytes\": %lld, ", r->task->name, (long long)i,
                (long long)p->at[i].words, (long long)p->at[i].bytes);
        fprintf(f, "\"windows\": %lld, \"log_prob\": %.9g}\n", (long long)p->at[i].n, ll);
    }
    return f && !ferror(f) && !fclose(f) ? 0 : fail("%s: %s", r->log, strerror(errno));
}

static int run(struct task_run *r)
{
    struct pages p = { 0 };
    int status = 0;

    for (int i = 0; i < r->files && !status; i++)
        status = read_pages(r, &p, r->data[i]);
    if (!status && !p.n)
        status = fail("wikitext: the data has no page");
    if (!status && !(status = asks_answer(r, &p.asks, false))) {
        report(r, &p, "word_perplexity", true, false);
        report(r, &p, "byte_perplexity", false, false);
        report(r, &p, "bits_per_byte", false, true);
        status = write_log(r, &p);
    }
    asks_free(&p.asks);
    free(p.at);
    return status;
}

const struct task task_wikitext = { "wikitext", "perplexity per word and byte of WikiText's pages", .run = run };
