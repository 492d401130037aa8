/* check_scan.c - the laws. Each runs a case as a whole and in another way, and compares all
 * tensors. */
#include "check_data.h"
#include "rng.h"
#include <math.h>

/* What rounding leaves of F32 sums in another order; twice what rounding to 8 bits of mantissa
 * costs. */
#define ALLOWED_F32  2e-4
#define ALLOWED_BF16 (2 * 1.66e-3)
/* A head whose values vanish beside the other heads' is not measured against its own rounding
 * noise. */
#define VANISHES     1e-6

static const struct dev naive = { .kind = DEV_NAIVE, .type = F32, .threads = 1 };

static void worse(struct scan_error *e, double error, const char *law, const char *grad,
                  const char *field, int64_t head)
{
    if (error <= e->worst)
        return;
    e->worst = isnan(error) ? (double)INFINITY : error;
    if (!str_format(e->where, sizeof e->where, "%s: %s%s, head %lld", law, grad, field,
                    (long long)head))
        BUG("a field's name is too long");
}

/* Heads lie in the second dimension, in weights in the first. Errors are root mean squares over
 * those of the values; every head is measured, and so is the whole. */
static void compare_tensor(struct scan_error *e, const char *law, const char *grad, int field,
                           struct tensor shape, const float *got, const float *want, double allowed)
{
    int64_t heads = shape.dim[shape.ndim > 1], outer = shape.ndim > 1 ? shape.dim[0] : 1;
    int64_t inner = heads && outer ? tensor_count(shape) / heads / outer : 0;
    double *sum = mem_new(2 * (size_t)heads, sizeof *sum), all = 0, err = 0;

    for (int64_t i = 0; i < outer; i++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t j = (i * heads + h) * inner; j < (i * heads + h + 1) * inner; j++) {
                sum[2 * h]     += ((double)got[j] - want[j]) * ((double)got[j] - want[j]);
                sum[2 * h + 1] += (double)want[j] * want[j];
            }
    for (int64_t h = 0; h < heads; h++) {
        err += sum[2 * h];
        all += sum[2 * h + 1];
    }
    worse(e, sqrt(err) / (allowed * sqrt(all) + 1e-35), law, grad, check_name(field), -1);
    for (int64_t h = 0; h < heads; h++) {
        double least = VANISHES * VANISHES * all / (double)heads;
        worse(e, sqrt(sum[2 * h]) / (allowed * sqrt(fmax(sum[2 * h + 1], least)) + 1e-35), law,
              grad, check_name(field), h);
    }
    free(sum);
}

static void compare(struct scan_error *e, const char *law, const struct check_data *got,
                    const struct check_data *want, enum dtype type, bool backward)
{
    double allowed = type == BF16 ? ALLOWED_BF16 : ALLOWED_F32;

    for (int i = 0; i < CHECK_FIELDS; i++) {
        if (!got->shape[i].ndim)
            continue;
        if (i >= CHECK_INPUTS && !got->absent[0][i])
            compare_tensor(e, law, "", i, got->shape[i], got->val[i], want->val[i], allowed);
        if (i < CHECK_INPUTS && backward && !got->absent[1][i])
            compare_tensor(e, law, "gradient of ", i, got->shape[i], got->grad[i], want->grad[i],
                           allowed);
    }
}

static void run(struct scan_error *e, const char *law, struct check_data *m, const struct dev *d)
{
    const char *wrong = check_run(m, d);

    if (wrong)
        worse(e, INFINITY, law, "writes to ", wrong, -1);
}

static struct check_data *fresh(const struct scan *f, const struct scan_case *c, enum dtype type)
{
    struct check_data *m = check_new(f, c);

    check_fill(m);
    check_round(m, type);
    return m;
}

/* Several tokens or sequences of one array into another. */
static void move(const struct check_data *m, int field, float *to, int64_t to_row,
                 const float *from, int64_t from_row, int64_t rows)
{
    int64_t inner = m->shape[field].row;

    if (rows && inner)
        memcpy(to + to_row * inner, from + from_row * inner, (size_t)(rows * inner) * sizeof *to);
}

static bool is_tokens(int field)
{
    return field < CHECK_PRIOR || field == CHECK_O || field == CHECK_VAR;
}

/* Tokens of what is given (values of inputs, gradients of outputs), and the weights. */
static void give(struct check_data *part, int64_t to, const struct check_data *whole, int64_t from,
                 int64_t tokens)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        if (is_tokens(i) && i < CHECK_INPUTS)
            move(part, i, part->val[i], to, whole->val[i], from, tokens);
        else if (is_tokens(i))
            move(part, i, part->grad[i], to, whole->grad[i], from, tokens);
        else if (i < CHECK_STATE)
            memcpy(part->val[i], whole->val[i],
                   (size_t)tensor_count(whole->shape[i]) * sizeof(float));
    }
}

