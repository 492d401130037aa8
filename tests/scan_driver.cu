/* scan_driver.cu - checks the palimpsa scan on a GPU against fp64, then times it; not part of the build.
 *
 *   nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -Ilib -Ikernels \
 *        tests/scan_driver.cu kernels/palimpsa_*.cu lib/base.c lib/seqs.c lib/tensor.c -o scan_driver
 *   scan_driver [fast | once] check | bench | time | CASE...     fast: no check; once: neither check nor time
 *
 * Errors are relative RMS over each head, of each tensor the worst; for BF16 tensors in units of what rounding the
 * exact result costs. Allowed: 2e-4 for fp32 results, twice that rounding for BF16. A second run must give the same
 * bits as the first. */
#include "scan_reference.cuh"
#include <algorithm>
#include <vector>

extern "C" const struct scan_impl palimpsa_cuda;

struct drive {
    const char *name;
    int  docs, length;                  /* documents; tokens of each, 0: the mixed lengths below */
    int  T, H, Hq, Hk, K, V;
    enum dtype type;
    bool state, var, gnext;
    int  decay;                         /* 0: bench, heads of all speeds; 1: weak, strong, with resets; 2: weak */
    int  pad;                           /* added to the row stride of q k v beta o */
    int  heads;                         /* how many heads to check, 0: all */
    bool bench;
};

