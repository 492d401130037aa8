/* task_niah_make.c - one needle, and the longest haystack around it that fits.
 *
 *   context(n) = n units of the haystack, the needle before unit round(n depth / 100), others anywhere */
#define _POSIX_C_SOURCE 200809L
#include "rng.h"
#include "task_niah.h"
#include "task_prompt.h"
#include "task_recall.h"
#include <math.h>

static const struct niah_form forms[] = {
    { "single_1", NOISE, WORD, NUMBER, 1, 1, 1 }, { "single_2", PROSE, WORD, NUMBER, 1, 1, 1 },
    { "single_3", PROSE, WORD, UUID, 1, 1, 1 },
    { "multikey_1", PROSE, WORD, NUMBER, 4, 1, 1 }, { "multikey_2", NEEDLES, WORD, NUMBER, 1, 1, 1 },
    { "multikey_3", NEEDLES, UUID, UUID, 1, 1, 1 },
    { "multivalue", PROSE, WORD, NUMBER, 4, 4, 1 }, { "multiquery", PROSE, WORD, NUMBER, 4, 1, 4 }
};

const struct niah_form *niah_form_next(const struct niah_form *f)
{
    f = f ? f + 1 : forms;
    return f < forms + LEN(forms) ? f : NULL;
}

const struct niah_form *niah_form(const char *name)
{
    const struct niah_form *f = NULL;

    while ((f = niah_form_next(f)) && strcmp(f->name, name))
        ;
    return f;
}

static void make_name(const struct wording *w, enum needle_kind kind, uint64_t a, uint64_t b, char out[NEEDLE_NAME])
{
    switch (kind) {
    case NUMBER:                         /* seven digits */
        snprintf(out, NEEDLE_NAME, "%llu", (unsigned long long)(1000000 + a % 9000000));
        break;
    case WORD:
        snprintf(out, NEEDLE_NAME, "%s-%s", w->adjective[a % (uint64_t)w->adjectives], w->noun[b % (uint64_t)w->nouns]);
        break;
    case UUID:                           /* version 4 */
        snprintf(out, NEEDLE_NAME, "%08llx-%04llx-4%03llx-%llx%03llx-%012llx", (unsigned long long)(a >> 32),
                 (unsigned long long)(a >> 16 & 0xFFFF), (unsigned long long)(a & 0xFFF),
                 (unsigned long long)(8 + (b >> 62)), (unsigned long long)(b >> 48 & 0xFFF),
                 (unsigned long long)(b & 0xFFFFFFFFFFFF));
        break;
    }
}

/* Depth has no say, so that the places of one needle can be compared. */
static uint64_t stream_of(const struct niah_sample *s)
{
    char name[96];

    snprintf(name, sizeof name, "niah %s %lld %lld", s->form->name, (long long)s->length, (long long)s->number);
    return rng_stream(name);
}

static void draw(const struct wording *w, const struct niah_sample *s, enum needle_kind kind, uint64_t at,
                 char out[NEEDLE_NAME])
{
    uint64_t stream = stream_of(s);

    make_name(w, kind, rng_bits(s->seed, stream, 2 * at), rng_bits(s->seed, stream, 2 * at + 1), out);
}

/* Needle k has draws [64 k, 64 k + 64): its value, then tries for a key that is none of those asked for before it. */
void niah_needle(const struct wording *w, const struct niah_sample *s, int64_t k, char key[NEEDLE_NAME],
                 char value[NEEDLE_NAME])
{
    char asked[4][NEEDLE_NAME];
    int64_t before = k < s->form->queries ? k : s->form->queries;
    uint64_t at = 64 * (uint64_t)k;
    bool taken = true;

    REQUIRE(before <= (int64_t)LEN(asked));
    draw(w, s, s->form->value, at, value);
    for (int64_t i = 0; i < before; i++) {
        char other[NEEDLE_NAME];
        niah_needle(w, s, i, asked[i], other);
    }
    if (k < s->form->values)
        at = 0;
    draw(w, s, s->form->key, at + 1, key);
    for (int i = 2; at && i < 64 && taken; i++) {
        taken = false;
        for (int64_t j = 0; j < before; j++)
            taken |= !strcmp(key, asked[j]);
        if (taken)
            draw(w, s, s->form->key, at + (uint64_t)i, key);
    }
}

