/* train.c - a run from its options to its last checkpoint: open, loop, close. */
#define _GNU_SOURCE
#include "json.h"
#include "op.h"
#include "sha256.h"
#include "train_parts.h"
#include <errno.h>
#include <signal.h>
#include <unistd.h>

struct train_options train_defaults(void)
{
    return (struct train_options){
        .steps = 1000, .batch_tokens = 16384, .context = 1024, .lr = 3e-3f, .lr_floor = 0.1f, .warmup = 100,
        .schedule = "cosine", .decay_share = 0.2f, .train = "all", .gain_rate = 1,
        .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-15f, .weight_decay = 0.1f, .clip = 1,
        .seed = 1, .shuffle = true, .eot = -1, .device = "auto", .dtype = "fp32", .ranks = 1,
        .val_every = 200, .val_tokens = 65536, .save_every = 500, .log_every = 10, .keep = 2,
    };
}

static volatile sig_atomic_t signalled;

static void on_signal(int number)
{
    (void)number;
    signalled = 1;
    comm_hurry();
}

bool train_signalled(void)
{
    return signalled;
}

/* A second Ctrl-C ends at once: the handler is used up. */
void train_watch_signals(void)
{
    struct sigaction a = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    sigemptyset(&a.sa_mask);
    sigaction(SIGTERM, &a, NULL);
    sigaction(SIGUSR1, &a, NULL);
    a.sa_flags |= (int)SA_RESETHAND;
    sigaction(SIGINT, &a, NULL);
}

/* vocab: ids at or above are refused; 0 when the model will follow the data. */
static int open_data(struct train *t, int64_t vocab)
{
    const struct train_options *o = t->o;
    struct loader_options l = {
        .files = o->data, .tokens = t->micro, .context = o->context, .seed = o->seed, .shuffle = o->shuffle,
        .align = o->align, .join = o->join, .mask = o->mask_prompt, .raw_width = o->raw_width, .eot = o->eot,
        .vocab = vocab,
    };

    if (loader_open(&t->data, &l))
        return -1;
    t->have_data = true;
    if (o->mask_prompt && !t->data.marked)
        return fail("%s: --mask-prompt needs shards that mark prompts, as tokenize --prompt-field makes them",
                    o->data);
    if (!o->val)
        return 0;
    l.files = o->val;
    l.shuffle = false;
    if (loader_open(&t->val, &l))
        return -1;
    t->have_val = true;
    if (t->data.tokenizer[0] && t->val.tokenizer[0] && strcmp(t->data.tokenizer, t->val.tokenizer))
        return fail("%s: expected shards of tokenizer %.12s as in %s, found %.12s", o->val, t->data.tokenizer, o->data,
                    t->val.tokenizer);
    return 0;
}

/* A preset takes the vocabulary of the data where the shards tell, and their separator begins and ends its texts; a
 * file or checkpoint says its own. */
static int open_config_and_data(struct train *t)
{
    const struct train_options *o = t->o;
    const char *dir = t->resume[0] ? t->resume : o->from;
    bool preset = !dir && !strchr(o->model, '/') && access(o->model, F_OK);
    int64_t vocab;

    if (o->vocab && !preset)
        return fail("--vocab: %s says its own vocabulary", dir ? dir : o->model);
    if (dir ? ckpt_config(dir, &t->cfg) : config_read(&t->cfg, o->model))
        return -1;
    t->cfg.context = (int)o->context;
    if (open_data(t, preset ? 0 : t->cfg.vocab))
        return -1;
    if (!preset)
        return 0;
    vocab = o->vocab ? o->vocab : t->data.vocab;
    if (vocab > 0) {
        t->cfg.vocab_real = vocab;
        t->cfg.vocab = vocab_padded(vocab, 16);
    }
    t->cfg.bos = t->cfg.eos = t->data.eot < t->cfg.vocab_real ? (int)t->data.eot : -1;
    if (t->data.vocab > 0)
        return t->data.vocab <= t->cfg.vocab ? 0 : fail("%s: its vocabulary of %lld does not fit --vocab %lld", o->data,
                                                        (long long)t->data.vocab, (long long)o->vocab);
    loader_close(&t->data);
    if (t->have_val)
        loader_close(&t->val);
    t->have_data = t->have_val = false;
    return open_data(t, t->cfg.vocab);
}

