/* Rows of 262,144 tokens: recurrences and convolutions over more than 2^31 elements.
 *
 * What a long row says at its end is known from a short one: the last document run alone, or the last tokens
 * run with the memory that the others leave. Gradients of weights, which all tokens share, are those of the two
 * halves. An offset that wraps breaks one or the other.
 *
 *   test_long_cuda            on a GPU with room for it; what does not fit is skipped
 *   test_long_cuda DEVICE     the same with small sizes, to test the test */
#include "check_data.h"
#include "memory.h"
#include "on_gpu.h"
#include "op.h"
#include "param.h"
#include "rng.h"

enum { TABLE = 521, DOCUMENT = 752, CUT = 1000 };
static bool small;

static int64_t length(void)
{
    return small ? 3000 : 262144;
}

/* What is on the device for one row, to be released at once. */
struct memory { struct dev *d; void *at[96]; int n; };

static struct tensor get(struct memory *m, struct tensor shape)
{
    REQUIRE(m->n < (int)LEN(m->at));
    shape.data = m->at[m->n++] = op_alloc(m->d, (size_t)tensor_count(shape) * dtype_size(shape.type) + 16);
    REQUIRE(shape.data);
    return shape;
}

static void release(struct memory *m)
{
    for (int i = 0; i < m->n; i++)
        op_release(m->d, m->at[i]);
    m->n = 0;
}

static struct tensor from_host(struct memory *m, struct tensor shape, const float *value)
{
    struct tensor t = get(m, shape);

    param_put(m->d, &t, value);
    op_sync(m->d);
    return t;
}

static int32_t *ids(struct memory *m, const int32_t *host, int64_t n)
{
    struct tensor t = get(m, SHAPE(I32, n));

    op_put(m->d, t.data, host, (size_t)n * 4);
    op_sync(m->d);
    return t.data;
}

/* Token t of the row has the values of row order[t] of a table. */
static int32_t *order_new(int64_t tokens)
{
    int32_t *order = mem_new((size_t)tokens, sizeof *order);

    for (int64_t t = 0; t < tokens; t++)
        order[t] = (int32_t)((t % TABLE * 7 + t / TABLE * 37) % TABLE);
    return order;
}

/* Documents of so many tokens, the last one what is left. */
static struct seqs documents(struct memory *m, int64_t tokens, int64_t each, int32_t **start)
{
    int n = (int)((tokens + each - 1) / each);
    int32_t *seq = mem_new((size_t)tokens, sizeof *seq);
    struct seqs s;

    *start = mem_new((size_t)n + 1, sizeof **start);
    for (int i = 0; i <= n; i++)
        (*start)[i] = (int32_t)(i < n ? i * each : tokens);
    s = seqs_of(*start, n);
    seqs_expand(&s, seq, NULL);
    s.dstart = ids(m, *start, n + 1);
    s.dseq = ids(m, seq, tokens);
    free(seq);
    return s;
}

/* Error of two tensors on the device, of so many rows from the given ones. */
static void same(struct dev *d, const char *what, const char *field, struct tensor a, int64_t from_a, struct tensor b,
                 int64_t from_b, int64_t rows, double allowed)
{
    struct tensor x = tensor_rows(tensor_flat(a), from_a, rows), y = tensor_rows(tensor_flat(b), from_b, rows);
    size_t n = (size_t)tensor_count(x);
    float *p = mem_new(n, sizeof *p), *q = mem_new(n, sizeof *q);
    double error;

    param_get(d, &x, p);
    param_get(d, &y, q);
    error = test_distance(p, q, (int64_t)n);
    if (!(error <= allowed)) {
        printf("FAIL %s %s: %s is off by %g, allowed %g\n", what, dtype_name(d->type), field, error, allowed);
        test_failed++;
    }
    free(p);
    free(q);
}

/* A scan over one row of tokens [from, from + tokens) of the whole order. */
struct line {
    struct memory  mem;
    struct scan_io x, g;
    struct seqs    seqs;
    int32_t       *start;
};

