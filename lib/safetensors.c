/* safetensors.c - reading: a file is believed only when header, tensors and size agree.
 *
 * Tensors sorted by offset must tile the bytes after the header: each starts where the one before
 * ended, the first at 0, the last ends with the file. The parsed headers stay alive: they own names. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"
#include "json.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX 100000000u

struct part {                                 /* one file */
    char        *name;
    const char  *data;
    size_t       size;
    bool         mapped;
    struct json *header;
};
struct files {
    struct part      *part;
    size_t            nparts;
    struct st_tensor *tensor;
    size_t            n;
    const struct st_tensor **by_name;         /* [n], for st_find */
};

static const struct { const char *name; size_t size; } types[ST_TYPES] = {
    [ST_F32] = { "F32", 4 }, [ST_BF16] = { "BF16", 2 }, [ST_F16] = { "F16", 2 },
    [ST_F64] = { "F64", 8 }, [ST_I64] = { "I64", 8 },   [ST_I32] = { "I32", 4 },
    [ST_I16] = { "I16", 2 }, [ST_U16] = { "U16", 2 },   [ST_I8] = { "I8", 1 },
    [ST_U8] = { "U8", 1 },   [ST_BOOL] = { "BOOL", 1 },
};

const char *st_type_name(enum st_type t)
{
    return types[t].name;
}

size_t st_type_size(enum st_type t)
{
    return types[t].size;
}

static uint64_t header_size(const struct part *p)
{
    uint64_t n = 0;

    for (int i = 8; i-- > 0;)
        n = n << 8 | (unsigned char)p->data[i];
    return n;
}

/* What people have instead of the file they meant, before we read its first bytes as a number. */
static int check_start(const struct part *p)
{
    static const char lfs[] = "version https://git-lfs";
    size_t i = 0;

    while (i < p->size && strchr(" \t\r\n", p->data[i]) && p->data[i])
        i++;
    if (i < p->size && p->data[i] == '<')
        return fail("%s: an HTML page, not a safetensors file (a download that failed?)", p->name);
    if (p->size >= sizeof lfs && !memcmp(p->data, lfs, sizeof lfs - 1))
        return fail("%s: a Git LFS pointer, not the file itself", p->name);
    if (p->size < 8)
        return fail("%s: expected 8 bytes of header size, found a file of %zu bytes", p->name,
                    p->size);
    if (header_size(p) > HEADER_MAX)
        return fail("%s: expected a header of at most %u bytes, found %llu (not a safetensors "
                    "file?)", p->name, HEADER_MAX, (unsigned long long)header_size(p));
    if (header_size(p) > p->size - 8)
        return fail("%s: cut short: the header alone needs %llu bytes, the file has %zu", p->name,
                    (unsigned long long)header_size(p) + 8, p->size);
    if (!header_size(p) || p->data[8] != '{')
        return fail("%s: expected a header that starts with '{'", p->name);
    return 0;
}

/* An integral number in [0, 2^53]. */
static int read_count(const struct json *item, int64_t *out)
{
    double x;

    if (!json_number(item, &x) || !(x >= 0 && x <= 0x1p53) || x != (double)(int64_t)x)
        return -1;
    *out = (int64_t)x;
    return 0;
}

static int read_type(const struct json *j, struct st_tensor *t)
{
    const char *name = json_text(json_at(j, "dtype"));

    for (int i = 0; name && i < ST_TYPES; i++)
        if (!strcmp(name, types[i].name)) {
            t->type = (enum st_type)i;
            return 0;
        }
    return fail("%s: %s: expected a dtype, found %s", t->file, t->name, name ? name : "none");
}

