/* test_layer.c - linears over several weights: the same numbers as one by one, in as few products as memory allows. */
#include "layer.h"
#include "rng.h"
#include "test.h"

static int products;
static const struct ops *behind;

static void count(struct dev *d, struct tensor c, struct tensor a, struct tensor b, int flags)
{
    products++;
    behind->matmul(d, c, a, b, flags);
}

static void fill(struct tensor t, uint64_t stream)
{
    for (int64_t r = 0; r < t.dim[0]; r++)
        for (int64_t c = 0; c < t.dim[1]; c++)
            ((float *)t.data)[r * t.row + c] = (float)rng_normal(3, stream, (uint64_t)(r * t.dim[1] + c));
}

/* Columns 3.. of a buffer whose every element is NaN. */
static struct tensor poisoned(struct dev *d, int64_t T, int64_t n)
{
    struct tensor all = arena_push(&d->temp, SHAPE(F32, T, n + 5));

    op_fill(d, all, NAN);
    return tensor_cols(all, 3, n);
}

static void check_same(struct tensor a, struct tensor b)
{
    for (int64_t r = 0; r < a.dim[0]; r++)
        for (int64_t c = 0; c < a.dim[1]; c++)
            CHECK_NEAR(((float *)a.data)[r * a.row + c], ((float *)b.data)[r * b.row + c], 1e-4);
}

/* Three weights of `in` columns; which of them is frozen, or none; products of a trip forward, and of one backward. */
static void check_run(const char *device, const int64_t out[3], int64_t in, int frozen, int forward, int backward)
{
    enum { T = 13 };
    int64_t all = out[0] + out[1] + out[2], from = 0;
    struct params p = { 0 };
    struct dev d;
    struct tensor x, y, dy, dx, one, done, grad[3];
    struct ops counting;

    CHECK(dev_open(&d, device, F32, 2) == 0 && dev_reserve(&d, 0, 1 << 20) == 0);
    behind = d.ops, counting = *d.ops, counting.matmul = count, d.ops = &counting;
    for (int i = 0; i < 3; i++)
        params_add(&p, (struct param){ .value = SHAPE(F32, out[i], in), .bucket = BUCKET_LAYER, .draw = draw_normal,
                                       .b = 1, .name = { (char)('a' + i) }, .flags = i == frozen ? PARAM_FROZEN : 0 });
    CHECK(params_alloc(&p, &d, 2, true, false) == 0);
    params_init(&p, &d, 1, 0);
    params_zero_grad(&p, &d);
    x = arena_push(&d.temp, SHAPE(F32, T, in)), fill(x, 1);
    y = poisoned(&d, T, all), one = poisoned(&d, T, all);
    dy = poisoned(&d, T, all), fill(dy, 2);
    dx = poisoned(&d, T, in), done = poisoned(&d, T, in);

    products = 0;
    linears_forward(&d, y, x, p.at, 3);
    CHECK(products == forward);
    products = 0;
    linears_backward(&d, dx, dy, x, p.at, 3, false);
    CHECK(products == backward);
    for (int i = 0; i < 3; from += out[i++]) {
        grad[i] = arena_push(&d.temp, SHAPE(F32, out[i], in));
        if (i != frozen)
            op_cast(&d, grad[i], p.at[i].grad);
    }
    params_zero_grad(&p, &d);
    from = 0;
    for (int i = 0; i < 3; from += out[i++]) {
        linear_forward(&d, tensor_cols(one, from, out[i]), x, &p.at[i]);
        linear_backward(&d, done, tensor_cols(dy, from, out[i]), x, &p.at[i], i > 0);
        if (i != frozen)
            check_same(grad[i], p.at[i].grad);
    }
    check_same(y, one);
    check_same(dx, done);
    linears_backward(&d, done, dy, x, p.at, 3, true);
    op_add(&d, dx, dx, dx);
    check_same(done, dx);
    d.ops = behind;
    params_free(&p, &d);
    dev_close(&d);
}

int main(void)
{
    static const char *const devices[] = { "naive", "cpu" };

    for (size_t i = 0; i < LEN(devices); i++) {
        check_run(devices[i], (int64_t[]){ 16, 8, 32 }, 8, -1, 1, 2);     /* side by side */
        check_run(devices[i], (int64_t[]){ 16, 8, 32 }, 8, 1, 3, 5);      /* the frozen one lies elsewhere */
        check_run(devices[i], (int64_t[]){ 16, 8, 32 }, 8, 2, 2, 3);
        check_run(devices[i], (int64_t[]){ 16, 7, 5 }, 8, -1, 2, 4);      /* something lies between the last two */
        check_run(devices[i], (int64_t[]){ 3, 1, 5 }, 7, -1, 3, 6);
    }
    return test_done("layer");
}
