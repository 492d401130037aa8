/* bpe_config.c - tokenizer_config.json: what Transformers wants beside tokenizer.json. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include <unistd.h>

static bool is_special(const struct json *root, const char *content)
{
    const char *s;
    bool special;

    for (struct json *j = json_first(json_at(root, "added_tokens")); j; j = json_next(j))
        if (json_string(j, "content", &s) > 0 && !strcmp(s, content))
            return json_bool(j, "special", &special) > 0 && special;
    return false;
}

/* What a post-processor puts before a text. */
static const char *first_token(const struct json *processor)
{
    const struct json *first = json_first(json_at(processor, "single"));
    const char *name = NULL;

    if (first && json_at(first, "SpecialToken") && json_string(json_at(first, "SpecialToken"), "id", &name) > 0)
        return name;
    for (struct json *j = json_first(json_at(processor, "processors")); j && !name; j = json_next(j))
        name = first_token(j);
    return name;
}

static void add_token(struct text *t, const char *name, const char *token)
{
    if (!token)
        return;
    text_add(t, ",\n  \"%s\": ", name);
    text_string(t, token, strlen(token));
}

/* Without a first token none is named: the separator is what stands before a text that has nothing before it. */
static void config_of(struct text *t, const struct json *root)
{
    const char *eos = NULL, *unk = NULL;

    for (int i = 0; bpe_separators[i] && !eos; i++)
        if (is_special(root, bpe_separators[i]))
            eos = bpe_separators[i];
    json_string(json_at(root, "model"), "unk_token", &unk);
    text_add(t, "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"clean_up_tokenization_spaces\": false,\n"
             "  \"model_max_length\": 1000000000000000019884624838656");          /* its way to say: no limit */
    add_token(t, "bos_token", first_token(json_at(root, "post_processor")));
    add_token(t, "eos_token", eos);
    add_token(t, "unk_token", unk);
    text_add(t, "\n}\n");
}

int bpe_config_write(const char *dir)
{
    char from[4200], to[4200], *data;
    struct text t = { 0 };
    struct json *root;
    size_t n;
    int status = 0;

    if (!str_format(from, sizeof from, "%s/tokenizer.json", dir) ||
        !str_format(to, sizeof to, "%s/tokenizer_config.json", dir))
        return fail("%s: path is too long", dir);
    if (access(from, F_OK) || !access(to, F_OK))
        return 0;
    if (!(data = file_read(from, &n)))
        return -1;
    if (!(root = json_parse(data, n, from)))
        status = -1;
    else if (json_is_object(json_at(root, "model"))) {
        config_of(&t, root);
        status = file_write(to, t.at, t.n);
    }
    free(data);
    json_free(root);
    text_free(&t);
    return status;
}
