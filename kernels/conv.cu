/* conv.cu - silu of a causal depthwise convolution over packed sequences, forward and backward.
 *
 * A thread owns N channels and walks down a strip of tokens with the last W-1 inputs in registers. Where
 * a sequence begins they are replaced by the carried state, or by zeros, so no tap ever looks across.
 * Narrower filters run as W = 4 or 16 with zero weights in front. */
#include "launch.cuh"
#include "sheet.cuh"

enum { STRIP = 32, LANES = 32, WARPS = 4, AHEAD = 4 };   /* tokens of a strip at most; AHEAD: fetched together */

/* A shorter strip, if there would be too few of them to fill the device. */
static int strip_of(const struct dev *d, int64_t T, int64_t across, int most)
{
    while (most > 8 && across * ceil_div(T, most) < 24 * cuda_of(d)->sms)
        most /= 2;
    return most;
}

struct filter { const float *w, *bias; int width; };     /* [C,width], [C] or NULL */

/* weight[d] goes with the input d tokens back. */
template <int W, int N>
__device__ inline void load_filter(float (&weight)[W][N], float (&bias)[N], const struct filter &f, int64_t c)
{
    for (int i = 0; i < N; i++) {
        for (int back = 0; back < W; back++)
            weight[back][i] = back < f.width ? f.w[(c + i) * f.width + f.width - 1 - back] : 0.f;
        bias[i] = f.bias ? f.bias[c + i] : 0.f;
    }
}

/* Position of each token of [from, from+n) in its sequence; 0 beyond the row, where nothing is carried over. */
__device__ inline void load_positions(int *pos, int64_t from, int n, const struct seqs &s)
{
    for (int i = (int)threadIdx.x; i < n; i += LANES) {
        const int64_t t = from + i;
        pos[i] = t < s.tokens ? (int)(t - s.dstart[s.dseq[t]]) : 0;
    }
}

/* The W-1 inputs before token t, at position pos of its sequence. state is [N,width-1,C]; see conv_naive. */
template <int W, int N, typename X>
__device__ inline void load_past(float (&past)[W][N], const struct tensor &x, const struct tensor &state, int width,
                                 const struct seqs &s, int64_t t, int pos, int64_t c)
{
#pragma unroll
    for (int back = 1; back < W; back++) {
        for (int i = 0; i < N; i++)
            past[back][i] = 0.f;
        if (back <= pos)
            load_n<N>(past[back], (const X *)x.data + (t - back) * x.row + c);
        else if (state.data && back - pos < width) {
            const int64_t slot = (int64_t)s.dseq[t] * (width - 1) + width - 1 + pos - back;
            load_n<N>(past[back], (const float *)state.data + slot * x.dim[1] + c);
        }
    }
}

template <int W, int N> __device__ inline void shift(float (&past)[W][N])
{
#pragma unroll
    for (int back = W - 1; back > 0; back--)
        for (int i = 0; i < N; i++)
            past[back][i] = past[back - 1][i];
}

template <int W, int N, typename X>
__global__ void __launch_bounds__(LANES, 24)
conv_kernel(struct tensor y, struct tensor x, struct tensor state, struct filter f, struct seqs s, int strip)
{
    __shared__ int pos[STRIP];
    const int64_t c = ((int64_t)blockIdx.x * LANES + threadIdx.x) * N, from = (int64_t)blockIdx.y * strip;
    const int n = (int)min((int64_t)strip, s.tokens - from);
    float weight[W][N], bias[N], past[W][N];

    load_positions(pos, from, n, s);
    __syncthreads();
    if (c >= x.dim[1])
        return;
    load_filter<W, N>(weight, bias, f, c);
    for (int k0 = 0; k0 < n; k0 += AHEAD) {
        pack<X, N> p[AHEAD];
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (k0 + k < n)
                p[k] = *(const pack<X, N> *)((const X *)x.data + (from + k0 + k) * x.row + c);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const int64_t t = from + k0 + k;
            float a[N];
            if (k0 + k >= n)
                break;
            if (k0 + k == 0 || pos[k0 + k] == 0)
                load_past<W, N, X>(past, x, state, f.width, s, t, pos[k0 + k], c);
            for (int i = 0; i < N; i++) {
                past[0][i] = load(&p[k].at[i]);
                a[i] = bias[i];
                for (int back = 0; back < W; back++)
                    a[i] += weight[back][i] * past[back][i];
                a[i] *= sigmoid(a[i]);
            }
            store_n<N>((X *)y.data + t * y.row + c, a);
            shift<W, N>(past);
        }
    }
}

