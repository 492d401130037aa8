/* convert.c - `palimpsa convert`: another form of a model, or some of its layers made metaplastic. */
#include "cmd.h"
#include "convert.h"
#include "opened.h"
#include <math.h>

extern const struct cmd cmd_convert;

static void print_number(double x)
{
    if (isfinite(x))
        printf("\t%.4g", x);
    else
        printf("\t-");
}

/* A line per layer, then the totals. */
static void print_report(const struct convert_report *r)
{
    printf("layer\taction\tscore\twindow low\tmedian\thigh\n");
    for (int i = 0; i < r->layers; i++) {
        const struct convert_layer *l = &r->layer[i];
        printf("%d\t%s", i, convert_action_name(l->action));
        print_number(l->score);
        print_number(l->low);
        print_number(l->median);
        print_number(l->high);
        printf("\n");
    }
    printf("swapped\t%d\n", r->swapped);
    if (!r->compared)
        return;
    printf("tokens compared\t%lld\nloss before\t%.6f\nloss after\t%.6f\nKL source to result\t%.3g\n"
           "largest difference of logits\t%.3g\nlogits\t%s\n", (long long)r->predicted, r->before, r->after, r->kl,
           r->largest, r->equal ? "equal" : "differ");
}

static int convert(int argc, const char **argv)
{
    struct convert_options o = convert_defaults();
    struct convert_report report;
    char from[4096];
    const struct opt opts[] = {
        OPT("to", &o.form, "FORM", "names and keys of the result", .choices = "palimpsa|hf|state-spaces"),
        OPT("layers", &o.layers, "L", "to make metaplastic: a count, a list like 3,17 or all; default: an eighth"),
        OPT("score", &o.score, "S", "what a count chooses by", .choices = "window|median|bias-only"),
        OPT("init", &o.init, "I", "new parameters: near the source, as published, or to a gain",
            .choices = "near|paper|gain"),
        OPT("eps", &o.eps, "X", "near: the gain's scale", .range = "(0,)"),
        OPT("gain", &o.gain, "X", "gain: evidence of every head's memory over the prior", .range = "(0,)"),
        OPT("rank", &o.rank, "N", "of the new projections; 0: the state size", .range = "[0,65536]"),
        OPT("seed", &o.seed, "N", "of the new parameters"),
        OPT("calibrate", &o.calibrate, "DATA", "shards, or a text, to measure windows and losses on"),
        OPT("tokens", &o.tokens, "N", "of the calibration", .range = "[2,1e9]"),
        OPT("context", &o.context, "N", "tokens of a sequence of it", .range = "[2,1e6]"),
        OPT("dtype", &o.dtype, "T", "storage of the result's matrices; default: as they are", .choices = "fp32|bf16"),
        OPT("untie", &o.untie, NULL, "write embedding and head as two tensors"),
        OPT("drop", &o.drop, NULL, "leave metaplastic parameters out"),
        OPT("repad", &o.repad, "N", "pad the vocabulary to a multiple; 0: leave it", .range = "[0,65536]"),
        OPT("check", &o.check, NULL, "compare logits of source and result, without data too"),
        OPT("device", &o.device, "D", "to measure on: auto, cpu, naive, cuda or cuda:N"),
        OPT("threads", &o.threads, "N", "host threads; 0: all", .range = "[0,)"),
        OPT_END
    };
    int n = opt_parse(&cmd_convert, argc, argv, opts);

    if (n < 0)
        return 2;
    if (n != 2)
        return fail("convert: expected a model directory and a new one"), 2;
    if (opened_dir(from, sizeof from, argv[0]))
        return 1;
    o.from = from;
    o.to = argv[1];
    if (convert_run(&o, &report))
        return 1;
    print_report(&report);
    if (!report.compared)
        say("nothing was measured: --calibrate DATA shows windows and losses, --check compares logits");
    return 0;
}

const struct cmd cmd_convert = { "convert", "give a model another form, or make layers metaplastic",
                                 "SRC DST [options]", convert };
