/* pickle.c - the stack machine. A value is an index into a table; the table only grows, and by at most
 * one value per opcode, so a pickle of n bytes never makes more than n values.
 *
 * Containers are lists of (key, value) pairs in one table of links: a dictionary's newest first, a
 * tuple's in order. */
#include "pickle_parts.h"

enum { DEPTH = 8, NAME_MOST = 512, PICKLE_MOST = 16 << 20 };     /* dictionaries within dictionaries; bytes */

int pickle_bad(const struct machine *m, const char *what)
{
    return fail("%s: byte %zu of its pickle: %s", m->path, m->at, what);
}

void pickle_push_index(struct machine *m, int64_t v)
{
    ROOM(m->stack, m->depth);
    m->stack[m->depth++] = v;
}

struct value *pickle_push(struct machine *m, enum kind kind, int64_t number)
{
    ROOM(m->value, m->nvalue);
    m->value[m->nvalue] = (struct value){ .kind = kind, .number = number, .first = -1 };
    pickle_push_index(m, m->nvalue);
    return &m->value[m->nvalue++];
}

static void add_link(struct machine *m, int64_t into, int64_t key, int64_t value)
{
    ROOM(m->link, m->nlink);
    m->link[m->nlink] = (struct link){ key, value, m->value[into].first };
    m->value[into].first = m->nlink++;
}

static const char *take(struct machine *m, size_t count)
{
    const char *at = m->data + m->at;

    if (count > m->n - m->at)
        return NULL;
    m->at += count;
    return at;
}

static bool little(struct machine *m, int bytes, int64_t *x)
{
    const char *at = take(m, (size_t)bytes);
    uint64_t u = 0;

    if (!at)
        return false;
    for (int i = bytes; i-- > 0;)
        u = u << 8 | (unsigned char)at[i];
    *x = (int64_t)u;
    return true;
}

static int push_text(struct machine *m, int width)
{
    int64_t n;
    const char *at;
    struct value *v;

    if (!little(m, width, &n) || n < 0 || !(at = take(m, (size_t)n)))
        return pickle_bad(m, "a text that does not end");
    v = pickle_push(m, TEXT, n);
    v->text = at;
    return 0;
}

/* LONG1: a two's complement number of up to eight bytes. */
static int push_long(struct machine *m)
{
    int64_t bytes, x = 0;

    if (!little(m, 1, &bytes) || bytes > 8 || !little(m, (int)bytes, &x))
        return pickle_bad(m, "a number of more than eight bytes");
    if (bytes && bytes < 8 && x >> (8 * bytes - 1))
        x -= (int64_t)1 << 8 * bytes;
    pickle_push(m, INT, x);
    return 0;
}

/* Everything above the last mark becomes links of the value below it, or of a new tuple. */
static int64_t find_mark(struct machine *m)
{
    int64_t i = m->depth - 1;

    while (i >= 0 && m->value[m->stack[i]].kind != MARK)
        i--;
    return i;
}

static int make_tuple(struct machine *m, int64_t from, int64_t drop)
{
    int64_t count = m->depth - from, old = m->depth, tuple;

    if (from < drop || count < 0)
        return pickle_bad(m, "a tuple without its elements");
    pickle_push(m, TUPLE, count);
    tuple = m->nvalue - 1;
    for (int64_t i = old - 1; i >= from; i--)
        add_link(m, tuple, -1, m->stack[i]);
    m->depth = from - drop;
    pickle_push_index(m, tuple);
    return 0;
}

static int set_items(struct machine *m, int64_t from, int64_t drop, enum kind kind)
{
    int64_t step = kind == DICT ? 2 : 1, into;

    if (from < 1 + drop || (m->depth - from) % step)
        return pickle_bad(m, "items without a container");
    into = m->stack[from - 1 - drop];
    if (m->value[into].kind != kind)
        return pickle_bad(m, "items for what is not their container");
    for (int64_t i = from; i < m->depth; i += step)
        add_link(m, into, kind == DICT ? m->stack[i] : -1, m->stack[i + step - 1]);
    m->depth = from - drop;
    return 0;
}

