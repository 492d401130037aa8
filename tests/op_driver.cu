/* op_driver.cu - times the GPU's verbs and the linear scan at the sizes of training; not part of the build.
 *
 *   nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -Ilib -Ikernels \
 *        tests/op_driver.cu kernels/[a-o]*.cu kernels/rope.cu lib/base.c lib/tensor.c lib/seqs.c -lcublasLt \
 *        -o op_driver
 *   op_driver [TEXT]          only what has TEXT in its name
 *
 * Median of 15 calls after 3, by events. TB/s counts every input once and every output once. */
#include "dev_cuda.h"
#include "launch.cuh"
#include "linear.cuh"
#include <math.h>

extern "C" const struct scan_impl linear_cuda;

static struct dev d;
static char *pool;
static size_t used, room;
static const char *only;

__global__ void random_kernel(void *p, int64_t n, bool wide, float low, float high, uint64_t seed)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        uint64_t x = (uint64_t)i * 0x9e3779b97f4a7c15ULL + seed;
        x ^= x >> 31, x *= 0xbf58476d1ce4e5b9ULL, x ^= x >> 29, x *= 0x94d049bb133111ebULL, x ^= x >> 32;
        const float u = low + (high - low) * (float)(uint32_t)x * 0x1p-32f;
        if (wide)
            ((float *)p)[i] = u;
        else
            ((bf16 *)p)[i] = __float2bfloat16(u);
    }
}

static struct tensor make(enum dtype type, float low, float high, int64_t a, int64_t b = 1, int64_t c = 1,
                          int64_t e = 1)
{
    const int64_t dim[4] = { a, b, c, e };
    struct tensor t = tensor_shape(type, e > 1 ? 4 : c > 1 ? 3 : b > 1 ? 2 : 1, dim);
    const size_t bytes = (size_t)tensor_count(t) * dtype_size(type);

    REQUIRE(used + bytes + 256 <= room);
    t.data = pool + used;
    used += (bytes + 255) / 256 * 256;
    random_kernel<<<1024, 256, 0, stream_of(&d)>>>(t.data, tensor_count(t), type == F32, low, high, used);
    CUDA(cudaGetLastError());
    return t;
}

static struct tensor b16(int64_t a, int64_t b = 1, int64_t c = 1) { return make(BF16, -1, 1, a, b, c); }
static struct tensor f32(int64_t a, int64_t b = 1, int64_t c = 1) { return make(F32, -1, 1, a, b, c); }
static const struct tensor none = {};

static double size_of(struct tensor t) { return (double)tensor_count(t) * (double)dtype_size(t.type); }

static int compare_floats(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* Milliseconds of the statement. */
#define TIME(...) ({ \
    float ms_[15]; \
    cudaEvent_t a_, b_; \
    CUDA(cudaEventCreate(&a_)); \
    CUDA(cudaEventCreate(&b_)); \
    for (int i_ = -3; i_ < 15; i_++) { \
        CUDA(cudaEventRecord(a_, stream_of(&d))); \
        __VA_ARGS__; \
        CUDA(cudaEventRecord(b_, stream_of(&d))); \
        CUDA(cudaEventSynchronize(b_)); \
        if (i_ >= 0) \
            CUDA(cudaEventElapsedTime(&ms_[i_], a_, b_)); \
    } \
    qsort(ms_, 15, sizeof *ms_, compare_floats); \
    CUDA(cudaEventDestroy(a_)); \
    CUDA(cudaEventDestroy(b_)); \
    (double)ms_[7]; })

#define OP(name, bytes, ...) do { \
    if (!only || strstr(name, only)) { \
        const double ms = TIME(__VA_ARGS__); \
        printf("%-28s %8.4f ms  %6.2f TB/s\n", name, ms, (bytes) / ms / 1e9); \
        fflush(stdout); \
    } } while (0)

