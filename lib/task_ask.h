/* task_ask.h - requests to a model: how likely is this continuation of that context?
 *
 * The conventions are those of lm-evaluation-harness: the two are tokenized as one text and then parted where
 * the context alone ends; white space at the context's end belongs to the continuation; an empty context is
 * one separator. */
#ifndef TASK_ASK_H
#define TASK_ASK_H
#include "task.h"
EXTERN_C_BEGIN

struct ask {
    char    *context, *continuation;     /* owned; as asked */
    int32_t *id;                         /* [n], the continuation's last `scored` among them */
    int64_t  n, scored;
    double   log_prob;
    int      greedy;                     /* 1: every token was the likeliest; -1 nobody looked */
    bool     cut;                        /* tokens were cut off on the left */
    bool     done;                       /* it was answered, perhaps by an earlier invocation */
};
struct asks { struct ask *at; int64_t n, cap; };

/* Adds a request, with copies of the texts. */
void asks_add(struct asks *a, const char *context, const char *continuation);
/* Makes tokens of all, and cuts what is longer than run->context. 0, or -1 with the reason. */
int  asks_encode(struct task_run *r, struct asks *a);
/* Fills log_prob, and greedy when look is set; run->batch of them side by side, 0: as many as are useful. With
 * run->predictions answers are kept there as they come, and those that are there already are taken. */
int  asks_answer(struct task_run *r, struct asks *a, bool look);
void asks_free(struct asks *a);
/* The id that stands before a text that has nothing before it, or -1 with the reason. */
int32_t ask_prefix(const struct opened *m);
/* One line of JSON about a request. */
void ask_log(FILE *f, const char *task, int64_t doc, int64_t choice, int64_t gold, const struct ask *a);

EXTERN_C_END
#endif
