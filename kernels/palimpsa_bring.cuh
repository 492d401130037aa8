/* palimpsa_bring.cuh - how palimpsa_reverse.cu gets its tokens. */
#ifndef PALIMPSA_BRING_CUH
#define PALIMPSA_BRING_CUH
#include "palimpsa_reverse.cuh"

/* Fetches step n of the tile; `all`: also what only the way back needs. */
template <class F>
__device__ void start_fetch(struct shared<F> *sh, const struct plan *p, int n, bool all)
{
    fetch_rows<F::K / 8, F::threads>(sh->raw.k, p->k, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.v, p->v, n * STEP, p->left);
    fetch_rows<F::BV / 8, F::threads>(sh->raw.b, p->b, n * STEP, p->left);
    if (all) {
        fetch_rows<F::K / 8, F::threads>(sh->raw.q, p->q, n * STEP, p->left);
        fetch_rows<F::BV / 8, F::threads>(sh->raw_g, p->g, n * STEP, p->left);
    }
}

/* Makes step n ready; every lane is done with the one before. */
template <class F>
__device__ void convert(struct shared<F> *sh, const struct plan *p, float scale, int n, bool all)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;
    float a[8], b[8];

    fetched();
    __syncthreads();
    SPREAD(i, STEP * KC, F::threads,
        const int r = i / KC, c = i % KC * 8;
        unpack(a, *(const uint4 *)&sh->raw.k[r][c]);
        put_keys(&sh->key[r][2 * c], a, .5f);
        if (all) {
            unpack(a, *(const uint4 *)&sh->raw.q[r][c]);
            put8(&sh->query[r][c], a);
        });
    SPREAD(i, STEP * VC, F::threads,
        const int r = i / VC, c = i % VC * 8;
        const float m = p->m[n * STEP + r];
        unpack(a, *(const uint4 *)&sh->raw.v[r][c]);
        unpack(b, *(const uint4 *)&sh->raw.b[r][c]);
        put_values(&sh->value[r][2 * c], b, a, 2.f * m, m);
        if (all) {
            unpack(a, *(const uint4 *)&sh->raw_g[r][c]);
            for (int e = 0; e < 8; e++)
                a[e] *= scale;
            put8(&sh->grad[r][c], a);
        });
    __syncthreads();
}
#endif