/* Tokens of what was computed. */
static void take(struct check_data *whole, int64_t to, const struct check_data *part, int64_t from,
                 int64_t tokens)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        if (is_tokens(i) && i < CHECK_INPUTS)
            move(part, i, whole->grad[i], to, part->grad[i], from, tokens);
        else if (is_tokens(i))
            move(part, i, whole->val[i], to, part->val[i], from, tokens);
    }
}

static void take_weights(struct check_data *whole, const struct check_data *part)
{
    for (int i = CHECK_PRIOR; i < CHECK_STATE; i++)
        for (int64_t j = 0; j < tensor_count(whole->shape[i]); j++)
            whole->grad[i][j] += part->grad[i][j];
}

static double loss(const struct check_data *m)
{
    double sum = 0;

    for (int i = CHECK_O; i < CHECK_FIELDS; i++)
        for (int64_t j = 0; j < tensor_count(m->shape[i]); j++)
            sum += (double)m->val[i][j] * m->grad[i][j];
    return sum;
}

/* The slope along a random direction, from four points: the error falls with the fourth power of
 * the step. */
static double slope(struct check_data *m, int field, const float *dir)
{
    static const struct { double at, weight; } point[] = {
        { 1, 8 }, { -1, -8 }, { 2, -1 }, { -2, 1 },
    };
    const double step = 1e-2;
    int64_t count = tensor_count(m->shape[field]);
    float *value = m->val[field], *moved = mem_new((size_t)count, sizeof *moved);
    double sum = 0;

    m->val[field] = moved;
    for (size_t p = 0; p < LEN(point); p++) {
        for (int64_t j = 0; j < count; j++)
            moved[j] = value[j] + (float)(step * point[p].at) * dir[j];
        check_run(m, &naive);
        sum += point[p].weight * loss(m);
    }
    m->val[field] = value;
    free(moved);
    return sum / (12 * step);
}

struct scan_error check_scan_definition(const struct scan *f, const struct scan_case *c)
{
    struct scan_error e = { 0 };
    struct check_data *m = fresh(f, c, F32);

    run(&e, "definition", m, &naive);
    m->forward_only = true;
    for (int i = 0; i < CHECK_INPUTS; i++) {
        int64_t count = tensor_count(m->shape[i]);
        float *dir = mem_new((size_t)count, sizeof *dir);
        double want, got = 0, square = 0;

        for (int64_t j = 0; j < count; j++) {
            double u = 2 * rng_uniform(c->seed, (uint64_t)(100 + i), (uint64_t)j) - 1;
            dir[j] = (float)u;
            got    += u * m->grad[i][j];
            square += u * m->grad[i][j] * u * m->grad[i][j];
        }
        if (count) {
            want = slope(m, i, dir);
            worse(&e, fabs(got - want) / (ALLOWED_F32 * (fabs(want) + sqrt(square)) + 1e-35),
                  "definition", "gradient of ", check_name(i), -1);
        }
        free(dir);
    }
    check_free(m);
    return e;
}

struct scan_error check_scan_agreement(struct dev *d, const struct scan *f,
                                       const struct scan_case *c)
{
    struct scan_error e = { 0 };
    struct check_data *want = fresh(f, c, d->type), *got = fresh(f, c, d->type);

    run(&e, "naive", want, &naive);
    run(&e, "agreement", got, d);
    compare(&e, "agreement", got, want, d->type, true);
    check_free(want);
    check_free(got);
    return e;
}

struct scan_error check_scan_packing(struct dev *d, const struct scan *f, const struct scan_case *c)
{
    struct scan_error e = { 0 };
    struct check_data *whole = fresh(f, c, d->type), *sum = check_new(f, c);

