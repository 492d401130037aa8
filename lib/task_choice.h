/* task_choice.h - a question with several answers, as requests: what a reader makes of a row of data. */
#ifndef TASK_CHOICE_H
#define TASK_CHOICE_H
#include "task_ask.h"
EXTERN_C_BEGIN

struct choices {                         /* all samples of a run */
    struct asks asks;
    struct question {
        int64_t first, n, gold;          /* its requests, and which of them is right */
        bool    left_out;
    } *at;
    int64_t n, cap;
    struct length { int64_t chars, bytes; } *length;    /* of each request's answer alone */
    int64_t lengths;
    bool    norm;                        /* length counts too: acc_norm and acc_bytes */
};
/* Makes one question of a row; label: its line of the file of labels, NULL without one. 0, or -1 with the reason. */
typedef int choice_read(struct choices *c, const struct json *row, const char *label, const char *where);

choice_read read_piqa, read_hellaswag, read_winogrande, read_arc, read_siqa, read_boolq;
void question_begin(struct choices *c, int64_t gold);
/* answer: the text whose length acc_norm divides by. */
void question_add(struct choices *c, const char *context, const char *continuation, const char *answer);

/* The choice with the greatest log p over 1, the answer's characters, its bytes; the first of equals. */
enum norm { PLAIN, CHARS, BYTES };
int64_t choice_best(const struct choices *c, const struct question *q, enum norm norm);

/* HellaSwag's clean-up of a text; the caller frees. */
char *hellaswag_clean(const char *text);

EXTERN_C_END
#endif
