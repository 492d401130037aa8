/* test_task.c - requests: how they are tokenized, answered, cut, counted; and what rows of data become. */
#include "rng.h"
#include "scratch.h"
#include "session.h"
#include "task_choice.h"
#include "task_model.h"
#include "task_prompt.h"
#include "task_text.h"

static void encode(struct opened *m, struct bpe_ids *ids, const char *text)
{
    ids->n = 0;
    CHECK(bpe_encode(m->encoder, ids, text, strlen(text), 0) >= 0);
}

/* Context and continuation are one text, parted where the context ends; its white space moves over. */
static void check_parting(struct opened *m)
{
    struct task_run r = { .m = m };
    struct asks a = { 0 };
    struct bpe_ids whole = { 0 }, context = { 0 };

    asks_add(&a, "Answer: ", "yes");
    asks_add(&a, "", "yes");
    asks_add(&a, "", "");
    CHECK(!asks_encode(&r, &(struct asks){ a.at, 2, 2 }));
    encode(m, &whole, "Answer: yes");
    encode(m, &context, "Answer:");
    CHECK(a.at[0].n == whole.n && a.at[0].scored == whole.n - context.n && a.at[0].scored == 1);
    CHECK(!memcmp(a.at[0].id, whole.at, (size_t)whole.n * sizeof *whole.at));
    encode(m, &whole, "yes");
    CHECK(a.at[1].n == whole.n + 1 && a.at[1].scored == whole.n && a.at[1].id[0] == bpe_eot(m->bpe));
    scratch_listen();
    CHECK(asks_encode(&r, &(struct asks){ a.at + 2, 1, 1 }) < 0);
    CHECK(scratch_heard("no token", "", ""));
    asks_free(&a);
    bpe_ids_free(&whole);
    bpe_ids_free(&context);
}

/* A tokenizer that puts a token first puts it once. */
static void check_first_token(void)
{
    struct opened m;
    struct task_run r = { .m = &m };
    struct asks a = { 0 };

    CHECK(task_model_open(&m, true) && bpe_bos(m.bpe) == 0);
    asks_add(&a, "Answer:", " yes");
    asks_add(&a, "", " yes");
    CHECK(!asks_encode(&r, &a));
    CHECK(a.at[0].id[0] == 0 && a.at[0].id[1] != 0);
    CHECK(a.at[1].id[0] == 0 && a.at[1].id[1] != 0);
    asks_free(&a);
    task_model_close(&m);
}

/* The first token after a context of one token, against softmax by hand. */
static void check_by_hand(struct opened *m)
{
    struct task_run r = { .m = m, .task = task_find("piqa") };
    struct asks a = { 0 };
    int64_t V = m->model.cfg.vocab;
    float *logits = mem_new((size_t)V, sizeof *logits);
    int32_t start[] = { 0, 1 };
    double sum = 0;

    asks_add(&a, "", "q");
    CHECK(!asks_encode(&r, &a) && a.at[0].n == 2);
    model_reserve(&m->model, JOB_LOGITS, 1);
    model_logits(&m->model, &(struct batch){ .token = a.at[0].id, .seqs = seqs_of(start, 1) }, NULL, true, logits);
    for (int64_t i = 0; i < V; i++)
        sum += exp(logits[i]);
    for (int look = 0; look < 2; look++) {
        a.at[0].log_prob = NAN;
        CHECK(!asks_answer(&r, &a, look));
        CHECK_NEAR(a.at[0].log_prob, logits[a.at[0].id[1]] - log(sum), 1e-5);
    }
    free(logits);
    asks_free(&a);
}

static void random_asks(struct asks *a, int n, int64_t longest)
{
    for (int i = 0; i < n; i++) {
        struct ask *x;
        asks_add(a, "", "");
        x = &a->at[a->n - 1];
        x->n = 2 + (int64_t)(rng_bits(5, 1, (uint64_t)i) % (uint64_t)longest);
        x->scored = 1 + (int64_t)(rng_bits(5, 2, (uint64_t)i) % (uint64_t)(x->n - 1));
        x->id = mem_new((size_t)x->n, sizeof *x->id);
        for (int64_t t = 0; t < x->n; t++)
            x->id[t] = (int32_t)(rng_bits(6, (uint64_t)i, (uint64_t)t) % 300);
    }
}