static int memo(struct machine *m, int64_t i, bool store)
{
    if (store && (i < 0 || i > (int64_t)m->n || !m->depth))
        return pickle_bad(m, "a memo of nothing");
    if (!store && (i < 0 || i >= m->nmemo || m->memo[i] < 0))
        return pickle_bad(m, "a memo that was not made");
    if (!store) {
        pickle_push_index(m, m->memo[i]);
        return 0;
    }
    if (i >= m->nmemo) {
        m->memo = mem_grow(m->memo, (size_t)(2 * i + 16), sizeof *m->memo);
        while (m->nmemo < 2 * i + 16)
            m->memo[m->nmemo++] = -1;
    }
    m->memo[i] = m->stack[m->depth - 1];
    return 0;
}

/* Opcodes without arguments but a number of `bytes`; false when this is none of them. */
static bool simple(struct machine *m, unsigned char op, int *status)
{
    int64_t x = 0;
    int bytes = op == 'K' || op == 'q' || op == 'h' || op == 0x80 ? 1 : op == 'M' ? 2
              : op == 'J' || op == 'r' || op == 'j' ? 4 : op == 'G' ? 8 : 0;

    *status = 0;
    if (bytes && !little(m, bytes, &x)) {
        *status = pickle_bad(m, "it ends in a number");
        return true;
    }
    switch (op) {
    case 0x80: *status = x >= 2 && x <= 3 ? 0 : pickle_bad(m, "expected protocol 2 or 3"); return true;
    case 'K': case 'M': pickle_push(m, INT, x); return true;
    case 'J': pickle_push(m, INT, (int32_t)x); return true;
    case 'G': pickle_push(m, REAL, 0); return true;
    case 'q': case 'r': *status = memo(m, x, true); return true;
    case 'h': case 'j': *status = memo(m, x, false); return true;
    case '(': pickle_push(m, MARK, 0); return true;
    case 'N': pickle_push(m, NONE, 0); return true;
    case 0x88: case 0x89: pickle_push(m, BOOL, op == 0x88); return true;
    case ')': pickle_push(m, TUPLE, 0); return true;
    case '}': pickle_push(m, DICT, 0); return true;
    case ']': pickle_push(m, LIST, 0); return true;
    default: return false;
    }
}

/* BUILD on a dictionary sets attributes (torch keeps versions there): nothing that we need. */
static int build(struct machine *m)
{
    if (m->depth < 2 || m->value[m->stack[m->depth - 2]].kind != DICT)
        return pickle_bad(m, "attributes of what is not a dictionary");
    m->depth--;
    return 0;
}

/* Only opcodes that consume what lies above the mark look for it: the search costs no more than they free. */
static int marked(struct machine *m, unsigned char op)
{
    int64_t mark = find_mark(m);

    if (mark < 0)
        return pickle_bad(m, "items without a mark");
    return op == 't' ? make_tuple(m, mark + 1, 1) : set_items(m, mark + 1, 1, op == 'u' ? DICT : LIST);
}

static int step(struct machine *m, unsigned char op)
{
    int status;

    if (simple(m, op, &status))
        return status;
    switch (op) {
    case 'X': return push_text(m, 4);
    case 0x8c: case 'U': return push_text(m, 1);
    case 0x8a: return push_long(m);
    case 'c': return pickle_name(m);
    case 'Q': return pickle_storage(m);
    case 'R': return pickle_reduce(m);
    case 'b': return build(m);
    case 't': case 'u': case 'e': return marked(m, op);
    case 0x85: case 0x86: case 0x87: return make_tuple(m, m->depth - (op - 0x84), 0);
    case 's': return set_items(m, m->depth - 2, 0, DICT);
    case 'a': return set_items(m, m->depth - 1, 0, LIST);
    default: return pickle_bad(m, "an opcode that tensors do not need; nothing was executed");
    }
}

/* Texts that become names: short and printable. */
static bool is_name(const struct value *v, size_t most)
{
    if (v->kind != TEXT || v->number < 0 || (size_t)v->number >= most)
        return false;
    for (int64_t i = 0; i < v->number; i++)
        if (v->text[i] < ' ' || v->text[i] > '~')
            return false;
    return true;
}

