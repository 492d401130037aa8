/* test_score.c - LongBench's metrics: values worked out by hand, then, where the reference data is, every
 * row of the official predictions and their table. */
#define _POSIX_C_SOURCE 200809L
#include "score_file.h"
#include "test.h"
#include <unistd.h>

static void words(void)
{
    CHECK_NEAR(score_f1("City of Light", "City of Light"), 1, 0);
    CHECK_NEAR(score_f1("The Eiffel Tower, in Paris.", "Eiffel Tower"), 2.0 / 3, 1e-12);
    CHECK_NEAR(score_f1("U.S.A.", "USA"), 1, 0);
    CHECK_NEAR(score_f1("the", "the"), 0, 0);
    CHECK_NEAR(score_f1("", ""), 0, 0);
    CHECK_NEAR(score_f1("b b", "b"), 2.0 / 3, 1e-12);
    CHECK_NEAR(score_f1("a\xE2\x80\x93" "b", "\xE2\x80\x93" "b"), 1, 0);       /* an article beside a dash goes */
    CHECK_NEAR(score_f1("\xC3\x89" "A x", "\xC3\xA9" "a\xC2\xA0x"), 1, 0);       /* É lowers; U+00A0 parts words */
    CHECK_NEAR(score_f1("\xCE\x91\xCE\xA3", "\xCE\xB1\xCF\x82"), 1, 0);          /* a sigma that ends a word */
}

static void best_answer(void)
{
    const char *answers[] = { "Paris", "City of Light" };
    struct score_row r = { "City of Light", answers, 2, NULL, 0 };

    CHECK_NEAR(score_row(score_task("hotpotqa"), &r, RATIO_INDEL, NULL), 1, 0);
    r.prediction = "\n\nParis\nQuestion: x";
    CHECK_NEAR(score_row(score_task("triviaqa"), &r, RATIO_INDEL, NULL), 1, 0);
    CHECK_NEAR(score_row(score_task("hotpotqa"), &r, RATIO_INDEL, NULL), 0.5, 1e-12);
    r.answers = 0;
    CHECK_NEAR(score_row(score_task("hotpotqa"), &r, RATIO_INDEL, NULL), 0, 0);
}

static void rouge(void)
{
    static char a[8192], b[8192];

    CHECK_NEAR(score_rouge_l("\xE5\x8C\x97\xE4\xBA\xAC\xE6\x98\xAF", "\xE6\x98\xAF\xE5\x8C\x97\xE4\xBA\xAC"), 0, 0);
    CHECK_NEAR(score_rouge_l("1 2 3 4 5", "3 4 5 2 1"), 0.6, 1e-8);
    CHECK_NEAR(score_rouge_l("x y", ""), 0, 0);
    CHECK_NEAR(score_rouge_l("...", "x"), 0, 0);                                /* no sentence at all */
    CHECK_NEAR(score_rouge_l(" ", " "), 1, 1e-7);                               /* one sentence, the empty word */
    CHECK_NEAR(score_rouge_l("x x x", "x"), 1, 1e-7);                           /* words count once */
    CHECK_NEAR(score_rouge_l("b a. b", "a b c"), 0.4, 1e-7);                    /* of "a" and "b" it finds "b" */
    /* Equal sentences of n words: the walk needs n + 1 calls. */
    for (int i = 0; i < 991; i++)
        memcpy(a + 2 * i, i % 3 ? "x " : "y ", 2), memcpy(b + 2 * i, i % 3 ? "x " : "y ", 2);
    CHECK_NEAR(score_rouge_l(a, b), 0, 0);
    a[2 * 990] = b[2 * 990] = 0;
    CHECK_NEAR(score_rouge_l(a, b), 1, 1e-7);
}