/* Side by side or alone, in rows, in pieces or token by token: the same. */
static void check_sides(struct opened *m)
{
    static const int64_t batch[] = { 1, 7, 32, 0 };
    struct task task = { .name = "test" };
    struct asks a = { 0 };
    double *first = mem_new(41, sizeof *first);

    random_asks(&a, 40, 90);
    asks_add(&a, "", "");
    a.at[40].n = 5000;                                    /* longer than a row */
    a.at[40].scored = 20;
    a.at[40].id = mem_new(5000, sizeof *a.at[40].id);
    for (int64_t t = 0; t < 5000; t++)
        a.at[40].id[t] = (int32_t)(rng_bits(7, 0, (uint64_t)t) % 300);
    for (size_t b = 0; b < LEN(batch); b++)
        for (int look = 0; look < 2; look++) {
            struct task_run r = { .m = m, .task = &task, .batch = batch[b] };
            CHECK(!asks_answer(&r, &a, look));
            for (int i = 0; i < 41; i++) {
                if (!b && !look)
                    first[i] = a.at[i].log_prob;
                CHECK_NEAR(a.at[i].log_prob, first[i], 1e-5 * (1 + fabs(first[i])));
            }
        }
    free(first);
    asks_free(&a);
}

/* Requests that begin alike are read once up to there: the same as each alone, however many side by side. */
static void check_sharing(struct opened *m)
{
    static const int64_t batch[] = { 1, 3, 0 };
    struct task task = { .name = "test" };
    struct task_run alone = { .m = m, .task = &task };
    struct asks a = { 0 };

    random_asks(&a, 60, 90);
    for (int i = 0; i < 60; i++) {                        /* groups of four; a third of them with nothing in common */
        struct ask *x = &a.at[i];
        int64_t first = x->n - x->scored, same = a.at[i - i % 4].n - 3;

        if (i % 4 && i % 12 < 8 && same > 0) {
            x->id = mem_grow(x->id, (size_t)(same + 9), sizeof *x->id);
            memcpy(x->id, a.at[i - i % 4].id, (size_t)same * sizeof *x->id);
            for (int64_t t = same; t < same + 9; t++)
                x->id[t] = (int32_t)(rng_bits(9, (uint64_t)i, (uint64_t)t) % 300);
            x->n = same + 3 + i % 6;
            x->scored = 1 + i % 2 + (first < 0);
        }
    }
    for (int look = 0; look < 2; look++) {
        double want[60];
        int greedy[60];

        for (int i = 0; i < 60; i++) {
            CHECK(!asks_answer(&alone, &(struct asks){ a.at + i, 1, 1 }, look));
            want[i] = a.at[i].log_prob;
            greedy[i] = a.at[i].greedy;
        }
        for (size_t b = 0; b < LEN(batch); b++) {
            CHECK(!asks_answer(&(struct task_run){ .m = m, .task = &task, .batch = batch[b] }, &a, look));
            for (int i = 0; i < 60; i++) {
                CHECK_NEAR(a.at[i].log_prob, want[i], 1e-5 * (1 + fabs(want[i])));
                CHECK(a.at[i].greedy == greedy[i] && a.at[i].done);
            }
        }
    }
    asks_free(&a);
}

/* Greedy means every token: a last word of two tokens of which only the second is right is wrong. */
static void check_greedy(struct opened *m)
{
    struct task task = { .name = "test" };
    struct task_run r = { .m = m, .task = &task };
    struct bpe_ids prompt = { 0 }, right = { 0 }, wrong = { 0 };
    struct asks a = { 0 };
    struct session s;
    struct greedy how = { .most = 2 };

    encode(m, &prompt, "the man and ");
    CHECK(!session_open(&s, &m->model, 2));
    greedy(&s, m->bpe, &prompt, 1, &how, &right);
    CHECK(right.n == 2 && right.at[0] < bpe_vocab(m->bpe));
    bpe_ids_reserve(&prompt, 1);
    prompt.at[prompt.n++] = right.at[0] == 7 ? 8 : 7;
    greedy(&s, m->bpe, &prompt, 1, &how, &wrong);
    for (int i = 0; i < 3; i++) {
        struct ask *x;
        asks_add(&a, "", "");
        x = &a.at[i];
        x->n = prompt.n + 1;
        x->scored = 2;
        x->id = mem_new((size_t)x->n, sizeof *x->id);
        memcpy(x->id, prompt.at, (size_t)prompt.n * sizeof *x->id);
        if (i)
            x->id[prompt.n - 1] = right.at[0];
        x->id[prompt.n] = i ? right.at[1] : wrong.at[0];
    }
    a.at[2].id[prompt.n] = right.at[1] == 9 ? 10 : 9;
    CHECK(!asks_answer(&r, &a, true));
    CHECK(a.at[0].greedy == 0 && a.at[1].greedy == 1 && a.at[2].greedy == 0);
    session_close(&s);
    asks_free(&a);
    bpe_ids_free(&prompt);
    bpe_ids_free(&right);
    bpe_ids_free(&wrong);
}

