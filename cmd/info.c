/* info.c - `palimpsa info`: what a checkpoint, run, config, preset, tensor file or shard is, and what it will cost. */
#define _POSIX_C_SOURCE 200809L
#include "ckpt.h"
#include "cmd.h"
#include "memory.h"
#include "opened.h"
#include "plasticity.h"
#include "safetensors.h"
#include "shard.h"
#include "torch.h"
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

extern const struct cmd cmd_info;

struct info {
    const char *device, *dtype, *data, *train;
    int64_t tokens, raw_width;
    int threads;
    bool plan, recompute, plasticity;
};

static bool ends(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && !strcmp(s + n - m, tail);
}

/* What torch.save writes is a zip archive, whatever its name. */
static bool is_archive(const char *path)
{
    FILE *f = fopen(path, "rb");
    char magic[4];
    bool zip = f && fread(magic, 1, 4, f) == 4 && !memcmp(magic, "PK\3\4", 4);

    if (f)
        fclose(f);
    return zip;
}

static int print_tensors(const char *path)
{
    struct st *f = ends(path, ".bin.index.json") ? torch_open_index(path)
                 : is_archive(path) ? torch_open(path) : st_open(path);

    if (!f)
        return -1;
    printf("tensors\t%lld\n", (long long)f->n);
    for (int64_t i = 0; i < st_metas(f); i++) {
        const char *value, *key = st_meta_at(f, i, &value);
        printf("metadata %s\t%s\n", key, value);
    }
    for (int64_t i = 0; i < f->n; i++) {
        printf("%s\t%s\t[", f->at[i].name, st_type_name(f->at[i].type));
        for (int j = 0; j < f->at[i].ndim; j++)
            printf("%s%lld", j ? "," : "", (long long)f->at[i].dim[j]);
        printf("]\n");
    }
    st_close(f);
    return 0;
}

static int print_shard(const char *path)
{
    struct shard s;

    if (shard_open(&s, path, 0, -1))
        return -1;
    printf("kind\t%s\ntokens\t%lld\ndocuments\t%lld\nvocabulary\t%lld\nseparator\t%lld\nbytes a token\t%d\n"
           "frames\t%lld\nbytes\t%lld\ntokenizer\t%s\nprompts\t%s\n",
           s.kind == SHARD_PTS ? "pts" : s.kind == SHARD_BIN ? "llm.c bin" : "raw",
           (long long)s.tokens, (long long)s.documents, (long long)s.vocab, (long long)s.eot, s.width,
           (long long)s.frames, (long long)s.size, s.tokenizer[0] ? s.tokenizer : "unknown",
           s.marked ? "marked" : "not marked");
    shard_close(&s);
    return 0;
}

static void print_config(const struct config *c)
{
    int meta = 0;

    for (int i = 0; i < c->layers; i++)
        meta += c->meta[i];
    printf("family\t%s%s\nparameters\t%lld\nlayers\t%d\nmetaplastic layers\t%d\nwidth\t%d\nvocabulary\t%lld\n",
           c->family, c->native ? " (state-spaces names)" : "", (long long)config_parameters(c), c->layers, meta,
           c->width, (long long)c->vocab_real);
    if (c->vocab != c->vocab_real)
        printf("vocabulary with padding\t%lld\n", (long long)c->vocab);
    printf("heads\t%d\nkey dimension\t%d\nvalue dimension\t%d\nquery and key heads\t%d\nfeed-forward\t%d\n"
           "embedding and head\t%s\ncontext it was trained at\t", c->heads, c->key, c->value, c->groups, c->ffn,
           c->tied ? "tied" : "separate");
    if (c->context)
        printf("%d\n", c->context);
    else
        printf("unknown\n");
}

static void print_plan_line(const char *name, size_t bytes)
{
    printf("plan %s\t%zu\t%.1f MiB\n", name, bytes, (double)bytes / 1048576);
}

/* Bytes of a training rank on rows of so many tokens, and of decoding one sequence. */
static int print_plan(const struct info *o, const struct config *c)
{
    struct model_use use = { .world = 1, .learn = true, .optim = true, .recompute = o->recompute,
                             .train = model_train_of(o->train) };
    struct model_plan p, loss;
    struct dev d;
    char name[160];
    int status;

    if (dev_open(&d, o->device, dtype_named(o->dtype), o->threads))
        return -1;
    status = model_plan(&p, &d, c, &use, JOB_LEARN, o->tokens, 1) ||
             model_plan(&loss, &d, c, &use, JOB_LOSS, o->tokens, 1) ? -1 : 0;
    if (!status) {
        p.keep = loss.keep > p.keep ? loss.keep : p.keep;
        p.temp = loss.temp > p.temp ? loss.temp : p.temp;
        printf("plan device\t%s, %s, rows of %lld tokens%s\n", dev_describe(&d, name, sizeof name), dtype_name(d.type),
               (long long)o->tokens, o->recompute ? ", recomputed" : "");
        if (use.train != TRAIN_ALL)
            printf("plan trained\t%s\n", o->train);
        print_plan_line("weights", p.weights);
        print_plan_line("gradients", p.grads);
        print_plan_line("optimizer", p.optimizer);
        print_plan_line("activations", p.keep);
        print_plan_line("scratch", p.temp);
        print_plan_line("program", memory_resident());
        print_plan_line("training", p.weights + p.grads + p.optimizer + p.keep + p.temp + memory_resident());
        print_plan_line("state of a sequence", p.state);
    }
    dev_close(&d);
    return status;
}