static void found(void)
{
    const char *classes[] = { "A", "Aa", "Aab" }, *other[] = { "cat", "dog" };

    CHECK_NEAR(score_count("12 of 30 ... 12", "12"), 2.0 / 3, 1e-12);
    CHECK_NEAR(score_count("twelve", "12"), 0, 0);
    CHECK_NEAR(score_count("12.0", "12"), 0.5, 0);
    CHECK_NEAR(score_retrieval("Paragraph 3, not 13", "Paragraph 3", false), 0.5, 0);
    CHECK_NEAR(score_retrieval("\xE6\xAE\xB5\xE8\x90\xBD" "7", "\xE6\xAE\xB5\xE8\x90\xBD" "7", true), 1, 0);
    CHECK(score_retrieval("3", "three", false) < 0);
    CHECK_NEAR(score_class("Aab", "Aab", classes, 3), 0.5, 0);
    CHECK_NEAR(score_class("cat or dog", "dog", other, 2), 0.5, 0);
    CHECK_NEAR(score_class("bird", "dog", other, 2), 0, 0);
    CHECK_NEAR(score_class("dog", "dog", other, 2), 1, 0);
}

static void code(void)
{
    for (enum code_ratio r = RATIO_DIFFLIB; r <= RATIO_INDEL; r++) {
        CHECK_NEAR(score_code("\n# c\n// x\nreturn a + b", "return a+b", r), 0.91, 1e-12);
        CHECK_NEAR(score_code("    return a", "return a", r), 0.80, 1e-12);
        CHECK_NEAR(score_code("x // 2", "x // 2", r), 0, 0);
        CHECK_NEAR(score_code("", "", r), 1, 0);
    }
    CHECK_NEAR(score_ratio("abcdxyzabcd", "xyzabcdabcd", RATIO_DIFFLIB), 64, 0);
    CHECK_NEAR(score_ratio("abcdxyzabcd", "xyzabcdabcd", RATIO_INDEL), 73, 0);
}

/* In a string of 200 or more, difflib's index leaves out what is frequent: nothing is left of "ab" here. */
static void popular(void)
{
    static char a[260], b[260];

    for (int i = 0; i < 250; i++)
        a[i] = "ab"[i % 2], b[i] = "ab"[(i + 1) % 2];
    CHECK_NEAR(score_ratio(a, b, RATIO_DIFFLIB), 0, 0);
    CHECK_NEAR(score_ratio(a, b, RATIO_INDEL), 100, 0);
    b[199] = 0;
    CHECK_NEAR(score_ratio(a, b, RATIO_DIFFLIB), 89, 0);
}

static void names(void)
{
    CHECK(score_task("repobench-p.jsonl") && score_task("qasper_e.jsonl") && score_task("qasper_e"));
    CHECK(score_task("multifieldqa_zh")->metric == F1_ZH && score_task("multifieldqa_en.jsonl.zst")->metric == F1);
    CHECK(!score_task("qasper_x") && !score_task("multi_news_first50.jsonl") && !score_task(""));
}

static void chinese(struct segmenter *s)
{
    const char *a = "\xE5\x8C\x97\xE4\xBA\xAC\xE6\x98\xAF\xE4\xB8\xAD\xE5\x9B\xBD\xE7\x9A\x84\xE9\xA6\x96\xE9\x83\xBD";
    const char *b = "\xE4\xB8\xAD\xE5\x9B\xBD\xE7\x9A\x84\xE9\xA6\x96\xE9\x83\xBD\xE6\x98\xAF\xE5\x8C\x97\xE4\xBA\xAC";

    CHECK(!strncmp(segmenter_version(s), "jieba ", 6));
    CHECK_NEAR(score_rouge_l_zh(s, a, b), 0.6, 1e-7);
    CHECK_NEAR(score_f1_zh(s, a, b), 1, 0);
    CHECK_NEAR(score_f1_zh(s, "\xEF\xBC\x8C\xE3\x80\x82", "\xEF\xBC\x8C"), 0, 0);
    CHECK_NEAR(score_rouge_l_zh(s, "a \"quoted\"\nline\\", "a \"quoted\" line\\"), 1, 1e-7);
}

