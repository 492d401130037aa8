/* bench.c - `palimpsa bench`: the cases of the tests, checked first and then timed. */
#include "bpe.h"
#include "check_op.h"
#include "check_scan.h"
#include "cmd.h"
#include "json.h"
#include "memory.h"
#include "model.h"
#include "op.h"
#include "optim.h"
#include "rng.h"
#include "session.h"
#include <errno.h>
#include <math.h>

extern const struct cmd cmd_bench;

struct bench {
    const char *device, *dtype, *against, *filter, *model, *shape, *tokenizer, *file;
    int64_t tokens, context, documents, labels;
    int threads, repeats;
    bool selftest, small, recompute;
    struct dev dev;
    bool wrong;
    struct { char name[120]; double ms; } *peer;
    int peers;
};

/* Lines NAME<TAB>MILLISECONDS; others are comments. */
static int read_peers(struct bench *b)
{
    FILE *f = b->against ? fopen(b->against, "r") : NULL;
    char line[512];

    if (!b->against)
        return 0;
    if (!f)
        return fail("%s: %s", b->against, strerror(errno));
    while (fgets(line, sizeof line, f)) {
        char *tab = strchr(line, '\t'), *end;
        double ms = tab ? strtod(tab + 1, &end) : 0;
        if (!tab || line[0] == '#' || end == tab + 1)
            continue;
        *tab = 0;
        b->peer = mem_grow(b->peer, (size_t)b->peers + 1, sizeof *b->peer);
        b->peer[b->peers].ms = ms;
        if (str_format(b->peer[b->peers].name, sizeof b->peer->name, "%s", line))
            b->peers++;
    }
    fclose(f);
    return 0;
}

/* One row: what, right or wrong, milliseconds, a rate, and the peer's time beside ours. */
static void row(struct bench *b, const char *name, const char *fault, double error, double ms, const char *rate)
{
    printf("%s\t%s\t%.2g\t", name, fault ? "WRONG" : "ok", error);
    if (ms > 0)
        printf("%.4g\t%s", ms, rate);
    else
        printf("-\t-");
    for (int i = 0; i < b->peers && ms > 0; i++)
        if (!strcmp(b->peer[i].name, name))
            printf("\t%.4g\t%.2fx", b->peer[i].ms, b->peer[i].ms / ms);
    printf("\n");
    fflush(stdout);
    if (fault) {
        b->wrong = true;
        fail("%s: %s", name, fault);
    }
}

/* A filter that begins with ^ must begin the name. */
static bool wanted(const struct bench *b, const char *name)
{
    if (b->filter && *b->filter == '^')
        return !strncmp(name, b->filter + 1, strlen(b->filter + 1));
    return !b->filter || strstr(name, b->filter);
}

/* Tools that watch every access of a GPU take minutes over what is larger. */
static bool light(const struct bench *b, const struct op_case *c)
{
    double bytes, flops;

    check_op_cost(c, F32, &bytes, &flops);
    return !b->small || (bytes <= 1 << 21 && flops <= 1 << 21);
}

static void op_name(const struct bench *b, const struct op_case *c, char out[120])
{
    const char *even = !(c->flags & CASE_EVEN) ? "" : *c->note ? ", even" : " even";

    snprintf(out, 120, "%s%s%s%s %s", c->op, *c->note ? " " : "", c->note, even, b->dtype);
}

static void check_ops(struct bench *b)
{
    for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c)) {
        struct op_report r = { 0 };
        char name[120];
        op_name(b, c, name);
        if (!wanted(b, name) || (c->flags & CASE_LARGE) || !light(b, c))
            continue;
        check_op(&b->dev, c, &r);
        row(b, name, r.fault, r.error, 0, "");
    }
}

/* The small cases of the same verb; the naive row would take minutes over a large one. */
static bool obeys(struct bench *b, const char *op, double *error)
{
    bool good = true;

    *error = 0;
    for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c)) {
        struct op_report r = { 0 };
        if (strcmp(c->op, op) || (c->flags & CASE_LARGE))
            continue;
        good &= check_op(&b->dev, c, &r);
        *error = r.error > *error ? r.error : *error;
    }
    return good;
}

