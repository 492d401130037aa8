/* norm.cu - rmsnorm with its gates, and l2norm. A row lives in registers between its two passes, so
 * memory is read once. Gradients of weights are summed per block and added by a second kernel. */
#include "launch.cuh"
#include "rows.cuh"

/* Row r of a [T,G,C] tensor begins here. */
__device__ inline int64_t row_at(const struct tensor &x, int64_t t, int64_t k)
{
    return t * x.row + k * x.dim[2];
}

__device__ inline float silu(float x)       { return x * sigmoid(x); }
__device__ inline float silu_slope(float x) { return sigmoid(x) * (1.f + x * (1.f - sigmoid(x))); }

template <int L, int NV, int N, typename X, typename Y>
__global__ void __launch_bounds__(row_block<L>())
rmsnorm_kernel(struct tensor y, struct tensor rstd, struct tensor x, struct tensor w, struct tensor z,
               enum gate g, float eps)
{
    const int64_t C = x.dim[2];
    const unsigned r = blockIdx.x * row_groups<L>() + threadIdx.x / L, G = (unsigned)x.dim[1];
    const int64_t t = r / G, k = r % G;
    const bool live = t < x.dim[0];
    const float *wk = (const float *)w.data + (w.dim[0] == C ? 0 : k * C);
    float u[NV][N], sum = 0.f;

#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
        for (int j = 0; j < N; j++)
            u[i][j] = 0.f;
        if (!live || c >= C)
            continue;
        load_n<N>(u[i], (const X *)x.data + row_at(x, t, k) + c);
        if (g == GATE_BEFORE_NORM) {
            float gate[N];
            load_n<N>(gate, (const Y *)z.data + row_at(z, t, k) + c);
            for (int j = 0; j < N; j++)
                u[i][j] *= silu(gate[j]);
        }
        for (int j = 0; j < N; j++)
            sum += u[i][j] * u[i][j];
    }
    const float scale = rsqrtf(lanes_sum<L>(sum) / (float)C + eps);
    if (live && threadIdx.x % L == 0)
        ((float *)rstd.data)[t * rstd.row + k] = scale;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
        if (!live || c >= C)
            continue;
        float weight[N], gate[N];
        load_n<N>(weight, wk + c);
        if (g == GATE_AFTER_NORM)
            load_n<N>(gate, (const Y *)z.data + row_at(z, t, k) + c);
        for (int j = 0; j < N; j++)
            u[i][j] *= scale * weight[j] * (g == GATE_AFTER_NORM ? silu(gate[j]) : 1.f);
        store_n((Y *)y.data + row_at(y, t, k) + c, u[i]);
    }
}

/* Weights wider than 16 bytes apart are read in packs too. */
static bool weight_packs(struct tensor w)
{
    return (uintptr_t)w.data % 16 == 0;
}

/* [T,G,C] whose every group can be read in packs of eight. */
static bool group_packs(struct tensor x)
{
    return !x.data || (x.dim[2] % 8 == 0 && packs(x, 8));
}

void cuda_rmsnorm(struct dev *d, struct tensor y, struct tensor rstd, struct tensor x, struct tensor w,
                  struct tensor z, enum gate g, float eps)
{
    const int64_t rows = x.dim[0] * x.dim[1], C = x.dim[2];
    const bool wide = group_packs(x) && group_packs(y) && group_packs(z) && weight_packs(w);

    REQUIRE(rows < (int64_t)1 << 31);
    FOR_TYPE(x.type, X, FOR_TYPE(y.type, Y, FOR_ROW(X, C, wide, L, NV, N,
        const unsigned grid = (unsigned)ceil_div(rows, row_groups<L>());
        rmsnorm_kernel<L, NV, N, X, Y><<<grid, row_block<L>(), 0, stream_of(d)>>>(y, rstd, x, w, z, g, eps))));
    CUDA(cudaGetLastError());
}

