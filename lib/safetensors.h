/* safetensors.h - strict reader and writer of safetensors files, memory mapped.
 *
 * Format: u64 little-endian header size, a JSON header {name: {dtype, shape, data_offsets}}, then
 * the bytes. We refuse, naming file, expected and found: a header over 100 MB or past the end,
 * unknown dtypes, sizes that disagree with shapes, overlaps, gaps, bytes after the last tensor.
 *
 *   struct st *f = st_open("model.safetensors");        NULL with the reason
 *   const struct st_tensor *t = st_find(f, "lm_head.weight");
 *   st_float(t, out)
 *   st_close(f);                                        pointers into the map die */
#ifndef SAFETENSORS_H
#define SAFETENSORS_H
#include "base.h"
#include "half.h"
EXTERN_C_BEGIN
enum st_type {
    ST_F32, ST_BF16, ST_F16, ST_F64, ST_I64, ST_I32, ST_I16, ST_U16, ST_I8, ST_U8, ST_BOOL, ST_TYPES
};
enum { ST_DIMS = 8 };

struct st_tensor {
    const char  *name;
    const void  *data;            /* mapped, read-only, any alignment */
    enum st_type type;
    int          ndim;            /* 0: a scalar */
    int64_t      dim[ST_DIMS], count, bytes;
    const char  *file;            /* which file it lies in, for messages */
    bool         mapped;          /* its pages come from the file again when they are let go */
};
struct st {
    const struct st_tensor *at;   /* [n] in file order; files of an index one after the other */
    int64_t n;
    void   *priv;
    void  (*release)(void *priv);  /* of another kind of file, whose tensors stand by name; else NULL */
};

struct st *st_open(const char *path);           /* a file, an index.json, or a directory */
struct st *st_open_memory(const void *data, size_t n, const char *name);  /* data stays the caller's */
void       st_close(struct st *f);
const struct st_tensor *st_find(const struct st *f, const char *name);      /* NULL when absent */
const char *st_meta(const struct st *f, const char *key);           /* of the first file; NULL when absent */
int64_t     st_metas(const struct st *f);                                   /* pairs of metadata */
const char *st_meta_at(const struct st *f, int64_t i, const char **value);  /* the i-th key */
const char *st_type_name(enum st_type t);
size_t      st_type_size(enum st_type t);

/* Converts count elements: F32, BF16, F16 and F64 to float; I64 and I32 to int32. -1 with the reason
 * for other types. */
int st_float(const struct st_tensor *t, float *out);
int st_int(const struct st_tensor *t, int32_t *out);
/* Lets the memory of a mapped tensor go until it is read again, so that reading a large file needs little. */
void st_drop(const struct st_tensor *t);

/* Writing: declare all (wide types first: readers that map the file want them aligned), give the
 * data in the same order; st_finish fsyncs. The file appears under path only when finished (written
 * to path.tmp and renamed). st_abort removes what was written. */
struct st_writer;
struct st_writer *st_create(const char *path);                              /* NULL with the reason */
void st_declare(struct st_writer *w, const char *name, enum st_type type, int ndim,
                const int64_t *dim);
void st_describe(struct st_writer *w, const char *key, const char *value);  /* a metadata pair */
int  st_write(struct st_writer *w, const void *data, size_t bytes);         /* the next bytes, any piece */
int  st_finish(struct st_writer *w);                                        /* frees w, also when it fails */
void st_abort(struct st_writer *w);

EXTERN_C_END
#endif
