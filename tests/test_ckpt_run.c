/* test_ckpt_run.c - optimizer state on any number of ranks, and the directory of a run: what an
 * interrupted save leaves never shows. */
#define _DEFAULT_SOURCE
#include "ckpt.h"
#include "scratch.h"
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static struct dev dev;
static struct comm self;

/* State as a function of name, kind and index, whatever the slices. */
static float state(const struct param *a, int kind, int64_t i)
{
    uint64_t h = (uint64_t)i * 2654435761u + (uint64_t)kind * 97 + (uint64_t)a->name[strlen(a->name) - 3] * 131 +
                 (uint64_t)a->offset;

    return (float)(h % 10007) / 997;
}

enum { FILL, COMPARE };

/* Fills this rank's slices, or counts what differs. */
static int64_t states(struct model *m, struct comm *c, int what)
{
    int64_t wrong = 0;

    for (int i = 0; i < m->params.n; i++) {
        const struct param *a = &m->params.at[i];
        struct bucket *k = &m->params.bucket[a->bucket];
        float *at_kind[] = { k->master.data, k->m.data, k->v.data };
        if (a->flags & PARAM_FROZEN)
            continue;
        for (int kind = 0; kind < 3; kind++)
            for (int64_t j = 0; j < tensor_count(a->value); j++) {
                int64_t s = a->offset + j - c->rank * k->slice;
                if (s < 0 || s >= k->slice)
                    continue;
                if (what == FILL)
                    at_kind[kind][s] = state(a, kind, j);
                else
                    wrong += at_kind[kind][s] != state(a, kind, j);
            }
    }
    return wrong;
}

/* F32 masters are values: other ranks' parts come by gathering. */
static void gather_values(struct model *m, struct comm *c)
{
    for (int b = 0; b < m->params.nbucket; b++) {
        struct bucket *k = &m->params.bucket[b];
        c->gather(c, k->value, tensor_rows(k->value, c->rank * k->slice, k->slice));
    }
}

/* Saves to, or loads from, dir with so many ranks. */
static int optim_ranks(int world, const char *dir, bool save)
{
    struct run r = { .step = 7, .seed = 18446744073709551615u, .row = 1234567890123, .data = "abc",
                     .options = "{\"lr\": 0.001, \"list\": [1, null]}" }, back;
    struct model_use use = { .world = world, .learn = true, .optim = true };
    struct optim o = { 0 };
    struct config c;
    struct comm comm;
    struct model m;
    int status = 1;

    if (comm_fork(&comm, world))
        return 1;
    comm_use(&comm, &dev);
    if (config_read(&c, "palimpsa-tiny") || model_open(&m, &dev, &c, &use))
        return comm_join(&comm, 1);
    params_init(&m.params, &dev, 3, comm.rank);
    if (save) {
        states(&m, &comm, FILL);
        gather_values(&m, &comm);
        status = ckpt_save(dir, &m, &o, &r, &comm, NULL, BF16) != 0;
    } else if (!ckpt_load(dir, &m) && !ckpt_load_optim(dir, &m, &comm) && !ckpt_run_read(dir, &back)) {
        status = states(&m, &comm, COMPARE) != 0 || back.step != 7 || back.seed != r.seed || back.row != r.row ||
                 strcmp(back.data, "abc") || strcmp(back.options, r.options);
        free(back.options);
    }
    model_close(&m);
    return comm_join(&comm, status);
}

/* In a process of its own: OpenMP's threads do not survive a fork, so this one must not start any. */
static int optim_world(int world, const char *dir, bool save)
{
    int status = 0;
    pid_t child = fork();

    if (!child)
        exit(optim_ranks(world, dir, save));
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status);
}

static void test_optim(void)
{
    static const int worlds[] = { 1, 2, 3 };
    char dir[512], first[512];

    str_format(first, sizeof first, "%s", scratch("optim1"));
    for (size_t i = 0; i < LEN(worlds); i++) {
        str_format(dir, sizeof dir, "%s/optim%d", scratch_root, worlds[i]);
        CHECK(!optim_world(worlds[i], dir, true));
        for (size_t j = 0; j < LEN(worlds); j++)
            CHECK(!optim_world(worlds[j], dir, false));
        if (i) {
            char a[600], b[600];
            str_format(a, sizeof a, "%s/optim.safetensors", first);
            str_format(b, sizeof b, "%s/optim.safetensors", dir);
            CHECK(scratch_same(a, b));
            CHECK(scratch_same(first, dir));
        }
    }
    for (size_t i = 1; i < LEN(worlds); i++) {
        str_format(dir, sizeof dir, "%s/optim%d", scratch_root, worlds[i]);
        scratch_sweep(dir);
    }
}