static const struct drive drives[] = {
    { "tiny",      4, 0, 61, 2, 2, 2, 5, 3, F32, true, true, true, 0, 0, 0, false },
    { "plain",     9, 0, 517, 6, 3, 2, 20, 7, F32, true, true, true, 1, 3, 0, false },
    { "plain16",   9, 0, 517, 6, 3, 2, 20, 7, BF16, true, true, true, 1, 3, 0, false },
    { "wide",      3, 0, 300, 2, 2, 2, 256, 33, F32, true, false, true, 1, 0, 0, false },
    { "odd130",    5, 0, 700, 3, 1, 1, 130, 65, BF16, false, false, false, 0, 0, 0, false },
    { "a48",       1, 0, 256, 3, 3, 3, 48, 48, BF16, false, false, false, 1, 0, 0, false },
    { "b48",      11, 0, 1999, 6, 3, 2, 48, 48, BF16, true, false, true, 1, 8, 0, false },
    { "c48",       7, 0, 4000, 3, 3, 3, 48, 48, BF16, false, false, false, 1, 0, 0, false },
    { "f48",      11, 0, 1999, 6, 3, 2, 48, 48, F32, true, false, true, 1, 8, 0, false },
    { "a96",      11, 0, 1999, 3, 3, 1, 96, 192, BF16, true, false, true, 1, 0, 0, false },
    { "a128",     11, 0, 1999, 4, 1, 1, 128, 64, BF16, true, false, true, 1, 0, 0, false },
    { "f128",     11, 0, 1999, 4, 1, 1, 128, 64, F32, true, false, true, 1, 0, 0, false },
    { "v32",       5, 0, 300, 2, 2, 2, 128, 32, BF16, true, false, true, 1, 0, 0, false },
    { "w32",       5, 0, 300, 2, 2, 2, 64, 32, BF16, true, false, true, 1, 0, 0, false },
    { "a16",      11, 0, 1999, 4, 4, 4, 16, 32, BF16, true, false, true, 1, 0, 0, false },
    { "a64",      11, 0, 1999, 4, 4, 4, 64, 64, BF16, true, false, true, 1, 0, 0, false },
    { "b96",      11, 0, 1999, 4, 4, 4, 96, 96, BF16, true, false, true, 1, 0, 0, false },
    { "k32",       5, 0, 150, 2, 2, 2, 32, 32, BF16, true, false, true, 1, 0, 0, false },
    { "k80",       5, 0, 150, 2, 2, 2, 80, 48, BF16, true, false, true, 1, 0, 0, false },
    { "k112",      5, 0, 150, 2, 2, 1, 112, 64, BF16, true, false, true, 1, 0, 0, false },
    { "k160",      5, 0, 150, 2, 1, 2, 160, 32, BF16, true, false, true, 1, 0, 0, false },
    { "k192",      5, 0, 150, 2, 2, 2, 192, 96, BF16, true, false, true, 1, 0, 0, false },
    { "k256",      5, 0, 150, 2, 2, 2, 256, 64, BF16, true, false, true, 1, 0, 0, false },
    { "even16",    8, 128, 1024, 4, 2, 1, 16, 32, BF16, false, false, false, 1, 0, 0, false },
    { "even16s",   5, 256, 1216, 4, 4, 4, 16, 32, BF16, true, false, true, 1, 8, 0, false },
    { "wide16",    5, 256, 1216, 4, 1, 1, 16, 96, BF16, true, false, true, 1, 0, 0, false },
    { "even48",    9, 128, 1100, 3, 3, 3, 48, 96, BF16, true, false, true, 1, 0, 0, false },
    { "even48s",   3, 512, 1536, 3, 3, 3, 48, 48, BF16, false, false, true, 1, 0, 0, false },
    { "even64",   20, 64, 1280, 3, 3, 3, 64, 32, BF16, true, false, false, 1, 0, 0, false },
    { "even96",    2, 320, 640, 3, 3, 3, 96, 48, BF16, true, false, true, 1, 0, 0, false },
    { "even128",   6, 128, 768, 3, 3, 3, 128, 64, BF16, true, false, true, 0, 0, 0, false },
    { "step",   1000, 1, 1000, 4, 2, 2, 48, 48, BF16, true, true, false, 0, 0, 0, false },
    { "step5",    37, 1, 37, 4, 2, 2, 5, 7, F32, true, true, false, 0, 0, 0, false },
    { "170M",      8, 4096, 32768, 16, 16, 16, 48, 48, BF16, false, false, false, 0, 0, 2, true },
    { "760M",      8, 4096, 32768, 16, 16, 16, 96, 192, BF16, false, false, false, 0, 0, 1, true },
    { "2.7B",      2, 4096, 8192, 80, 80, 80, 128, 64, BF16, false, false, false, 0, 0, 2, true },
    { "long",      1, 32768, 32768, 16, 16, 16, 48, 48, BF16, false, false, false, 0, 0, 2, true },
    { "mixed",    16, 0, 32768, 16, 16, 16, 48, 48, BF16, false, false, false, 0, 0, 2, true },
    { "carried",  16, 0, 32768, 16, 16, 16, 48, 48, BF16, true, false, true, 0, 0, 2, true },
    { "s64",       8, 4096, 32768, 16, 16, 16, 64, 64, BF16, false, false, false, 0, 0, 1, true },
    { "s96",       8, 4096, 32768, 16, 16, 16, 96, 96, BF16, false, false, false, 0, 0, 1, true },
    { "recall",  128, 512, 65536, 8, 8, 8, 16, 32, BF16, false, false, false, 2, 0, 2, true },
    { "recall1k", 64, 1024, 65536, 8, 8, 8, 16, 32, BF16, false, false, false, 2, 0, 2, true },
    { "mamba",   128, 512, 65536, 8, 1, 1, 16, 32, BF16, false, false, false, 2, 0, 0, true },
    { "uneven",  128, 0, 65536, 8, 8, 8, 16, 32, BF16, false, false, false, 2, 0, 2, true },
    { "fading", 128, 512, 65536, 8, 8, 8, 16, 32, BF16, false, false, false, 0, 0, 2, true },
    { "long16",    1, 65536, 65536, 8, 8, 8, 16, 32, BF16, false, false, false, 2, 0, 2, true },
    { "f32",       8, 4096, 32768, 16, 16, 16, 48, 48, F32, false, false, false, 0, 0, 1, true },
};

/* ---- data ---- */
__host__ __device__ static uint32_t hash(uint64_t x)
{
    x ^= x >> 33, x *= 0xff51afd7ed558ccdULL, x ^= x >> 33, x *= 0xc4ceb9fe1a85ec53ULL, x ^= x >> 33;
    return (uint32_t)(x >> 16);
}
__host__ __device__ static float unit(uint64_t x) { return ((float)hash(x) + 0.5f) * (1.f / 4294967296.f); }
__device__ static float normal(uint64_t x)
{
    return sqrtf(-2.f * logf(unit(2 * x + 1))) * cospif(2.f * unit(2 * x + 0x9e3779b97f4aULL));
}