static struct seqs row_of(int64_t tokens, int n)
{
    int32_t *start = (int32_t *)mem_new((size_t)n + 1, sizeof *start);
    int32_t *seq = (int32_t *)mem_new((size_t)tokens, sizeof *seq);

    for (int i = 0; i <= n; i++)
        start[i] = (int32_t)(tokens * i / n);
    struct seqs s = seqs_of(start, n);
    seqs_expand(&s, seq, NULL);
    struct tensor a = make(I32, 0, 0, n + 1), b = make(I32, 0, 0, tokens);
    CUDA(cudaMemcpyAsync(a.data, start, sizeof *start * ((size_t)n + 1), cudaMemcpyHostToDevice, stream_of(&d)));
    CUDA(cudaMemcpyAsync(b.data, seq, sizeof *seq * (size_t)tokens, cudaMemcpyHostToDevice, stream_of(&d)));
    CUDA(cudaStreamSynchronize(stream_of(&d)));
    s.dstart = (int32_t *)a.data;
    s.dseq   = (int32_t *)b.data;
    return s;
}

static void time_elementwise(void)
{
    const int64_t T = 32768, D = 768, F = 2048;

    used = 0;
    struct tensor x = b16(T, F), y = b16(T, F), z = b16(T, F), u = b16(T, F), w = b16(T, F);
    struct tensor r = f32(T, D), s = f32(T, D), bd = b16(T, D);
    const double n = size_of(x);
    OP("copy", 2 * n, CUDA(cudaMemcpyAsync(y.data, x.data, (size_t)n, cudaMemcpyDeviceToDevice, stream_of(&d))));
    OP("fill", n, cuda_fill(&d, y, 0));
    OP("cast f32 to bf16", size_of(r) + size_of(bd), cuda_cast(&d, bd, r));
    OP("add bf16", 3 * n, cuda_add(&d, y, x, z));
    OP("add f32 += bf16", 2 * size_of(r) + size_of(bd), cuda_add(&d, r, r, bd));
    OP("silu", 2 * n, cuda_map(&d, MAP_SILU, y, x));
    OP("silu bwd", 3 * n, cuda_map_bwd(&d, MAP_SILU, y, x, z));
    OP("swiglu", 3 * n, cuda_swiglu(&d, y, x, z));
    OP("swiglu bwd", 5 * n, cuda_swiglu_bwd(&d, y, u, x, z, w));
    OP("sumsq f32", size_of(r), cuda_sumsq(&d, tensor_rows(s, 0, 1), r));
}

static void time_gates(void)
{
    const int64_t T = 32768, H = 16, V = 48;

    used = 0;
    struct tensor x = b16(T, H, V), y = b16(T, H, V), z = b16(T, H, V), s = make(F32, 0, 1, T, H), ds = f32(T, H);
    struct tensor raw = f32(T, H), dt = f32(T, H), decay = f32(T, H);
    struct tensor w = make(F32, 0.1f, 1, H), dw = f32(H), dv = f32(H);
    const double n = size_of(x), m = size_of(s);
    struct dt_range r = { 0, INFINITY };
    OP("mul", 2 * n + m, cuda_mul(&d, y, x, s, false));
    OP("mul weight +=", 3 * n, cuda_mul(&d, y, x, w, true));
    OP("mul bwd", 3 * n + 2 * m, cuda_mul_bwd(&d, y, ds, z, x, s, false));
    OP("mul bwd weight +=", 4 * n, cuda_mul_bwd(&d, y, dw, z, x, w, true));
    OP("gain", 2 * n + m, cuda_gain(&d, y, x, w, s));
    OP("gain bwd", 3 * n + 3 * m, cuda_gain_bwd(&d, y, dw, ds, z, x, w, s));
    OP("decay", 3 * m, cuda_decay(&d, dt, decay, raw, w, w, r));
    OP("decay bwd", 4 * m, cuda_decay_bwd(&d, ds, dw, dv, dt, decay, raw, w, w, r));
}

