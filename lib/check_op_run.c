/* check_op_run.c - arguments in frames of guard words, on any device. */
#include "check_op_run.h"
#include "half.h"

enum { GUARD = 64 };
static const uint16_t POISON = 0x7fc5;      /* a NaN in bf16, and twice in a row a NaN in fp32 */

int op_plan_find(const struct op_plan *p, const char *name)
{
    for (int i = 0; name && i < p->n; i++)
        if (!strcmp(p->arg[i].name, name) && p->arg[i].role != ARG_ABSENT)
            return i;
    return -1;
}

struct op_plan op_plan_of(const struct op_row *row, const struct op_case *c, enum dtype type)
{
    struct op_plan p = { .type = type };

    row->plan(&p, c);
    return p;
}

static int64_t inner(struct tensor t)
{
    return t.dim[1] * t.dim[2] * t.dim[3];
}

static size_t place(const struct frame *f, int64_t i)          /* byte offset of element i in its frame */
{
    int64_t n = inner(f->t) ? inner(f->t) : 1;

    return (size_t)(f->lead + i / n * f->t.row + i % n) * dtype_size(f->t.type);
}

static void to_frame(const struct frame *f, const float *value, char *out)
{
    for (size_t i = 0; i < f->bytes / 2; i++)
        memcpy(out + 2 * i, &POISON, 2);
    for (int64_t i = 0; value && i < tensor_count(f->t); i++) {
        uint16_t half = bf16_of(value[i]);
        int32_t  whole = f->t.type == I32 ? (int32_t)value[i] : 0;
        const void *from = f->t.type == F32 ? (const void *)&value[i] : (const void *)&whole;

        memcpy(out + place(f, i), f->t.type == BF16 ? &half : from, dtype_size(f->t.type));
    }
}

static void from_frame(const struct frame *f, const char *in, float *value)
{
    for (int64_t i = 0; i < tensor_count(f->t); i++) {
        uint16_t half;

        memcpy(f->t.type == BF16 ? (void *)&half : (void *)&value[i], in + place(f, i), dtype_size(f->t.type));
        if (f->t.type == BF16)
            value[i] = float_of_bf16(half);
    }
}

void run_open(struct run *r, struct dev *d, const struct op_row *row, const struct op_case *c)
{
    bool odd = !(c->flags & (CASE_LARGE | CASE_EVEN)), even = c->flags & CASE_EVEN;

    *r = (struct run){ .d = d, .c = c, .row = row, .plan = op_plan_of(row, c, d->type) };
    for (int i = 0; i < r->plan.n; i++) {
        struct frame *f = &r->f[i];

        if (r->plan.arg[i].role == ARG_ABSENT)
            continue;
        f->t    = r->plan.arg[i].shape;
        f->lead = odd ? GUARD + 3 : GUARD;
        if (odd && f->t.ndim > 1 && !r->plan.arg[i].dense)
            f->t.row += 5;
        if (even && f->t.ndim > 1 && !r->plan.arg[i].dense)
            f->t.row += 16;
        f->bytes = (size_t)(f->lead + f->t.dim[0] * f->t.row + GUARD) * dtype_size(f->t.type);
        f->mem   = op_alloc(d, f->bytes);
        if (!f->mem)
            BUG("no memory to check %s", c->op);
        f->t.data = f->mem + place(f, 0);
    }
    int same = op_plan_find(&r->plan, c->out), source = op_plan_find(&r->plan, c->in);
    if (same >= 0) {
        op_release(d, r->f[same].mem);
        r->f[same].mem      = NULL;
        r->f[same].t        = r->f[source].t;
        r->f[same].bytes    = r->f[source].bytes;
        r->f[source].shared = true;
    }
    if (r->plan.nseq) {
        size_t bytes = (size_t)(r->plan.nseq + 1) * sizeof(int32_t);
        int32_t *seq;

        r->seqs   = seqs_of(r->plan.start, r->plan.nseq);
        seq       = mem_new((size_t)r->seqs.tokens, sizeof *seq);
        seqs_expand(&r->seqs, seq, NULL);
        r->mem[0] = op_alloc(d, bytes);
        r->mem[1] = op_alloc(d, (size_t)r->seqs.tokens * sizeof *seq + 1);
        REQUIRE(r->mem[0] && r->mem[1]);
        op_put(d, r->mem[0], r->plan.start, bytes);
        op_put(d, r->mem[1], seq, (size_t)r->seqs.tokens * sizeof *seq);
        op_sync(d);
        r->seqs.dstart = r->mem[0];
        r->seqs.dseq   = r->mem[1];
        free(seq);
    }
}

void run_close(struct run *r)
{
    for (int i = 0; i < r->plan.n; i++)
        if (r->f[i].mem)
            op_release(r->d, r->f[i].mem);
    for (int i = 0; i < 2; i++)
        if (r->mem[i])
            op_release(r->d, r->mem[i]);
}

void run_load(struct run *r, float *const *value)
{
    for (int i = 0; i < r->plan.n; i++)
        if (r->f[i].mem) {
            char *host = mem_new(r->f[i].bytes, 1);

            to_frame(&r->f[i], r->plan.arg[i].role == ARG_OUT ? NULL : value[i], host);
            op_put(r->d, r->f[i].mem, host, r->f[i].bytes);
            op_sync(r->d);
            free(host);
        }
}

void run_call(struct run *r)
{
    struct tensor a[OP_ARGS] = { 0 };

    for (int i = 0; i < r->plan.n; i++)
        a[i] = r->f[i].t;
    r->row->call(r->d, r->c, a, &r->seqs);
}

char *run_frame(struct run *r, int i)
{
    const struct frame *f = &r->f[i];
    char *host = mem_new(f->bytes, 1);

    op_get(r->d, host, (char *)f->t.data - place(f, 0), f->bytes);
    return host;
}

void run_read(struct run *r, int i, float *value)
{
    char *host = run_frame(r, i);

    from_frame(&r->f[i], host, value);
    free(host);
}

const char *run_trespass(struct run *r, float *const *value)
{
    const char *fault = NULL;

    for (int i = 0; i < r->plan.n; i++) {
        struct frame *f = &r->f[i];
        bool input = r->plan.arg[i].role == ARG_IN && !f->shared;
        char *now, *then;

        if (!f->mem)
            continue;
        now  = run_frame(r, i);
        then = mem_new(f->bytes, 1);
        to_frame(f, input ? value[i] : NULL, then);
        for (int64_t e = 0; !input && e < tensor_count(f->t); e++)       /* an output may differ where it lives */
            memcpy(then + place(f, e), now + place(f, e), dtype_size(f->t.type));
        if (memcmp(now, then, f->bytes))
            fault = input ? "changed its input" : "wrote outside its output";
        free(now);
        free(then);
    }
    return fault;
}

