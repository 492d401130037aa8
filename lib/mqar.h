/* mqar.h - multi-query associative recall: key and value pairs, then every key again, where its value is asked.
 *
 *   struct mqar_maker m;
 *   struct mqar q = { .length = 64, .pairs = 8, .vocab = 8192 };
 *   if (mqar_check(&q, "--lengths")) return 1;
 *   mqar_maker_open(&m, &q);
 *   mqar_make(&m, seed, i, token, at);          example i: token [64]; key j is asked at at[j]
 *   mqar_maker_close(&m);
 * Token 2j is key j, token 2j+1 its value and the label at at[j]. An example is a function of (q, seed, i) and
 * of nothing else; a maker is room for one thread. docs/math.md, section 5. */
#ifndef MQAR_H
#define MQAR_H
#include "base.h"
EXTERN_C_BEGIN

struct mqar {
    int64_t length, pairs, vocab;        /* L, n, W */
    bool    random;                      /* other tokens are uniform over the vocabulary, not 0 */
};
struct mqar_maker {
    struct mqar q;
    uint64_t   *seen;                    /* a bit for every token */
    double     *reach;                   /* [slots] 1 / weight */
    struct mqar_slot { double time; int32_t slot; } *slot;
};
/* 0, or -1 with the reason in one line that begins with name. */
int  mqar_check(const struct mqar *q, const char *name);
void mqar_maker_open(struct mqar_maker *m, const struct mqar *q);
void mqar_make(struct mqar_maker *m, uint64_t seed, int64_t i, int32_t *token, int32_t *at);
void mqar_maker_close(struct mqar_maker *m);

/* A seed for a set of its own: "train", "test". */
uint64_t mqar_seed(uint64_t seed, const char *set);

/* Lengths and pairs that are mixed in one set: "64:8+128:16". */
enum { MQAR_MIX = 16 };
struct mqar_mix { struct mqar at[MQAR_MIX]; int n; };
/* One mix after another, by commas: "512:128,64:8+128:16". The caller frees *out. Returns how many, or -1. */
int  mqar_mixes(struct mqar_mix **out, const char *text, int64_t vocab, bool random, const char *name);
int64_t mqar_mix_longest(const struct mqar_mix *m);
double mqar_mix_mean(const struct mqar_mix *m);         /* length */
/* The mix as it is written above. */
bool mqar_mix_text(const struct mqar_mix *m, char *out, size_t size);
EXTERN_C_END
#endif
