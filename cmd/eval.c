/* eval.c - `palimpsa eval TASK`: the loss of a model on text or shards (nll), or a benchmark of lib/task.h. */
#define _POSIX_C_SOURCE 200809L
#include "cmd.h"
#include "documents.h"
#include "json.h"
#include "nll.h"
#include "opened.h"
#include "task.h"
#include <math.h>
#include <unistd.h>

extern const struct cmd cmd_eval;

struct eval {
    const char *dir, *device, *dtype, *field, *unigram, *out;
    struct opt_list data;
    struct opt_numbers lengths, depths, pairs;
    int64_t context, limit, shown, passed;
    int threads;
    bool by_position, mask, quiet;
    struct opened m;
    struct nll nll;
    struct bpe_ids ids;
    double *baseline;
    double began, passed_share;
    struct task_run task;
    struct results results;
};

static bool is_shards(const char *path)
{
    size_t n = strlen(path);

    return (n > 4 && !strcmp(path + n - 4, ".pts")) || (n > 4 && !strcmp(path + n - 4, ".bin"));
}

/* How far through a file; size -1: nobody knows. */
static void progress(void *arg, int64_t taken, int64_t size)
{
    struct eval *e = arg;
    double passed = time_now() - e->began, share = size > 0 ? (double)taken / (double)size : 0, left;

    if (nll_passing(&e->nll)) {          /* what was computed before says nothing of the speed */
        e->began += passed, e->passed = e->nll.tokens, e->passed_share = share;
        return;
    }
    if (e->nll.tokens < e->shown)
        return;
    e->shown = e->nll.tokens + 4096;
    left = share > e->passed_share ? passed / (share - e->passed_share) * (1 - share) : 0;
    say_over("%lld tokens, %.0f a second, loss %.4f, %.0f%%, %.0f:%02.0f left", (long long)e->nll.tokens,
             (double)(e->nll.tokens - e->passed) / passed,
             e->nll.loss / (double)(e->nll.predicted ? e->nll.predicted : 1), 100 * share, floor(left / 60),
             floor(fmod(left, 60)));
}

static int take(void *arg, const char *text, size_t n, bool begins)
{
    struct eval *e = arg;
    int32_t eot = bpe_eot(e->m.bpe);

    if (e->limit && e->nll.tokens >= e->limit)
        return 0;
    e->ids.n = 0;
    if (begins) {
        nll_begin(&e->nll);
        if (eot >= 0 && nll_feed(&e->nll, &eot, 1))
            return -1;
    }
    if (bpe_encode(e->m.encoder, &e->ids, text, n, begins ? 0 : BPE_CONTINUES) < 0)
        return -1;
    nll_text(&e->nll, text, n);
    return nll_feed(&e->nll, e->ids.at, e->ids.n);
}

static size_t cut(const void *arg, const char *text, size_t n)
{
    return bpe_cut(arg, text, n);
}

static int eval_text(struct eval *e, const char *file)
{
    size_t bytes = e->limit && e->limit < 1 << 14 ? 1024 + 4 * (size_t)e->limit : 1 << 16;
    struct documents_options o = { .file = &file, .files = 1, .field = e->field, .bytes = bytes,
                                   .cut = bpe_can_cut(e->m.bpe) ? cut : NULL, .cut_arg = e->m.bpe };
    struct documents *d = documents_open(&o);
    struct block b = { 0 };
    int more;

    if (!d)
        return -1;
    while ((more = documents_block(d, &b)) > 0 && !(e->limit && e->nll.tokens >= e->limit)) {
        if (block_each(&b, take, e)) {
            more = b.wrong[0] ? fail("%s", b.wrong) : -1;
            break;
        }
        progress(e, documents_taken(d), documents_size(d));
    }
    block_free(&b);
    documents_close(d);
    return more < 0 ? -1 : 0;
}

