/* gates.cu - the gates of a recurrence: mul, decay and gain, forward and backward.
 *
 * Backward of mul and gain needs sums over v and over t: a group of up to 32 lanes owns a head and walks over
 * tokens. Its sum over t is stored and added to the others' by a second kernel, so the order never changes. */
#include "launch.cuh"
#include "sheet.cuh"

enum { RESIDENT = 5 };                  /* blocks of a backward kernel that a multiprocessor holds */

__device__ inline float factor(const struct tensor &s, int64_t t, int64_t h)
{
    return get(s, s.ndim == 1 ? h : t * s.row + h);
}

template <int N, typename X>
__global__ void mul_kernel(struct tensor y, struct tensor x, struct tensor s, bool add, struct sheet sh)
{
    const int V = (int)x.dim[2];

    for (int64_t t = sheet_row(); t < sh.rows; t += sheet_row_step())
        for (int64_t c = sheet_col(); c < sh.cols; c += sheet_col_step()) {
            const float f = factor(s, t, (int)c * N / V);
            X *to = (X *)y.data + t * y.row + c * N;
            float u[N], v[N] = {};
            load_n<N>(u, (const X *)x.data + t * x.row + c * N);
            if (add)
                load_n<N>(v, to);
            for (int i = 0; i < N; i++)
                v[i] += u[i] * f;
            store_n(to, v);
        }
}

template <int N, typename X>
__global__ void gain_kernel(struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s, struct sheet sh)
{
    const int V = (int)x.dim[2];

    for (int64_t t = sheet_row(); t < sh.rows; t += sheet_row_step())
        for (int64_t c = sheet_col(); c < sh.cols; c += sheet_col_step()) {
            const int h = (int)c * N / V;
            const float f = softplus(((const float *)b_scale.data)[h]) * factor(s, t, h);
            float u[N];
            load_n<N>(u, (const X *)x.data + t * x.row + c * N);
            for (int i = 0; i < N; i++)
                u[i] = sigmoid(u[i]) * f;
            store_n((X *)b.data + t * b.row + c * N, u);
        }
}

/* May heads be read in packs of eight? */
static bool head_packs(struct tensor x)
{
    return !x.data || (x.dim[2] % 8 == 0 && packs(x, 8));
}

void cuda_mul(struct dev *d, struct tensor y, struct tensor x, struct tensor s, bool add)
{
    const bool wide = head_packs(x) && head_packs(y);
    const struct sheet sh = sheet_of(x.dim[0], x.dim[1] * x.dim[2] / (wide ? 8 : 1));

    FOR_TYPE(x.type, X,
        if (wide)
            mul_kernel<8, X><<<sh.grid, sh.block, 0, stream_of(d)>>>(y, x, s, add, sh);
        else
            mul_kernel<1, X><<<sh.grid, sh.block, 0, stream_of(d)>>>(y, x, s, add, sh));
    CUDA(cudaGetLastError());
}

void cuda_gain(struct dev *d, struct tensor b, struct tensor x, struct tensor b_scale, struct tensor s)
{
    const bool wide = head_packs(x) && head_packs(b);
    const struct sheet sh = sheet_of(x.dim[0], x.dim[1] * x.dim[2] / (wide ? 8 : 1));

    FOR_TYPE(x.type, X,
        if (wide)
            gain_kernel<8, X><<<sh.grid, sh.block, 0, stream_of(d)>>>(b, x, b_scale, s, sh);
        else
            gain_kernel<1, X><<<sh.grid, sh.block, 0, stream_of(d)>>>(b, x, b_scale, s, sh));
    CUDA(cudaGetLastError());
}