/* All rows of a task against the golden list of their scores; returns the mean in percent, -1 without it. */
static double check_rows(const char *dir, const struct json *golden, const struct score_task *t, enum code_ratio ratio,
                         struct segmenter *s, int64_t *rows)
{
    char path[4096], key[64];
    struct score_file f;
    struct json *list;
    int64_t i = 0;
    double mean = -1;
    int status;

    snprintf(key, sizeof key, "%s%s", t->name, t->metric != CODE ? "" : ratio == RATIO_DIFFLIB ? ":difflib" : ":lev");
    list = json_at(golden, key);
    snprintf(path, sizeof path, "%s/%s.jsonl", dir, t->name);
    if (access(path, R_OK))
        snprintf(path, sizeof path, "%s/%s.jsonl.zst", dir, t->name);
    if (access(path, R_OK) || !list)
        return -1;
    status = score_file(&f, path, ratio, s);
    CHECK(status == (s || !metric_is_chinese(t->metric) ? 0 : 1));
    if (!status) {
        CHECK(json_count(list) == f.n);
        for (struct json *j = json_first(list); j && i < f.n; j = json_next(j), i++) {
            double want = -1;
            json_number(j, &want);
            if (fabs(want - f.row[i]) > 2e-10 * (1 + want))
                printf("%s row %lld: %.12g, golden %.12g\n", key, (long long)i, f.row[i], want);
            CHECK_NEAR(f.row[i], want, 2e-10 * (1 + want));
        }
        mean = 100 * score_file_mean(&f, -1, NULL);
        *rows += f.n;
    }
    score_file_close(&f);
    return mean;
}

/* false: there was nothing to compare with. */
static bool reference(const char *root, struct segmenter *s)
{
    char path[4096], dir[4096];
    struct json *golden, *table;
    char *text, *results;
    size_t n = 0, m = 0;
    int64_t rows = 0, mini = 0;
    int tasks = 0;

    snprintf(path, sizeof path, "%s/data/longbench/golden_per_sample_scores.json", root);
    if (access(path, R_OK)) {
        printf("no %s\n", path);
        return false;
    }
    text = file_read(path, &n);
    golden = json_parse(text, n, path);
    snprintf(path, sizeof path, "%s/data/longbench/pred/llama2-7b-chat-4k/result.json", root);
    results = file_read(path, &m);
    table = json_parse(results, m, path);
    for (const struct score_task *t = NULL; (t = score_task_next(t));)
        for (enum code_ratio r = RATIO_DIFFLIB; r <= (t->metric == CODE ? RATIO_INDEL : RATIO_DIFFLIB); r++) {
            double want = -1, mean;
            snprintf(dir, sizeof dir, "%s/data/longbench/pred/llama2-7b-chat-4k", root);
            mean = check_rows(dir, json_at(golden, "llama2-7b-chat-4k"), t, r, s, &rows);
            json_double(table, t->name, &want);
            if (mean >= 0 && r == RATIO_DIFFLIB) {
                CHECK_NEAR(mean, want, 0.00501);
                tasks++;
            }
            snprintf(dir, sizeof dir, "%s/data/longbench/mini/pred", root);
            check_rows(dir, json_at(golden, "mini"), t, r, s, &mini);
        }
    printf("%d tasks, %lld rows as the official scripts score them, and %lld of mini/pred\n", tasks, (long long)rows,
           (long long)mini);
    CHECK(tasks == (s ? 21 : 18));
    json_free(golden);
    json_free(table);
    free(text);
    free(results);
    return true;
}

int main(void)
{
    struct segmenter *s = segmenter_open();
    bool compared;

    words();
    best_answer();
    rouge();
    found();
    code();
    popular();
    names();
    if (s)
        chinese(s);
    else
        printf("no jieba: Chinese is not tested\n");
    compared = test_reference() && reference(test_reference(), s);
    segmenter_close(s);
    if (!compared)
        return test_skip("score", "LongBench's published predictions are not here; the rest was tested");
    return test_done("score");
}
