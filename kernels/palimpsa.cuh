/* palimpsa.cuh - what the kernels of the palimpsa scan share; lib/scans/palimpsa.c has the equations.
 *
 * Three ways to run it: `step` for rows of single tokens, `plain` for every shape and feature, `tiled`
 * for the common shapes at full speed. palimpsa_scan.cu chooses. */
#ifndef PALIMPSA_CUH
#define PALIMPSA_CUH
#include "common.cuh"
#include "scan.h"

/* A document that starts at a token forgets all before it. */
struct docs { const int32_t *start, *seq; };

__device__ inline bool begins(const struct docs &d, int64_t t) { return d.start[d.seq[t]] == t; }
__device__ inline bool ends(const struct docs &d, int64_t t)   { return d.start[d.seq[t] + 1] == t + 1; }

/* Row (n, h, v) of a tensor [N,H,V,K], NULL when it is absent. */
__device__ inline float *memory_at(const struct tensor &m, int64_t n, int64_t h, int64_t v)
{
    return m.data ? (float *)m.data + ((n * m.dim[1] + h) * m.dim[2] + v) * m.dim[3] : NULL;
}

/* Element 0 of head h of a token, in a tensor [T,H,C] or [T,H]. */
template <typename X>
__device__ inline X *head_at(const struct tensor &a, int64_t t, int64_t h)
{
    return (X *)a.data + t * a.row + h * a.dim[2];
}

/* Hands out parts of a call's scratch; base NULL only counts. */
struct carver { char *base; int64_t used; };

static inline float *carve(struct carver *c, int64_t floats)
{
    char *p = c->base + c->used;

    c->used += (floats * (int64_t)sizeof(float) + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    return c->base ? (float *)p : NULL;
}

#define PALIMPSA_PATH(name) \
    int64_t name##_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward); \
    void name##_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch); \
    void name##_backward(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g, \
                         void *scratch)
PALIMPSA_PATH(palimpsa_plain);
PALIMPSA_PATH(palimpsa_tiled);
bool palimpsa_tiled_fits(const struct dev *d, const struct scan_io *x);
bool palimpsa_tiled_fits_back(const struct scan_io *g);
bool palimpsa_step_fits(const struct seqs *s, const struct scan_io *x);
void palimpsa_step(struct dev *d, const struct seqs *s, const struct scan_io *x);

/* to[t,g,:] = the sum over heads h that read q or k from g of sum over p < parts of from[p,t,h,:]. */
void palimpsa_fold(struct dev *d, struct tensor to, const float *from, int64_t H, int64_t parts);
/* to[h] += exp(Ip_log[h]) * sum over p < parts of part[p,h] */
void palimpsa_add_prior(struct dev *d, struct tensor to, struct tensor Ip_log, const float *part, int64_t parts);
#endif
