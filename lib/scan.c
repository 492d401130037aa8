/* scan.c - the door of the recurrences: shapes and types are checked here once, so that the
 * implementations may trust what they are given. */
#include "scan.h"
#include "op.h"

#define X(file) extern const struct scan scan_##file;
#include "scans.inc"
#undef X

static const struct scan *const all[] = {
#define X(file) &scan_##file,
#include "scans.inc"
#undef X
};

const struct scan *scan_find(const char *name)
{
    for (size_t i = 0; i < LEN(all); i++)
        if (!strcmp(all[i]->name, name))
            return all[i];
    return NULL;
}

const struct scan *scan_next(const struct scan *f)
{
    if (!f)
        return all[0];
    for (size_t i = 0; i + 1 < LEN(all); i++)
        if (all[i] == f)
            return all[i + 1];
    return NULL;
}

const struct scan_slot scan_slot[SCAN_SLOTS] = {
#define F(field, storage) { SCAN_AT(field), #field, storage }
    F(q, true), F(k, true), F(v, true), F(decay, false), F(beta, true), F(eta, true),
    F(prior[0], false), F(prior[1], false), F(prior[2], false),
    F(state[0], false), F(state[1], false), F(state[2], false), F(state[3], false),
    F(o, true), F(var, false),
    F(next[0], false), F(next[1], false), F(next[2], false), F(next[3], false),
#undef F
};

static struct tensor tensor_at(const struct scan_io *x, size_t at)
{
    return *(const struct tensor *)((const char *)x + at);
}

/* In a dry run nothing has data, so only a shape tells what is there. */
static bool present(const struct dev *d, struct tensor t)
{
    return t.ndim && (d->dry || t.data || !tensor_count(t));
}

static int64_t letter(const struct seqs *s, const struct scan_io *x, char c)
{
    switch (c) {
    case 'T': return s->tokens;
    case 'N': return s->n;
    case 'Q': return x->q.dim[1];
    case 'G': return x->k.dim[1];
    case 'H': return x->v.dim[1];
    case 'V': return x->v.dim[2];
    case 'K': return x->k.dim[2];
    default:  BUG("no dimension is called %c", c);
    }
}

static void check_shape(const struct scan *f, const char *field, struct tensor got,
                        struct tensor want)
{
    if (!tensor_same(got, want))
        BUG("scan %s: %s is [%lld,%lld,%lld,%lld], expected [%lld,%lld,%lld,%lld]", f->name, field,
            (long long)got.dim[0], (long long)got.dim[1], (long long)got.dim[2],
            (long long)got.dim[3], (long long)want.dim[0], (long long)want.dim[1],
            (long long)want.dim[2], (long long)want.dim[3]);
}

static struct tensor spell(const struct seqs *s, const struct scan_io *x, const char *shape)
{
    int64_t dim[4];
    int n = (int)strlen(shape);

    REQUIRE(n <= 4);
    for (int i = 0; i < n; i++)
        dim[i] = letter(s, x, shape[i]);
    return tensor_shape(F32, n, dim);
}

const struct scan_field *scan_field_at(const struct scan *f, size_t at)
{
    for (const struct scan_field *p = f->field; p->shape; p++)
        if (p->at == at)
            return p;
    return NULL;
}

/* The memory carried in that has the shape of one carried out. */
static size_t twin_of(size_t next)
{
    return next - SCAN_AT(next) + SCAN_AT(state);
}

static void check_values(const struct dev *d, const struct scan *f, const struct seqs *s,
                         const struct scan_io *x, const struct tensor *state)
{
    int64_t H = x->v.dim[1];

    if (H % x->q.dim[1] || H % x->k.dim[1])
        BUG("scan %s: %lld heads do not share %lld queries and %lld keys evenly", f->name,
            (long long)H, (long long)x->q.dim[1], (long long)x->k.dim[1]);
    for (size_t i = 0; i < LEN(scan_slot); i++) {
        size_t at = scan_slot[i].at;
        bool is_state = at >= SCAN_AT(state) && at < SCAN_AT(o), is_next = at >= SCAN_AT(next);
        const struct scan_field *p = scan_field_at(f, is_next ? twin_of(at) : at);
        struct tensor t = tensor_at(x, at), want;

        if (at == SCAN_AT(o))
            want = spell(s, x, "THV");
        else if (p)
            want = is_state ? state[(at - SCAN_AT(state)) / sizeof t]
                 : is_next ? state[(at - SCAN_AT(next)) / sizeof t] : spell(s, x, p->shape);
        else if (present(d, t))
            BUG("scan %s has no %s", f->name, scan_slot[i].name);
        else
            continue;

        if (present(d, t)) {
            check_shape(f, scan_slot[i].name, t, want);
            if (t.type != (scan_slot[i].storage ? d->type : F32))
                BUG("scan %s: %s is %s", f->name, scan_slot[i].name, dtype_name(t.type));
            if (want.dim[0] != s->tokens && !tensor_dense(t))
                BUG("scan %s: %s is not dense", f->name, scan_slot[i].name);
        } else if (!is_state && !is_next && at != SCAN_AT(var))
            BUG("scan %s needs %s", f->name, scan_slot[i].name);
    }
}

