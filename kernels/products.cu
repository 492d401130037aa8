/* products.cu - products of a few rows with matrices: as fast as the matrices can be read.
 *
 * A block puts the rows, normed or gated, into shared memory; then each of its warps takes a row of a matrix at a
 * time, lanes side by side along it, sums in F32 in one order, and has one element of every row of y. What a warp
 * needs first of its matrix is fetched before the rows are there. */
#include "chain.cuh"
#include "launch.cuh"
#include "sheet.cuh"
#include "op_step.h"

struct few {
    const void *w[PRODUCTS];
    void       *y[PRODUCTS];
    int64_t     ldw[PRODUCTS], ldy[PRODUCTS];
    int         from[PRODUCTS + 1];      /* columns of y side by side: those of matrix i begin here */
    bool        wide[PRODUCTS];          /* y is F32 */
    int         n, rows, K;
    struct tensor x, up;
    const float *norm;
    float       eps;
    enum before before;
    bool        add;
};

template <int M> constexpr int few_warps(void) { return M > 4 ? 8 : 4; }

/* Sum over the threads that share a row of x. */
template <int M> __device__ inline float row_sum(float x)
{
    constexpr int warps = few_warps<M>(), lanes = 32 * warps / M;
    __shared__ float sum[warps];

    for (int step = (lanes < 32 ? lanes : 32) / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    if (lanes <= 32)
        return x;
    if (threadIdx.x % 32 == 0)
        sum[threadIdx.x / 32] = x;
    __syncthreads();
    x = 0.f;
    for (int i = 0; i < lanes / 32; i++)
        x += sum[threadIdx.x / lanes * (lanes / 32) + i];
    return x;
}

template <typename X> __device__ inline float rounded(float x)
{
    X y;

    store(&y, x);
    return load(&y);
}

/* u [M][K]: the rows as the matrices meet them, rounded to their type. All loads of a round are under way at once, so
 * there is a loop for each kind of row. */
template <int M, typename X> __device__ inline void stage(float *u, const struct few &p)
{
    constexpr int lanes = 32 * few_warps<M>() / M, AT_ONCE = 8;
    const int m = threadIdx.x / lanes, lane = threadIdx.x % lanes, K = m < p.rows ? p.K : 0;
    float x[AT_ONCE], y[AT_ONCE], sum = 0.f;

    u += m * p.K;
    for (int k0 = lane; k0 < K && p.before == BEFORE_NORM; k0 += lanes * AT_ONCE) {
        const float *from = (const float *)p.x.data + m * p.x.row;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int k = k0 + i * lanes;
            x[i] = k < K ? from[k] : 0.f;
            y[i] = k < K ? p.norm[k] : 0.f;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            sum += x[i] * x[i];
            if (k0 + i * lanes < K)
                u[k0 + i * lanes] = x[i] * y[i];
        }
    }
    for (int k0 = lane; k0 < K && p.before != BEFORE_NORM; k0 += lanes * AT_ONCE) {
        const X *from = (const X *)p.x.data + m * p.x.row, *up = (const X *)p.up.data + m * p.up.row;
        const bool gated = p.before == BEFORE_SWIGLU;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const int k = k0 + i * lanes;
            x[i] = k < K ? load(from + k) : 0.f;
            y[i] = k < K && gated ? load(up + k) : 0.f;
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (k0 + i * lanes < K)
                u[k0 + i * lanes] = gated ? rounded<X>(x[i] * sigmoid(x[i]) * y[i]) : x[i];
    }
    if (p.before != BEFORE_NORM)
        return;
    const float scale = rsqrtf(row_sum<M>(sum) / (float)p.K + p.eps);
    for (int k = lane; k < K; k += lanes)        /* each thread its own elements */
        u[k] = rounded<X>(u[k] * scale);
}

template <int M, int N, typename X>
__device__ inline void multiply(float (&sum)[M], const pack<X, N> &w, const float *u, int K)
{
#pragma unroll
    for (int m = 0; m < M; m++) {
        float x[N];
        load_n<N>(x, u + m * K);
        for (int j = 0; j < N; j++)
            sum[m] += x[j] * load(&w.at[j]);
    }
}

/* Column col of all y side by side: its matrix, and the row of it. */
struct column { int matrix, at; };

__device__ inline struct column column_of(const struct few &p, int col)
{
    int i = 0;

    while (i + 1 < p.n && col >= p.from[i + 1])
        i++;
    return { i, col - p.from[i] };
}