enum { UNIT_NORM, NORMAL, SIGMOID, POSITIVE, DECAY, PRIOR };
__global__ void make_kernel(struct tensor y, int how, int mode, uint64_t seed)
{
    const int64_t C = y.dim[2] * y.dim[3], G = y.dim[1], rows = y.dim[0] * G;

    for (int64_t r = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; r < rows; r += (int64_t)gridDim.x * blockDim.x) {
        float norm = 0.f;
        for (int64_t c = 0; c < C; c++)
            norm += normal(seed + r * C + c) * normal(seed + r * C + c);
        for (int64_t c = 0; c < C; c++) {
            const int64_t h = r % G;
            float a = normal(seed + r * C + c);
            if (how == UNIT_NORM)
                a *= rsqrtf(norm);
            else if (how == SIGMOID || how == POSITIVE)
                a = 1.f / (1.f + expf(-a));
            else if (how == DECAY) {
                static const float third[] = { 0.2f, 8.f, 60.f };
                const float strength = mode == 0 ? 16.f * unit(h * 7 + 3) : mode == 2 ? 1.f : third[h % 3];
                a = -log1pf(expf(a)) * 0.05f * strength;
                if (mode == 1 && h % 3 == 2 && unit(seed * 3 + r) < 0.03f)
                    a = -200.f;
            } else if (how == PRIOR)
                a = mode == 0 ? 0.f : 0.5f * a;
            put(y, r / G * y.row + h * C + c, a);
        }
    }
}

static std::vector<void *> owned;
static struct tensor fresh(enum dtype type, int pad, std::vector<int64_t> dim)
{
    struct tensor t = {};
    size_t inner = 1, bytes;

    for (int i = 0; i < 4; i++)
        t.dim[i] = i < (int)dim.size() ? dim[i] : 1;
    for (int i = 1; i < 4; i++)
        inner *= (size_t)t.dim[i];
    t.row = (int64_t)inner + pad;
    t.ndim = (int)dim.size();
    t.type = type;
    bytes = (size_t)t.dim[0] * (size_t)t.row * (type == F32 ? 4 : 2);
    CUDA(cudaMalloc(&t.data, bytes + 256));
    CUDA(cudaMemset(t.data, 0xff, bytes + 256));
    owned.push_back(t.data);
    return t;
}

static struct tensor made(enum dtype type, int pad, std::vector<int64_t> dim, int how, int mode, uint64_t seed)
{
    struct tensor t = fresh(type, pad, dim);

    if (t.ndim == 1)                    /* [H]: one row */
        t.dim[1] = t.dim[0], t.dim[0] = 1, t.row = t.dim[1];
    make_kernel<<<512, 128>>>(t, how, mode, seed << 32);
    if (t.ndim == 1)
        t.dim[0] = t.dim[1], t.dim[1] = 1, t.row = 1;
    CUDA(cudaGetLastError());
    return t;
}

/* ---- comparison of head h of a tensor [T,G,C] ---- */
__global__ void compare_kernel(struct tensor a, const double *r, int64_t G, int64_t C, int64_t h, double *sum)
{
    double err = 0, norm = 0, rounding = 0, bad = 0;

    const int64_t step = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < a.dim[0] * C; i += step) {
        const double x = get(a, i / C * a.row + h * C + i % C), y = r[(i / C * G + h) * C + i % C];
        const double z = (double)__bfloat162float(__float2bfloat16((float)y));
        bad += !(fabs(x) < 1e30);
        err += (x - y) * (x - y), norm += y * y, rounding += (z - y) * (z - y);
    }
    atomicAdd(sum, err), atomicAdd(sum + 1, norm), atomicAdd(sum + 2, rounding), atomicAdd(sum + 3, bad);
}

static double *sums;
static double f32_limit;               /* relative RMS allowed where no rounding to BF16 comes last */
static bool compare(const char *name, struct tensor a, const double *r, int64_t G, int64_t C, int heads)
{
    double worst = 0, total[4] = {}, one[4];
    int worst_head = 0;

    if (!a.data || !r)
        return true;
    for (int h = 0; h < (heads ? std::min<int64_t>(heads, G) : G); h++) {
        CUDA(cudaMemset(sums, 0, sizeof one));
        compare_kernel<<<256, 256>>>(a, r, G, C, h, sums);
        CUDA(cudaMemcpy(one, sums, sizeof one, cudaMemcpyDeviceToHost));
        for (int i = 0; i < 4; i++)
            total[i] += one[i];
        const double e = a.type == BF16 ? sqrt(one[0] / (one[2] + 1e-300)) : sqrt(one[0] / (one[1] + 1e-300));
        if (e > worst || e != e)
            worst = e, worst_head = h;
    }
    const double rel = sqrt(total[0] / total[1]);
    const bool ok = total[3] == 0 && (a.type == BF16 ? worst <= 2 : worst <= f32_limit);
    printf(" %s %.1e", name, rel);
    printf(a.type == BF16 ? "(%.2fx h%d)" : "(%.1e h%d)", worst, worst_head);
    if (total[3] > 0)
        printf(" %g BAD VALUES", total[3]);
    if (!ok)
        printf(" !!");
    return ok;
}

