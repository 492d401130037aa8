/* safetensors_write.c - the header first, then the tensors as they come, then fsync and rename. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"
#include "json.h"
#include <errno.h>
#include <unistd.h>

struct st_writer {
    FILE       *file;
    char       *path, *aside;
    struct text tensors, meta;        /* members of the header so far */
    int64_t     declared, given;      /* bytes of data */
    bool        started, failed;
};

static void writer_free(struct st_writer *w)
{
    if (w->file)
        fclose(w->file);
    text_free(&w->tensors);
    text_free(&w->meta);
    free(w->path);
    free(w->aside);
    free(w);
}

static int writer_fail(struct st_writer *w)
{
    if (!w->failed)
        fail("%s: %s", w->aside, strerror(errno));
    w->failed = true;
    return -1;
}

struct st_writer *st_create(const char *path)
{
    struct st_writer *w = mem_new(1, sizeof *w);
    size_t n = strlen(path) + 1;

    w->path = memcpy(mem_new(n, 1), path, n);
    w->aside = mem_new(n + 4, 1);
    snprintf(w->aside, n + 4, "%s.tmp", path);
    w->file = fopen(w->aside, "wb");
    if (!w->file) {
        writer_fail(w);
        writer_free(w);
        return NULL;
    }
    return w;
}

static void next_member(struct text *t)
{
    text_add(t, "%s", t->n ? "," : "");
}

void st_declare(struct st_writer *w, const char *name, enum st_type type, int ndim,
                const int64_t *dim)
{
    int64_t bytes = (int64_t)st_type_size(type);

    REQUIRE(!w->started && ndim >= 0 && ndim <= ST_DIMS);
    next_member(&w->tensors);
    text_string(&w->tensors, name, strlen(name));
    text_add(&w->tensors, ":{\"dtype\":\"%s\",\"shape\":[", st_type_name(type));
    for (int i = 0; i < ndim; i++) {
        text_add(&w->tensors, "%s%lld", i ? "," : "", (long long)dim[i]);
        bytes *= dim[i];
    }
    text_add(&w->tensors, "],\"data_offsets\":[%lld,%lld]}", (long long)w->declared,
             (long long)(w->declared + bytes));
    w->declared += bytes;
}

void st_describe(struct st_writer *w, const char *key, const char *value)
{
    REQUIRE(!w->started);
    next_member(&w->meta);
    text_string(&w->meta, key, strlen(key));
    text_add(&w->meta, ":");
    text_string(&w->meta, value, strlen(value));
}

/* Spaces fill the header so that the data starts at a multiple of 8. */
static void start(struct st_writer *w)
{
    struct text h = { 0 };
    unsigned char size[8];

    w->started = true;
    text_add(&h, "{");
    if (w->meta.n)
        text_add(&h, "\"__metadata__\":{%s}%s", w->meta.at, w->tensors.n ? "," : "");
    text_add(&h, "%s}", w->tensors.n ? w->tensors.at : "");
    while (h.n % 8)
        text_add(&h, " ");
    for (int i = 0; i < 8; i++)
        size[i] = (unsigned char)((uint64_t)h.n >> 8 * i);
    if (fwrite(size, 1, 8, w->file) != 8 || fwrite(h.at, 1, h.n, w->file) != h.n)
        writer_fail(w);
    text_free(&h);
}

int st_write(struct st_writer *w, const void *data, size_t bytes)
{
    if (!w->started)
        start(w);
    if (w->failed)
        return -1;
    w->given += (int64_t)bytes;
    REQUIRE(w->given <= w->declared);
    return bytes && fwrite(data, 1, bytes, w->file) != bytes ? writer_fail(w) : 0;
}

int st_finish(struct st_writer *w)
{
    int status = 0;

    if (!w->started)
        start(w);
    REQUIRE(w->failed || w->given == w->declared);
    if (!w->failed && (fflush(w->file) || fsync(fileno(w->file))))
        writer_fail(w);
    if (fclose(w->file))
        writer_fail(w);
    w->file = NULL;
    if (!w->failed && rename(w->aside, w->path))
        writer_fail(w);
    if (w->failed) {
        unlink(w->aside);
        status = -1;
    } else
        status = file_sync_parent(w->path);
    writer_free(w);
    return status;
}

void st_abort(struct st_writer *w)
{
    unlink(w->aside);
    writer_free(w);
}
