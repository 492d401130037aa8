/* score_parts.h - what the score modules share. */
#ifndef SCORE_PARTS_H
#define SCORE_PARTS_H
#include "score.h"
#include "score_text.h"

double score_common(struct slices *a, struct slices *b);     /* F1 of two bags of words, which get sorted */
/* ROUGE-L of two texts; depth: how many calls Python's recursion had left. */
double score_rouge_l_runes(struct slice prediction, struct slice answer, int64_t depth);

#endif
