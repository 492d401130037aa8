/* train_opts.h - the options that pretrain and finetune share. */
#ifndef TRAIN_OPTS_H
#define TRAIN_OPTS_H
#include "cmd.h"
#include "schedule.h"
#include "train.h"

enum { TRAIN_OPTS = 64 };        /* room for all options of a command, and the end */

/* Writes them to at; returns how many. */
static inline int train_opts(struct opt *at, struct train_options *o)
{
    const struct opt opts[] = {
        OPT("data", &o->data, "GLOB", "token shards, separated by commas", .need = true),
        OPT("val", &o->val, "GLOB", "held-out shards"),
        OPT("out", &o->out, "DIR", "where the run lives; the same command continues it", .need = true),
        OPT("tokenizer", &o->tokenizer, "FILE", "tokenizer.json to keep beside the weights"),
        OPT("steps", &o->steps, "N", "steps of the whole schedule", .range = "[0,1e12]"),
        OPT("until", &o->until, "N", "end this invocation at step N; 0: at --steps", .range = "[0,)"),
        OPT("batch-tokens", &o->batch_tokens, "N", "tokens of a step, over all ranks", .range = "[1,1e12]"),
        OPT("micro-tokens", &o->micro_tokens, "N", "tokens of a row on one rank; 0: chosen", .range = "[0,1e9]"),
        OPT("context", &o->context, "N", "longest sequence", .range = "[1,1e9]"),
        OPT("lr", &o->lr, "X", "peak learning rate", .range = "[0,)"),
        OPT("lr-floor", &o->lr_floor, "X", "last rate, as a share of the peak", .range = "[0,1]"),
        OPT("warmup", &o->warmup, "N", "steps of linear warm-up", .range = "[0,)"),
        OPT("schedule", &o->schedule, "S", "shape after warm-up", .choices = SCHEDULE_NAMES),
        OPT("decay-share", &o->decay_share, "X", "wsd: share of the steps that fall", .range = "(0,1]"),
        OPT("beta1", &o->beta1, "X", "AdamW: decay of the first moment", .range = "[0,1)"),
        OPT("beta2", &o->beta2, "X", "AdamW: decay of the second moment", .range = "[0,1)"),
        OPT("eps", &o->eps, "X", "AdamW: added to the denominator", .range = "[0,)"),
        OPT("weight-decay", &o->weight_decay, "X", "AdamW: decoupled weight decay", .range = "[0,)"),
        OPT("decay-all", &o->decay_all, NULL, "weight decay on A_log, dt_bias, D, b_scale and norms too"),
        OPT("clip", &o->clip, "X", "bound on the global gradient norm; 0: off", .range = "[0,)"),
        OPT("seed", &o->seed, "N", "of weights and order"),
        OPT("shuffle", &o->shuffle, NULL, "visit windows in the order of the data, not in a new one every epoch"),
        OPT("align", &o->align, NULL, "windows begin at document starts only"),
        OPT("join", &o->join, NULL, "do not reset the memory at documents"),
        OPT("once", &o->once, NULL, "refuse to visit the data more than once"),
        OPT("raw-width", &o->raw_width, "N", "read headerless files of 2- or 4-byte ids", .range = "[0,4]"),
        OPT("eot", &o->eot, "ID", "separator in .bin and raw files; -1: their default", .range = "[-1,)"),
        OPT("device", &o->device, "D", "auto, cpu, naive, cuda, cuda:N, or a GPU for each rank: cuda:N,M"),
        OPT("dtype", &o->dtype, "T", "storage of weights and activations", .choices = "fp32|bf16"),
        OPT("threads", &o->threads, "N", "host threads of a rank; 0: its share of the cores", .range = "[0,)"),
        OPT("ranks", &o->ranks, "N", "processes that share the work on this host", .range = "[1,64]"),
        OPT("recompute", &o->recompute, NULL, "keep block inputs only; redo blocks in backward"),
        OPT("val-every", &o->val_every, "N", "steps between validations; 0: only at the end", .range = "[0,)"),
        OPT("val-tokens", &o->val_tokens, "N", "held-out tokens of a validation", .range = "[1,)"),
        OPT("save-every", &o->save_every, "N", "steps between checkpoints; 0: only at the end", .range = "[0,)"),
        OPT("log-every", &o->log_every, "N", "steps between lines of metrics", .range = "[1,)"),
        OPT("plasticity-every", &o->plasticity_every, "N", "steps between figures of metaplastic memories; 0: none",
            .range = "[0,)"),
        OPT("keep", &o->keep, "N", "newest checkpoints kept", .range = "[1,)"),
        OPT("keep-every", &o->keep_every, "N", "also keep every step divisible by N; 0: none", .range = "[0,)"),
        OPT("peak-tflops", &o->peak_tflops, "X", "of one device, for mfu in the metrics; 0: unknown", .range = "[0,)"),
        OPT("quiet", &o->quiet, NULL, "errors only"),
    };

    memcpy(at, opts, sizeof opts);
    return (int)LEN(opts);
}
#endif