/* Windows of the data through the model, then a line per layer and head. */
static int print_plasticity(const struct info *o, const char *dir)
{
    struct opened m;
    struct plasticity p = { 0 };
    struct loader_options lo = { .files = o->data, .tokens = o->tokens, .context = o->tokens, .eot = -1, .join = true };
    struct loader l;
    int status = -1;

    if (!o->data)
        return fail("info: --plasticity needs --data, shards of the model's tokenizer");
    if (opened_open(&m, dir, o->device, o->dtype, o->threads, &(struct model_use){ 0 }))
        return -1;
    lo.vocab = m.model.cfg.vocab;
    if (!loader_open(&l, &lo)) {
        if (m.bpe && l.tokenizer[0] && strcmp(l.tokenizer, bpe_sha256(m.bpe)))
            status = fail("%s: these shards were made by tokenizer %.12s, the model's is %.12s", o->data, l.tokenizer,
                          bpe_sha256(m.bpe));
        else
            status = plasticity_open(&p, &m.model, o->tokens);
        for (int64_t i = 0; i < l.rows && i < 16 && !status; i++) {
            struct batch b;
            status = loader_read(&l, i, &b);
            if (!status)
                plasticity_add(&p, b.token, o->tokens);
        }
        if (!status) {
            plasticity_finish(&p);
            printf("layer\thead\tspread\tgain\twindow\tb\tb_scale\n");
            for (int i = 0; i < m.model.cfg.layers; i++)
                for (int h = 0; h < m.model.cfg.heads; h++) {
                    const struct plasticity_head *a = &p.at[i * m.model.cfg.heads + h];
                    printf("%d\t%d\t%.4g\t%.4g\t%.4g\t%.4g\t%.4g\n", i, h, a->spread, a->gain, a->window, a->b,
                           a->b_scale);
                }
        }
        plasticity_close(&p);
        loader_close(&l);
    }
    opened_close(&m);
    return status;
}

static int print_model(const struct info *o, const char *path, bool directory)
{
    char dir[4096], file[4200];
    struct config c;

    if (!directory) {
        if (config_read(&c, path))
            return -1;
    } else {
        if (opened_dir(dir, sizeof dir, path))
            return -1;
        if (o->plasticity)
            return print_plasticity(o, dir);
        snprintf(file, sizeof file, "%s/model.safetensors", dir);
        if (!access(file, F_OK) && access((snprintf(file, sizeof file, "%s/config.json", dir), file), F_OK))
            return snprintf(file, sizeof file, "%s/model.safetensors", dir), print_tensors(file);
        if (ckpt_config(dir, &c))
            return -1;
        printf("directory\t%s\n", dir);
    }
    print_config(&c);
    return o->plan ? print_plan(o, &c) : 0;
}

static int print_one(const struct info *o, const char *path)
{
    struct stat st;
    bool there = !stat(path, &st);

    if (there && !S_ISDIR(st.st_mode) && (ends(path, ".safetensors") || ends(path, ".index.json") ||
                                    is_archive(path)))
        return print_tensors(path);
    if (there && !S_ISDIR(st.st_mode) && !ends(path, ".json"))
        return print_shard(path);
    return print_model(o, path, there && S_ISDIR(st.st_mode));
}

static int info(int argc, const char **argv)
{
    struct info o = { .device = "auto", .dtype = "fp32", .train = "all", .tokens = 4096 };
    bool mixers = false;
    const struct opt opts[] = {
        OPT("plan", &o.plan, NULL, "memory of training on rows of --tokens, by a dry run"),
        OPT("tokens", &o.tokens, "N", "tokens of a row, or of a sequence for --plasticity", .range = "[1,)"),
        OPT("recompute", &o.recompute, NULL, "plan with blocks recomputed"),
        OPT("train", &o.train, "WHAT", "plan with the rest frozen, as finetune --train does",
            .choices = "all|plasticity|converted"),
        OPT("plasticity", &o.plasticity, NULL, "how sure each head of the model's memory is, after --data"),
        OPT("data", &o.data, "GLOB", "shards for --plasticity"),
        OPT_MACHINE(&o.device, &o.dtype, &o.threads),
        OPT("mixers", &mixers, NULL, "list the token mixers and recurrences"),
        OPT_END
    };
    int n = opt_parse(&cmd_info, argc, argv, opts);

    if (n < 0)
        return 2;
    if (n == 0 && !mixers)
        return fail("info: expected a model directory, config, preset, tensor file or shard"), 2;
    if (mixers) {
        for (const struct mixer *m = NULL; (m = mixer_next(m));)
            printf("mixer\t%s\t%s\n", m->name, m->brief);
        for (const struct scan *f = NULL; (f = scan_next(f));)
            printf("scan\t%s\t%s\n", f->name, f->brief);
    }
    for (int i = 0; i < n; i++)
        if (print_one(&o, argv[i]))
            return 1;
    return 0;
}

const struct cmd cmd_info = { "info", "describe a model, config, preset, tensor file or shard", "PATH... [options]",
    info };
