/* task_answer.c - requests through the model.
 *
 *   log p(continuation | context) = sum over its tokens of log softmax(logits)[token]
 *
 * Neighbours that begin alike are a group: what they share is read once, and each goes on from a copy of the memory
 * after it; the head is computed only from there on. Rows are packed, without padding, so that what lies beside a
 * request cannot change it. */
#define _POSIX_C_SOURCE 200809L
#include "session.h"
#include "sha256.h"
#include "task_ask.h"
#include "task_kept.h"
#include <errno.h>
#include <math.h>

enum { ROW = 4096, SIDE = 64, SHARED = 8 };      /* tokens of a row; requests side by side; sharing less is no gain */
enum { MEMORY = 1 << 28, LOGITS = 1 << 25 };     /* bytes of the memory of a side; logits on the host at once */

struct group { int64_t first, n, shared; };      /* requests, and how many inputs they have in common */

struct answering {
    struct task_run *r;
    struct model    *m;
    struct ask      *a;
    struct model_state before, after;            /* memory after what is shared, and of those that go on */
    int              side;
    bool             look;
    int64_t          row, usable;                /* tokens of a row of continuations; ids the tokenizer knows */
    int64_t          all, left, done;            /* requests; those to answer; those answered */
    float           *out;                        /* [row] losses, or [row, vocab] logits */
    FILE            *kept;
    struct task_clock clock;
};

/* Inputs that may be shared: the one that predicts the first scored token is not among them. */
static int64_t unscored(const struct ask *a)
{
    return a->n - a->scored - 1;
}

static int64_t common(const struct ask *a, const struct ask *b)
{
    int64_t n = 0, most = unscored(a) < unscored(b) ? unscored(a) : unscored(b);

    while (n < most && a->id[n] == b->id[n])
        n++;
    return n;
}

/* A neighbour joins when the group then saves no less than before. */
static struct group group_at(const struct answering *x, int64_t i, int64_t end)
{
    struct group g = { i, 1, unscored(&x->a[i]) };

    for (int64_t k; i + g.n < end && !x->a[i + g.n].done; g.n++, g.shared = k) {
        k = common(&x->a[i], &x->a[i + g.n]);
        k = k < g.shared ? k : g.shared;
        if (k < SHARED || g.n * k < (g.n - 1) * g.shared)
            break;
    }
    if (g.n == 1 && !x->look && g.shared < 2 * x->a[i].scored)
        g.shared = 0;
    g.shared = g.shared < SHARED ? 0 : g.shared;
    return g;
}

struct part { struct ask *ask; int64_t from, to; };      /* inputs of a request that are in a row */

static double log_softmax(const float *logits, int64_t n, int32_t at)
{
    double top = logits[0], sum = 0;

    for (int64_t i = 1; i < n; i++)
        top = logits[i] > top ? logits[i] : top;
    for (int64_t i = 0; i < n; i++)
        sum += exp(logits[i] - top);
    return logits[at] - top - log(sum);
}

static void take_row(const struct answering *x, const struct part *p, int n)
{
    int64_t V = x->m->cfg.vocab;
    const float *out = x->out;

    for (int i = 0; i < n; i++)
        for (int64_t t = p[i].from; t < p[i].to; t++, out += x->look ? V : 1) {
            struct ask *a = p[i].ask;
            if (t < unscored(a))
                continue;
            a->log_prob += x->look ? log_softmax(out, V, a->id[t + 1]) : -(double)*out;
            if (x->look)
                a->greedy &= argmax(out, x->usable) == a->id[t + 1];
        }
}

