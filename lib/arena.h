/* arena.h - a stack of tensors in one allocation. Nothing else in the library allocates device memory.
 *
 * Who pushes pops. A plan-only arena (base NULL) hands out shapes whose data is NULL and remembers the
 * peak: running the same code over it says exactly how much the real one needs. */
#ifndef ARENA_H
#define ARENA_H
#include "tensor.h"
EXTERN_C_BEGIN

enum { ARENA_ALIGN = 256 };

struct arena {
    char  *base;
    size_t size, used, peak;     /* bytes */
};

struct tensor arena_push(struct arena *a, struct tensor shape);     /* not zeroed; BUG when full: plan first */
size_t        arena_mark(const struct arena *a);
void          arena_pop(struct arena *a, size_t mark);
EXTERN_C_END
#endif
