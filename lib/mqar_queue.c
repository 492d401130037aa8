/* mqar_queue.c - runs as processes side by side: each trains on its device and reports through one pipe.
 *
 * The parent opens no device and starts no threads, so that a child may do both. */
#define _GNU_SOURCE
#include "ckpt.h"
#include "dev.h"
#include "json.h"
#include "metrics.h"
#include "mqar_grid.h"
#include "train_parts.h"
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_JOBS = 256, MOST_DEVICES = 64 };

struct queue {
    struct mqar_grid   *g;
    struct mqar_options o;               /* with jobs and threads decided */
    char    device[MOST_DEVICES][32];
    int     devices;
    int     pipe[2];
    pid_t   pid[MOST_JOBS];              /* 0: free */
    int     cell[MOST_JOBS];
    int64_t from[MOST_JOBS];             /* epochs that it had when it was started */
    int     running, finished, failed;   /* of this invocation */
    bool    stopping;
    double  began, done;                 /* work of this invocation, in tokens */
};

static double work(const struct mqar_grid *g, const struct mqar_cell *c)
{
    return mqar_mix_mean(&c->job.mix) * (double)(g->o->train * g->o->epochs);
}

/* Of it what is left to do. */
static double left(const struct mqar_grid *g, const struct mqar_cell *c)
{
    return mqar_is_over(c) ? 0 : work(g, c) * (double)(g->o->epochs - c->told.epoch) / (double)g->o->epochs;
}

/* Opens every device once, in a process of its own. Returns how many GPUs there are, or -1. */
static int probe(const struct queue *q)
{
    int end = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid < 0)
        return fail("cannot start a process: %s", strerror(errno));
    if (!pid) {
        struct dev d;
        for (int i = 0; i < q->devices; i++) {
            if (dev_open(&d, q->device[i], dtype_named(q->o.dtype), q->o.threads))
                _exit(255);
            dev_close(&d);
        }
        _exit(q->devices ? 0 : dev_gpus() < MOST_DEVICES ? dev_gpus() : MOST_DEVICES);
    }
    while (waitpid(pid, &end, 0) < 0 && errno == EINTR)
        ;
    return WIFEXITED(end) && WEXITSTATUS(end) < 255 ? WEXITSTATUS(end) : -1;
}

/* auto: every GPU, else the CPU; or a list of devices. */
static int find_devices(struct queue *q)
{
    const char *s = q->o.device;
    int gpus;

    if (!strcmp(s, "auto")) {
        gpus = probe(q);
        for (int i = 0; i < gpus; i++)
            str_format(q->device[q->devices++], sizeof q->device[0], "cuda:%d", i);
        if (!gpus)
            str_format(q->device[q->devices++], sizeof q->device[0], "cpu");
        return gpus < 0 || probe(q) < 0 ? -1 : 0;
    }
    for (; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
        if (q->devices == MOST_DEVICES)
            return fail("--device: more than %d", MOST_DEVICES);
        if (!str_format(q->device[q->devices++], sizeof q->device[0], "%.*s", (int)strcspn(s, ","), s))
            return fail("--device: expected names such as cuda:0, separated by commas, found '%s'", s);
    }
    return probe(q) < 0 ? -1 : 0;
}

/* A GPU gets one run at a time, a CPU one for each core, unless it is said how many. */
static void decide_jobs(struct queue *q, int waiting)
{
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    bool gpu = !strncmp(q->device[0], "cuda", 4);

    if (!q->o.jobs)
        q->o.jobs = gpu ? q->devices : cores;
    if (q->o.jobs > waiting)
        q->o.jobs = waiting;
    if (q->o.jobs > MOST_JOBS)
        q->o.jobs = MOST_JOBS;
    if (!q->o.threads)
        q->o.threads = cores / (q->o.jobs ? q->o.jobs : 1);
    if (q->o.threads < 1)
        q->o.threads = 1;
}

static void send(void *arg, const struct mqar_told *t)
{
    const int *at = arg;                 /* the pipe, and which run this is */
    struct mqar_told told = *t;

    told.job = at[1];
    if (write(at[0], &told, sizeof told) != (ssize_t)sizeof told)
        _exit(1);                        /* nobody listens any more */
}

