/* palimpsa_states.cu - the memory at the start of every span, on tensor cores.
 *
 * With f_t the share of token t's write that is left at its chunk's end, a chunk of tokens adds
 *
 *   M += v' (f k)     J += b' (f k*k)
 *
 * v and b enter as they are, f k and f k*k in two bf16 parts. A block owns a span of one head and BV rows of the
 * memory, each warp 16 rows and all columns; it carries the memory from chunk to chunk. What is left is a scan over
 * the few spans. */
#include "palimpsa_mma.cuh"

enum { STAGE = 32, CHUNK = TILE, CHUNKS = 16 };  /* tokens staged at a time; of a chunk; chunks of a span at most */

template <int K, int BV> struct span_shared {
    bf16  key[4][STAGE][K + 8];         /* f k high and low, f k*k high and low */
    bf16  value[2][2][STAGE][BV + 8];   /* v and b, twice: one used, one on its way */
    float share[CHUNKS * CHUNK];          /* f */
    float kept[CHUNKS];                   /* of the memory before a chunk at its end */
    float carried[CHUNKS];               /* of the memory a document brings along, likewise */
    int   doc[CHUNKS];                    /* the last document that begins in the chunk, -1: none */
};

/* One warp a tile. */
__global__ void openings_kernel(struct tiled w, uint64_t *bits)
{
    const int64_t tile = blockIdx.x, t = tile * TILE + threadIdx.x;
    const unsigned a = __ballot_sync(~0u, t < w.T ? begins(w.docs, t) : t == w.T);
    const unsigned b = __ballot_sync(~0u, t + 32 < w.T ? begins(w.docs, t + 32) : t + 32 == w.T);

    if (threadIdx.x == 0)
        bits[tile] = (uint64_t)b << 32 | a;
}

void palimpsa_openings(struct dev *d, const struct tiled *w)
{
    openings_kernel<<<(unsigned)ceil_div(w->T, TILE), 32, 0, stream_of(d)>>>(*w, (uint64_t *)w->opens);
    CUDA(cudaGetLastError());
}

/* The f of one chunk, by one warp: from the last token back. */
template <int K, int BV>
__device__ void chunk_shares(struct span_shared<K, BV> *sh, const struct scan_io &x, const struct tiled &w,
                             int64_t from, int c, int h)
{
    const int lane = threadIdx.x % 32;
    const uint64_t bits = w.opens[from / CHUNK];
    float after = 0.f;
    bool open = false;

    if (lane == 0)
        sh->doc[c] = -1;
    __syncwarp();
#pragma unroll
    for (int g = CHUNK / 32 - 1; g >= 0; g--) {
        const int64_t t = from + g * 32 + lane;
        const unsigned mask = (unsigned)(bits >> 32 * g);
        const bool  begin = mask >> lane & 1 && t < w.T;
        const float own = forgetting(x, t, h);
        float s = own;
        for (int o = 1; o < 32; o *= 2) {
            const float y = __shfl_down_sync(~0u, s, o);
            s += lane + o < 32 ? y : 0.f;
        }
        const bool later = open || (mask >> lane) >> 1;
        sh->share[c * CHUNK + g * 32 + lane] = later ? 0.f : expf(-(after + s - own));
        if (begin && !later) {
            sh->doc[c] = w.docs.seq[t];
            sh->carried[c] = expf(-(after + s));
        }
        open |= mask != 0;
        after += __shfl_sync(~0u, s, 0);
    }
    if (lane == 0)
        sh->kept[c] = open ? 0.f : expf(-after);
}

template <int K, int BV>
__device__ void fetch_values(struct span_shared<K, BV> *sh, const struct scan_io &x, int64_t from, int h, int v0,
                             int slot)
{
    for (int i = threadIdx.x; i < STAGE * BV / 8; i += 2 * BV) {
        const int r = i / (BV / 8), c = i % (BV / 8) * 8;
        const int64_t t = from + r;
        const bool there = t < x.v.dim[0];
        fetch(&sh->value[slot][0][r][c], head_at<bf16>(x.v, there ? t : 0, h) + v0 + c, there);
        fetch(&sh->value[slot][1][r][c], head_at<bf16>(x.beta, there ? t : 0, h) + v0 + c, there);
    }
}

template <int K, int BV> struct keys { uint4 at[(STAGE * K / 8 + 2 * BV - 1) / (2 * BV)]; };

template <int K, int BV>
__device__ void load_keys(struct keys<K, BV> *y, const struct scan_io &x, int64_t from, int h)
{
#pragma unroll
    for (int n = 0; n < (int)LEN(y->at); n++) {
        const int i = threadIdx.x + n * 2 * BV;
        const int64_t t = from + i / (K / 8);
        if (i < STAGE * K / 8)
            y->at[n] = t < x.v.dim[0] ? *(const uint4 *)(key_at<bf16>(x, t, h) + i % (K / 8) * 8)
                                      : make_uint4(0, 0, 0, 0);
    }
}