/* The last width-1 inputs of sequence blockIdx.x; all are read before one is written, so next may be state. */
template <int W, typename X>
__global__ void next_kernel(struct tensor next, struct tensor x, struct tensor state, int width, struct seqs s)
{
    const int64_t c = (int64_t)blockIdx.y * blockDim.x + threadIdx.x, C = x.dim[1], n = blockIdx.x;
    float tail[W];

    if (c >= C)
        return;
    const int64_t from = s.dstart[n], to = s.dstart[n + 1];
#pragma unroll
    for (int i = 0; i < W; i++) {
        const int64_t t = to - (width - 1) + i;
        tail[i] = 0.f;
        if (i < width - 1 && t >= from)
            tail[i] = load((const X *)x.data + t * x.row + c);
        else if (i < width - 1 && state.data)
            tail[i] = ((const float *)state.data)[(n * (width - 1) + width - 1 + t - from) * C + c];
    }
#pragma unroll
    for (int i = 0; i < W; i++)
        if (i < width - 1)
            ((float *)next.data)[(n * (width - 1) + i) * C + c] = tail[i];
}

template <int W, int N, typename X>
static void conv_launch(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor state,
                        const struct filter *f, const struct seqs *s)
{
    const int64_t C = x.dim[1];
    const int strip = strip_of(d, s->tokens, ceil_div(C, LANES * N), STRIP);
    const dim3 grid((unsigned)ceil_div(C, LANES * N), (unsigned)ceil_div(s->tokens, strip));

    REQUIRE(grid.y <= 65535);
    if (s->tokens)
        conv_kernel<W, N, X><<<grid, LANES, 0, stream_of(d)>>>(y, x, state, *f, *s, strip);
    CUDA(cudaGetLastError());
    if (next.data && f->width > 1 && s->n)
        next_kernel<W, X><<<dim3((unsigned)s->n, (unsigned)ceil_div(C, 128)), 128, 0, stream_of(d)>>>(
            next, x, state, f->width, *s);
    CUDA(cudaGetLastError());
}

void cuda_conv(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
               struct tensor bias, struct tensor state, const struct seqs *s)
{
    const struct filter f = { (const float *)w.data, (const float *)bias.data, (int)w.dim[1] };
    const bool wide = packs(x, 4) && packs(y, 4) && (uintptr_t)state.data % 16 == 0;

    if (f.width > 16)
        BUG("convolution of width %d: at most 16", f.width);
    FOR_TYPE(x.type, X,
        if (f.width <= 4 && wide)
            conv_launch<4, 4, X>(d, y, next, x, state, &f, s);
        else if (f.width <= 4)
            conv_launch<4, 1, X>(d, y, next, x, state, &f, s);
        else
            conv_launch<16, 1, X>(d, y, next, x, state, &f, s));
}

/* The first warp of a block gets the sums of all. */
template <int W, int N> __device__ inline void add_warps(float (&dw)[W][N], float (&dbias)[N])
{
    __shared__ float sum[WARPS - 1][(W + 1) * N][LANES];

    for (int i = 0; threadIdx.y > 0 && i < N; i++) {
        for (int back = 0; back < W; back++)
            sum[threadIdx.y - 1][back * N + i][threadIdx.x] = dw[back][i];
        sum[threadIdx.y - 1][W * N + i][threadIdx.x] = dbias[i];
    }
    __syncthreads();
    for (int warp = 0; threadIdx.y == 0 && warp < WARPS - 1; warp++)
        for (int i = 0; i < N; i++) {
            for (int back = 0; back < W; back++)
                dw[back][i] += sum[warp][back * N + i][threadIdx.x];
            dbias[i] += sum[warp][W * N + i][threadIdx.x];
        }
}