static void bench_ops(struct bench *b)
{
    for (const struct op_case *c = op_case_next(NULL); c; c = op_case_next(c)) {
        char name[120], rate[64];
        double seconds, bytes, flops, error;
        op_name(b, c, name);
        if (!wanted(b, name) || !(c->flags & CASE_LARGE))
            continue;
        if (!obeys(b, c->op, &error)) {
            row(b, name, "its small cases do not agree with the naive row", error, 0, "");
            continue;
        }
        seconds = check_op_time(&b->dev, c, 0.2);
        check_op_cost(c, b->dev.type, &bytes, &flops);
        snprintf(rate, sizeof rate, "%.1f GB/s, %.1f GFLOP/s", bytes / seconds / 1e9, flops / seconds / 1e9);
        row(b, name, NULL, error, seconds * 1e3, rate);
    }
}

static int scan_lengths(const struct bench *b, int32_t *length, int most)
{
    int n = (int)(b->documents < most ? b->documents : most);

    for (int i = 0; i < n; i++)
        length[i] = (int32_t)(b->tokens / n + (i + 1 == n ? b->tokens % n : 0));
    return n;
}

/* Small odd shapes for the law, then the shape asked for. */
static void check_scans(struct bench *b, const struct scan *f)
{
    static const int32_t odd[] = { 1, 63, 0, 64, 65, 200 };
    static const int64_t sizes[][5] = {
        { 1, 1, 1, 16, 16 }, { 2, 2, 4, 17, 5 }, { 2, 2, 2, 48, 48 }, { 1, 1, 2, 128, 64 }, { 1, 1, 1, 96, 192 },
        { 3, 3, 3, 64, 33 }, { 1, 1, 1, 64, 96 }, { 1, 1, 1, 128, 32 },
    };

    for (size_t i = 0; i < LEN(sizes); i++)
        for (int state = 0; state < 2; state++) {
            struct scan_case c = { .Hq = sizes[i][0], .Hk = sizes[i][1], .H = sizes[i][2], .K = sizes[i][3],
                                   .V = sizes[i][4], .length = odd, .n = (int)LEN(odd) - b->small,
                                   .state = state, .var = state, .strided = i % 2, .seed = i };
            struct scan_error e;
            char name[120];
            snprintf(name, sizeof name, "scan %s H%d K%d V%d %s %s", f->name, (int)c.H, (int)c.K, (int)c.V,
                     state ? "carried" : "fresh", b->dtype);
            if (!wanted(b, name))
                continue;
            e = check_scan_agreement(&b->dev, f, &c);
            row(b, name, e.worst <= 1 ? NULL : e.where, e.worst, 0, "");
        }
}

