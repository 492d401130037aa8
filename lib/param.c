/* param.c - buckets: where every weight lies, how it starts, who owns which slice. */
#include "half.h"
#include "op.h"
#include "param.h"
#include "rng.h"
#include <math.h>

enum { PARAM_ALIGN = 64,        /* elements: 256 bytes of F32, so that every weight suits SIMD and the GPU */
       PIECE = 1 << 22 };       /* elements that are drawn at a time */

float draw_const(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    (void)seed, (void)stream, (void)i;
    return p->a;
}

float draw_normal(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    return (float)(p->a + p->b * rng_normal(seed, stream, (uint64_t)i));
}

float draw_uniform(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    return (float)(p->a + (p->b - p->a) * rng_uniform(seed, stream, (uint64_t)i));
}

/* Half a unit of the last place keeps the logarithm finite when a is 0. */
float draw_log_uniform(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    double u = rng_uniform(seed, stream, (uint64_t)i) + 0x1p-54;

    return (float)log(p->a + (p->b - p->a) * u);
}

static float softplus_inverse(double dt, double least)
{
    dt = dt < least ? least : dt;
    return (float)(dt + log(-expm1(-dt)));
}

float draw_dt_bias(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    double u = rng_uniform(seed, stream, (uint64_t)i);

    return softplus_inverse(exp(log(p->a) + (log(p->b) - log(p->a)) * u), p->c);
}

/* From a at the first element to b at the last. */
static double ramp(double a, double b, int64_t i, const struct param *p)
{
    int64_t n = tensor_count(p->value);

    return a + (b - a) * (n > 1 ? (double)i / (double)(n - 1) : 0);
}

float draw_log_ramp(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    (void)seed, (void)stream;
    return (float)log(ramp(p->a, p->b, i, p));
}

float draw_dt_ramp(uint64_t seed, uint64_t stream, int64_t i, const struct param *p)
{
    (void)seed, (void)stream;
    return softplus_inverse(ramp(p->b, p->a, i, p), p->c);
}

int params_add(struct params *p, struct param like)
{
    if (p->n == p->cap) {
        p->cap = p->cap ? 2 * p->cap : 64;
        p->at = mem_grow(p->at, (size_t)p->cap, sizeof *p->at);
    }
    if (like.flags & PARAM_UNUSED)
        like.flags |= PARAM_FROZEN;
    if (like.flags & PARAM_F32)
        like.bucket = BUCKET_F32;
    p->at[p->n] = like;
    return p->n++;
}

/* The order inside a bucket. */
enum { DECAYED, DECAYED_GAIN, BARE_GAIN, BARE, FROZEN, GROUPS };

static int param_group(const struct params *p, const struct param *a)
{
    bool bare = (a->flags & PARAM_NO_DECAY) && !p->decay_all;

    if (a->flags & PARAM_FROZEN)
        return FROZEN;
    return a->flags & PARAM_GAIN ? (bare ? BARE_GAIN : DECAYED_GAIN) : bare ? BARE : DECAYED;
}

