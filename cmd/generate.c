/* generate.c - `palimpsa generate`: text from a model, token by token, with the memory in hand. */
#define _POSIX_C_SOURCE 200809L
#include "cmd.h"
#include "json.h"
#include "opened.h"
#include "plasticity.h"
#include "session.h"
#include <math.h>

extern const struct cmd cmd_generate;

struct generate {
    const char *dir, *prompt, *file, *device, *dtype, *state_in, *state_out;
    struct opt_list stop;
    struct sampler sampler;
    int64_t tokens;
    int threads;
    bool uncertainty, text;            /* text: the prompt has some */
    struct opened m;
    struct session s;
    struct doubt doubt;
    struct bpe_ids ids;
    struct bpe_decoder decoder;
    struct text said;                  /* what was generated so far, for the stop texts */
    size_t printed;
};

/* The text up to where a stop begins; what may be the start of a stop is held back. */
static size_t printable(const struct generate *g, bool *stopped)
{
    size_t safe = g->said.n;

    *stopped = false;
    for (int i = 0; i < g->stop.n; i++) {
        size_t n = strlen(g->stop.at[i]);
        for (size_t at = g->printed; at < g->said.n; at++) {
            size_t have = g->said.n - at < n ? g->said.n - at : n;
            if (memcmp(g->said.at + at, g->stop.at[i], have))
                continue;
            safe = at < safe ? at : safe;
            *stopped |= have == n;
            break;
        }
    }
    return safe;
}

static void print_to(struct generate *g, size_t end)
{
    if (end > g->printed)
        fwrite(g->said.at + g->printed, 1, end - g->printed, stdout);
    g->printed = end > g->printed ? end : g->printed;
    fflush(stdout);
}

/* One line per token: id, doubt of the read that led to it, log-probability, text as a JSON string. */
static void print_token(struct generate *g, int32_t id, double p, const char *bytes, size_t n)
{
    struct text t = { 0 };

    text_string(&t, bytes, n);
    printf("%d\t%.4f\t%.4f\t%s\n", id, g->doubt.tokens ? doubt_of(&g->doubt, 0) : NAN, p, t.at);
    fflush(stdout);
    text_free(&t);
}

static double log_probability(const float *logits, int64_t vocab, int32_t id)
{
    double top = logits[argmax(logits, vocab)], sum = 0;

    for (int64_t i = 0; i < vocab; i++)
        sum += exp(logits[i] - top);
    return logits[id] - top - log(sum);
}

/* Feeds ids; the doubt that remains is that of the last token. */
static void feed(struct generate *g, const int32_t *ids, int64_t n, float *logits)
{
    if (g->uncertainty && n > 1) {
        int64_t most = n - 1;
        session_feed(&g->s, &ids, &most, logits);
        ids += n - 1;
        n = 1;
    }
    if (g->uncertainty) {
        g->doubt.sum[0] = g->doubt.prior[0] = 0;
        g->s.pass.want_var = true;
        g->s.pass.watch = doubt_watch;
        g->s.pass.watch_arg = &g->doubt;
    }
    session_feed(&g->s, &ids, &n, logits);
    g->s.pass.watch = NULL;
}

static void remember(struct generate *g, const char *bytes, size_t n)
{
    g->said.at = mem_grow(g->said.at, g->said.n + n + 1, 1);
    memcpy(g->said.at + g->said.n, bytes, n);
    g->said.n += n;
}

/* One sampled id and what it says; false at the end of the document or at a stop. */
static bool emit(struct generate *g, int32_t id, const float *logits)
{
    int64_t vocab = g->m.model.cfg.vocab_real;
    const char *bytes;
    bool stopped;
    size_t n = bpe_decode(&g->decoder, id, &bytes), end;

    if (g->uncertainty)
        print_token(g, id, log_probability(logits, vocab, id), bytes, n);
    remember(g, bytes, n);
    end = printable(g, &stopped);
    if (!g->uncertainty)
        print_to(g, end);
    return !stopped;
}

/* Whatever was held back: the beginning of a stop that did not come, bytes of half a character. */
static void print_rest(struct generate *g)
{
    const char *bytes;
    size_t n = bpe_decode_end(&g->decoder, &bytes);

    if (g->uncertainty)
        return;
    remember(g, bytes, n);
    print_to(g, g->said.n);
}

/* Returns the number of tokens made; *last is one that was emitted but not fed, -1 none. */
static int64_t loop(struct generate *g, float *logits, int32_t *last)
{
    int64_t vocab = g->m.model.cfg.vocab_real, made = 0;
    int32_t eot = g->m.bpe ? bpe_eot(g->m.bpe) : g->m.model.cfg.eos;
    bool more = true;

    while (made < g->tokens && more && !ferror(stdout)) {
        int32_t id;
        if (*last >= 0)
            feed(g, last, 1, logits);
        *last = -1;
        id = sample(&g->sampler, logits, vocab, g->s.fed);
        if (id == eot)
            break;
        more = emit(g, id, logits);
        *last = id;
        made++;
    }
    if (more)
        print_rest(g);
    return made;
}