static void check_gradients(const struct dev *d, const struct scan *f, const struct scan_io *x,
                            const struct scan_io *g, const struct tensor *state,
                            const struct tensor *saved)
{
    for (size_t i = 0; i < LEN(scan_slot); i++) {
        size_t at = scan_slot[i].at;
        bool is_state = at >= SCAN_AT(state) && at < SCAN_AT(o), is_next = at >= SCAN_AT(next);
        struct tensor t = tensor_at(g, at);

        if (!present(d, t))
            continue;
        check_shape(f, scan_slot[i].name, t, is_state ? state[(at - SCAN_AT(state)) / sizeof t]
                                       : is_next ? state[(at - SCAN_AT(next)) / sizeof t]
                                       : at == SCAN_AT(var) ? x->o : tensor_at(x, at));
        if (t.type != (scan_slot[i].storage ? d->type : F32))
            BUG("scan %s: gradient of %s is %s", f->name, scan_slot[i].name, dtype_name(t.type));
    }
    for (int i = 0; i < SCAN_SAVED; i++)
        if (saved[i].ndim && !present(d, x->saved[i]))
            BUG("scan %s: backward after a forward that kept nothing", f->name);
}

static const struct scan_impl *pick(const struct dev *d, const struct scan *f)
{
    const struct scan_impl *impl = f->impl[d->kind];

    if (!impl && d->kind == DEV_CPU)
        impl = f->impl[DEV_NAIVE];
    if (!impl)
        BUG("scan %s has no implementation on device kind %d", f->name, (int)d->kind);
    return impl;
}

static void *scratch_push(struct dev *d, const struct scan_impl *impl, const struct seqs *s,
                          const struct scan_io *x, bool backward)
{
    int64_t bytes = impl->scratch ? impl->scratch(d, s, x, backward) : 0;

    return bytes ? arena_push(&d->temp, SHAPE(F32, (bytes + 3) / 4)).data : NULL;
}

static void run_forward(struct dev *d, const struct scan_impl *impl, const struct seqs *s, const struct scan_io *x)
{
    size_t mark = arena_mark(&d->temp);
    void *scratch = scratch_push(d, impl, s, x, false);

    if (!d->dry)
        impl->forward(d, s, x, scratch);
    arena_pop(&d->temp, mark);
}

/* Tokens [from, from + n) of the row, which are sequence i. */
static struct scan_io part_of(const struct scan_io *x, int64_t from, int64_t n, int64_t i)
{
    struct scan_io y = *x;

    for (size_t k = 0; k < LEN(scan_slot); k++) {
        size_t at = scan_slot[k].at;
        struct tensor *t = (struct tensor *)((char *)&y + at);
        bool prior = at >= SCAN_AT(prior) && at < SCAN_AT(state), state = at >= SCAN_AT(state) && at < SCAN_AT(o);

        if (t->ndim && !prior)
            *t = state || at >= SCAN_AT(next) ? tensor_rows(*t, i, 1) : tensor_rows(*t, from, n);
    }
    return y;
}

/* A plan knows no lengths: there, two of each number of tiles. */
static void plan_each(struct dev *d, const struct scan_impl *impl, const struct seqs *s, const struct scan_io *x)
{
    size_t mark = arena_mark(&d->temp);

    for (int64_t n = s->tokens; n > 0; n -= SEQ_TILE) {
        struct seqs one = { .tokens = n, .n = 1, .longest = n };
        struct scan_io y = part_of(x, 0, n, 0);

        scratch_push(d, impl, &one, &y, false);
        scratch_push(d, impl, &one, &y, false);
        arena_pop(&d->temp, mark);
    }
}

/* Every sequence as a row of its own; as many at a time as there is scratch for, none of it given back before all end.
 * In order they all use the same. */
static void run_each(struct dev *d, const struct scan_impl *impl, const struct seqs *s, const struct scan_io *x)
{
    size_t mark = arena_mark(&d->temp);
    bool aside = op_lane(d, -1);
    int lane = 0;

    for (int i = 0; i < s->n; i++) {
        int32_t start[2];
        struct seqs one = seqs_alone(s, i, start);
        struct scan_io y = part_of(x, s->start[i], one.tokens, i);
        int64_t bytes = impl->scratch ? impl->scratch(d, &one, &y, false) : 0;

        if (!one.tokens && x->next[0].data == x->state[0].data)
            continue;
        if (!aside || bytes + 2 * ARENA_ALIGN > (int64_t)(d->temp.size - d->temp.used)) {
            op_lane(d, -1);
            arena_pop(&d->temp, mark);
        }
        op_lane(d, lane++ % LANES_MOST);
        impl->forward(d, &one, &y, scratch_push(d, impl, &one, &y, false));
    }
    op_lane(d, -1);
    arena_pop(&d->temp, mark);
}

void scan_forward(struct dev *d, const struct scan *f, const struct seqs *s, struct scan_io *x,
                  struct arena *keep)
{
    const struct scan_impl *impl = pick(d, f);
    struct tensor state[SCAN_STATES] = { 0 }, saved[SCAN_SAVED] = { 0 };

    f->plan(s, x, state, saved);
    check_values(d, f, s, x, state);
    for (int i = 0; i < SCAN_SAVED; i++)
        x->saved[i] = keep && saved[i].ndim ? arena_push(keep, saved[i]) : (struct tensor){ 0 };
    REQUIRE(!d->alone || !keep);
    if (d->alone && s->n > 1)
        (d->dry ? plan_each : run_each)(d, impl, s, x);
    else
        run_forward(d, impl, s, x);
}

void scan_backward(struct dev *d, const struct scan *f, const struct seqs *s,
                   const struct scan_io *x, const struct scan_io *g)
{
    const struct scan_impl *impl = pick(d, f);
    struct tensor state[SCAN_STATES] = { 0 }, saved[SCAN_SAVED] = { 0 };
    size_t mark = arena_mark(&d->temp);

    f->plan(s, x, state, saved);
    check_gradients(d, f, x, g, state, saved);

    void *scratch = scratch_push(d, impl, s, x, true);
    if (!d->dry)
        impl->backward(d, s, x, g, scratch);
    arena_pop(&d->temp, mark);
}
