/* embed.cu - rows of a table by token, and the gradient: every row of the table adds up its tokens.
 *
 * The gradient adds in the order of the tokens, so it is the same every time: tokens are grouped by
 * value (counted, then placed, then each group put in order), and a group is summed by one warp, or by
 * one block when it is large. */
#include "launch.cuh"
#include "sheet.cuh"

enum { FEW = 32 };                       /* tokens of one value that a warp sums alone */

template <int N, typename Y, typename X>
__global__ void embed_kernel(struct tensor y, struct tensor w, const int32_t *token, struct sheet s)
{
    for (int64_t t = sheet_row(); t < s.rows; t += sheet_row_step()) {
        const int64_t at = token[t];
        if (at < 0 || at >= w.dim[0])
            __trap();
        for (int64_t c = sheet_col(); c < s.cols; c += sheet_col_step()) {
            float u[N];
            load_n<N>(u, (const X *)w.data + at * w.row + c * N);
            store_n<N>((Y *)y.data + t * y.row + c * N, u);
        }
    }
}

void cuda_embed(struct dev *d, struct tensor y, struct tensor w, const int32_t *token)
{
    const bool wide = packs(y, 8) && packs(w, 8);
    const struct sheet s = sheet_of(y.dim[0], w.dim[1] / (wide ? 8 : 1));

    FOR_TYPE(y.type, Y, FOR_TYPE(w.type, X,
        if (wide)
            embed_kernel<8, Y, X><<<s.grid, s.block, 0, stream_of(d)>>>(y, w, token, s);
        else
            embed_kernel<1, Y, X><<<s.grid, s.block, 0, stream_of(d)>>>(y, w, token, s)));
    CUDA(cudaGetLastError());
}

/* The tokens of a row, grouped by value: those of value v are at[first[v]..first[v+1]). */
struct groups {
    int32_t *first;                      /* [V+1]; counts before that */
    int32_t *rank;                       /* [T] place within the group, in the order of arrival */
    int32_t *placed, *at;                /* [T] tokens by group, unordered and ordered */
    int32_t *large, *nlarge;             /* values of the groups of more than FEW tokens */
    int64_t  T, V;
};

static __global__ void count_kernel(struct groups g, const int32_t *token)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (t >= g.T)
        return;
    if (token[t] < 0 || token[t] >= g.V)
        __trap();
    g.rank[t] = atomicAdd(&g.first[token[t]], 1);
}

/* One block turns counts into starts and lists the large groups. */
static __global__ void __launch_bounds__(1024) start_kernel(struct groups g)
{
    __shared__ int32_t warp[32];
    const int64_t per = (g.V + 1023) / 1024, from = min(g.V, threadIdx.x * per), to = min(g.V, from + per);
    int32_t sum = 0, before = 0;

#pragma unroll 8
    for (int64_t v = from; v < to; v++)
        sum += g.first[v];
    int32_t x = sum;
    for (int step = 1; step < 32; step *= 2) {
        const int32_t y = __shfl_up_sync(0xffffffffu, x, step);
        x += threadIdx.x % 32 >= step ? y : 0;
    }
    if (threadIdx.x % 32 == 31)
        warp[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < (int)threadIdx.x / 32; i++)
        before += warp[i];
    int32_t at = before + x - sum, n[8];
    for (int64_t v0 = from; v0 < to; v0 += 8) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            n[i] = v0 + i < to ? g.first[v0 + i] : 0;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if (v0 + i < to)
                g.first[v0 + i] = at;
            at += n[i];
            if (n[i] > FEW)
                g.large[atomicAdd(g.nlarge, 1)] = (int32_t)(v0 + i);
        }
    }
    if (threadIdx.x == 1023)
        g.first[g.V] = (int32_t)g.T;
}

static __global__ void place_kernel(struct groups g, const int32_t *token)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (t < g.T)
        g.placed[g.first[token[t]] + g.rank[t]] = (int32_t)t;
}

/* A token's place in its group is the number of smaller tokens there. */
static __global__ void order_kernel(struct groups g, const int32_t *token)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i >= g.T)
        return;
    const int32_t t = g.placed[i], from = g.first[token[t]], to = g.first[token[t] + 1];
    int32_t smaller = 0;
    for (int32_t j = from; j < to; j++)
        smaller += g.placed[j] < t;
    g.at[from + smaller] = t;
}

