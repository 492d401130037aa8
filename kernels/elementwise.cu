/* elementwise.cu - fill, cast, add, map and swiglu: one thread per pack of elements, all in float. */
#include "launch.cuh"
#include "sheet.cuh"

enum { COPY, ADD, SIGMOID, SILU, SIGMOID_BWD, SILU_BWD, SWIGLU };

template <int OP> __device__ inline float apply(float a, float b)
{
    switch (OP) {
    case ADD:         return a + b;
    case SIGMOID:     return sigmoid(a);
    case SILU:        return a * sigmoid(a);
    case SIGMOID_BWD: return a * sigmoid(b) * (1.f - sigmoid(b));
    case SILU_BWD:    return a * sigmoid(b) * (1.f + b * (1.f - sigmoid(b)));
    case SWIGLU:      return a * sigmoid(a) * b;
    default:          return a;
    }
}

/* y may be a or b, so nothing is __restrict__. */
template <int OP, int N, typename Y, typename A, typename B>
__global__ void map_kernel(struct tensor y, struct tensor a, struct tensor b, struct sheet s)
{
    for (int64_t t = sheet_row(); t < s.rows; t += sheet_row_step())
        for (int64_t c = sheet_col(); c < s.cols; c += sheet_col_step()) {
            float u[N], v[N] = {};
            load_n<N>(u, (const A *)a.data + t * a.row + c * N);
            if (OP == ADD || OP >= SIGMOID_BWD)
                load_n<N>(v, (const B *)b.data + t * b.row + c * N);
            for (int i = 0; i < N; i++)
                u[i] = apply<OP>(u[i], v[i]);
            store_n((Y *)y.data + t * y.row + c * N, u);
        }
}

template <int OP, typename Y, typename A, typename B>
static void map_launch(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    if (tensor_dense(y) && tensor_dense(a) && tensor_dense(b))
        y = one_row(y), a = one_row(a), b = one_row(b);

    /* 16 bytes of the widest type: more would leave gaps between what neighbouring threads load at once. */
    constexpr int N = sizeof(Y) == 4 || sizeof(A) == 4 || sizeof(B) == 4 ? 4 : 8;
    const int64_t cols = tensor_count(y) / y.dim[0];
    if (packs(y, N) && packs(a, N) && packs(b, N)) {
        const struct sheet s = sheet_of(y.dim[0], cols / N);
        map_kernel<OP, N, Y, A, B><<<s.grid, s.block, 0, stream_of(d)>>>(y, a, b, s);
    } else {
        const struct sheet s = sheet_of(y.dim[0], cols);
        map_kernel<OP, 1, Y, A, B><<<s.grid, s.block, 0, stream_of(d)>>>(y, a, b, s);
    }
    CUDA(cudaGetLastError());
}

void cuda_cast(struct dev *d, struct tensor y, struct tensor x)
{
    const struct tensor none = {};

    if (x.type == I32)
        x.type = y.type = F32;                   /* four bytes are moved unchanged */
    FOR_TYPE(y.type, Y, FOR_TYPE(x.type, X, map_launch<COPY, Y, X, X>(d, y, x, none)));
}

void cuda_add(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    FOR_TYPE(y.type, Y, FOR_TYPE(a.type, A, FOR_TYPE(b.type, B, map_launch<ADD, Y, A, B>(d, y, a, b))));
}

void cuda_map(struct dev *d, enum map f, struct tensor y, struct tensor x)
{
    const struct tensor none = {};

    if (f == MAP_SIGMOID)
        FOR_TYPE(x.type, X, map_launch<SIGMOID, X, X, X>(d, y, x, none));
    else
        FOR_TYPE(x.type, X, map_launch<SILU, X, X, X>(d, y, x, none));
}

void cuda_map_bwd(struct dev *d, enum map f, struct tensor dx, struct tensor dy, struct tensor x)
{
    if (f == MAP_SIGMOID)
        FOR_TYPE(x.type, X, map_launch<SIGMOID_BWD, X, X, X>(d, dx, dy, x));
    else
        FOR_TYPE(x.type, X, map_launch<SILU_BWD, X, X, X>(d, dx, dy, x));
}

void cuda_swiglu(struct dev *d, struct tensor y, struct tensor gate, struct tensor up)
{
    FOR_TYPE(y.type, X, map_launch<SWIGLU, X, X, X>(d, y, gate, up));
}

template <int N, typename X>
__global__ void swiglu_bwd_kernel(struct tensor dgate, struct tensor dup, struct tensor dy, struct tensor gate,
                                  struct tensor up, struct sheet s)
{
    for (int64_t t = sheet_row(); t < s.rows; t += sheet_row_step())
        for (int64_t c = sheet_col(); c < s.cols; c += sheet_col_step()) {
            float e[N], g[N], u[N];
            load_n<N>(e, (const X *)dy.data + t * dy.row + c * N);
            load_n<N>(g, (const X *)gate.data + t * gate.row + c * N);
            load_n<N>(u, (const X *)up.data + t * up.row + c * N);
            for (int i = 0; i < N; i++) {
                u[i] = apply<SILU_BWD>(e[i] * u[i], g[i]);
                e[i] *= apply<SILU>(g[i], 0.f);
            }
            store_n((X *)dgate.data + t * dgate.row + c * N, u);
            store_n((X *)dup.data + t * dup.row + c * N, e);
        }
}

void cuda_swiglu_bwd(struct dev *d, struct tensor dgate, struct tensor dup, struct tensor dy, struct tensor gate,
                     struct tensor up)
{
    const bool wide = packs(dgate, 8) && packs(dup, 8) && packs(dy, 8) && packs(gate, 8) && packs(up, 8);
    const struct sheet s = sheet_of(dy.dim[0], tensor_count(dy) / dy.dim[0] / (wide ? 8 : 1));

    FOR_TYPE(dy.type, X,
        if (wide)
            swiglu_bwd_kernel<8, X><<<s.grid, s.block, 0, stream_of(d)>>>(dgate, dup, dy, gate, up, s);
        else
            swiglu_bwd_kernel<1, X><<<s.grid, s.block, 0, stream_of(d)>>>(dgate, dup, dy, gate, up, s));
    CUDA(cudaGetLastError());
}

template <int N, typename X>
__global__ void fill_kernel(struct tensor y, X value, struct sheet s)
{
    pack<X, N> v;

    for (int i = 0; i < N; i++)
        v.at[i] = value;
    for (int64_t t = sheet_row(); t < s.rows; t += sheet_row_step())
        for (int64_t c = sheet_col(); c < s.cols; c += sheet_col_step())
            *(pack<X, N> *)((X *)y.data + t * y.row + c * N) = v;
}

template <typename X> static void fill_launch(struct dev *d, struct tensor y, X value)
{
    if (tensor_dense(y))
        y = one_row(y);

    const bool wide = packs(y, 8);
    const struct sheet s = sheet_of(y.dim[0], tensor_count(y) / y.dim[0] / (wide ? 8 : 1));
    if (wide)
        fill_kernel<8, X><<<s.grid, s.block, 0, stream_of(d)>>>(y, value, s);
    else
        fill_kernel<1, X><<<s.grid, s.block, 0, stream_of(d)>>>(y, value, s);
    CUDA(cudaGetLastError());
}

void cuda_fill(struct dev *d, struct tensor y, float value)
{
    if (y.type == I32)
        fill_launch<int32_t>(d, y, (int32_t)value);
    else if (y.type == BF16)
        fill_launch<bf16>(d, y, __float2bfloat16(value));
    else
        fill_launch<float>(d, y, value);
}
