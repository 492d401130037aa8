/* scan_host.h - how the recurrences on the host reach into their tensors: F32, double inside. */
#ifndef SCAN_HOST_H
#define SCAN_HOST_H
#include "scan.h"

enum { SCAN_PAD = 16 };      /* K is padded to so many floats: full vectors on any machine */

static inline float *row(struct tensor t, int64_t token, int64_t head)
{
    return (float *)t.data + token * t.row + head * t.dim[2];
}

/* Head h of a state tensor; NULL when the tensor is absent. */
static inline float *memory(struct tensor t, int64_t n, int64_t h)
{
    return t.data ? (float *)t.data + n * t.row + h * t.dim[2] * t.dim[3] : NULL;
}

/* The naive rows compute in double. An absent memory is empty, or not stored. */
void memory_load(double *m, struct tensor t, int64_t n, int64_t h, int64_t size);
void memory_store(struct tensor t, int64_t n, int64_t h, const double *m, int64_t size);

/* Absent tensors are not wanted: these do nothing then. */
static inline void row_put(struct tensor t, int64_t token, int64_t head, const double *value)
{
    for (int64_t i = 0; t.data && i < t.dim[2]; i++)
        row(t, token, head)[i] = (float)value[i];
}

static inline void row_add(struct tensor t, int64_t token, int64_t head, const double *value)
{
    for (int64_t i = 0; t.data && i < t.dim[2]; i++)
        row(t, token, head)[i] += (float)value[i];
}

static inline void rows_clear(struct tensor t)
{
    for (int64_t i = 0; t.data && i < t.dim[0]; i++)
        memset(row(t, i, 0), 0, (size_t)(t.dim[1] * t.dim[2]) * sizeof(float));
}

/* How many threads a row is worth; results do not depend on it. */
static inline int scan_threads(const struct dev *d, const struct scan_io *x)
{
    int64_t worth = 1 + tensor_count(x->v) * x->k.dim[2] / 65536;

    return d->threads > worth ? (int)worth : d->threads > 0 ? d->threads : 1;
}

static inline int64_t scan_padded(int64_t n)
{
    return (n + SCAN_PAD - 1) / SCAN_PAD * SCAN_PAD;
}

/* Cuts the next floats off a piece of scratch. */
static inline float *scan_cut(float **scratch, int64_t floats)
{
    float *p = *scratch;

    *scratch += floats;
    return p;
}

/* Tokens [from,to) of a piece of the row that belong to sequence n; first, last: they are its
 * first, its last. */
struct segment { int64_t n; int from, to; bool first, last; };

/* Splits tokens [from,to) of the row; at most to - from segments, none of them empty. Returns how
 * many. */
int scan_segments(struct segment *seg, const struct seqs *s, int64_t from, int64_t to);
/* Memory out = memory in, for the sequences without a token. */
void scan_pass_empty(const struct seqs *s, struct tensor to, struct tensor from);
#endif
