/* What ranks sum, share out and gather, with numbers whose sums are exact: in shared memory always, then by NCCL
 * where there are two GPUs (else skipped).
 *
 *   test_nccl [RANKS]         as many GPUs; 2 */
#include "comm.h"
#include "op.h"
#include "test.h"

enum { BUCKETS = 5 };
static const int64_t slices[BUCKETS] = { 1, 64, 1000, 70001, 300000 };      /* elements of a rank's slice */

/* Element i of rank r's bucket b: a whole number below 2^12. */
static float value(int r, int b, int64_t i)
{
    return (float)((i * 37 + r * 1009 + b * 7919) % 4093);
}

static struct tensor get(struct dev *d, int64_t n)
{
    struct tensor t = SHAPE(F32, n);

    t.data = op_alloc(d, (size_t)n * 4);
    REQUIRE(t.data);
    return t;
}

/* All buckets are under way together, as in backward; then each slice has the sum, the rest is untouched or not. */
static int64_t wrong_sums(struct comm *c, struct dev *d, struct tensor *whole, float *x)
{
    int64_t wrong = 0;

    for (int b = 0; b < BUCKETS; b++) {
        int64_t n = slices[b] * c->world;
        for (int64_t i = 0; i < n; i++)
            x[i] = value(c->rank, b, i);
        op_put(d, whole[b].data, x, (size_t)n * 4);
        c->scatter(c, tensor_rows(whole[b], c->rank * slices[b], slices[b]), whole[b]);
    }
    for (int b = 0; b < BUCKETS; b++) {
        op_get(d, x, tensor_rows(whole[b], c->rank * slices[b], slices[b]).data, (size_t)slices[b] * 4);
        for (int64_t i = 0; i < slices[b]; i++) {
            float sum = 0;
            for (int r = 0; r < c->world; r++)
                sum += value(r, b, c->rank * slices[b] + i);
            wrong += x[i] != sum;
        }
    }
    return wrong;
}

/* Gathered slices, of four bytes an element and then seen as pairs of them. */
static int64_t wrong_gathers(struct comm *c, struct dev *d, struct tensor *whole, float *x)
{
    int64_t wrong = 0;

    for (int b = 0; b < BUCKETS; b++) {
        int64_t n = slices[b] * c->world;
        struct tensor mine = tensor_rows(whole[b], c->rank * slices[b], slices[b]);
        op_fill(d, whole[b], NAN);
        for (int64_t i = 0; i < slices[b]; i++)
            x[i] = value(7, b, c->rank * slices[b] + i);
        op_put(d, mine.data, x, (size_t)slices[b] * 4);
        c->gather(c, whole[b], mine);
        op_get(d, x, whole[b].data, (size_t)n * 4);
        for (int64_t i = 0; i < n; i++)
            wrong += x[i] != value(7, b, i);
    }
    return wrong;
}

static int64_t wrong_numbers(struct comm *c, struct dev *d)
{
    float x[3] = { 1, (float)c->rank, c->rank == c->world - 1 }, n = (float)c->world;
    struct tensor t = get(d, 3);

    op_put(d, t.data, x, sizeof x);
    c->sum(c, t);
    op_get(d, x, t.data, sizeof x);
    op_release(d, t.data);
    return (x[0] != n) + (x[1] != n * (n - 1) / 2) + (x[2] != 1);
}

/* Every rank's doubts, so that all of them go on or none. */
static int64_t all_wrong(struct comm *c, struct dev *d, int64_t mine)
{
    float x = (float)mine;
    struct tensor t = get(d, 1);

    if (mine)
        printf("FAIL rank %d of %d by %s: %lld numbers are wrong\n", c->rank, c->world, comm_name(c), (long long)mine);
    op_put(d, t.data, &x, sizeof x);
    c->sum(c, t);
    op_get(d, &x, t.data, sizeof x);
    op_release(d, t.data);
    return x > 0;
}

/* Says what this rank found; the status of all. */
static int world(const char *device, int ranks)
{
    struct tensor whole[BUCKETS];
    struct comm c;
    struct dev d;
    char name[64];
    int64_t wrong = 0;
    float *x;

    if (comm_fork(&c, ranks))
        return 1;
    if (dev_of_rank(name, sizeof name, device, c.rank, ranks) || dev_open(&d, name, F32, 1))
        return comm_join(&c, 77);
    if (comm_use(&c, &d))
        return comm_join(&c, 77);
    if (!c.rank)
        printf("%d ranks by %s\n", ranks, comm_name(&c));
    x = mem_new((size_t)(slices[BUCKETS - 1] * ranks), sizeof *x);
    for (int b = 0; b < BUCKETS; b++)
        whole[b] = get(&d, slices[b] * ranks);
    for (int again = 0; again < 3 && !wrong; again++)
        wrong = all_wrong(&c, &d, wrong_sums(&c, &d, whole, x) + wrong_gathers(&c, &d, whole, x) +
                                  wrong_numbers(&c, &d));
    for (int b = 0; b < BUCKETS; b++)
        op_release(&d, whole[b].data);
    free(x);
    comm_leave(&c, false);
    dev_close(&d);
    return comm_join(&c, wrong > 0);
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 2, status;

    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(world("cpu", 3) == 0);
    status = world("cuda", ranks);
    CHECK(status == 0 || status == 77);
    return status == 77 ? test_skip("nccl", "this machine has no two GPUs that NCCL joins") : test_done("nccl");
}