static int read_shape(const struct json *j, struct st_tensor *t)
{
    const struct json *shape = json_at(j, "shape");

    if (!json_is_array(shape) || json_count(shape) > ST_DIMS)
        return fail("%s: %s: expected a shape of at most %d numbers", t->file, t->name, ST_DIMS);
    t->count = 1;
    for (const struct json *d = json_first(shape); d; d = json_next(d)) {
        int64_t *dim = &t->dim[t->ndim++];
        if (read_count(d, dim) || __builtin_mul_overflow(t->count, *dim, &t->count))
            return fail("%s: %s: shape is not a list of counts", t->file, t->name);
    }
    if (__builtin_mul_overflow(t->count, (int64_t)types[t->type].size, &t->bytes))
        return fail("%s: %s: shape is too large", t->file, t->name);
    return 0;
}

static int read_offsets(const struct json *j, int64_t *begin, int64_t *end)
{
    const struct json *pair = json_at(j, "data_offsets");

    if (!json_is_array(pair) || json_count(pair) != 2 || read_count(json_first(pair), begin) ||
        read_count(json_next(json_first(pair)), end) || *end < *begin)
        return -1;
    return 0;
}

/* One entry of the header; base is the first of the room bytes after it. */
static int read_tensor(const struct json *j, struct st_tensor *t, const char *base, int64_t room)
{
    int64_t begin, end;

    if (!json_is_object(j))
        return fail("%s: %s: expected an object", t->file, t->name);
    if (read_type(j, t) || read_shape(j, t))
        return -1;
    if (read_offsets(j, &begin, &end) || end > room)
        return fail("%s: %s: expected data_offsets [begin, end]", t->file, t->name);
    if (end - begin != t->bytes)
        return fail("%s: %s: expected %lld bytes for its shape and dtype, found %lld", t->file,
                    t->name, (long long)t->bytes, (long long)(end - begin));
    t->data = base + begin;
    return 0;
}