/* Stops end an answer, or are not taken first where an answer must not be empty; unknown ids never come. */
static void check_stops(struct opened *m)
{
    struct bpe_ids prompt[3] = { { 0 } }, plain[3] = { { 0 } }, stopped[3] = { { 0 } }, one[3] = { { 0 } };
    const char *text[] = { "the man", "q", "and it and it and it and it" };
    struct greedy how = { .most = 12 };
    struct session s;

    CHECK(!session_open(&s, &m->model, 3));
    for (int i = 0; i < 3; i++)
        encode(m, &prompt[i], text[i]);
    greedy(&s, m->bpe, prompt, 3, &how, plain);
    how.stop = &plain[0].at[0];
    how.stops = 1;
    greedy(&s, m->bpe, prompt, 3, &how, stopped);
    how.one = true;
    greedy(&s, m->bpe, prompt, 3, &how, one);
    CHECK(plain[0].n == 12 && stopped[0].n == 1 && one[0].n >= 1 && one[0].at[0] != plain[0].at[0]);
    for (int i = 1; i < 3; i++)
        CHECK(stopped[i].n && !memcmp(stopped[i].at, plain[i].at, (size_t)stopped[i].n * sizeof *plain[i].at));
    for (int i = 0; i < 3; i++) {                                  /* alone it is the same */
        struct bpe_ids alone = { 0 };
        how.stops = 0;
        greedy(&s, m->bpe, &prompt[i], 1, &how, &alone);
        CHECK(alone.n == plain[i].n && !memcmp(alone.at, plain[i].at, (size_t)alone.n * sizeof *alone.at));
        bpe_ids_free(&alone);
        bpe_ids_free(&prompt[i]);
        bpe_ids_free(&plain[i]);
        bpe_ids_free(&stopped[i]);
        bpe_ids_free(&one[i]);
    }
    session_close(&s);
}

static int read_text(choice_read *read, struct choices *c, const char *text, const char *label)
{
    struct json *j = json_parse(text, strlen(text), "row");
    int status = read(c, j, label, "row");

    json_free(j);
    return status;
}

static void expect(const struct choices *c, int64_t i, const char *context, const char *continuation)
{
    const struct ask *a = &c->asks.at[i];

    CHECK(!strcmp(a->context, context) && !strcmp(a->continuation, continuation));
    if (strcmp(a->context, context) || strcmp(a->continuation, continuation))
        printf("  '%s' + '%s'\n", a->context, a->continuation);
}