    run(&e, "packing", whole, d);
    for (int n = 0; n < c->n; n++) {
        struct scan_case alone = *c;
        alone.length = &c->length[n];
        alone.n = 1;
        struct check_data *part = check_new(f, &alone);
        give(part, 0, whole, whole->start[n], c->length[n]);
        for (int i = 0; i < SCAN_STATES; i++) {
            move(whole, CHECK_STATE + i, part->val[CHECK_STATE + i], 0, whole->val[CHECK_STATE + i],
                 n, 1);
            move(whole, CHECK_NEXT + i, part->grad[CHECK_NEXT + i], 0, whole->grad[CHECK_NEXT + i],
                 n, 1);
        }
        run(&e, "packing", part, d);
        take(sum, whole->start[n], part, 0, c->length[n]);
        take_weights(sum, part);
        for (int i = 0; i < SCAN_STATES; i++) {
            move(whole, CHECK_STATE + i, sum->grad[CHECK_STATE + i], n, part->grad[CHECK_STATE + i],
                 0, 1);
            move(whole, CHECK_NEXT + i, sum->val[CHECK_NEXT + i], n, part->val[CHECK_NEXT + i], 0,
                 1);
        }
        check_free(part);
    }
    compare(&e, "packing", sum, whole, d->type, true);
    check_free(sum);
    check_free(whole);
    return e;
}

/* Copies one array of every memory. */
static void hand_over(struct check_data *m, float *const *to, float *const *from)
{
    for (int i = 0; i < SCAN_STATES; i++)
        move(m, CHECK_NEXT + i, to[i], 0, from[i], 0, m->seqs.n);
}

static void split_run(struct scan_error *e, struct dev *d, struct check_data *whole,
                      struct check_data *a, struct check_data *b)
{
    if (whole->c.state)
        hand_over(a, a->val + CHECK_STATE, whole->val + CHECK_STATE);
    run(e, "splitting", a, d);
    hand_over(b, b->val + CHECK_STATE, a->val + CHECK_NEXT);
    hand_over(b, b->grad + CHECK_NEXT, whole->grad + CHECK_NEXT);
    run(e, "splitting", b, d);
    hand_over(a, a->grad + CHECK_NEXT, b->grad + CHECK_STATE);
    run(e, "splitting", a, d);
}

struct scan_error check_scan_splitting(struct dev *d, const struct scan *f,
                                       const struct scan_case *c)
{
    struct scan_error e = { 0 };
    struct check_data *whole = fresh(f, c, d->type), *sum = check_new(f, c), *a, *b;
    int32_t *head = mem_new((size_t)c->n, sizeof *head);
    int32_t *tail = mem_new((size_t)c->n, sizeof *tail);
    struct scan_case before = *c, after = *c;

    before.length = head;
    after.length  = tail;
    after.state   = true;
    for (int n = 0; n < c->n; n++) {
        head[n] = c->length[n] * (n % 3 + 1) / 4;
        tail[n] = c->length[n] - head[n];
    }
    a = check_new(f, &before);
    b = check_new(f, &after);
    for (int n = 0; n < c->n; n++) {
        give(a, a->start[n], whole, whole->start[n], head[n]);
        give(b, b->start[n], whole, whole->start[n] + head[n], tail[n]);
    }
    run(&e, "splitting", whole, d);
    split_run(&e, d, whole, a, b);
    for (int n = 0; n < c->n; n++) {
        take(sum, whole->start[n], a, a->start[n], head[n]);
        take(sum, whole->start[n] + head[n], b, b->start[n], tail[n]);
    }
    take_weights(sum, a);
    take_weights(sum, b);
    hand_over(b, sum->val + CHECK_NEXT, b->val + CHECK_NEXT);
    if (c->state)
        hand_over(a, sum->grad + CHECK_STATE, a->grad + CHECK_STATE);
    compare(&e, "splitting", sum, whole, d->type, true);
    check_free(a);
    check_free(b);
    check_free(sum);
    check_free(whole);
    free(head);
    free(tail);
    return e;
}

/* Step t of every sequence that is so long; the others are empty in this row. */
static void decode_step(struct scan_error *e, struct dev *d, struct check_data *whole,
                        struct check_data *sum, int64_t t)
{
    const struct scan_case *c = &whole->c;
    int32_t *one = mem_new((size_t)c->n, sizeof *one);
    struct scan_case now = *c;
    struct check_data *part;

    for (int n = 0; n < c->n; n++)
        one[n] = t < c->length[n];
    now.length = one;
    now.state  = true;
    part = check_new(whole->scan, &now);
    part->inplace = part->forward_only = true;
    for (int n = 0; n < c->n; n++)
        give(part, part->start[n], whole, whole->start[n] + t, one[n]);
    hand_over(part, part->val + CHECK_STATE, sum->val + CHECK_NEXT);
    run(e, "decoding", part, d);
    hand_over(part, sum->val + CHECK_NEXT, part->val + CHECK_NEXT);
    for (int n = 0; n < c->n; n++)
        take(sum, whole->start[n] + t, part, part->start[n], one[n]);
    check_free(part);
    free(one);
}