/* ---- one case ---- */
static std::vector<int32_t> cut(const struct drive *c)
{
    std::vector<int32_t> start(1, 0);

    for (int i = 1; i <= c->docs; i++) {
        int32_t len = c->length;
        if (!c->length) {               /* a spread of lengths, some 0 and some 1 */
            const float u = unit(i * 77 + c->T);
            len = !c->bench && i % 5 == 2 ? 0 : !c->bench && i % 5 == 3 ? 1 : (int32_t)(2.f * u * c->T / c->docs) + 1;
        }
        start.push_back(std::min(start.back() + len, c->T));
    }
    start.back() = c->T;
    return start;
}

static double *zeros(int64_t n)
{
    double *p;

    CUDA(cudaMalloc((void **)&p, (size_t)n * sizeof *p));
    CUDA(cudaMemset(p, 0, (size_t)n * sizeof *p));
    owned.push_back(p);
    return p;
}

static bool check(const struct drive *c, const struct seqs *s, const struct scan_io *x, const struct scan_io *g)
{
    const int64_t T = c->T, H = c->H, K = c->K, V = c->V, VK = V * K;
    const struct docs d = { s->dstart, s->dseq };
    struct ref y = {};
    bool ok = true;

    f32_limit = c->type == BF16 ? 3.3e-3 : 2e-4;
    for (double **p : { &y.M, &y.J, &y.gM, &y.gJ })
        *p = zeros(T * VK);
    for (double **p : { &y.o, &y.var, &y.dv, &y.db })
        *p = zeros(T * H * V);
    y.dq = zeros(T * c->Hq * K), y.dk = zeros(T * c->Hk * K), y.da = zeros(T * H), y.prior = zeros(H);
    for (int i = 0; i < 2; i++) {
        y.next[i] = x->next[i].data ? zeros(s->n * H * VK) : NULL;
        y.gstate[i] = g->state[i].data ? zeros(s->n * H * VK) : NULL;
    }
    for (int h = 0; h < (c->heads ? c->heads : H); h++) {
        ref_states<<<(unsigned)((VK + 63) / 64), 64>>>(y, *x, d, h);
        ref_adjoint<<<(unsigned)((VK + 63) / 64), 64>>>(y, *x, *g, d, h);
        ref_rows<<<(unsigned)((T * V + 127) / 128), 128>>>(y, *x, h);
        ref_cols<<<(unsigned)((T * K + 127) / 128), 128>>>(y, *x, *g, h);
        ref_decay<<<(unsigned)T, 128>>>(y, *x, d, h);
    }
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < 2; i++)
        if (y.next[i]) {                /* empty documents hand their memory through */
            ref_empty<<<s->n, 128>>>(y.next[i], x->state[i], s->dstart);
            ref_empty<<<s->n, 128>>>(y.gstate[i], g->next[i], s->dstart);
        }
    CUDA(cudaDeviceSynchronize());
    printf("%-8s", c->name);
    ok &= compare("o", x->o, y.o, H, V, c->heads);
    ok &= compare("var", x->var, y.var, H, V, c->heads);
    ok &= compare("dq", g->q, y.dq, c->Hq, K, c->heads);
    ok &= compare("dk", g->k, y.dk, c->Hk, K, c->heads);
    ok &= compare("dv", g->v, y.dv, H, V, c->heads);
    ok &= compare("db", g->beta, y.db, H, V, c->heads);
    ok &= compare("dld", g->decay, y.da, H, 1, c->heads);
    struct tensor prior = g->prior[0];
    prior.dim[1] = prior.dim[0], prior.dim[0] = 1, prior.row = prior.dim[1];
    ok &= compare("dIp", prior, y.prior, H, 1, c->heads);
    for (int i = 0; i < 2; i++) {
        ok &= compare(i ? "J" : "M", x->next[i], y.next[i], H, VK, c->heads);
        ok &= compare(i ? "dJ0" : "dM0", g->state[i], y.gstate[i], H, VK, c->heads);
    }
    printf("  %s\n", ok ? "ok" : "WRONG");
    return ok;
}