static void time_norms(void)
{
    const int64_t T = 32768, D = 768, I = 1536, H = 16, V = 48;

    used = 0;
    struct tensor r = f32(T, 1, D), y = b16(T, 1, D), dr = f32(T, 1, D), w = f32(D), dw = f32(D);
    struct tensor rstd = make(F32, 1, 2, T, 1);
    struct tensor o = b16(T, H, V), z = b16(T, H, V), e = b16(T, H, V), p = b16(T, H, V), q = b16(T, H, V);
    struct tensor rh = make(F32, 1, 2, T, H), wv = f32(V), dwv = f32(V);
    struct tensor io = b16(T, 1, I), iz = b16(T, 1, I), ie = b16(T, 1, I), ip = b16(T, 1, I), iq = b16(T, 1, I);
    struct tensor wi = f32(I), dwi = f32(I);
    rstd.ndim = 2, y.ndim = r.ndim = dr.ndim = io.ndim = iz.ndim = ie.ndim = ip.ndim = iq.ndim = 3;
    y.dim[1] = r.dim[1] = dr.dim[1] = 1, y.dim[2] = r.dim[2] = dr.dim[2] = D;
    OP("rmsnorm f32 to bf16", size_of(r) + size_of(y), cuda_rmsnorm(&d, y, rstd, r, w, none, GATE_NONE, 1e-5f));
    OP("rmsnorm bwd f32, bf16", 2 * size_of(r) + size_of(y),
       cuda_rmsnorm_bwd(&d, dr, dw, none, y, r, w, none, rstd, GATE_NONE, false));
    OP("rmsnorm bf16 768", 2 * size_of(y), cuda_rmsnorm(&d, y, rstd, y, w, none, GATE_NONE, 1e-5f));
    OP("rmsnorm gate after 16x48", 3 * size_of(o), cuda_rmsnorm(&d, p, rh, o, wv, z, GATE_AFTER_NORM, 1e-5f));
    OP("rmsnorm bwd gate after 16x48", 5 * size_of(o),
       cuda_rmsnorm_bwd(&d, p, dwv, q, e, o, wv, z, rh, GATE_AFTER_NORM, false));
    OP("rmsnorm gate before 1536", 3 * size_of(io), cuda_rmsnorm(&d, ip, rstd, io, wi, iz, GATE_BEFORE_NORM, 1e-5f));
    OP("rmsnorm bwd gate before 1536", 5 * size_of(io),
       cuda_rmsnorm_bwd(&d, ip, dwi, iq, ie, io, wi, iz, rstd, GATE_BEFORE_NORM, false));
    OP("l2norm 16x48", 2 * size_of(o), cuda_l2norm(&d, p, rh, o));
    OP("l2norm bwd 16x48", 3 * size_of(o), cuda_l2norm_bwd(&d, p, e, o, rh));
    struct tensor rx = b16(T, 12, 64), ry = b16(T, 12, 64);
    struct tensor pos = make(I32, 0, 0, T);
    CUDA(cudaMemsetAsync(pos.data, 0, (size_t)T * 4, stream_of(&d)));
    OP("rope 12x64", 2 * size_of(rx), cuda_rope(&d, ry, rx, (int32_t *)pos.data, 10000, 1));
}