/* Sum over the lanes of a group; a group is a row of the block. */
__device__ inline float group_sum(float x)
{
    for (int step = (int)blockDim.x / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Does every group of a block have its place in a whole number of rows of H heads? Then the block adds up its own. */
__host__ __device__ inline bool adds_up(unsigned groups, unsigned H)
{
    return groups % H == 0;
}

/* Stores a group's total to part, [blocks][H] or, of blocks that do not add up, [groups of all / H][H]. */
__device__ inline void store_total(float *part, float total, unsigned H)
{
    __shared__ float sum[256];

    if (!adds_up(blockDim.y, H)) {
        if (threadIdx.x == 0)
            part[blockIdx.x * blockDim.y + threadIdx.y] = total;
        return;
    }
    if (threadIdx.x == 0)
        sum[threadIdx.y] = total;
    __syncthreads();
    if (threadIdx.x > 0 || threadIdx.y >= H)
        return;
    total = 0.f;
    for (unsigned i = threadIdx.y; i < blockDim.y; i += H)
        total += sum[i];
    part[blockIdx.x * H + threadIdx.y] = total;
}

static int64_t parts_of(unsigned grid, dim3 block, int64_t H)
{
    return adds_up(block.y, (unsigned)H) ? grid : grid * block.y / H;
}

/* A group owns a head and takes every step-th token. All groups turn equally often, since lanes of several add up
 * together. */
template <int N, typename X>
__global__ void __launch_bounds__(256, RESIDENT)
mul_bwd_kernel(struct tensor dx, struct tensor ds, struct tensor dy, struct tensor x, struct tensor s, bool add,
               float *part)
{
    const unsigned H = (unsigned)x.dim[1], V = (unsigned)x.dim[2];
    const unsigned id = blockIdx.x * blockDim.y + threadIdx.y, h = id % H;
    const int64_t T = x.dim[0], step = gridDim.x * blockDim.y / H, turns = (T + step - 1) / step;
    float total = 0.f;

#pragma unroll 1
    for (int64_t i = 0; i < turns; i++) {
        const int64_t t = id / H + i * step;
        float sum = 0.f;
#pragma unroll 1
        for (unsigned c = threadIdx.x * N; t < T && c < V; c += blockDim.x * N) {
            X *to = (X *)dx.data + t * dx.row + h * V + c;
            float g[N], u[N], v[N] = {};
            load_n<N>(g, (const X *)dy.data + t * dy.row + h * V + c);
            if (ds.data)
                load_n<N>(u, (const X *)x.data + t * x.row + h * V + c);
            if (dx.data && add)
                load_n<N>(v, to);
            const float f = dx.data ? factor(s, t, h) : 0.f;
            for (int j = 0; j < N; j++) {
                sum += ds.data ? g[j] * u[j] : 0.f;
                v[j] += g[j] * f;
            }
            if (dx.data)
                store_n(to, v);
        }
        sum = group_sum(sum);
        total += sum;
        if (ds.data && !part && t < T && threadIdx.x == 0)
            put(ds, t * ds.row + h, sum);
    }
    if (part)
        store_total(part, total, H);
}

template <int N, typename X>
__global__ void __launch_bounds__(256, RESIDENT)
gain_bwd_kernel(struct tensor dx, struct tensor ds, struct tensor db, struct tensor x, struct tensor b_scale,
                struct tensor s, float *part)
{
    const unsigned H = (unsigned)x.dim[1], V = (unsigned)x.dim[2];
    const unsigned id = blockIdx.x * blockDim.y + threadIdx.y, h = id % H;
    const int64_t T = x.dim[0], step = gridDim.x * blockDim.y / H, turns = (T + step - 1) / step;
    const float raw = ((const float *)b_scale.data)[h], scale = softplus(raw), slope = sigmoid(raw);
    float total = 0.f;

#pragma unroll 1
    for (int64_t i = 0; i < turns; i++) {
        const int64_t t = id / H + i * step;
        const float f = t < T ? factor(s, t, h) : 0.f, old = t < T && threadIdx.x == 0 ? get(ds, t * ds.row + h) : 0.f;
        float sum = 0.f;
#pragma unroll 1
        for (unsigned c = threadIdx.x * N; t < T && c < V; c += blockDim.x * N) {
            float g[N], u[N];
            load_n<N>(g, (const X *)db.data + t * db.row + h * V + c);
            load_n<N>(u, (const X *)x.data + t * x.row + h * V + c);
            for (int j = 0; j < N; j++) {
                u[j] = sigmoid(u[j]);
                sum += g[j] * u[j];
                u[j] = g[j] * f * scale * u[j] * (1.f - u[j]);
            }
            store_n((X *)dx.data + t * dx.row + h * V + c, u);
        }
        sum = group_sum(sum);
        total += sum * f * slope;
        if (t < T && threadIdx.x == 0)
            put(ds, t * ds.row + h, old + sum * scale);
    }
    store_total(part, total, H);
}

/* Lanes per head, and as many blocks as the device holds at once. */
static unsigned head_grid(const struct dev *d, struct tensor x, bool wide, dim3 *block)
{
    const int64_t n = x.dim[2] / (wide ? 8 : 1);
    unsigned lanes = 1;

    while (lanes < 32 && lanes < n)
        lanes *= 2;
    *block = dim3(lanes, 256 / lanes);
    return whole_rows(x.dim[0] * x.dim[1], block->y, x.dim[1], RESIDENT * cuda_of(d)->sms);
}

void cuda_mul_bwd(struct dev *d, struct tensor dx, struct tensor ds, struct tensor dy, struct tensor x,
                  struct tensor s, bool add)
{
    const bool wide = head_packs(x) && head_packs(dy) && head_packs(dx), weight = ds.data && s.ndim == 1;
    dim3 block;

    if (!dx.data && !ds.data)
        return;
    const unsigned grid = head_grid(d, x, wide, &block);
    float *part = weight ? (float *)cuda_part(d, sizeof(float) * (size_t)grid * block.y) : NULL;
    FOR_TYPE(x.type, X,
        if (wide)
            mul_bwd_kernel<8, X><<<grid, block, 0, stream_of(d)>>>(dx, ds, dy, x, s, add, part);
        else
            mul_bwd_kernel<1, X><<<grid, block, 0, stream_of(d)>>>(dx, ds, dy, x, s, add, part));
    CUDA(cudaGetLastError());
    if (weight)
        cuda_add_parts(d, (float *)ds.data, part, x.dim[1], parts_of(grid, block, x.dim[1]));
}

void cuda_gain_bwd(struct dev *d, struct tensor dx, struct tensor db_scale, struct tensor ds, struct tensor db,
                   struct tensor x, struct tensor b_scale, struct tensor s)
{
    const bool wide = head_packs(x) && head_packs(db) && head_packs(dx);
    dim3 block;
    const unsigned grid = head_grid(d, x, wide, &block);
    float *part = (float *)cuda_part(d, sizeof(float) * (size_t)grid * block.y);

    FOR_TYPE(x.type, X,
        if (wide)
            gain_bwd_kernel<8, X><<<grid, block, 0, stream_of(d)>>>(dx, ds, db, x, b_scale, s, part);
        else
            gain_bwd_kernel<1, X><<<grid, block, 0, stream_of(d)>>>(dx, ds, db, x, b_scale, s, part));
    CUDA(cudaGetLastError());
    cuda_add_parts(d, (float *)db_scale.data, part, x.dim[1], parts_of(grid, block, x.dim[1]));
}

__global__ void decay_kernel(struct tensor dt, struct tensor decay, struct tensor x, const float *bias,
                             const float *A_log, struct dt_range r, struct sheet sh)
{
    for (int64_t t = sheet_row(); t < sh.rows; t += sheet_row_step())
        for (int64_t h = sheet_col(); h < sh.cols; h += sheet_col_step()) {
            const float step = fminf(fmaxf(softplus(get(x, t * x.row + h) + bias[h]), r.lo), r.hi);
            ((float *)dt.data)[t * dt.row + h]       = step;
            ((float *)decay.data)[t * decay.row + h] = -expf(A_log[h]) * step;
        }
}

void cuda_decay(struct dev *d, struct tensor dt, struct tensor decay, struct tensor x, struct tensor bias,
                struct tensor A_log, struct dt_range r)
{
    const struct sheet sh = sheet_of(x.dim[0], x.dim[1]);

    decay_kernel<<<sh.grid, sh.block, 0, stream_of(d)>>>(dt, decay, x, (const float *)bias.data,
                                                         (const float *)A_log.data, r, sh);
    CUDA(cudaGetLastError());
}

/* A block owns up to 32 heads and some of the tokens; thread (x,y) head x and every blockDim.y-th of those tokens.
 * part: [2][parts][H], the sums for bias and then for A_log. */
__global__ void decay_bwd_kernel(struct tensor dx, struct tensor ddt, struct tensor ddecay, struct tensor x,
                                 const float *bias, const float *A_log, struct dt_range r, float *part)
{
    __shared__ float sum[2][256];
    const int64_t H = x.dim[1], h = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    float to_bias = 0.f, to_A = 0.f;

    for (int64_t t = (int64_t)blockIdx.y * blockDim.y + threadIdx.y; h < H && t < x.dim[0];
         t += (int64_t)gridDim.y * blockDim.y) {
        const float u = get(x, t * x.row + h) + bias[h], soft = softplus(u), A = expf(A_log[h]);
        const float gd = ((const float *)ddecay.data)[t * ddecay.row + h];
        const float gt = (ddt.data ? ((const float *)ddt.data)[t * ddt.row + h] : 0.f) - A * gd;
        const float gx = soft < r.lo || soft > r.hi ? 0.f : gt * sigmoid(u);
        put(dx, t * dx.row + h, gx);
        to_bias += gx;
        to_A    -= A * fminf(fmaxf(soft, r.lo), r.hi) * gd;
    }
    sum[0][threadIdx.y * blockDim.x + threadIdx.x] = to_bias;
    sum[1][threadIdx.y * blockDim.x + threadIdx.x] = to_A;
    __syncthreads();
    if (threadIdx.y < 2 && h < H) {
        float total = 0.f;
        for (int i = 0; i < (int)blockDim.y; i++)
            total += sum[threadIdx.y][i * blockDim.x + threadIdx.x];
        part[((int64_t)threadIdx.y * gridDim.y + blockIdx.y) * H + h] = total;
    }
}

void cuda_decay_bwd(struct dev *d, struct tensor dx, struct tensor dbias, struct tensor dA_log, struct tensor ddt,
                    struct tensor ddecay, struct tensor x, struct tensor bias, struct tensor A_log, struct dt_range r)
{
    const int64_t H = x.dim[1];
    unsigned heads = 1;

    while (heads < 32 && heads < H)
        heads *= 2;
    const int64_t most = min64(ceil_div(x.dim[0], 256 / heads), 4 * cuda_of(d)->sms);
    const int64_t parts = parts_fit(most, 2 * H, cuda_of(d)->part_bytes);
    float *part = (float *)cuda_part(d, sizeof(float) * (size_t)(2 * parts * H));

    decay_bwd_kernel<<<dim3((unsigned)ceil_div(H, heads), (unsigned)parts), dim3(heads, 256 / heads), 0,
                       stream_of(d)>>>(
        dx, ddt, ddecay, x, (const float *)bias.data, (const float *)A_log.data, r, part);
    CUDA(cudaGetLastError());
    cuda_add_parts(d, (float *)dbias.data, part, H, parts);
    cuda_add_parts(d, (float *)dA_log.data, part + parts * H, H, parts);
}
