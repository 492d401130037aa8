/* check_data.c - lays a case out in one poisoned block of device memory, runs it, takes the
 * answers out and looks at what is left: every byte that belongs to nobody must still be poison. */
#include "check_data.h"
#include "ops.h"
#include "rng.h"
#include "safetensors.h"
#include <math.h>

const char *check_name(int i)
{
    return scan_slot[i].name;
}

struct tensor *check_tensor(struct scan_io *x, int i)
{
    return (struct tensor *)((char *)x + scan_slot[i].at);
}

static struct tensor spell(const struct check_data *m, const char *shape)
{
    int64_t dim[4] = { 0 };
    int n = (int)strlen(shape);

    REQUIRE(n >= 1 && n <= 4);
    for (int i = 0; i < n; i++)
        switch (shape[i]) {
        case 'T': dim[i] = m->seqs.tokens; break;
        case 'N': dim[i] = m->seqs.n;      break;
        case 'Q': dim[i] = m->c.Hq;        break;
        case 'G': dim[i] = m->c.Hk;        break;
        case 'H': dim[i] = m->c.H;         break;
        case 'V': dim[i] = m->c.V;         break;
        case 'K': dim[i] = m->c.K;         break;
        default:  BUG("no dimension is called %c", shape[i]);
        }
    return tensor_shape(F32, n, dim);
}

static const struct scan_field *field_of(const struct scan *f, int i)
{
    return scan_field_at(f, scan_slot[i].at);
}

static void data_shapes(struct check_data *m)
{
    struct scan_io x = { .scale = 1, .span = m->c.span };
    struct tensor state[SCAN_STATES] = { 0 }, saved[SCAN_SAVED] = { 0 };

    for (int i = 0; i < CHECK_INPUTS; i++) {
        const struct scan_field *p = field_of(m->scan, i);
        if (p && *p->shape)
            *check_tensor(&x, i) = m->shape[i] = spell(m, p->shape);
    }
    m->scan->plan(&m->seqs, &x, state, saved);
    for (int i = 0; i < SCAN_STATES; i++) {
        m->shape[CHECK_NEXT + i] = state[i];
        if (m->c.state)
            m->shape[CHECK_STATE + i] = state[i];
    }
    m->shape[CHECK_O] = spell(m, "THV");
    if (m->c.var && field_of(m->scan, CHECK_VAR))
        m->shape[CHECK_VAR] = spell(m, "THV");
}

struct check_data *check_new(const struct scan *f, const struct scan_case *c)
{
    struct check_data *m = mem_new(1, sizeof *m);

    m->scan = f;
    m->scale = 0.7f;
    m->c = *c;
    m->length = mem_new((size_t)c->n + 1, sizeof *m->length);
    m->start  = mem_new((size_t)c->n + 1, sizeof *m->start);
    for (int i = 0; i < c->n; i++) {
        m->length[i] = c->length[i];
        m->start[i + 1] = m->start[i] + c->length[i];
    }
    m->c.length = m->length;
    m->seqs = seqs_of(m->start, c->n);
    data_shapes(m);
    for (int i = 0; i < CHECK_FIELDS; i++) {
        m->storage[i] = scan_slot[i].storage;
        m->val[i]  = mem_new((size_t)tensor_count(m->shape[i]), sizeof(float));
        m->grad[i] = mem_new((size_t)tensor_count(m->shape[i]), sizeof(float));
    }
    return m;
}

void check_fill(struct check_data *m)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        const struct scan_field *p = i < CHECK_INPUTS ? field_of(m->scan, i) : NULL;
        float low = p ? p->low : -1, high = p ? p->high : 1;
        float *to = i < CHECK_INPUTS ? m->val[i] : m->grad[i];
        for (int64_t j = 0; j < tensor_count(m->shape[i]); j++) {
            double u = rng_uniform(m->c.seed, (uint64_t)i, (uint64_t)j);
            to[j] = i == CHECK_DECAY && m->c.decay ? m->c.decay[(int)(u * m->c.decays)]
                  : low + (float)u * (high - low);
        }
    }
}

void check_free(struct check_data *m)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        free(m->val[i]);
        free(m->grad[i]);
    }
    free(m->length);
    free(m->start);
    free(m);
}

void check_round(struct check_data *m, enum dtype type)
{
    for (int i = 0; type == BF16 && i < CHECK_FIELDS; i++)
        for (int64_t j = 0; m->storage[i] && j < tensor_count(m->shape[i]); j++) {
            m->val[i][j]  = float_of_bf16(bf16_of(m->val[i][j]));
            m->grad[i][j] = float_of_bf16(bf16_of(m->grad[i][j]));
        }
}

/* One block: tensors of x, tensors of g, tables of sequences, the two arenas, and room between
 * them. */
enum { GAP = 256, MARGIN = 8 };      /* bytes between pieces; elements beside columns */