struct scan_error check_scan_decoding(struct dev *d, const struct scan *f,
                                      const struct scan_case *c)
{
    struct scan_error e = { 0 };
    struct check_data *whole = fresh(f, c, d->type), *sum = check_new(f, c);

    run(&e, "decoding", whole, d);
    if (c->state)
        hand_over(sum, sum->val + CHECK_NEXT, whole->val + CHECK_STATE);
    for (int64_t t = 0; t < whole->seqs.longest; t++)
        decode_step(&e, d, whole, sum, t);
    compare(&e, "decoding", sum, whole, d->type, false);
    check_free(sum);
    check_free(whole);
    return e;
}

static void same_bits(struct scan_error *e, const struct check_data *a, const struct check_data *b)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        size_t bytes = (size_t)tensor_count(a->shape[i]) * sizeof(float);
        bool out = i >= CHECK_INPUTS;
        if (bytes && memcmp(out ? a->val[i] : a->grad[i], out ? b->val[i] : b->grad[i], bytes))
            worse(e, INFINITY, "purity", out ? "" : "gradient of ", check_name(i), -1);
    }
}

/* A gradient that is not handed in is zero, and one that is not asked for changes no other. */
static void absences(struct scan_error *e, struct dev *d, const struct check_data *want,
                     struct check_data *got, struct check_data *zero)
{
    for (int odd = 0; odd < 2; odd++) {
        for (int i = 0; i < CHECK_INPUTS; i++)
            got->absent[1][i] = i % 2 == odd;
        run(e, "not wanted", got, d);
        compare(e, "not wanted", got, want, d->type, true);
    }
    memset(got->absent, 0, sizeof got->absent);

    for (int i = CHECK_O; i <= CHECK_NEXT; i++) {
        for (int j = i; j < (i == CHECK_NEXT ? CHECK_FIELDS : i + 1); j++) {
            got->absent[1][j] = got->absent[0][j] = true;
            got->absent[0][CHECK_O] = false;
            memset(zero->grad[j], 0, (size_t)tensor_count(zero->shape[j]) * sizeof(float));
        }
        run(e, "no gradient", zero, d);
        run(e, "no gradient", got, d);
        compare(e, "no gradient", got, zero, d->type, true);
    }
}

struct scan_error check_scan_purity(struct dev *d, const struct scan *f, const struct scan_case *c)
{
    struct scan_error e = { 0 };
    struct check_data *a = fresh(f, c, d->type), *b = fresh(f, c, d->type);
    struct check_data *zero = fresh(f, c, d->type);

    run(&e, "purity", a, d);
    run(&e, "purity", b, d);
    same_bits(&e, a, b);

    b->weight_grad = 0.25f;
    run(&e, "purity", b, d);
    for (int i = CHECK_PRIOR; i < CHECK_STATE; i++)
        for (int64_t j = 0; j < tensor_count(b->shape[i]); j++) {
            double once = a->grad[i][j], error = fabs(b->grad[i][j] - once - 0.25);
            error /= 1e-6 * (1 + fabs(once));
            worse(&e, error, "adding up", "gradient of ", check_name(i), j);
        }
    b->weight_grad = 0;

    b->forward_only = true;
    run(&e, "purity", b, d);
    compare(&e, "forward alone", b, a, d->type, false);
    b->forward_only = false;

    absences(&e, d, a, b, zero);
    check_free(a);
    check_free(b);
    check_free(zero);
    return e;
}

struct scan_error check_scan(struct dev *d, const struct scan *f, const struct scan_case *c)
{
    typedef struct scan_error law_fn(struct dev *, const struct scan *, const struct scan_case *);
    law_fn *const law[] = {
        check_scan_agreement, check_scan_packing, check_scan_splitting, check_scan_decoding,
        check_scan_purity,
    };
    struct scan_error worst = { 0 };

    for (size_t i = 0; i < LEN(law) && worst.worst <= 1; i++) {
        struct scan_error e = law[i](d, f, c);
        if (e.worst > worst.worst)
            worst = e;
    }
    return worst;
}

double scan_case_updates(const struct scan_case *c)
{
    double tokens = 0;

    for (int n = 0; n < c->n; n++)
        tokens += c->length[n];
    return tokens * (double)c->H * (double)c->V * (double)c->K;
}

struct scan_time check_scan_time(struct dev *d, const struct scan *f, const struct scan_case *c,
                                 int repeats)
{
    struct check_data *m = fresh(f, c, d->type);
    struct scan_time time;

    m->repeats = repeats;
    check_run(m, d);
    time = m->time;
    check_free(m);
    return time;
}
