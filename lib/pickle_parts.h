/* pickle_parts.h - the state of the machine that reads a pickle, shared by its two files. */
#ifndef PICKLE_PARTS_H
#define PICKLE_PARTS_H
#include "pickle.h"

enum kind { NONE, MARK, BOOL, INT, REAL, TEXT, TUPLE, LIST, DICT, NAME, STORAGE, TENSOR };
enum callable { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, STORAGE_TYPE };

struct value {
    enum kind kind;
    int64_t   number;            /* BOOL, INT; NAME: enum callable; TUPLE: elements */
    int64_t   first;             /* TUPLE, LIST, DICT: newest link, -1 none; TENSOR, STORAGE: into their tables */
    const char *text;            /* TEXT: number bytes */
    enum st_type type;           /* NAME of a storage */
};
struct link { int64_t key, value, next; };
struct storage { enum st_type type; int64_t key, elements; };

struct machine {
    const char *data, *path;
    size_t n, at;
    struct value *value;
    struct link *link;
    struct storage *storage;
    struct pickle_tensor *tensor;
    int64_t *stack, *memo;
    int64_t nvalue, nlink, nstorage, ntensor, depth, nmemo;
};

/* Room for one more: tables double. */
#define ROOM(table, count) do { if (!((count) & ((count) - 1))) \
    (table) = mem_grow((table), (count) ? 2 * (size_t)(count) : 1, sizeof *(table)); } while (0)

int  pickle_bad(const struct machine *m, const char *what);          /* -1, naming file and byte */
void pickle_push_index(struct machine *m, int64_t v);
struct value *pickle_push(struct machine *m, enum kind kind, int64_t number);
/* Calls: each takes its arguments from the stack. 0 or -1. */
int  pickle_name(struct machine *m);              /* GLOBAL */
int  pickle_storage(struct machine *m);           /* BINPERSID */
int  pickle_reduce(struct machine *m);            /* REDUCE */
#endif