static int read_prompt(struct generate *g)
{
    size_t n = g->prompt ? strlen(g->prompt) : 0;
    char *text = NULL;
    int status;

    if (opened_need_tokenizer(&g->m))
        return -1;
    if (g->file && !(text = file_read(g->file, &n)))
        return -1;
    g->text = n > 0;
    status = opened_encode(&g->m, text ? text : g->prompt ? g->prompt : "", n, !g->state_in, &g->ids);
    free(text);
    return status;
}

/* What waits in the saved memory, then the prompt; with nothing to make, its last id stays waiting. */
static int begin(struct generate *g, float *logits, int32_t *last)
{
    double began = time_now();
    int64_t waiting = 0, n;
    int32_t pending;

    if (g->state_in && session_load(&g->s, g->state_in, &pending, 1, &waiting))
        return -1;
    n = waiting + g->ids.n;
    if (n == 0 && g->state_in)
        return fail("%s: its text came to an end: --prompt must have text", g->state_in);
    if (n == 0)
        return fail("generate: nothing to start from: the tokenizer has no separator, so --prompt must have text");
    *last = g->tokens ? -1 : g->ids.n ? g->ids.at[g->ids.n - 1] : pending;
    if (waiting && (g->ids.n || g->tokens))
        feed(g, &pending, 1, logits);
    if (g->ids.n - !g->tokens > 0)
        feed(g, g->ids.at, g->ids.n - !g->tokens, logits);
    say("prompt: %lld tokens in %.2f s", (long long)n, time_now() - began);
    return 0;
}

static int run(struct generate *g)
{
    float *logits;
    int32_t last = -1;
    int64_t made;
    double began;
    int status;

    if (read_prompt(g) || session_open(&g->s, &g->m.model, 1))
        return -1;
    if (g->uncertainty)
        doubt_open(&g->doubt, &g->m.dev, g->s.chunk);
    logits = mem_new((size_t)g->m.model.cfg.vocab, sizeof *logits);
    bpe_decoder_init(&g->decoder, g->m.bpe);
    g->decoder.started = g->state_in || g->text;
    status = begin(g, logits, &last);
    if (!status) {
        began = time_now();
        made = loop(g, logits, &last);
        if (!g->uncertainty)
            putchar('\n');
        say("generated: %lld tokens, %.1f a second", (long long)made, (double)made / (time_now() - began + 1e-9));
        if (g->state_out)
            status = session_save(&g->s, g->state_out, &last, last >= 0);
    }
    free(logits);
    bpe_decoder_free(&g->decoder);
    return status;
}

static int generate(int argc, const char **argv)
{
    struct generate g = { .device = "auto", .dtype = "fp32", .tokens = 200,
                          .sampler = { .temperature = 0.8f, .top_k = 0, .top_p = 0.95f, .seed = 1 } };
    bool quiet = false;
    int status;
    const struct opt opts[] = {
        OPT("model", &g.dir, "DIR", "model directory, or a run's", .need = true),
        OPT("prompt", &g.prompt, "TEXT", "how the text begins", .empty = true),
        OPT("file", &g.file, "FILE", "take the prompt from a file"),
        OPT("tokens", &g.tokens, "N", "most tokens to make", .range = "[0,)"),
        OPT("temperature", &g.sampler.temperature, "X", "0: always the most likely token", .range = "[0,)"),
        OPT("top-k", &g.sampler.top_k, "N", "among the N most likely; 0: all", .range = "[0,)"),
        OPT("top-p", &g.sampler.top_p, "X", "among the most likely that hold this share", .range = "(0,1]"),
        OPT("seed", &g.sampler.seed, "N", "the same seed, the same text"),
        OPT("stop", &g.stop, "TEXT", "end before this text"),
        OPT("uncertainty", &g.uncertainty, NULL, "a line per token: id, doubt, log-probability, text"),
        OPT("state-in", &g.state_in, "FILE", "go on from a saved memory"),
        OPT("state-out", &g.state_out, "FILE", "save the memory at the end"),
        OPT_MACHINE(&g.device, &g.dtype, &g.threads),
        OPT("quiet", &quiet, NULL, "errors only"),
        OPT_END
    };
    int n = opt_parse(&cmd_generate, argc, argv, opts);

    if (n > 0)
        n = fail("generate: unexpected operand '%s'", argv[0]);
    else if (n == 0 && g.prompt && g.file)
        n = fail("generate: --prompt and --file are two prompts");
    say_quiet(quiet);
    if (n < 0 || opened_open(&g.m, g.dir, g.device, g.dtype, g.threads, &(struct model_use){ 0 })) {
        free(g.stop.at);
        return n < 0 ? 2 : 1;
    }
    status = run(&g) ? 1 : 0;
    session_close(&g.s);
    doubt_close(&g.doubt);
    bpe_ids_free(&g.ids);
    text_free(&g.said);
    opened_close(&g.m);
    free(g.stop.at);
    return status;
}

const struct cmd cmd_generate = { "generate", "write text with a model", "--model DIR --prompt TEXT [options]",
                                  generate };
