/* task_niah.h - needles in haystacks: a sentence with a value, somewhere in a long text, is asked for at its end.
 *
 * Forms, by the names that RULER gave them:
 *
 *   single_1     the haystack is a few sentences over and over; a word's number
 *   single_2, 3  prose of --background; a word's number, a word's uuid
 *   multikey_1   as single_2, with three more needles of other words
 *   multikey_2   the haystack is such needles; a word's number
 *   multikey_3   the same of uuids to uuids
 *   multivalue   as single_2, with three more numbers of the same word, and all four are asked for
 *   multiquery   as multikey_1, and the numbers of all four words are asked for
 *
 * A sample is a function of the seed, its form, length, depth and number, the wording, and the tokenizer. */
#ifndef TASK_NIAH_H
#define TASK_NIAH_H
#include "task.h"
EXTERN_C_BEGIN

enum needle_kind { NUMBER, WORD, UUID };
enum haystack { NOISE, PROSE, NEEDLES };
/* needles: of the form itself; the first `values` have the key that is asked for, the first `queries` keys are asked
 * for. */
struct niah_form {
    const char *name;
    enum haystack haystack;
    enum needle_kind key, value;
    int needles, values, queries;
};
const struct niah_form *niah_form(const char *name);      /* NULL when there is none; NULL: the first of the list */
const struct niah_form *niah_form_next(const struct niah_form *f);

/* What the texts are made of: our own words, or those of a file. */
struct wording {
    struct json *root;
    const char *prompt;                  /* {context}, {query} or {key}, {kind} or {type_needle_v} */
    const char *prompts;                 /* the same when several values are asked for; NULL: the file has none */
    const char *needle;                  /* {key}, {value}, {kind}, {type_needle_v}: the kind's plural */
    const char *noise;
    const char **adjective, **noun;      /* owned lists of borrowed strings */
    int         adjectives, nouns;
    char      **sentence;                /* of --background, owned */
    int64_t     sentences;
};
int  wording_open(struct wording *w, const char *file, const char *background);      /* either may be NULL */
void wording_close(struct wording *w);
/* Sentences out of a text: they end at . ! or ? before white space; white space becomes one space. */
void wording_sentences(struct wording *w, const char *text, size_t n);
extern const char *const niah_adjective[64], *const niah_noun[64];

struct niah_sample { const struct niah_form *form; int64_t length, number; double depth; uint64_t seed; };
enum { NEEDLE_NAME = 200 };
/* How many values a form asks for: those of its first needles. */
static inline int niah_answers(const struct niah_form *f) { return f->values > f->queries ? f->values : f->queries; }
/* The key and value of needle k; k 0 is the one that is asked for. */
void niah_needle(const struct wording *w, const struct niah_sample *s, int64_t k, char key[NEEDLE_NAME],
                 char value[NEEDLE_NAME]);
/* The longest prompt of at most length - answer tokens. 0, or -1 with the reason. */
int  niah_prompt(struct task_run *r, const struct wording *w, const struct niah_sample *s, int64_t answer,
                 struct text *out);

EXTERN_C_END
#endif
