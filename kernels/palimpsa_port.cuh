/* palimpsa_port.cuh - the porters of palimpsa_reverse.cu: they plan each tile, bring its tokens in fp32 and
 * carry away the walkers' sums. They never hold up walkers by more than one step of tokens. */
#ifndef PALIMPSA_PORT_CUH
#define PALIMPSA_PORT_CUH
#include "palimpsa_reverse.cuh"

#define LOSS 6.f        /* blocks are cut so that exp(-decay) grows rounding errors by about e^6, at most e^9 */

template <class F> __device__ inline int porter(void) { return (threadIdx.x - 32 * WALKERS) % F::PT; }

template <class F>
__device__ inline void porters_meet(int barrier)
{
    if (F::porters == 1)
        __syncwarp();
    else
        asm volatile("bar.sync %0, %1;" :: "r"(barrier), "n"(F::PT) : "memory");
}

/* Where a lane's columns of one token lie among pairs: every second pair of pairs is turned for KT == 8, so that
 * the four j of a warp touch different banks. */
template <class F> __device__ inline int turned(int n, int j) { return 2 * (F::KT == 8 ? n ^ (j >> 1 & 1) * 2 : n); }

template <class F>
__device__ void open_unit(struct unit<F> *u)
{
    for (int i = 0; i < 2; i++) {
        barrier_open(&u->full[i], F::porters);
        barrier_open(&u->used[i], F::walkers);
        barrier_open(&u->summed[i], F::walkers);
        barrier_open(&u->cleared[i], F::porters);
    }
}

/* Which tile is next, and what the porter warp that plans remembers of its segment. */
struct route { int64_t tile, first; int h, v0, part, segment; float sum; bool open, work; };

template <class F>
__device__ void route_next(struct route *y, const struct tiled &w)
{
    const int64_t parts = w.V / F::BV;
    int job = 0;

    if (y->work && --y->tile >= y->first)
        return;
    if (threadIdx.x % 32 == 0)
        job = atomicAdd(w.next, 1);
    job = __shfl_sync(~0u, job, 0);
    y->work = job < w.segments * w.H * parts;
    y->part = (int)(job % parts);
    y->v0 = y->part * F::BV;
    y->h = (int)(job / parts % w.H);
    y->segment = (int)(job / parts / w.H);
    y->first = y->segment * (w.segment / TILE);
    y->tile = min(y->first + w.segment / TILE, (w.T + TILE - 1) / TILE) - 1;
    y->sum = 0.f;
    y->open = false;
}

/* Suffix sums of a over a tile's 64 tokens, lane l having tokens l and l + 32. */
__device__ inline void suffix(float a[2])
{
    const int lane = threadIdx.x % 32;

    for (int o = 1; o < 32; o *= 2) {
        const float y0 = __shfl_down_sync(~0u, a[0], o), y1 = __shfl_down_sync(~0u, a[1], o);
        if (lane + o < 32)
            a[0] += y0, a[1] += y1;
    }
    a[0] += __shfl_sync(~0u, a[1], 0);
}

/* Does a block end with the lane's tokens? u: decay from after a token to the tile's end. Blocks are whole steps whose
 * decay falls into one bucket of LOSS; a step that decays by more than LOSS / 2 stands alone, by more than LOSS is cut. */
__device__ inline uint64_t block_ends(const float u[2])
{
    const int lane = threadIdx.x % 32;
    float d[2];
    int bucket[2], inner[2];
    bool end[2];

    for (int z = 0; z < 2; z++) {
        const float from = __shfl_sync(~0u, u[z], lane & 24), to = __shfl_sync(~0u, u[z], lane | 7);
        d[z] = from - to;
        bucket[z] = (int)(from * (1.f / LOSS));
        inner[z] = d[z] > LOSS ? (int)((u[z] - to) * (1.f / LOSS)) : 0;
    }
    const int   b1 = __shfl_sync(~0u, bucket[1], lane & 7);
    const float d1 = __shfl_sync(~0u, d[1], lane & 7);
    for (int z = 0; z < 2; z++) {
        int   bn = __shfl_down_sync(~0u, bucket[z], 8), in = __shfl_down_sync(~0u, inner[z], 1);
        float dn = __shfl_down_sync(~0u, d[z], 8);
        if (z == 0 && lane >= 24)
            bn = b1, dn = d1;
        if (lane % 8 < 7)
            end[z] = inner[z] != in;
        else
            end[z] = (z == 1 && lane == 31) || bucket[z] != bn || d[z] > LOSS / 2 || dn > LOSS / 2;
    }
    return (uint64_t)__ballot_sync(~0u, end[1]) << 32 | __ballot_sync(~0u, end[0]);
}