/* Stores what the groups of a block hold for columns: each group's sums of C columns, or their total. */
template <int L, int NV, int N>
__device__ inline void store_columns(float *part, const float (&dw)[NV][N], int64_t C, bool apart)
{
    constexpr int G = row_groups<L>(), width = L * NV * N;
    const int group = threadIdx.x / L, lane = threadIdx.x % L;

    if (G == 1 || apart) {
        for (int i = 0; i < NV; i++)
            for (int j = 0; j < N; j++)
                if ((i * L + lane) * N + j < C)
                    part[((int64_t)blockIdx.x * G + group) * C + (i * L + lane) * N + j] = dw[i][j];
    } else {
        __shared__ float sum[G == 1 ? 1 : G][G == 1 ? 1 : width];
        for (int i = 0; i < NV; i++)
            for (int j = 0; j < N; j++)
                sum[group][(i * L + lane) * N + j] = dw[i][j];
        __syncthreads();
        for (int c = threadIdx.x; c < C; c += row_block<L>()) {
            float total = 0.f;
            for (int i = 0; i < G; i++)
                total += sum[i][c];
            part[blockIdx.x * C + c] = total;
        }
    }
}

/* Makes the compiler take the elements for new: what it had computed from them would fill the registers. */
template <typename X, int N> __device__ inline void renew(words<X, N> &p)
{
    for (uint32_t &word : p.at)
        asm volatile("" : "+r"(word));
}

/* What a lane holds of a row of C elements. */
template <int L, int NV, int N, typename X>
__device__ inline void fetch_row(words<X, N> (&p)[NV], const X *row, int64_t C)
{
#pragma unroll
    for (int i = 0; i < NV; i++)
        if ((int64_t)(i * L + threadIdx.x % L) * N < C)
            fetch(p[i], row + (i * L + threadIdx.x % L) * N);
}

/* First N elements of a row: what they add to the sum of dn n, and to dw. u, e and v are x, dy and z. */
template <int N>
__device__ inline float rmsnorm_dot(float (&dw)[N], const float (&u)[N], const float (&e)[N], const float (&v)[N],
                                    const float *w, float scale, enum gate g)
{
    float weight[N], dot = 0.f;

    load_n<N>(weight, w);
    for (int j = 0; j < N; j++) {
        const float ng = u[j] * scale * e[j] * (g == GATE_NONE ? 1.f : silu(v[j]));
        dot += ng * weight[j];
        dw[j] += ng;
    }
    return dot;
}

/* Then their gradients: u and v become those at x and z. */
template <int N>
__device__ inline void rmsnorm_slope(float (&u)[N], const float (&e)[N], float (&v)[N], const float *w, float scale,
                                     float dot, enum gate g)
{
    float weight[N];

    load_n<N>(weight, w);
    for (int j = 0; j < N; j++) {
        const float gate = g == GATE_NONE ? 1.f : silu(v[j]), dn = e[j] * weight[j];
        const float n = u[j] * scale * (g == GATE_BEFORE_NORM ? gate : 1.f);
        const float du = scale * (dn * (g == GATE_AFTER_NORM ? gate : 1.f) - n * dot);
        v[j] = g == GATE_NONE ? 0.f : silu_slope(v[j]) * (g == GATE_AFTER_NORM ? dn * n : du * u[j]);
        u[j] = du * (g == GATE_BEFORE_NORM ? gate : 1.f);
    }
}

/* Blocks of a backward kernel that a multiprocessor must hold, to have enough loads on their way. */
template <int L, int NV, int N> constexpr int row_resident(void) { return L > 32 ? 1 : NV * N > 8 ? 2 : 3; }

/* A group of lanes walks over rows of one k; apart: each k has its own weights, and each group its own part. */
template <int L, int NV, int N, typename X, typename Y>
__global__ void __launch_bounds__(row_block<L>(), row_resident<L, NV, N>())
rmsnorm_bwd_kernel(struct tensor dx, struct tensor dz, struct tensor dy, struct tensor x, struct tensor w,
                   struct tensor z, struct tensor rstd, enum gate g, bool add, bool apart, float *part)
{
    const int64_t C = x.dim[2], T = x.dim[0];
    const unsigned id = blockIdx.x * row_groups<L>() + threadIdx.x / L, G = (unsigned)x.dim[1], k = id % G;
    const int64_t step = gridDim.x * row_groups<L>() / G, turns = (T + step - 1) / step;
    const float *wk = (const float *)w.data + (apart ? k * C : 0);
    float dw[NV][N] = {}, u[N], e[N], v[N];

