/* bpe_json.c - the components of a tokenizer.json around its model. A type that is not known here is
 * refused by name: text silently tokenized in another way would be worse than none. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include <utf8proc.h>

/* Calls `one` for a component, or for each of those in a Sequence, whose list is under `key`. */
int component_each(struct bpe *b, const struct json *j, const char *what, const char *key,
                   int (*one)(struct bpe *, const struct json *, const char *))
{
    const char *type = NULL;
    const struct json *list;
    int status = 0;

    if (!j)
        return 0;
    if (!json_is_object(j) || json_string(j, "type", &type) < 1)
        return fail("%s: %s: expected an object with a type", b->name, what);
    if (strcmp(type, "Sequence"))
        return one(b, j, type);
    list = json_at(j, key);
    if (!json_is_array(list))
        return fail("%s: %s: expected a list of %s", b->name, what, key);
    for (struct json *item = json_first(list); item && !status; item = json_next(item)) {
        if (!json_is_object(item) || json_string(item, "type", &type) < 1)
            status = fail("%s: %s: expected an object with a type", b->name, what);
        else if (!strcmp(type, "Sequence"))
            status = fail("%s: %s: a Sequence inside a Sequence is not supported", b->name, what);
        else
            status = one(b, item, type);
    }
    return status;
}

int component_string(const struct bpe *b, const struct json *j, const char *key, struct buffer *out)
{
    const char *text;
    struct buffer room = { 0 };
    struct bytes s;

    if (json_string(j, key, &text) < 1)
        return fail("%s: expected a string \"%s\"", b->name, key);
    s = json_bytes(&room, text);
    buffer_add(out, s.at, s.n);
    free(room.at);
    return 0;
}

/* {"String": ...} or {"Regex": ...} under "pattern". */
static int pattern_read(struct bpe *b, const struct json *j, struct buffer *literal, struct regex **regex)
{
    const struct json *p = json_at(j, "pattern");
    const char *text = NULL;

    if (json_is_object(p) && json_string(p, "Regex", &text) == 1)
        return (*regex = regex_open(text, b->name)) ? 0 : -1;
    if (!json_is_object(p) || component_string(b, p, "String", literal))
        return fail("%s: expected a pattern, a String or a Regex", b->name);
    return literal->n ? 0 : fail("%s: an empty pattern", b->name);
}

static int normalizer_one(struct bpe *b, const struct json *j, const char *type)
{
    static const struct { const char *type; int form; } forms[] = {
        { "NFC",  UTF8PROC_STABLE | UTF8PROC_COMPOSE },
        { "NFD",  UTF8PROC_STABLE | UTF8PROC_DECOMPOSE },
        { "NFKC", UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT },
        { "NFKD", UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT },
    };
    struct norm *n;

    if (b->norms == STEPS)
        return fail("%s: normalizer: more than %d steps", b->name, STEPS);
    n = &b->norm[b->norms++];
    for (size_t i = 0; i < LEN(forms); i++)
        if (!strcmp(type, forms[i].type)) {
            n->kind = NORM_FORM;
            n->form = forms[i].form;
            return 0;
        }
    if (!strcmp(type, "Prepend")) {
        n->kind = NORM_PREPEND;
        return component_string(b, j, "prepend", &n->to);
    }
    if (!strcmp(type, "Replace")) {
        n->kind = NORM_REPLACE;
        return pattern_read(b, j, &n->from, &n->regex) || component_string(b, j, "content", &n->to) ? -1 : 0;
    }
    return fail("%s: normalizer: type \"%s\" is not supported", b->name, type);
}

static struct pre *pre_new(struct bpe *b, enum pre_kind kind)
{
    if (b->pres == STEPS) {
        fail("%s: pre_tokenizer: more than %d steps", b->name, STEPS);
        return NULL;
    }
    b->pre[b->pres].kind = kind;
    return &b->pre[b->pres++];
}

static int byte_level(struct bpe *b, const struct json *j)
{
    bool prefix = true, regex = true;

    if (json_bool(j, "add_prefix_space", &prefix) < 0 || json_bool(j, "use_regex", &regex) < 0)
        return -1;
    if (b->byte_level)
        return fail("%s: pre_tokenizer: two of type \"ByteLevel\"", b->name);
    b->byte_level = true;
    if (prefix && b->pres)
        return fail("%s: pre_tokenizer: add_prefix_space after another split is not supported", b->name);
    if (prefix && !pre_new(b, PRE_PREFIX))
        return -1;
    return regex && !pre_new(b, PRE_GPT2) ? -1 : 0;
}