/* A figure of the text, on stdout, as a member and among the results. */
static void number(struct eval *e, struct text *json, const char *name, double x)
{
    printf("%s\t%.6g\n", name, x);
    if (isfinite(x))
        text_add(json, "\"%s\": %.9g,\n  ", name, x);
    result_add(&e->results, &(struct result){ .task = "nll", .metric = name, .value = x, .error = NAN,
               .n = e->nll.predicted, .open = true });
}

static void count(struct text *json, const char *name, int64_t x)
{
    printf("%s\t%lld\n", name, (long long)x);
    text_add(json, "\"%s\": %lld,\n  ", name, (long long)x);
}

/* The mean loss of every NLL_BUCKET positions; with their predictions as weights they sum to the whole. */
static void positions(const struct nll *n, struct text *json)
{
    const char *comma = "";

    printf("position\tnll\tpredictions\n");
    text_add(json, "\"positions\": [");
    for (int64_t i = 0; i < n->buckets; i++) {
        double mean = n->bucket_loss[i] / (double)n->bucket_count[i];
        if (!n->bucket_count[i])
            continue;
        printf("%lld-%lld\t%.6f\t%lld\n", (long long)i * NLL_BUCKET, (long long)(i + 1) * NLL_BUCKET - 1, mean,
               (long long)n->bucket_count[i]);
        text_add(json, "%s\n    {\"from\": %lld, \"to\": %lld, \"nll\": %.9g, \"predictions\": %lld}", comma,
                 (long long)i * NLL_BUCKET, (long long)(i + 1) * NLL_BUCKET - 1, mean, (long long)n->bucket_count[i]);
        comma = ",";
    }
    text_add(json, "\n  ],\n  ");
}

/* The device that computed, not the word that chose it. */
static void say_machine(struct eval *e)
{
    char name[128];

    results_say(&e->results, "device", dev_describe(&e->m.dev, name, sizeof name));
    results_say(&e->results, "dtype", e->dtype);
}

static int report(struct eval *e)
{
    struct nll *n = &e->nll;
    struct text json = { 0 };
    double mean = n->loss / (double)n->predicted;
    int status = 0;

    text_add(&json, "{\n  \"task\": \"nll\",\n  ");
    number(e, &json, "nll", mean);
    number(e, &json, "perplexity", exp(mean));
    count(&json, "predictions", n->predicted);
    count(&json, "tokens", n->tokens);
    count(&json, "documents", n->documents);
    if (n->bytes) {
        count(&json, "separator", bpe_eot(e->m.bpe));
        number(e, &json, "bits_per_byte", n->loss / ((double)n->bytes * 0.6931471805599453));
        number(e, &json, "word_perplexity", exp(n->loss / (double)n->words));
        count(&json, "bytes", n->bytes);
        count(&json, "words", n->words);
    }
    if (n->unigram) {
        number(e, &json, "unigram_nll", n->unigram_loss / (double)n->predicted);
        number(e, &json, "unigram_perplexity", exp(n->unigram_loss / (double)n->predicted));
    }
    if (e->by_position)
        positions(n, &json);
    say_machine(e);
    results_count(&e->results, "context", e->context);
    results_count(&e->results, "limit", e->limit);
    if (e->out && !(status = results_text(&e->results, &json, e->m.dir))) {
        text_add(&json, "\n}\n");
        status = file_write(e->out, json.at, json.n);
    }
    text_free(&json);
    if (e->m.model.cfg.context && n->longest > e->m.model.cfg.context)
        warn("documents of up to %lld tokens, trained on %d: --by-position shows how the loss goes on",
             (long long)n->longest, e->m.model.cfg.context);
    return status;
}

/* With --out what is stopped goes on: FILE.part beside the result until that is there. */
static int keep(struct eval *e)
{
    char path[4096];

    if (!str_format(path, sizeof path, "%s.part", e->out))
        return fail("%s: path too long", e->out);
    if (nll_keep(&e->nll, path, 60))
        return -1;
    if (nll_passing(&e->nll))
        say("goes on after %lld predictions, kept in %s", (long long)e->nll.predicted, path);
    return 0;
}

