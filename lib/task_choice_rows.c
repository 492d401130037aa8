/* task_choice_rows.c - rows of the published files into questions, worded as lm-evaluation-harness words them. */
#define _POSIX_C_SOURCE 200809L
#include "task_choice.h"
#include "task_text.h"
#include <utf8proc.h>

void question_begin(struct choices *c, int64_t gold)
{
    if (c->n == c->cap)
        c->at = mem_grow(c->at, (size_t)(c->cap = 2 * c->cap + 64), sizeof *c->at);
    c->at[c->n++] = (struct question){ .first = c->asks.n, .gold = gold };
}

void question_add(struct choices *c, const char *context, const char *continuation, const char *answer)
{
    struct runes r = runes_of(answer);

    asks_add(&c->asks, context, continuation);
    if (c->asks.n > c->lengths)
        c->length = mem_grow(c->length, (size_t)(c->lengths = 2 * c->asks.n), sizeof *c->length);
    c->length[c->asks.n - 1] = (struct length){ r.n, (int64_t)strlen(answer) };
    c->at[c->n - 1].n++;
    free(r.at);
}

/* The answer after a space, as every one but WinoGrande's is asked. */
static void add_spaced(struct choices *c, const char *context, const char *answer)
{
    struct text t = { 0 };

    text_add(&t, " %s", answer);
    question_add(c, context, t.at, answer);
    text_free(&t);
}

static int need(const struct json *row, const char *key, const char **out, const char *where)
{
    int found = json_string(row, key, out);

    return found > 0 ? 0 : found < 0 ? -1 : fail("%s: no '%s'", where, key);
}

/* A label from the row (a number, or a digit as a string) or from its own file; n answers, counted from `from`. */
static int label_of(const struct json *row, const char *key, const char *label, int from, int n, int64_t *gold,
                    const char *where)
{
    const struct json *j = json_at(row, key);
    double number = -1;
    char *end = (char *)"";

    label = j && json_text(j) ? json_text(j) : label;
    if (j && json_number(j, &number))
        ;
    else if (label)
        number = strtod(label, &end);
    else
        return fail("%s: no '%s', and no file of labels", where, key);
    *gold = (int64_t)number - from;
    if (*end || (double)(*gold + from) != number || *gold < 0 || *gold >= n)
        return fail("%s: expected a label from %d to %d", where, from, from + n - 1);
    return 0;
}

int read_piqa(struct choices *c, const struct json *row, const char *label, const char *where)
{
    const char *goal, *sol[2];
    struct text context = { 0 };
    int64_t gold;

    if (need(row, "goal", &goal, where) || need(row, "sol1", &sol[0], where) || need(row, "sol2", &sol[1], where) ||
        label_of(row, "label", label, 0, 2, &gold, where))
        return -1;
    text_add(&context, "Question: %s\nAnswer:", goal);
    question_begin(c, gold);
    for (int i = 0; i < 2; i++)
        add_spaced(c, context.at, sol[i]);
    text_free(&context);
    return 0;
}

int read_siqa(struct choices *c, const struct json *row, const char *label, const char *where)
{
    const char *about, *question, *answer[3];
    struct text context = { 0 };
    int64_t gold;

    if (need(row, "context", &about, where) || need(row, "question", &question, where) ||
        need(row, "answerA", &answer[0], where) || need(row, "answerB", &answer[1], where) ||
        need(row, "answerC", &answer[2], where) || label_of(row, "label", label, 1, 3, &gold, where))
        return -1;
    text_add(&context, "Q: %s %s\nA:", about, question);
    question_begin(c, gold);
    for (int i = 0; i < 3; i++)
        add_spaced(c, context.at, answer[i]);
    text_free(&context);
    return 0;
}

/* Without white space around it, WikiHow's [title] a full stop, other brackets gone, double spaces single. */
char *hellaswag_clean(const char *text)
{
    struct runes r = runes_of(text);
    struct text trimmed = { 0 }, out = { 0 };
    char *s;

    text_slice(&trimmed, slice_strip(slice_of(r)));
    free(r.at);
    s = text_replaced(trimmed.at, " [title]", ". ");
    text_add(&out, "%s", "");
    for (const char *p = s; *p;) {
        size_t inside = *p == '[' ? strcspn(p, "]\n") : 0;

        if (*p == '[' && p[inside] == ']')
            p += inside + 1;
        else
            text_add(&out, "%c", *p++);
    }
    free(s);
    return text_replaced(out.at, "  ", " ");
}

/* str.capitalize(): the first character as in a title, the rest in lower case. */
static void add_capitalized(struct text *t, const char *s)
{
    struct runes r = runes_of(s), low = runes_lower(s);

    if (r.n && low.n)
        low.at[0] = (uint32_t)utf8proc_totitle((utf8proc_int32_t)r.at[0]);
    text_slice(t, slice_of(low));
    free(r.at);
    free(low.at);
}

static int add_endings(struct choices *c, const struct json *list, const char *context, bool clean, const char *where)
{
    for (const struct json *j = json_first(list); j; j = json_next(j)) {
        char *ending = json_text(j) ? clean ? hellaswag_clean(json_text(j)) : NULL : NULL;

        if (!json_text(j))
            return fail("%s: an ending is no string", where);
        add_spaced(c, context, ending ? ending : json_text(j));
        free(ending);
    }
    return 0;
}