static int same_tokenizer(const struct train *t, const char *path)
{
    size_t n;
    char *text, hash[65];

    if (!t->data.tokenizer[0])
        return 0;
    text = file_read(path, &n);
    if (!text)
        return -1;
    sha256_hex(text, n, hash);
    free(text);
    if (strcmp(hash, t->data.tokenizer))
        return fail("%s: the shards %s were made by tokenizer %.12s, not by this one (%.12s)", path, t->o->data,
                    t->data.tokenizer, hash);
    return 0;
}

/* The tokenizer that goes into checkpoints: as told, else the one of the model or run we start from. */
static int find_tokenizer(struct train *t)
{
    const char *from = t->resume[0] ? t->resume : t->o->from;

    if (t->o->tokenizer && !str_format(t->tokenizer, sizeof t->tokenizer, "%s", t->o->tokenizer))
        return fail("tokenizer: path too long");
    if (!t->o->tokenizer && from && str_format(t->tokenizer, sizeof t->tokenizer, "%s/tokenizer.json", from) &&
        access(t->tokenizer, F_OK))
        t->tokenizer[0] = 0;
    return t->tokenizer[0] ? same_tokenizer(t, t->tokenizer) : 0;
}

/* Rows of a size that divides the step evenly over ranks; as told or as large as is useful. */
static int divide_batch(struct train *t)
{
    const struct train_options *o = t->o;
    int64_t share = o->batch_tokens / o->ranks, most = t->dev.kind == DEV_CUDA ? 32768 : 4096;
    int64_t n = (share < most ? share : most) / o->context;

    if (o->batch_tokens % (o->context * o->ranks))
        return fail("--batch-tokens: expected a multiple of context x ranks = %lld, found %lld",
                    (long long)o->context * o->ranks, (long long)o->batch_tokens);
    if (o->micro_tokens && (o->micro_tokens % o->context || share % o->micro_tokens))
        return fail("--micro-tokens: expected a multiple of the context %lld that divides %lld, found %lld",
                    (long long)o->context, (long long)share, (long long)o->micro_tokens);
    for (n = n < 1 ? 1 : n; share / o->context % n; n--)
        ;
    t->micro = o->micro_tokens ? o->micro_tokens : n * o->context;
    t->accum = share / t->micro;
    return 0;
}

/* Ranks must not read the same: each shows a hash of its first row. */
static int distinct_rows(struct train *t)
{
    float seen[2 * 64] = { 0 };
    char hash[65];
    struct batch b;

    if (t->comm.world == 1)
        return 0;
    REQUIRE(t->comm.world <= 64);
    if (loader_read(&t->data, t->step * t->accum * t->comm.world + t->comm.rank, &b))
        return -1;
    sha256_hex(b.token, (size_t)t->micro * 4, hash);
    for (int half = 1; half >= 0; half--) {                  /* 24 bits each: exact in a float */
        hash[6 * half + 6] = 0;
        seen[2 * t->comm.rank + half] = (float)strtol(hash + 6 * half, NULL, 16);
    }
    train_sum(t, seen, 2 * t->comm.world);
    for (int i = 0; i < t->comm.world; i++)
        for (int j = 0; j < i; j++)
            if (seen[2 * i] == seen[2 * j] && seen[2 * i + 1] == seen[2 * j + 1])
                return t->comm.rank ? -1 : fail("%s: ranks %d and %d would read the same row: the data has %lld "
                    "windows of %lld tokens", t->o->data, j, i, (long long)t->data.windows, (long long)t->o->context);
    return 0;
}

