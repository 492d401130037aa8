/* torch_file.h - for tests: archives as torch.save writes them, and as it never would. */
#ifndef TORCH_FILE_H
#define TORCH_FILE_H
#include "safetensors.h"

struct bytes { char *at; size_t n, cap; };
void bytes_add(struct bytes *b, const void *data, size_t n);
void bytes_number(struct bytes *b, uint64_t x, int width);     /* little-endian */
void bytes_free(struct bytes *b);

/* A zip archive, member by member. */
struct archive { struct bytes file, directory; int n; };
void archive_put(struct archive *a, const char *name, const void *data, size_t n);
void archive_put_as(struct archive *a, const char *name, const void *data, size_t n, int method);
void archive_end(struct archive *a);
void archive_free(struct archive *a);

/* A pickled dictionary of tensors. */
struct view {
    const char *name, *storage;
    enum st_type type;
    int64_t elements, offset;
    int ndim;
    int64_t dim[4], stride[4];
};
void pickle_int(struct bytes *b, int64_t x);
void pickle_text(struct bytes *b, const char *s);
void pickle_view(struct bytes *b, const struct view *v);       /* key and value, for SETITEMS */
struct bytes pickle_of(const struct view *v, int n);
/* pickle and storages data/0.., as ROOT "weights" */
struct archive archive_of(struct bytes pickle, const struct bytes *storage, int n);
#endif
