/* model_upload.c - what a trip needs of its row on the device: where sequences begin, tokens, and the rows that the
 * head has to see. One copy, laid out so that a trip that carries no memory meets the same addresses however many
 * sequences there are. */
#include "model.h"
#include "model_parts.h"
#include "op.h"

enum { LINE = 64 };                      /* ints; parts of an upload begin on lines */

static int64_t lines(int64_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

/* Rows that predict something, when they are few: the head then sees no others. Their number is rounded up, with
 * rows that predict nothing, to one of few numbers, so that work of the same shape comes again. 0: they are many.
 * After the targets come the rows, then for every token its place among the rows, or their number. */
static int64_t labelled(const struct batch *b, int32_t *target, int32_t **rows, int32_t **places)
{
    int64_t T = b->seqs.tokens, unit = (T + 15) / 16, n = 0, padded;
    int32_t *row, *place;

    for (int64_t t = 0; t < T; t++)
        n += b->target[t] >= 0;
    padded = n ? (n + unit - 1) / unit * unit : unit;
    if (padded > T / 2) {
        memcpy(target, b->target, (size_t)T * sizeof *target);
        return 0;
    }
    *rows = row = target + lines(padded);
    *places = place = row + lines(padded);
    n = 0;
    for (int64_t t = 0; t < T; t++) {
        place[t] = (int32_t)padded;
        if (b->target[t] < 0)
            continue;
        place[t] = (int32_t)n;
        row[n] = (int32_t)t;
        target[n++] = b->target[t];
    }
    for (; n < padded; n++)
        row[n] = 0, target[n] = -1;
    return padded;
}

/* The last row of every sequence; an empty one's means nothing. */
static int64_t last_rows(const struct batch *b, int32_t *row)
{
    for (int i = 0; i < b->seqs.n; i++)
        row[i] = b->seqs.start[i + 1] > 0 ? b->seqs.start[i + 1] - 1 : 0;
    return b->seqs.n;
}

/* What dstart points to. */
static void starts(const struct seqs *s, int32_t *to)
{
    memcpy(to, s->start, (size_t)(s->n + 1) * sizeof *to);
    for (int64_t i = s->n + 1; i <= s->room; i++)
        to[i] = (int32_t)s->tokens;
}

/* What dalone points to. */
static void alone(const struct seqs *s, int32_t *to)
{
    for (int i = 0; i < s->n; i++) {
        *to++ = 0;
        *to++ = s->start[i + 1] - s->start[i];
    }
    memset(to, 0, (size_t)s->tokens * sizeof *to);
}

static int32_t *room(struct model *m, int64_t n)
{
    if (n > m->host_room) {
        free(m->host);
        m->host = mem_new((size_t)n, sizeof *m->host);
        m->host_room = n;
    }
    return m->host;
}

/* Whether this row is there, at the place that it would get now; whatever is there is used up. */
static bool came_ahead(struct model *m, const struct batch *b, const void *at)
{
    struct ahead *a = m->ahead;
    bool same = a && a->token && a->token == b->token && a->s.tokens == b->seqs.tokens && a->at == at;

    if (a)
        a->token = NULL;
    return same;
}

struct upload upload(struct model *m, const struct batch *b, struct seqs *s, enum upload_rows which)
{
    struct dev *d = m->dev;
    int64_t T = b->seqs.tokens, N = b->seqs.n, most = T > N ? T : N, one = lines(T), used = 2 * one, n = 0;
    int64_t each = d->alone ? lines(2 * N + T) : 0;
    int64_t begins = lines(seqs_about(most) + 1);
    struct tensor all = arena_push(&d->keep, SHAPE(I32, 3 * one + 2 * lines(most) + begins + each));
    struct upload u = { 0 };
    int32_t *token, *seq, *target, *row, *place;

    if (came_ahead(m, b, all.data) && which == UPLOAD_LABELLED) {
        *s = m->ahead->s;
        return m->ahead->u;
    }
    token = room(m, all.dim[0]);
    seq = token + one;
    target = row = place = seq + one;
    if (b->token) {
        memcpy(token, b->token, (size_t)T * sizeof *token);
        seqs_expand(&b->seqs, seq, NULL);
    }
    if (which == UPLOAD_LABELLED && b->token)
        n = labelled(b, target, &row, &place);
    if (which == UPLOAD_LABELLED) {
        u.target = tensor_rows(all, used, n ? n : T);
        used += lines(n ? n : T);
    }
    if (which == UPLOAD_LAST)
        n = b->token ? last_rows(b, row) : N;
    if (n) {
        u.rows = tensor_rows(all, used, n);
        used += lines(n);
    }
    if (n && which == UPLOAD_LABELLED) {
        u.place = tensor_rows(all, used, T);
        used += one;
    }
    *s = b->seqs;
    s->room = which == UPLOAD_LABELLED ? seqs_about(N) : N;
    s->dstart = tensor_rows(all, used, s->room + 1).data;
    if (b->token)
        starts(s, token + used);
    used += lines(s->room + 1);
    if (each) {
        s->dalone = tensor_rows(all, used, each).data;
        if (b->token)
            alone(&b->seqs, token + used);
        used += each;
    }
    if (b->token)
        op_put(d, all.data, token, (size_t)used * 4);
    s->dseq = tensor_rows(all, one, T).data;
    u.token = tensor_rows(all, 0, T);
    u.row = row;
    return u;
}

double loss_sum(struct model *m, struct tensor loss, const struct upload *u, int64_t tokens, float *nll)
{
    int64_t n = loss.dim[0];
    float *host = nll && !u->rows.ndim ? nll : mem_new((size_t)n, sizeof *host);
    double sum = 0;

    op_get(m->dev, host, loss.data, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++)
        sum += host[i];
    if (nll && u->rows.ndim) {
        memset(nll, 0, (size_t)tokens * sizeof *nll);
        for (int64_t i = 0; i < n; i++)
            nll[u->row[i]] += host[i];           /* rows that fill up have no loss */
    }
    if (host != nll)
        free(host);
    return sum;
}