static int run(struct eval *e)
{
    int64_t context = e->context ? e->context : e->m.model.cfg.context ? e->m.model.cfg.context : NLL_CHUNK;

    if (nll_open(&e->nll, &e->m.model, e->context, e->task.batch))
        return -1;
    e->nll.shown = progress;
    e->nll.arg = e;
    e->nll.mask = e->mask;
    if (e->unigram && !(e->nll.unigram = e->baseline = unigram_of(e->unigram, e->m.model.cfg.vocab)))
        return -1;
    if (e->out && keep(e))
        return -1;
    e->began = time_now();
    for (int i = 0; i < e->data.n; i++) {
        const char *tokenizer = e->m.bpe ? bpe_sha256(e->m.bpe) : "";
        e->passed_share = 0;
        if (e->mask && !is_shards(e->data.at[i]))
            return fail("%s: --mask-prompt needs shards that mark prompts, as tokenize --prompt-field makes them",
                        e->data.at[i]);
        if (is_shards(e->data.at[i]) ? nll_shards(&e->nll, e->data.at[i], tokenizer, context, e->limit)
                                     : opened_need_tokenizer(&e->m) || eval_text(e, e->data.at[i]))
            return -1;
    }
    if (nll_end(&e->nll))
        return -1;
    if (!e->nll.predicted)
        return fail("eval: the data has nothing to predict");
    say("%lld tokens in %.1f s", (long long)(e->nll.tokens - e->passed), time_now() - e->began);
    if (report(e))
        return -1;
    nll_forget(&e->nll);
    return 0;
}

#define REQUESTS "lambada lambada_standard piqa hellaswag winogrande arc_easy arc_challenge siqa boolq"

/* An option that a task knows nothing of is refused: it would not do what was meant. */
static int fits(const struct eval *e, const char *task)
{
    const struct task_run *r = &e->task;
    const struct { const char *option; bool given; const char *tasks; } known[] = {
        { "field", strcmp(e->field, "text") != 0, "nll" }, { "mask-prompt", e->mask, "nll" },
        { "by-position", e->by_position, "nll" }, { "unigram", e->unigram, "nll" },
        { "separator", r->separator, REQUESTS " longbench niah babilong" }, { "skip-long", r->skip_long, REQUESTS },
        { "log", r->log, REQUESTS " wikitext" }, { "labels", r->labels, "piqa siqa" },
        { "predictions", r->predictions, REQUESTS " wikitext longbench niah babilong" },
        { "score-only", r->score_only, "longbench babilong" },
        { "config", r->config, "longbench" }, { "prompts", r->prompts, "longbench" }, { "chat", r->chat, "longbench" },
        { "indel", r->indel, "longbench" }, { "buckets", r->buckets, "longbench" }, { "forms", r->forms, "niah" },
        { "depths", e->depths.n, "niah" }, { "background", r->background, "niah babilong" },
        { "wording", r->wording, "niah babilong" }, { "subset", r->subset, "babilong" },
        { "answer-tokens", r->answer_tokens, "niah babilong" },
        { "lengths", e->lengths.n, "niah babilong mqar" }, { "samples", r->samples, "niah babilong mqar" },
        { "seed", r->seed, "niah babilong mqar" }, { "pairs", e->pairs.n, "mqar" }, { "vocab", r->vocab, "mqar" },
        { "random-filler", r->filler, "mqar" }
    };

    for (size_t i = 0; i < LEN(known); i++) {
        bool fit = !known[i].given;
        for (const char *p = known[i].tasks; !fit && *p; p += strspn(p, " ")) {
            size_t n = strcspn(p, " ");
            fit = strlen(task) == n && !strncmp(p, task, n);
            p += n;
        }
        if (!fit)
            return fail("eval %s: --%s is for %s", task, known[i].option, known[i].tasks);
    }
    return 0;
}