    for (int64_t turn = 0; turn < turns; turn++) {
        const int64_t t = id / G + turn * step;
        const bool live = t < T;
        const float scale = live ? ((const float *)rstd.data)[t * rstd.row + k] : 0.f;
        X *to = (X *)dx.data + row_at(dx, t, k);
        words<X, N> px[NV], po[NV];
        words<Y, N> pg[NV], pz[NV];
        float dot = 0.f;
        if (live) {
            fetch_row<L, NV>(px, (const X *)x.data + row_at(x, t, k), C);
            fetch_row<L, NV>(pg, (const Y *)dy.data + row_at(dy, t, k), C);
            if (g != GATE_NONE)
                fetch_row<L, NV>(pz, (const Y *)z.data + row_at(z, t, k), C);
        }
#pragma unroll
        for (int i = 0; i < NV; i++) {
            const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
            if (!live || c >= C)
                continue;
            unpack(u, px[i]), unpack(e, pg[i]), unpack(v, pz[i]);
            dot += rmsnorm_dot<N>(dw[i], u, e, v, wk + c, scale, g);
            renew(px[i]), renew(pg[i]), renew(pz[i]);
        }
        if (live && add)
            fetch_row<L, NV>(po, to, C);
        dot = lanes_sum<L>(dot) / (float)C;
#pragma unroll
        for (int i = 0; i < NV; i++) {
            const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
            if (!live || c >= C)
                continue;
            unpack(u, px[i]), unpack(e, pg[i]), unpack(v, pz[i]);
            rmsnorm_slope<N>(u, e, v, wk + c, scale, dot, g);
            if (g != GATE_NONE)
                store_n((Y *)dz.data + row_at(dz, t, k) + c, v);
            unpack(v, po[i]);
            for (int j = 0; add && j < N; j++)
                u[j] += v[j];
            store_n(to + c, u);
        }
    }
    store_columns<L, NV, N>(part, dw, C, apart);
}

void cuda_rmsnorm_bwd(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dz, struct tensor dy,
                      struct tensor x, struct tensor w, struct tensor z, struct tensor rstd, enum gate g, bool add)
{
    const int64_t G = x.dim[1], C = x.dim[2], rows = x.dim[0] * G;
    const bool apart = w.dim[0] != C;
    const bool wide = group_packs(x) && group_packs(dx) && group_packs(dy) && group_packs(z) && group_packs(dz)
                      && weight_packs(w);
    float *part = NULL;
    int64_t parts = 0;

    REQUIRE(rows < (int64_t)1 << 31);
    FOR_TYPE(x.type, X, FOR_TYPE(dy.type, Y, FOR_ROW(X, C, wide, L, NV, N,
        constexpr int groups = row_groups<L>();
        static int resident;             /* blocks that a multiprocessor holds: more would only add parts */
        if (!resident)
            CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, rmsnorm_bwd_kernel<L, NV, N, X, Y>,
                                                               row_block<L>(), 0));
        const int64_t want = parts_fit(resident * cuda_of(d)->sms, (apart ? groups : 1) * C, cuda_of(d)->part_bytes);
        const unsigned grid = whole_rows(rows, groups, G, want);
        parts = apart ? grid * groups / G : grid;
        part  = (float *)cuda_part(d, sizeof(float) * (size_t)(parts * w.dim[0]));
        rmsnorm_bwd_kernel<L, NV, N, X, Y><<<grid, row_block<L>(), 0, stream_of(d)>>>(
            dx, dz, dy, x, w, z, rstd, g, add, apart, part))));
    CUDA(cudaGetLastError());
    cuda_add_parts(d, (float *)dw.data, part, w.dim[0], parts);
}