static void time_rows(void)
{
    const int64_t T = 32768, D = 768, V = 32000, R = 8192, C = 2304;

    used = 0;
    struct tensor token = make(I32, 0, 0, T), table = b16(V, D), dtable = f32(V, D), e = b16(T, D), ef = f32(T, D);
    int32_t *host = (int32_t *)mem_new((size_t)T, sizeof *host);
    for (int64_t t = 0; t < T; t++)                /* some tokens are frequent, as in text */
        host[t] = (int32_t)(t % 20 == 0 ? 7 : t * 7919 % V * (t * 104729 % V) % V);
    CUDA(cudaMemcpy(token.data, host, sizeof *host * (size_t)T, cudaMemcpyHostToDevice));
    OP("embed to f32", size_of(e) + size_of(ef), cuda_embed(&d, ef, table, (int32_t *)token.data));
    OP("embed bwd", 3 * size_of(ef), cuda_embed_bwd(&d, dtable, ef, (int32_t *)token.data));
    struct tensor logits = make(BF16, -8, 8, R, V), loss = f32(R);
    OP("xent 32000 gradient", 2 * size_of(logits), cuda_xent(&d, loss, logits, logits, (int32_t *)token.data, 1e-3f));
    OP("xent 32000 loss alone", size_of(logits), cuda_xent(&d, loss, none, logits, (int32_t *)token.data, 0));
    struct tensor wide = make(BF16, -8, 8, R, 50288);
    OP("xent 50288 gradient", 2 * size_of(wide), cuda_xent(&d, loss, wide, wide, (int32_t *)token.data, 1e-3f));
    struct tensor x = b16(T, C), y = b16(T, C), dx = b16(T, C);
    struct tensor w = f32(C, 4), dw = f32(C, 4), bias = f32(C), dbias = f32(C);
    struct seqs s = row_of(T, 8);
    OP("conv 2304", 2 * size_of(x), cuda_conv(&d, y, none, x, w, none, none, &s));
    OP("conv bwd 2304", 3 * size_of(x), cuda_conv_bwd(&d, dx, dw, dbias, y, x, w, bias, &s));
    const int64_t P = 1 << 26;
    struct tensor m = f32(P), v = make(F32, 0, 1, P), g = f32(P), master = f32(P), value = b16(P);
    struct adamw h = { 1e-3f, 0.9f, 0.95f, 1e-15f, 0.1f, 1, 10 };
    OP("adamw", 7 * size_of(m) + size_of(value), cuda_adamw(&d, value, master, m, v, g, &h));
}

static void time_matmul(void)
{
    static const struct { const char *name; int64_t m, n, k; int flags; bool wide; } c[] = {
        { "matmul qkv", 32768, 2304, 768, MM_TB, false }, { "matmul qkv dx", 32768, 768, 2304, 0, false },
        { "matmul qkv dw", 2304, 768, 32768, MM_TA | MM_ADD, true }, { "matmul ffn", 32768, 2048, 768, MM_TB, false },
        { "matmul ffn dw", 2048, 768, 32768, MM_TA | MM_ADD, true }, { "matmul down", 32768, 768, 2048, MM_TB, false },
        { "matmul gates", 32768, 16, 768, MM_TB, true }, { "matmul gates dw", 16, 768, 32768, MM_TA | MM_ADD, true },
        { "matmul rank", 32768, 48, 768, MM_TB, false }, { "matmul head", 8192, 32000, 768, MM_TB, false },
        { "matmul head dx", 8192, 768, 32000, 0, false }, { "matmul head dw", 32000, 768, 8192, MM_TA | MM_ADD, true },
        { "matmul 8192", 8192, 8192, 8192, MM_TB, false },
    };

    for (size_t i = 0; i < LEN(c); i++) {
        used = 0;
        const bool ta = c[i].flags & MM_TA, tb = c[i].flags & MM_TB;
        struct tensor a = ta ? b16(c[i].k, c[i].m) : b16(c[i].m, c[i].k);
        struct tensor b = tb ? b16(c[i].n, c[i].k) : b16(c[i].k, c[i].n);
        struct tensor y = c[i].wide ? f32(c[i].m, c[i].n) : b16(c[i].m, c[i].n);
        if (only && !strstr(c[i].name, only))
            continue;
        const double ms = TIME(cuda_matmul(&d, y, a, b, c[i].flags));
        printf("%-28s %8.4f ms  %6.0f TFLOP/s  %6.2f TB/s\n", c[i].name, ms,
               2e-9 * (double)c[i].m * (double)c[i].n * (double)c[i].k / ms,
               (size_of(a) + size_of(b) + size_of(y)) / ms / 1e9);
        fflush(stdout);
    }
}

