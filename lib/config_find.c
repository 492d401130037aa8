/* config_find.c - where a config lies, whether its sums agree, and how many parameters they make. */
#define _POSIX_C_SOURCE 200809L
#include "config.h"
#include "config_said.h"
#include "json.h"
#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef PALIMPSA_SOURCE_DATA
#define PALIMPSA_SOURCE_DATA "data"
#endif
#ifndef PALIMPSA_INSTALLED_DATA
#define PALIMPSA_INSTALLED_DATA "/usr/local/share/palimpsa"
#endif

int64_t vocab_padded(int64_t n, int64_t multiple)
{
    REQUIRE(n >= 0 && multiple > 0);
    return (n + multiple - 1) / multiple * multiple;
}

const char *config_key(const struct config *c, const char *hf)
{
    static const char *const native[][2] = {
        { "hidden_size", "d_model" }, { "num_hidden_layers", "n_layer" },
        { "state_size", "ssm_cfg.d_state" }, { "head_dim", "ssm_cfg.headdim" },
        { "n_groups", "ssm_cfg.ngroups" }, { "conv_kernel", "ssm_cfg.d_conv" },
        { "use_conv_bias", "ssm_cfg.conv_bias" }, { "use_bias", "ssm_cfg.bias" },
        { "D_has_hdim", "ssm_cfg.D_has_hdim" }, { "tie_word_embeddings", "tie_embeddings" },
    };

    for (size_t i = 0; c->native && i < LEN(native); i++)
        if (!strcmp(native[i][0], hf))
            return native[i][1];
    if (!strcmp(c->family, "palimpsa") && !strcmp(hf, "conv_kernel"))
        return "conv_size";
    return hf;
}

int config_check(const struct config *c, const char *name)
{
    const struct { const char *key; int64_t is; } sizes[] = {
        { "num_hidden_layers", c->layers }, { "hidden_size", c->width }, { "vocab_size", c->vocab },
        { "num_heads", c->heads }, { "head_dim", c->value }, { "state_size", c->key },
        { "n_groups", c->groups }, { "conv_kernel", c->conv }, { "norm_groups", c->norm_groups },
        { "real_vocab_size", c->vocab_real },
    };
    int64_t inner = (int64_t)c->heads * c->value, keys = (int64_t)c->heads * c->key;
    bool gains = false;

    for (size_t i = 0; i < LEN(sizes); i++)
        if (sizes[i].is < 1)
            return fail("%s: %s must be at least 1, found %lld", name, config_key(c, sizes[i].key),
                        (long long)sizes[i].is);
    for (int i = 0; i < c->layers; i++)
        gains = gains || c->gain[i];
    if (c->layers > MAX_LAYERS)
        return fail("%s: %d layers; at most %d are supported", name, c->layers, MAX_LAYERS);
    if (c->heads % c->groups)
        return fail("%s: num_heads %d is not a multiple of %s %d", name, c->heads,
                    config_key(c, "n_groups"), c->groups);
    if (inner > CONFIG_MOST || keys > CONFIG_MOST)
        return fail("%s: %d heads of %d and %d are more than %d", name, c->heads, c->key, c->value,
                    CONFIG_MOST);
    if (inner % c->norm_groups)
        return fail("%s: inner width %lld is not a multiple of norm_groups %d", name,
                    (long long)inner, c->norm_groups);
    if (c->vocab_real > c->vocab)
        return fail("%s: real_vocab_size %lld is more than the %lld rows of the embedding", name,
                    (long long)c->vocab_real, (long long)c->vocab);
    if (gains && c->rank < 1)
        return fail("%s: beta_step_rank must be at least 1, found %d", name, c->rank);
    if (!(c->eps > 0))
        return fail("%s: the epsilon of the norms must be positive, found %g", name,
                    (double)c->eps);
    if (!(c->dt_min > 0) || !(c->dt_max >= c->dt_min) || !(c->dt_floor >= 0))
        return fail("%s: expected 0 < time_step_min <= time_step_max and time_step_floor >= 0, "
                    "found %g, %g and %g", name, (double)c->dt_min, (double)c->dt_max, (double)c->dt_floor);
    if (c->ramp && !(c->A_lo > 0))
        return fail("%s: init \"ramp\" needs an A_init_range above 0, found %g", name, (double)c->A_lo);
    return 0;
}

const char *config_mixer(const struct config *c)
{
    return strcmp(c->family, "palimpsa") ? "mamba2" : "palimpsa";
}

