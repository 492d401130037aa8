/* task_kept.h - answers kept in a directory, so that a run that was stopped goes on where it was.
 *
 * DIR/NAME.jsonl has a line for every finished sample; a settings file beside it says what made them, and
 * another model or other settings are refused. */
#ifndef TASK_KEPT_H
#define TASK_KEPT_H
#include "task.h"
EXTERN_C_BEGIN

/* Creates run->predictions, or finds it made by the same model and settings. file: the settings' name there;
 * more: further members, each beginning with a comma. 0, or -1 with the reason. */
int kept_claim(const struct task_run *r, const char *file, const char *more);
/* Opens DIR/NAME.jsonl behind its last whole line; a torn one is cut off. *done: how many there are. NULL with
 * the reason. */
FILE *kept_open(const struct task_run *r, const char *name, int64_t *done);
/* Gives every line of it to got, which returns 0 or -1 with the reason. */
int   kept_each(const struct task_run *r, const char *name, int (*got)(void *arg, const struct json *row), void *arg);
/* Appends a line and flushes it. */
int   kept_add(FILE *f, const struct text *line);

EXTERN_C_END
#endif
