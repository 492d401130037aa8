/* palimpsa_step.cu - one token for each of many sequences: read the memory, write it, hand it on.
 *
 * One warp owns one row of one head's memory of one sequence; lane j holds columns 4j..4j+3 (or j, j+32, ...
 * when K does not divide by 4). All it costs is moving the memory, so nothing is shared or staged. */
#include "palimpsa.cuh"

template <typename X, int N>
__global__ void step_kernel(struct scan_io x, struct docs docs)
{
    const int64_t t = blockIdx.z, h = blockIdx.y, v = blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t H = x.v.dim[1], K = x.k.dim[2], n = docs.seq[t];
    if (v >= x.v.dim[2])
        return;

    const X *k = head_at<X>(x.k, t, h * x.k.dim[1] / H), *q = head_at<X>(x.q, t, h * x.q.dim[1] / H);
    const float a = expf(*head_at<float>(x.decay, t, h)), Ip = expf(((const float *)x.prior[0].data)[h]);
    const float vt = load(head_at<X>(x.v, t, h) + v), bt = load(head_at<X>(x.beta, t, h) + v);
    const float *M0 = memory_at(x.state[0], n, h, v), *J0 = memory_at(x.state[1], n, h, v);
    float *M1 = memory_at(x.next[0], n, h, v), *J1 = memory_at(x.next[1], n, h, v), mean = 0.f, var = 0.f;

    for (int64_t j = N * threadIdx.x; j < K; j += N * 32) {
        struct pack<float, N> M = {}, J = {};
        if (M0)
            M = *(const struct pack<float, N> *)(M0 + j);
        if (J0)
            J = *(const struct pack<float, N> *)(J0 + j);
        for (int i = 0; i < N; i++) {
            const float ki = load(k + j + i), qi = load(q + j + i);
            M.at[i] = a * M.at[i] + vt * ki;
            J.at[i] = a * J.at[i] + bt * ki * ki;
            const float r = 1.f / (J.at[i] + Ip);
            mean += M.at[i] * r * qi;
            var  += r * qi * qi;
        }
        if (M1)
            *(struct pack<float, N> *)(M1 + j) = M;
        if (J1)
            *(struct pack<float, N> *)(J1 + j) = J;
    }
    mean = warp_sum(mean);
    var  = warp_sum(var);
    if (threadIdx.x == 0) {
        store(head_at<X>(x.o, t, h) + v, x.scale * mean);
        if (x.var.data)
            head_at<float>(x.var, t, h)[v] = x.scale * var;
    }
}

bool palimpsa_step_fits(const struct seqs *s, const struct scan_io *x)
{
    return s->longest == 1 && !x->saved[0].data && s->tokens < 65536 && x->v.dim[1] < 65536;
}

void palimpsa_step(struct dev *d, const struct seqs *s, const struct scan_io *x)
{
    const struct docs docs = { s->dstart, s->dseq };
    const dim3 block(32, 4), grid((unsigned)ceil_div(x->v.dim[2], 4), (unsigned)x->v.dim[1], (unsigned)s->tokens);
    const bool wide = x->k.dim[2] % 4 == 0;

    FOR_TYPE(x->q.type, X,
        if (wide) step_kernel<X, 4><<<grid, block, 0, stream_of(d)>>>(*x, docs);
        else      step_kernel<X, 1><<<grid, block, 0, stream_of(d)>>>(*x, docs));
    CUDA(cudaGetLastError());
}