/* Plans the next tile; one warp. */
template <class F>
__device__ void make_plan(struct plan *p, struct route *y, const struct scan_io &x, const struct tiled &w)
{
    const int lane = threadIdx.x % 32;
    float own[2], u[2];
    bool open[2];

    route_next<F>(y, w);
    if (lane == 0)
        p->work = y->work;
    if (!y->work)
        return;
    for (int z = 0; z < 2; z++) {
        const int64_t t = y->tile * TILE + lane + 32 * z;
        own[z] = u[z] = forgetting(x, t, y->h);
        open[z] = opens(w.docs, t, w.T);
    }
    suffix(u);
    const float total = __shfl_sync(~0u, u[0], 0);
    u[0] -= own[0], u[1] -= own[1];
    const uint64_t begin = (uint64_t)__ballot_sync(~0u, open[1]) << 32 | __ballot_sync(~0u, open[0]);
    const uint64_t ends = block_ends(u) | begin >> 1;
    for (int z = 0; z < 2; z++) {
        const int s = lane + 32 * z, e = __ffsll(ends >> s) - 1 + s;
        const float a = __shfl_sync(~0u, u[0], e & 31), b = __shfl_sync(~0u, u[1], e & 31), last = e < 32 ? a : b;
        p->m[s] = expf(last - u[z]);
        p->enter[s] = expf(last - u[z] - own[z]);
    }
    y->sum += total;
    y->open |= begin != 0;
    unsigned keep = 0;
    for (int n = 1; n < STEPS; n++)         /* a block ends right before the step or inside it */
        keep |= (unsigned)((ends >> (STEP * n - 1) & 0xff) != 0) << n;
    if (lane == 0) {
        p->ends = ends, p->opens = begin, p->keep = keep;
        p->sweep = (y->tile + 1) * TILE < w.T ? 31 - __clz(keep | 1) : STEPS;
        p->t0 = y->tile * TILE;
        p->h = y->h, p->v0 = y->v0, p->segment = y->segment, p->part = y->part;
        p->first = (y->tile + 1) * TILE >= min((y->segment + 1) * w.segment, w.T);
        p->last = y->tile == y->first;
        if (p->last && y->part == 0)
            w.grad_kept[y->segment * w.H + y->h] = y->open ? 0.f : expf(-y->sum);
    }
}

/* Fetches step n of a tile; `all`: also what only the way back needs. */
template <class F>
__device__ void start_fetch(struct raw_step<F> *to, const struct plan *p, const struct scan_io &x, const struct scan_io &g,
                            int n, bool all)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;

    for (int i = porter<F>(); i < STEP * KC; i += F::PT) {
        const int64_t row = p->t0 + n * STEP + i / KC, t = row < x.v.dim[0] ? row : 0;
        fetch(to->k + i, key_at<bf16>(x, t, p->h) + i % KC * 8, row == t);
        if (all)
            fetch(to->q + i, query_at<bf16>(x, t, p->h) + i % KC * 8, row == t);
    }
    for (int i = porter<F>(); i < STEP * VC; i += F::PT) {
        const int64_t row = p->t0 + n * STEP + i / VC, t = row < x.v.dim[0] ? row : 0;
        fetch(to->v + i, head_at<bf16>(x.v, t, p->h) + p->v0 + i % VC * 8, row == t);
        fetch(to->b + i, head_at<bf16>(x.beta, t, p->h) + p->v0 + i % VC * 8, row == t);
        if (all)
            fetch(to->g + i, head_at<bf16>(g.o, t, p->h) + p->v0 + i % VC * 8, row == t && g.o.data);
    }
}

