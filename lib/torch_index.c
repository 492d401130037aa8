/* torch_index.c - several pytorch_model-NNNNN-of-NNNNN.bin as one set of tensors, held against their index. */
#include "json.h"
#include "torch.h"

struct joint {
    char            **path;
    struct st       **part;
    size_t            n;
    struct st_tensor *tensor;            /* of all parts, by name */
};

static void joint_release(void *priv)
{
    struct joint *j = priv;

    for (size_t i = 0; i < j->n; i++) {
        st_close(j->part[i]);
        free(j->path[i]);
    }
    free(j->path);
    free(j->part);
    free(j->tensor);
    free(j);
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static bool have(const struct joint *j, const char *file)
{
    for (size_t i = 0; i < j->n; i++)
        if (!strcmp(base_name(j->path[i]), file))
            return true;
    return false;
}

/* Every file that the map names, once. */
static int open_parts(struct joint *j, const struct json *map, const char *index)
{
    int dir = (int)(base_name(index) - index);

    if (!json_is_object(map))
        return fail("%s: expected an object weight_map", index);
    j->path = mem_new((size_t)json_count(map) + 1, sizeof *j->path);
    j->part = mem_new((size_t)json_count(map) + 1, sizeof *j->part);
    for (const struct json *m = json_first(map); m; m = json_next(m)) {
        const char *file = json_text(m);
        char path[4096];
        if (!file || !*file || strchr(file, '/') || file[0] == '.')
            return fail("%s: %s: expected the name of a file beside the index", index, json_key(m));
        if (have(j, file))
            continue;
        if (!str_format(path, sizeof path, "%.*s%s", dir, index, file))
            return fail("%s: path is too long", index);
        if (!(j->part[j->n] = torch_open(path)))
            return -1;
        j->path[j->n] = memcpy(mem_new(strlen(path) + 1, 1), path, strlen(path) + 1);
        j->n++;
    }
    return 0;
}

/* All tensors in the order of their names; the index and the files must name the same ones in the same places. */
static int join(struct joint *j, const struct json *map, const char *index, int64_t *count)
{
    int64_t n = 0;

    for (size_t i = 0; i < j->n; i++)
        n += j->part[i]->n;
    j->tensor = mem_new((size_t)n + 1, sizeof *j->tensor);
    *count = n;
    n = 0;
    for (size_t i = 0; i < j->n; i++) {
        memcpy(j->tensor + n, j->part[i]->at, (size_t)j->part[i]->n * sizeof *j->tensor);
        n += j->part[i]->n;
    }
    qsort(j->tensor, (size_t)n, sizeof *j->tensor, by_name);
    for (int64_t i = 0; i < n; i++) {
        const struct st_tensor *t = &j->tensor[i];
        const struct json *said = json_at(map, t->name);
        if (i && !by_name(t - 1, t))
            return fail("%s and %s: both hold %s", t[-1].file, t->file, t->name);
        if (!said)
            return fail("%s: %s is not listed in %s", t->file, t->name, index);
        if (strcmp(base_name(t->file), json_text(said)))
            return fail("%s: %s is not in %s", index, t->name, json_text(said));
    }
    for (const struct json *m = json_first(map); m && json_count(map) != n; m = json_next(m)) {
        struct st_tensor probe = { .name = json_key(m) };
        if (!bsearch(&probe, j->tensor, (size_t)n, sizeof probe, by_name))
            return fail("%s: %s is not in %s", index, json_key(m), json_text(m));
    }
    return 0;
}

struct st *torch_open_index(const char *index)
{
    struct joint *j = mem_new(1, sizeof *j);
    size_t n;
    char *text = file_read(index, &n);
    struct json *json = text ? json_parse(text, n, index) : NULL;
    const struct json *map = json ? json_at(json, "weight_map") : NULL;
    int64_t count = 0;
    struct st *s = NULL;

    free(text);
    if (json && !open_parts(j, map, index) && !join(j, map, index, &count)) {
        s = mem_new(1, sizeof *s);
        *s = (struct st){ .at = j->tensor, .n = count, .priv = j, .release = joint_release };
    } else {
        joint_release(j);
    }
    json_free(json);
    return s;
}