/* What the task is and what it must be given; 0, or -1 with the reason. */
static int understand(struct eval *e, int n, const char **argv)
{
    bool nll = n && !strcmp(argv[0], "nll");

    for (int i = 1; i < n; i++) {
        e->data.at = mem_grow(e->data.at, (size_t)e->data.n + 1, sizeof *e->data.at);
        e->data.at[e->data.n++] = argv[i];
    }
    if (!nll && !(e->task.task = task_find(n ? argv[0] : ""))) {
        struct text names = { 0 };
        text_add(&names, "nll");
        for (const struct task *t = NULL; (t = task_next(t));)
            text_add(&names, ", %s", t->name);
        fail("eval: expected a task (%s), found '%s'", names.at, n ? argv[0] : "");
        text_free(&names);
        return -1;
    }
    if (fits(e, argv[0]))
        return -1;
    if (!e->task.score_only && !e->dir)
        return fail("eval: expected --model");
    if (!e->task.score_only && !e->data.n && (nll || !e->task.task->generates))
        return fail("eval: expected data%s", nll ? ": text, .jsonl, .pts or .bin" : "");
    if (!nll && e->data.n && e->task.task->ids)
        return fail("eval: %s makes its samples, found data %s", argv[0], e->data.at[0]);
    return 0;
}

static int run_task(struct eval *e)
{
    struct task_run *r = &e->task;
    int status;

    r->m = r->score_only ? NULL : &e->m;
    r->data = e->data.at;
    r->files = e->data.n;
    r->context = e->context;
    r->limit = e->limit;
    r->lengths = (struct axis){ e->lengths.at, e->lengths.n };
    r->depths = (struct axis){ e->depths.at, e->depths.n };
    r->pairs = (struct axis){ e->pairs.at, e->pairs.n };
    r->results = &e->results;
    if (r->m) {
        say_machine(e);
        if (!r->task->ids && opened_need_tokenizer(r->m))
            return -1;
        if (!r->task->ids)
            results_count(r->results, "first_id", r->separator ? bpe_eot(r->m->bpe) : bpe_bos(r->m->bpe));
    }
    results_count(r->results, "limit", r->limit);
    results_count(r->results, "context", r->context);
    status = r->task->run(r);
    if (!status && e->out)
        status = results_write(r->results, e->out, r->m ? r->m->dir : NULL);
    return status;
}

static int carry_out(struct eval *e)
{
    int status;

    if (!e->task.score_only && opened_open(&e->m, e->dir, e->device, e->dtype, e->threads, &(struct model_use){ 0 }))
        return -1;
    status = e->task.task ? run_task(e) : run(e);
    nll_close(&e->nll);
    bpe_ids_free(&e->ids);
    free(e->baseline);
    results_free(&e->results);
    if (!e->task.score_only)
        opened_close(&e->m);
    return status;
}

