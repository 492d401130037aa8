/* eval.c - `palimpsa eval nll`: the loss of a model on text or shards. */
#define _POSIX_C_SOURCE 200809L
#include "cmd.h"
#include "documents.h"
#include "json.h"
#include "nll.h"
#include "opened.h"
#include <math.h>
#include <unistd.h>

extern const struct cmd cmd_eval;

struct eval {
    const char *dir, *device, *dtype, *field, *unigram, *out;
    struct opt_list data;
    int64_t context, limit, shown;
    int threads;
    bool by_position, quiet;
    struct opened m;
    struct nll nll;
    struct bpe_ids ids;
    double *baseline;
    double began;
};

static bool is_shards(const char *path)
{
    size_t n = strlen(path);

    return (n > 4 && !strcmp(path + n - 4, ".pts")) || (n > 4 && !strcmp(path + n - 4, ".bin"));
}

static void progress(struct eval *e, int64_t taken, int64_t size)
{
    double passed = time_now() - e->began;

    if (e->nll.tokens < e->shown)
        return;
    e->shown = e->nll.tokens + 4096;
    say_over("%lld tokens, %.0f a second, loss %.4f, %.0f%%", (long long)e->nll.tokens, (double)e->nll.tokens / passed,
             e->nll.loss / (double)(e->nll.predicted ? e->nll.predicted : 1),
             size > 0 ? 100.0 * (double)taken / (double)size : 0.0);
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
    struct documents_options o = { .file = &file, .files = 1, .field = e->field, .bytes = 1 << 16,
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

static void number(struct text *json, const char *name, double x)
{
    printf("%s\t%.6g\n", name, x);
    if (isfinite(x))
        text_add(json, ",\n  \"%s\": %.9g", name, x);
}

static void count(struct text *json, const char *name, int64_t x)
{
    printf("%s\t%lld\n", name, (long long)x);
    text_add(json, ",\n  \"%s\": %lld", name, (long long)x);
}

/* The mean loss of every NLL_BUCKET positions; with their predictions as weights they sum to the whole. */
static void positions(const struct nll *n, struct text *json)
{
    const char *comma = "";

    printf("position\tnll\tpredictions\n");
    text_add(json, ",\n  \"positions\": [");
    for (int64_t i = 0; i < n->buckets; i++) {
        double mean = n->bucket_loss[i] / (double)n->bucket_count[i];
        if (!n->bucket_count[i])
            continue;
        printf("%lld-%lld\t%.6f\t%lld\n", (long long)i * NLL_BUCKET, (long long)(i + 1) * NLL_BUCKET - 1, mean,
               (long long)n->bucket_count[i]);
        text_add(json, "%s\n    {\"from\": %lld, \"nll\": %.9g, \"predictions\": %lld}", comma,
                 (long long)i * NLL_BUCKET, mean, (long long)n->bucket_count[i]);
        comma = ",";
    }
    text_add(json, "\n  ]");
}

static int report(struct eval *e)
{
    struct nll *n = &e->nll;
    struct text json = { 0 };
    double mean = n->loss / (double)n->predicted;
    int status = 0;

    text_add(&json, "{\n  \"task\": \"nll\",\n  \"model\": ");
    text_string(&json, e->m.dir, strlen(e->m.dir));
    number(&json, "nll", mean);
    number(&json, "perplexity", exp(mean));
    count(&json, "predictions", n->predicted);
    count(&json, "tokens", n->tokens);
    count(&json, "documents", n->documents);
    if (n->bytes) {
        count(&json, "separator", bpe_eot(e->m.bpe));
        number(&json, "bits_per_byte", n->loss / ((double)n->bytes * 0.6931471805599453));
        number(&json, "word_perplexity", exp(n->loss / (double)n->words));
        count(&json, "bytes", n->bytes);
        count(&json, "words", n->words);
    }
    if (n->unigram) {
        number(&json, "unigram_nll", n->unigram_loss / (double)n->predicted);
        number(&json, "unigram_perplexity", exp(n->unigram_loss / (double)n->predicted));
    }
    if (e->by_position)
        positions(n, &json);
    text_add(&json, "\n}\n");
    if (e->out)
        status = file_write(e->out, json.at, json.n);
    text_free(&json);
    if (e->m.model.cfg.context && n->longest > e->m.model.cfg.context)
        warn("documents of up to %lld tokens, trained on %d: --by-position shows how the loss goes on",
             (long long)n->longest, e->m.model.cfg.context);
    return status;
}

static int run(struct eval *e)
{
    int64_t context = e->context ? e->context : e->m.model.cfg.context ? e->m.model.cfg.context : NLL_CHUNK;

    if (nll_open(&e->nll, &e->m.model, e->context))
        return -1;
    if (e->unigram && !(e->nll.unigram = e->baseline = unigram_of(e->unigram, e->m.model.cfg.vocab)))
        return -1;
    e->began = time_now();
    for (int i = 0; i < e->data.n; i++) {
        const char *tokenizer = e->m.bpe ? bpe_sha256(e->m.bpe) : "";
        if (is_shards(e->data.at[i]) ? nll_shards(&e->nll, e->data.at[i], tokenizer, context, e->limit)
                                     : opened_need_tokenizer(&e->m) || eval_text(e, e->data.at[i]))
            return -1;
    }
    if (!e->nll.predicted)
        return fail("eval: the data has nothing to predict");
    say("%lld tokens in %.1f s", (long long)e->nll.tokens, time_now() - e->began);
    return report(e);
}

static int eval(int argc, const char **argv)
{
    struct eval e = { .device = "auto", .dtype = "fp32", .field = "text" };
    int status;
    const struct opt opts[] = {
        OPT("model", &e.dir, "DIR", "model directory, or a run's", .need = true),
        OPT("data", &e.data, "FILE", "text, .jsonl (either also .gz, .zst), .pts or .bin; more may follow as operands"),
        OPT("field", &e.field, "NAME", "of the text in .jsonl"),
        OPT("context", &e.context, "N", "cut documents into independent parts of N tokens; 0: whole, memory carried",
            .range = "[0,)"),
        OPT("limit", &e.limit, "N", "stop after about N tokens; 0: all", .range = "[0,)"),
        OPT("by-position", &e.by_position, NULL, "also the loss of every 256 positions"),
        OPT("unigram", &e.unigram, "GLOB", "also the loss of the frequencies of these training shards"),
        OPT("out", &e.out, "FILE", "write the result as JSON"),
        OPT("device", &e.device, "D", "auto, cpu, naive, cuda or cuda:N"),
        OPT("dtype", &e.dtype, "T", "storage type", .choices = "fp32|bf16"),
        OPT("threads", &e.threads, "N", "host threads; 0: all", .range = "[0,)"),
        OPT("quiet", &e.quiet, NULL, "no progress"),
        OPT_END
    };
    int n = opt_parse(&cmd_eval, argc, argv, opts);

    if (n >= 0 && (!n || strcmp(argv[0], "nll")))
        n = fail("eval: expected the task nll, found '%s'", n ? argv[0] : "");
    for (int i = 1; i < n; i++) {
        e.data.at = mem_grow(e.data.at, (size_t)e.data.n + 1, sizeof *e.data.at);
        e.data.at[e.data.n++] = argv[i];
    }
    if (n > 0 && !e.data.n)
        n = fail("eval: expected data: text, .jsonl, .pts or .bin");
    say_quiet(e.quiet);
    if (n < 0 || opened_open(&e.m, e.dir, e.device, e.dtype, e.threads, &(struct model_use){ 0 })) {
        free(e.data.at);
        return n < 0 ? 2 : 1;
    }
    status = run(&e) ? 1 : 0;
    nll_close(&e.nll);
    bpe_ids_free(&e.ids);
    free(e.baseline);
    free(e.data.at);
    opened_close(&e.m);
    return status;
}

const struct cmd cmd_eval = { "eval", "score a model", "nll --model DIR --data FILE... [options]", eval };
