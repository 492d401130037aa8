/* mqar_config.c - the small models of the recall experiment: config.json as text, read by the usual reader; or one
 * that is given.
 *
 * palimpsa-d and palimpsa-m begin with little forgetting: A goes evenly from 0.01 to 0.16 over the heads, dt from 0.1
 * to 0.001. A twin is the same with the plain recurrence. mamba2 has its family's own A and dt. Every matrix is
 * N(0, 1 / width), blocks have no MLP. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt.h"
#include "json.h"
#include "mqar_run.h"
#include <math.h>
#include <unistd.h>

static bool is(const char *model, const char *name)
{
    return !strcmp(model, name);
}

static void common(struct text *t, const struct mqar_options *o, const char *family, int64_t length)
{
    text_add(t, "{\"model_type\": \"%s\", \"vocab_size\": %lld, \"real_vocab_size\": %lld, \"hidden_size\": %d, ",
             family, (long long)vocab_padded(o->vocab, 16), (long long)o->vocab, o->width);
    text_add(t, "\"num_hidden_layers\": %d, \"num_heads\": %d, \"tie_word_embeddings\": %s, ", o->layers, o->heads,
             o->tied ? "true" : "false");
    text_add(t, "\"initializer_range\": %.9g, \"max_position_embeddings\": %lld, \"beta_step_rank\": %d, ",
             1 / sqrt(o->width), (long long)length, o->rank);
    text_add(t, "\"time_step_min\": 0.001, \"time_step_max\": 0.1, \"time_step_floor\": 0.0001");
}

static char *text_of(const struct mqar_options *o, const char *model, int64_t length)
{
    struct text t = { 0 };
    bool d = !strncmp(model, "palimpsa-d", 10), plain = is(model, "mamba2");

    common(&t, o, d ? "palimpsa" : plain ? "mamba2" : "meta_mamba2", length);
    if (d)
        text_add(&t, ", \"head_dim\": %d, \"expand_k\": 1, \"expand_v\": %.17g, \"conv_size\": 4, "
                 "\"intermediate_size\": 0", o->key, (double)o->value / o->key);
    else
        text_add(&t, ", \"head_dim\": %d, \"state_size\": %d, \"n_groups\": %d, \"norm_groups\": 1, "
                 "\"conv_kernel\": 4", o->value, o->key, o->heads);
    if (!plain)
        text_add(&t, ", \"init\": \"ramp\", \"A_init_range\": [0.01, 0.16], \"metaplasticity\": %s",
                 strstr(model, "-twin") ? "false" : "true");
    text_add(&t, "}");
    return t.at;
}

static bool is_ours(const char *model)
{
    static const char *const names[] = { "palimpsa-d", "palimpsa-d-twin", "palimpsa-m", "palimpsa-m-twin", "mamba2" };
    size_t i = 0;

    while (i < LEN(names) && !is(model, names[i]))
        i++;
    return i < LEN(names);
}

bool mqar_is_directory(const char *model)
{
    char path[512];

    return !is_ours(model) && str_format(path, sizeof path, "%s/config.json", model) && !access(path, F_OK);
}

/* A model that was trained before: its vocabulary must hold the task's. */
static int read_directory(struct config *c, const struct mqar_options *o, const char *dir, int64_t length)
{
    if (ckpt_config(dir, c))
        return -1;
    if (c->vocab_real < o->vocab)
        return fail("--models: %s has %lld tokens, --vocab asks for %lld", dir, (long long)c->vocab_real,
                    (long long)o->vocab);
    c->context = c->context < length ? (int)length : c->context;
    return 0;
}

int mqar_config(struct config *c, const struct mqar_options *o, const char *model, int64_t length)
{
    size_t n = strlen(model);

    if (is_ours(model)) {
        char *text = text_of(o, model, length);
        int status = config_parse(c, text, strlen(text), model);
        free(text);
        return status;
    }
    if (mqar_is_directory(model))
        return read_directory(c, o, model, length);
    if (n <= 5 || !is(model + n - 5, ".json"))
        return fail("--models: expected some of %s, a FILE.json or a model's directory, found '%s'", MQAR_MODELS,
                    model);
    if (config_read(c, model))
        return -1;
    c->vocab = vocab_padded(o->vocab, 16);
    c->vocab_real = o->vocab;
    c->context = (int)length;
    return 0;
}
