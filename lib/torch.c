/* torch.c - joins the pickle's tensors with the archive's storages, every number held against the bytes. */
#define _POSIX_C_SOURCE 200809L
#include "torch.h"
#include "pickle.h"
#include "zip.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct torch {
    char             *path;
    const char       *data;
    size_t            size;
    bool              mapped;
    struct zip        zip;
    struct pickle     pickle;
    struct st_tensor *tensor;
    void            **copy;          /* [n] of tensors that were not contiguous */
};

static void torch_release(void *priv)
{
    struct torch *t = priv;

    for (int64_t i = 0; t->copy && i < t->pickle.n; i++)
        free(t->copy[i]);
    free(t->copy);
    free(t->tensor);
    pickle_free(&t->pickle);
    zip_close(&t->zip);
    if (t->mapped)
        munmap((void *)t->data, t->size);
    free(t->path);
    free(t);
}

/* A member beside data.pkl; root is the length of "ROOT/". */
static const struct zip_member *beside(const struct torch *t, const struct zip_member *pkl, size_t root,
                                       const char *what)
{
    char name[512];

    if (!str_format(name, sizeof name, "%.*s%s", (int)root, pkl->name, what))
        return NULL;
    return zip_find(&t->zip, name, strlen(name));
}

/* The one member named ROOT/data.pkl; *root is the length of "ROOT/". */
static const struct zip_member *find_pickle(const struct torch *t, size_t *root)
{
    static const char tail[] = "data.pkl";
    const struct zip_member *found = NULL, *order;

    for (int64_t i = 0; i < t->zip.n; i++) {
        const struct zip_member *m = &t->zip.at[i];
        size_t n = sizeof tail - 1;
        const char *slash = memchr(m->name, '/', m->length);
        if (!slash || m->length != (size_t)(slash + 1 - m->name) + n || memcmp(slash + 1, tail, n))
            continue;
        if (found) {
            fail("%s: a zip archive with several data.pkl: expected one", t->path);
            return NULL;
        }
        found = m;
        *root = m->length - n;
    }
    if (!found)
        fail("%s: a zip archive without a data.pkl: not weights written by torch.save", t->path);
    else if (!found->stored)
        fail("%s: its data.pkl is compressed or encrypted: torch.save writes it plain", t->path);
    else if (beside(t, found, *root, "constants.pkl"))
        fail("%s: a TorchScript program, which would have to be executed; expected a dictionary of tensors", t->path);
    else if ((order = beside(t, found, *root, "byteorder")) &&
             (!order->stored || order->size != 6 || memcmp(order->data, "little", 6)))
        fail("%s: its numbers are not little-endian", t->path);
    else
        return found;
    return NULL;
}

/* Names are file names inside the archive and nothing else: they only have to be found there. */
static const struct zip_member *find_storage(const struct torch *t, const struct zip_member *pkl, size_t root,
                                             const struct pickle_tensor *p)
{
    char name[300];
    const struct zip_member *m;

    str_format(name, sizeof name, "data/%s", p->storage);
    m = beside(t, pkl, root, name);
    if (!m || !m->stored) {
        fail("%s: %s: its storage data/%.60s is %s", t->path, p->name, p->storage,
             m ? "compressed" : "not in the archive");
        return NULL;
    }
    if (p->elements > INT64_MAX / 8 || m->size != (uint64_t)p->elements * st_type_size(p->type)) {
        fail("%s: %s: expected a storage of %lld %s, found %llu bytes", t->path, p->name, (long long)p->elements,
             st_type_name(p->type), (unsigned long long)m->size);
        return NULL;
    }
    return m;
}

/* Does the tensor lie within its storage, and is it contiguous there? */
static int extent(const struct torch *t, const struct pickle_tensor *p, int64_t *count, bool *contiguous)
{
    int64_t last = p->offset, dense = 1, over = 0;

    *count = 1;
    *contiguous = true;
    for (int i = p->ndim - 1; i >= 0; i--) {
        *contiguous &= p->dim[i] == 1 || p->stride[i] == dense;
        over |= __builtin_mul_overflow(dense, p->dim[i], &dense);
    }
    *count = dense;
    for (int i = 0; i < p->ndim && !over && dense; i++) {
        int64_t reach;
        over |= __builtin_mul_overflow(p->dim[i] - 1, p->stride[i], &reach) ||
                __builtin_add_overflow(last, reach, &last);
    }
    if (over || (dense ? last >= p->elements : p->offset > p->elements) || dense > p->elements)
        return fail("%s: %s reaches past its storage of %lld elements", t->path, p->name, (long long)p->elements);
    return 0;
}