static int bench_scan(struct bench *b, const struct scan *f)
{
    long long H, K, V;
    int32_t *length = mem_new((size_t)b->documents, sizeof *length);
    struct scan_case c = { .n = scan_lengths(b, length, (int)b->documents), .length = length, .seed = 1 };
    struct scan_time t;
    double updates;
    char name[120], rate[96], end;

    if (sscanf(b->shape, "%lldx%lldx%lld%c", &H, &K, &V, &end) != 3 || H < 1 || K < 1 || V < 1) {
        free(length);
        return fail("--shape: expected HxKxV, found '%s'", b->shape);
    }
    c.Hq = c.Hk = c.H = H;
    c.K = K;
    c.V = V;
    check_scans(b, f);
    if (!b->wrong) {
        t = check_scan_time(&b->dev, f, &c, b->repeats);
        updates = scan_case_updates(&c);
        snprintf(name, sizeof name, "scan %s T%lld/%d H%lld K%lld V%lld %s", f->name, (long long)b->tokens, c.n, H, K,
                 V, b->dtype);
        snprintf(rate, sizeof rate, "forward %.4g ms, %.4g G updates/s forward, %.4g both", t.forward * 1e3,
                 updates / t.forward / 1e9, updates / t.both / 1e9);
        row(b, name, NULL, 0, t.both * 1e3, rate);
    }
    free(length);
    return 0;
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One optimizer step after another on random tokens; the loss must stay finite. */
static int time_steps(struct bench *b, struct model *m, const struct batch *batch, double *ms)
{
    struct comm comm;
    struct optim o = { .unit = 1, .clip = 1, .h = { .lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-15f,
                                                    .decay = 0.1f } };
    double *seconds = mem_new((size_t)b->repeats, sizeof *seconds);

    if (comm_fork(&comm, 1))
        return -1;
    comm_use(&comm, &b->dev);
    for (int i = -1; i < b->repeats; i++) {
        double began = time_now(), loss;
        params_zero_grad(&m->params, &b->dev);
        loss = model_learn(m, batch, 1 / (float)batch->predicted, NULL, NULL);
        o.h.step = i + 2;
        optim_step(&o, &m->params, &b->dev, &comm);
        op_sync(&b->dev);
        if (i >= 0)
            seconds[i] = time_now() - began;
        if (!isfinite(loss)) {
            free(seconds);
            return fail("bench model: the loss is %g", loss);
        }
    }
    qsort(seconds, (size_t)b->repeats, sizeof *seconds, compare_doubles);
    *ms = 1e3 * seconds[b->repeats / 2];
    free(seconds);
    return 0;
}

static int bench_model(struct bench *b)
{
    struct model_use use = { .world = 1, .learn = true, .optim = true, .recompute = b->recompute };
    int64_t T = b->tokens, n = (T + b->context - 1) / b->context;
    int32_t *token = mem_new((size_t)T, sizeof *token), *target = mem_new((size_t)T, sizeof *target);
    int32_t *start = mem_new((size_t)n + 1, sizeof *start);
    struct batch batch = { .token = token, .target = target };
    struct config c;
    struct model m;
    double ms = 0;
    int status = -1;

    if (!config_read(&c, b->model) && !model_open(&m, &b->dev, &c, &use)) {
        for (int64_t t = 0; t < T; t++)
            token[t] = (int32_t)(rng_bits(1, 2, (uint64_t)t) % (uint64_t)c.vocab_real);
        for (int64_t i = 0; i <= n; i++)
            start[i] = (int32_t)(i * b->context < T ? i * b->context : T);
        batch.seqs = seqs_of(start, (int)n);
        for (int64_t t = 0; t < T; t++)
            target[t] = (t + 1) % b->context && t + 1 < T && t % b->labels == 0 ? token[t + 1] : -1,
            batch.predicted += target[t] >= 0;
        params_init(&m.params, &b->dev, 1, 0);
        status = model_reserve(&m, JOB_LEARN, T) || time_steps(b, &m, &batch, &ms) ? -1 : 0;
        if (!status) {
            char name[120], rate[96];
            double rates = (double)T / ms * 1e3;
            snprintf(name, sizeof name, "model %s T%lld/%lld %s", b->model, (long long)T, (long long)b->context,
                     b->dtype);
            snprintf(rate, sizeof rate, "%.0f tokens/s, %.3g TFLOP/s of 6NT, peak %.0f MiB", rates,
                     rates * 6 * (double)config_parameters(&c) / 1e12,
                     (double)(b->dev.kind == DEV_CUDA ? 0 : memory_peak()) / 1048576);
            row(b, name, NULL, 0, ms, rate);
        }
        model_close(&m);
    }
    free(token);
    free(target);
    free(start);
    return status;
}

/* Tokens a second of `documents` sequences side by side, each with --context tokens behind it. */
static int bench_decode(struct bench *b)
{
    int64_t n = b->documents, at = 0, *count = mem_new((size_t)n, sizeof *count);
    const int32_t **ids = mem_new((size_t)n, sizeof *ids);
    int32_t *random = mem_new((size_t)b->context, sizeof *random);
    double *ms = mem_new((size_t)b->repeats, sizeof *ms);
    struct session s = { 0 };
    struct config c;
    struct model m;
    float *logits = NULL;
    int status = -1;

    if (!config_read(&c, b->model) && !model_open(&m, &b->dev, &c, &(struct model_use){ 0 })) {
        params_init(&m.params, &b->dev, 1, 0);
        logits = mem_new((size_t)(n * c.vocab), sizeof *logits);
        for (int64_t t = 0; t < b->context; t++)
            random[t] = (int32_t)(rng_bits(3, 4, (uint64_t)t) % (uint64_t)c.vocab_real);
        status = session_open(&s, &m, (int)n);
        for (int64_t i = 0; i < n; i++)
            ids[i] = random, count[i] = b->context;
        if (!status)
            session_feed(&s, ids, count, logits);
        for (int r = 0; r < b->repeats && !status; r++, at = (at + 1) % b->context) {
            double began = time_now();
            for (int64_t i = 0; i < n; i++)
                ids[i] = random + at, count[i] = 1;
            session_feed(&s, ids, count, logits);
            ms[r] = 1e3 * (time_now() - began);
        }
        if (!status) {
            char name[120], rate[96];
            qsort(ms, (size_t)b->repeats, sizeof *ms, compare_doubles);
            snprintf(name, sizeof name, "decode %.60s batch %d after %lld %s", b->model, (int)n,
                     (long long)b->context, b->dtype);
            snprintf(rate, sizeof rate, "%.0f tokens/s, state %.1f MiB", 1e3 * (double)n / ms[b->repeats / 2],
                     (double)s.state.bytes / 1048576);
            row(b, name, isfinite(logits[0]) ? NULL : "a logit is not finite", 0, ms[b->repeats / 2], rate);
        }
        session_close(&s);
        model_close(&m);
    }
    free(count);
    free(ids);
    free(random);
    free(ms);
    free(logits);
    return status;
}

/* The text that ids spell must have these ids again (a normaliser may have changed the first text). */
static bool spells_itself(const struct bpe *t, struct bpe_encoder *e, const struct bpe_ids *ids)
{
    struct bpe_decoder back = { 0 };
    struct bpe_ids again = { 0 };
    struct text text = { 0 };
    const char *bytes;
    bool same;

    bpe_decoder_init(&back, t);
    for (int64_t i = 0; i <= ids->n; i++) {
        size_t n = i < ids->n ? bpe_decode(&back, ids->at[i], &bytes) : bpe_decode_end(&back, &bytes);
        if (text.n + n + 1 > text.cap)
            text.at = mem_grow(text.at, text.cap = 2 * (text.n + n) + 64, 1);
        memcpy(text.at + text.n, bytes, n);
        text.n += n;
    }
    same = bpe_encode(e, &again, text.at, text.n, 0) == ids->n &&
           (!ids->n || !memcmp(again.at, ids->at, (size_t)ids->n * sizeof *ids->at));
    bpe_decoder_free(&back);
    bpe_ids_free(&again);
    free(text.at);
    return same;
}

/* The median time of encoding a whole text on one thread. */
static int time_encoding(struct bench *b, const struct bpe *t, const char *text, size_t n)
{
    struct bpe_encoder *e = bpe_encoder_open(t);
    struct bpe_ids ids = { 0 };
    double *ms = mem_new((size_t)b->repeats, sizeof *ms);
    char rate[96], name[120];
    int status = 0;

    for (int i = 0; i < b->repeats && !status; i++) {
        double began = time_now();
        ids.n = 0;
        status = bpe_encode(e, &ids, text, n, 0) < 0 ? -1 : 0;
        ms[i] = 1e3 * (time_now() - began);
    }
    if (!status) {
        qsort(ms, (size_t)b->repeats, sizeof *ms, compare_doubles);
        snprintf(rate, sizeof rate, "%.1f MB/s on one thread, %lld ids", (double)n / ms[b->repeats / 2] / 1e3,
                 (long long)ids.n);
        snprintf(name, sizeof name, "tokenize %.100s", b->file);
        row(b, name, spells_itself(t, e, &ids) ? NULL : "its ids do not spell a text with these ids", 0,
            ms[b->repeats / 2], rate);
    }
    free(ms);
    bpe_ids_free(&ids);
    bpe_encoder_close(e);
    return status;
}

static int bench_tokenize(struct bench *b)
{
    struct bpe *t;
    char *text = NULL;
    size_t n;
    int status = -1;

    if (!b->tokenizer || !b->file)
        return fail("bench tokenize: needs --tokenizer and --file");
    t = bpe_open(b->tokenizer);
    if (t && (text = file_read(b->file, &n)))
        status = time_encoding(b, t, text, n);
    if (t)
        bpe_close(t);
    free(text);
    return status;
}

static int run(struct bench *b, const char *what)
{
    char name[160];

    say("%s", dev_describe(&b->dev, name, sizeof name));
    printf("case\tresult\terror\tms\trate%s\n", b->peers ? "\tpeer ms\tpeer / ours" : "");
    if (b->selftest) {
        check_ops(b);
        for (const struct scan *f = NULL; (f = scan_next(f));)
            check_scans(b, f);
        say(b->wrong ? "selftest: FAILED" : "selftest: pass");
        return 0;
    }
    if (!strcmp(what, "op"))
        return bench_ops(b), 0;
    if (!strcmp(what, "model"))
        return bench_model(b);
    if (!strcmp(what, "scan")) {
        for (const struct scan *f = NULL; (f = scan_next(f));)
            if (wanted(b, f->name) && bench_scan(b, f))
                return -1;
        return 0;
    }
    if (!strcmp(what, "decode"))
        return bench_decode(b);
    if (!strcmp(what, "tokenize"))
        return bench_tokenize(b);
    return fail("bench: expected op, scan, model, decode or tokenize, found '%s'", what);
}

static int bench(int argc, const char **argv)
{
    struct bench b = { .device = "auto", .dtype = "fp32", .model = "palimpsa-tiny", .shape = "16x48x48", .tokens = 4096,
                       .context = 1024, .documents = 1, .labels = 1, .repeats = 5 };
    int status;
    const struct opt opts[] = {
        OPT("selftest", &b.selftest, NULL, "check every op and recurrence on this device, time nothing"),
        OPT_MACHINE(&b.device, &b.dtype, &b.threads),
        OPT("small", &b.small, NULL, "selftest: only what is quick when a tool watches every access"),
        OPT("filter", &b.filter, "TEXT", "only cases whose name has this text, or with ^TEXT begins so"),
        OPT("repeats", &b.repeats, "N", "the median of so many", .range = "[1,)"),
        OPT("tokens", &b.tokens, "N", "scan, model: tokens of the row", .range = "[1,)"),
        OPT("documents", &b.documents, "N", "scan: documents in the row; decode: sequences", .range = "[1,)"),
        OPT("shape", &b.shape, "HxKxV", "scan: heads, key and value dimension"),
        OPT("model", &b.model, "NAME", "model, decode: preset or config.json"),
        OPT("context", &b.context, "N", "model, decode: tokens of a sequence", .range = "[1,)"),
        OPT("labels", &b.labels, "N", "model: one token of N has a target", .range = "[1,)"),
        OPT("recompute", &b.recompute, NULL, "model: keep block inputs only"),
        OPT("tokenizer", &b.tokenizer, "FILE", "tokenize: tokenizer.json"),
        OPT("file", &b.file, "FILE", "tokenize: a text"),
        OPT("against", &b.against, "FILE", "times of a peer: lines NAME<TAB>MILLISECONDS"),
        OPT_END
    };
    int n = opt_parse(&cmd_bench, argc, argv, opts);

    if (n < 0)
        return 2;
    if (n != !b.selftest)
        return fail("bench: expected one of op, scan, model, decode, tokenize, or --selftest"), 2;
    if (b.documents > b.tokens)
        return fail("--documents: more than the %lld tokens of the row", (long long)b.tokens), 2;
    if (read_peers(&b) || dev_open(&b.dev, b.device, dtype_named(b.dtype), b.threads))
        return 1;
    status = run(&b, argv[0]) || b.wrong ? 1 : 0;
    dev_close(&b.dev);
    free(b.peer);
    return status;
}

const struct cmd cmd_bench = { "bench", "check, then time: ops, recurrences, whole steps, decoding, tokenizers",
    "op|scan|model|decode|tokenize [options]", bench };
