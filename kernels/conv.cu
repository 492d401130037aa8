/* conv.cu - silu of a causal depthwise convolution over packed sequences, forward and backward.
 *
 * A warp walks down a strip of tokens; a lane owns N channels and keeps their last W-1 inputs in registers. Where
 * a sequence begins they are replaced by the carried state, or by zeros, so no tap ever looks across.
 * Narrower filters run as W = 4 or 16 with zero weights in front. */
#include "launch.cuh"
#include "sheet.cuh"

enum { LANES = 32, WARPS = 4, AHEAD = 4 };      /* AHEAD: tokens that are fetched before their turn */

/* Tokens of a strip such that so many blocks of WARPS strips take them all. */
static int strip_of(int64_t T, int64_t blocks)
{
    return (int)ceil_div(max64(ceil_div(T, blocks * WARPS), 8), AHEAD) * AHEAD;
}

struct filter { const float *w, *bias; int width; bool packs; };     /* [C,width], [C] or NULL; w in packs of four? */

static struct filter filter_of(struct tensor w, struct tensor bias)
{
    if (w.dim[1] > 16)
        BUG("convolution of width %d: at most 16", (int)w.dim[1]);
    return (struct filter){ (const float *)w.data, (const float *)bias.data, (int)w.dim[1],
                            w.dim[1] == 4 && (uintptr_t)w.data % 16 == 0 };
}

/* weight[d] goes with the input d tokens back. */
template <int W, int N>
__device__ inline void load_filter(float (&weight)[W][N], float (&bias)[N], const struct filter &f, int64_t c)
{
    for (int i = 0; i < N; i++) {
        float tap[4];
        if (W == 4 && f.packs)
            load_n<4>(tap, f.w + (c + i) * 4);
        for (int back = 0; back < W; back++)
            if (W == 4 && f.packs)
                weight[back][i] = tap[3 - back];
            else
                weight[back][i] = back < f.width ? f.w[(c + i) * f.width + f.width - 1 - back] : 0.f;
        bias[i] = f.bias ? f.bias[c + i] : 0.f;
    }
}

/* Bit i: does a sequence, or what lies beyond the row, begin at token from + i? For whole warps. */
__device__ inline uint64_t starts_of(const struct seqs &s, int64_t from)
{
    uint64_t bits = 0;

#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int64_t t = from + 32 * half + threadIdx.x;
        const bool starts = t == 0 || t >= s.tokens || (t > 0 && s.dseq[t] != s.dseq[t - 1]);
        bits |= (uint64_t)__ballot_sync(0xffffffffu, starts) << 32 * half;
    }
    return bits;
}

