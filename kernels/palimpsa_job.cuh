/* palimpsa_job.cuh - the plan of a tile of palimpsa_reverse.cu. */
#ifndef PALIMPSA_JOB_CUH
#define PALIMPSA_JOB_CUH
#include "palimpsa_plan.cuh"

/* Where a gradient goes; dq and dk perhaps to this part's place in scratch, in fp32. */
__device__ inline struct place way_out(const struct tensor &a, float *scratch, const struct plan *p, int64_t K, int c,
                                       const struct tiled &w)
{
    if (scratch)
        return { (char *)(scratch + ((p->part * w.T + p->t0) * w.H + p->h) * K), 4 * (int)(w.H * K), 4 };
    return a.data ? place_of(a, p->t0, p->h, c) : place{ (char *)w.dump, 0, 2 };
}

template <class F>
__device__ void plan_places(struct plan *p, const struct scan_io &x, const struct scan_io &g, const struct tiled &w)
{
    p->k = place_of(x.k, p->t0, p->h * x.k.dim[1] / w.H, 0);
    p->q = place_of(x.q, p->t0, p->h * x.q.dim[1] / w.H, 0);
    p->v = place_of(x.v, p->t0, p->h, p->v0);
    p->b = place_of(x.beta, p->t0, p->h, p->v0);
    p->g = place_of(g.o, p->t0, p->h, p->v0);
    p->dq = way_out(g.q, w.dq, p, F::K, 0, w);
    p->dk = way_out(g.k, w.dk, p, F::K, 0, w);
    p->dv = way_out(g.v, NULL, p, F::K, p->v0, w);
    p->db = way_out(g.beta, NULL, p, F::K, p->v0, w);
}

/* Plans a tile of a job; one warp. after: the plan of the tile after it, NULL when that is another job's. */
template <class F>
__device__ void make_plan(struct plan *p, const struct plan *after, int64_t tile, const struct coming &c, int job,
                          const struct scan_io &x, const struct scan_io &g, const struct tiled &w)
{
    const int lane = threadIdx.x % 32, parts = (int)(w.V / F::BV), part = job % parts, h = job / parts % (int)w.H;
    const int segment = job / parts / (int)w.H;
    const float Ip = expf(((const float *)x.prior[0].data)[h]);
    const bool  last = tile * TILE == segment * w.segment;
    float own[2], u[2];
    unsigned keep = 0;

    for (int z = 0; z < 2; z++)
        own[z] = u[z] = c.x[z];
    suffix(u);
    const float rest = after ? after->sum : 0.f, total = __shfl_sync(~0u, u[0], 0) + rest;
    u[0] -= own[0], u[1] -= own[1];
    const uint64_t begin = c.opens, ends = block_ends(u) | begin >> 1;
    const bool any = begin || (after && after->open);
    for (int z = 0; z < 2; z++) {
        const int s = lane + 32 * z, e = __ffsll(ends >> s) - 1 + s;
        const float a = __shfl_sync(~0u, u[0], e & 31), b = __shfl_sync(~0u, u[1], e & 31), to = e < 32 ? a : b;
        p->m[s] = expf(to - u[z]);
        p->c[s] = Ip * p->m[s];
        p->enter[s] = expf(to - u[z] - own[z]);
    }
    for (int n = 1; n < STEPS; n++)         /* a block ends right before the step or inside it */
        keep |= (unsigned)((ends >> (STEP * n - 1) & 0xff) != 0) << n;
    __syncwarp();
    if (lane > 0)
        return;
    p->ends = ends, p->opens = begin, p->keep = keep;
    p->sweep = (tile + 1) * TILE < w.T ? 31 - __clz(keep | 1) : STEPS;
    p->t0 = tile * TILE, p->left = (int)min((int64_t)TILE, w.T - p->t0);
    p->h = h, p->v0 = part * F::BV, p->segment = segment, p->part = part;
    p->Ip = Ip, p->sum = total, p->open = any, p->last = last;
    plan_places<F>(p, x, g, w);
    if (part == 0)
        w.rest[tile * w.H + h] = rest;
    if (last && part == 0)
        w.grad_kept[segment * w.H + h] = any ? 0.f : expf(-total);
}
#endif