/* Notes where the groups so far end. */
static void set_cuts(struct bucket *k, int group)
{
    if (group == DECAYED)
        k->gain[0] = k->count;
    if (group <= DECAYED_GAIN)
        k->decayed = k->count;
    if (group <= BARE_GAIN)
        k->gain[1] = k->count;
    if (group <= BARE)
        k->trained = k->count;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

void params_layout(struct params *p, enum dtype type, int world)
{
    p->nbucket = 0;
    for (int i = 0; i < p->n; i++)
        if (p->at[i].bucket >= p->nbucket)
            p->nbucket = p->at[i].bucket + 1;
    free(p->bucket);
    p->bucket = mem_new((size_t)p->nbucket, sizeof *p->bucket);
    for (int group = 0; group < GROUPS; group++) {
        for (int i = 0; i < p->n; i++) {
            struct param *a = &p->at[i];
            if (param_group(p, a) != group)
                continue;
            a->offset = p->bucket[a->bucket].count;
            p->bucket[a->bucket].count += round_up(tensor_count(a->value), PARAM_ALIGN);
        }
        for (int b = 0; b < p->nbucket; b++)
            set_cuts(&p->bucket[b], group);
    }
    for (int b = 0; b < p->nbucket; b++) {
        struct bucket *k = &p->bucket[b];
        k->slice = round_up((k->trained + world - 1) / world, PARAM_ALIGN);
        k->count = k->slice * world > k->count ? k->slice * world : k->count;
        k->state = k->trained < k->slice ? k->trained : k->slice;
        k->value = SHAPE(b == BUCKET_F32 ? F32 : type, k->count);
        k->grad = SHAPE(F32, b == BUCKET_F32 ? k->count : k->slice * world);
        k->master = k->m = k->v = SHAPE(F32, k->state);
    }
}

void params_bytes(const struct params *p, enum dtype type, bool optim, size_t bytes[3])
{
    bytes[0] = bytes[1] = bytes[2] = 0;
    for (int b = 0; b < p->nbucket; b++) {
        const struct bucket *k = &p->bucket[b];
        bool master = optim && k->value.type != F32;
        bytes[0] += (size_t)k->count * dtype_size(b == BUCKET_F32 ? F32 : type);
        bytes[1] += (size_t)tensor_count(k->grad) * 4;
        bytes[2] += optim ? (size_t)k->state * 4 * (master ? 3 : 2) : 0;
    }
}

/* One device allocation for tensors of n elements; *end walks through it. */
static bool storage(struct dev *d, void **memory, size_t bytes)
{
    if (bytes && !(*memory = op_alloc(d, bytes)))
        return false;
    return true;
}

static void take(char **at, struct tensor *t)
{
    t->data = *at;
    *at += (size_t)tensor_count(*t) * dtype_size(t->type);
}

static int params_memory(struct params *p, struct dev *d, bool learn, bool optim)
{
    size_t f32 = 0, other = 0, grad = 0, master = 0, moments = 0;

    for (int b = 0; b < p->nbucket; b++) {
        struct bucket *k = &p->bucket[b];
        *(k->value.type == F32 ? &f32 : &other) += (size_t)k->count * dtype_size(k->value.type);
        grad += learn ? (size_t)tensor_count(k->grad) * 4 : 0;
        master += optim && k->value.type != F32 ? (size_t)k->state * 4 : 0;
        moments += optim ? (size_t)k->state * 8 : 0;
    }
    if (!storage(d, &p->memory[0], f32) || !storage(d, &p->memory[1], other) || !storage(d, &p->memory[2], grad) ||
        !storage(d, &p->memory[3], master) || !storage(d, &p->memory[4], moments))
        return fail("the weights do not fit on the device: %zu bytes of weights, %zu of gradients, %zu of optimizer",
                    f32 + other, grad, master + moments);
    return 0;
}

int params_alloc(struct params *p, struct dev *d, int world, bool learn, bool optim)
{
    char *at[5];

    params_layout(p, d->type, world);
    if (params_memory(p, d, learn, optim))
        return -1;
    for (int i = 0; i < 5; i++)
        at[i] = p->memory[i];
    for (int b = 0; b < p->nbucket; b++) {
        struct bucket *k = &p->bucket[b];
        take(k->value.type == F32 ? &at[0] : &at[1], &k->value);
        op_fill(d, k->value, 0);
        if (learn)
            take(&at[2], &k->grad);
        if (!optim || !k->state)
            continue;
        if (k->value.type != F32)
            take(&at[3], &k->master);
        take(&at[4], &k->m);
        take(&at[4], &k->v);
        op_fill(d, k->m, 0);
        op_fill(d, k->v, 0);
    }
    for (int i = 0; i < p->n; i++) {
        struct param *a = &p->at[i];
        struct bucket *k = &p->bucket[a->bucket];
        a->grad = tensor_like(a->value);
        a->grad.type = F32;
        a->value.type = k->value.type;
        a->value.data = (char *)k->value.data + (size_t)a->offset * dtype_size(k->value.type);
        if (learn && (!(a->flags & PARAM_FROZEN) || a->bucket == BUCKET_F32))
            a->grad.data = (float *)k->grad.data + a->offset;
    }
    return 0;
}

/* Where the master is the value itself it is this rank's slice of it. */
void params_master(struct params *p, struct dev *d, int rank)
{
    for (int b = 0; b < p->nbucket; b++) {
        struct bucket *k = &p->bucket[b];
        struct tensor slice = tensor_rows(k->value, rank * k->slice, k->state);
        if (!k->m.data)
            continue;
        if (k->value.type == F32)
            k->master.data = slice.data;
        else
            op_cast(d, k->master, slice);
    }
}

/* Elements [from, from + n) of a parameter. Nearly all weights are normal: these are drawn by SIMD. */
static void draw_piece(const struct param *a, uint64_t seed, int64_t from, int64_t n, float *w)
{
    uint64_t stream = rng_stream(a->name);
    double mean = a->a, deviation = a->b;

    if (a->draw == draw_normal) {
#pragma omp parallel for simd schedule(static)
        for (int64_t j = 0; j < n; j++)
            w[j] = (float)(mean + deviation * rng_normal(seed, stream, (uint64_t)(from + j)));
    } else {
#pragma omp parallel for schedule(static)
        for (int64_t j = 0; j < n; j++)
            w[j] = a->draw(seed, stream, from + j, a);
    }
}

/* The same place of a parameter's value and of its slice of the master: n elements from w. Where this rank has
 * a master in full precision the value is rounded from it on the device; elsewhere, and if frozen, on the host. */
static void place_piece(struct params *p, struct dev *d, const struct param *a, int64_t from, int64_t n,
                        const float *w, int rank)
{
    struct bucket *k = &p->bucket[a->bucket];
    int64_t first = a->offset + from, last = first + n, lo = rank * k->slice, hi = lo + k->state;
    int64_t cut[4] = { first, last, last, last };                      /* host, device, host */

    if (k->master.data && k->value.type != F32 && !(a->flags & PARAM_FROZEN) && first < hi && last > lo) {
        cut[1] = first > lo ? first : lo;
        cut[2] = last < hi ? last : hi;
    }
    for (int part = 0; part < 3; part++) {
        int64_t count = cut[part + 1] - cut[part];
        const float *x = w + (cut[part] - first);
        struct tensor value = tensor_rows(k->value, cut[part], count);
        if (count && part == 1) {
            struct tensor full = tensor_rows(k->master, cut[part] - lo, count);
            op_put(d, full.data, x, (size_t)count * 4);
            op_cast(d, value, full);
        } else if (count) {
            param_put(d, &value, x);
        }
    }
}

void params_init(struct params *p, struct dev *d, uint64_t seed, int rank)
{
    float *w = mem_new(PIECE, sizeof *w);

    params_master(p, d, rank);
    for (int i = 0; i < p->n; i++) {
        const struct param *a = &p->at[i];
        int64_t count = tensor_count(a->value);
        for (int64_t from = 0; from < count; from += PIECE) {
            int64_t n = count - from < PIECE ? count - from : PIECE;
            draw_piece(a, seed, from, n, w);
            place_piece(p, d, a, from, n, w, rank);
        }
    }
    free(w);
}

void params_zero_grad(struct params *p, struct dev *d)
{
    struct tensor all = SHAPE(F32, 0);           /* the buckets' gradients lie side by side */

    for (int b = 0; b < p->nbucket; b++)
        all.dim[0] += tensor_count(p->bucket[b].grad);
    all.data = p->memory[2];
    op_fill(d, all, 0);
}

struct param *params_find(struct params *p, const char *name)
{
    for (int i = 0; i < p->n; i++)
        if (!strcmp(p->at[i].name, name))
            return &p->at[i];
    return NULL;
}

void param_get(struct dev *d, const struct tensor *t, float *out)
{
    int64_t n = tensor_count(*t);
    uint16_t *half;

    if (t->type == F32) {
        op_get(d, out, t->data, (size_t)n * 4);
        return;
    }
    half = mem_new((size_t)n, 2);
    op_get(d, half, t->data, (size_t)n * 2);
    for (int64_t i = 0; i < n; i++)
        out[i] = float_of_bf16(half[i]);
    free(half);
}

void param_put(struct dev *d, const struct tensor *t, const float *in)
{
    int64_t n = tensor_count(*t);
    uint16_t *half;

    if (t->type == F32) {
        op_put(d, t->data, in, (size_t)n * 4);
        return;
    }
    half = mem_new((size_t)n, 2);
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++)
        half[i] = bf16_of(in[i]);
    op_put(d, t->data, half, (size_t)n * 2);
    free(half);
}

void params_free(struct params *p, struct dev *d)
{
    for (int i = 0; i < 5; i++)
        if (p->memory[i])
            op_release(d, p->memory[i]);
    free(p->bucket);
    free(p->at);
    *p = (struct params){ 0 };
}
