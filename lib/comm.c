/* comm.c - a world of one, and a world of forked processes that meet in shared memory.
 *
 * The shared block is a header and world*world boxes of BOX floats: box (r, s) is what rank r hands to
 * rank s. Long tensors go through in pieces. Ranks with a GPU each only find each other here; then they
 * wait for each other inside NCCL, where they cannot look around, so a thread of rank 0 does. */
#define _GNU_SOURCE
#include "comm.h"
#include "comm_nccl.h"
#include "op.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BOX = 1 << 16, MAX_WORLD = 64, LOOK_MS = 50, PATIENCE_S = 3, STILL_S = 1800, HURRY_S = 120 };

static volatile sig_atomic_t hurry;

struct shared {
    atomic_int arrived, round, dead;     /* dead: 1 + the rank that ended without joining */
    atomic_int leaving;                  /* rank 0 needs its thread no more */
    pthread_t  watcher;
    int        gpu[MAX_WORLD];
    volatile int64_t beat[MAX_WORLD];    /* collectives that a rank began */
    char       id[COMM_NCCL_ID];
    pid_t      pid[MAX_WORLD];           /* 0: reaped, with its status in end */
    int        end[MAX_WORLD];
    float      box[];
};

static void self_sum(struct comm *c, struct tensor x)
{
    (void)c, (void)x;
}

static void self_move(struct comm *c, struct tensor a, struct tensor b)
{
    (void)c, (void)a, (void)b;
}

static float *box(const struct comm *c, int from, int to)
{
    struct shared *s = c->priv;

    return s->box + ((int64_t)from * c->world + to) * BOX;
}

static void say_end(int rank, int world, int end)
{
    if (WIFSIGNALED(end))
        fail("rank %d of %d was killed by signal %d (%s); the others are stopped", rank, world, WTERMSIG(end),
             strsignal(WTERMSIG(end)));
    else
        fail("rank %d of %d ended; the others are stopped", rank, world);
}

/* Rank 0 says who ended and how, and takes the rest along. */
static void end_all(struct shared *s, int world, int gone)
{
    say_end(gone, world, s->end[gone]);
    for (int r = 1; r < world; r++)
        if (s->pid[r])
            kill(s->pid[r], SIGKILL), waitpid(s->pid[r], NULL, 0);
    _exit(1);
}

/* A child whose parent is gone, or a parent whose child is: somebody died. Unless the round has moved
 * on: then whoever is gone had done its part. */
static void look_around(const struct comm *c, int round)
{
    struct shared *s = c->priv;
    int gone = 0;

    if (c->rank && getppid() != s->pid[0])
        atomic_store(&s->dead, 1);
    for (int r = 1; !c->rank && r < c->world; r++)
        if (s->pid[r] && waitpid(s->pid[r], &s->end[r], WNOHANG) == s->pid[r]) {
            s->pid[r] = 0;
            gone = r + 1;
        }
    if (atomic_load(&s->round) != round)
        return;
    if (gone)
        atomic_store(&s->dead, gone);
    if (!atomic_load(&s->dead))
        return;
    if (!c->rank)
        end_all(s, c->world, atomic_load(&s->dead) - 1);
    _exit(1);
}

static void barrier(const struct comm *c)
{
    struct shared *s = c->priv;
    int round = atomic_load(&s->round);

    if (atomic_fetch_add(&s->arrived, 1) + 1 == c->world) {
        atomic_store(&s->arrived, 0);
        atomic_fetch_add(&s->round, 1);
        return;
    }
    for (int spin = 0; atomic_load(&s->round) == round; spin++) {
        if (spin % 1024 == 1023)
            look_around(c, round);
        sched_yield();
    }
}

static void shm_sum(struct comm *c, struct tensor x)
{
    int64_t n = tensor_count(x);
    float total[256];

    REQUIRE(x.type == F32 && n <= (int64_t)LEN(total));
    op_get(c->dev, box(c, c->rank, 0), x.data, (size_t)n * 4);
    barrier(c);
    for (int64_t i = 0; i < n; i++) {
        total[i] = 0;
        for (int r = 0; r < c->world; r++)
            total[i] += box(c, r, 0)[i];
    }
    barrier(c);
    op_put(c->dev, x.data, total, (size_t)n * 4);
}