/* One row through the model: into the memory alone, or with losses or logits. */
static void run_row(struct answering *x, const struct part *p, int n, struct model_state *s, bool fresh, bool score)
{
    int seqs = s ? x->side : n;
    int64_t T = 0;
    int32_t *start = mem_new((size_t)seqs + 1, sizeof *start), *token, *target;
    struct pass pass = { .state = s ? s->at : NULL, .fresh = fresh, .alone = true };
    struct batch b = { 0 };

    for (int i = 0; i < seqs; i++)
        start[i + 1] = start[i] + (i < n ? (int32_t)(p[i].to - p[i].from) : 0);
    token = mem_new((size_t)start[seqs] + 1, sizeof *token);
    target = mem_new((size_t)start[seqs] + 1, sizeof *target);
    for (int i = 0; i < n; i++)
        for (int64_t t = p[i].from; t < p[i].to; t++, T++) {
            bool scored = t >= unscored(p[i].ask);
            token[T] = p[i].ask->id[t];
            target[T] = scored ? p[i].ask->id[t + 1] : -1;
            b.predicted += scored;
        }
    b.token = token;
    b.target = target;
    b.seqs = seqs_of(start, seqs);
    if (!score)
        model_feed(x->m, &b, &pass);
    else if (x->look)
        model_logits(x->m, &b, &pass, false, x->out);
    else
        model_loss(x->m, &b, &pass, x->out);
    if (score)
        take_row(x, p, n);
    free(start);
    free(token);
    free(target);
}

/* A row, or when it is one request too long for one, pieces of it. */
static void run_parts(struct answering *x, const struct part *p, int n, struct model_state *s, bool fresh, bool score)
{
    int64_t most = score ? x->row : ROW;
    struct part piece = p[0];

    if (n > 1 || p->to - p->from <= most) {
        run_row(x, p, n, s, fresh, score);
        return;
    }
    for (; piece.from < p->to; piece.from = piece.to, fresh = false) {
        piece.to = p->to - piece.from < most ? p->to : piece.from + most;
        run_row(x, &piece, 1, s ? s : &x->after, fresh, score);
    }
}

/* A row of continuations, from copies of the memory of groups which[i], or from none. */
static void go_on(struct answering *x, const struct part *p, int n, const int32_t *which)
{
    if (which)
        model_state_pick(x->m, &x->after, &x->before, which);
    run_parts(x, p, n, which ? &x->after : NULL, !which, true);
}

/* Answers groups that all share something, or all nothing. */
static void run_groups(struct answering *x, const struct group *g, int n)
{
    struct part *p = mem_new((size_t)x->side, sizeof *p);
    int32_t *which = mem_new((size_t)x->side, sizeof *which);
    bool shared = g[0].shared > 0;
    int64_t tokens = 0;
    int k = 0;

    for (int i = 0; shared && i < n; i++)
        p[i] = (struct part){ &x->a[g[i].first], 0, g[i].shared };
    if (shared)
        run_parts(x, p, n, &x->before, true, false);
    for (int i = 0; i < n; i++)
        for (int64_t j = g[i].first; j < g[i].first + g[i].n; j++) {
            int64_t size = x->a[j].n - 1 - g[i].shared;
            if (k && (k == x->side || tokens + size > x->row)) {
                go_on(x, p, k, shared ? which : NULL);
                k = 0;
                tokens = 0;
            }
            p[k] = (struct part){ &x->a[j], g[i].shared, x->a[j].n - 1 };
            which[k++] = i;
            tokens += size;
        }
    go_on(x, p, k, shared ? which : NULL);
    free(p);
    free(which);
}

/* What is kept of a request: its place, a hash of its tokens, and the answer. */
static void hash_ids(const struct ask *a, char hash[65])
{
    sha256_hex(a->id, (size_t)a->n * sizeof *a->id, hash);
}

static int keep_group(struct answering *x, const struct group *g)
{
    struct text lines = { 0 };
    char hash[65];
    int status;

    for (int64_t i = g->first; i < g->first + g->n; i++) {
        const struct ask *a = &x->a[i];
        hash_ids(a, hash);
        text_add(&lines, "{\"request\": %lld, \"ids\": \"%.16s\", \"scored\": %lld, ", (long long)i, hash,
                 (long long)a->scored);
        text_add(&lines, "\"log_prob\": %.17g, \"greedy\": %d}\n", a->log_prob, a->greedy);
    }
    status = kept_add(x->kept, &lines);
    text_free(&lines);
    return status;
}

static int take_line(void *arg, const struct json *row)
{
    struct answering *x = arg;
    int64_t i, scored, greedy;
    char hash[65];
    const char *ids;
    double log_prob;

    if (json_int(row, "request", &i) <= 0 || json_string(row, "ids", &ids) <= 0 ||
        json_int(row, "scored", &scored) <= 0 || json_double(row, "log_prob", &log_prob) <= 0 ||
        json_int(row, "greedy", &greedy) <= 0)
        return fail("%s: a line that is no answer to a request", x->r->predictions);
    if (i < 0 || i >= x->all || (x->look && greedy < 0))
        return 0;
    hash_ids(&x->a[i], hash);
    if (strncmp(hash, ids, 16) || scored != x->a[i].scored)
        return fail("%s: request %lld is of other data", x->r->predictions, (long long)i);
    x->a[i].log_prob = log_prob;
    x->a[i].greedy = (int)greedy;
    x->a[i].done = true;
    return 0;
}