static int by_offset(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    const char *p = x->data, *q = y->data;

    if (p != q)
        return p < q ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static int check_tiles(const struct part *p, struct st_tensor *t, size_t n, const char *base)
{
    int64_t end = 0, room = (int64_t)(p->data + p->size - base);

    if (n)
        qsort(t, n, sizeof *t, by_offset);
    for (size_t i = 0; i < n; i++) {
        int64_t begin = (const char *)t[i].data - base;
        if (begin < end)
            return fail("%s: %s and %s overlap: the first ends at %lld, the second starts at %lld",
                        p->name, t[i - 1].name, t[i].name, (long long)end, (long long)begin);
        if (begin > end)
            return fail("%s: gap of %lld bytes before %s", p->name, (long long)(begin - end),
                        t[i].name);
        end += t[i].bytes;
    }
    if (end < room)
        return fail("%s: %lld bytes after the last tensor: expected %lld bytes, found %zu", p->name,
                    (long long)(room - end), (long long)p->size - room + end, p->size);
    return 0;
}

static int check_meta(const struct part *p)
{
    const struct json *meta = json_at(p->header, "__metadata__");

    if (meta && !json_is_object(meta))
        return fail("%s: __metadata__: expected an object", p->name);
    for (const struct json *m = json_first(meta); m; m = json_next(m))
        if (!json_text(m))
            return fail("%s: __metadata__: %s: expected a string", p->name, json_key(m));
    return 0;
}

static int read_part(struct files *f, struct part *p)
{
    const char *base;
    int64_t room, need = 0, begin, end;
    size_t first = f->n;

    if (check_start(p))
        return -1;
    base = p->data + 8 + header_size(p);
    room = (int64_t)(p->size - 8 - header_size(p));
    p->header = json_parse(p->data + 8, (size_t)header_size(p), p->name);
    if (!p->header || check_meta(p))
        return -1;
    for (const struct json *j = json_first(p->header); j; j = json_next(j))
        if (!read_offsets(j, &begin, &end) && end > need)
            need = end;
    if (need > room)
        return fail("%s: cut short: expected %lld bytes, found %zu", p->name,
                    (long long)p->size - room + need, p->size);
    f->tensor = mem_grow(f->tensor, f->n + (size_t)json_count(p->header), sizeof *f->tensor);
    for (const struct json *j = json_first(p->header); j; j = json_next(j)) {
        struct st_tensor *t = f->tensor + f->n;
        if (!strcmp(json_key(j), "__metadata__"))
            continue;
        *t = (struct st_tensor){ .name = json_key(j), .file = p->name, .mapped = p->mapped };
        if (read_tensor(j, t, base, room))
            return -1;
        f->n++;
    }
    return check_tiles(p, f->tensor + first, f->n - first, base);
}

static char *copy_text(const char *s)
{
    size_t n = strlen(s) + 1;

    return memcpy(mem_new(n, 1), s, n);
}

static struct part *add_part(struct files *f, const char *name)
{
    struct part *p;

    f->part = mem_grow(f->part, f->nparts + 1, sizeof *f->part);
    p = &f->part[f->nparts++];
    *p = (struct part){ .name = copy_text(name) };
    return p;
}

static int open_file(struct files *f, const char *path)
{
    struct part *p = add_part(f, path);
    struct stat st;
    int fd = open(path, O_RDONLY), status = -1;

    if (fd < 0 || fstat(fd, &st))
        fail("%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        fail("%s: not a regular file", path);
    else if (!st.st_size)
        fail("%s: the file is empty", path);
    else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            fail("%s: %s", path, strerror(errno));
        else {
            p->data = map;
            p->size = (size_t)st.st_size;
            p->mapped = true;
            status = read_part(f, p);
        }
    }
    if (fd >= 0)
        close(fd);
    return status;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_tensor_name(const void *a, const void *b)
{
    const struct st_tensor *x = *(const struct st_tensor *const *)a;
    const struct st_tensor *y = *(const struct st_tensor *const *)b;

    return strcmp(x->name, y->name);
}

/* A name that two shards share would make the answer depend on their order. */
static int sort_names(struct files *f)
{
    f->by_name = mem_new(f->n, sizeof *f->by_name);
    for (size_t i = 0; i < f->n; i++)
        f->by_name[i] = &f->tensor[i];
    if (f->n)
        qsort(f->by_name, f->n, sizeof *f->by_name, by_tensor_name);
    for (size_t i = 1; i < f->n; i++)
        if (!strcmp(f->by_name[i - 1]->name, f->by_name[i]->name))
            return fail("%s and %s: both hold %s", f->by_name[i - 1]->file, f->by_name[i]->file,
                        f->by_name[i]->name);
    return 0;
}

static const struct st_tensor *find(const struct files *f, const char *name)
{
    struct st_tensor probe = { .name = name };
    const struct st_tensor *key = &probe, **hit;

    hit = f->n ? bsearch(&key, f->by_name, f->n, sizeof key, by_tensor_name) : NULL;
    return hit ? *hit : NULL;
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

/* The index and the shards must name the same tensors in the same files. */
static int check_index(const struct files *f, const struct json *map, const char *path)
{
    for (const struct json *j = json_first(map); j; j = json_next(j)) {
        const struct st_tensor *t = find(f, json_key(j));
        if (!t || strcmp(base_name(t->file), json_text(j)))
            return fail("%s: %s is not in %s", path, json_key(j), json_text(j));
    }
    if ((size_t)json_count(map) != f->n)
        for (size_t i = 0; i < f->n; i++)
            if (!json_at(map, f->tensor[i].name))
                return fail("%s: %s is not listed in %s", f->tensor[i].file, f->tensor[i].name,
                            path);
    return 0;
}

static int open_shards(struct files *f, const struct json *map, const char *path)
{
    size_t n = 0;
    int status = 0;
    const char **name;

    if (!json_is_object(map))
        return fail("%s: expected an object weight_map", path);
    name = mem_new((size_t)json_count(map), sizeof *name);
    for (const struct json *j = json_first(map); j && !status; j = json_next(j)) {
        name[n] = json_text(j);
        if (!name[n] || !*name[n] || strchr(name[n], '/') || name[n][0] == '.')
            status = fail("%s: %s: expected the name of a file beside the index", path,
                          json_key(j));
        n++;
    }
    if (n && !status)
        qsort(name, n, sizeof *name, by_text);
    for (size_t i = 0; i < n && !status; i++) {
        char file[4096];
        int dir = (int)(base_name(path) - path);
        if (i && !strcmp(name[i - 1], name[i]))
            continue;
        status = str_format(file, sizeof file, "%.*s%s", dir, path, name[i]) ? open_file(f, file) :
                 fail("%s: path is too long", path);
    }
    free(name);
    return status;
}

static int open_index(struct files *f, const char *path)
{
    size_t n;
    char *text = file_read(path, &n);
    struct json *index = text ? json_parse(text, n, path) : NULL;
    const struct json *map = json_at(index, "weight_map");
    int status = index ? open_shards(f, map, path) : -1;

    free(text);
    if (!status)
        status = sort_names(f);
    if (!status)
        status = check_index(f, map, path);
    json_free(index);
    return status;
}

static int open_path(struct files *f, const char *path)
{
    char file[4096];
    size_t n = strlen(path);
    struct stat st;

    if (stat(path, &st))
        return fail("%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return n > 5 && !strcmp(path + n - 5, ".json") ? open_index(f, path) : open_file(f, path);
    if (!str_format(file, sizeof file, "%s/model.safetensors", path))
        return fail("%s: path is too long", path);
    if (!access(file, F_OK))
        return open_file(f, file);
    if (!str_format(file, sizeof file, "%s/model.safetensors.index.json", path))
        return fail("%s: path is too long", path);
    if (!access(file, F_OK))
        return open_index(f, file);
    return fail("%s: holds neither model.safetensors nor model.safetensors.index.json", path);
}

static void close_files(struct files *f)
{
    for (size_t i = 0; i < f->nparts; i++) {
        json_free(f->part[i].header);
        if (f->part[i].mapped)
            munmap((void *)f->part[i].data, f->part[i].size);
        free(f->part[i].name);
    }
    free(f->part);
    free(f->tensor);
    free(f->by_name);
    free(f);
}

static struct st *opened(struct files *f, int status)
{
    struct st *s;

    if (!status && !f->by_name)
        status = sort_names(f);
    if (status) {
        close_files(f);
        return NULL;
    }
    s = mem_new(1, sizeof *s);
    *s = (struct st){ .at = f->tensor, .n = (int64_t)f->n, .priv = f };
    return s;
}

struct st *st_open(const char *path)
{
    struct files *f = mem_new(1, sizeof *f);

    return opened(f, open_path(f, path));
}

struct st *st_open_memory(const void *data, size_t n, const char *name)
{
    struct files *f = mem_new(1, sizeof *f);
    struct part *p = add_part(f, name);

    p->data = data;
    p->size = n;
    return opened(f, read_part(f, p));
}

void st_close(struct st *s)
{
    if (!s)
        return;
    if (s->release)
        s->release(s->priv);
    else
        close_files(s->priv);
    free(s);
}

static int by_own_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

const struct st_tensor *st_find(const struct st *s, const char *name)
{
    if (!s->release)
        return find(s->priv, name);
    return s->n ? bsearch(&(struct st_tensor){ .name = name }, s->at, (size_t)s->n, sizeof *s->at, by_own_name) : NULL;
}

static const struct json *metadata(const struct st *s)
{
    const struct files *f = s->release ? NULL : s->priv;

    return f && f->nparts ? json_at(f->part[0].header, "__metadata__") : NULL;
}

const char *st_meta(const struct st *s, const char *key)
{
    return json_text(json_at(metadata(s), key));
}

int64_t st_metas(const struct st *s)
{
    return metadata(s) ? json_count(metadata(s)) : 0;
}

const char *st_meta_at(const struct st *s, int64_t i, const char **value)
{
    const struct json *j = json_first(metadata(s));

    while (j && i-- > 0)
        j = json_next(j);
    if (!j)
        return NULL;
    *value = json_text(j);
    return json_key(j);
}
