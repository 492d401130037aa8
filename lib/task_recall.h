/* task_recall.h - long prompts with short answers: greedy predictions, kept where a run may go on, and their
 * scores by form, length and depth. */
#ifndef TASK_RECALL_H
#define TASK_RECALL_H
#include "task.h"
EXTERN_C_BEGIN

struct recall_sample {
    const char *part;                    /* which form; lives as long as the samples */
    int64_t     length;                  /* tokens of the prompt and its answer, at most; 0: of any length */
    double      depth;                   /* percent; NAN: nowhere in particular */
    int64_t     number;                  /* among those of its part, length and depth */
    double      score;
    bool        done;
};
struct recall {
    struct recall_sample *at;            /* those of a part stand together, in it of a length, in it of a depth */
    int64_t     n, cap;
    const char *metric;
    int64_t     most;                    /* tokens of an answer */
    void       *arg;
    /* Writes a sample's prompt. 0, or -1 with the reason. */
    int       (*prompt)(void *arg, const struct recall_sample *s, struct text *out);
    /* From 0 to 1. Appends the answers that were wanted, as JSON, when answers is not NULL. */
    double    (*score) (void *arg, const struct recall_sample *s, const char *prediction, struct text *answers);
};

void recall_add(struct recall *q, const char *part, int64_t length, double depth, int64_t number);
/* Answers what is not answered yet, and adds results. more: settings that the predictions depend on, as kept_claim
 * wants them. 0, or -1 with the reason. */
int  recall_run(struct task_run *r, struct recall *q, const char *more);
void recall_report(struct task_run *r, const struct recall *q);
void recall_free(struct recall *q);
/* The smallest power of two that is not below n. */
int64_t recall_length(int64_t n);
/* How many tokens a prompt has. -1 with the reason. */
int64_t recall_tokens(struct task_run *r, const struct text *prompt);

/* Writes the longest prompt of at most `most` tokens; make writes the one with so many units of other text. 0, or -1
 * with the reason. */
int  recall_fit(struct task_run *r, int64_t most, int (*make)(void *arg, int64_t units, struct text *out), void *arg,
                struct text *out);
/* sha256 of a file's bytes, in hex; of nothing when path is NULL or cannot be read. */
void file_hash(const char *path, char hash[65]);

/* The share of answers that stand somewhere in the prediction, whatever their case. */
double match_all(const char *prediction, const char *const *answer, int n);

EXTERN_C_END
#endif
