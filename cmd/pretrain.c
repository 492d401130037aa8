/* pretrain.c - `palimpsa pretrain`: a table of options around lib/train.c. */
#include "train_opts.h"

extern const struct cmd cmd_pretrain;

static int pretrain(int argc, const char **argv)
{
    struct train_options o = train_defaults();
    struct opt opts[TRAIN_OPTS] = {
        OPT("model", &o.model, "NAME", "preset, or a config.json", .need = true),
        OPT("vocab", &o.vocab, "N", "vocabulary of a preset; 0: that of the shards, or its own", .range = "[0,)"),
    };
    int n;

    train_opts(opts + 2, &o);
    n = opt_parse(&cmd_pretrain, argc, argv, opts);

    if (n < 0)
        return 2;
    if (n > 0)
        return fail("pretrain: unexpected operand '%s'; a pattern after --data needs quotes", argv[0]), 2;
    return train_run(&o) ? 1 : 0;
}

const struct cmd cmd_pretrain = { "pretrain", "train a model on token shards",
                                  "--model NAME --data GLOB --out DIR [options]", pretrain };