static void check_rows(void)
{
    struct choices c = { 0 };

    CHECK(!read_text(read_winogrande, &c, "{\"sentence\": \"A _ B. \", \"option1\": \"x\", \"option2\": \"y\", "
                     "\"answer\": \"2\"}", NULL));
    expect(&c, 0, "A x", " B.");
    expect(&c, 1, "A y", " B.");
    CHECK(c.at[0].gold == 1 && c.at[0].n == 2);
    CHECK(!read_text(read_piqa, &c, "{\"goal\": \"g\", \"sol1\": \"s\", \"sol2\": \"\\u4f60\\u597d\"}", "1"));
    expect(&c, 3, "Question: g\nAnswer:", " \xE4\xBD\xA0\xE5\xA5\xBD");
    CHECK(c.at[1].gold == 1 && c.length[3].chars == 2 && c.length[3].bytes == 6);
    CHECK(!read_text(read_siqa, &c, "{\"context\": \"c.\", \"question\": \"q?\", \"answerA\": \"a\", "
                     "\"answerB\": \"b\", \"answerC\": \"d\", \"label\": \"3\"}", NULL));
    expect(&c, 6, "Q: c. q?\nA:", " d");
    CHECK(c.at[2].gold == 2);
    CHECK(!read_text(read_boolq, &c, "{\"title\": \"T\", \"passage\": \"p\", \"question\": \"q\", "
                     "\"answer\": true}", NULL));
    expect(&c, 8, "T -- p\nQuestion: q?\nAnswer:", " yes");
    CHECK(c.at[3].gold == 1);
    CHECK(!read_text(read_arc, &c, "{\"question\": {\"stem\": \"s\", \"choices\": [{\"text\": \"a\", "
                     "\"label\": \"1\"}, {\"text\": \"b\", \"label\": \"2\"}]}, \"answerKey\": \"2\"}", NULL));
    CHECK(!read_text(read_arc, &c, "{\"question\": \"s\", \"choices\": {\"text\": [\"a\", \"b\"], "
                     "\"label\": [\"A\", \"B\"]}, \"answerKey\": \"A\"}", NULL));
    expect(&c, 10, "Question: s\nAnswer:", " b");
    CHECK(c.at[4].gold == 1 && c.at[5].gold == 0);
    CHECK(!read_text(read_hellaswag, &c, "{\"activity_label\": \"Act\", \"ctx_a\": \"He [title] runs.\", "
                     "\"ctx_b\": \"tHEN he\", \"endings\": [\" x [step] y.\", \"z\"], \"label\": \"1\"}", NULL));
    expect(&c, 13, "Act: He. runs. Then he", " x y.");
    scratch_listen();
    CHECK(read_text(read_piqa, &c, "{\"goal\": \"g\", \"sol1\": \"s\", \"sol2\": \"t\"}", "2") < 0);
    CHECK(read_text(read_piqa, &c, "{\"goal\": \"g\", \"sol1\": \"s\", \"sol2\": \"t\"}", NULL) < 0);
    CHECK(scratch_heard("label from 0 to 1", "no 'label', and no file", "row"));
    asks_free(&c.asks);
    free(c.at);
    free(c.length);
}

/* -2 against -3: the sum picks the short answer, the mean over characters the long one. */
static void check_norm(void)
{
    struct choices c = { 0 };

    question_begin(&c, 0);
    question_add(&c, "", " no", "no");
    question_add(&c, "", " yes it does", "yes it does");
    c.asks.at[0].log_prob = -2;
    c.asks.at[1].log_prob = -3;
    CHECK(choice_best(&c, c.at, PLAIN) == 0 && choice_best(&c, c.at, CHARS) == 1);
    question_begin(&c, 0);
    question_add(&c, "", "", "\xE4\xBD\xA0\xE5\xA5\xBD");
    question_add(&c, "", "", "abc");
    c.asks.at[2].log_prob = -2;                            /* -1 a character, -1/3 a byte */
    c.asks.at[3].log_prob = -2;                            /* -2/3 either way */
    CHECK(choice_best(&c, c.at + 1, CHARS) == 1 && choice_best(&c, c.at + 1, BYTES) == 0);
    CHECK(choice_best(&c, c.at + 1, PLAIN) == 0);          /* the first of equals */
    asks_free(&c.asks);
    free(c.at);
    free(c.length);
}