static float median(std::vector<float> t) { std::sort(t.begin(), t.end()); return t[t.size() / 2]; }

static const char *const ways[] = { "forward", "saving", "backward", "both" };
static float timed(struct dev *d, const struct seqs *s, struct scan_io x, const struct scan_io *g, void *scratch,
                   int what)
{
    std::vector<float> all;
    cudaEvent_t a, b;

    CUDA(cudaEventCreate(&a));
    CUDA(cudaEventCreate(&b));
    if (what == 0)
        x.saved[0].data = x.saved[1].data = NULL;
    for (int i = 0; i < 13; i++) {
        float ms;
        CUDA(cudaEventRecord(a, stream_of(d)));
        if (what != 2)
            palimpsa_cuda.forward(d, s, &x, scratch);
        if (what >= 2)
            palimpsa_cuda.backward(d, s, &x, g, scratch);
        CUDA(cudaEventRecord(b, stream_of(d)));
        CUDA(cudaEventSynchronize(b));
        CUDA(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2)
            all.push_back(ms);
    }
    return median(all);
}

/* Mixes all bits of a tensor into a number. */
static uint64_t digest(struct tensor t, uint64_t h)
{
    std::vector<uint16_t> bits(t.data ? (size_t)t.dim[0] * (size_t)t.row * (t.type == F32 ? 2 : 1) : 0);

    if (!bits.empty())
        CUDA(cudaMemcpy(bits.data(), t.data, bits.size() * 2, cudaMemcpyDeviceToHost));
    for (uint16_t b : bits)
        h = (h ^ b) * 0x100000001b3ULL;
    return h;
}

/* Forward and backward once; with `sum` returns a digest of all results. */
static uint64_t run(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                    void *scratch, bool sum)
{
    uint64_t h = 0xcbf29ce484222325ULL;

    if (g->prior[0].data)
        CUDA(cudaMemset(g->prior[0].data, 0, (size_t)g->prior[0].dim[0] * 4));
    palimpsa_cuda.forward(d, s, x, scratch);
    if (s->longest > 1)
        palimpsa_cuda.backward(d, s, x, g, scratch);
    CUDA(cudaDeviceSynchronize());
    if (sum)
        for (struct tensor t : { x->o, x->var, x->next[0], x->next[1], g->q, g->k, g->v, g->beta, g->decay, g->prior[0],
                                 g->state[0], g->state[1] })
            h = digest(t, h);
    return h;
}

static void make_io(const struct drive *c, const struct seqs *s, struct scan_io *x, struct scan_io *g)
{
    const int64_t T = c->T, H = c->H, K = c->K, V = c->V;

    x->q = made(c->type, c->pad, { T, c->Hq, K }, UNIT_NORM, 0, 1);
    x->k = made(c->type, c->pad, { T, c->Hk, K }, UNIT_NORM, 0, 2);
    x->v = made(c->type, c->pad, { T, H, V }, NORMAL, 0, 3);
    x->beta = made(c->type, c->pad, { T, H, V }, SIGMOID, 0, 4);
    x->decay = made(F32, 0, { T, H }, DECAY, c->decay, 5), x->prior[0] = made(F32, 0, { H }, PRIOR, c->decay, 6);
    x->o = fresh(c->type, c->pad, { T, H, V }), x->scale = 0.7f;
    g->o = made(c->type, c->pad, { T, H, V }, NORMAL, 0, 7);
    g->q = fresh(c->type, c->pad, { T, c->Hq, K }), g->k = fresh(c->type, c->pad, { T, c->Hk, K });
    g->v = fresh(c->type, c->pad, { T, H, V }), g->beta = fresh(c->type, c->pad, { T, H, V });
    g->decay = fresh(F32, 0, { T, H }), g->prior[0] = fresh(F32, 0, { H });
    for (int i = 0; i < 2; i++) {
        if (c->state) {
            x->state[i] = made(F32, 0, { s->n, H, V, K }, i ? POSITIVE : NORMAL, 0, 8 + i);
            x->next[i] = fresh(F32, 0, { s->n, H, V, K });
            g->state[i] = fresh(F32, 0, { s->n, H, V, K });
        }
        if (c->gnext)
            g->next[i] = made(F32, 0, { s->n, H, V, K }, NORMAL, 0, 11 + i);
        if (s->longest > 1)
            x->saved[i] = fresh(F32, 0, { seqs_tiles(s), H, V, K });
    }
    if (c->var) {
        x->var = fresh(F32, 0, { T, H, V });
        g->var = made(F32, 0, { T, H, V }, NORMAL, 0, 10);
    }
}