static NORETURN void child(const struct queue *q, int slot, int cell, pid_t parent)
{
    struct mqar_cell *c = &q->g->cell[cell];
    int at[2] = { q->pipe[1], cell }, status;
    char dir[4096];

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent || !mqar_cell_path(q->g, c, "", dir, sizeof dir))
        _exit(1);
    close(q->pipe[0]);
    status = mqar_train(&q->o, &c->job, dir, q->device[slot % q->devices], send, at);
    fflush(NULL);
    _exit(status ? 1 : 0);
}

static int start(struct queue *q, int slot, int cell)
{
    char dir[4096];
    pid_t parent = getpid(), pid;

    if (!mqar_cell_path(q->g, &q->g->cell[cell], "", dir, sizeof dir))
        return fail("%s: path too long", q->o.out);
    if (dir_make(dir))
        return -1;
    fflush(NULL);
    pid = fork();
    if (pid < 0)
        return fail("cannot start a process: %s", strerror(errno));
    if (!pid)
        child(q, slot, cell, parent);
    q->pid[slot] = pid;
    q->cell[slot] = cell;
    q->from[slot] = q->g->cell[cell].told.epoch;
    q->g->cell[cell].told.state = MQAR_RUNS;
    q->running++;
    return 0;
}

/* Work that this invocation did in a slot. */
static double done_by(const struct queue *q, int slot)
{
    const struct mqar_cell *c = &q->g->cell[q->cell[slot]];
    int64_t until = mqar_is_over(c) ? q->o.epochs : c->told.epoch;

    return work(q->g, c) * (double)(until - q->from[slot]) / (double)q->o.epochs;
}

/* Until all is done, at the rate of this invocation; of rates that are not chosen yet one will be. */
static double left_of_all(const struct queue *q)
{
    const struct mqar_grid *g = q->g;
    double done = q->done, all = 0;

    for (int i = 0; i < q->o.jobs; i++)
        done += q->pid[i] ? done_by(q, i) : 0;
    for (int i = 0; i < g->n; i++)
        all += mqar_counts(g, &g->cell[i]) ? left(g, &g->cell[i]) : 0;
    return done > 0 ? (time_now() - q->began) * all / done : 0;
}

static void show(const struct queue *q, const struct mqar_cell *c)
{
    const struct mqar_told *t = &c->told;
    char mix[256], accuracy[32 * MQAR_MIX], run[32], rest[32];
    int all, over;
    size_t n = 0;

    mqar_count(q->g, &all, &over);
    mqar_mix_text(&c->job.mix, mix, sizeof mix);
    for (int k = 0; k < c->job.mix.n; k++)
        n += (size_t)snprintf(accuracy + n, sizeof accuracy - n, "%s%.4f", k ? " " : "", t->accuracy[k]);
    metrics_duration(run, t->state == MQAR_RUNS ? t->epoch_seconds * (double)(q->o.epochs - t->epoch) : t->seconds);
    metrics_duration(rest, left_of_all(q));
    say("%s %s lr %g seed %llu  epoch %lld/%lld  loss %.4f  accuracy %s  %.0f tokens/s  %s %s  runs %d/%d, %s left",
        c->job.model, mix, c->job.lr, (unsigned long long)c->job.seed, (long long)t->epoch, (long long)q->o.epochs,
        t->loss, accuracy, t->tokens_per_second, t->state == MQAR_RUNS ? "ETA" : mqar_state_name(t->state), run,
        over, all, rest);
}

/* Says which rate goes on, when the last run that chooses is over. */
static void show_choice(const struct queue *q, const struct mqar_cell *c)
{
    const struct mqar_grid *g = q->g;
    char mix[256];

    if (mqar_choosing(g) == g->o->seeds || c->seed >= mqar_choosing(g) || !mqar_chosen(g, c->mix, c->model))
        return;
    mqar_mix_text(&c->job.mix, mix, sizeof mix);
    say("%s %s: lr %g is the best of %d and gets the other seeds", c->job.model, mix,
        g->rate[mqar_best_rate(g, c->mix, c->model, NULL)], g->rates);
}

