/* task_prompt.h - prompts as LongBench's script makes them, and greedy answers to them. */
#ifndef TASK_PROMPT_H
#define TASK_PROMPT_H
#include "session.h"
#include "task.h"
EXTERN_C_BEGIN

/* Fills {name} with the row's member of that name; {{ and }} are braces. 0, or -1 with the reason. */
int prompt_fill(struct text *out, const char *pattern, const struct json *row);
/* The same from a list that ends with a name of NULL. */
struct prompt_word { const char *name, *value; };
int prompt_fill_words(struct text *out, const char *pattern, const struct prompt_word *word);
/* Longer than `most` tokens, the first and the last half of it remain, each decoded by itself. 1 when it
 * was cut, 0 when not, -1 with the reason. */
int prompt_cut(struct task_run *r, struct text *prompt, int64_t most);
/* Puts the prompt where {prompt} stands in chat. */
int prompt_wrap(struct text *prompt, const char *chat);
/* The bytes of ids without control tokens. */
void prompt_decode(struct text *out, const struct bpe *b, const int32_t *ids, int64_t n);

struct greedy {
    int64_t        most;             /* tokens of an answer */
    const int32_t *stop;             /* ids that end one; an id that is no control token stays in it */
    int            stops;
    bool           one;              /* the first token is none of them */
};
/* Answers n <= s->n prompts side by side; out[i].n grows. */
int  greedy_stops(const struct opened *m, int32_t stop[2]);      /* the ids that end a text; returns how many */
int  greedy_side(const struct task_run *r);                      /* sequences side by side */
void greedy(struct session *s, const struct bpe *b, const struct bpe_ids *prompt, int n, const struct greedy *g,
            struct bpe_ids *out);

EXTERN_C_END
#endif
