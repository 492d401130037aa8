/* session.c - prefill in pieces of bounded memory; decoding is a piece of one token each. */
#include "session.h"

int session_open(struct session *s, struct model *m, int n)
{
    int64_t chunk = m->dev->kind == DEV_CUDA ? 4096 : 512;         /* enough to keep the device busy */

    *s = (struct session){ .model = m, .n = n, .chunk = n > chunk ? n : chunk, .fresh = true };
    if (model_reserve(m, JOB_LOGITS, s->chunk))
        return -1;
    return model_state_open(m, &s->state, n);
}

void session_close(struct session *s)
{
    if (s->state.at)
        model_state_close(s->model, &s->state);
}

/* The next piece: how many tokens of each sequence, together about a chunk. */
static int64_t next_piece(const struct session *s, const int64_t *count, int64_t done, int32_t *start)
{
    int64_t going = 0, share;

    for (int i = 0; i < s->n; i++)
        going += count[i] > done;
    share = s->chunk / going < 1 ? 1 : s->chunk / going;
    start[0] = 0;
    for (int i = 0; i < s->n; i++) {
        int64_t left = count[i] - done;
        left = left < 0 ? 0 : left > share ? share : left;
        start[i + 1] = start[i] + (int32_t)left;
    }
    return share;
}

static bool ends(const int32_t *start, const int64_t *count, int64_t done, int i)
{
    return start[i + 1] > start[i] && done + start[i + 1] - start[i] == count[i];
}

/* One trip; the logits of sequences that end in this piece go to their rows. */
static void feed_piece(struct session *s, const int32_t *const *ids, const int64_t *count, int64_t done,
                       const int32_t *start, float *logits)
{
    int64_t T = start[s->n], V = s->model->cfg.vocab;
    int32_t *token = mem_new((size_t)T, sizeof *token);
    struct batch b = { .token = token, .seqs = seqs_of(start, s->n) };
    struct pass p = s->pass;
    float *rows = logits;                /* when all end here, their rows are written at once */
    int ended = 0;

    for (int i = 0; i < s->n; i++) {
        ended += ends(start, count, done, i);
        for (int32_t t = start[i]; t < start[i + 1]; t++)
            token[t] = ids[i][done + t - start[i]];
    }
    if (ended && ended < s->n)
        rows = mem_new((size_t)(s->n * V), sizeof *rows);
    p.state = s->state.at;
    p.fresh = s->fresh;
    if (ended)
        model_logits(s->model, &b, &p, true, rows);
    else
        model_feed(s->model, &b, &p);
    s->fresh = false;
    for (int i = 0; i < s->n && rows != logits; i++)
        if (ends(start, count, done, i))
            memcpy(logits + i * V, rows + i * V, (size_t)V * sizeof *rows);
    if (rows != logits)
        free(rows);
    free(token);
}

void session_feed(struct session *s, const int32_t *const *ids, const int64_t *count, float *logits)
{
    int32_t *start = mem_new((size_t)s->n + 1, sizeof *start);
    int64_t longest = 0;

    for (int i = 0; i < s->n; i++)
        longest = count[i] > longest ? count[i] : longest;
    for (int64_t done = 0; done < longest;) {
        int64_t share = next_piece(s, count, done, start);
        feed_piece(s, ids, count, done, start, logits);
        done += share;
    }
    s->fed += longest;
    free(start);
}
