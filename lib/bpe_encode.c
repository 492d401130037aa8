/* bpe_encode.c - text to ids: added tokens are cut out, the rest is normalized, cut at normalized added
 * tokens, split into pieces and merged. Expressions never see bytes that are not UTF-8: the text is
 * split around each run of them, and the run is a piece. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "utf8.h"
#include <utf8proc.h>

struct spans { struct bytes *at; int64_t n, cap; };
struct cut { size_t start, end; bool match; };

struct bpe_encoder {
    const struct bpe  *bpe;
    struct words      *words;
    struct regex_room *room;
    struct buffer      normal[3], pre[STEPS];
    struct spans       spans[2];
    struct cut        *cut;
    int64_t            cuts, cut_cap;
    int64_t            invalid, nuls;
    bool               valid;            /* the text at hand is all UTF-8 */
};

struct bpe_encoder *bpe_encoder_open(const struct bpe *b)
{
    struct bpe_encoder *e = mem_new(1, sizeof *e);

    e->bpe = b;
    e->words = words_open();
    e->room = regex_room_open();
    return e;
}

void bpe_encoder_close(struct bpe_encoder *e)
{
    if (!e)
        return;
    for (int i = 0; i < STEPS; i++)
        free(e->pre[i].at);
    for (int i = 0; i < 3; i++)
        free(e->normal[i].at);
    for (int i = 0; i < 2; i++)
        free(e->spans[i].at);
    free(e->cut);
    words_close(e->words);
    regex_room_close(e->room);
    free(e);
}

int64_t bpe_invalid(const struct bpe_encoder *e)
{
    return e->invalid;
}

int64_t bpe_nuls(const struct bpe_encoder *e)
{
    return e->nuls;
}

/* Where a word of characters that begins at p ends: before a U+2581 that follows something else, where
 * no token crosses, and around a newline that takes part in no merge. */
static const char *word_end(const struct bpe *b, const char *p, const char *end)
{
    static const char mark[] = "\xE2\x96\x81";

    if (b->line_apart && *p == '\n')
        return p + 1;
    while (end - p >= 3 && !memcmp(p, mark, 3))
        p += 3;
    for (; p < end; p++) {
        if (*p == '\n' && b->line_apart)
            break;
        if (*p == mark[0] && end - p >= 3 && !memcmp(p, mark, 3))
            break;
    }
    return p;
}

static void piece(struct bpe_encoder *e, struct bpe_ids *out, struct bytes text)
{
    const char *p = text.at, *end = p + text.n, *q;

    if (e->bpe->byte_level || !e->bpe->word_start) {
        words_encode(e->bpe, e->words, out, p, text.n);
        return;
    }
    for (; p < end; p = q) {
        q = word_end(e->bpe, p, end);
        words_encode(e->bpe, e->words, out, p, (size_t)(q - p));
    }
}

static void span_add(struct spans *s, const char *at, size_t n)
{
    if (!n)
        return;
    if (s->n == s->cap)
        s->at = mem_grow(s->at, (size_t)(s->cap = s->cap ? 2 * s->cap : 64), sizeof *s->at);
    s->at[s->n++] = (struct bytes){ at, n };
}

static void cut_add(struct bpe_encoder *e, size_t start, size_t end, bool match)
{
    if (start == end)
        return;
    if (e->cuts == e->cut_cap)
        e->cut = mem_grow(e->cut, (size_t)(e->cut_cap = e->cut_cap ? 2 * e->cut_cap : 64), sizeof *e->cut);
    e->cut[e->cuts++] = (struct cut){ start, end, match };
}

/* Calls a run of numbers (or every one) a match. */
static void cut_digits(struct bpe_encoder *e, const struct pre *step, const char *at, size_t n)
{
    const unsigned char *first = (const unsigned char *)at, *p = first, *end = p + n;
    size_t start = 0;
    bool number = false;

    while (p < end) {
        uint32_t code = 0;
        int k = utf8_read(p, end, &code);
        bool is = pretoken_class(code) == CHAR_NUMBER;

        if (is != number || (is && step->each)) {
            cut_add(e, start, (size_t)(p - first), number);
            start = (size_t)(p - first);
        }
        number = is;
        p += k;
    }
    cut_add(e, start, n, number);
}

