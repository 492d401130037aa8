/* test_check_op.c - the laws of check_op.h catch devices that break them, in fp32 and in bf16. */
#include "check_op.h"
#include "half.h"
#include "test.h"

static float load(struct tensor x, int64_t t, int64_t i)
{
    return x.type == F32 ? ((float *)x.data)[t * x.row + i] : float_of_bf16(((uint16_t *)x.data)[t * x.row + i]);
}

static void store(struct tensor x, int64_t t, int64_t i, float value)
{
    if (x.type == F32)
        ((float *)x.data)[t * x.row + i] = value;
    else
        ((uint16_t *)x.data)[t * x.row + i] = bf16_of(value);
}

static void right(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    (void)d;
    for (int64_t t = 0; t < y.dim[0]; t++)
    for (int64_t i = 0; i < y.dim[1]; i++)
        store(y, t, i, load(a, t, i) + load(b, t, i));
}

static void imprecise(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    right(d, y, a, b);
    for (int64_t i = 0; i < y.dim[1]; i++)
        store(y, 0, i, load(y, 0, i) * 1.03f);
}

static void incomplete(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    y.dim[1]--;
    right(d, y, a, b);
}

static void ignores_stride(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    b.row = b.dim[1];
    right(d, y, a, b);
}

static void too_wide(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    right(d, y, a, b);
    store(y, 0, y.dim[1], 0);
}

static void too_early(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    right(d, y, a, b);
    store(y, 0, -1, 0);
}

static void spoils_input(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    right(d, y, a, b);
    store(b, 1, 1, 0);
}

static void restless(struct dev *d, struct tensor y, struct tensor a, struct tensor b)
{
    static int calls;

    right(d, y, a, b);
    store(y, 0, 0, load(y, 0, 0) + 1e-5f * (float)(calls++ % 2) * load(y, 0, 0));
}

static const char *verdict(void (*add)(struct dev *, struct tensor, struct tensor, struct tensor), enum dtype type,
                           const struct op_case *c)
{
    struct ops ops = ops_naive;
    struct dev d = { .kind = DEV_CUDA, .ops = &ops, .type = type };     /* the kind that may store bf16 */
    struct op_report r;

    ops.add = add;
    return check_op(&d, c, &r) ? "fine" : r.fault;
}

int main(void)
{
    static const struct op_case plain = { "add", "", .n = { 9, 33 } };
    double bytes, flops;

    for (enum dtype type = F32; type <= BF16; type++) {
        CHECK(!strcmp(verdict(right, type, &plain), "fine"));
        CHECK(!strcmp(verdict(imprecise, type, &plain), "wrong"));
        CHECK(!strcmp(verdict(incomplete, type, &plain), "wrong"));
        CHECK(!strcmp(verdict(ignores_stride, type, &plain), "wrong"));
        CHECK(!strcmp(verdict(too_wide, type, &plain), "wrote outside its output"));
        CHECK(!strcmp(verdict(too_early, type, &plain), "wrote outside its output"));
        CHECK(!strcmp(verdict(spoils_input, type, &plain), "changed its input"));
    }
    CHECK(!strcmp(verdict(restless, F32, &plain), "not the same bits twice"));
    check_op_cost(&plain, BF16, &bytes, &flops);
    CHECK(bytes == 3 * 9 * 33 * 2);
    for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c))
        CHECK(op_row_find(c->op) && c->note);
    return test_done("check_op");
}