struct layout {
    struct dev     dev;              /* the device with arenas of ours */
    struct arena   block;            /* plan only, then on the device */
    unsigned char *host;             /* the block's image */
    unsigned char *sent;             /* and what it was before the run */
    struct scan_io x, g;
    struct seqs    seqs;
    struct tensor  keep, temp, dstart, dseq;
};

static struct tensor piece(struct layout *l, struct tensor shape)
{
    struct tensor t = arena_push(&l->block, shape);

    arena_push(&l->block, SHAPE(F32, GAP / 4));
    return t;
}

static struct tensor place(struct layout *l, const struct check_data *m, int i)
{
    struct tensor t = m->shape[i], wide;

    t.type = m->storage[i] ? l->dev.type : F32;
    if (!m->c.strided || t.dim[0] != m->seqs.tokens || t.ndim < 2)
        return piece(l, t);
    wide = piece(l, SHAPE(t.type, t.dim[0], t.row + 2 * MARGIN));
    t.row = wide.row;
    if (wide.data)
        t.data = (char *)wide.data + MARGIN * dtype_size(t.type);
    return t;
}

/* Called twice: over a block without storage, which says its size, and over the real one. */
static void layout_place(struct layout *l, const struct check_data *m, size_t keep, size_t temp)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        int twin = i - CHECK_NEXT + CHECK_STATE;
        bool shares = m->inplace && i >= CHECK_NEXT && m->shape[twin].ndim;
        if (!m->shape[i].ndim)
            continue;
        if (!m->absent[0][i])
            *check_tensor(&l->x, i) = shares ? *check_tensor(&l->x, twin) : place(l, m, i);
        if (!m->absent[1][i])
            *check_tensor(&l->g, i) = place(l, m, i);
    }
    l->seqs   = m->seqs;
    l->dstart = piece(l, SHAPE(I32, m->seqs.n + 1));
    l->dseq   = piece(l, SHAPE(I32, m->seqs.tokens));
    l->keep   = piece(l, SHAPE(F32, (int64_t)keep / 4));
    l->temp   = piece(l, SHAPE(F32, (int64_t)temp / 4));
    if (l->dev.kind == DEV_CUDA) {
        l->seqs.dstart = l->dstart.data;
        l->seqs.dseq   = l->dseq.data;
    }
    l->dev.keep = (struct arena){ .base = l->keep.data, .size = keep };
    l->dev.temp = (struct arena){ .base = l->temp.data, .size = temp };
}

static void layout_dry(struct layout *l, const struct check_data *m, size_t *keep, size_t *temp)
{
    struct layout dry = { .dev = l->dev };

    dry.dev.dry = true;
    layout_place(&dry, m, 0, 0);
    scan_forward(&dry.dev, m->scan, &dry.seqs, &dry.x, &dry.dev.keep);
    scan_backward(&dry.dev, m->scan, &dry.seqs, &dry.x, &dry.g);
    *keep = dry.dev.keep.peak;
    *temp = dry.dev.temp.peak;
}

static void layout_open(struct layout *l, const struct check_data *m, const struct dev *d)
{
    size_t keep, temp;
    bool host = d->kind != DEV_CUDA;

    *l = (struct layout){ .dev = *d };
    l->dev.keep = l->dev.temp = (struct arena){ 0 };
    l->x.scale = l->g.scale = m->scale;
    l->x.span  = l->g.span = m->c.span;
    layout_dry(l, m, &keep, &temp);
    layout_place(l, m, keep, temp);
    l->block.size = l->block.peak;
    l->block.used = 0;
    l->host = mem_new(l->block.size + ARENA_ALIGN, 1);
    memset(l->host, 0xff, l->block.size + ARENA_ALIGN);
    if (host)
        l->block.base = (char *)l->host + (-(uintptr_t)l->host) % ARENA_ALIGN;
    else
        l->block.base = d->ops->alloc(&l->dev, l->block.size);
    if (!l->block.base)
        BUG("the device has no %zu bytes to check %s in", l->block.size, m->scan->name);
    layout_place(l, m, keep, temp);
}

/* Where a byte of the block lies in the host's image of it. */
static unsigned char *image(const struct layout *l, const void *p)
{
    if (l->dev.kind == DEV_CUDA)
        return l->host + ((const char *)p - l->block.base);
    return (unsigned char *)(uintptr_t)p;
}

static int64_t inner_of(struct tensor t)
{
    return t.dim[1] * t.dim[2] * t.dim[3];
}

/* from NULL: value everywhere. */
static void tensor_write(const struct layout *l, struct tensor t, const float *from, float value)
{
    for (int64_t i = 0; t.data && i < t.dim[0]; i++) {
        unsigned char *to = image(l, t.data) + (size_t)(i * t.row) * dtype_size(t.type);
        for (int64_t j = 0; j < inner_of(t); j++) {
            float y = from ? from[i * inner_of(t) + j] : value;
            if (t.type == BF16)
                ((uint16_t *)(void *)to)[j] = bf16_of(y);
            else
                ((float *)(void *)to)[j] = y;
        }
    }
}

