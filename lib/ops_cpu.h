/* ops_cpu.h - private to ops_cpu*.c: how work is cut for threads.
 *
 * No atomics anywhere. A sum over tokens is cut into a fixed number of parts, or its columns are shared
 * out, so results do not depend on the number of threads. */
#ifndef OPS_CPU_H
#define OPS_CPU_H
#include "ops_host.h"
#include "vmath.h"
#include <omp.h>

enum { PIECE = 8192, PARTS = 32, HEADS = 64 };

/* Threads for so many elements: waking them costs more than a little work. */
static inline int crew(const struct dev *d, int64_t elements)
{
    return elements < 1 << 15 ? 1 : d->threads;
}

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Part i of n things in `parts` of a multiple of `align` each, as even as that allows. */
struct range { int64_t from, to; };
static inline struct range part(int64_t n, int64_t i, int64_t parts, int64_t align)
{
    int64_t blocks = (n + align - 1) / align;

    return (struct range){ least(n, blocks * i / parts * align), least(n, blocks * (i + 1) / parts * align) };
}

/* Tensors of one shape as n vectors: their rows, or pieces of the whole when all are dense. */
struct cut { int64_t n, size, last; bool flat; };
struct cut cut_of(const struct tensor *t, int n);
static inline float *cut_at(struct tensor t, const struct cut *k, int64_t i)
{
    return (float *)t.data + i * (k->flat ? PIECE : t.row);
}
static inline int64_t cut_size(const struct cut *k, int64_t i) { return i == k->n - 1 ? k->last : k->size; }

void rmsnorm_cpu(struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                 struct tensor z, enum gate g, float eps);
void rmsnorm_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                     struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add);
void l2norm_cpu(struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x);
void l2norm_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm);
void xent_cpu(struct dev *d, struct tensor loss, struct tensor grad, struct tensor logits, const int32_t *target,
              float scale);
void conv_cpu(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
              struct tensor bias, struct tensor state, const struct seqs *s);
void conv_bwd_cpu(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                  struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s);
void rope_cpu(struct dev *d, struct tensor y, struct tensor x, const int32_t *pos, float base, int sign);
void sumsq_cpu(struct dev *d, struct tensor sum, struct tensor x);
void adamw_cpu(struct dev *d, struct tensor w, struct tensor master, struct tensor m, struct tensor v,
               struct tensor g, const struct adamw *h);
#endif
