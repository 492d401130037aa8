/* mqar.c - `palimpsa mqar`: the associative recall experiment, from settings to a table and figures. */
#include "cmd.h"
#include "mqar_grid.h"

extern const struct cmd cmd_mqar;

/* The other options' defaults are those of the preset, so it is looked for first. */
static const char *find_preset(int argc, const char **argv)
{
    const char *preset = "laptop";

    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strncmp(argv[i], "--preset=", 9))
            preset = argv[i] + 9;
        else if (!strcmp(argv[i], "--preset") && i + 1 < argc)
            preset = argv[++i];
    return preset;
}

/* Long examples may never be learned without short ones beside them, and one length says nothing of another. */
static void warn_of_lone_lengths(const struct mqar_grid *g)
{
    for (int i = 0; i < g->mixes; i++)
        if (g->mix[i].n == 1) {
            warn("runs on one length alone, %lld with %lld pairs: its models need not do another, and may not learn "
                 "a long one; A:B+C:D mixes lengths", (long long)g->mix[i].at[0].length,
                 (long long)g->mix[i].at[0].pairs);
            return;
        }
}

static int experiment(const struct mqar_options *o, bool table)
{
    struct mqar_grid g;
    int status, ran = 0;

    if (mqar_grid_open(&g, o))
        return 2;
    if (!table && (ran = mqar_grid_run(&g)) != -1)
        warn_of_lone_lengths(&g);
    for (int i = 0; table && i < g.n && !ran; i++)
        ran = mqar_cell_read(&g, &g.cell[i]);
    status = ran == -1 ? -1 : mqar_grid_write(&g);
    mqar_grid_close(&g);
    return status || ran ? 1 : 0;
}

static int mqar(int argc, const char **argv)
{
    const char *preset = find_preset(argc, argv);
    struct mqar_options o = mqar_preset(preset);
    bool quiet = false, table = false;
    const struct opt opts[] = {
        OPT("out", &o.out, "DIR", "where the experiment lives; the same command continues it", .need = true),
        OPT("preset", &preset, "P", "defaults of all options", .choices = "laptop|paper"),
        OPT("models", &o.models, "LIST", "palimpsa-d, palimpsa-m, either also with -twin, mamba2, FILE.json, or DIR of "
            "a model"),
        OPT("lengths", &o.lengths, "LIST", "LENGTH:PAIRS of a run, by commas; A:B+C:D mixes them in one"),
        OPT("lr", &o.rates, "LIST", "peak learning rates, by commas"),
        OPT("seeds", &o.seeds, "N", "runs of every setting", .range = "[1,1000]"),
        OPT("rate-seeds", &o.rate_seeds, "N", "seeds of every rate; then only the best gets the others; 0: all",
            .range = "[0,1000]"),
        OPT("seed", &o.first_seed, "N", "the first seed, of weights and order", .range = "[0,1e15]"),
        OPT("data-seed", &o.data_seed, "N", "of the examples, the same for all runs"),
        OPT("train", &o.train, "N", "examples to train on", .range = "[1,1e9]"),
        OPT("test", &o.test, "N", "held-out examples of every length", .range = "[1,1e9]"),
        OPT("fresh", &o.fresh, NULL, "other training examples in every epoch, or the same (--no-fresh)"),
        OPT("epochs", &o.epochs, "N", "passes over the training examples", .range = "[1,1e6]"),
        OPT("batch-tokens", &o.batch_tokens, "N", "tokens of a step, whole examples", .range = "[1,1e9]"),
        OPT("vocab", &o.vocab, "N", "tokens: half of them keys, half values", .range = "[5,16777216]"),
        OPT("random-filler", &o.random, NULL, "random tokens, not 0, where nothing is asked"),
        OPT("layers", &o.layers, "N", "blocks of a model", .range = "[1,256]"),
        OPT("width", &o.width, "N", "of a model", .range = "[1,65536]"),
        OPT("heads", &o.heads, "N", "of a layer", .range = "[1,1024]"),
        OPT("key", &o.key, "N", "key dimension of a head", .range = "[1,1024]"),
        OPT("value", &o.value, "N", "value dimension of a head", .range = "[1,1024]"),
        OPT("rank", &o.rank, "N", "of the precision's projection", .range = "[1,1024]"),
        OPT("tied", &o.tied, NULL, "a head of its own instead of the embedding"),
        OPT("warmup", &o.warmup, "N", "steps of linear warm-up; then a cosine", .range = "[0,)"),
        OPT("lr-floor", &o.lr_floor, "X", "last rate, as a share of the peak", .range = "[0,1]"),
        OPT("beta2", &o.beta2, "X", "AdamW: decay of the second moment", .range = "[0,1)"),
        OPT("weight-decay", &o.weight_decay, "X", "AdamW: decoupled weight decay", .range = "[0,)"),
        OPT("clip", &o.clip, "X", "bound on the global gradient norm; 0: off", .range = "[0,)"),
        OPT("stop-at", &o.stop_at, "X", "accuracy at every length that ends a run; above 1: none", .range = "(0,)"),
        OPT("patience", &o.patience, "N", "epochs without a better accuracy that end a run; 0: any", .range = "[0,)"),
        OPT("device", &o.device, "LIST", "auto: every GPU, else the CPU; or cuda:0,cuda:1, cpu"),
        OPT("dtype", &o.dtype, "T", "storage of weights and activations", .choices = "fp32|bf16"),
        OPT("jobs", &o.jobs, "N", "runs at a time, dealt to the devices; 0: one a GPU, or one a core",
            .range = "[0,256]"),
        OPT("threads", &o.threads, "N", "host threads of a run; 0: its share of the cores", .range = "[0,1024]"),
        OPT("max-seconds", &o.max_seconds, "X", "save and stop after so long; 0: no limit", .range = "[0,)"),
        OPT("save-every", &o.save_every, "N", "epochs between checkpoints; 0: only when stopped", .range = "[0,)"),
        OPT("table", &table, NULL, "only write the tables and figures of what is there"),
        OPT("quiet", &quiet, NULL, "errors only"),
        OPT_END
    };
    int n = opt_parse(&cmd_mqar, argc, argv, opts);

    if (n < 0)
        return 2;
    if (n > 0)
        return fail("mqar: unexpected operand '%s'", argv[0]), 2;
    say_quiet(quiet);
    return experiment(&o, table);
}

const struct cmd cmd_mqar = { "mqar", "the associative recall experiment: many small models, a table, a figure",
                              "--out DIR [options]", mqar };
