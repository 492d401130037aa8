/* zip.c - the central directory at the end of the archive, checked member by member. */
#include "zip.h"

enum { END = 22, END64 = 56, LOCATOR = 20, CENTRAL = 46, LOCAL = 30 };

static uint64_t little(const char *at, int bytes)
{
    uint64_t x = 0;

    for (int i = bytes; i-- > 0;)
        x = x << 8 | (unsigned char)at[i];
    return x;
}

static bool inside(uint64_t from, uint64_t count, uint64_t n)
{
    return from <= n && count <= n - from;
}

/* The end record is within the last 64 KiB; the last one that fits the file's end is it. */
static int find_end(const char *data, size_t n, const char *path, uint64_t *count, uint64_t *size, uint64_t *from)
{
    size_t most = n < END + 65535 ? n : END + 65535, at;

    for (at = END; at <= most; at++)
        if (!memcmp(data + n - at, "PK\5\6", 4) && little(data + n - at + 20, 2) == at - END)
            break;
    if (at > most)
        return fail("%s: not a zip archive: no directory at its end", path);
    *count = little(data + n - at + 10, 2);
    *size = little(data + n - at + 12, 4);
    *from = little(data + n - at + 16, 4);
    if (n - at >= LOCATOR && !memcmp(data + n - at - LOCATOR, "PK\6\7", 4)) {
        uint64_t wide = little(data + n - at - LOCATOR + 8, 8);
        if (!inside(wide, END64, n) || memcmp(data + wide, "PK\6\6", 4))
            return fail("%s: torn zip archive: no wide directory at byte %llu", path, (unsigned long long)wide);
        *count = little(data + wide + 32, 8);
        *size = little(data + wide + 40, 8);
        *from = little(data + wide + 48, 8);
    }
    if (!inside(*from, *size, n) || *count > *size / CENTRAL)
        return fail("%s: torn zip archive: a directory of %llu members in %llu bytes at %llu, the file has %zu", path,
                    (unsigned long long)*count, (unsigned long long)*size, (unsigned long long)*from, n);
    return 0;
}

/* Sizes of 2^32 - 1 stand in the extra field of kind 1, in the order size, packed, offset. */
static bool wide_sizes(const char *extra, size_t n, uint64_t *size, uint64_t *packed, uint64_t *offset)
{
    for (size_t at = 0; at + 4 <= n;) {
        size_t kind = little(extra + at, 2), length = little(extra + at + 2, 2), used = 0;
        uint64_t *wanted[3] = { size, packed, offset };
        if (length > n - at - 4)
            return false;
        for (int i = 0; i < 3 && kind == 1; i++) {
            if (*wanted[i] != UINT32_MAX)
                continue;
            if (used + 8 > length)
                return false;
            *wanted[i] = little(extra + at + 4 + used, 8);
            used += 8;
        }
        at += 4 + length;
    }
    return *size != UINT32_MAX && *offset != UINT32_MAX;
}

/* "ROOT/data/0", not "/etc/x", "../x" or something that a terminal would obey. */
static bool tame(const char *name, size_t n)
{
    size_t part = 0;

    for (size_t i = 0; i <= n; i++) {
        if (i < n && name[i] != '/') {
            if (name[i] < ' ' || name[i] > '~' || name[i] == '\\')
                return false;
            continue;
        }
        if ((i == 0 && n) || (i - part == 2 && name[part] == '.' && name[part + 1] == '.'))
            return false;
        part = i + 1;
    }
    return n > 0;
}