template <int K, int BV>
__device__ void split_keys(struct span_shared<K, BV> *sh, const struct keys<K, BV> *y, int stage)
{
#pragma unroll
    for (int n = 0; n < (int)LEN(y->at); n++) {
        const int i = threadIdx.x + n * 2 * BV, r = i / (K / 8), c = i % (K / 8) * 8;
        float k[8], fk[8];
        if (i >= STAGE * K / 8)
            continue;
        unpack(k, y->at[n]);
        for (int e = 0; e < 8; e++) {
            fk[e] = k[e] * sh->share[stage * STAGE + r];
            k[e] *= fk[e];
        }
        split(&sh->key[0][r][c], &sh->key[1][r][c], fk);
        split(&sh->key[2][r][c], &sh->key[3][r][c], k);
    }
}

/* A warp's 16 rows of the memory: [k/16][v/8][4]. */
template <int K> struct rows { float M[K / 16][2][4], J[K / 16][2][4]; };

template <int K, int BV>
__device__ void add_stage(struct rows<K> *s, const struct span_shared<K, BV> *sh, int slot)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, q = lane / 8, r = lane % 8;

#pragma unroll
    for (int k0 = 0; k0 < STAGE; k0 += 16) {
        const int row = k0 + (q & 1) * 8 + r, col = warp * 16 + (q >> 1) * 8;
        const struct frag v = blocks_turned(&sh->value[slot][0][row][col]);
        const struct frag b = blocks_turned(&sh->value[slot][1][row][col]);
#pragma unroll
        for (int m = 0; m < K / 16; m++) {
            struct frag part[4];
            for (int p = 0; p < 4; p++)
                part[p] = blocks_turned(&sh->key[p][k0 + (q >> 1) * 8 + r][m * 16 + (q & 1) * 8]);
            for (int n = 0; n < 2; n++) {
                mma(s->M[m][n], part[0], v.at[2 * n], v.at[2 * n + 1]);
                mma(s->J[m][n], part[2], b.at[2 * n], b.at[2 * n + 1]);
                mma(s->M[m][n], part[1], v.at[2 * n], v.at[2 * n + 1]);
                mma(s->J[m][n], part[3], b.at[2 * n], b.at[2 * n + 1]);
            }
        }
    }
}

/* s *= keep; then, when a document brought a memory along, s += carried * that memory. */
template <int K>
__device__ void rows_scale(struct rows<K> *s, float keep)
{
#pragma unroll
    for (int i = 0; i < K / 16 * 8; i++) {
        s->M[i / 8][i / 4 % 2][i % 4] *= keep;
        s->J[i / 8][i / 4 % 2][i % 4] *= keep;
    }
}

template <int K>
__device__ void rows_bring(struct rows<K> *s, const struct scan_io &x, int doc, int h, int v0, float carried)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < K / 16 * 8; i++) {
        const int k = i / 8 * 16 + lane / 4 + i % 4 / 2 * 8, v = v0 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
        s->M[i / 8][i / 4 % 2][i % 4] += carried * memory_at(x.state[0], doc, h, v)[k];
        s->J[i / 8][i / 4 % 2][i % 4] += carried * memory_at(x.state[1], doc, h, v)[k];
    }
}

template <int K>
__device__ void rows_store(const struct rows<K> *s, float *to, int v0)
{
    const int lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < K / 16 * 8; i++) {
        const int k = i / 8 * 16 + lane / 4 + i % 4 / 2 * 8, v = v0 + i / 4 % 2 * 8 + lane % 4 * 2 + i % 2;
        ((float2 *)to)[v * K + k] = make_float2(s->M[i / 8][i / 4 % 2][i % 4], s->J[i / 8][i / 4 % 2][i % 4]);
    }
}