static int enough_data(const struct train *t)
{
    const struct train_options *o = t->o;
    double need = (double)o->steps * (double)o->batch_tokens, have = (double)t->data.windows * (double)o->context;

    if (!o->once || need <= have)
        return 0;
    return fail("%s: %lld steps need %.0f tokens, one pass has %.0f", o->data, (long long)o->steps, need, have);
}

struct model_use train_use(const struct train_options *o, bool recompute)
{
    return (struct model_use){ .world = o->ranks, .learn = true, .optim = true, .recompute = recompute,
                               .decay_all = o->decay_all, .train = model_train_of(o->train),
                               .train_prior = o->train_prior };
}

/* What is asked to be trained must exist. */
static int check_trained(const struct train *t)
{
    const char *from = t->o->from ? t->o->from : t->o->model;

    for (int i = 0; i < t->cfg.layers; i++)
        if (t->cfg.meta[i])
            return 0;
    if (t->o->plasticity_every)
        return fail("%s: no layer is metaplastic, so --plasticity-every has nothing to measure", from);
    if (strcmp(t->o->train, "all") || t->o->train_prior)
        return fail("%s: no layer is metaplastic, so there is nothing for --%s to train; palimpsa convert makes "
                    "some so", from, t->o->train_prior ? "train-prior" : "train");
    return 0;
}

static int open_model(struct train *t)
{
    const struct train_options *o = t->o;
    struct model_use use = train_use(o, o->recompute);

    if (train_fits(t) || model_open(&t->model, &t->dev, &t->cfg, &use))
        return -1;
    t->have_model = true;
    if (dev_reserve(&t->dev, t->plan.keep, t->plan.temp))
        return -1;
    params_init(&t->model.params, &t->dev, o->seed, t->comm.rank);
    if (t->resume[0])
        return ckpt_load(t->resume, &t->model) || ckpt_load_optim(t->resume, &t->model, &t->comm) ? -1 : 0;
    if (o->from && ckpt_load(o->from, &t->model))
        return -1;
    params_master(&t->model.params, &t->dev, t->comm.rank);
    return 0;
}

/* What the command and its files say, without a device. */
static int open_files(struct train *t)
{
    const struct train_options *o = t->o;

    if (divide_batch(t) || open_config_and_data(t) || check_trained(t) || train_agree(t) || find_tokenizer(t) ||
        enough_data(t))
        return -1;
    t->schedule = (struct schedule){ .steps = o->steps, .warmup = o->warmup, .peak = o->lr,
                                     .floor = o->lr * o->lr_floor, .decay = o->decay_share };
    return schedule_parse(&t->schedule.kind, o->schedule);
}

static int open_run(struct train *t)
{
    const struct train_options *o = t->o;
    enum dtype type = dtype_named(o->dtype);
    int threads = o->threads;
    char device[64];

    if (!threads && o->ranks > 1)                            /* the ranks share this host's cores */
        threads = (int)(sysconf(_SC_NPROCESSORS_ONLN) / o->ranks);
    if (!o->threads && o->ranks > 1 && threads < 1)
        threads = 1;
    if (dev_of_rank(device, sizeof device, o->device, t->comm.rank, o->ranks) ||
        dev_open(&t->dev, device, type, threads))
        return -1;
    t->have_dev = true;
    if (comm_use(&t->comm, &t->dev))
        return -1;
    t->ready[0] = time_alive();
    if (open_files(t))
        return -1;
    t->ready[1] = time_alive();
    t->opt = (struct optim){ .unit = 1, .clip = o->clip, .gain_rate = o->gain_rate,
                             .h = { .beta1 = o->beta1, .beta2 = o->beta2, .eps = o->eps, .decay = o->weight_decay } };
    t->until = o->until > 0 && o->until < o->steps ? o->until : o->steps;
    if (open_model(t))
        return -1;
    op_sync(&t->dev);
    t->ready[2] = time_alive();
    return distinct_rows(t);
}