/* Is the token `back` before token `at` in the same sequence? */
__device__ inline bool together(uint64_t starts, int at, int back)
{
    return !((uint32_t)(starts >> (at - back + 1)) & ((1u << back) - 1));
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

/* Eight blocks a multiprocessor: the warps are worth more than the registers that are spilled. */
template <int W, int N, typename X>
__global__ void __launch_bounds__(LANES * WARPS, 8)
conv_kernel(struct tensor y, struct tensor x, struct tensor state, struct filter f, struct seqs s, int strip)
{
    const int64_t own = ((int64_t)blockIdx.x * LANES + threadIdx.x) * N, C = x.dim[1], c = own < C ? own : 0;
    const int64_t from = ((int64_t)blockIdx.y * WARPS + threadIdx.y) * strip;
    const int n = (int)min((int64_t)strip, s.tokens - from);
    const X *next = (const X *)x.data + from * x.row + c;
    X *to = (X *)y.data + from * y.row + c;
    float weight[W][N], bias[N], past[W][N];
    words<X, N> p[AHEAD] = {};

    if (n <= 0)
        return;
#pragma unroll
    for (int k = 0; k < AHEAD; k++, next += x.row)
        if (k < n)
            fetch(p[k], next);
    load_filter<W, N>(weight, bias, f, c);
    uint64_t starts = starts_of(s, from - (W - 1));
    load_past<W, N, X>(past, x, state, f.width, s, from, (int)(from - s.dstart[s.dseq[from]]), c);
    for (int k0 = 0; k0 < n; k0 += AHEAD, starts >>= AHEAD) {
        if (k0 && k0 % 32 == 0)
            starts = starts_of(s, from + k0 - (W - 1));
#pragma unroll
        for (int k = 0; k < AHEAD; k++, next += x.row, to += y.row) {
            const int at = k0 + k;
            float a[N];
            if (state.data && at > 0 && at < n && !together(starts, W - 1 + k, 1))
                load_past<W, N, X>(past, x, state, f.width, s, from + at, 0, c);
            unpack(past[0], p[k]);
            if (at + AHEAD < n)
                fetch(p[k], next);
            for (int i = 0; i < N; i++)
                a[i] = bias[i];
#pragma unroll
            for (int back = 0; back < W; back++)
                if (state.data || together(starts, W - 1 + k, back))
                    for (int i = 0; i < N; i++)
                        a[i] += weight[back][i] * past[back][i];
            for (int i = 0; i < N; i++)
                a[i] *= sigmoid(a[i]);
            if (own < C && at < n)
                store_n(to, a);
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
    static int resident;
    if (!resident)
        CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, conv_kernel<W, N, X>, LANES * WARPS, 0));
    const int strip = strip_of(s->tokens, max64(resident * cuda_of(d)->sms / ceil_div(C, LANES * N), 1));
    const dim3 grid((unsigned)ceil_div(C, LANES * N), (unsigned)ceil_div(s->tokens, strip * WARPS));

    if (s->tokens)
        conv_kernel<W, N, X><<<grid, dim3(LANES, WARPS), 0, stream_of(d)>>>(y, x, state, *f, *s, strip);
    CUDA(cudaGetLastError());
    if (next.data && f->width > 1 && s->n)
        next_kernel<W, X><<<dim3((unsigned)s->n, (unsigned)ceil_div(C, 128)), 128, 0, stream_of(d)>>>(
            next, x, state, f->width, *s);
    CUDA(cudaGetLastError());
}

void cuda_conv(struct dev *d, struct tensor y, struct tensor next, struct tensor x, struct tensor w,
               struct tensor bias, struct tensor state, const struct seqs *s)
{
    const struct filter f = filter_of(w, bias);
    const bool wide = packs(x, 4) && packs(y, 4) && (uintptr_t)state.data % 16 == 0;

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

/* One token of backward: x and e are its input and the gradient of its output; g = e silu'(a) goes to the inputs
 * and, of a token of its own strip, to the filter. to[back] is what the input `back` tokens ago has got so far. */
template <int W, int N, typename X>
__device__ inline void conv_bwd_token(float (&past)[W][N], float (&to)[W][N], float (&dw)[W][N], float (&dbias)[N],
                                      const float (&weight)[W][N], const float (&bias)[N], const words<X, N> &x,
                                      const words<X, N> &e, uint64_t starts, int at, bool own)
{
    float a[N], g[N];

    unpack(past[0], x);
    unpack(g, e);
    for (int i = 0; i < N; i++)
        a[i] = bias[i];
#pragma unroll
    for (int back = 0; back < W; back++)
        if (together(starts, at, back))
            for (int i = 0; i < N; i++)
                a[i] += weight[back][i] * past[back][i];
    for (int i = 0; i < N; i++) {
        const float y = sigmoid(a[i]);
        g[i] *= y * (1.f + a[i] * (1.f - y));
        to[0][i] = 0.f;
    }
#pragma unroll
    for (int back = 0; back < W; back++)
        if (together(starts, at, back))
            for (int i = 0; i < N; i++)
                to[back][i] += weight[back][i] * g[i];
    if (!own)
        return;
    for (int i = 0; i < N; i++)
        dbias[i] += g[i];
#pragma unroll
    for (int back = 0; back < W; back++)
        if (together(starts, at, back))
            for (int i = 0; i < N; i++)
                dw[back][i] += g[i] * past[back][i];
}

/* A strip of n tokens from `from`, and the W-1 after it, whose gradients reach into it. Lanes that are not live walk
 * along, and so do tokens beyond the row, with gradients of zero: without a branch four tokens are in work at once. */
template <int W, int N, typename X>
__device__ inline void conv_bwd_strip(float (&dw)[W][N], float (&dbias)[N], const float (&weight)[W][N],
                                      const float (&bias)[N], const struct tensor &dx, const struct tensor &dy,
                                      const struct tensor &x, const struct seqs &s, int64_t from, int n, int64_t c,
                                      bool live)
{
    const X *next_x = (const X *)x.data + from * x.row + c, *next_e = (const X *)dy.data + from * dy.row + c;
    X *out = (X *)dx.data + (from - (W - 1)) * dx.row + c;
    const int known = (int)min((int64_t)n + W - 1, s.tokens - from);
    float past[W][N] = {}, to[W][N] = {};
    words<X, N> px[AHEAD] = {}, pe[AHEAD] = {};

#pragma unroll
    for (int k = 0; k < AHEAD; k++, next_x += x.row, next_e += dy.row)
        if (k < known)
            fetch(px[k], next_x), fetch(pe[k], next_e);
    uint64_t starts = starts_of(s, from - (W - 1));
#pragma unroll
    for (int back = 1; back < W; back++)
        if (together(starts, W - 1, back))
            load_n<N>(past[back], (const X *)x.data + (from - back) * x.row + c);
    for (int k0 = 0; k0 < n + W - 1; k0 += AHEAD, starts >>= AHEAD) {
        if (k0 && k0 % 32 == 0)
            starts = starts_of(s, from + k0 - (W - 1));
#pragma unroll
        for (int k = 0; k < AHEAD; k++, next_x += x.row, next_e += dy.row, out += dx.row) {
            conv_bwd_token<W, N, X>(past, to, dw, dbias, weight, bias, px[k], pe[k], starts, W - 1 + k, k0 < n);
            if (k0 + k + AHEAD < known)
                fetch(px[k], next_x), fetch(pe[k], next_e);
            else
                pe[k] = {};
            if (live && (unsigned)(k0 + k - (W - 1)) < (unsigned)n)
                store_n(out, to[W - 1]);
            shift<W, N>(past);
            shift<W, N>(to);
        }
    }
}

/* A strip a warp. part_w: [gridDim.y][C,width], part_bias: [gridDim.y][C]. */
template <int W, int N, typename X>
__global__ void __launch_bounds__(LANES * WARPS, 4)
conv_bwd_kernel(struct tensor dx, struct tensor dy, struct tensor x, struct filter f, struct seqs s, int strip,
                float *part_w, float *part_bias)
{
    const int64_t C = x.dim[1], own = ((int64_t)blockIdx.x * LANES + threadIdx.x) * N, c = own < C ? own : 0;
    const int64_t from = ((int64_t)blockIdx.y * WARPS + threadIdx.y) * strip;
    float weight[W][N], bias[N], dw[W][N] = {}, dbias[N] = {};

    load_filter<W, N>(weight, bias, f, c);
    if (from < s.tokens)
        conv_bwd_strip<W, N, X>(dw, dbias, weight, bias, dx, dy, x, s, from, (int)min((int64_t)strip, s.tokens - from),
                                c, own < C);
    add_warps<W, N>(dw, dbias);
    for (int i = 0; threadIdx.y == 0 && own < C && i < N; i++) {
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
    static int resident;
    if (!resident)
        CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, conv_bwd_kernel<W, N, X>,
                                                           LANES * WARPS, 0));
    const int strip = strip_of(s->tokens, parts_fit(resident * cuda_of(d)->sms / across, floats,
                                                    cuda_of(d)->part_bytes));
    const int64_t parts = ceil_div(s->tokens, strip * WARPS);
    float *part = (float *)cuda_part(d, sizeof *part * (size_t)(floats * parts));
    float *part_bias = part + parts * C * f->width;

    if (!parts)
        return;
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
    const struct filter f = filter_of(w, bias);
    const bool wide = packs(x, 4) && packs(dx, 4) && packs(dy, 4);

    FOR_TYPE(x.type, X,
        if (f.width <= 4 && wide)
            conv_bwd_launch<4, 4, X>(d, dx, dw, dbias, dy, x, &f, s);
        else if (f.width <= 4)
            conv_bwd_launch<4, 1, X>(d, dx, dw, dbias, dy, x, &f, s);
        else
            conv_bwd_launch<16, 1, X>(d, dx, dw, dbias, dy, x, &f, s));
}
