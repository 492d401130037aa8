/* pickle_calls.c - what a pickle may call, as data: names, storages, tensors. */
#include "pickle_parts.h"

static struct value *top(struct machine *m)
{
    return m->depth ? &m->value[m->stack[m->depth - 1]] : NULL;
}

static bool same(const struct value *v, const char *text)
{
    return v->kind == TEXT && (size_t)v->number == strlen(text) && !memcmp(v->text, text, (size_t)v->number);
}

/* GLOBAL: two lines, module and name. Known ones become data. */
int pickle_name(struct machine *m)
{
    static const struct { const char *name; enum callable what; enum st_type type; } known[] = {
        { "collections\nOrderedDict\n", ORDERED_DICT, 0 },
        { "torch._utils\n_rebuild_tensor_v2\n", REBUILD_TENSOR, 0 },
        { "torch._utils\n_rebuild_parameter\n", REBUILD_PARAMETER, 0 },
        { "torch\nFloatStorage\n", STORAGE_TYPE, ST_F32 }, { "torch\nHalfStorage\n", STORAGE_TYPE, ST_F16 },
        { "torch\nBFloat16Storage\n", STORAGE_TYPE, ST_BF16 }, { "torch\nDoubleStorage\n", STORAGE_TYPE, ST_F64 },
        { "torch\nLongStorage\n", STORAGE_TYPE, ST_I64 }, { "torch\nIntStorage\n", STORAGE_TYPE, ST_I32 },
        { "torch\nShortStorage\n", STORAGE_TYPE, ST_I16 }, { "torch\nCharStorage\n", STORAGE_TYPE, ST_I8 },
        { "torch\nByteStorage\n", STORAGE_TYPE, ST_U8 }, { "torch\nBoolStorage\n", STORAGE_TYPE, ST_BOOL },
    };
    const char *at = m->data + m->at, *dot, *end;
    char said[96];
    int n;

    for (size_t i = 0; i < LEN(known); i++) {
        size_t length = strlen(known[i].name);
        if (length <= m->n - m->at && !memcmp(at, known[i].name, length)) {
            struct value *v = pickle_push(m, NAME, known[i].what);
            v->type = known[i].type;
            m->at += length;
            return 0;
        }
    }
    dot = memchr(at, '\n', m->n - m->at);
    end = dot ? memchr(dot + 1, '\n', m->n - (size_t)(dot + 1 - m->data)) : NULL;
    if (!end)
        return pickle_bad(m, "a name that does not end");
    n = (int)(end - at < 90 ? end - at : 90);
    for (int i = 0; i < n; i++)
        said[i] = at[i] == '\n' ? '.' : at[i] < ' ' || at[i] > '~' ? '?' : at[i];
    said[n] = 0;
    return fail("%s: byte %zu of its pickle: it asks for %s, which is not one of the names that tensors need; "
                "nothing was executed", m->path, m->at, said);
}

/* The elements of a tuple, in order; false unless there are exactly n. Links of a tuple are in order. */
static bool elements(const struct machine *m, const struct value *v, int64_t *out, int n)
{
    int64_t l = v->first;

    if (v->kind != TUPLE || v->number != n)
        return false;
    for (int i = 0; i < n; i++, l = m->link[l].next)
        out[i] = m->link[l].value;
    return true;
}

/* BINPERSID: ("storage", type, key, device, elements). */
int pickle_storage(struct machine *m)
{
    struct value *v = top(m);
    int64_t e[5];
    struct storage s;

    if (!v || !elements(m, v, e, 5) || !same(&m->value[e[0]], "storage") || m->value[e[1]].kind != NAME ||
        m->value[e[1]].number != STORAGE_TYPE || m->value[e[2]].kind != TEXT || m->value[e[4]].kind != INT ||
        m->value[e[4]].number < 0)
        return pickle_bad(m, "a storage that is not (\"storage\", type, key, device, elements)");
    s = (struct storage){ m->value[e[1]].type, e[2], m->value[e[4]].number };
    ROOM(m->storage, m->nstorage);
    m->storage[m->nstorage] = s;
    m->depth--;
    pickle_push(m, STORAGE, 0)->first = m->nstorage++;
    return 0;
}

static bool numbers(const struct machine *m, const struct value *v, int64_t *out, int *n)
{
    int64_t e[ST_DIMS];

    if (v->kind != TUPLE || v->number > ST_DIMS || !elements(m, v, e, (int)v->number))
        return false;
    *n = (int)v->number;
    for (int i = 0; i < *n; i++) {
        if (m->value[e[i]].kind != INT || m->value[e[i]].number < 0)
            return false;
        out[i] = m->value[e[i]].number;
    }
    return true;
}

/* _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks[, metadata]) */
static int rebuild(struct machine *m, const struct value *args)
{
    struct pickle_tensor t = { 0 };
    int64_t e[7];
    int strides;

    if ((!elements(m, args, e, 6) && !elements(m, args, e, 7)) || m->value[e[0]].kind != STORAGE ||
        m->value[e[1]].kind != INT || m->value[e[1]].number < 0 || !numbers(m, &m->value[e[2]], t.dim, &t.ndim) ||
        !numbers(m, &m->value[e[3]], t.stride, &strides) || strides != t.ndim)
        return pickle_bad(m, "a tensor that is not (storage, offset, sizes, strides, ...)");
    t.offset = m->value[e[1]].number;
    t.elements = m->value[e[0]].first;                     /* which storage, until the names are known */
    ROOM(m->tensor, m->ntensor);
    m->tensor[m->ntensor] = t;
    m->depth -= 2;
    pickle_push(m, TENSOR, 0)->first = m->ntensor++;
    return 0;
}

int pickle_reduce(struct machine *m)
{
    struct value *args = top(m), *f = m->depth >= 2 ? &m->value[m->stack[m->depth - 2]] : NULL;
    int64_t e[3];

    if (!f || f->kind != NAME || args->kind != TUPLE)
        return pickle_bad(m, "a call of what is not a known name");
    if (f->number == ORDERED_DICT && args->number == 0) {
        m->depth -= 2;
        pickle_push(m, DICT, 0);
        return 0;
    }
    if (f->number == REBUILD_TENSOR)
        return rebuild(m, args);
    if (f->number == REBUILD_PARAMETER && elements(m, args, e, 3) && m->value[e[0]].kind == TENSOR) {
        m->depth -= 2;
        pickle_push_index(m, e[0]);
        return 0;
    }
    return pickle_bad(m, "a call with arguments that its name does not take");
}