static float value_at(const void *from, enum dtype type, int64_t i)
{
    return type == BF16 ? float_of_bf16(((const uint16_t *)from)[i]) : ((const float *)from)[i];
}

/* Takes the values out, if y, and leaves poison behind. True if nothing has changed them. */
static bool tensor_read(const struct layout *l, struct tensor t, float *y)
{
    bool same = true;

    for (int64_t i = 0; t.data && i < t.dim[0]; i++) {
        unsigned char *from = image(l, t.data) + (size_t)(i * t.row) * dtype_size(t.type);
        size_t bytes = (size_t)inner_of(t) * dtype_size(t.type);
        for (int64_t j = 0; y && j < inner_of(t); j++)
            y[i * inner_of(t) + j] = value_at(from, t.type, j);
        same = same && !memcmp(from, l->sent + (from - image(l, l->block.base)), bytes);
        memset(from, 0xff, bytes);
    }
    return same;
}

static void layout_put(struct layout *l, struct check_data *m)
{
    for (int i = 0; i < CHECK_FIELDS; i++) {
        if (i < CHECK_INPUTS)
            tensor_write(l, *check_tensor(&l->x, i), m->val[i], 0);
        else
            tensor_write(l, *check_tensor(&l->g, i), m->grad[i], 0);
        if (i >= CHECK_PRIOR && i < CHECK_STATE)
            tensor_write(l, *check_tensor(&l->g, i), NULL, m->weight_grad);
    }
    memcpy(image(l, l->dstart.data), m->start, ((size_t)m->seqs.n + 1) * sizeof *m->start);
    seqs_expand(&m->seqs, (int32_t *)(void *)image(l, l->dseq.data), NULL);
    l->sent = mem_new(l->block.size, 1);
    memcpy(l->sent, image(l, l->block.base), l->block.size);
    if (l->dev.kind == DEV_CUDA)
        l->dev.ops->put(&l->dev, l->block.base, l->host, l->block.size);
}

static void layout_run(struct layout *l, const struct check_data *m, bool keep, bool backward)
{
    size_t mark = arena_mark(&l->dev.keep);

    scan_forward(&l->dev, m->scan, &l->seqs, &l->x, keep ? &l->dev.keep : NULL);
    if (backward)
        scan_backward(&l->dev, m->scan, &l->seqs, &l->x, &l->g);
    arena_pop(&l->dev.keep, mark);
}

static double layout_time(struct layout *l, const struct check_data *m, bool backward)
{
    double best = INFINITY;

    for (int i = 0; i < m->repeats; i++) {
        double t = time_now();
        layout_run(l, m, backward, backward);
        if (l->dev.kind == DEV_CUDA)
            l->dev.ops->sync(&l->dev);
        best = fmin(best, time_now() - t);
    }
    return best;
}

/* Reads all results, then wipes what is allowed to be written; anything left is a stray write. */
static const char *layout_get(struct layout *l, struct check_data *m)
{
    const unsigned char *first = image(l, l->block.base);
    const char *wrong = NULL;

    if (l->dev.kind == DEV_CUDA)
        l->dev.ops->get(&l->dev, l->host, l->block.base, l->block.size);
    for (int i = CHECK_FIELDS - 1; i >= 0; i--) {       /* next before the state it may lie in */
        bool in = i < CHECK_INPUTS, twin = m->inplace && i >= CHECK_STATE && i < CHECK_O;
        bool out = in && !m->forward_only;              /* its gradient was computed */
        bool x_same = tensor_read(l, *check_tensor(&l->x, i), in ? NULL : m->val[i]);
        bool g_same = tensor_read(l, *check_tensor(&l->g, i), out ? m->grad[i] : NULL);
        if (in && !x_same && !twin)
            wrong = scan_slot[i].name;
        if (!in && !g_same)
            wrong = "a gradient that came in";
    }
    memset(image(l, l->dstart.data), 0xff, ((size_t)m->seqs.n + 1) * 4);
    memset(image(l, l->dseq.data), 0xff, (size_t)m->seqs.tokens * 4);
    memset(image(l, l->keep.data), 0xff, l->dev.keep.size);
    memset(image(l, l->temp.data), 0xff, l->dev.temp.size);
    if (*first != 0xff || memcmp(first, first + 1, l->block.size - 1))     /* all equal the first */
        wrong = "memory that belongs to nobody";
    return wrong;
}

const char *check_run(struct check_data *m, const struct dev *d)
{
    struct layout l;
    const char *wrong;

    layout_open(&l, m, d);
    layout_put(&l, m);
    layout_run(&l, m, !m->forward_only, !m->forward_only);
    if (m->repeats)
        m->time = (struct scan_time){ layout_time(&l, m, false), layout_time(&l, m, true) };
    wrong = layout_get(&l, m);
    if (d->kind == DEV_CUDA)
        d->ops->release(&l.dev, l.block.base);
    free(l.sent);
    free(l.host);
    return wrong;
}