static void shm_scatter(struct comm *c, struct tensor slice, struct tensor whole)
{
    int64_t n = tensor_count(slice);
    const char *from = whole.data;

    REQUIRE(whole.type == F32 && slice.data == from + (int64_t)c->rank * n * 4);
    for (int64_t at = 0; at < n; at += BOX) {
        int64_t part = n - at < BOX ? n - at : BOX;
        for (int r = 0; r < c->world; r++)
            op_get(c->dev, box(c, c->rank, r), from + (r * n + at) * 4, (size_t)part * 4);
        barrier(c);
        for (int r = 1; r < c->world; r++)
            for (int64_t i = 0; i < part; i++)
                box(c, 0, c->rank)[i] += box(c, r, c->rank)[i];
        op_put(c->dev, (char *)slice.data + at * 4, box(c, 0, c->rank), (size_t)part * 4);
        barrier(c);
    }
}

static void shm_gather(struct comm *c, struct tensor whole, struct tensor slice)
{
    int64_t size = (int64_t)dtype_size(whole.type), n = tensor_count(slice) * size, step = (int64_t)BOX * 4;

    for (int64_t at = 0; at < n; at += step) {
        int64_t part = n - at < step ? n - at : step;
        op_get(c->dev, box(c, c->rank, 0), (char *)slice.data + at, (size_t)part);
        barrier(c);
        for (int r = 0; r < c->world; r++)
            if (r != c->rank)
                op_put(c->dev, (char *)whole.data + r * n + at, box(c, r, 0), (size_t)part);
        barrier(c);
    }
}

int comm_fork(struct comm *c, int world)
{
    size_t bytes = sizeof(struct shared) + (size_t)world * (size_t)world * BOX * sizeof(float);
    struct shared *s;

    *c = (struct comm){ .world = world, .sum = self_sum, .scatter = self_move, .gather = self_move };
    if (world == 1)
        return 0;
    if (world < 1 || world > MAX_WORLD)
        return fail("ranks: expected 1 to %d, found %d", MAX_WORLD, world);
    s = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s == MAP_FAILED)
        return fail("ranks: no shared memory: %s", strerror(errno));
    c->priv = s;
    c->sum = shm_sum;
    c->scatter = shm_scatter;
    c->gather = shm_gather;
    s->pid[0] = getpid();
    fflush(NULL);
    for (int r = 1; r < world; r++) {
        pid_t pid = fork();
        if (pid < 0) {
            atomic_store(&s->dead, r + 1);
            return fail("ranks: cannot start rank %d: %s", r, strerror(errno));
        }
        if (pid == 0) {
            c->rank = r;
            prctl(PR_SET_PDEATHSIG, SIGKILL);    /* nobody is left behind, holding the run's lock */
            return 0;
        }
        s->pid[r] = pid;
    }
    return 0;
}

void comm_hurry(void)
{
    hurry = 1;
}

#ifdef PALIMPSA_NCCL
/* The rank that is behind, or 0, when none has begun a collective for too long, or since somebody was in a hurry;
 * else -1. */
static int still(const struct shared *s, int world, int64_t *beats, double *since)
{
    int64_t sum = hurry;
    int late = 0;

    for (int r = 0; r < world; r++) {
        sum += s->beat[r];
        late = s->beat[r] < s->beat[late] ? r : late;
    }
    if (sum != *beats) {
        *beats = sum;
        *since = time_now();
    }
    return time_now() - *since > (hurry ? HURRY_S : STILL_S) ? late : -1;
}

static void stop_all(struct shared *s, int world, int late)
{
    fail("rank %d of %d has not moved for %d s; all are stopped", late, world, hurry ? HURRY_S : STILL_S);
    for (int r = 1; r < world; r++)
        if (s->pid[r])
            kill(s->pid[r], SIGKILL);
    _exit(1);
}