static int literal_find(const struct pre *step, const char *at, size_t n, size_t from, size_t *start, size_t *end)
{
    for (const char *p = at + from; (size_t)(at + n - p) >= step->literal.n; p++) {
        p = memchr(p, step->literal.at[0], (size_t)(at + n - p) - step->literal.n + 1);
        if (!p)
            return 0;
        if (!memcmp(p, step->literal.at, step->literal.n)) {
            *start = (size_t)(p - at);
            *end = *start + step->literal.n;
            return 1;
        }
    }
    return 0;
}

/* An empty match cuts where it stands. */
static int cut_matches(struct bpe_encoder *e, const struct pre *step, const char *at, size_t n)
{
    size_t from = 0, done = 0, start, end;
    int found = 0;

    while (from <= n) {
        found = step->regex ? regex_find(step->regex, e->room, at, n, from, &start, &end)
                            : literal_find(step, at, n, from, &start, &end);
        if (found <= 0)
            break;
        cut_add(e, done, start, step->invert);
        cut_add(e, start, end, !step->invert);
        done = end;
        from = end > start ? end : end + 1;
        while (from < n && ((unsigned char)at[from] & 0xC0) == 0x80)
            from++;
    }
    cut_add(e, done, n, step->invert);
    return found < 0 ? -1 : 0;
}

/* The cuts of one stretch of text become spans, matches as the behavior says. */
static void spans_from_cuts(struct bpe_encoder *e, enum behavior behavior, const char *at, struct spans *to)
{
    bool before = false;
    int64_t kept = 0;

    for (int64_t i = 0; i < e->cuts; i++) {
        struct cut c = e->cut[i];
        bool joins = kept > 0 && ((behavior == CONTIGUOUS && c.match == before) ||
                                  (behavior == WITH_PREVIOUS && c.match && !before));

        if (joins)
            e->cut[kept - 1].end = c.end;
        else
            e->cut[kept++] = c;
        before = c.match;
    }
    for (int64_t i = 0; i < kept; i++) {
        struct cut c = e->cut[i];

        if (behavior == REMOVED && c.match)
            continue;
        if (behavior == WITH_NEXT && c.match && i + 1 < kept && !e->cut[i + 1].match)
            c.end = e->cut[++i].end;
        span_add(to, at + c.start, c.end - c.start);
    }
}

static int split_valid(struct bpe_encoder *e, const struct pre *step, const char *at, size_t n, struct spans *to)
{
    size_t k;

    if (step->kind == PRE_GPT2) {
        for (const char *end = at + n; at < end; at += k)
            span_add(to, at, k = pretoken_piece(at, end));
        return 0;
    }
    e->cuts = 0;
    if (step->kind == PRE_DIGITS)
        cut_digits(e, step, at, n);
    else if (cut_matches(e, step, at, n))
        return -1;
    spans_from_cuts(e, step->kind == PRE_DIGITS ? ISOLATED : step->behavior, at, to);
    return 0;
}

static int split(struct bpe_encoder *e, const struct pre *step, struct bytes text, struct spans *to)
{
    while (text.n) {
        size_t n = e->valid ? text.n : utf8_valid(text.at, text.n), bad;

        if (n && split_valid(e, step, text.at, n, to))
            return -1;
        bad = utf8_invalid(text.at + n, text.n - n);
        span_add(to, text.at + n, bad);
        text.at += n + bad;
        text.n -= n + bad;
    }
    return 0;
}

/* `literal` for every space, and before the text unless it begins with one or follows an earlier part. */
static void metaspace(const struct pre *step, struct buffer *room, struct bytes text, bool prefix, struct spans *to)
{
    struct bytes mark = { step->literal.at, step->literal.n }, space = { " ", 1 };
    size_t first = room->n, start = 0, end;

    if (prefix && text.n && text.at[0] != ' ' && (text.n < mark.n || memcmp(text.at, mark.at, mark.n)))
        buffer_add(room, mark.at, mark.n);
    replace_all(room, text, space, mark);
    text = (struct bytes){ room->at + first, room->n - first };
    for (size_t from = mark.n; step->each && from < text.n && literal_find(step, text.at, text.n, from, &start, &end);
         from = end) {
        span_add(to, text.at, start);
        text = (struct bytes){ text.at + start, text.n - start };
        end -= start;
    }
    span_add(to, text.at, text.n);
}

/* One step over all spans. Buffers that spans point into are sized first, for they must not move. */
static int pre_step(struct bpe_encoder *e, int i, bool continues, bool first, const struct spans *from,
                    struct spans *to)
{
    const struct pre *step = &e->bpe->pre[i];
    struct buffer *room = &e->pre[i];
    size_t need = 0;

