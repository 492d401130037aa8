/* palimpsa_plain.cuh - a warp's hold on one row of the memory, for both directions of the plain path.
 *
 * One warp owns one row v of one head's memory; lane j holds columns j, j+32, ... of it. */
#ifndef PALIMPSA_PLAIN_CUH
#define PALIMPSA_PLAIN_CUH
#include "palimpsa.cuh"

enum { PLAIN_CHUNK = 256 };     /* tokens of the row that one block walks */

struct plain {                  /* scratch of one call */
    struct docs docs;
    float  *edge;               /* [chunks,H,2,V,K] what a chunk adds to the memory (its gradient), then its start */
    float  *keep;               /* [chunks,H] share of the memory before a chunk that outlives it */
    float  *dq, *dk;            /* [T,H,K] */
    float  *prior;              /* [chunks,H] */
    int64_t chunks;
};
struct plain plain_of(const struct seqs *s, const struct scan_io *x, bool backward, struct carver *m);
void plain_chain(struct dev *d, const struct plain *w, const struct scan_io *x, bool reverse);

template <int C> struct line { float M[C], J[C]; };     /* a lane's share of a row, of its gradient, ... */

__device__ inline float *edge_at(const struct plain &w, const struct scan_io &x, int64_t c, int h, int part, int v)
{
    return w.edge + (((c * x.v.dim[1] + h) * 2 + part) * x.v.dim[2] + v) * x.k.dim[2];
}

template <int C>
__device__ void line_load(struct line<C> *s, const float *M, const float *J, int K)
{
    for (int c = 0; c < C; c++) {
        const int j = threadIdx.x + 32 * c;
        s->M[c] = M && j < K ? M[j] : 0.f;
        s->J[c] = J && j < K ? J[j] : 0.f;
    }
}

template <int C>
__device__ void line_store(const struct line<C> *s, float *M, float *J, int K)
{
    for (int c = 0; c < C; c++) {
        const int j = threadIdx.x + 32 * c;
        if (j < K && M)
            M[j] = s->M[c];
        if (j < K && J)
            J[j] = s->J[c];
    }
}

/* One token as a row sees it. */
template <int C> struct seen { float k[C], q[C], a, v, b; };

template <typename X, int C>
__device__ void see(struct seen<C> *y, const struct scan_io &x, int64_t t, int h, int v)
{
    const int64_t H = x.v.dim[1], K = x.k.dim[2];
    const X *k = head_at<X>(x.k, t, h * x.k.dim[1] / H), *q = head_at<X>(x.q, t, h * x.q.dim[1] / H);

    for (int c = 0; c < C; c++) {
        const int j = threadIdx.x + 32 * c;
        y->k[c] = j < K ? load(k + j) : 0.f;
        y->q[c] = j < K ? load(q + j) : 0.f;
    }
    y->a = expf(*head_at<float>(x.decay, t, h));
    y->v = load(head_at<X>(x.v, t, h) + v);
    y->b = load(head_at<X>(x.beta, t, h) + v);
}

template <int C>
__device__ void line_write(struct line<C> *s, const struct seen<C> *y)
{
    for (int c = 0; c < C; c++) {
        s->M[c] = y->a * s->M[c] + y->v * y->k[c];
        s->J[c] = y->a * s->J[c] + y->b * y->k[c] * y->k[c];
    }
}
#endif
