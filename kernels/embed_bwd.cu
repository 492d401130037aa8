/* embed_bwd.cu - the gradient of an embedding: every row of the table adds up the tokens that took it.
 *
 * The sum is taken in the order of the tokens, so it is the same every time. Tokens are sorted by value without
 * changing their order: each chunk of the row ranks its tokens among those of the same value before them in the
 * chunk; counts of the chunks, added up, say where they go. Then a warp sums each value that came up to PIECE times;
 * more are cut into pieces of PIECE, for text and tasks have tokens that come very often. RANKS threads rank a chunk,
 * of up to MOST_TURNS tokens each. */
#include "launch.cuh"
#include "sheet.cuh"

struct groups {
    int32_t *first;                      /* [V+1] where a value's tokens begin in at[]; counts before that */
    int32_t *count;                      /* [chunks,V] tokens of a value in the chunk, then in those before it */
    int32_t *rank, *at;                  /* [T] place among equals of the chunk; tokens by value */
    int32_t *numbers;                    /* how many values are large, and how many pieces they have */
    int32_t *large, *piece0;             /* values that came more than PIECE times; the first piece of each */
    int32_t *owner;                      /* which of them a piece is of */
    float   *part;                       /* [pieces,D] */
    int64_t  T, V, chunk;
};

static __global__ void __launch_bounds__(RANKS) rank_kernel(struct groups g, const int32_t *token)
{
    __shared__ int32_t value[RANKS * MOST_TURNS];
    const int64_t from = blockIdx.x * g.chunk;
    const int n = (int)min(g.chunk, g.T - from);

    for (int i = threadIdx.x; i < n; i += RANKS) {
        value[i] = token[from + i];
        if (value[i] < 0 || value[i] >= g.V)
            __trap();
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n; i += RANKS) {
        const int32_t v = value[i];
        int before = 0, later = 0;
#pragma unroll 8
        for (int j = 0; j < n; j++) {
            before += value[j] == v && j < i;
            later  += value[j] == v && j > i;
        }
        g.rank[from + i] = before;
        if (!later)
            g.count[blockIdx.x * g.V + v] = before + 1;
    }
}

/* A thread a value: counts of the chunks become those of all chunks before. */
static __global__ void before_kernel(struct groups g, int64_t chunks)
{
    const int64_t v = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    int32_t sum = 0;

    if (v >= g.V)
        return;
    for (int64_t c0 = 0; c0 < chunks; c0 += 16) {
        int32_t n[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            n[i] = c0 + i < chunks ? g.count[(c0 + i) * g.V + v] : 0;
#pragma unroll
        for (int i = 0; i < 16; i++) {
            if (c0 + i < chunks)
                g.count[(c0 + i) * g.V + v] = sum;
            sum += n[i];
        }
    }
    g.first[v] = sum;
}

/* Lists a large value and hands out its pieces. */
__device__ inline void list_large(const struct groups &g, int32_t v, int32_t n)
{
    const int32_t pieces = (n + PIECE - 1) / PIECE, i = atomicAdd(&g.numbers[0], 1);
    const int32_t p = atomicAdd(&g.numbers[1], pieces);

    g.large[i]  = v;
    g.piece0[i] = p;
    for (int32_t k = 0; k < pieces; k++)
        g.owner[p + k] = i;
}

/* One block turns counts into starts and lists the large values. */
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
            if (n[i] > PIECE)
                list_large(g, (int32_t)(v0 + i), n[i]);
        }
    }
    if (threadIdx.x == 1023)
        g.first[g.V] = (int32_t)g.T;
}

static __global__ void place_kernel(struct groups g, const int32_t *token)
{
    const int64_t t = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (t < g.T)
        g.at[g.first[token[t]] + g.count[t / g.chunk * g.V + token[t]] + g.rank[t]] = (int32_t)t;
}

/* sum of N columns from c over the tokens at[from..to) */
template <int N, typename X>
__device__ inline void add_up(float (&sum)[N], const struct groups &g, const struct tensor &dy, int32_t from,
                              int32_t to, int64_t c)
{
#pragma unroll 4
    for (int32_t j = from; j < to; j++) {
        float u[N];
        load_n<N>(u, (const X *)dy.data + g.at[j] * dy.row + c);
        for (int i = 0; i < N; i++)
            sum[i] += u[i];
    }
}

/* A warp per value that is not large. */
template <int N, typename X>
__global__ void few_kernel(struct groups g, struct tensor dw, struct tensor dy)
{
    const int64_t v = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, D = dw.dim[1];

    if (v >= g.V)
        return;
    const int32_t from = g.first[v], to = g.first[v + 1];
    if (to - from > PIECE || to == from)
        return;
    for (int64_t c = (int64_t)threadIdx.x * N; c < D; c += 32 * N) {
        float *w = (float *)dw.data + v * D + c, sum[N] = {}, u[N];
        add_up<N, X>(sum, g, dy, from, to, c);
        load_n<N>(u, w);
        for (int i = 0; i < N; i++)
            sum[i] += u[i];
        store_n<N>(w, sum);
    }
}