static void line_fields(struct line *l, struct check_data *m, const int32_t *order, int64_t tokens, bool learn)
{
    struct dev *d = l->mem.d;

    for (int i = 0; i < CHECK_STATE; i++) {
        struct tensor t = m->shape[i], table = t;
        if (!t.ndim)
            continue;
        t.type = table.type = m->storage[i] ? d->type : F32;
        if (i < CHECK_PRIOR) {
            struct memory once = { .d = d };
            table = tensor_flat(from_host(&once, table, m->val[i]));
            t.dim[0] = tokens;
            *check_tensor(&l->x, i) = get(&l->mem, t);
            op_embed(d, tensor_flat(*check_tensor(&l->x, i)), table, order);
            release(&once);
            if (!learn)
                continue;
            *check_tensor(&l->g, i) = get(&l->mem, t);
            op_fill(d, tensor_flat(*check_tensor(&l->g, i)), NAN);
        } else {
            *check_tensor(&l->x, i) = from_host(&l->mem, t, m->val[i]);
            *check_tensor(&l->g, i) = get(&l->mem, t);
            op_fill(d, tensor_flat(*check_tensor(&l->g, i)), 0);
        }
    }
}

/* each: tokens of a document; learn: gradients too. */
static void line_open(struct line *l, struct dev *d, struct check_data *m, const int32_t *order, int64_t tokens,
                      int64_t each, bool learn)
{
    struct memory once = { .d = d };
    struct tensor o = m->shape[CHECK_O], table;
    int32_t *dorder;

    *l = (struct line){ .mem.d = d, .x.scale = 0.7f, .g.scale = 0.7f };
    dorder = ids(&once, order, tokens);
    l->seqs = documents(&l->mem, tokens, each, &l->start);
    line_fields(l, m, dorder, tokens, learn);
    o.type = d->type;
    table = tensor_flat(from_host(&once, o, m->grad[CHECK_O]));
    o.dim[0] = tokens;
    l->x.o = get(&l->mem, o);
    op_fill(d, tensor_flat(l->x.o), NAN);
    if (learn) {
        l->g.o = get(&l->mem, o);
        op_embed(d, tensor_flat(l->g.o), table, dorder);
    }
    release(&once);
}

static void line_close(struct line *l)
{
    release(&l->mem);
    free(l->start);
}

/* Bytes of both arenas for a scan over this row. */
static void line_plan(struct line *l, const struct scan *f, bool backward, size_t size[2])
{
    struct dev dry = dev_dry(l->mem.d);

    scan_forward(&dry, f, &l->seqs, &l->x, backward ? &dry.keep : NULL);
    if (backward)
        scan_backward(&dry, f, &l->seqs, &l->x, &l->g);
    size[0] = dry.keep.peak;
    size[1] = dry.temp.peak;
}

static void line_run(struct line *l, const struct scan *f, bool backward)
{
    struct dev *d = l->mem.d;
    size_t mark = arena_mark(&d->keep), size[2];

    line_plan(l, f, backward, size);
    if (size[0] > d->keep.size || size[1] > d->temp.size)
        REQUIRE(!dev_reserve(d, size[0], size[1]));
    scan_forward(d, f, &l->seqs, &l->x, backward ? &d->keep : NULL);
    if (backward)
        scan_backward(d, f, &l->seqs, &l->x, &l->g);
    arena_pop(&d->keep, mark);
}

/* The last rows of both, values and gradients. */
static void same_tail(struct dev *d, const char *what, struct line *a, struct line *b, double allowed)
{
    int64_t n = b->seqs.tokens, at = a->seqs.tokens - n;

    same(d, what, "o", a->x.o, at, b->x.o, 0, n, allowed);
    for (int i = 0; i < CHECK_PRIOR; i++)
        if (check_tensor(&a->g, i)->ndim) {
            char name[48];
            snprintf(name, sizeof name, "gradient of %s", check_name(i));
            same(d, what, name, *check_tensor(&a->g, i), at, *check_tensor(&b->g, i), 0, n, allowed);
        }
}

/* Gradients of weights of the whole row against those of its halves, which add up. */
static void same_weights(struct dev *d, const struct scan *f, const char *what, struct line *whole,
                         struct check_data *m, const int32_t *order, int64_t each)
{
    int64_t T = whole->seqs.tokens, half = T / 2 / each * each;
    float *sum[SCAN_PRIORS] = { 0 };