__device__ inline void put8(float *to, const float a[8])
{
    *(float4 *)to = make_float4(a[0], a[1], a[2], a[3]);
    *(float4 *)(to + 4) = make_float4(a[4], a[5], a[6], a[7]);
}

template <class F>
__device__ void convert(struct step<F> *to, const struct raw_step<F> *from, const struct plan *p, float scale, int n, bool all)
{
    constexpr int KC = F::K / 8, VC = F::BV / 8;
    float a[8], b[8];

    for (int i = porter<F>(); i < STEP * KC; i += F::PT) {
        const int r = i / KC, c = i % KC;
        unpack(a, from->k[i]);
        for (int e = 0; e < 8; e += 2)
            *(float4 *)&to->key[r][c * 16 + turned<F>(e, c)] =
                make_float4(.5f * a[e] * a[e], a[e], .5f * a[e + 1] * a[e + 1], a[e + 1]);
        if (all) {
            unpack(a, from->q[i]);
            put8(&to->query[r][c * 8], a);
        }
    }
    for (int i = porter<F>(); i < STEP * VC; i += F::PT) {
        const int r = i / VC, c = i % VC;
        const float m = p->m[n * STEP + r];
        unpack(a, from->v[i]);
        unpack(b, from->b[i]);
        for (int e = 0; e < 8; e += 2)
            *(float4 *)&to->value[r][c * 16 + 2 * e] = make_float4(2.f * m * b[e], m * a[e], 2.f * m * b[e + 1], m * a[e + 1]);
        if (all) {
            unpack(a, from->g[i]);
            for (int e = 0; e < 8; e++)
                a[e] *= scale;
            put8(&to->grad[r][c * 8], a);
        }
    }
}

__device__ inline float4 sum4(const float *from, int count, int stride)
{
    float4 a = *(const float4 *)from;

    for (int i = 1; i < count; i++) {
        const float4 b = *(const float4 *)(from + i * stride);
        a.x += b.x, a.y += b.y, a.z += b.z, a.w += b.w;
    }
    return a;
}

/* Two columns of dq or dk of token t: to the output, or to this part's place in scratch. */
__device__ inline void put_cols(const struct tensor &to, float *part, int64_t t, int64_t h, int64_t H, int64_t K, int col,
                                float a, float b)
{
    if (part)
        *(float2 *)(part + (t * H + h) * K + col) = make_float2(a, b);
    else if (to.data)
        *(uint32_t *)(head_at<bf16>(to, t, h) + col) = pair(a, b);
}

/* Carries away the sums of PART tokens from s on. run: ddecay of the token after them, then of token s. */
template <class F>
__device__ void carry(struct unit<F> *u, const struct step<F> *st, const struct sums<F> *from, const struct plan *p,
                      const struct scan_io &x, const struct scan_io &g, const struct tiled &w, int s, int job, int barrier,
                      float *run)
{
    const int64_t t0 = p->t0 + s, block = (int64_t)p->part * w.T * w.H;
    const int me = porter<F>();
    float y[PART] = {};

#pragma unroll 1
    for (int i = me; i < PART * F::K / 2; i += F::PT) {
        const int z = i / (F::K / 2), c = i % (F::K / 2);
        const float4 a = sum4(&from->col[z][0][4 * (F::KT == 8 ? c ^ (c >> 3 & 1) : c)], 8 * F::VW, F::KP);
        if (t0 + z >= w.T)
            continue;
        put_cols(g.q, w.dq ? w.dq + block * F::K : NULL, t0 + z, p->h, w.H, F::K, 2 * c, a.x, a.z);
        put_cols(g.k, w.dk ? w.dk + block * F::K : NULL, t0 + z, p->h, w.H, F::K, 2 * c, a.y, a.w);
    }
#pragma unroll 1
    for (int i = me; i < PART * F::BV / 2; i += F::PT) {
        const int z = i / (F::BV / 2), c = i % (F::BV / 2);
        const float4 a = sum4(&from->row[z][0][4 * c], 4 * F::KS, F::VP);
        const float4 v = *(const float4 *)&st->value[s % STEP + z][4 * c];
        const float  m = p->m[s + z];
        const float  own = a.x * v.x + a.y * v.y + a.z * v.z + a.w * v.w;
        y[0] -= z ? 0.f : own, y[1] -= z ? own : 0.f;
        if (t0 + z >= w.T)
            continue;
        if (g.v.data)
            *(uint32_t *)(head_at<bf16>(g.v, t0 + z, p->h) + p->v0 + 2 * c) = pair(m * a.y, m * a.w);
        if (g.beta.data)
            *(uint32_t *)(head_at<bf16>(g.beta, t0 + z, p->h) + p->v0 + 2 * c) = pair(2.f * m * a.x, 2.f * m * a.z);
    }
    for (int z = 0; z < PART; z++) {
        for (int i = me; i < 32 * F::walkers; i += F::PT)
            y[z] += from->all[z][i];
        y[z] = warp_sum(y[z]);
    }
    if (F::porters > 1) {
        for (int z = 0; z < PART && me % 32 == 0; z++)
            u->part[job % 2][z][me / 32] = y[z];
        porters_meet<F>(barrier);
        for (int z = 0; z < PART; z++) {
            y[z] = u->part[job % 2][z][0];
            for (int i = 1; i < F::porters; i++)
                y[z] += u->part[job % 2][z][i];
        }
    }
    for (int z = PART - 1; z >= 0; z--) {
        *run = (p->ends >> (s + z) & 1 ? 0.f : *run) + y[z];
        const bool empty = p->opens >> (s + z) & 1 && !x.state[0].data;
        if (me != 0 || t0 + z >= w.T)
            continue;
        if (w.decay)
            w.decay[block + (t0 + z) * w.H + p->h] = empty ? 0.f : *run;
        else if (g.decay.data)
            *head_at<float>(g.decay, t0 + z, p->h) = empty ? 0.f : *run;
    }
}

