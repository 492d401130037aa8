/* task_model.c - see task_model.h. */
#include "task_model.h"
#include "bpe_train.h"
#include "scratch.h"

static char *tokenizer(bool bos)
{
    static const char text[] = "yes it does, no the man and the woman: Answer: yes yes no no the the and and it it.\n";
    static const char first[] = "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
        "{\"SpecialToken\": {\"id\": \"<|endoftext|>\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], "
        "\"special_tokens\": {\"<|endoftext|>\": {\"id\": \"<|endoftext|>\", \"ids\": [0], "
        "\"tokens\": [\"<|endoftext|>\"]}}},\n";
    struct bpe_words *w = bpe_words_open();
    struct text json = { 0 }, out = { 0 };
    const char *from, *to;
    int64_t learned;

    bpe_words_add(w, text, strlen(text));
    bpe_train(w, 300, &json, &learned, NULL);
    bpe_words_close(w);
    from = strstr(json.at, "\"post_processor\"");
    to = from ? strchr(from, '\n') : NULL;
    if (!bos)
        return json.at;
    REQUIRE(to);
    text_add(&out, "%.*s%s%s", (int)(from - json.at), json.at, first, to + 1);
    text_free(&json);
    return out.at;
}

bool task_model_open(struct opened *m, bool bos)
{
    char *json = tokenizer(bos);
    struct config c;

    *m = (struct opened){ 0 };
    str_format(m->dir, sizeof m->dir, "%s", scratch_root);
    m->bpe = bpe_parse(json, strlen(json), "tokenizer.json");
    free(json);
    if (!m->bpe || config_read(&c, "palimpsa-tiny") || dev_open(&m->dev, "cpu", F32, 1))
        return false;
    m->encoder = bpe_encoder_open(m->bpe);
    c.init_std = 0.3f;                                   /* likelihoods that differ */
    c.eos = c.bos = 0;
    if (model_open(&m->model, &m->dev, &c, &(struct model_use){ 0 }))
        return false;
    params_init(&m->model.params, &m->dev, 3, 0);
    return true;
}

void task_model_close(struct opened *m)
{
    opened_close(m);
}