    if (!whole->x.prior[0].ndim)
        return;
    for (int part = 0; part < 2; part++) {
        struct line l;
        line_open(&l, d, m, order + (part ? half : 0), part ? T - half : half, each, true);
        line_run(&l, f, true);
        for (int i = 0; i < SCAN_PRIORS && l.g.prior[i].ndim; i++) {
            int64_t n = tensor_count(l.g.prior[i]);
            float *x = mem_new((size_t)n, sizeof *x);
            param_get(d, &l.g.prior[i], x);
            if (!sum[i])
                sum[i] = mem_new((size_t)n, sizeof **sum);
            for (int64_t e = 0; e < n; e++)
                sum[i][e] += x[e];
            free(x);
        }
        line_close(&l);
    }
    for (int i = 0; i < SCAN_PRIORS && sum[i]; i++) {
        struct memory once = { .d = d };
        struct tensor t = from_host(&once, whole->g.prior[i], sum[i]);
        same(d, what, "gradient of a weight", whole->g.prior[i], 0, t, 0, t.dim[0], 1e-2);
        release(&once);
        free(sum[i]);
    }
}

/* The memory that the tokens before the last ones leave, as these begin with it. */
static void carry(struct line *tail, struct dev *d, const struct scan *f, struct check_data *m, const int32_t *order,
                  int64_t cut)
{
    struct tensor saved[SCAN_SAVED] = { 0 }, state[SCAN_STATES] = { 0 };
    struct line head;

    line_open(&head, d, m, order, cut, cut, false);
    f->plan(&head.seqs, &head.x, state, saved);
    for (int i = 0; i < SCAN_STATES && state[i].ndim; i++)
        head.x.next[i] = tail->x.state[i] = get(&tail->mem, state[i]);
    line_run(&head, f, false);
    line_close(&head);
}

/* The whole row; each: tokens of a document, 0 for one document. */
static void check_row(struct dev *d, const struct scan *f, struct check_data *m, const int32_t *order, int64_t each)
{
    int64_t T = length(), cut = each ? (T - 1) / each * each : T - CUT;
    double allowed = d->type == BF16 ? 1e-2 : 1e-3, began = time_now();
    size_t size[2];
    struct line whole, tail;
    char what[64];

    snprintf(what, sizeof what, "%s, %s", f->name, each ? "documents" : "one document");
    line_open(&tail, d, m, order + cut, T - cut, T - cut, true);
    if (!each)
        carry(&tail, d, f, m, order, cut);
    line_run(&tail, f, true);
    line_open(&whole, d, m, order, T, each ? each : T, true);
    line_plan(&whole, f, true, size);
    if (size[0] + size[1] + ((size_t)1 << 30) > memory_free(d)) {
        printf("%s %s: skipped, needs %.0f GB more, %.0f are free\n", what, dtype_name(d->type),
               (double)(size[0] + size[1]) / 1e9, (double)memory_free(d) / 1e9);
    } else {
        line_run(&whole, f, true);
        same_tail(d, what, &whole, &tail, allowed);
        if (each && (size_t)tensor_count(whole.x.v) * 6 * dtype_size(d->type) < memory_free(d))
            same_weights(d, f, what, &whole, m, order, each);
        test_ran++;
        printf("%s %s: %lld elements of v, %.1f GB of notes and scratch, %.1f s\n", what, dtype_name(d->type),
               (long long)(T * m->c.H * m->c.V), (double)(size[0] + size[1]) / 1e9, time_now() - began);
    }
    line_close(&tail);
    line_close(&whole);
    REQUIRE(!dev_reserve(d, 0, 0));
}

/* T*H*V, and for bf16 also the saved states, are beyond 2^31 elements. */
static void check_scan_long(struct dev *d, const char *name)
{
    const struct scan *f = scan_find(name);
    int32_t table = TABLE, *order = order_new(length());
    bool linear = !strcmp(name, "linear");
    int64_t H = small ? 2 : linear ? 129 : d->type == BF16 ? 232 : 172;
    struct scan_case c = { .Hq = linear ? 1 : H, .Hk = linear ? 1 : H, .H = H, .K = linear ? 128 : 48,
                           .V = linear ? 64 : 48, .length = &table, .n = 1, .seed = 3 };
    struct check_data *m = check_new(f, &c);
    double bytes = 11.0 * (double)length() * (double)(H * c.V) * (double)dtype_size(d->type);

    check_fill(m);
    if (bytes > (double)memory_free(d)) {
        printf("%s %s: skipped, needs %.0f GB\n", name, dtype_name(d->type), bytes / 1e9);
    } else {
        check_row(d, f, m, order, DOCUMENT);
        check_row(d, f, m, order, 0);
    }
    check_free(m);
    free(order);
}