/* One warp per value. */
template <int N, typename X>
__global__ void few_kernel(struct groups g, struct tensor dw, struct tensor dy)
{
    const int64_t v = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, D = dw.dim[1];

    if (v >= g.V)
        return;
    const int32_t from = g.first[v], to = g.first[v + 1];
    if (to - from > FEW || to == from)
        return;
    for (int64_t c = (int64_t)threadIdx.x * N; c < D; c += 32 * N) {
        float *w = (float *)dw.data + v * D + c, sum[N] = {}, u[N];
        for (int32_t j = from; j < to; j++) {
            load_n<N>(u, (const X *)dy.data + g.at[j] * dy.row + c);
            for (int i = 0; i < N; i++)
                sum[i] += u[i];
        }
        load_n<N>(u, w);
        for (int i = 0; i < N; i++)
            sum[i] += u[i];
        store_n<N>(w, sum);
    }
}

/* One block per value and 32 packs of columns; its 16 warps share the tokens. */
template <int N, typename X>
__global__ void large_kernel(struct groups g, struct tensor dw, struct tensor dy)
{
    __shared__ float part[16][32 * N];
    const int64_t D = dw.dim[1], c = ((int64_t)blockIdx.y * 32 + threadIdx.x) * N;

    if ((int32_t)blockIdx.x >= *g.nlarge)
        return;
    const int64_t v = g.large[blockIdx.x];
    float sum[N] = {}, u[N];
    for (int32_t j = g.first[v] + (int32_t)threadIdx.y; c < D && j < g.first[v + 1]; j += 16) {
        load_n<N>(u, (const X *)dy.data + g.at[j] * dy.row + c);
        for (int i = 0; i < N; i++)
            sum[i] += u[i];
    }
    for (int i = 0; i < N; i++)
        part[threadIdx.y][threadIdx.x * N + i] = sum[i];
    __syncthreads();
    if (threadIdx.y == 0 && c < D)
        for (int i = 0; i < N; i++) {
            float total = 0.f;
            for (int k = 0; k < 16; k++)
                total += part[k][threadIdx.x * N + i];
            ((float *)dw.data)[v * D + c + i] += total;
        }
}

template <int N, typename X>
static void sum_groups(struct dev *d, const struct groups *g, struct tensor dw, struct tensor dy)
{
    const unsigned most = (unsigned)min64(g->V, ceil_div(g->T, FEW + 1));
    const dim3 large(most, (unsigned)ceil_div(dw.dim[1], 32 * N));

    few_kernel<N, X><<<(unsigned)ceil_div(g->V, 8), dim3(32, 8), 0, stream_of(d)>>>(*g, dw, dy);
    CUDA(cudaGetLastError());
    large_kernel<N, X><<<large, dim3(32, 16), 0, stream_of(d)>>>(*g, dw, dy);
    CUDA(cudaGetLastError());
}

void cuda_embed_bwd(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token)
{
    const int64_t T = dy.dim[0], V = dw.dim[0];
    const unsigned blocks = (unsigned)ceil_div(T, 256);
    int32_t *p = (int32_t *)cuda_part(d, sizeof *p * (size_t)(V + 2 + 3 * T + T / FEW + 1));
    struct groups g = { p + 1, p + V + 2, p + V + 2 + T, p + V + 2 + 2 * T, p + V + 2 + 3 * T, p, T, V };
    const bool wide = packs(dw, 4) && packs(dy, 4);

    CUDA(cudaMemsetAsync(p, 0, sizeof *p * (size_t)(V + 2), stream_of(d)));
    count_kernel<<<blocks, 256, 0, stream_of(d)>>>(g, token);
    CUDA(cudaGetLastError());
    start_kernel<<<1, 1024, 0, stream_of(d)>>>(g);
    CUDA(cudaGetLastError());
    place_kernel<<<blocks, 256, 0, stream_of(d)>>>(g, token);
    CUDA(cudaGetLastError());
    order_kernel<<<blocks, 256, 0, stream_of(d)>>>(g, token);
    CUDA(cudaGetLastError());
    FOR_TYPE(dy.type, X,
        if (wide)
            sum_groups<4, X>(d, &g, dw, dy);
        else
            sum_groups<1, X>(d, &g, dw, dy));
}