static bool drive(struct dev *d, const struct drive *c, bool verify, bool time)
{
    const int64_t T = c->T, H = c->H, K = c->K, V = c->V;
    const std::vector<int32_t> start = cut(c);
    struct seqs s = seqs_of(start.data(), c->docs);
    std::vector<int32_t> seq(T);
    struct scan_io x = {}, g = {};
    void *scratch;
    bool ok = true;

    for (int n = 0; n < s.n; n++)
        std::fill(seq.begin() + start[n], seq.begin() + start[n + 1], n);
    int32_t *dstart = (int32_t *)fresh(F32, 0, { s.n + 1 }).data, *dseq = (int32_t *)fresh(F32, 0, { T }).data;
    CUDA(cudaMemcpy(dstart, start.data(), start.size() * 4, cudaMemcpyHostToDevice));
    CUDA(cudaMemcpy(dseq, seq.data(), seq.size() * 4, cudaMemcpyHostToDevice));
    s.dstart = dstart, s.dseq = dseq;

    make_io(c, &s, &x, &g);
    const int64_t f = palimpsa_cuda.scratch(d, &s, &x, false), b = palimpsa_cuda.scratch(d, &s, &x, true);
    scratch = fresh(F32, 0, { std::max(f, b) / 4 + 1 }).data;

    if (s.longest == 1)                 /* only the reference reads what is left */
        g.q.data = g.k.data = g.v.data = g.beta.data = g.decay.data = g.prior[0].data = g.state[0].data =
            g.state[1].data = NULL;
    const uint64_t first = run(d, &s, &x, &g, scratch, verify);
    const uint64_t second = verify ? run(d, &s, &x, &g, scratch, true) : 0;
    if (verify)
        ok = check(c, &s, &x, &g);
    if (verify && first != second) {
        printf("%-8s the second run gave other bits: WRONG\n", c->name);
        ok = false;
    }
    if (c->bench && time) {
        printf("%-8s T%ld H%ld K%ld V%ld docs %d:", c->name, (long)T, (long)H, (long)K, (long)V, c->docs);
        for (int what = 0; what < 4; what++)
            printf(" %s %.3f", ways[what], timed(d, &s, x, &g, scratch, what));
        printf(" ms (scratch %.2f GB)\n", (double)std::max(f, b) / 1e9);
    }
    fflush(stdout);
    for (void *p : owned)
        CUDA(cudaFree(p));
    owned.clear();
    return ok;
}

int main(int argc, char **argv)
{
    struct cuda cuda = {};
    struct dev d = {};
    bool ok = true;

    CUDA(cudaStreamCreate(&cuda.stream));
    CUDA(cudaDeviceGetAttribute(&cuda.sms, cudaDevAttrMultiProcessorCount, 0));
    CUDA(cudaDeviceGetAttribute(&cuda.shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
    CUDA(cudaMalloc((void **)&sums, 64));
    d.kind = DEV_CUDA;
    d.priv = &cuda;
    for (const struct drive &c : drives) {
        bool wanted = argc < 2;
        bool verify = true, time = true;
        for (int i = 1; i < argc; i++) {
            wanted |= !strcmp(argv[i], c.name) || !strcmp(argv[i], c.bench ? "bench" : "check");
            wanted |= c.bench && !strcmp(argv[i], "time");
            verify &= strcmp(argv[i], "time") && strcmp(argv[i], "fast") && strcmp(argv[i], "once");
            time   &= strcmp(argv[i], "once") != 0;
        }
        if (wanted)
            ok &= drive(&d, &c, verify, time);
    }
    printf(ok ? "all ok\n" : "SOMETHING IS WRONG\n");
    return ok ? 0 : 1;
}
