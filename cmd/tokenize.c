/* tokenize.c - palimpsa tokenize: text to token shards, to ids and back, and a vocabulary out of text. */
#define _POSIX_C_SOURCE 200809L
#include "tokenize.h"
#include "bpe_train.h"
#include "cmd.h"
#include <unistd.h>

extern const struct cmd cmd_tokenize;

struct line { bool begun, spaced; };     /* of ids; spaced: the next id has one before it */

static int put_ids(void *arg, const int32_t *ids, int64_t n, bool begins)
{
    struct line *line = arg;

    if (begins && line->begun)
        putchar('\n');
    if (begins)
        *line = (struct line){ true, false };
    for (int64_t i = 0; i < n; i++) {
        printf(line->spaced ? " %d" : "%d", (int)ids[i]);
        line->spaced = true;
    }
    return 0;
}

/* Ids that are separated by white space, as they come; the whole input is one text. */
static int decode(const struct bpe *b)
{
    struct bpe_decoder d;
    const char *bytes;
    char word[24];
    size_t n;
    int status = 0, got;

    bpe_decoder_init(&d, b);
    while (!status && (got = scanf("%23s", word)) == 1) {
        char *end;
        long id = strtol(word, &end, 10);

        if (*end || word[0] < '0' || word[0] > '9')
            status = fail("standard input: expected an id, found '%s'", word);
        else if (id >= bpe_vocab(b))
            status = fail("standard input: id %ld is not in a vocabulary of %d", id, (int)bpe_vocab(b));
        else {
            n = bpe_decode(&d, (int32_t)id, &bytes);
            fwrite(bytes, 1, n, stdout);
        }
    }
    n = bpe_decode_end(&d, &bytes);
    fwrite(bytes, 1, n, stdout);
    if (ferror(stdin))
        status = fail("standard input cannot be read");
    bpe_decoder_free(&d);
    return status;
}

static int encode_to_lines(const struct tokenize_options *o, struct tokenize_totals *t)
{
    struct line line = { false, false };
    int status = tokenize_run(o, t, put_ids, &line);

    if (line.begun)
        putchar('\n');
    return status;
}

static void summary(const struct tokenize_totals *t, bool shards)
{
    say("tokenize: %lld documents, %lld tokens%s, %lld bytes in %.2f s, %.1f MB/s", (long long)t->documents,
        (long long)(t->tokens + (shards ? t->documents : 0)), shards ? " with separators" : "", (long long)t->bytes,
        t->seconds, 1e-6 * (double)t->bytes / (t->seconds + 1e-9));
    if (t->invalid || t->nuls)
        say("tokenize: %lld bytes were not UTF-8, %lld were NUL", (long long)t->invalid, (long long)t->nuls);
}

static int separator(const struct bpe *b, const char *token, const char *path)
{
    int id = token ? bpe_id(b, token) : bpe_eot(b);

    if (token && id < 0)
        return fail("%s: no token \"%s\"", path, token);
    if (token && !bpe_is_control(b, id))
        return fail("%s: \"%s\" is no control token, so text could contain it", path, token);
    return id >= 0 ? id : fail("%s: no token is known to separate documents; name one with --separator", path);
}

/* With a tokenizer: to shards, to lines of ids, or back. */
static int with_tokenizer(struct tokenize_options *o, const char *path, const char *out, const char *token, bool back)
{
    struct bpe *b = bpe_open(path);
    struct tokenize_totals t;
    int status = -1, eot;

    if (!b)
        return 1;
    o->bpe = b;
    if (back)
        status = decode(b);
    else if (!out)
        status = encode_to_lines(o, &t);
    else if ((eot = separator(b, token, path)) >= 0)
        status = tokenize_shards(o, &t, out, eot);
    if (!status && !back)
        summary(&t, out);
    bpe_close(b);
    return status ? 1 : 0;
}

