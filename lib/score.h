/* score.h - LongBench's metrics: how well a prediction meets an answer, from 0 to 1, equal to the official
 * scripts' values in every quirk (docs/evaluation.md lists them). Strings are UTF-8. */
#ifndef SCORE_H
#define SCORE_H
#include "base.h"
EXTERN_C_BEGIN

enum code_ratio { RATIO_DIFFLIB, RATIO_INDEL };      /* fuzzywuzzy without and with its C extension */

double score_f1(const char *prediction, const char *answer);
double score_rouge_l(const char *prediction, const char *answer);
double score_count(const char *prediction, const char *answer);
/* -1 when the answer does not read "Paragraph N" or, with chinese, the same in Chinese. */
double score_retrieval(const char *prediction, const char *answer, bool chinese);
double score_class(const char *prediction, const char *answer, const char *const *classes, int n);
double score_code(const char *prediction, const char *answer, enum code_ratio ratio);
/* The likeness of two strings in percent, a whole number, as fuzz.ratio gives it. */
double score_ratio(const char *a, const char *b, enum code_ratio ratio);

/* Chinese is cut into words by Python's jieba, which runs beside us as a process: $PALIMPSA_PYTHON, else
 * python3. NULL without a word when it is not there. One thread at a time. */
struct segmenter;
struct segmenter *segmenter_open(void);
void              segmenter_close(struct segmenter *s);
const char       *segmenter_version(const struct segmenter *s);       /* "jieba 0.42.1, dictionary 7197c3211ddd" */
/* -1, with the reason, when the process fails. */
double score_f1_zh(struct segmenter *s, const char *prediction, const char *answer);
double score_rouge_l_zh(struct segmenter *s, const char *prediction, const char *answer);

/* What LongBench says about a task; NULL when there is no such one. name may go on after a '.' or "_e". */
enum metric { F1, F1_ZH, ROUGE_L, ROUGE_L_ZH, CLASS, RETRIEVAL, RETRIEVAL_ZH, COUNT, CODE };
struct score_task {
    const char *name;
    enum metric metric;
    bool first_line;             /* what follows the first line of a prediction does not count */
    bool plain;                  /* the prompt is never wrapped as a chat */
};
const struct score_task *score_task(const char *name);
const struct score_task *score_task_next(const struct score_task *t);       /* NULL starts */
const char *metric_name(enum metric m, enum code_ratio ratio);
bool        metric_is_chinese(enum metric m);

struct score_row {
    const char *prediction;
    const char *const *answer;
    int answers;
    const char *const *classes;
    int nclasses;
};
/* The best over all answers, after the rule of the first line. -1 with the reason. */
double score_row(const struct score_task *t, const struct score_row *r, enum code_ratio ratio, struct segmenter *s);

EXTERN_C_END
#endif
