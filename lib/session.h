/* session.h - a model with memory in hand: feed tokens, get the next token's logits.
 *
 *   session_open(&s, &model, 1)                       N sequences side by side
 *   session_feed(&s, ids, counts, logits)             any number of tokens each, in pieces of bounded memory
 *   session_close(&s)
 * However a text is cut into calls, the result is the same. */
#ifndef SESSION_H
#define SESSION_H
#include "model.h"
EXTERN_C_BEGIN

struct session {
    struct model      *model;
    struct model_state state;
    int                n;            /* sequences */
    int64_t            chunk;        /* tokens of one trip through the model, all sequences together */
    bool               fresh;        /* nothing was fed yet */
    int64_t            fed;          /* tokens each sequence has seen at most */
    struct pass        pass;         /* want_var, watch, watch_arg may be set by the caller */
};
int  session_open(struct session *s, struct model *m, int n);
/* ids[i] points at count[i] tokens of sequence i; logits [n, vocab]: the row of a sequence becomes that
 * of its last token, and stays as it was where count is 0. */
void session_feed(struct session *s, const int32_t *const *ids, const int64_t *count, float *logits);
void session_close(struct session *s);

/* The memory as a file, bound to the model it came from; pending: tokens emitted but not yet fed. */
int  session_save(const struct session *s, const char *path, const int32_t *pending, int64_t n);
int  session_load(struct session *s, const char *path, int32_t *pending, int64_t cap, int64_t *n);

/* temperature 0: greedy; top_k 0 and top_p 1: no filter */
struct sampler { float temperature; int top_k; float top_p; uint64_t seed; };
/* One id below `vocab`, a function of the logits and (seed, index). */
int32_t sample(const struct sampler *s, const float *logits, int64_t vocab, int64_t index);
int32_t argmax(const float *logits, int64_t vocab);
EXTERN_C_END
#endif
