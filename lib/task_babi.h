/* task_babi.h - bAbI's questions, and how BABILong scores an answer. */
#ifndef TASK_BABI_H
#define TASK_BABI_H
#include "json.h"
EXTERN_C_BEGIN

struct babi_question {
    const char *task;                    /* "qa1"; lives as long as the list */
    const char *fact;                    /* sentences, a newline after each; or the whole context */
    const char *question, *target;
};
struct babi {
    struct babi_question *at;            /* owned, as are its strings but task */
    int64_t n, cap;
};
void babi_add(struct babi *b, const struct babi_question *q);          /* copies the strings */
/* Questions of a file of bAbI ("1 Fact." lines, a question with its answer behind a tab or '|'), at most `most`,
 * 0: all. 0, or -1 with the reason. */
int  babi_read(struct babi *b, const char *path, int64_t most);
void babi_free(struct babi *b);
/* The task in a file's name: qa and a number of 1 to 20; NULL when there is none. */
const char *babi_task(const char *path);

/* Right when the target is the only one of the task's labels that stands in the first sentence and not in the
 * question; of tasks without labels, when it stands there. */
bool babi_right(const char *task, const char *target, const char *output, const char *question);

/* The next record of a CSV: fields in quotes may hold commas, newlines and doubled quotes. *at moves on; the fields
 * point into text, which is changed. Returns how many, 0 at the end, -1 when a quote is not closed. */
int  csv_next(char **at, char **field, int most);

EXTERN_C_END
#endif