static int train(const struct tokenize_options *o, int64_t vocab, const char *out)
{
    struct tokenize_totals t;

    if (tokenize_train(o, &t, vocab, out))
        return 1;
    say("tokenize: a vocabulary of %lld from %lld documents, %lld bytes, in %.2f s", (long long)t.tokens,
        (long long)t.documents, (long long)t.bytes, t.seconds);
    return 0;
}

static int usage(const char *what)
{
    fail("palimpsa tokenize: %s; see palimpsa tokenize --help", what);
    return 2;
}

static int tokenize(int argc, const char **argv)
{
    static const char *const standard_input[] = { "-" };
    const char *tokenizer = NULL, *out = NULL, *field = "text", *prompt = NULL, *format = "auto", *token = NULL;
    bool ids = false, back = false, control = false, trains = false, fielded = false;
    int threads = 0;
    int64_t vocab = 32000;
    const struct opt opts[] = {
        OPT("tokenizer", &tokenizer, "FILE", "Hugging Face tokenizer.json"),
        OPT("out", &out, "DIR/NAME", "write shards DIR/NAME_000000.pts and so on, all or none", .letter = 'o'),
        OPT("field", &field, "KEY", "string that is the document in a line of JSON", .given = &fielded),
        OPT("prompt-field", &prompt, "KEY", "string before it that finetune --mask-prompt does not learn to predict; "
            "--field is then response by default"),
        OPT("format", &format, "F", "of the input; auto goes by the name", .choices = "auto|text|jsonl"),
        OPT("threads", &threads, "N", "threads that encode; 0: one for each processor; the result is the same",
            .range = "[0,1024]"),
        OPT("separator", &token, "TOKEN", "control token before each document, instead of the tokenizer's usual one"),
        OPT("ids", &ids, NULL, "print one line of ids for each document"),
        OPT("decode", &back, NULL, "read ids from standard input and print their text"),
        OPT("control", &control, NULL, "with --ids: control tokens spelled in the text become themselves"),
        OPT("train-tokenizer", &vocab, "N", "learn a byte-level vocabulary of N tokens and write it to --out",
            .range = "[257,16777216]", .given = &trains),
        OPT_END
    };
    int n = opt_parse(&cmd_tokenize, argc, argv, opts);
    struct tokenize_options o = { .file = argv, .files = n, .field = field, .prompt = prompt,
                                  .progress = isatty(STDERR_FILENO) };

    if (n < 0)
        return 2;
    if (trains + ids + back + (out && !trains) != 1)
        return usage("expected one of --out, --ids, --decode and --train-tokenizer with --out");
    if (trains ? tokenizer || !out : !tokenizer)
        return usage(trains ? "--train-tokenizer takes --out and no --tokenizer" : "--tokenizer is required");
    if ((control && !ids) || (token && !(out && !trains)) || (back && n))
        return usage(control && !ids ? "--control needs --ids" : back && n ? "--decode reads standard input only"
                                                                            : "--separator needs shards to write");
    if (!n && !ids && !back)
        return usage("expected FILE..., '-' for standard input");
    if (prompt && !fielded)
        o.field = "response";
    if (prompt && !strcmp(prompt, o.field))
        return usage("--prompt-field and --field are the same");
    if (!n) {
        o.file = standard_input;
        o.files = 1;
    }
    o.threads = threads ? threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    o.threads = o.threads < 1 ? 1 : o.threads;
    o.flags = control ? BPE_CONTROL : 0;
    o.format = !strcmp(format, "text") ? TEXT : !strcmp(format, "jsonl") ? JSONL : BY_NAME;
    if (o.format == BY_NAME && fielded && o.files == 1 && !strcmp(o.file[0], "-"))
        o.format = JSONL;
    if (trains)
        return train(&o, vocab, out);
    return with_tokenizer(&o, tokenizer, out, token, back);
}

const struct cmd cmd_tokenize = {
    "tokenize", "turn text into token shards, or into ids and back; learn a vocabulary",
    "--tokenizer FILE (--out DIR/NAME FILE... | --ids [FILE...] | --decode), or --train-tokenizer N --out FILE FILE...",
    tokenize
};
