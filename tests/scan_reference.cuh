/* scan_reference.cuh - the palimpsa scan and its gradients in fp64, over a head's memory, every memory kept.
 *
 *   M = a M + v k'   J = a J + b (k*k)'   o = scale (M / (J + Ip)) q   var = scale (1 / (J + Ip)) (q*q)
 *
 * Threads own (v,k) of a head, then (t,v) or (t,k). */
#ifndef SCAN_REFERENCE_CUH
#define SCAN_REFERENCE_CUH
#include "palimpsa.cuh"

struct ref {
    double *M, *J, *gM, *gJ;            /* [T,V,K] after each token */
    double *o, *var, *dq, *dk, *dv, *db, *da, *prior, *next[2], *gstate[2];
};

__device__ static double ref_keep(const struct scan_io &x, int64_t t, int h)
{
    return exp((double)*head_at<float>(x.decay, t, h));
}
__device__ static double elem(const struct tensor &t, int64_t r, int64_t h, int64_t c)
{
    return get(t, r * t.row + h * t.dim[2] + c);
}
__device__ static int q_head(const struct scan_io &x, int h) { return (int)(h * x.q.dim[1] / x.v.dim[1]); }
__device__ static int k_head(const struct scan_io &x, int h) { return (int)(h * x.k.dim[1] / x.v.dim[1]); }

__global__ void ref_states(struct ref y, struct scan_io x, struct docs d, int h)
{
    const int64_t K = x.k.dim[2], V = x.v.dim[2], e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t v = e / K, j = e % K;
    double M = 0, J = 0;
    if (e >= V * K)
        return;
    for (int64_t t = 0; t < x.v.dim[0]; t++) {
        const double a = ref_keep(x, t, h), k = elem(x.k, t, k_head(x, h), j);
        const int64_t n = d.seq[t];
        if (begins(d, t)) {
            M = x.state[0].data ? memory_at(x.state[0], n, h, v)[j] : 0;
            J = x.state[1].data ? memory_at(x.state[1], n, h, v)[j] : 0;
        }
        M = a * M + elem(x.v, t, h, v) * k;
        J = a * J + elem(x.beta, t, h, v) * k * k;
        y.M[t * V * K + e] = M;
        y.J[t * V * K + e] = J;
        if (y.next[0] && ends(d, t)) {
            y.next[0][((n * x.v.dim[1] + h) * V + v) * K + j] = M;
            y.next[1][((n * x.v.dim[1] + h) * V + v) * K + j] = J;
        }
    }
}

__global__ void ref_adjoint(struct ref y, struct scan_io x, struct scan_io g, struct docs d, int h)
{
    const int64_t K = x.k.dim[2], V = x.v.dim[2], e = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t v = e / K, j = e % K;
    const double Ip = exp((double)((const float *)x.prior[0].data)[h]);
    double gM = 0, gJ = 0, prior = 0;
    if (e >= V * K)
        return;
    for (int64_t t = x.v.dim[0] - 1; t >= 0; t--) {
        const double a = ref_keep(x, t, h), q = elem(x.q, t, q_head(x, h), j);
        const double go = x.scale * elem(g.o, t, h, v), gv = g.var.data ? x.scale * elem(g.var, t, h, v) : 0;
        const double r = 1 / (y.J[t * V * K + e] + Ip), mu = y.M[t * V * K + e] * r;
        const int64_t n = d.seq[t], at = ((n * x.v.dim[1] + h) * V + v) * K + j;
        if (ends(d, t)) {
            gM = g.next[0].data ? ((const float *)g.next[0].data)[at] : 0;
            gJ = g.next[1].data ? ((const float *)g.next[1].data)[at] : 0;
        }
        gM += go * q * r;
        gJ -= go * q * r * mu + gv * q * q * r * r;
        prior -= go * q * r * mu + gv * q * q * r * r;
        y.gM[t * V * K + e] = gM;
        y.gJ[t * V * K + e] = gJ;
        gM *= a, gJ *= a;
        if (y.gstate[0] && begins(d, t))
            y.gstate[0][at] = gM, y.gstate[1][at] = gJ;
    }
    atomicAdd(y.prior + h, Ip * prior);
}

