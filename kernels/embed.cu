/* embed.cu - rows of a table by token; embed_bwd.cu has the gradient. */
#include "launch.cuh"
#include "sheet.cuh"

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
