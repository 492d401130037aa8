/* bpe_word.c - merging: of all adjacent pairs that have a merge, the one of lowest rank, leftmost first,
 * becomes one symbol, until none has. Short pieces look for the lowest rank by eye; long ones keep the
 * pairs in a heap, so that n symbols cost n log n. Most pieces were seen before: a cache of one line of
 * memory each, replaced on collision, remembers their ids. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "utf8.h"

enum { CACHE_BITS = 16, CACHE_TEXT = 30, CACHE_IDS = 8, SHORT = 48 };

struct cached {
    uint8_t n, ids;                      /* bytes of text, 0 free; how many ids */
    char    text[CACHE_TEXT];
    int32_t id[CACHE_IDS];
};
struct node { int32_t id; uint32_t next, prev; };
#define NONE UINT32_MAX

struct words {
    struct cached *cache;
    int32_t       *symbol;               /* of the piece at hand */
    int64_t        symbols, cap;
    struct node   *node;
    uint64_t      *heap;                 /* rank << 32 | position */
    int64_t        heap_n, node_cap, heap_cap;
    struct buffer  spelled;
};

struct words *words_open(void)
{
    struct words *w = mem_new(1, sizeof *w);

    _Static_assert(sizeof(struct cached) == 64, "one line of cache");
    w->cache = mem_new((size_t)1 << CACHE_BITS, sizeof *w->cache);
    return w;
}

void words_close(struct words *w)
{
    if (!w)
        return;
    free(w->cache);
    free(w->symbol);
    free(w->node);
    free(w->heap);
    free(w->spelled.at);
    free(w);
}

static inline const struct pair *pair_find(const struct bpe *b, int32_t left, int32_t right)
{
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;

    for (uint64_t i = pair_hash(key);; i++) {
        const struct pair *p = &b->pair[i & b->pair_mask];

        if (p->key == key)
            return p;
        if (p->key == PAIR_FREE)
            return NULL;
    }
}

static void merge_short(const struct bpe *b, struct bpe_ids *out, const int32_t *symbol, int n)
{
    int32_t id[SHORT];
    const struct pair *pair[SHORT];

    for (int i = 0; i < n; i++)
        id[i] = symbol[i];
    for (int i = 0; i + 1 < n; i++)
        pair[i] = pair_find(b, id[i], id[i + 1]);
    while (n > 1) {
        uint32_t least = UINT32_MAX;
        int at = -1;

        for (int i = 0; i + 1 < n; i++)
            if (pair[i] && pair[i]->rank < least) {
                least = pair[i]->rank;
                at = i;
            }
        if (at < 0)
            break;
        id[at] = pair[at]->id;
        n--;
        for (int i = at + 1; i < n; i++)
            id[i] = id[i + 1];
        for (int i = at + 1; i + 1 < n; i++)
            pair[i] = pair[i + 1];
        if (at + 1 < n)
            pair[at] = pair_find(b, id[at], id[at + 1]);
        if (at)
            pair[at - 1] = pair_find(b, id[at - 1], id[at]);
    }
    for (int i = 0; i < n; i++)
        out->at[out->n++] = id[i];
}

static void heap_down(uint64_t *heap, int64_t n, int64_t i)
{
    uint64_t x = heap[i];

    for (int64_t k; (k = 2 * i + 1) < n; i = k) {
        k += k + 1 < n && heap[k + 1] < heap[k];
        if (heap[k] >= x)
            break;
        heap[i] = heap[k];
    }
    heap[i] = x;
}

