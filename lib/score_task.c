/* score_task.c - LongBench's tasks: which metric, and the rule of the first line. */
#include "score.h"

static const struct score_task tasks[] = {
    { "narrativeqa", F1, false, false },
    { "qasper", F1, false, false },
    { "multifieldqa_en", F1, false, false },
    { "multifieldqa_zh", F1_ZH, false, false },
    { "hotpotqa", F1, false, false },
    { "2wikimqa", F1, false, false },
    { "musique", F1, false, false },
    { "dureader", ROUGE_L_ZH, false, false },
    { "gov_report", ROUGE_L, false, false },
    { "qmsum", ROUGE_L, false, false },
    { "multi_news", ROUGE_L, false, false },
    { "vcsum", ROUGE_L_ZH, false, false },
    { "trec", CLASS, true, true },
    { "triviaqa", F1, true, true },
    { "samsum", ROUGE_L, true, true },
    { "lsht", CLASS, true, true },
    { "passage_count", COUNT, false, false },
    { "passage_retrieval_en", RETRIEVAL, false, false },
    { "passage_retrieval_zh", RETRIEVAL_ZH, false, false },
    { "lcc", CODE, false, true },
    { "repobench-p", CODE, false, true },
};

const struct score_task *score_task(const char *name)
{
    size_t n = strcspn(name, ".");

    for (size_t i = 0; i < LEN(tasks); i++) {
        size_t k = strlen(tasks[i].name);
        if (!strncmp(name, tasks[i].name, k) && (n == k || (n == k + 2 && !strncmp(name + k, "_e", 2))))
            return &tasks[i];
    }
    return NULL;
}

const struct score_task *score_task_next(const struct score_task *t)
{
    t = t ? t + 1 : tasks;
    return t < tasks + LEN(tasks) ? t : NULL;
}

const char *metric_name(enum metric m, enum code_ratio ratio)
{
    static const char *const names[] = { "qa_f1", "qa_f1_zh", "rouge_l", "rouge_l_zh", "classification", "retrieval",
                                         "retrieval_zh", "count" };

    return m != CODE ? names[m] : ratio == RATIO_DIFFLIB ? "code_sim_difflib" : "code_sim_indel";
}

bool metric_is_chinese(enum metric m)
{
    return m == F1_ZH || m == ROUGE_L_ZH;
}

static double score_one(const struct score_task *t, const char *p, const char *answer, const struct score_row *r,
                        enum code_ratio ratio, struct segmenter *s)
{
    double x = 0;

    switch (t->metric) {
    case F1: return score_f1(p, answer);
    case F1_ZH: return score_f1_zh(s, p, answer);
    case ROUGE_L: return score_rouge_l(p, answer);
    case ROUGE_L_ZH: return score_rouge_l_zh(s, p, answer);
    case CLASS: return score_class(p, answer, r->classes, r->nclasses);
    case COUNT: return score_count(p, answer);
    case CODE: return score_code(p, answer, ratio);
    case RETRIEVAL:
    case RETRIEVAL_ZH: x = score_retrieval(p, answer, t->metric == RETRIEVAL_ZH); break;
    }
    return x >= 0 ? x : (double)fail("%s: the answer '%.40s' names no paragraph", t->name, answer);
}

double score_row(const struct score_task *t, const struct score_row *r, enum code_ratio ratio, struct segmenter *s)
{
    const char *from = r->prediction;
    char *line = NULL;
    double best = 0;

    REQUIRE(s || !metric_is_chinese(t->metric));
    if (t->first_line) {
        size_t n = strcspn(from += strspn(from, "\n"), "\n");
        line = mem_new(n + 1, 1);
        memcpy(line, from, n);
        from = line;
    }
    for (int i = 0; i < r->answers && best >= 0; i++) {
        double x = score_one(t, from, r->answer[i], r, ratio, s);
        best = x < 0 || x > best ? x : best;
    }
    free(line);
    return best;
}
