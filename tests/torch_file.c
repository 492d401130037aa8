/* torch_file.c - see torch_file.h. */
#include "torch_file.h"

void bytes_add(struct bytes *b, const void *data, size_t n)
{
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n) + 64;
        b->at = mem_grow(b->at, b->cap, 1);
    }
    if (n)
        memcpy(b->at + b->n, data, n);
    b->n += n;
}

void bytes_number(struct bytes *b, uint64_t x, int width)
{
    char c[8];

    for (int i = 0; i < width; i++)
        c[i] = (char)(x >> 8 * i);
    bytes_add(b, c, (size_t)width);
}

void bytes_free(struct bytes *b)
{
    free(b->at);
    *b = (struct bytes){ 0 };
}

static void header(struct bytes *b, const char *magic, size_t name, size_t n, int method)
{
    bytes_add(b, magic, 4);
    if (magic[2] == 1)
        bytes_number(b, 20, 2);                                   /* made by */
    bytes_number(b, 20, 2);
    bytes_number(b, 0, 2);
    bytes_number(b, (uint64_t)method, 2);
    bytes_number(b, 0, 8);                                        /* time, date, checksum */
    bytes_number(b, n, 4);
    bytes_number(b, n, 4);
    bytes_number(b, name, 2);
    bytes_number(b, 0, 2);
}

void archive_put_as(struct archive *a, const char *name, const void *data, size_t n, int method)
{
    size_t at = a->file.n;

    header(&a->file, "PK\3\4", strlen(name), n, method);
    bytes_add(&a->file, name, strlen(name));
    bytes_add(&a->file, data, n);
    header(&a->directory, "PK\1\2", strlen(name), n, method);
    bytes_number(&a->directory, 0, 8);                            /* comment, disk, attributes */
    bytes_number(&a->directory, 0, 2);
    bytes_number(&a->directory, at, 4);
    bytes_add(&a->directory, name, strlen(name));
    a->n++;
}

void archive_put(struct archive *a, const char *name, const void *data, size_t n)
{
    archive_put_as(a, name, data, n, 0);
}

void archive_end(struct archive *a)
{
    size_t at = a->file.n;

    bytes_add(&a->file, a->directory.at, a->directory.n);
    bytes_add(&a->file, "PK\5\6", 4);
    bytes_number(&a->file, 0, 4);
    bytes_number(&a->file, (uint64_t)a->n, 2);
    bytes_number(&a->file, (uint64_t)a->n, 2);
    bytes_number(&a->file, a->directory.n, 4);
    bytes_number(&a->file, at, 4);
    bytes_number(&a->file, 0, 2);
}

void archive_free(struct archive *a)
{
    bytes_free(&a->file);
    bytes_free(&a->directory);
    a->n = 0;
}

void pickle_int(struct bytes *b, int64_t x)
{
    bool small = x >= INT32_MIN && x <= INT32_MAX;

    bytes_add(b, small ? "J" : "\x8a\x08", small ? 1 : 2);
    bytes_number(b, (uint64_t)x, small ? 4 : 8);
}

void pickle_text(struct bytes *b, const char *s)
{
    bytes_add(b, "X", 1);
    bytes_number(b, strlen(s), 4);
    bytes_add(b, s, strlen(s));
}

static void sizes(struct bytes *b, const int64_t *x, int n)
{
    bytes_add(b, "(", 1);
    for (int i = 0; i < n; i++)
        pickle_int(b, x[i]);
    bytes_add(b, "t", 1);
}

void pickle_view(struct bytes *b, const struct view *v)
{
    static const char rebuild[] = "ctorch._utils\n_rebuild_tensor_v2\n((";
    static const char end[] = "\x89" "ccollections\nOrderedDict\n)RtR";
    static const char *const types[ST_TYPES] = {
        [ST_F32] = "ctorch\nFloatStorage\n", [ST_F16] = "ctorch\nHalfStorage\n",
        [ST_BF16] = "ctorch\nBFloat16Storage\n",
    };

    pickle_text(b, v->name);
    bytes_add(b, rebuild, sizeof rebuild - 1);
    pickle_text(b, "storage");
    bytes_add(b, types[v->type], strlen(types[v->type]));
    pickle_text(b, v->storage);
    pickle_text(b, "cpu");
    pickle_int(b, v->elements);
    bytes_add(b, "tQ", 2);
    pickle_int(b, v->offset);
    sizes(b, v->dim, v->ndim);
    sizes(b, v->stride, v->ndim);
    bytes_add(b, end, sizeof end - 1);
}

struct bytes pickle_of(const struct view *v, int n)
{
    struct bytes b = { 0 };

    bytes_add(&b, "\x80\x02}(", 4);
    for (int i = 0; i < n; i++)
        pickle_view(&b, &v[i]);
    bytes_add(&b, "u.", 2);
    return b;
}

struct archive archive_of(struct bytes pickle, const struct bytes *storage, int n)
{
    struct archive a = { 0 };
    char name[32];

    archive_put(&a, "weights/data.pkl", pickle.at, pickle.n);
    archive_put(&a, "weights/byteorder", "little", 6);
    for (int i = 0; i < n; i++) {
        snprintf(name, sizeof name, "weights/data/%d", i);
        archive_put(&a, name, storage[i].at, storage[i].n);
    }
    archive_end(&a);
    return a;
}