/* Copies the checkpoint of test_optim as step n of RUN. */
static void add_step(int n)
{
    static const char *const files[] = { "config.json", "model.safetensors", "optim.safetensors", "run.json" };
    char dir[300], to[600], from[600];

    str_format(dir, sizeof dir, "run/step-%06d", n);
    mkdir(scratch(dir), 0777);
    for (size_t i = 0; i < LEN(files); i++) {
        str_format(from, sizeof from, "%s/optim1/%s", scratch_root, files[i]);
        str_format(to, sizeof to, "%s/%s/%s", scratch_root, dir, files[i]);
        scratch_copy(from, to);
    }
}

static bool have(int n)
{
    char dir[300];

    str_format(dir, sizeof dir, "run/step-%06d", n);
    return !access(scratch(dir), F_OK);
}

static bool latest_is(int n)
{
    char out[1024], want[64] = "";

    if (n >= 0)
        str_format(want, sizeof want, "/run/step-%06d", n);
    if (ckpt_latest(scratch("run"), out, sizeof out))
        return false;
    return n < 0 ? !out[0] : strlen(out) > strlen(want) && !strcmp(out + strlen(scratch_root), want);
}

static void test_run_directory(void)
{
    int lock, status = 0;
    pid_t child;

    CHECK(latest_is(-1));
    mkdir(scratch("run"), 0777);
    CHECK(latest_is(-1));
    for (int n = 10; n <= 50; n += 10)
        add_step(n);
    mkdir(scratch("run/step-000060.tmp"), 0777);
    mkdir(scratch("run/step-x"), 0777);
    add_step(1000000);
    CHECK(latest_is(1000000));
    CHECK(!truncate(scratch("run/step-1000000/optim.safetensors"), 5000));
    CHECK(latest_is(50));
    unlink(scratch("run/step-000050/run.json"));
    scratch_listen();
    CHECK(latest_is(40));
    CHECK(scratch_heard("step-000050", "warning", "interrupted"));
    /* 40 is the newest whole one: it stays, though two torn ones are newer */
    ckpt_prune(scratch("run"), 1, 20);
    CHECK(have(40) && have(50) && have(20) && !have(30) && !have(10) && access(scratch("run/step-000060.tmp"), F_OK));
    ckpt_prune(scratch("run"), 0, 0);
    CHECK(have(20));
    add_step(60);
    ckpt_prune(scratch("run"), 2, 0);
    CHECK(have(60) && have(40) && !have(20) && latest_is(60));
    scratch_sweep(scratch("run/step-1000000"));
    CHECK(latest_is(60));

    lock = ckpt_lock(scratch("run"));
    CHECK(lock >= 0);
    child = fork();
    if (!child) {
        close(lock);
        _exit(ckpt_lock(scratch("run")) < 0 ? 0 : 1);
    }
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    close(lock);
    lock = ckpt_lock(scratch("run"));
    CHECK(lock >= 0);
    close(lock);
    scratch_sweep(scratch("run"));
}

/* Killed while saving, over and over: the newest step that shows is whole. */
static void test_kill(void)
{
    char out[1024];

    mkdir(scratch("run"), 0777);
    add_step(1);
    for (int trial = 0; trial < 5; trial++) {
        pid_t child = fork();
        if (!child) {
            struct run r = { .options = "{}" };
            struct optim o = { 0 };
            struct model m;
            struct model_use use = { .world = 1, .learn = true, .optim = true };
            struct config c;
            if (config_read(&c, "mamba2-tiny") || model_open(&m, &dev, &c, &use))
                _exit(1);
            params_init(&m.params, &dev, 3, 0);
            for (r.step = 2;; r.step++) {
                char dir[600];
                str_format(dir, sizeof dir, "%s/run/step-%06lld", scratch_root, (long long)(2 + r.step % 3));
                if (ckpt_save(dir, &m, &o, &r, &self, NULL, F32))
                    _exit(1);
            }
        }
        for (int wait = 0; wait < 2000 && access(scratch("run/step-000004.tmp"), F_OK); wait++)
            usleep(5000);
        usleep(6000 * (useconds_t)trial);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        CHECK(!ckpt_latest(scratch("run"), out, sizeof out) && out[0]);
        CHECK(!strstr(out, ".tmp") && !strstr(out, ".old"));
    }
    scratch_sweep(scratch("run"));
    scratch_sweep(scratch("optim1"));
}

int main(void)
{
    scratch_open();
    CHECK(!dev_open(&dev, "naive", F32, 1));
    CHECK(!comm_fork(&self, 1));
    comm_use(&self, &dev);
    test_optim();
    test_run_directory();
    test_kill();
    dev_close(&dev);
    scratch_close();
    return test_done("ckpt_run");
}