/* What lm-evaluation-harness 0.4.13 made of these. */
static void check_cleaning(void)
{
    static const char *const endings[][2] = {
        { "  [header] How to tie [title] Take it.  [step] Pull   hard [substeps] x. ",
          " How to tie. Take it.  Pull  hard x." },
        { "[a[b] c]d] e", " c]d] e" }, { "no [open", "no [open" }, { "a [x\ny] b [z]", "a [x\ny] b " },
        { "[title] first [title]  second", " first.  second" }, { " [title]", "" }, { "a    b     c", "a  b   c" },
        { "\xE3\x80\x80x [step]\xC2\xA0", "x " }
    };
    static const char *const pages[][2] = {
        { "He said \" hello there \" , and ( see  p. 5 ) left .", "He said \"hello there\", and (see  p. 5) left ." },
        { "the dogs ' bones and it 's ( )", "the dogs'bones and it's ()" },
        { " = = Title = = \n text \n = = = Sub = = = ", " == Title ==\ntext\n=== Sub === " },
        { "1 @,@ 000 @.@ 5 well @-@ known ; a : b ! c ? d", "1,000.5 well-known; a: b! c? d" },
        { "a ( b ( c ) d ) e ) f ( g", "a (b ( c) d ) e ) f ( g" },
        { "' quoted ' it 's ' open", "'quoted' it's' open" }, { "x /' 5/ y /' a/", "x /'[0-9]/ y /' a/" },
        { "[ 1 ] { two } \" \" \" lone", "[1] {two} \"\" \" lone" },
        { "20 \xC2\xB0 C , N and S . N .", "20\xC2\xB0" "C, 1 and S. 1 ." }, { "s ' ss '", "s'ss'" },
        { "( a\nb )\xC2\xA0( \xC2\xA0 )", "(a\nb)\xC2\xA0()" }
    };

    for (size_t i = 0; i < LEN(endings); i++) {
        char *got = hellaswag_clean(endings[i][0]);
        CHECK(!strcmp(got, endings[i][1]));
        free(got);
    }
    for (size_t i = 0; i < LEN(pages); i++) {
        struct text t = { 0 };
        char *got;
        text_add(&t, "%s", pages[i][0]);
        got = wikitext_page(t.at);
        CHECK(!strcmp(got, pages[i][1]));
        free(got);
    }
}

/* One long sample under a limit is counted, or left out of what is divided by. */
static void check_limits(struct opened *m)
{
    const char *data = scratch("lambada.jsonl"), *head = "\"metric\": \"acc\"";

    CHECK(scratch_write(data, "{\"text\": \"the man and the woman yes yes no no it it\"}\n\n{\"text\": \"it yes\"}\n"));
    for (int skip = 0; skip < 2; skip++) {
        struct results res = { { 0 }, { 0 } };
        struct task_run r = { .task = task_find("lambada"), .m = m, .results = &res, .data = &data, .files = 1,
                              .context = 3, .skip_long = skip };
        const char *at;

        CHECK(!r.task->run(&r));
        at = res.list.at ? strstr(res.list.at, head) : NULL;
        CHECK(at && strstr(at, skip ? "\"n\": 1, \"truncated\": 0, \"skipped\": 1}"
                                    : "\"n\": 2, \"truncated\": 1, \"skipped\": 0}"));
        CHECK(strstr(res.settings.at, "\"shots\": 0"));
        results_free(&res);
    }
}

/* Pages part at titles; windows of any length predict every token once. */
static void check_wikitext(struct opened *m)
{
    const char *data = scratch("wiki.raw"), *log = scratch("log");
    static const int64_t context[] = { 0, 1000, 7 };
    char *text;
    size_t n;

    CHECK(scratch_write(data, " \n = One = \n \n the man and ( the woman ) . \n = = Part = = \n it \n"
                              " = Two = \n yes \n"));
    for (size_t i = 0; i < LEN(context); i++) {
        struct results res = { { 0 }, { 0 } };
        struct task_run r = { .task = task_find("wikitext"), .m = m, .results = &res, .data = &data, .files = 1,
                              .context = context[i], .log = log };
        static double first;
        double bits = -1;
        const char *at;

        CHECK(!r.task->run(&r));
        CHECK(strstr(res.list.at, "\"n\": 2,"));
        at = strstr(res.list.at, "bits_per_byte");
        CHECK(at && sscanf(at, "bits_per_byte\", \"value\": %lf", &bits) == 1);
        first = i ? first : bits;
        CHECK(bits > 0 && (i == 2 ? fabs(bits - first) > 1e-6 : fabs(bits - first) < 1e-6));
        results_free(&res);
    }
    text = file_read(log, &n);
    CHECK(text && strstr(text, "\"doc\": 1, \"words\": 6, \"bytes\": 16, \"windows\": "));
    free(text);
}

int main(void)
{
    struct opened m;

    scratch_open();
    CHECK(task_model_open(&m, false));
    check_parting(&m);
    check_first_token();
    check_by_hand(&m);
    check_sides(&m);
    check_sharing(&m);
    check_greedy(&m);
    check_stops(&m);
    check_rows();
    check_norm();
    check_cleaning();
    check_limits(&m);
    check_wikitext(&m);
    task_model_close(&m);
    scratch_close();
    return test_done("task");
}