/* "a", or "a, b, and c". */
static void add_query(const struct wording *w, const struct niah_sample *s, struct text *out)
{
    char key[NEEDLE_NAME], value[NEEDLE_NAME];
    int n = s->form->queries;

    for (int k = 0; k < n; k++) {
        niah_needle(w, s, k, key, value);
        text_add(out, "%s%s", !k ? "" : k + 1 < n ? ", " : ", and ", key);
    }
}

static const char *const one[] = { "number", "word", "uuid" }, *const many[] = { "numbers", "words", "uuids" };

static int add_needle(const struct wording *w, const struct niah_sample *s, int64_t k, struct text *out)
{
    char key[NEEDLE_NAME], value[NEEDLE_NAME];

    niah_needle(w, s, k, key, value);
    return prompt_fill_words(out, w->needle, (struct prompt_word[]){
        { "key", key }, { "value", value }, { "kind", one[s->form->value] },
        { "type_needle_v", many[s->form->value] }, { NULL, NULL } });
}

/* Unit i of the haystack: haystack needles come after those of the form. */
static int add_unit(const struct wording *w, const struct niah_sample *s, int64_t i, struct text *out)
{
    uint64_t from;

    switch (s->form->haystack) {
    case NOISE:
        text_add(out, "%s", w->noise);
        return 0;
    case PROSE:
        from = rng_bits(s->seed, stream_of(s), UINT64_MAX);
        text_add(out, "%s", w->sentence[(from % (uint64_t)w->sentences + (uint64_t)i) % (uint64_t)w->sentences]);
        return 0;
    case NEEDLES:
        return add_needle(w, s, s->form->needles + i, out);
    }
    BUG("haystack %d", (int)s->form->haystack);
}

/* Before which unit needle k stands. */
static int64_t place(const struct niah_sample *s, int64_t k, int64_t units)
{
    if (k)
        return (int64_t)(rng_uniform(s->seed, stream_of(s), UINT64_MAX - (uint64_t)k) * (double)(units + 1));
    return (int64_t)floor((double)units * s->depth / 100 + 0.5);
}

static int compose(const struct wording *w, const struct niah_sample *s, int64_t units, struct text *out)
{
    const char *between = s->form->haystack == PROSE ? " " : "\n";
    bool several = niah_answers(s->form) > 1;
    const char *kind = several ? many[s->form->value] : one[s->form->value];
    struct text context = { 0 }, query = { 0 };
    int status = 0;

    for (int64_t i = 0; i <= units && !status; i++) {
        for (int64_t k = 0; k < s->form->needles; k++)
            if (place(s, k, units) == i) {
                text_add(&context, "%s", context.n ? between : "");
                status |= add_needle(w, s, k, &context);
            }
        if (i < units) {
            text_add(&context, "%s", context.n ? between : "");
            status |= add_unit(w, s, i, &context);
        }
    }
    add_query(w, s, &query);
    text_free(out);
    if (!status)
        status = prompt_fill_words(out, several ? w->prompts : w->prompt, (struct prompt_word[]){
            { "context", context.at }, { "query", query.at }, { "key", query.at }, { "kind", kind },
            { "type_needle_v", kind }, { NULL, NULL } });
    text_free(&query);
    text_free(&context);
    return status ? -1 : 0;
}

struct making { const struct wording *w; const struct niah_sample *s; };

static int make(void *arg, int64_t units, struct text *out)
{
    const struct making *m = arg;

    return compose(m->w, m->s, units, out);
}

int niah_prompt(struct task_run *r, const struct wording *w, const struct niah_sample *s, int64_t answer,
                struct text *out)
{
    struct making m = { w, s };

    if (niah_answers(s->form) > 1 && !w->prompts)
        return fail("niah: %s needs a --wording with 'prompts', which asks for several values", s->form->name);
    return recall_fit(r, s->length - answer, make, &m, out);
}