static void time_linear(const char *name, int docs, int64_t T, int64_t H, int64_t shared, int64_t K, int64_t V,
                        enum dtype type)
{
    if (only && !strstr(name, only))
        return;
    used = 0;
    struct seqs s = row_of(T, docs);
    struct scan_io x = {}, g = {};
    x.q = make(type, -1, 1, T, shared, K), x.k = make(type, -0.2f, 0.2f, T, shared, K);
    x.v = make(type, -1, 1, T, H, V);
    x.q.ndim = x.k.ndim = x.v.ndim = 3;
    x.decay = make(F32, -0.5f, 0, T, H);
    x.o = make(type, 0, 0, T, H, V);
    x.scale = 1.f / sqrtf((float)K);
    g.o = make(type, -1, 1, T, H, V);
    g.q = make(type, 0, 0, T, shared, K), g.k = make(type, 0, 0, T, shared, K), g.v = make(type, 0, 0, T, H, V);
    g.q.ndim = g.k.ndim = 3;
    g.decay = make(F32, 0, 0, T, H);
    void *scratch = pool + used;
    REQUIRE(used + (size_t)linear_cuda.scratch(&d, &s, &x, false) <= room);
    const double infer = TIME(linear_cuda.forward(&d, &s, &x, scratch));
    x.saved[0] = make(F32, 0, 0, seqs_tiles(&s), H, V, K);
    scratch = pool + used;
    REQUIRE(used + (size_t)linear_cuda.scratch(&d, &s, &x, true) <= room);
    const double train = TIME(linear_cuda.forward(&d, &s, &x, scratch));
    const double back = TIME(linear_cuda.backward(&d, &s, &x, &g, scratch));
    struct linear y = linear_of(&s, &x);
    y.slot = (float *)x.saved[0].data, y.keep_slot = (float *)scratch;
    const double slots = TIME(linear_slots(&d, &y));
    printf("linear %-22s forward %.3f ms (states %.3f), training forward %.3f, backward %.3f, both %.3f\n", name,
           infer, slots, train, back, train + back);
    fflush(stdout);
}

static void time_step(int N)
{
    const int64_t H = 16, K = 48, V = 48;

    used = 0;
    struct seqs s = row_of(N, N);
    struct scan_io x = {};
    x.q = b16(N, H, K), x.k = b16(N, H, K), x.v = b16(N, H, V), x.o = b16(N, H, V), x.decay = make(F32, -0.5f, 0, N, H);
    x.state[0] = x.next[0] = make(F32, -1, 1, N, H, V, K);
    x.scale = 1;
    OP("linear step", 2 * size_of(x.state[0]), linear_cuda.forward(&d, &s, &x, NULL));
}