/* All that the children have said; waits so many milliseconds for the first word. */
static void hear(struct queue *q, int wait)
{
    struct pollfd p = { .fd = q->pipe[0], .events = POLLIN };
    struct mqar_told t;

    for (; poll(&p, 1, wait) > 0 && read(q->pipe[0], &t, sizeof t) == (ssize_t)sizeof t; wait = 0) {
        struct mqar_cell *c = &q->g->cell[t.job];
        c->told = t;
        if (mqar_is_over(c)) {
            q->finished++;
            if (mqar_cell_read(q->g, c))                 /* what it wrote chooses rates, now as later */
                c->told.state = MQAR_FAILED;
            c->told.tokens_per_second = t.tokens_per_second;
        }
        if (mqar_is_over(c) || (t.state != MQAR_FAILED && t.epoch))
            show(q, c);
        if (mqar_is_over(c))
            show_choice(q, c);
    }
}

/* Takes back the slots of processes that ended. */
static void reap(struct queue *q)
{
    for (int i = 0; i < q->o.jobs; i++) {
        struct mqar_cell *c = &q->g->cell[q->cell[i]];
        int end;
        if (!q->pid[i] || waitpid(q->pid[i], &end, WNOHANG) != q->pid[i])
            continue;
        hear(q, 0);                                      /* its last words */
        q->done += done_by(q, i);
        q->pid[i] = 0;
        q->running--;
        if (WIFSIGNALED(end))
            fail("%s was killed by signal %d (%s); the same command goes on with it", c->job.name, WTERMSIG(end),
                 strsignal(WTERMSIG(end)));
        if (!mqar_is_over(c) && c->told.state != MQAR_STOPPED) {
            q->failed += !q->stopping;
            c->told.state = MQAR_FAILED;
        }
    }
}

static void stop(struct queue *q, const char *why)
{
    q->stopping = true;
    say("%s: %d run%s saved where %s; the same command goes on", why, q->running, q->running == 1 ? " is" : "s are",
        q->running == 1 ? "it is" : "they are");
    for (int i = 0; i < q->o.jobs; i++)
        if (q->pid[i])
            kill(q->pid[i], SIGTERM);
}

/* The earliest seed first: what is finished when time runs out is a whole experiment with fewer of them. Of one seed
 * the longest first, so that devices end together. */
static int next_cell(const struct queue *q)
{
    const struct mqar_grid *g = q->g;
    int next = -1;

    for (int i = 0; i < g->n; i++) {
        const struct mqar_cell *c = &g->cell[i];
        if (c->told.state != MQAR_WAITS || mqar_wanted(g, c) != MQAR_WANTED)
            continue;
        if (next < 0 || (c->seed == g->cell[next].seed && left(g, c) > left(g, &g->cell[next])))
            next = i;
    }
    return next;
}

static int run_all(struct queue *q)
{
    int next, all, over;

    while ((next = q->stopping ? -1 : next_cell(q)) >= 0 || q->running) {
        for (int i = 0; i < q->o.jobs && next >= 0; i++)
            if (!q->pid[i]) {
                if (start(q, i, next))
                    stop(q, "stopped by an error");
                next = q->stopping ? -1 : next_cell(q);
            }
        hear(q, 50);
        reap(q);
        if (q->stopping)
            continue;
        if (train_signalled())
            stop(q, "stopped by a signal");
        else if (q->o.max_seconds > 0 && time_now() - q->began > q->o.max_seconds)
            stop(q, "--max-seconds are over");
        else if (q->failed > 2 && !q->finished)
            stop(q, "every run failed so far");
    }
    mqar_count(q->g, &all, &over);
    if (q->failed)
        fail("%d of %d runs failed", q->failed, all);
    return q->failed > 0;
}