static int eval(int argc, const char **argv)
{
    struct eval e = { .device = "auto", .dtype = "fp32", .field = "text" };
    int status = 0;
    const struct opt opts[] = {
        OPT("model", &e.dir, "DIR", "model directory, or a run's"),
        OPT("data", &e.data, "FILE", "text, .jsonl (either also .gz, .zst), .pts or .bin; more may follow as operands"),
        OPT("field", &e.field, "NAME", "of the text in .jsonl (nll)"),
        OPT("context", &e.context, "N", "nll: independent parts of N tokens; else the most tokens of a sample; 0: any",
            .range = "[0,)"),
        OPT("limit", &e.limit, "N", "stop after about N tokens (nll), samples (others); 0: all", .range = "[0,)"),
        OPT("mask-prompt", &e.mask, NULL, "count responses only, of shards that mark prompts (nll)"),
        OPT("by-position", &e.by_position, NULL, "also the loss of every 256 positions (nll)"),
        OPT("unigram", &e.unigram, "GLOB", "also the loss of the frequencies of these training shards (nll)"),
        OPT("batch", &e.task.batch, "N", "samples side by side; 0: as many as are useful", .range = "[0,)"),
        OPT("separator", &e.task.separator, NULL, "begin samples with the separator of documents"),
        OPT("skip-long", &e.task.skip_long, NULL, "leave samples over --context out instead of cutting them"),
        OPT("log", &e.task.log, "FILE", "write every request and its log-probability"),
        OPT("labels", &e.task.labels, "FILE", "answers that are in a file of their own (piqa, siqa)"),
        OPT("config", &e.task.config, "DIR", "LongBench's dataset2prompt.json and dataset2maxlen.json"),
        OPT("predictions", &e.task.predictions, "DIR", "keeps answers; the same command goes on there"),
        OPT("score-only", &e.task.score_only, "DIR", "score the predictions there, without a model"),
        OPT("prompts", &e.task.prompts, "FILE", "write LongBench's prompts"),
        OPT("forms", &e.task.forms, "LIST",
            "of niah: single_1 to single_3, multikey_1 to multikey_3, multivalue, multiquery"),
        OPT("lengths", &e.lengths, "LIST", "tokens of a sample with its answer: 1Ki,2Ki,4Ki (niah, babilong, mqar)",
            .range = "[1,2e9]"),
        OPT("depths", &e.depths, "LIST", "where needles stand, in percent (niah)", .range = "[0,100]"),
        OPT("samples", &e.task.samples, "N", "of a length and depth; 0: 10 (niah), 100 (babilong), 1000 (mqar)",
            .range = "[0,)"),
        OPT("answer-tokens", &e.task.answer_tokens, "N", "most tokens of an answer; 0: 128 (niah), 20 (babilong)",
            .range = "[0,)"),
        OPT("pairs", &e.pairs, "LIST", "keys and values of mqar, one number for each of --lengths", .range = "[1,1e9]"),
        OPT("vocab", &e.task.vocab, "N", "mqar: tokens, half of them keys; 0: the model's", .range = "[0,16777216]"),
        OPT("random-filler", &e.task.filler, NULL, "mqar: random tokens, not 0, where nothing is asked"),
        OPT("background", &e.task.background, "FILE", "prose between needles or facts: text or .jsonl"),
        OPT("subset", &e.task.subset, "FILE", "JSON with numbers of questions by task, from 0 (babilong)"),
        OPT("wording", &e.task.wording, "FILE", "JSON with the texts of prompts (niah, babilong)"),
        OPT("seed", &e.task.seed, "N", "of generated prompts"),
        OPT("chat", &e.task.chat, "TEXT", "with {prompt} in it: wrap LongBench's prompts, but for 6 tasks"),
        OPT("indel", &e.task.indel, NULL, "code similarity as fuzzywuzzy's C extension has it, not as difflib"),
        OPT("buckets", &e.task.buckets, NULL, "LongBench-E: by length"),
        OPT("out", &e.out, "FILE", "write the result as JSON"),
        OPT_MACHINE(&e.device, &e.dtype, &e.threads),
        OPT("quiet", &e.quiet, NULL, "no progress"),
        OPT_END
    };
    int n = opt_parse(&cmd_eval, argc, argv, opts);

    if (n >= 0 && understand(&e, n, argv))
        n = -1;
    say_quiet(e.quiet);
    if (n >= 0)
        status = carry_out(&e) ? 1 : 0;
    free(e.data.at);
    free(e.lengths.at);
    free(e.depths.at);
    free(e.pairs.at);
    return n < 0 ? 2 : status;
}

const struct cmd cmd_eval = { "eval", "score a model", "TASK --model DIR --data FILE... [options]\n\n"
    "TASK is nll, the loss, or one of lambada, lambada_standard, piqa, hellaswag,\n"
    "winogrande, arc_easy, arc_challenge, siqa, boolq, wikitext, longbench, niah,\n"
    "babilong, mqar; docs/cli/eval.md says what data each takes", eval };