/* The published rows, or rows that are cleaned already (query, choices, gold). */
int read_hellaswag(struct choices *c, const struct json *row, const char *label, const char *where)
{
    const char *query, *activity, *a, *b;
    const struct json *endings = json_at(row, json_at(row, "query") ? "choices" : "endings");
    struct text raw = { 0 };
    char *context;
    int64_t gold;
    int status;

    if (json_count(endings ? endings : row) < 2 || !endings || !json_is_array(endings))
        return fail("%s: no list of endings", where);
    if (json_at(row, "query")) {
        if (need(row, "query", &query, where) ||
            label_of(row, "gold", label, 0, (int)json_count(endings), &gold, where))
            return -1;
        question_begin(c, gold);
        return add_endings(c, endings, query, false, where);
    }
    if (need(row, "activity_label", &activity, where) || need(row, "ctx_a", &a, where) ||
        need(row, "ctx_b", &b, where) || label_of(row, "label", label, 0, (int)json_count(endings), &gold, where))
        return -1;
    text_add(&raw, "%s: %s ", activity, a);
    add_capitalized(&raw, b);
    context = hellaswag_clean(raw.at);
    question_begin(c, gold);
    status = add_endings(c, endings, context, true, where);
    free(context);
    text_free(&raw);
    return status;
}

/* Partial scoring: what follows the blank is scored after either filling. */
int read_winogrande(struct choices *c, const struct json *row, const char *label, const char *where)
{
    const char *sentence, *option[2], *blank;
    struct text rest = { 0 };
    struct runes after;
    int64_t gold;

    if (need(row, "sentence", &sentence, where) || need(row, "option1", &option[0], where) ||
        need(row, "option2", &option[1], where) || label_of(row, "answer", label, 1, 2, &gold, where))
        return -1;
    blank = strchr(sentence, '_');
    if (!blank)
        return fail("%s: the sentence has no blank '_'", where);
    after = runes_of(blank + 1);
    text_add(&rest, " ");
    text_slice(&rest, slice_strip(slice_of(after)));
    question_begin(c, gold);
    for (int i = 0; i < 2; i++) {
        struct text context = { 0 };

        text_add(&context, "%.*s%s", (int)(blank - sentence), sentence, option[i]);
        question_add(c, context.at, rest.at, context.at);
        text_free(&context);
    }
    text_free(&rest);
    free(after.at);
    return 0;
}

static int add_arc(struct choices *c, const char *context, const char *text, const char *label, const char *key)
{
    if (!text || !label)
        return -1;
    if (!strcmp(label, key) && c->at[c->n - 1].gold < 0)
        c->at[c->n - 1].gold = c->at[c->n - 1].n;
    add_spaced(c, context, text);
    return 0;
}

/* AI2's form, question.stem and a list of {text, label}; or the Hub's, where choices is two lists. */
int read_arc(struct choices *c, const struct json *row, const char *label, const char *where)
{
    const struct json *q = json_at(row, "question"), *choices = json_at(q && json_is_object(q) ? q : row, "choices");
    const struct json *text = choices && json_is_object(choices) ? json_at(choices, "text") : NULL;
    const struct json *name = text ? json_at(choices, "label") : NULL;
    const char *stem = q ? json_text(q) : NULL, *key;
    struct text context = { 0 };
    int status = 0;

    (void)label;
    if (need(row, "answerKey", &key, where) || (q && json_is_object(q) && need(q, "stem", &stem, where)))
        return -1;
    if (!stem || !choices || (json_is_object(choices) && (!text || !name)))
        return fail("%s: expected question and choices", where);
    text_add(&context, "Question: %s\nAnswer:", stem);
    question_begin(c, -1);
    if (text)
        for (text = json_first(text), name = json_first(name); text && !status; text = json_next(text)) {
            status = name ? add_arc(c, context.at, json_text(text), json_text(name), key) : -1;
            name = name ? json_next(name) : NULL;
        }
    else
        for (const struct json *j = json_first(choices); j && !status; j = json_next(j)) {
            const char *answer = NULL, *letter = NULL;
            if (json_string(j, "text", &answer) > 0 && json_string(j, "label", &letter) > 0)
                status = add_arc(c, context.at, answer, letter, key);
            else
                status = -1;
        }
    text_free(&context);
    if (status || c->at[c->n - 1].gold < 0)
        return fail("%s: expected choices with text and label, one of them '%s'", where, key);
    return 0;
}

/* The original rows keep the title apart; SuperGLUE's passages begin with it. */
int read_boolq(struct choices *c, const struct json *row, const char *label, const char *where)
{
    const char *passage, *question, *title = NULL;
    struct text context = { 0 };
    bool yes = false;
    int64_t gold;
    int found = json_at(row, "answer") ? json_bool(row, "answer", &yes) : 0;

    if (found < 0 || need(row, "passage", &passage, where) || need(row, "question", &question, where) ||
        json_string(row, "title", &title) < 0)
        return -1;
    gold = yes;
    if (!found && label_of(row, "label", label, 0, 2, &gold, where))
        return -1;
    text_add(&context, "%s%s%s\nQuestion: %s?\nAnswer:", title ? title : "", title ? " -- " : "", passage, question);
    question_begin(c, gold);
    add_spaced(c, context.at, "no");
    add_spaced(c, context.at, "yes");
    text_free(&context);
    return 0;
}
