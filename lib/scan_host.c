/* scan_host.c - memories in double, and how a piece of a packed row falls into sequences. */
#include "scan_host.h"

void memory_load(double *m, struct tensor t, int64_t n, int64_t h, int64_t size)
{
    const float *from = memory(t, n, h);

    for (int64_t i = 0; i < size; i++)
        m[i] = from ? (double)from[i] : 0;
}

void memory_store(struct tensor t, int64_t n, int64_t h, const double *m, int64_t size)
{
    float *to = memory(t, n, h);

    for (int64_t i = 0; to && i < size; i++)
        to[i] = (float)m[i];
}

/* The sequence that holds token t: the last one that starts at or before it. */
static int64_t sequence_at(const struct seqs *s, int64_t t)
{
    int64_t low = 0, high = s->n;

    while (high - low > 1) {
        int64_t mid = (low + high) / 2;
        if (s->start[mid] <= t)
            low = mid;
        else
            high = mid;
    }
    return low;
}

int scan_segments(struct segment *seg, const struct seqs *s, int64_t from, int64_t to)
{
    int count = 0;

    for (int64_t n = sequence_at(s, from); n < s->n && s->start[n] < to; n++) {
        int64_t first = s->start[n], last = s->start[n + 1];
        if (first == last)
            continue;
        seg[count++] = (struct segment){
            .n = n,
            .from = (int)((first > from ? first : from) - from),
            .to = (int)((last < to ? last : to) - from),
            .first = first >= from, .last = last <= to,
        };
    }
    return count;
}

void scan_pass_empty(const struct seqs *s, struct tensor to, struct tensor from)
{
    for (int64_t n = 0; to.data && to.data != from.data && n < s->n; n++) {
        size_t bytes = (size_t)(to.dim[1] * to.dim[2] * to.dim[3]) * sizeof(float);
        if (s->start[n] != s->start[n + 1])
            continue;
        if (from.data)
            memcpy(memory(to, n, 0), memory(from, n, 0), bytes);
        else
            memset(memory(to, n, 0), 0, bytes);
    }
}