/* Inputs and gradients of AHEAD tokens. */
template <int N, typename X>
__device__ inline void fetch(pack<X, N> (&px)[AHEAD], pack<X, N> (&pe)[AHEAD], const struct tensor &x,
                             const struct tensor &dy, int64_t from, int k0, int known, int64_t c)
{
#pragma unroll
    for (int k = 0; k < AHEAD; k++)
        if (k0 + k < known) {
            px[k] = *(const pack<X, N> *)((const X *)x.data + (from + k0 + k) * x.row + c);
            pe[k] = *(const pack<X, N> *)((const X *)dy.data + (from + k0 + k) * dy.row + c);
        }
}

/* One token of backward: x and e are its input and the gradient of its output. past, g, dw and dbias move on. */
template <int W, int N, typename X>
__device__ inline void conv_bwd_token(float (&past)[W][N], float (&g)[W][N], float (&dw)[W][N], float (&dbias)[N],
                                      const float (&weight)[W][N], const float (&bias)[N], const pack<X, N> &x,
                                      const pack<X, N> &e, bool own)
{
    for (int i = 0; i < N; i++) {
        float a = bias[i];
        past[0][i] = load(&x.at[i]);
        for (int back = 0; back < W; back++)
            a += weight[back][i] * past[back][i];
        const float y = sigmoid(a);
        g[0][i] = load(&e.at[i]) * y * (1.f + a * (1.f - y));
        if (own) {
            dbias[i] += g[0][i];
            for (int back = 0; back < W; back++)
                dw[back][i] += g[0][i] * past[back][i];
        }
    }
    shift<W, N>(past);
}

/* g[t] = dy[t] silu'(a[t]) is needed W-1 tokens ahead: dx[t] = sum_back w[back] g[t+back] while t+back is in
 * the sequence of t, that is while its position is at least back. A block takes every gridDim.y-th strip.
 * part_w: [gridDim.y][C,width], part_bias: [gridDim.y][C]. */
template <int W, int N, typename X>
__global__ void __launch_bounds__(LANES * WARPS, 4)
conv_bwd_kernel(struct tensor dx, struct tensor dy, struct tensor x, struct filter f, struct seqs s, int strip,
                float *part_w, float *part_bias)
{
    __shared__ int place[WARPS][2 * STRIP + W];
    int *pos = place[threadIdx.y];
    const int64_t C = x.dim[1], c = ((int64_t)blockIdx.x * LANES + threadIdx.x) * N;
    const struct tensor none = {};
    float weight[W][N], bias[N], past[W][N], g[W][N] = {}, dw[W][N] = {}, dbias[N] = {};

    if (c < C)
        load_filter<W, N>(weight, bias, f, c);
    for (int64_t from = ((int64_t)blockIdx.y * WARPS + threadIdx.y) * strip; from < s.tokens;
         from += (int64_t)gridDim.y * WARPS * strip) {
        const int n = (int)min((int64_t)strip, s.tokens - from), ahead = n + W - 1;
        const int known = (int)min((int64_t)ahead, s.tokens - from);
        __syncwarp();
        load_positions(pos, from, ahead, s);
        __syncwarp();
        pack<X, N> px[AHEAD], pe[AHEAD], qx[AHEAD], qe[AHEAD];
        if (c < C)
            fetch<N, X>(qx, qe, x, dy, from, 0, known, c);
        for (int k0 = 0; k0 < ahead && c < C; k0 += AHEAD) {
#pragma unroll
            for (int k = 0; k < AHEAD; k++)
                px[k] = qx[k], pe[k] = qe[k];
            fetch<N, X>(qx, qe, x, dy, from, k0 + AHEAD, known, c);      /* arrive while these are worked on */
#pragma unroll
            for (int k = 0; k < AHEAD; k++) {
                const int at = k0 + k;
                float to[N] = {};
                if (at >= ahead)
                    break;
                shift<W, N>(g);
                for (int i = 0; i < N; i++)
                    g[0][i] = 0.f;
                if (at < known) {
                    if (at == 0 || pos[at] == 0)
                        load_past<W, N, X>(past, x, none, f.width, s, from + at, pos[at], c);
                    conv_bwd_token<W, N, X>(past, g, dw, dbias, weight, bias, px[k], pe[k], at < n);
                }
                if (at < W - 1)
                    continue;
#pragma unroll
                for (int back = 0; back < W; back++)
                    for (int i = 0; i < N; i++)  /* g[W-1-back] belongs to the token `back` after the one written */
                        to[i] += pos[at - (W - 1) + back] >= back ? weight[back][i] * g[W - 1 - back][i] : 0.f;
                store_n<N>((X *)dx.data + (from + at - (W - 1)) * dx.row + c, to);
            }
        }
    }
    add_warps<W, N>(dw, dbias);
    for (int i = 0; threadIdx.y == 0 && c < C && i < N; i++) {
        for (int back = 0; back < f.width && back < W; back++)
            part_w[((int64_t)blockIdx.y * C + c + i) * f.width + f.width - 1 - back] = dw[back][i];
        part_bias[(int64_t)blockIdx.y * C + c + i] = dbias[i];
    }
}

