/* finetune.c - `palimpsa finetune`: pretrain's options, from a model that exists, on all of it or on a part. */
#include "opened.h"
#include "train_opts.h"

extern const struct cmd cmd_finetune;

static int finetune(int argc, const char **argv)
{
    struct train_options o = train_defaults();
    char from[4096];
    struct opt opts[TRAIN_OPTS] = {
        OPT("from", &o.from, "DIR", "model directory or run to start from", .need = true),
        OPT("train", &o.train, "WHAT", "everything, the metaplastic parameters, or the layers that have them",
            .choices = "all|plasticity|converted"),
        OPT("train-prior", &o.train_prior, NULL, "also the prior precision Ip_log, which is fixed otherwise"),
        OPT("plasticity-lr-factor", &o.gain_rate, "X", "rate of the metaplastic parameters, times --lr",
            .range = "(0,)"),
        OPT("mask-prompt", &o.mask_prompt, NULL, "learn responses only: what shards mark as prompts is context"),
    };
    int n;

    o.lr = 3e-4f;
    train_opts(opts + 5, &o);
    n = opt_parse(&cmd_finetune, argc, argv, opts);
    if (n < 0)
        return 2;
    if (n > 0)
        return fail("finetune: unexpected operand '%s'; a pattern after --data needs quotes", argv[0]), 2;
    if (opened_dir(from, sizeof from, o.from))
        return 1;
    o.from = from;
    return train_run(&o) ? 1 : 0;
}

const struct cmd cmd_finetune = { "finetune", "train a model further, all of it or its plasticity",
                                  "--from DIR --data GLOB --out DIR [options]", finetune };