/* A tensor under its full name, with its storage's numbers. */
static int collect_one(struct machine *m, struct pickle *p, const char *prefix, const struct value *key,
                       const struct pickle_tensor *t)
{
    const struct storage *s = &m->storage[t->elements];
    const struct value *name = &m->value[s->key];
    struct pickle_tensor *out;

    if (p->n >= (int64_t)m->n)
        return pickle_bad(m, "more tensors than bytes");
    if (!is_name(key, NAME_MOST - strlen(prefix)) || !is_name(name, 256))
        return pickle_bad(m, "a tensor or storage whose name is too long or not printable");
    ROOM(p->at, p->n);
    out = &p->at[p->n++];
    *out = *t;
    out->type = s->type;
    out->elements = s->elements;
    out->name = mem_new(strlen(prefix) + (size_t)key->number + 1, 1);
    memcpy(out->name, prefix, strlen(prefix));
    memcpy(out->name + strlen(prefix), key->text, (size_t)key->number);
    out->storage = mem_new((size_t)name->number + 1, 1);
    memcpy(out->storage, name->text, (size_t)name->number);
    return 0;
}

/* Walks dictionaries with a stack of its own; a dictionary inside itself runs into the depth. */
static int collect(struct machine *m, struct pickle *p, int64_t root)
{
    int64_t next[DEPTH], visits = 0;
    size_t length[DEPTH];
    char prefix[NAME_MOST] = "";
    int depth = 0, status = 0;

    next[0] = m->value[root].first;
    length[0] = 0;
    while (depth >= 0 && !status) {
        const struct link *l = next[depth] < 0 ? NULL : &m->link[next[depth]];
        const struct value *key = l ? &m->value[l->key] : NULL, *v = l ? &m->value[l->value] : NULL;
        prefix[length[depth]] = 0;
        if (!l) {
            depth--;
            continue;
        }
        next[depth] = l->next;
        if (++visits > 2 * (int64_t)m->n)
            status = pickle_bad(m, "a dictionary that contains itself");
        else if (v->kind == TENSOR && key->kind == TEXT)
            status = collect_one(m, p, prefix, key, &m->tensor[v->first]);
        else if (v->kind == DICT && key->kind == TEXT) {
            if (depth + 1 == DEPTH || !is_name(key, sizeof prefix - length[depth] - 1))
                status = pickle_bad(m, "dictionaries too deep within one another, or with names that are no names");
            else {
                memcpy(prefix + length[depth], key->text, (size_t)key->number);
                memcpy(prefix + length[depth] + key->number, ".", 2);
                length[depth + 1] = length[depth] + (size_t)key->number + 1;
                next[++depth] = v->first;
            }
        }
    }
    return status;
}

int pickle_read(struct pickle *p, const char *data, size_t n, const char *path)
{
    struct machine m = { .data = data, .path = path, .n = n };
    int status = 0;
    bool stopped = false;

    *p = (struct pickle){ 0 };
    if (n > PICKLE_MOST)
        return fail("%s: a pickle of %zu bytes; that of tensors has at most %d", path, n, PICKLE_MOST);
    while (!status && !stopped) {
        if (m.at == n)
            status = pickle_bad(&m, "it ends without STOP");
        else if (data[m.at] == '.')
            stopped = true;
        else
            m.at++, status = step(&m, (unsigned char)data[m.at - 1]);
    }
    if (!status && (m.depth != 1 || m.value[m.stack[0]].kind != DICT))
        status = pickle_bad(&m, "expected a dictionary of tensors");
    if (!status)
        status = collect(&m, p, m.stack[0]);
    if (status)
        pickle_free(p);
    free(m.value);
    free(m.link);
    free(m.storage);
    free(m.tensor);
    free(m.stack);
    free(m.memo);
    return status;
}

void pickle_free(struct pickle *p)
{
    for (int64_t i = 0; i < p->n; i++) {
        free(p->at[i].name);
        free(p->at[i].storage);
    }
    free(p->at);
    *p = (struct pickle){ 0 };
}