template <int L, int NV, int N, typename X>
__global__ void __launch_bounds__(row_block<L>())
l2norm_kernel(struct tensor y, struct tensor rnorm, struct tensor x)
{
    const int64_t C = x.dim[2];
    const unsigned r = blockIdx.x * row_groups<L>() + threadIdx.x / L, H = (unsigned)x.dim[1];
    const int64_t t = r / H, h = r % H;
    float u[NV][N], sum = 0.f;

#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
        if (t >= x.dim[0] || c >= C)
            continue;
        load_n<N>(u[i], (const X *)x.data + row_at(x, t, h) + c);
        for (int j = 0; j < N; j++)
            sum += u[i][j] * u[i][j];
    }
    const float scale = 1.f / fmaxf(sqrtf(lanes_sum<L>(sum)), 1e-12f);
    if (t < x.dim[0] && threadIdx.x % L == 0)
        ((float *)rnorm.data)[t * rnorm.row + h] = scale;
#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
        if (t >= x.dim[0] || c >= C)
            continue;
        for (int j = 0; j < N; j++)
            u[i][j] *= scale;
        store_n((X *)y.data + row_at(y, t, h) + c, u[i]);
    }
}

void cuda_l2norm(struct dev *d, struct tensor y, struct tensor rnorm, struct tensor x)
{
    const int64_t rows = x.dim[0] * x.dim[1], C = x.dim[2];
    const bool wide = group_packs(x) && group_packs(y);

    REQUIRE(rows < (int64_t)1 << 31);
    FOR_TYPE(x.type, X, FOR_ROW(X, C, wide, L, NV, N,
        const unsigned grid = (unsigned)ceil_div(rows, row_groups<L>());
        l2norm_kernel<L, NV, N, X><<<grid, row_block<L>(), 0, stream_of(d)>>>(y, rnorm, x)));
    CUDA(cudaGetLastError());
}

template <int L, int NV, int N, typename X>
__global__ void __launch_bounds__(row_block<L>())
l2norm_bwd_kernel(struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm)
{
    const int64_t C = y.dim[2];
    const unsigned r = blockIdx.x * row_groups<L>() + threadIdx.x / L, H = (unsigned)y.dim[1];
    const int64_t t = r / H, h = r % H;
    const float scale = t < y.dim[0] ? ((const float *)rnorm.data)[t * rnorm.row + h] : 0.f;
    words<X, N> py[NV], pg[NV];
    float dot = 0.f, u[N], e[N];

    if (t < y.dim[0]) {
        fetch_row<L, NV>(py, (const X *)y.data + row_at(y, t, h), C);
        fetch_row<L, NV>(pg, (const X *)dy.data + row_at(dy, t, h), C);
    }
#pragma unroll
    for (int i = 0; i < NV; i++) {
        if (t >= y.dim[0] || (int64_t)(i * L + threadIdx.x % L) * N >= C)
            continue;
        unpack(u, py[i]), unpack(e, pg[i]);
        for (int j = 0; j < N; j++)
            dot += u[j] * e[j];
    }
    dot = lanes_sum<L>(dot);
#pragma unroll
    for (int i = 0; i < NV; i++) {
        const int64_t c = (int64_t)(i * L + threadIdx.x % L) * N;
        if (t >= y.dim[0] || c >= C)
            continue;
        unpack(u, py[i]), unpack(e, pg[i]);
        for (int j = 0; j < N; j++)
            u[j] = (e[j] - u[j] * dot) * scale;
        store_n((X *)dx.data + row_at(dx, t, h) + c, u);
    }
}

void cuda_l2norm_bwd(struct dev *d, struct tensor dx, struct tensor dy, struct tensor y, struct tensor rnorm)
{
    const int64_t rows = y.dim[0] * y.dim[1], C = y.dim[2];
    const bool wide = group_packs(dx) && group_packs(dy) && group_packs(y);

    REQUIRE(rows < (int64_t)1 << 31);
    FOR_TYPE(y.type, X, FOR_ROW(X, C, wide, L, NV, N,
        const unsigned grid = (unsigned)ceil_div(rows, row_groups<L>());
        l2norm_bwd_kernel<L, NV, N, X><<<grid, row_block<L>(), 0, stream_of(d)>>>(dx, dy, y, rnorm)));
    CUDA(cudaGetLastError());
}
