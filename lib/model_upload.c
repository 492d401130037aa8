/* model_upload.c - what a trip needs of its row on the device: where sequences begin, tokens, and the rows that the
 * head has to see. One copy, laid out so that no address depends on how many sequences there are. */
#include "model.h"
#include "model_parts.h"
#include "op.h"

enum { LINE = 64 };                      /* ints; parts of an upload begin on lines */

static int64_t lines(int64_t n)
{
    return (n + LINE - 1) / LINE * LINE;
}

/* Rows that predict something, when they are few: the head then sees no others. Their number is rounded up, with
 * rows that predict nothing, to one of few numbers, so that work of the same shape comes again. 0: they are many. */
static int64_t labelled(const struct batch *b, int32_t *row, int32_t *target)
{
    int64_t T = b->seqs.tokens, unit = (T + 15) / 16, n = 0, padded;

    for (int64_t t = 0; t < T; t++)
        n += b->target[t] >= 0;
    padded = n ? (n + unit - 1) / unit * unit : unit;
    if (padded > T / 2)
        return 0;
    n = 0;
    for (int64_t t = 0; t < T; t++)
        if (b->target[t] >= 0) {
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

static int32_t *room(struct model *m, int64_t n)
{
    if (n > m->host_room) {
        free(m->host);
        m->host = mem_new((size_t)n, sizeof *m->host);
        m->host_room = n;
    }
    return m->host;
}

struct upload upload(struct model *m, const struct batch *b, struct seqs *s, enum upload_rows which)
{
    struct dev *d = m->dev;
    int64_t T = b->seqs.tokens, N = b->seqs.n, most = T > N ? T : N, one = lines(T), rows = lines(most);
    struct tensor all = arena_push(&d->keep, SHAPE(I32, lines(most + 1) + 3 * one + rows));
    struct upload u = { 0 };
    int32_t *host = room(m, all.dim[0]);
    int32_t *seq = host + lines(most + 1), *token = seq + one, *target = token + one, *row = target + one;
    int64_t n = 0;

    if (b->token) {
        memcpy(host, b->seqs.start, (size_t)(N + 1) * sizeof *host);
        seqs_expand(&b->seqs, seq, NULL);
        memcpy(token, b->token, (size_t)T * sizeof *token);
        if (which == UPLOAD_LABELLED)
            n = labelled(b, row, target);
        else if (which == UPLOAD_LAST)
            n = last_rows(b, row);
        if (which == UPLOAD_LABELLED && !n)
            memcpy(target, b->target, (size_t)T * sizeof *target);
        op_put(d, all.data, host, (size_t)all.dim[0] * 4);
    } else if (which == UPLOAD_LAST)
        n = N;
    *s = b->seqs;
    s->dstart = all.data;
    s->dseq = tensor_rows(all, seq - host, T).data;
    u.token = tensor_rows(all, token - host, T);
    u.target = tensor_rows(all, target - host, n ? n : T);
    if (n)
        u.rows = tensor_rows(all, row - host, n);
    u.row = row;
    return u;
}