static int read_member(struct zip_member *m, const char *data, size_t n, const char *path, const char *entry,
                       size_t left, size_t *taken)
{
    uint64_t packed, offset, skip;
    size_t extra, comment;

    if (left < CENTRAL || memcmp(entry, "PK\1\2", 4))
        return fail("%s: torn zip archive: its directory ends early", path);
    m->length = little(entry + 28, 2);
    extra = little(entry + 30, 2);
    comment = little(entry + 32, 2);
    *taken = CENTRAL + m->length + extra + comment;
    if (*taken > left)
        return fail("%s: torn zip archive: its directory ends early", path);
    m->name = entry + CENTRAL;
    if (!tame(m->name, m->length))
        return fail("%s: zip archive with a member whose name is not a plain relative path", path);
    m->stored = little(entry + 10, 2) == 0 && !(little(entry + 8, 2) & 1);
    packed = little(entry + 20, 4);
    m->size = little(entry + 24, 4);
    offset = little(entry + 42, 4);
    if (!wide_sizes(m->name + m->length, extra, &m->size, &packed, &offset) || !inside(offset, LOCAL, n) ||
        memcmp(data + offset, "PK\3\4", 4))
        return fail("%s: torn zip archive: member %.*s lies outside", path, (int)m->length, m->name);
    skip = LOCAL + little(data + offset + 26, 2) + little(data + offset + 28, 2);
    m->packed = m->stored ? m->size : packed;
    if (!inside(offset, skip, n) || !inside(offset + skip, m->packed, n))
        return fail("%s: torn zip archive: member %.*s has %llu bytes at %llu, the file has %zu", path, (int)m->length,
                    m->name, (unsigned long long)m->packed, (unsigned long long)offset, n);
    m->data = data + offset + skip;
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct zip_member *x = a, *y = b;
    int order = memcmp(x->name, y->name, x->length < y->length ? x->length : y->length);

    return order ? order : (x->length > y->length) - (x->length < y->length);
}

static int by_place(const void *a, const void *b)
{
    const struct zip_member *x = a, *y = b;

    if (x->data != y->data)
        return (x->data > y->data) - (x->data < y->data);
    return (x->packed > y->packed) - (x->packed < y->packed);
}

/* Bytes of two members at once are how small archives claim to hold much. Leaves them in the order of names. */
static int check_members(struct zip *z, const char *path)
{
    if (!z->n)
        return 0;
    qsort(z->at, (size_t)z->n, sizeof *z->at, by_place);
    for (int64_t i = 1; i < z->n; i++)
        if (z->at[i].data < z->at[i - 1].data + z->at[i - 1].packed)
            return fail("%s: zip archive whose members %.*s and %.*s overlap", path, (int)z->at[i - 1].length,
                        z->at[i - 1].name, (int)z->at[i].length, z->at[i].name);
    qsort(z->at, (size_t)z->n, sizeof *z->at, by_name);
    for (int64_t i = 1; i < z->n; i++)
        if (!by_name(&z->at[i - 1], &z->at[i]))
            return fail("%s: zip archive with two members named %.*s", path, (int)z->at[i].length, z->at[i].name);
    return 0;
}

int zip_open(struct zip *z, const char *data, size_t n, const char *path)
{
    uint64_t count = 0, size = 0, from = 0;
    const char *at;

    *z = (struct zip){ 0 };
    if (n < END)
        return fail("%s: not a zip archive: %zu bytes", path, n);
    if (find_end(data, n, path, &count, &size, &from))
        return -1;
    z->at = mem_new(count, sizeof *z->at);
    at = data + from;
    for (uint64_t i = 0; i < count; i++) {
        size_t taken = 0;
        if (read_member(&z->at[i], data, n, path, at, (size_t)(data + from + size - at), &taken)) {
            zip_close(z);
            return -1;
        }
        at += taken;
    }
    z->n = (int64_t)count;
    if (check_members(z, path)) {
        zip_close(z);
        return -1;
    }
    return 0;
}

void zip_close(struct zip *z)
{
    free(z->at);
    *z = (struct zip){ 0 };
}

const struct zip_member *zip_find(const struct zip *z, const char *name, size_t length)
{
    struct zip_member key = { .name = name, .length = length };

    return z->n ? bsearch(&key, z->at, (size_t)z->n, sizeof *z->at, by_name) : NULL;
}
