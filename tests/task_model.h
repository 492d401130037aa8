/* task_model.h - for tests of tasks: a small model with weights at random and a tokenizer of 300 tokens. */
#ifndef TASK_MODEL_H
#define TASK_MODEL_H
#include "task.h"

/* bos: whether the tokenizer puts its separator first. Its directory is the scratch directory. */
bool task_model_open(struct opened *m, bool bos);
void task_model_close(struct opened *m);
#endif