/* A warp per piece and 32 packs of columns. */
template <int N, typename X>
__global__ void piece_kernel(struct groups g, struct tensor dy, int64_t D)
{
    const int64_t p = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t c = ((int64_t)blockIdx.y * 32 + threadIdx.x) * N;

    if (p >= g.numbers[1] || c >= D)
        return;
    const int32_t i = g.owner[p], v = g.large[i], from = g.first[v] + (int32_t)(p - g.piece0[i]) * PIECE;
    float sum[N] = {};
    add_up<N, X>(sum, g, dy, from, min(from + PIECE, g.first[v + 1]), c);
    store_n<N>(g.part + p * D + c, sum);
}

/* A block per large value and 32 columns; its 16 warps share the pieces. */
static __global__ void total_kernel(struct groups g, struct tensor dw)
{
    __shared__ float part[16][32];
    const int64_t D = dw.dim[1], c = (int64_t)blockIdx.y * 32 + threadIdx.x;

    if ((int32_t)blockIdx.x >= g.numbers[0])
        return;
    const int32_t v = g.large[blockIdx.x], pieces = (g.first[v + 1] - g.first[v] + PIECE - 1) / PIECE;
    float sum = 0.f;
#pragma unroll 4
    for (int32_t p = threadIdx.y; c < D && p < pieces; p += 16)
        sum += g.part[(g.piece0[blockIdx.x] + (int64_t)p) * D + c];
    part[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < D) {
        for (int k = 1; k < 16; k++)
            sum += part[k][threadIdx.x];
        ((float *)dw.data)[v * D + c] += sum;
    }
}

template <int N, typename X>
static void sum_groups(struct dev *d, const struct groups *g, struct tensor dw, struct tensor dy)
{
    const int64_t D = dw.dim[1], most = min64(g->V, ceil_div(g->T, PIECE + 1));

    few_kernel<N, X><<<(unsigned)ceil_div(g->V, 8), dim3(32, 8), 0, stream_of(d)>>>(*g, dw, dy);
    CUDA(cudaGetLastError());
    const dim3 pieces((unsigned)ceil_div(embed_pieces(g->T), 4), (unsigned)ceil_div(D, 32 * N));
    piece_kernel<N, X><<<pieces, dim3(32, 4), 0, stream_of(d)>>>(*g, dy, D);
    CUDA(cudaGetLastError());
    if (most)
        total_kernel<<<dim3((unsigned)most, (unsigned)ceil_div(D, 32)), dim3(32, 16), 0, stream_of(d)>>>(*g, dw);
    CUDA(cudaGetLastError());
}

/* Parts of the workspace. */
static struct groups groups_of(const struct dev *d, int64_t T, int64_t V, int64_t D)
{
    struct groups g = {};

    g.T = T, g.V = V;
    g.chunk = embed_chunk(T, V, D, cuda_of(d)->part_bytes);
    int32_t *p = (int32_t *)cuda_part(d, embed_bytes(T, V, D, g.chunk));
    g.part    = (float *)p;              /* first: packs want it aligned */
    g.count   = p + ceil_div(embed_pieces(T) * D, 4) * 4;
    g.numbers = g.count + ceil_div(T, g.chunk) * V;
    g.first   = g.numbers + 2;
    g.rank    = g.first + V + 1;
    g.at      = g.rank + T;
    g.large   = g.at + T;
    g.piece0  = g.large + T / PIECE + 1;
    g.owner   = g.piece0 + T / PIECE + 1;
    return g;
}

static void add_tokens(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token)
{
    const int64_t T = dy.dim[0], V = dw.dim[0];
    const struct groups g = groups_of(d, T, V, dw.dim[1]);
    const int64_t chunks = ceil_div(T, g.chunk);
    const bool wide = packs(dw, 4) && packs(dy, 4);

    CUDA(cudaMemsetAsync(g.count, 0, sizeof *g.count * (size_t)(chunks * V + 2), stream_of(d)));
    rank_kernel<<<(unsigned)chunks, RANKS, 0, stream_of(d)>>>(g, token);
    CUDA(cudaGetLastError());
    before_kernel<<<(unsigned)ceil_div(V, 128), 128, 0, stream_of(d)>>>(g, chunks);
    CUDA(cudaGetLastError());
    start_kernel<<<1, 1024, 0, stream_of(d)>>>(g);
    CUDA(cudaGetLastError());
    place_kernel<<<(unsigned)ceil_div(T, 256), 256, 0, stream_of(d)>>>(g, token);
    CUDA(cudaGetLastError());
    FOR_TYPE(dy.type, X,
        if (wide)
            sum_groups<4, X>(d, &g, dw, dy);
        else
            sum_groups<1, X>(d, &g, dw, dy));
}

void cuda_embed_bwd(struct dev *d, struct tensor dw, struct tensor dy, const int32_t *token)
{
    const int64_t T = dy.dim[0], each = embed_tokens(T, dw.dim[0], dw.dim[1], cuda_of(d)->part_bytes);

    for (int64_t from = 0; from < T; from += each)
        add_tokens(d, dw, tensor_rows(dy, from, min64(each, T - from)), token + from);
}