static void close_run(struct train *t)
{
    metrics_close(&t->metrics);
    plasticity_close(&t->plasticity);
    if (t->have_model)
        model_close(&t->model);
    if (t->have_data)
        loader_close(&t->data);
    if (t->have_val)
        loader_close(&t->val);
    if (t->have_dev)
        dev_close(&t->dev);
}

static bool due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* How long somebody waited for the first step. */
static void say_started(const struct train *t)
{
    double all = time_alive();

    say("started    first step after %.1f s: device %.1f, data %.1f, weights %.1f, step %.1f", all, t->ready[0],
        t->ready[1] - t->ready[0], t->ready[2] - t->ready[1], all - t->ready[2]);
}

/* Steps until the end or a signal; what is finished is always saved. */
static int loop(struct train *t)
{
    const struct train_options *o = t->o;
    int64_t saved = t->resume[0] ? t->step : -1, first = t->step + 1;
    bool stop = false;

    if (o->plasticity_every && !t->step && train_plasticity(t))
        return -1;
    while (t->step < t->until && !stop) {
        if (train_step(t, &stop))
            return -1;
        if (t->step == first)
            say_started(t);
        if ((due(o->plasticity_every, t->step) || (o->plasticity_every && t->step == t->until)) && train_plasticity(t))
            return -1;
        if (t->have_val && (due(o->val_every, t->step) || t->step == t->until) && train_validate(t))
            return -1;
        if (due(o->save_every, t->step)) {
            if (train_save(t))
                return -1;
            saved = t->step;
        }
    }
    if (saved != t->step && train_save(t))
        return -1;
    if (stop)
        say("stopped by a signal: step %lld is saved in %s; the same command continues", (long long)t->step, o->out);
    else
        say("finished step %lld of %lld; saved in %s", (long long)t->step, (long long)o->steps, o->out);
    return 0;
}

static int run(struct train *t)
{
    char path[4096];

    if (open_run(t))
        return -1;
    if (!t->comm.rank) {
        if (!str_format(path, sizeof path, "%s/metrics.jsonl", t->o->out))
            return fail("%s: path too long", t->o->out);
        if (metrics_open(&t->metrics, path, t->step, t->until))
            return -1;
        train_banner(t);
        if (t->o->plasticity_every && plasticity_open(&t->plasticity, &t->model, t->micro))
            return -1;
    }
    t->logged = t->step;
    t->logged_at = time_now();
    train_watch_signals();
    return loop(t);
}

/* Before there are several ranks: what is wrong with the command is found here and said once. */
static int rehearse(const struct train *t)
{
    struct train r = *t;
    int status;

    say_quiet(true);
    status = open_files(&r);
    close_run(&r);
    say_quiet(t->o->quiet);
    return status;
}

static int start_ranks(struct train *t)
{
    if (t->o->ranks > 1 && rehearse(t))
        return -1;
    if (comm_fork(&t->comm, t->o->ranks))
        return -1;
    say_quiet(t->o->quiet || t->comm.rank);
    return 0;
}

/* A launcher that starts one process for each GPU would start as many whole runs. */
static int started_once(void)
{
    static const char *const names[] = { "WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE" };

    for (size_t i = 0; i < LEN(names); i++) {
        const char *text = getenv(names[i]);
        if (text && strtol(text, NULL, 10) > 1)
            return fail("%s=%s: palimpsa starts the processes of one machine itself, with --ranks, and does not know "
                        "of others: start it once", names[i], text);
    }
    return 0;
}

int train_run(const struct train_options *o)
{
    struct train t = { .o = o };
    int status, lock = -1;

    if (started_once())
        return 1;
    say_quiet(o->quiet);
    if (dir_make(o->out))
        return 1;
    lock = ckpt_lock(o->out);
    if (lock < 0)
        return 1;
    status = train_find(&t) || start_ranks(&t);
    if (!status) {
        status = run(&t) ? 1 : 0;
        comm_leave(&t.comm, status);
        close_run(&t);
        status = comm_join(&t.comm, status);
    }
    close(lock);
    return status;
}
