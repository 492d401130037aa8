/* mqar_config.c - the small models of the recall experiment: config.json as text, read by the usual reader.
 *
 * palimpsa-d and palimpsa-m begin with little forgetting: A goes evenly from 0.01 to 0.16 over the heads, dt from 0.1
 * to 0.001. A twin is the same with the plain recurrence. mamba2 has its family's own A and dt. Every matrix is
 * N(0, 1 / width), blocks have no MLP. */
#include "json.h"
#include "mqar_run.h"
#include <math.h>

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

int mqar_config(struct config *c, const struct mqar_options *o, const char *model, int64_t length)
{
    static const char *const names[] = { "palimpsa-d", "palimpsa-d-twin", "palimpsa-m", "palimpsa-m-twin", "mamba2" };
    size_t n = strlen(model), i = 0;
    char *text;
    int status;

    if (n > 5 && is(model + n - 5, ".json")) {
        if (config_read(c, model))
            return -1;
        c->vocab = vocab_padded(o->vocab, 16);
        c->vocab_real = o->vocab;
        c->context = (int)length;
        return 0;
    }
    while (i < LEN(names) && !is(model, names[i]))
        i++;
    if (i == LEN(names))
        return fail("--models: expected some of %s, or a FILE.json, found '%s'", MQAR_MODELS, model);
    text = text_of(o, model, length);
    status = config_parse(c, text, strlen(text), model);
    free(text);
    return status;
}
