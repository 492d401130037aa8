/* score_file.h - a file of predictions in LongBench's form, one JSON object a line with pred, answers,
 * all_classes and length, and its score. */
#ifndef SCORE_FILE_H
#define SCORE_FILE_H
#include "json.h"
#include "score.h"
EXTERN_C_BEGIN

/* The lines of a file, also compressed, that are not blank. */
struct lines;
struct lines *lines_open(const char *path);
int           lines_next(struct lines *l, const char **line, size_t *n);      /* 1; 0 no more; -1 with the reason */
struct json  *lines_json(struct lines *l, const char *line, size_t n);        /* NULL with file and line named */
int64_t       lines_number(const struct lines *l);                            /* of the last line read, from 1 */
void          lines_close(struct lines *l);

enum { SCORE_BUCKETS = 3 };                      /* LongBench-E: under 4000 words, under 8000, more */
extern const char *const score_bucket[SCORE_BUCKETS];
struct score_file {
    const struct score_task *task;
    double  *row;                                /* [n] */
    int     *bucket;                             /* [n] -1: the row has no length */
    int64_t  n;
};
/* 0; 1 when it is Chinese and s is NULL; -1 with the reason. The caller frees with score_file_close. */
int    score_file(struct score_file *f, const char *path, enum code_ratio ratio, struct segmenter *s);
double score_file_mean(const struct score_file *f, int bucket, int64_t *n);   /* bucket -1: all rows */
double score_file_stderr(const struct score_file *f, int bucket);
void   score_file_close(struct score_file *f);

EXTERN_C_END
#endif