template <int W, int N, typename X>
static void conv_bwd_launch(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                            struct tensor x, const struct filter *f, const struct seqs *s)
{
    const int64_t C = x.dim[1], floats = C * (f->width + 1), across = ceil_div(C, LANES * N);
    const int strip = strip_of(d, s->tokens, across, 2 * STRIP);
    const int64_t turns = ceil_div(s->tokens, strip * WARPS), room = (int64_t)(cuda_of(d)->part_bytes / sizeof(float)) / floats;
    static int resident;
    if (!resident)
        CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, conv_bwd_kernel<W, N, X>,
                                                           LANES * WARPS, 0));
    /* One wave of blocks with the same number of strips each. */
    const int64_t most = min64(room, ceil_div(resident * cuda_of(d)->sms, across));
    const int64_t parts = most > 0 ? ceil_div(turns, ceil_div(turns, most)) : 0;
    float *part = (float *)cuda_part(d, sizeof *part * (size_t)(floats * (parts ? parts : 1)));
    float *part_bias = part + parts * C * f->width;

    conv_bwd_kernel<W, N, X><<<dim3((unsigned)across, (unsigned)parts), dim3(LANES, WARPS), 0,
                               stream_of(d)>>>(dx, dy, x, *f, *s, strip, part, part_bias);
    CUDA(cudaGetLastError());
    cuda_add_parts(d, (float *)dw.data, part, C * f->width, parts);
    if (f->bias)
        cuda_add_parts(d, (float *)dbias.data, part_bias, C, parts);
}

void cuda_conv_bwd(struct dev *d, struct tensor dx, struct tensor dw, struct tensor dbias, struct tensor dy,
                   struct tensor x, struct tensor w, struct tensor bias, const struct seqs *s)
{
    const struct filter f = { (const float *)w.data, (const float *)bias.data, (int)w.dim[1] };

    const bool wide = packs(x, 4) && packs(dx, 4) && packs(dy, 4);

    if (f.width > 16)
        BUG("convolution of width %d: at most 16", f.width);
    FOR_TYPE(x.type, X,
        if (f.width <= 4 && wide)
            conv_bwd_launch<4, 4, X>(d, dx, dw, dbias, dy, x, &f, s);
        else if (f.width <= 4)
            conv_bwd_launch<4, 1, X>(d, dx, dw, dbias, dy, x, &f, s);
        else
            conv_bwd_launch<16, 1, X>(d, dx, dw, dbias, dy, x, &f, s));
}