/* Replays a captured step of a layer and compares the bits with those of plain calls. */
static void check_graph(void)
{
    const int64_t T = 4096, H = 16, K = 48, D = H * K;

    used = 0;
    struct seqs s = row_of(T, 5);
    struct scan_io x = {}, g = {};
    struct tensor in = b16(T, D), w = b16(D, D), dw = f32(D, D), cw = f32(D, 4), y = b16(T, D), table = f32(100, D);
    struct tensor token = make(I32, 0, 0, T), copy = b16(T, D);
    x.q = b16(T, H, K), x.k = b16(T, H, K), x.v = b16(T, H, K), x.o = b16(T, H, K), x.decay = make(F32, -0.5f, 0, T, H);
    x.scale = 0.1f;
    x.saved[0] = make(F32, 0, 0, seqs_tiles(&s), H, K, K);
    g.o = b16(T, H, K), g.q = b16(T, H, K), g.k = b16(T, H, K), g.v = b16(T, H, K), g.decay = f32(T, H);
    void *scratch = pool + used;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CUDA(cudaMemsetAsync(token.data, 0, (size_t)T * 4, stream_of(&d)));
    for (int turn = 0; turn < 2; turn++) {
        if (turn)
            CUDA(cudaStreamBeginCapture(stream_of(&d), cudaStreamCaptureModeGlobal));
        cuda_matmul(&d, tensor_flat(x.v), in, w, MM_TB);
        linear_cuda.forward(&d, &s, &x, scratch);
        cuda_conv(&d, y, none, tensor_flat(x.o), cw, none, none, &s);
        linear_cuda.backward(&d, &s, &x, &g, scratch);
        cuda_matmul(&d, dw, tensor_flat(g.v), in, MM_TA);
        cuda_embed_bwd(&d, table, y, (const int32_t *)token.data);
        if (turn)
            CUDA(cudaStreamEndCapture(stream_of(&d), &graph));
        else
            cuda_cast(&d, copy, tensor_flat(g.k));
    }
    cuda_fill(&d, g.k, 0);
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaGraphLaunch(exec, stream_of(&d)));
    CUDA(cudaStreamSynchronize(stream_of(&d)));
    char *a = (char *)mem_new(2, (size_t)size_of(copy)), *b = a + (size_t)size_of(copy);
    CUDA(cudaMemcpy(a, copy.data, (size_t)size_of(copy), cudaMemcpyDeviceToHost));
    CUDA(cudaMemcpy(b, g.k.data, (size_t)size_of(copy), cudaMemcpyDeviceToHost));
    printf("graph: %s\n", memcmp(a, b, (size_t)size_of(copy)) ? "DIFFERS" : "the same bits");
    free(a);
}

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    d.kind = DEV_CUDA, d.type = BF16;
    if (dev_cuda_open(&d, 0))
        return 1;
    room = (size_t)20 << 30;
    CUDA(cudaMalloc((void **)&pool, room));
    printf("%s\n", dev_cuda_name(&d));
    if (!only)
        check_graph();
    time_linear("8x4096 H16 K48 V48", 8, 32768, 16, 16, 48, 48, BF16);
    time_linear("1x32768 H16 K48 V48", 1, 32768, 16, 16, 48, 48, BF16);
    time_linear("8x4096 H16 K96 V192", 8, 32768, 16, 16, 96, 192, BF16);
    time_linear("2x4096 H80 K128 V64", 2, 8192, 80, 80, 128, 64, BF16);
    time_linear("2x4096 H80 K128 V64 G1", 2, 8192, 80, 1, 128, 64, BF16);
    time_linear("300x109 H16 K48 V48", 300, 32768, 16, 16, 48, 48, BF16);
    for (int docs = 128; docs; docs = docs > 1 ? docs / 8 : 0) {
        char name[64];
        snprintf(name, sizeof name, "%dx%d H8 K16 V32", docs, 65536 / docs);
        time_linear(name, docs, 65536, 8, 8, 16, 32, BF16);
    }
    time_linear("64x1024 H8 K16 V32", 64, 65536, 8, 8, 16, 32, BF16);
    time_linear("128x512 H8 K16 V16", 128, 65536, 8, 8, 16, 16, BF16);
    time_linear("128x512 H8 K32 V32", 128, 65536, 8, 8, 32, 32, BF16);
    time_linear("128x512 H8 K32 V64", 128, 65536, 8, 8, 32, 64, BF16);
    time_linear("128x512 H8 K64 V64", 128, 65536, 8, 8, 64, 64, BF16);
    time_linear("8x4096 H16 K48 V48 fp32", 8, 32768, 16, 16, 48, 48, F32);
    time_step(256);
    time_elementwise();
    time_gates();
    time_norms();
    time_rows();
    time_matmul();
    CUDA(cudaFree(pool));
    dev_cuda_close(&d);
    return 0;
}