/* One convolution over rows [from, from + tokens) of the whole order. */
struct conv { struct memory mem; struct tensor y, x, dy, dx, w, bias, dw, dbias; int32_t *start; };

/* sums: whose dw and dbias it adds to; NULL: its own, from 0. */
static void conv_run(struct conv *l, struct dev *d, int64_t C, const int32_t *order, int64_t tokens,
                     const struct conv *sums)
{
    struct memory once = { .d = d };
    int64_t n = TABLE * C;
    float *value = mem_new((size_t)n, sizeof *value);
    struct tensor wide = SHAPE(d->type, tokens, C), *to[] = { &l->x, &l->dy };
    int32_t *dorder = ids(&once, order, tokens);
    struct seqs s;

    *l = (struct conv){ .mem.d = d };
    s = documents(&l->mem, tokens, DOCUMENT, &l->start);
    for (int k = 0; k < 2; k++) {
        for (int64_t e = 0; e < n; e++)
            value[e] = (float)(2 * rng_uniform(5, (uint64_t)k, (uint64_t)e) - 1);
        *to[k] = get(&l->mem, wide);
        op_embed(d, *to[k], from_host(&once, SHAPE(d->type, TABLE, C), value), dorder);
    }
    l->y = get(&l->mem, wide);
    l->dx = get(&l->mem, wide);
    l->w = from_host(&l->mem, SHAPE(F32, C, 4), value);
    l->bias = from_host(&l->mem, SHAPE(F32, C), value + C);
    l->dw = sums ? sums->dw : get(&l->mem, SHAPE(F32, C, 4));
    l->dbias = sums ? sums->dbias : get(&l->mem, SHAPE(F32, C));
    if (!sums) {
        op_fill(d, l->dw, 0);
        op_fill(d, l->dbias, 0);
    }
    op_fill(d, l->y, NAN);
    op_fill(d, l->dx, NAN);
    op_conv(d, l->y, (struct tensor){ 0 }, l->x, l->w, l->bias, (struct tensor){ 0 }, &s);
    op_conv_bwd(d, l->dx, l->dw, l->dbias, l->dy, l->x, l->w, l->bias, &s);
    op_sync(d);
    release(&once);
    free(value);
}

static void conv_close(struct conv *l)
{
    release(&l->mem);
    free(l->start);
}

static void check_conv(struct dev *d)
{
    int64_t T = length(), C = small ? 65 : 8208;
    int64_t cut = (T - 1) / DOCUMENT * DOCUMENT, half = T / 2 / DOCUMENT * DOCUMENT;
    int32_t *order = order_new(T);
    struct conv whole, part, sums;

    if (7.0 * (double)T * (double)C * (double)dtype_size(d->type) > (double)memory_free(d)) {
        printf("conv %s: skipped, no room\n", dtype_name(d->type));
        free(order);
        return;
    }
    conv_run(&whole, d, C, order, T, NULL);
    conv_run(&part, d, C, order + cut, T - cut, NULL);
    same(d, "conv", "y", whole.y, cut, part.y, 0, T - cut, 1e-6);
    same(d, "conv", "dx", whole.dx, cut, part.dx, 0, T - cut, 1e-6);
    conv_close(&part);
    conv_run(&sums, d, C, order, half, NULL);
    conv_run(&part, d, C, order + half, T - half, &sums);
    same(d, "conv", "dw", whole.dw, 0, sums.dw, 0, C, 1e-3);
    same(d, "conv", "dbias", whole.dbias, 0, sums.dbias, 0, C, 1e-3);
    conv_close(&part);
    conv_close(&sums);
    conv_close(&whole);
    free(order);
    test_ran++;
    printf("conv %s: %lld elements\n", dtype_name(d->type), (long long)(T * C));
}

static void check(struct dev *d)
{
    check_scan_long(d, "linear");
    check_scan_long(d, "palimpsa");
    check_conv(d);
}

int main(int argc, char **argv)
{
    small = argc > 1;
    return test_on_gpu("long_cuda", argc, argv, 0, check);
}