static int open_kept(struct answering *x)
{
    char settings[64];
    int64_t had;

    if (!x->r->predictions)
        return 0;
    snprintf(settings, sizeof settings, "%s.settings.json", x->r->task->name);
    if (kept_claim(x->r, settings, "") || !(x->kept = kept_open(x->r, x->r->task->name, &had)))
        return -1;
    return kept_each(x->r, x->r->task->name, take_line, x);
}

static int flush(struct answering *x, const struct group *g, int n)
{
    int status = 0;

    run_groups(x, g, n);
    for (int i = 0; i < n; i++) {
        for (int64_t k = 0; k < g[i].n; k++)
            x->a[g[i].first + k].done = true;
        x->done += g[i].n;
        if (x->kept && !status)
            status = keep_group(x, &g[i]);
    }
    task_progress(&x->clock, x->r->task->name, x->done, x->left);
    return status;
}

static int answer_all(struct answering *x)
{
    struct group *g = mem_new((size_t)x->side, sizeof *g);
    int64_t tokens = 0;
    int n = 0, status = 0;

    for (int64_t i = 0; i < x->all && !status;) {
        struct group one;

        if (x->a[i].done) {
            i++;
            continue;
        }
        one = group_at(x, i, x->all);
        if (n && (n == x->side || tokens + one.shared > ROW || (g[0].shared > 0) != (one.shared > 0))) {
            status = flush(x, g, n);
            n = 0;
            tokens = 0;
        }
        g[n++] = one;
        tokens += one.shared;
        i += one.n;
    }
    if (n && !status)
        status = flush(x, g, n);
    free(g);
    return status;
}

/* How many side by side: as asked for, else as many as the memory of each lets be. */
static int open_states(struct answering *x)
{
    int64_t most = x->r->batch > 0 && x->r->batch < 4096 ? x->r->batch : SIDE;
    size_t room = x->m->dev->kind == DEV_CUDA ? 4 * (size_t)MEMORY : MEMORY;

    if (model_state_open(x->m, &x->after, 1))
        return -1;
    if (!x->r->batch && (size_t)most * x->after.bytes > room)
        most = (int64_t)(room / x->after.bytes) < 4 ? 4 : (int64_t)(room / x->after.bytes);
    model_state_close(x->m, &x->after);
    x->side = (int)most;
    return model_state_open(x->m, &x->before, most) || model_state_open(x->m, &x->after, most) ? -1 : 0;
}

int asks_answer(struct task_run *r, struct asks *a, bool look)
{
    struct model *m = &r->m->model;
    struct answering x = { .r = r, .m = m, .a = a->at, .look = look, .all = a->n, .row = ROW };
    int64_t V = m->cfg.vocab;
    int status;

    x.usable = bpe_vocab(r->m->bpe) < m->cfg.vocab_real ? bpe_vocab(r->m->bpe) : m->cfg.vocab_real;
    if (look)
        x.row = LOGITS / V > ROW ? ROW : LOGITS / V < 16 ? 16 : LOGITS / V;
    for (int64_t i = 0; i < a->n; i++) {
        a->at[i].log_prob = 0;
        a->at[i].greedy = look ? 1 : -1;
        a->at[i].done = false;
    }
    status = model_reserve(m, JOB_LOSS, ROW) || (look && model_reserve(m, JOB_LOGITS, x.row)) || open_states(&x) ||
             open_kept(&x) ? -1 : 0;
    for (int64_t i = 0; i < a->n; i++)
        x.left += !a->at[i].done;
    x.out = mem_new((size_t)(x.row * (look ? V : 1)), sizeof *x.out);
    status = status ? status : answer_all(&x);
    if (x.kept && fclose(x.kept))
        status = fail("%s: %s", r->predictions, strerror(errno));
    free(x.out);
    model_state_close(m, &x.before);
    model_state_close(m, &x.after);
    return status;
}