/* Patterns of widely used models whose pieces never reach across a letter and the space after it. */
static bool cuts_before_space(const char *pattern)
{
    static const char *const known[] = {
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
            "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
            "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    };

    for (size_t i = 0; i < LEN(known); i++)
        if (!strcmp(pattern, known[i]))
            return true;
    return false;
}

static int split(struct bpe *b, const struct json *j)
{
    static const char *const names[] = { "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext" };
    const char *behavior = "", *text = NULL;
    struct pre *s = pre_new(b, PRE_SPLIT);
    size_t k = 0;

    if (!s || json_string(j, "behavior", &behavior) < 0 || json_bool(j, "invert", &s->invert) < 0)
        return -1;
    while (k < LEN(names) && strcmp(behavior, names[k]))
        k++;
    if (k == LEN(names))
        return fail("%s: pre_tokenizer: Split: behavior \"%s\" is not supported", b->name, behavior);
    s->behavior = (enum behavior)k;
    if (json_is_object(json_at(j, "pattern")) && json_string(json_at(j, "pattern"), "Regex", &text) == 1) {
        bool keeps = s->behavior == ISOLATED || (s->behavior == REMOVED && s->invert);

        if (keeps && !strcmp(text, pretoken_gpt2)) {
            s->kind = PRE_GPT2;
            return 0;
        }
        s->before_space = keeps && cuts_before_space(text);
    }
    return pattern_read(b, j, &s->literal, &s->regex);
}

static int metaspace(struct bpe *b, const struct json *j)
{
    struct pre *s = pre_new(b, PRE_METASPACE);
    const char *scheme = "always";
    bool legacy = true;

    if (!s)
        return -1;
    s->each = true;
    if (component_string(b, j, "replacement", &s->literal) || json_bool(j, "split", &s->each) < 0 ||
        json_bool(j, "add_prefix_space", &legacy) < 0)
        return -1;
    scheme = legacy ? scheme : "never";
    if (json_string(j, "prepend_scheme", &scheme) < 0)
        return -1;
    if (strcmp(scheme, "always") && strcmp(scheme, "first") && strcmp(scheme, "never"))
        return fail("%s: pre_tokenizer: prepend_scheme \"%s\" is not supported", b->name, scheme);
    if (!s->literal.n)
        return fail("%s: pre_tokenizer: Metaspace without a replacement", b->name);
    s->prefix = strcmp(scheme, "never") != 0;
    s->first = !strcmp(scheme, "first");
    return 0;
}

static int pre_tokenizer_one(struct bpe *b, const struct json *j, const char *type)
{
    struct pre *s;

    if (!strcmp(type, "ByteLevel"))
        return byte_level(b, j);
    if (b->byte_level)
        return fail("%s: pre_tokenizer: type \"%s\" after ByteLevel is not supported", b->name, type);
    if (!strcmp(type, "Split"))
        return split(b, j);
    if (!strcmp(type, "Metaspace"))
        return metaspace(b, j);
    if (strcmp(type, "Digits"))
        return fail("%s: pre_tokenizer: type \"%s\" is not supported", b->name, type);
    s = pre_new(b, PRE_DIGITS);
    return !s || json_bool(j, "individual_digits", &s->each) < 0 ? -1 : 0;
}

/* It adds tokens around a text, which is the caller's business here: only the first one is kept. */
static int post_processor_one(struct bpe *b, const struct json *j, const char *type)
{
    const struct json *first = json_first(json_at(j, "single")), *special = json_at(first, "SpecialToken");
    const char *name = NULL;

    if (!strcmp(type, "ByteLevel"))
        return 0;
    if (strcmp(type, "TemplateProcessing"))
        return fail("%s: post_processor: type \"%s\" is not supported", b->name, type);
    if (!special)
        return 0;
    if (json_string(special, "id", &name) < 1)
        return fail("%s: post_processor: a special token without a name", b->name);
    b->bos = vocab_find(b, name, strlen(name));
    return b->bos >= 0 ? 0 : fail("%s: post_processor: \"%s\" is not in the vocabulary", b->name, name);
}

int components_read(struct bpe *b, const struct json *root)
{
    if (component_each(b, json_at(root, "normalizer"), "normalizer", "normalizers", normalizer_one))
        return -1;
    return component_each(b, json_at(root, "pre_tokenizer"), "pre_tokenizer", "pretokenizers", pre_tokenizer_one);
}

int post_processor_read(struct bpe *b, const struct json *root)
{
    return component_each(b, json_at(root, "post_processor"), "post_processor", "processors", post_processor_one);
}