/* Row-major copy of a strided view. */
static void *in_order(const struct pickle_tensor *p, const char *storage, int64_t count)
{
    size_t size = st_type_size(p->type);
    char *out = mem_new((size_t)count, size);
    int64_t index[ST_DIMS] = { 0 };

    for (int64_t i = 0; i < count; i++) {
        int64_t at = p->offset;
        for (int d = 0; d < p->ndim; d++)
            at += index[d] * p->stride[d];
        memcpy(out + (size_t)i * size, storage + (size_t)at * size, size);
        for (int d = p->ndim - 1; d >= 0 && ++index[d] == p->dim[d]; d--)
            index[d] = 0;
    }
    return out;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct pickle_tensor *)a)->name, ((const struct pickle_tensor *)b)->name);
}

static int join(struct torch *t)
{
    size_t root = 0, copied = 0;
    const struct zip_member *pkl = find_pickle(t, &root);

    if (!pkl || pickle_read(&t->pickle, pkl->data, (size_t)pkl->size, t->path))
        return -1;
    if (t->pickle.n)
        qsort(t->pickle.at, (size_t)t->pickle.n, sizeof *t->pickle.at, by_name);
    t->tensor = mem_new((size_t)t->pickle.n, sizeof *t->tensor);
    t->copy = mem_new((size_t)t->pickle.n, sizeof *t->copy);
    for (int64_t i = 0; i < t->pickle.n; i++) {
        const struct pickle_tensor *p = &t->pickle.at[i];
        struct st_tensor *out = &t->tensor[i];
        const struct zip_member *m = find_storage(t, pkl, root, p);
        bool contiguous;
        if (i && !by_name(p - 1, p))
            return fail("%s: two tensors named %s", t->path, p->name);
        if (!m || extent(t, p, &out->count, &contiguous))
            return -1;
        out->name = p->name;
        out->file = t->path;
        out->type = p->type;
        out->ndim = p->ndim;
        memcpy(out->dim, p->dim, sizeof out->dim);
        out->bytes = out->count * (int64_t)st_type_size(p->type);
        out->data = m->data + (size_t)p->offset * st_type_size(p->type);
        out->mapped = t->mapped && contiguous;
        if (contiguous)
            continue;
        copied += (size_t)out->bytes;              /* small: a storage lies in the file */
        if (copied > 2 * t->size)
            return fail("%s: its strided views hold over %zu bytes, the file has %zu", t->path, copied, t->size);
        out->data = t->copy[i] = in_order(p, m->data, out->count);
    }
    return 0;
}

/* Takes t over. */
static struct st *joined(struct torch *t)
{
    struct st *s;

    if (t->size >= 4 && !memcmp(t->data, "\x80\2\x8a\n", 4)) {
        fail("%s: the format of torch before 1.6: loading it there and saving it again makes it readable", t->path);
        torch_release(t);
        return NULL;
    }
    if (zip_open(&t->zip, t->data, t->size, t->path) || join(t)) {
        torch_release(t);
        return NULL;
    }
    s = mem_new(1, sizeof *s);
    *s = (struct st){ .at = t->tensor, .n = t->pickle.n, .priv = t, .release = torch_release };
    return s;
}

static char *copy_of(const char *s)
{
    size_t n = strlen(s) + 1;

    return memcpy(mem_new(n, 1), s, n);
}

struct st *torch_open_memory(const void *data, size_t n, const char *name)
{
    struct torch *t = mem_new(1, sizeof *t);

    t->path = copy_of(name);
    t->data = data;
    t->size = n;
    return joined(t);
}

struct st *torch_open(const char *path)
{
    struct torch *t = mem_new(1, sizeof *t);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;

    t->path = copy_of(path);
    if (fd < 0 || fstat(fd, &st))
        fail("%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_size == 0)
        fail("%s: expected weights written by torch.save, found %lld bytes", path, (long long)st.st_size);
    else {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
            fail("%s: %s", path, strerror(errno));
        else
            *t = (struct torch){ .path = t->path, .data = map, .size = (size_t)st.st_size, .mapped = true };
    }
    if (fd >= 0)
        close(fd);
    if (!t->data) {
        torch_release(t);
        return NULL;
    }
    return joined(t);
}
