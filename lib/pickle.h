/* pickle.h - the tensors that a pickle written by torch.save names. Nothing is ever executed.
 *
 * A pickle is a program for a small stack machine. We run the opcodes that state dictionaries need and
 * know six callables, all of them as data: OrderedDict, _rebuild_tensor_v2, _rebuild_parameter and the
 * storages of torch. Any other opcode, name or shape of argument is refused with its place. */
#ifndef PICKLE_H
#define PICKLE_H
#include "safetensors.h"
EXTERN_C_BEGIN
struct pickle_tensor {
    char        *name;                       /* keys from the root, joined by "." */
    char        *storage;                    /* key of the storage: the archive's member data/KEY */
    enum st_type type;
    int64_t      elements;                   /* of the whole storage */
    int64_t      offset;                     /* elements */
    int          ndim;
    int64_t      dim[ST_DIMS], stride[ST_DIMS];      /* elements */
};
struct pickle { struct pickle_tensor *at; int64_t n; };

/* 0, or -1 with the reason and nothing to free. Memory stays within a small multiple of the pickle's size. */
int  pickle_read(struct pickle *p, const char *data, size_t n, const char *path);
void pickle_free(struct pickle *p);
EXTERN_C_END
#endif