template <int K, int BV>
__global__ void __launch_bounds__(2 * BV) span_kernel(struct scan_io x, struct tiled w)
{
    extern __shared__ __align__(16) char shared[];
    struct span_shared<K, BV> *sh = (struct span_shared<K, BV> *)shared;
    const int64_t span = blockIdx.x, h = blockIdx.z, from = span * w.span_tokens;
    const int warp = threadIdx.x / 32, v0 = blockIdx.y * BV;
    const int count = (int)((min(w.span_tokens, w.T - from) + CHUNK - 1) / CHUNK);
    struct rows<K> s = {};
    struct keys<K, BV> next;
    float kept = 1.f;

    if (opens(w, from + w.span_tokens)) {       /* nobody reads on from its end */
        rows_store(&s, w.span + (span * w.H + h) * w.V * K * 2, v0 + warp * 16);
        if (threadIdx.x == 0 && v0 == 0)
            w.kept[span * w.H + h] = 0.f;
        return;
    }
    load_keys(&next, x, from, h);
    fetch_values(sh, x, from, h, v0, 0);
    for (int c = warp; c < count; c += BV / 16)
        chunk_shares(sh, x, w, from + c * CHUNK, c, h);
    __syncthreads();
    for (int st = 0; st < count * CHUNK / STAGE; st++) {
        const int c = st / (CHUNK / STAGE);
        split_keys(sh, &next, st);
        fetched();
        __syncthreads();
        if (st + 1 < count * CHUNK / STAGE) {
            load_keys(&next, x, from + (st + 1) * STAGE, h);
            fetch_values(sh, x, from + (st + 1) * STAGE, h, v0, (st + 1) % 2);
        }
        if (st % (CHUNK / STAGE) == 0 && st)
            rows_scale(&s, sh->kept[c]);
        add_stage(&s, sh, st % 2);
        if (st % (CHUNK / STAGE) == CHUNK / STAGE - 1) {
            kept *= sh->kept[c];
            if (sh->doc[c] >= 0 && x.state[0].data)
                rows_bring(&s, x, sh->doc[c], h, v0 + warp * 16, sh->carried[c]);
        }
        __syncthreads();
    }
    rows_store(&s, w.span + (span * w.H + h) * w.V * K * 2, v0 + warp * 16);
    if (threadIdx.x == 0 && v0 == 0)
        w.kept[span * w.H + h] = kept;
}

/* From what each piece adds (n floats a head) to what comes into it; in reverse from the last piece back. Every
 * `period` pieces stand alone. Eight loads are under way at a time. */
__global__ void chain_kernel(float4 *edge, const float *kept, int64_t n, int64_t period, int64_t count, bool reverse)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, H = gridDim.z, h = blockIdx.z;
    const int64_t first = blockIdx.y * period, last = min(first + period, count) - 1;
    float4 run = make_float4(0.f, 0.f, 0.f, 0.f);
    if (i >= n)
        return;

    for (int64_t j0 = 0; j0 <= last - first; j0 += 8) {
        float4 add[8];
        float keep[8];
#pragma unroll
        for (int u = 0; u < 8; u++)
            if (j0 + u <= last - first) {
                const int64_t c = reverse ? last - j0 - u : first + j0 + u;
                add[u]  = edge[(c * H + h) * n + i];
                keep[u] = kept[c * H + h];
            }
#pragma unroll
        for (int u = 0; u < 8; u++)
            if (j0 + u <= last - first) {
                const int64_t c = reverse ? last - j0 - u : first + j0 + u;
                edge[(c * H + h) * n + i] = run;
                run.x = keep[u] * run.x + add[u].x, run.y = keep[u] * run.y + add[u].y;
                run.z = keep[u] * run.z + add[u].z, run.w = keep[u] * run.w + add[u].w;
            }
    }
}

void palimpsa_chain(struct dev *d, const struct tiled *w, float *edge, const float *kept, int64_t n, int64_t count,
                    bool reverse)
{
    const dim3 grid((unsigned)ceil_div(n / 4, 128), (unsigned)ceil_div(count, w->period), (unsigned)w->H);

    chain_kernel<<<grid, 128, 0, stream_of(d)>>>((float4 *)edge, kept, n / 4, w->period, count, reverse);
    CUDA(cudaGetLastError());
}

template <int K, int BV>
static void launch(struct dev *d, const struct scan_io *x, const struct tiled *w)
{
    const int  bytes = sizeof(struct span_shared<K, BV>);
    const dim3 grid((unsigned)w->spans, (unsigned)(w->V / BV), (unsigned)w->H);

    CUDA(cudaFuncSetAttribute(span_kernel<K, BV>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    span_kernel<K, BV><<<grid, 2 * BV, bytes, stream_of(d)>>>(*x, *w);
    CUDA(cudaGetLastError());
}

void palimpsa_span_states(struct dev *d, const struct scan_io *x, const struct tiled *w)
{
    switch (x->k.dim[2]) {
    case 16:  launch<16, 32>(d, x, w);  break;
    case 48:  launch<48, 48>(d, x, w);  break;
    case 64:  launch<64, 32>(d, x, w);  break;
    case 96:  launch<96, 48>(d, x, w);  break;
    case 128:
        if (w->V % 64 == 0)
            launch<128, 64>(d, x, w);
        else
            launch<128, 32>(d, x, w);
        break;
    default:  BUG("no span kernel for K = %d", (int)x->k.dim[2]);
    }
    palimpsa_chain(d, w, w->span, w->kept, 2 * w->V * x->k.dim[2], w->spans, false);
}