template <int N, int AHEAD, typename X>
__device__ inline void fetch(pack<X, N> (&held)[AHEAD], const struct few &p, int col)
{
    const struct column c = column_of(p, col);
    const X *w = (const X *)p.w[c.matrix] + c.at * p.ldw[c.matrix];

#pragma unroll
    for (int a = 0; a < AHEAD; a++)
        if (col < p.from[p.n] && (a * 32 + (int)threadIdx.x % 32) * N < p.K)
            held[a] = *(const pack<X, N> *)(w + (a * 32 + threadIdx.x % 32) * N);
}

template <int M, int N, typename X>
__global__ void __launch_bounds__(32 * few_warps<M>()) products_kernel(const __grid_constant__ struct few p)
{
    constexpr int AHEAD = M <= 2 ? 8 : 4;        /* packs of a matrix that a lane fetches beforehand */
    extern __shared__ __align__(16) float u[];
    const int lane = threadIdx.x % 32, step = gridDim.x * few_warps<M>();
    int col = blockIdx.x * few_warps<M>() + threadIdx.x / 32;
    pack<X, N> held[AHEAD] = {};

    fetch<N, AHEAD, X>(held, p, col);
    await();
    stage<M, X>(u, p);
    __syncthreads();
    let_next();
    for (; col < p.from[p.n]; col += step) {
        const struct column c = column_of(p, col);
        const X *w = (const X *)p.w[c.matrix] + c.at * p.ldw[c.matrix];
        float sum[M] = {}, mine = 0.f;
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if ((a * 32 + lane) * N < p.K)
                multiply<M, N, X>(sum, held[a], u + (a * 32 + lane) * N, p.K);
        fetch<N, AHEAD, X>(held, p, col + step);         /* arrives while this column is summed */
#pragma unroll 4
        for (int k = (AHEAD * 32 + lane) * N; k < p.K; k += 32 * N)
            multiply<M, N, X>(sum, *(const pack<X, N> *)(w + k), u + k, p.K);
        for (int m = 0; m < M; m++) {
            sum[m] = warp_sum(sum[m]);
            mine = lane == m ? sum[m] : mine;
        }
        if (lane < p.rows) {
            const int64_t at = lane * p.ldy[c.matrix] + c.at;
            if (p.wide[c.matrix])
                ((float *)p.y[c.matrix])[at] = mine + (p.add ? ((float *)p.y[c.matrix])[at] : 0.f);
            else
                store((X *)p.y[c.matrix] + at, mine + (p.add ? load((X *)p.y[c.matrix] + at) : 0.f));
        }
    }
}

template <int M, typename X> static void few_launch(struct dev *d, const struct few *p, bool packed)
{
    constexpr int N = 16 / sizeof(X), warps = few_warps<M>();
    const unsigned grid = (unsigned)min64(ceil_div(p->from[p->n], warps), 16 / warps * cuda_of(d)->sms);
    const size_t shared = (size_t)M * p->K * sizeof(float);

    if (packed)
        chain(d, products_kernel<M, N, X>, dim3(grid), 32 * warps, shared, *p);
    else
        chain(d, products_kernel<M, 1, X>, dim3(grid), 32 * warps, shared, *p);
    CUDA(cudaGetLastError());
}

void cuda_products(struct dev *d, const struct products *g)
{
    struct few p = {};
    bool packed = true;

    p.n = g->n, p.rows = (int)g->x.dim[0], p.K = (int)g->x.dim[1];
    p.x = g->x, p.up = g->up, p.norm = (const float *)g->norm.data;
    p.eps = g->eps, p.before = g->before, p.add = g->add;
    for (int i = 0; i < g->n; i++) {
        p.w[i]        = g->w[i].data;
        p.y[i]        = g->y[i].data;
        p.ldw[i]      = g->w[i].row;
        p.ldy[i]      = g->y[i].row;
        p.from[i + 1] = p.from[i] + (int)g->w[i].dim[0];
        p.wide[i]     = g->y[i].type == F32;
        packed        = packed && packs(g->w[i], 16 / (int)dtype_size(g->w[i].type));
    }
    FOR_TYPE(g->w[0].type, X,
        if (p.rows == 1)      few_launch<1, X>(d, &p, packed);
        else if (p.rows == 2) few_launch<2, X>(d, &p, packed);
        else if (p.rows <= 4) few_launch<4, X>(d, &p, packed);
        else                  few_launch<8, X>(d, &p, packed));
}