    to->n = 0;
    room->n = 0;
    for (int64_t k = 0; k < from->n; k++)
        need += (from->at[k].n + 1) * (step->kind == PRE_METASPACE ? step->literal.n : 1);
    if ((step->kind == PRE_METASPACE || step->kind == PRE_PREFIX) && room->cap < need)
        room->at = mem_grow(room->at, room->cap = need, 1);
    for (int64_t k = 0; k < from->n; k++) {
        struct bytes text = from->at[k];

        if (step->kind == PRE_METASPACE)
            metaspace(step, room, text, step->prefix && !continues && (!step->first || (first && k == 0)), to);
        else if (step->kind == PRE_PREFIX && !continues && text.at[0] != ' ') {
            buffer_add(room, " ", 1);
            buffer_add(room, text.at, text.n);
            span_add(to, room->at, room->n);
        } else if (step->kind == PRE_PREFIX)
            span_add(to, text.at, text.n);
        else if (split(e, step, text, to))
            return -1;
    }
    return 0;
}

/* Text without added tokens. `first`: nothing of the document came before. */
static int stretch(struct bpe_encoder *e, struct bpe_ids *out, struct bytes text, bool continues, bool first)
{
    const struct bpe *b = e->bpe;
    struct spans *from = &e->spans[0], *to = &e->spans[1];
    size_t k;

    if (!text.n)
        return 0;
    if (b->pres == 1 && b->pre[0].kind == PRE_GPT2 && e->valid) {       /* by far the most common */
        for (const char *p = text.at, *end = p + text.n; p < end; p += k)
            words_encode(b, e->words, out, p, k = pretoken_piece(p, end));
        return 0;
    }
    from->n = 0;
    span_add(from, text.at, text.n);
    for (int i = 0; i < b->pres; i++) {
        struct spans *swap = from;

        if (pre_step(e, i, continues, first, from, to))
            return -1;
        from = to;
        to = swap;
    }
    for (int64_t i = 0; i < from->n; i++)
        piece(e, out, from->at[i]);
    return 0;
}

static void id_add(struct bpe_ids *out, int32_t id)
{
    bpe_ids_reserve(out, 1);
    out->at[out->n++] = id;
}

/* Text between added tokens that are not normalized. */
static int section(struct bpe_encoder *e, struct bpe_ids *out, struct bytes text, unsigned flags, bool first)
{
    bool continues = first && (flags & BPE_CONTINUES);
    struct added_walk walk = { .normalized = true, .control = flags & BPE_CONTROL };
    size_t done = 0;
    int32_t id;

    if (!text.n)
        return 0;
    if (normalize(e->bpe, e->room, &text, text, continues, e->normal))
        return -1;
    walk.text = text;
    while ((id = added_next(e->bpe, &walk)) >= 0) {
        struct bytes part = { text.at + done, walk.start - done };

        if (stretch(e, out, part, continues && !done, first && !done))
            return -1;
        id_add(out, id);
        done = walk.end;
    }
    return stretch(e, out, (struct bytes){ text.at + done, text.n - done }, continues && !done, first && !done);
}

static void bytes_count(struct bpe_encoder *e, const char *text, size_t n)
{
    size_t at = utf8_valid(text, n), bad;

    e->valid = at == n;
    while (at < n) {
        bad = utf8_invalid(text + at, n - at);
        e->invalid += (int64_t)bad;
        at += bad;
        at += utf8_valid(text + at, n - at);
    }
    for (const char *p = text, *end = text + n; p < end && (p = memchr(p, 0, (size_t)(end - p))); p++)
        e->nuls++;
}

int64_t bpe_encode(struct bpe_encoder *e, struct bpe_ids *out, const char *text, size_t n, unsigned flags)
{
    struct added_walk walk = { .text = { text, n }, .control = flags & BPE_CONTROL };
    int64_t first = out->n;
    size_t done = 0;
    int32_t id;

    bytes_count(e, text, n);
    while ((id = added_next(e->bpe, &walk)) >= 0) {
        if (section(e, out, (struct bytes){ text + done, walk.start - done }, flags, !done))
            return -1;
        id_add(out, id);
        done = walk.end;
    }
    if (section(e, out, (struct bytes){ text + done, n - done }, flags, !done))
        return -1;
    return out->n - first;
}