/* Rank 0 may wait on its GPU for a rank that is gone. One that ended well has done its part. */
static void *watch(void *arg)
{
    const struct comm *c = arg;
    struct shared *s = c->priv;
    const struct timespec pause = { .tv_nsec = LOOK_MS * 1000000L };
    double since = time_now();
    int64_t beats = 0;

    while (!atomic_load(&s->leaving)) {
        int late = still(s, c->world, &beats, &since);
        if (late >= 0)
            stop_all(s, c->world, late);
        for (int r = 1; r < c->world; r++) {
            if (!s->pid[r] || waitpid(s->pid[r], &s->end[r], WNOHANG) != s->pid[r])
                continue;
            s->pid[r] = 0;
            if (!WIFEXITED(s->end[r]) || WEXITSTATUS(s->end[r]))
                end_all(s, c->world, r);
        }
        nanosleep(&pause, NULL);
    }
    return NULL;
}

/* Every rank has its GPU: rank 0 hands round how to find each other. */
static int join_gpus(struct comm *c)
{
    struct shared *s = c->priv;

    if (!c->rank && comm_nccl_id(s->id))
        return -1;
    barrier(c);
    if (!c->rank && pthread_create(&s->watcher, NULL, watch, c))
        return fail("ranks: no thread to watch them: %s", strerror(errno));
    c->beat = &s->beat[c->rank];
    return comm_nccl_open(c, s->id);
}

static void leave_gpus(struct comm *c, bool failed)
{
    struct shared *s = c->priv;
    const struct timespec pause = { .tv_sec = PATIENCE_S };

    comm_nccl_close(c, failed);
    if (c->rank && failed)
        nanosleep(&pause, NULL);         /* rank 0 may be about to say what went wrong, and end this rank */
    if (!c->rank) {
        atomic_store(&s->leaving, 1);
        pthread_join(s->watcher, NULL);
    }
}
#else
const char *comm_nccl_name(const struct comm *c)
{
    (void)c;
    return "";
}

static int join_gpus(struct comm *c)
{
    return c->rank ? -1 : fail("%d ranks with a GPU each: this palimpsa was built without NCCL", c->world);
}

static void leave_gpus(struct comm *c, bool failed)
{
    (void)c, (void)failed;
}
#endif

/* Does every rank have a GPU of its own? */
static bool apart(struct comm *c)
{
    struct shared *s = c->priv;
    bool same = false;

    s->gpu[c->rank] = c->dev->kind == DEV_CUDA ? c->dev->index : -1;
    barrier(c);
    for (int i = 0; i < c->world; i++)
        for (int j = 0; j < i; j++)
            same = same || s->gpu[i] < 0 || s->gpu[i] == s->gpu[j];
    return !same;
}

int comm_use(struct comm *c, struct dev *d)
{
    c->dev = d;
    return c->world > 1 && apart(c) ? join_gpus(c) : 0;
}

const char *comm_name(const struct comm *c)
{
    return c->link ? comm_nccl_name(c) : "shared memory";
}

void comm_leave(struct comm *c, bool failed)
{
    if (c->link)
        leave_gpus(c, failed);
}

/* A rank 0 that failed takes the others along: they may wait for it in a round that never ends. */
int comm_join(struct comm *c, int status)
{
    struct shared *s = c->priv;

    if (c->world == 1)
        return status;
    fflush(NULL);
    if (c->rank)
        _exit(status);
    for (int r = 1; r < c->world; r++) {
        if (s->pid[r] && status)
            kill(s->pid[r], SIGKILL);
        while (s->pid[r] && waitpid(s->pid[r], &s->end[r], 0) < 0 && errno == EINTR)
            ;
        if (!status && !(WIFEXITED(s->end[r]) && WEXITSTATUS(s->end[r]) == 0)) {
            say_end(r, c->world, s->end[r]);
            status = WIFEXITED(s->end[r]) ? WEXITSTATUS(s->end[r]) : 1;
        }
    }
    return status;
}