__global__ void ref_rows(struct ref y, struct scan_io x, int h)
{
    const int64_t K = x.k.dim[2], V = x.v.dim[2], H = x.v.dim[1];
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, t = i / V, v = i % V;
    const double Ip = exp((double)((const float *)x.prior[0].data)[h]);
    double o = 0, var = 0, dv = 0, db = 0;
    if (t >= x.v.dim[0])
        return;
    for (int64_t j = 0; j < K; j++) {
        const int64_t at = (t * V + v) * K + j;
        const double r = 1 / (y.J[at] + Ip), q = elem(x.q, t, q_head(x, h), j), k = elem(x.k, t, k_head(x, h), j);
        o += y.M[at] * r * q, var += r * q * q;
        dv += y.gM[at] * k, db += y.gJ[at] * k * k;
    }
    const int64_t to = (t * H + h) * V + v;
    y.o[to] = x.scale * o, y.var[to] = x.scale * var, y.dv[to] = dv, y.db[to] = db;
}

__global__ void ref_cols(struct ref y, struct scan_io x, struct scan_io g, int h)
{
    const int64_t K = x.k.dim[2], V = x.v.dim[2], i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t t = i / K, j = i % K;
    const double Ip = exp((double)((const float *)x.prior[0].data)[h]);
    double dq = 0, dk = 0;
    if (t >= x.v.dim[0])
        return;
    const double q = elem(x.q, t, q_head(x, h), j), k = elem(x.k, t, k_head(x, h), j);
    for (int64_t v = 0; v < V; v++) {
        const int64_t at = (t * V + v) * K + j;
        const double r = 1 / (y.J[at] + Ip), gv = g.var.data ? elem(g.var, t, h, v) : 0;
        dq += x.scale * (elem(g.o, t, h, v) * y.M[at] * r + 2 * q * gv * r);
        dk += y.gM[at] * elem(x.v, t, h, v) + 2 * k * y.gJ[at] * elem(x.beta, t, h, v);
    }
    y.dq[(t * x.q.dim[1] + q_head(x, h)) * K + j] += dq;
    y.dk[(t * x.k.dim[1] + k_head(x, h)) * K + j] += dk;
}

__global__ void ref_decay(struct ref y, struct scan_io x, struct docs d, int h)
{
    __shared__ double part[128];
    const int64_t t = blockIdx.x, VK = x.k.dim[2] * x.v.dim[2];
    double sum = 0;
    for (int64_t e = threadIdx.x; e < VK; e += 128) {
        const int64_t s = ((int64_t)d.seq[t] * x.v.dim[1] + h) * VK + e;
        const bool new_doc = begins(d, t);
        const double M = !new_doc ? y.M[(t - 1) * VK + e] : x.state[0].data ? ((const float *)x.state[0].data)[s] : 0;
        const double J = !new_doc ? y.J[(t - 1) * VK + e] : x.state[1].data ? ((const float *)x.state[1].data)[s] : 0;
        sum += M * y.gM[t * VK + e] + J * y.gJ[t * VK + e];
    }
    part[threadIdx.x] = sum;
    __syncthreads();
    for (int i = 64; i > 0; i /= 2) {
        if (threadIdx.x < i)
            part[threadIdx.x] += part[threadIdx.x + i];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        y.da[t * x.v.dim[1] + h] = part[0] * ref_keep(x, t, h);
}

__global__ void ref_empty(double *to, struct tensor from, const int32_t *start)
{
    const int64_t n = blockIdx.x, size = from.dim[1] * from.dim[2] * from.dim[3];

    for (int64_t i = threadIdx.x; i < size && from.data && to && start[n] == start[n + 1]; i += blockDim.x)
        to[n * size + i] = ((const float *)from.data)[n * size + i];
}
#endif
