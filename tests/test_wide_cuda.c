/* Verbs over tensors of more than 2^31 elements: every row of a large call is one of TABLE rows of a small
 * call, so the large answer is known without computing it twice.
 *
 * The large inputs are the small ones' rows in another order, TABLE rows at a time a rotation of all of them.
 * Outputs a row: equal the small call's. Sums over rows (gradients of weights): the small call's times the
 * number of rotations. An offset that wraps reads or writes another row.
 *
 *   test_wide_cuda            on a GPU with room for it, else skipped
 *   test_wide_cuda DEVICE     the same with small sizes, to test the test */
#include "check_op_run.h"
#include "memory.h"
#include "on_gpu.h"
#include "param.h"
#include "rng.h"

/* Rows of a small call; rotations that make 262,584 and 43,243 rows of it. */
enum { TABLE = 521, LONG = 504, LOGITS = 83, SPOTS = 7 };

struct wide_case { struct op_case c; int rows; int64_t rotations; };     /* rows: which of n[] counts them */

/* T*H, T*H*V or T*V beyond 2^31: 262,584 x 8,208 and 43,243 x 50,288 are 2.16e9 and 2.17e9. */
static const struct wide_case cases[] = {
    { { "fill", "", .n = { 0, 8208 } }, 0, LONG },
    { { "cast", "down", .n = { 0, 8208 } }, 0, LONG },
    { { "cast", "up", .n = { 0, 8208 }, .flags = CASE_BACK }, 0, LONG },
    { { "matmul", "a b'", .n = { 0, 8208, 64 }, .flags = MM_TB }, 0, LONG },
    { { "matmul", "a' b +=", .n = { 8208, 64, 0 }, .flags = MM_TA | MM_ADD | CASE_MIXED }, 2, LONG },
    { { "embed", "", .n = { 0, 300, 8208 } }, 0, LONG },
    { { "embed", "to fp32", .n = { 0, 300, 8208 }, .flags = CASE_MIXED }, 0, LONG },
    { { "embed_bwd", "", .n = { 0, 300, 8208 } }, 0, LONG },
    { { "embed_bwd", "from fp32", .n = { 0, 300, 8208 }, .flags = CASE_MIXED }, 0, LONG },
    { { "add", "", .n = { 0, 8208 } }, 0, LONG },
    { { "add", "fp32 residual", .n = { 0, 8208 }, .flags = CASE_MIXED }, 0, LONG },
    { { "map", "silu", .n = { 0, 8208 }, .flags = MAP_SILU }, 0, LONG },
    { { "map_bwd", "silu", .n = { 0, 8208 }, .flags = MAP_SILU }, 0, LONG },
    { { "mul", "per token", .n = { 0, 171, 48 } }, 0, LONG },
    { { "mul", "weight +=", .n = { 0, 171, 48 }, .flags = CASE_WEIGHT | CASE_ADD }, 0, LONG },
    { { "mul_bwd", "per token", .n = { 0, 171, 48 } }, 0, LONG },
    { { "mul_bwd", "weight +=", .n = { 0, 171, 48 }, .flags = CASE_WEIGHT | CASE_ADD }, 0, LONG },
    { { "swiglu", "", .n = { 0, 8208 } }, 0, LONG },
    { { "swiglu_bwd", "", .n = { 0, 8208 } }, 0, LONG },
    { { "decay", "", .n = { 0, 8208 } }, 0, LONG },
    { { "decay_bwd", "", .n = { 0, 8208 } }, 0, LONG },
    { { "gain", "", .n = { 0, 171, 48 } }, 0, LONG },
    { { "gain_bwd", "", .n = { 0, 171, 48 } }, 0, LONG },
    { { "rmsnorm", "plain", .n = { 0, 1, 8208 } }, 0, LONG },
    { { "rmsnorm", "fp32 residual", .n = { 0, 1, 8208 }, .flags = CASE_MIXED }, 0, LONG },
    { { "rmsnorm", "gate after, heads", .n = { 0, 171, 48 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT }, 0, LONG },
    { { "rmsnorm", "gate before", .n = { 0, 1, 8208 }, .flags = GATE_BEFORE_NORM }, 0, LONG },
    { { "rmsnorm_bwd", "plain", .n = { 0, 1, 8208 } }, 0, LONG },
    { { "rmsnorm_bwd", "fp32 residual", .n = { 0, 1, 8208 }, .flags = CASE_MIXED }, 0, LONG },
    { { "rmsnorm_bwd", "gate after, heads", .n = { 0, 171, 48 }, .flags = GATE_AFTER_NORM | CASE_WEIGHT }, 0, LONG },
    { { "rmsnorm_bwd", "gate before", .n = { 0, 1, 8208 }, .flags = GATE_BEFORE_NORM }, 0, LONG },
    { { "l2norm", "", .n = { 0, 171, 48 } }, 0, LONG },
    { { "l2norm_bwd", "", .n = { 0, 171, 48 } }, 0, LONG },
    { { "xent", "loss only", .n = { 0, 50288 } }, 0, LOGITS },
    { { "xent", "gradient", .n = { 0, 50288 }, .flags = CASE_SCALE }, 0, LOGITS },
    { { "rope", "", .n = { 0, 171, 48 } }, 0, LONG },
    { { "sumsq", "", .n = { 0, 8208 } }, 0, LONG },
    { { "sumsq", "fp32", .n = { 0, 8208 }, .flags = CASE_MIXED }, 0, LONG },
};

/* One call: its arguments on the device. */
struct side {
    struct op_case c;
    struct op_plan plan;
    struct tensor  t[OP_ARGS];
};

struct wide {
    struct dev             *d;
    const struct wide_case *w;
    const struct op_row    *row;
    struct side             few, many;
    int64_t                 rotations;
    int32_t                *order;                   /* of every row of the large call: the row of the small one */
    int32_t                *dorder;
    float                  *value[OP_ARGS];          /* of the small call */
};

/* Small sizes when the test tests itself: 35 rotations of narrow rows. */
static bool shrunk;

static struct op_case sized(const struct wide_case *w, int64_t rows)
{
    struct op_case c = w->c;

    for (int i = 0; i < 4; i++)
        c.n[i] = i == w->rows ? rows : shrunk && c.n[i] > 160 ? c.n[i] / 57 : c.n[i];
    return c;
}

static bool in_rows(const struct wide *w, int i)
{
    return w->few.plan.arg[i].role != ARG_ABSENT && w->few.plan.arg[i].shape.dim[0] == TABLE &&
           w->many.plan.arg[i].shape.dim[0] == TABLE * w->rotations;
}

static int64_t columns(struct tensor t)
{
    return t.dim[1] * t.dim[2] * t.dim[3];
}

static size_t bytes_of(struct tensor t)
{
    return (size_t)tensor_count(t) * dtype_size(t.type);
}

static void *device_copy(struct dev *d, const void *host, size_t bytes)
{
    void *p = op_alloc(d, bytes + 16);

    REQUIRE(p);
    op_put(d, p, host, bytes);
    op_sync(d);
    return p;
}

static void upload(struct dev *d, struct tensor *t, const float *value)
{
    int32_t *whole;

    if (t->type != I32) {
        t->data = op_alloc(d, bytes_of(*t) + 16);
        REQUIRE(t->data);
        param_put(d, t, value);
        op_sync(d);
        return;
    }
    whole = mem_new((size_t)tensor_count(*t) + 1, sizeof *whole);
    for (int64_t i = 0; i < tensor_count(*t); i++)
        whole[i] = (int32_t)floorf(value[i]);
    t->data = device_copy(d, whole, bytes_of(*t));
    free(whole);
}

/* The argument of the small call: drawn, or what outputs hold before. Sums over rows start at 0. */
static void few_open(struct wide *w, int i)
{
    const struct op_arg *a = &w->few.plan.arg[i];
    struct tensor t = a->shape;
    int64_t n = tensor_count(t);
    float *x = mem_new((size_t)n + 1, sizeof *x);
    bool sum = a->role == ARG_ACC && !in_rows(w, i);

    for (int64_t e = 0; e < n && !sum; e++) {
        double u = rng_uniform(7, rng_stream(a->name), (uint64_t)e);
        x[e] = a->role == ARG_OUT ? NAN : (float)(a->low + (a->high - a->low) * u);
    }
    upload(w->d, &t, x);
    w->few.t[i] = t;
    w->value[i] = x;
}

/* The same of the large one: rows of the small argument in this case's order. */
static void many_open(struct wide *w, int i)
{
    const struct op_arg *a = &w->many.plan.arg[i];
    int64_t rows = TABLE * w->rotations;
    struct tensor t = a->shape, table, flat;

    if (!in_rows(w, i) || t.type == I32) {
        float *x = mem_new((size_t)tensor_count(t) + 1, sizeof *x);
        for (int64_t e = 0; e < tensor_count(t); e++)
            x[e] = w->value[i][in_rows(w, i) ? w->order[e] : e];
        upload(w->d, &t, x);
        free(x);
    } else {
        t.data = op_alloc(w->d, bytes_of(t) + 16);
        REQUIRE(t.data);
        flat = SHAPE(t.type, rows, columns(t));
        flat.data = t.data;
        table = SHAPE(t.type, TABLE, columns(t));
        table.data = w->few.t[i].data;
        if (a->role == ARG_OUT)
            op_fill(w->d, flat, NAN);
        else
            op_embed(w->d, flat, table, w->dorder);
    }
    w->many.t[i] = t;
}

static void call(struct wide *w, struct side *s)
{
    w->row->call(w->d, &s->c, s->t, &(struct seqs){ 0 });
}

static double square(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

static void wrong(const struct wide *w, int i, const char *what, int64_t row, double error)
{
    printf("FAIL %s %s %s: %s of %s, row %lld of %lld: off by %g\n", w->w->c.op, w->w->c.note,
           dtype_name(w->d->type), what, w->few.plan.arg[i].name, (long long)row, (long long)(TABLE * w->rotations),
           error);
    test_failed++;
}

/* Rows at both ends, in the middle and on both sides of 2^31 and 2^32 elements; then the square of it all. */
static void compare_rows(struct wide *w, int i, const float *few)
{
    struct tensor t = w->many.t[i], whole = SHAPE(t.type, TABLE * w->rotations, columns(t)), at, sum;
    int64_t rows = whole.dim[0], n = columns(t), edge = ((int64_t)1 << 31) / n;
    int64_t spot[SPOTS] = { 0, rows / 2, rows - 1, edge - 1, edge + 1, 2 * edge, rows - 2 };
    double allowed = t.type == F32 ? 1e-4 : 1e-2, want = 0, error;
    float *got = mem_new((size_t)n, sizeof *got), total = 0;

    whole.data = t.data;
    for (int k = 0; k < SPOTS; k++) {
        const float *known = few + w->order[spot[k] < rows ? spot[k] : 0] * n;
        if (spot[k] >= rows)
            continue;
        at = tensor_rows(whole, spot[k], 1);
        param_get(w->d, &at, got);
        error = test_distance(got, known, n);
        if (!(error <= allowed))
            wrong(w, i, "a row", spot[k], error);
    }
    want = square(few, TABLE * n) * (double)w->rotations;
    sum = SHAPE(F32, 1);
    sum.data = device_copy(w->d, &total, sizeof total);
    op_sumsq(w->d, sum, whole);
    op_get(w->d, &total, sum.data, sizeof total);
    if (!(fabs(total - want) <= 1e-3 * want))
        wrong(w, i, "the square", rows, total / want - 1);
    op_release(w->d, sum.data);
    free(got);
}

static void compare(struct wide *w, int i)
{
    int64_t n = tensor_count(w->few.t[i]);
    float *few = mem_new((size_t)n, sizeof *few), *many;
    double error;

    param_get(w->d, &w->few.t[i], few);
    if (in_rows(w, i)) {
        compare_rows(w, i, few);
    } else {
        many = mem_new((size_t)n, sizeof *many);
        param_get(w->d, &w->many.t[i], many);
        for (int64_t e = 0; e < n; e++)
            few[e] *= (float)w->rotations;
        error = test_distance(many, few, n);
        if (!(error <= 2e-3))
            wrong(w, i, "a sum", 0, error);
        free(many);
    }
    free(few);
}

static size_t case_bytes(const struct wide *w)
{
    size_t bytes = (size_t)256 << 20;

    for (int i = 0; i < w->many.plan.n; i++)
        if (w->many.plan.arg[i].role != ARG_ABSENT)
            bytes += bytes_of(w->many.plan.arg[i].shape) + bytes_of(w->few.plan.arg[i].shape);
    return bytes;
}

/* A step that shares no factor with TABLE turns every rotation differently. */
static void order_new(struct wide *w)
{
    int64_t rows = TABLE * w->rotations;

    w->order = mem_new((size_t)rows, sizeof *w->order);
    for (int64_t r = 0; r < rows; r++)
        w->order[r] = (int32_t)((r % TABLE * 7 + r / TABLE * 37) % TABLE);
    w->dorder = device_copy(w->d, w->order, (size_t)rows * sizeof *w->order);
}

/* False when there is no room. */
static bool check_case(struct dev *d, const struct wide_case *c)
{
    struct wide w = { .d = d, .w = c, .row = op_row_find(c->c.op), .rotations = shrunk ? 35 : c->rotations };
    size_t room = memory_free(d);
    double began = time_now();

    w.few.c = sized(c, TABLE);
    w.many.c = sized(c, TABLE * w.rotations);
    w.few.plan = op_plan_of(w.row, &w.few.c, d->type);
    w.many.plan = op_plan_of(w.row, &w.many.c, d->type);
    if (case_bytes(&w) > room) {
        printf("%s %s %s: skipped, needs %.1f GB of %.1f\n", c->c.op, c->c.note, dtype_name(d->type),
               (double)case_bytes(&w) / 1e9, (double)room / 1e9);
        return false;
    }
    order_new(&w);
    for (int i = 0; i < w.few.plan.n; i++)
        if (w.few.plan.arg[i].role != ARG_ABSENT) {
            few_open(&w, i);
            many_open(&w, i);
        }
    call(&w, &w.few);
    call(&w, &w.many);
    for (int i = 0; i < w.few.plan.n; i++)
        if (w.few.plan.arg[i].role == ARG_OUT || w.few.plan.arg[i].role == ARG_ACC)
            compare(&w, i);
    for (int i = 0; i < w.few.plan.n; i++)
        if (w.few.t[i].data) {
            op_release(d, w.few.t[i].data);
            op_release(d, w.many.t[i].data);
            free(w.value[i]);
        }
    op_release(d, w.dorder);
    free(w.order);
    printf("%s %s %s: %.1f GB in %.2f s\n", c->c.op, c->c.note, dtype_name(d->type), (double)case_bytes(&w) / 1e9,
           time_now() - began);
    return true;
}

static void check(struct dev *d)
{
    for (size_t i = 0; i < LEN(cases); i++)
        test_ran += check_case(d, &cases[i]);
}

int main(int argc, char **argv)
{
    shrunk = argc > 1;
    return test_on_gpu("wide_cuda", argc, argv, 1, check);
}