template <class F>
__device__ void port(struct unit<F> *u, const struct scan_io &x, const struct scan_io &g, const struct tiled &w, int barrier)
{
    struct route route = {};
    float run = 0.f;
    int turn = 0, job = 0, last_n = 0;      /* steps so far, parts carried so far; step of the tile that was walked last */
    bool carrying = false;

    if (porter<F>() < 32)
        make_plan<F>(&u->plan[0], &route, x, w);
    porters_meet<F>(barrier);
    for (int tile = 0;; tile++) {
        const struct plan *p = &u->plan[tile % 2], *next = &u->plan[(tile + 1) % 2];
        const int count = p->work ? p->sweep + STEPS : 1;
        if (tile == 0 && p->work)
            start_fetch<F>(&u->raw[0], p, x, g, p->sweep ? 0 : STEPS - 1, !p->sweep);
        for (int i = 0; i < count; i++, turn++) {
            const int n = i < p->sweep ? i : STEPS - 1 - (i - p->sweep);
            fetched();
            porters_meet<F>(barrier);
            if (p->work && i + 1 < count)
                start_fetch<F>(&u->raw[(turn + 1) % 2], p, x, g, i + 1 < p->sweep ? i + 1 : STEPS - 1 - (i + 1 - p->sweep),
                               i + 1 >= p->sweep);
            else if (p->work && next->work)
                start_fetch<F>(&u->raw[(turn + 1) % 2], next, x, g, next->sweep ? 0 : STEPS - 1, !next->sweep);
            barrier_wait(&u->used[turn % 2], turn / 2 + 1);
            if (p->work)
                convert<F>(&u->step[turn % 2], &u->raw[turn % 2], p, x.scale, n, i >= p->sweep);
            barrier_arrive(&u->full[turn % 2]);
            for (int s = last_n * STEP + STEP - PART; carrying && s >= last_n * STEP; s -= PART, job++) {
                barrier_wait(&u->summed[job % 2], job / 2);
                carry<F>(u, &u->step[(turn + 1) % 2], &u->sums[job % 2], i ? p : &u->plan[(tile + 1) % 2], x, g, w, s, job,
                         barrier, &run);
                barrier_arrive(&u->cleared[job % 2]);
            }
            carrying = p->work && i >= p->sweep;
            last_n = n;
            if (i == 2 && porter<F>() < 32)         /* walkers are in this tile: the plan before it is free */
                make_plan<F>(&u->plan[(tile + 1) % 2], &route, x, w);
        }
        if (!p->work)
            return;
    }
}
#endif