static void heap_push(struct words *w, const struct pair *p, uint32_t at)
{
    uint64_t x = (uint64_t)p->rank << 32 | at;
    int64_t i = w->heap_n++;

    for (; i && w->heap[(i - 1) / 2] > x; i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = x;
}

/* Room for n symbols: each merge pushes at most two pairs and there are fewer than n merges. */
static void nodes_reserve(struct words *w, int64_t n)
{
    if (n > w->node_cap)
        w->node = mem_grow(w->node, (size_t)(w->node_cap = n + n / 2), sizeof *w->node);
    if (3 * n > w->heap_cap)
        w->heap = mem_grow(w->heap, (size_t)(w->heap_cap = 4 * n), sizeof *w->heap);
}

/* A heap entry is stale when its left symbol is gone or the pair there now has another rank. */
static void merge_long(const struct bpe *b, struct words *w, struct bpe_ids *out, const int32_t *symbol, int64_t n)
{
    const struct pair *p;

    nodes_reserve(w, n);
    w->heap_n = 0;
    for (int64_t i = 0; i < n; i++)
        w->node[i] = (struct node){ symbol[i], i + 1 < n ? (uint32_t)i + 1 : NONE, i ? (uint32_t)i - 1 : NONE };
    for (int64_t i = 0; i + 1 < n; i++)
        if ((p = pair_find(b, symbol[i], symbol[i + 1])))
            w->heap[w->heap_n++] = (uint64_t)p->rank << 32 | (uint64_t)i;
    for (int64_t i = w->heap_n / 2; i-- > 0;)
        heap_down(w->heap, w->heap_n, i);
    while (w->heap_n) {
        uint32_t at = (uint32_t)w->heap[0], rank = (uint32_t)(w->heap[0] >> 32), right;
        struct node *left = &w->node[at];

        w->heap[0] = w->heap[--w->heap_n];
        if (w->heap_n)
            heap_down(w->heap, w->heap_n, 0);
        right = left->next;
        if (left->id < 0 || right == NONE || !(p = pair_find(b, left->id, w->node[right].id)) || p->rank != rank)
            continue;
        left->id = p->id;
        left->next = w->node[right].next;
        w->node[right].id = -1;
        if (left->next != NONE) {
            w->node[left->next].prev = at;
            if ((p = pair_find(b, left->id, w->node[left->next].id)))
                heap_push(w, p, at);
        }
        if (left->prev != NONE && (p = pair_find(b, w->node[left->prev].id, left->id)))
            heap_push(w, p, left->prev);
    }
    for (uint32_t i = 0; i != NONE; i = w->node[i].next)
        out->at[out->n++] = w->node[i].id;
}

static void merge(const struct bpe *b, struct words *w, struct bpe_ids *out, const int32_t *symbol, int64_t n)
{
    REQUIRE(n < NONE);
    bpe_ids_reserve(out, n);
    if (n == 1)
        out->at[out->n++] = symbol[0];
    else if (n <= SHORT)
        merge_short(b, out, symbol, (int)n);
    else
        merge_long(b, w, out, symbol, n);
}

static void bytes_fill(const struct bpe *b, struct words *w, const unsigned char *p, const unsigned char *end)
{
    static const unsigned char replacement[] = { 0xEF, 0xBF, 0xBD };

    for (; p < end; p++) {
        if (b->byte_id[*p] >= 0)
            w->symbol[w->symbols++] = b->byte_id[*p];
        for (int i = 0; i < 3 && b->byte_id[*p] < 0; i++)
            w->symbol[w->symbols++] = b->byte_id[replacement[i]];
    }
}

/* Fills w->symbol: bytes of a byte-level model, else characters, their bytes where the model falls back
 * to them, else unk, which one run of unknown characters shares when fuse_unk says so. */
static void symbols_fill(const struct bpe *b, struct words *w, const char *at, size_t n)
{
    const unsigned char *p = (const unsigned char *)at, *end = p + n;
    bool unknown = false;

    if ((int64_t)n > w->cap / 3)
        w->symbol = mem_grow(w->symbol, (size_t)(w->cap = 3 * (int64_t)(n + n / 8)), sizeof *w->symbol);
    w->symbols = 0;
    if (b->byte_level) {
        bytes_fill(b, w, p, end);
        return;
    }
    while (p < end) {
        uint32_t code = 0;
        int length = utf8_read(p, end, &code);
        int32_t id = length ? letter_find(b, code) : -1;

        length += !length;
        if (id >= 0)
            w->symbol[w->symbols++] = id;
        else if (b->byte_fallback)
            bytes_fill(b, w, p, p + length);
        else if (!unknown || !b->fuse_unk)
            w->symbol[w->symbols++] = b->unk;
        unknown = id < 0;
        p += length;
    }
}

/* The token that is the whole piece, for models that prefer it to merging. */
static int32_t whole(const struct bpe *b, struct words *w, const char *at, size_t n)
{
    int32_t id;

    w->spelled.n = 0;
    for (size_t i = 0; i < n && b->byte_level; i++) {
        int32_t byte = b->byte_id[(unsigned char)at[i]];
        const struct token *t = &b->token[byte < 0 ? 0 : byte];

        if (byte < 0)
            return -1;
        buffer_add(&w->spelled, b->text.at + t->name, t->n_name);
    }
    id = b->byte_level ? vocab_find(b, w->spelled.at, w->spelled.n) : vocab_find(b, at, n);
    return bpe_is_control(b, id) ? -1 : id;
}

/* Symbols that take part in no merge divide a piece: what lies between them merges alone. */
static void piece_encode(const struct bpe *b, struct words *w, struct bpe_ids *out, const char *at, size_t n)
{
    int32_t id = b->ignore_merges ? whole(b, w, at, n) : -1;
    int64_t start = 0;

    if (id >= 0) {
        bpe_ids_reserve(out, 1);
        out->at[out->n++] = id;
        return;
    }
    symbols_fill(b, w, at, n);
    for (int64_t i = 0; i < w->symbols; i++)
        if (!(b->token[w->symbol[i]].flags & TOKEN_MERGES)) {
            if (i > start)
                merge(b, w, out, w->symbol + start, i - start);
            merge(b, w, out, w->symbol + i, 1);
            start = i + 1;
        }
    if (w->symbols > start)
        merge(b, w, out, w->symbol + start, w->symbols - start);
}

static inline uint64_t load(const char *p, size_t n)
{
    uint64_t x = 0;

    if (n >= 8)
        memcpy(&x, p, 8);
    else if (n >= 4) {
        uint32_t low, high;

        memcpy(&low, p, 4);
        memcpy(&high, p + n - 4, 4);
        x = (uint64_t)high << 32 | low;
    } else
        x = (uint64_t)(unsigned char)p[0] | (uint64_t)(unsigned char)p[n / 2] << 8 |
            (uint64_t)(unsigned char)p[n - 1] << 16;
    return x;
}

static inline uint64_t text_hash(const char *p, size_t n)
{
    uint64_t h = load(p, n) * 0x9E3779B97F4A7C15u + n;

    for (size_t i = 8; i < n; i += 8)                /* the last eight bytes overlap */
        h = (h ^ h >> 32 ^ load(i + 8 <= n ? p + i : p + n - 8, 8)) * 0xD6E8FEB86659FD93u;
    h ^= h >> 32;
    return (h * 0xD6E8FEB86659FD93u) >> (64 - CACHE_BITS);
}

/* Two lines share a place; what is found in the second has been pushed there by something newer. */
void words_encode(const struct bpe *b, struct words *w, struct bpe_ids *out, const char *at, size_t n)
{
    struct cached *c, found;
    int64_t first = out->n;

    if (n > CACHE_TEXT || !n) {
        if (n)
            piece_encode(b, w, out, at, n);
        return;
    }
    c = &w->cache[text_hash(at, n) & ~(uint64_t)1];
    for (int way = 0; way < 2; way++)
        if (c[way].n == n && !memcmp(c[way].text, at, n)) {
            bpe_ids_reserve(out, CACHE_IDS);
            memcpy(out->at + out->n, c[way].id, sizeof c->id);
            out->n += c[way].ids;
            return;
        }
    piece_encode(b, w, out, at, n);
    if (out->n - first > CACHE_IDS)
        return;
    found.n = (uint8_t)n;
    found.ids = (uint8_t)(out->n - first);
    memcpy(found.text, at, n);
    memcpy(found.id, out->at + first, (size_t)found.ids * sizeof *found.id);
    c[1] = c[0];
    c[0] = found;
}