/* Settings that results depend on; a directory holds one experiment. */
static int same_settings(const struct mqar_options *o)
{
    struct text t = { 0 };
    char path[4096], *old = NULL;
    size_t n, i = 0;
    int status = 0;

    text_add(&t, "{\n\"train\": %lld,\n\"test\": %lld,\n\"epochs\": %lld,\n", (long long)o->train,
             (long long)o->test, (long long)o->epochs);
    text_add(&t, "\"batch-tokens\": %lld,\n\"warmup\": %lld,\n", (long long)o->batch_tokens, (long long)o->warmup);
    text_add(&t, "\"vocab\": %lld,\n\"layers\": %d,\n\"width\": %d,\n\"heads\": %d,\n\"key\": %d,\n\"value\": %d,\n",
             (long long)o->vocab, o->layers, o->width, o->heads, o->key, o->value);
    text_add(&t, "\"rank\": %d,\n\"random-filler\": %d,\n\"fresh\": %d,\n\"tied\": %d,\n\"lr-floor\": %.9g,\n", o->rank,
             o->random, o->fresh, o->tied, o->lr_floor);
    text_add(&t, "\"beta2\": %.9g,\n\"weight-decay\": %.9g,\n\"clip\": %.9g,\n", o->beta2, o->weight_decay, o->clip);
    text_add(&t, "\"stop-at\": %.9g,\n\"patience\": %lld,\n", o->stop_at, (long long)o->patience);
    text_add(&t, "\"data-seed\": %llu,\n\"dtype\": \"%s\"\n}\n", (unsigned long long)o->data_seed, o->dtype);
    if (!str_format(path, sizeof path, "%s/settings.json", o->out))
        status = fail("%s: path too long", o->out);
    else if (access(path, F_OK))
        status = file_write(path, t.at, t.n);
    else if (!(old = file_read(path, &n)))
        status = -1;
    else if (n != t.n || memcmp(old, t.at, n)) {
        while (i < n && i < t.n && old[i] == t.at[i])
            i++;
        while (i && t.at[i - 1] != '\n')
            i--;
        status = fail("%s: these runs were made with %.*s, not %.*s: use their settings or another --out", path,
                      (int)strcspn(old + i, ",\n"), old + i, (int)strcspn(t.at + i, ",\n"), t.at + i);
    }
    text_free(&t);
    free(old);
    return status;
}

static int make_directory(const char *out, const char *name)
{
    char path[4096];

    if (!str_format(path, sizeof path, "%s%s", out, name))
        return fail("%s: path too long", out);
    return dir_make(path);
}

/* Reads what was done before. Returns how many runs are left to do, or -1. */
static int survey(struct queue *q, int *all, int *over)
{
    struct mqar_grid *g = q->g;

    for (int i = 0; i < g->n; i++) {
        if (mqar_cell_read(g, &g->cell[i]))
            return -1;
        if (!mqar_is_over(&g->cell[i]))
            g->cell[i].told.state = MQAR_WAITS;
    }
    mqar_count(g, all, over);
    return *all - *over;
}

static int run_queue(struct queue *q)
{
    int status, all, over, waiting = survey(q, &all, &over);

    if (waiting <= 0)
        return waiting;
    if (find_devices(q))
        return -1;
    decide_jobs(q, waiting);
    say("%d runs, %d finished before; %d at a time on %s%s, %d thread%s each", all, over, q->o.jobs,
        q->device[0], q->devices > 1 ? " and others" : "", q->o.threads, q->o.threads == 1 ? "" : "s");
    if (pipe(q->pipe))
        return fail("no pipe: %s", strerror(errno));
    train_watch_signals();
    q->began = time_now();
    status = run_all(q);
    close(q->pipe[0]);
    close(q->pipe[1]);
    return status;
}

int mqar_grid_run(struct mqar_grid *g)
{
    struct queue *q = mem_new(1, sizeof *q);
    int status = -1, lock;

    q->g = g;
    q->o = *g->o;
    if (!make_directory(g->o->out, "") && !make_directory(g->o->out, "/runs") && (lock = ckpt_lock(g->o->out)) >= 0) {
        status = same_settings(g->o) ? -1 : run_queue(q);
        close(lock);
    }
    free(q);
    return status;
}