/* Shapes as in the families' published models; see docs/checkpoints.md. */
int64_t config_parameters(const struct config *c)
{
    int64_t D = c->width, H = c->heads, K = c->key, V = c->value, R = c->rank, I = H * V, n;
    int64_t C = I + 2 * (int64_t)c->groups * K, total = 0;

    for (int i = 0; i < c->layers; i++) {
        if (!strcmp(c->family, "palimpsa"))
            n = D + (2 * H * K + I) * (D + c->conv) + 2 * H * D + 3 * H + c->use_gate * I * D +
                V + I * D;
        else
            n = D + (I + C + H) * D + C * c->conv + 2 * H + (c->D_has_hdim ? I : H) + I + I * D +
                c->conv_bias * C + c->proj_bias * (I + C + H + D);
        if (c->gain[i])
            n += R * D + I * R + 2 * H;
        if (c->ffn)
            n += D + 3 * D * c->ffn;
        total += n;
    }
    return total + D + c->vocab * D * (c->tied ? 1 : 2);
}

static bool exists(const char *path)
{
    return !access(path, F_OK);
}

static bool is_directory(const char *path)
{
    struct stat st;

    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

/* Places that hold presets, the first that has NAME wins. i counts from 0; false after the last. */
static bool preset_place(int i, char *out, size_t size)
{
    const char *own = getenv("PALIMPSA_MODELS");
    char exe[2048];
    ssize_t n;

    out[0] = 0;
    switch (i) {
    case 0:
        return !own || str_format(out, size, "%s", own);
    case 1:
        return str_format(out, size, "%s/models", PALIMPSA_SOURCE_DATA);
    case 2:
        return str_format(out, size, "%s/models", PALIMPSA_INSTALLED_DATA);
    case 3:
        n = readlink("/proc/self/exe", exe, sizeof exe);
        while (n > 0 && exe[n - 1] != '/')
            n--;
        return n <= 0 || n == sizeof exe ||
               str_format(out, size, "%.*s../share/palimpsa/models", (int)n, exe);
    default:
        return false;
    }
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void free_names(char **name, size_t n)
{
    while (n-- > 0)
        free(name[n]);
    free(name);
}

/* Says what could have been meant. Always -1. */
static int no_preset(const char *asked)
{
    char place[4096], **name = NULL;
    struct text list = { 0 };
    size_t n = 0;

    for (int i = 0; !n && preset_place(i, place, sizeof place); i++) {
        DIR *d = *place ? opendir(place) : NULL;
        for (struct dirent *e; d && (e = readdir(d));) {
            size_t length = strlen(e->d_name);
            if (length < 6 || strcmp(e->d_name + length - 5, ".json"))
                continue;
            name = mem_grow(name, n + 1, sizeof *name);
            name[n] = mem_new(length - 4, 1);
            memcpy(name[n++], e->d_name, length - 5);
        }
        if (d)
            closedir(d);
    }
    if (n)
        qsort(name, n, sizeof *name, by_text);
    for (size_t i = 0; i < n; i++)
        text_add(&list, "%s%s", i ? ", " : "", name[i]);
    fail("%s: neither a file, nor a directory, nor a preset (%s)", asked,
         list.n ? list.at : "no presets were found; PALIMPSA_MODELS names their directory");
    text_free(&list);
    free_names(name, n);
    return -1;
}

char *config_load(const char *dir, size_t *n, char *path, size_t size)
{
    char other[4096];

    if (!str_format(path, size, "%s/config.json", dir) ||
        !str_format(other, sizeof other, "%s/params.json", dir)) {
        fail("%s: path is too long", dir);
        return NULL;
    }
    if (!exists(path) && exists(other)) {
        fail("%s: params.json without config.json: this is not a form of checkpoint we read",
             other);
        return NULL;
    }
    return file_read(path, n);
}

int config_read(struct config *c, const char *path)
{
    char found[4096];
    char *text;
    size_t n;
    int status;

    if (is_directory(path))
        text = config_load(path, &n, found, sizeof found);
    else {
        int i = 0;
        if (!str_format(found, sizeof found, "%s", path))
            return fail("%s: path is too long", path);
        while (!exists(found)) {
            char place[2048];
            if (strchr(path, '/') || !preset_place(i++, place, sizeof place))
                return no_preset(path);
            if (*place && !str_format(found, sizeof found, "%s/%s.json", place, path))
                return fail("%s: name is too long", path);
        }
        text = file_read(found, &n);
    }
    if (!text)
        return -1;
    status = config_parse(c, text, n, found);
    free(text);
    return status;
}
