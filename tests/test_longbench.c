/* test_longbench.c - prompts filled, cut and wrapped; answers written, continued, refused; the table. */
#define _POSIX_C_SOURCE 200809L
#include "scratch.h"
#include "score_file.h"
#include "session.h"
#include "sha256.h"
#include "task_model.h"
#include "task_prompt.h"
#include <sys/stat.h>
#include <unistd.h>

static void fill(const char *pattern, const char *row, const char *want)
{
    struct json *j = json_parse(row, strlen(row), "row");
    struct text t = { 0 };

    CHECK(prompt_fill(&t, pattern, j) == (want ? 0 : -1));
    CHECK(!want || !strcmp(t.at, want));
    text_free(&t);
    json_free(j);
}

static void check_filling(void)
{
    fill("A\n{context}\nQ: {input}", "{\"context\": \"x\\ny {input}\", \"input\": \"z\"}", "A\nx\ny {input}\nQ: z");
    fill("{{{input}}}", "{\"input\": \"z\"}", "{z}");
    scratch_listen();
    fill("{other}", "{\"input\": \"z\"}", NULL);
    fill("a } b", "{\"input\": \"z\"}", NULL);
    CHECK(scratch_heard("no 'other'", "brace has no partner", ""));
}

static void cut(struct opened *m, const char *text, int64_t most, const char *want)
{
    struct task_run r = { .m = m };
    struct text t = { 0 };

    text_add(&t, "%s", text);
    CHECK(prompt_cut(&r, &t, most) == (strcmp(text, want) != 0));
    CHECK(!strcmp(t.at, want));
    if (strcmp(t.at, want))
        printf("  '%s'\n", t.at);
    text_free(&t);
}

/* Digits are tokens of their own; so are the bytes of a character that no merge joins. */
static void check_cutting(struct opened *m)
{
    cut(m, "0123456789", 6, "012789");
    cut(m, "0123456789", 7, "012789");
    cut(m, "0123456789", 10, "0123456789");
    cut(m, "01\xE4\xBD\xA0\xE5\xA5\xBD" "23", 6, "01\xEF\xBF\xBD\xEF\xBF\xBD" "23");
    cut(m, "0\xE4\xBD\xA0\xE5\xA5\xBD" "2", 4, "0\xEF\xBF\xBD\xEF\xBF\xBD" "2");
    cut(m, "0\xE4\xBD\xA0\xE5\xA5\xBD" "2", 6, "0\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD" "2");
}

static void check_wrapping(void)
{
    static const char *const few_shot[] = { "trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p" };
    struct text t = { 0 };
    int plain = 0, wrapped = 0, lines = 0;

    text_add(&t, "p{prompt}");
    CHECK(!prompt_wrap(&t, "[INST]{prompt}[/INST]") && !strcmp(t.at, "[INST]p{prompt}[/INST]"));
    scratch_listen();
    CHECK(prompt_wrap(&t, "[INST]") < 0);
    CHECK(scratch_heard("expected {prompt}", "", ""));
    text_free(&t);
    for (const struct score_task *s = NULL; (s = score_task_next(s));)
        s->plain ? plain++ : wrapped++, lines += s->first_line;
    CHECK(plain == 6 && wrapped == 15 && lines == 4);
    for (size_t i = 0; i < LEN(few_shot); i++)
        CHECK(score_task(few_shot[i])->plain && score_task(few_shot[i])->first_line == (i < 4));
}

static bool write_inputs(void)
{
    struct text rows = { 0 };
    bool good;

    for (int i = 0; i < 7; i++)
        text_add(&rows, "{\"input\": \"man %d\", \"context\": \"the woman and it yes no %d%d%d%d\", "
                 "\"answers\": [\"the man\", \"it\"], "
                 "\"all_classes\": null, \"length\": %d}\n", i, i, i + 1, i + 2, i + 3, 3000 * i);
    good = scratch_write(scratch("hotpotqa.jsonl"), rows.at) && scratch_write(scratch("samsum.jsonl"), rows.at) &&
           scratch_write(scratch("dataset2prompt.json"), "{\"hotpotqa\": \"C {context}\\nQ {input}\\nA\", "
                                                         "\"samsum\": \"{context}\\n{input}\"}") &&
           scratch_write(scratch("dataset2maxlen.json"), "{\"hotpotqa\": 8, \"samsum\": 5}") &&
           scratch_write(scratch("config.json"), "{}");
    text_free(&rows);
    return good;
}

static int answer(struct opened *m, const char *out, int64_t batch, int64_t context, const char *chat)
{
    const char *data[] = { scratch("hotpotqa.jsonl"), scratch("samsum.jsonl") };
    struct results res = { { 0 }, { 0 } };
    struct task_run r = { .task = task_find("longbench"), .m = m, .results = &res, .data = data, .files = 2,
                          .config = scratch_root, .predictions = out, .batch = batch, .context = context, .chat = chat,
                          .prompts = scratch("prompts.jsonl") };
    int status = r.task->run(&r);

    if (!status)
        CHECK(strstr(res.list.at, "\"task\": \"longbench\", \"metric\": \"mean of tasks\""));
    if (!status && context)
        CHECK(strstr(res.list.at, "\"n\": 7, \"truncated\": 7, \"skipped\": 0}"));
    results_free(&res);
    return status;
}

static bool files_equal(const char *a, const char *b)
{
    size_t n = 0, m = 0;
    char *x = file_read(a, &n), *y = file_read(b, &m);
    bool same = x && y && n == m && !memcmp(x, y, n);

    free(x);
    free(y);
    return same;
}

/* Two runs are equal, one and three side by side are, and a torn file is continued to the same. */
static void check_answers(struct opened *m)
{
    char one[600], three[600], path[700], copy[700];
    struct stat st;
    char *text;
    size_t n = 0;

    str_format(one, sizeof one, "%s/one", scratch_root);
    str_format(three, sizeof three, "%s/three", scratch_root);
    CHECK(write_inputs());
    CHECK(!answer(m, one, 1, 12, NULL) && !answer(m, three, 3, 12, NULL));
    str_format(path, sizeof path, "%s/hotpotqa.jsonl", one);
    str_format(copy, sizeof copy, "%s/hotpotqa.jsonl", three);
    CHECK(files_equal(path, copy));
    CHECK(!stat(copy, &st) && !truncate(copy, st.st_size / 2));
    CHECK(!answer(m, three, 2, 12, NULL));
    CHECK(files_equal(path, copy));
    text = file_read(path, &n);
    CHECK(text && !strncmp(text, "{\"pred\": \"", 10) &&
          strstr(text, "\", \"answers\": [\"the man\", \"it\"], \"all_classes\": null, \"length\": 18000}\n"));
    free(text);
    str_format(path, sizeof path, "%s/result.json", one);
    text = file_read(path, &n);
    CHECK(text && strstr(text, "\"hotpotqa\": ") && strstr(text, "\"samsum\": "));
    free(text);
    scratch_listen();
    CHECK(answer(m, one, 1, 0, NULL) < 0 && answer(m, one, 1, 12, "<{prompt}>") < 0);
    CHECK(scratch_heard("other settings", "", ""));
}

/* The prompts were written as they were given: wrapped for one, plain for the other, hashes true. */
static void check_prompts(struct opened *m)
{
    struct lines *l;
    const char *line, *prompt, *hash, *task;
    char dir[600], real[65];
    size_t n;
    int rows = 0;

    str_format(dir, sizeof dir, "%s/chat", scratch_root);
    CHECK(!answer(m, dir, 4, 12, "<{prompt}>"));           /* cut first, so that nothing of the wrapping goes */
    l = lines_open(scratch("prompts.jsonl"));
    while (l && lines_next(l, &line, &n) > 0) {
        struct json *j = lines_json(l, line, n);

        CHECK(json_string(j, "prompt", &prompt) > 0 && json_string(j, "sha256", &hash) > 0);
        CHECK(json_string(j, "task", &task) > 0);
        sha256_hex(prompt, strlen(prompt), real);
        CHECK(!strcmp(real, hash) && (prompt[0] == '<') == !strcmp(task, "hotpotqa") && strchr(prompt, '\n'));
        CHECK((prompt[strlen(prompt) - 1] == '>') == !strcmp(task, "hotpotqa"));
        json_free(j);
        rows++;
    }
    CHECK(rows == 14);
    if (l)
        lines_close(l);
}

static int32_t newline_of(const struct opened *m)
{
    struct bpe_ids ids = { 0 };
    int32_t id = bpe_encode(m->encoder, &ids, "\n", 1, 0) == 1 ? ids.at[0] : -1;

    bpe_ids_free(&ids);
    return id;
}

/* The token that the model would answer the text with first becomes the newline, and likely everywhere: their
 * rows change places. */
static bool begin_with_newline(struct opened *m, const char *text)
{
    struct param *p = params_find(&m->model.params, "model.embeddings.weight");
    int64_t width = m->model.cfg.width;
    float *w = p ? mem_new((size_t)tensor_count(p->value), sizeof *w) : NULL;
    struct greedy how = { .most = 1 };
    struct bpe_ids prompt = { 0 }, first = { 0 };
    struct session s;
    bool good = w && bpe_encode(m->encoder, &prompt, text, strlen(text), 0) > 0 && !session_open(&s, &m->model, 1);

    if (good) {
        greedy(&s, m->bpe, &prompt, 1, &how, &first);
        session_close(&s);
        param_get(&m->dev, &p->value, w);
        for (int64_t i = 0; i < width; i++) {
            float x = w[first.at[0] * width + i], *line = &w[newline_of(m) * width + i];
            w[first.at[0] * width + i] = *line;
            *line = 4 * x;
        }
        param_put(&m->dev, &p->value, w);
    }
    free(w);
    bpe_ids_free(&prompt);
    bpe_ids_free(&first);
    return good;
}

/* A model that begins with a newline: other tasks answer so; samsum begins with something else and ends at one. */
static void check_samsum(void)
{
    const char *text = "the woman and it yes no 0123 man 0", *pred[2];
    struct json *row[2];
    struct opened m;
    char path[600];

    CHECK(task_model_open(&m, false) && begin_with_newline(&m, text));
    CHECK(scratch_write(scratch("hotpotqa.jsonl"), "{\"input\": \"the woman and it yes no 0123 man 0\", "
                        "\"answers\": [\"it\"], \"all_classes\": null, \"length\": 1}\n"));
    CHECK(scratch_copy(scratch("hotpotqa.jsonl"), scratch("samsum.jsonl")));
    CHECK(scratch_write(scratch("dataset2prompt.json"), "{\"hotpotqa\": \"{input}\", \"samsum\": \"{input}\"}"));
    CHECK(scratch_write(scratch("dataset2maxlen.json"), "{\"hotpotqa\": 40, \"samsum\": 40}"));
    CHECK(!answer(&m, scratch("lines"), 1, 0, NULL));
    for (int i = 0; i < 2; i++) {
        size_t n = 0;
        char *file;
        str_format(path, sizeof path, "%s/%s.jsonl", scratch("lines"), i ? "samsum" : "hotpotqa");
        file = file_read(path, &n);
        CHECK(file && (row[i] = json_parse(file, n, path)) && json_string(row[i], "pred", &pred[i]) > 0);
        free(file);
    }
    CHECK(pred[0][0] == '\n' && strlen(pred[0]) > 3);
    CHECK(pred[1][0] && pred[1][0] != '\n' && strchr(pred[1], '\n') == pred[1] + strlen(pred[1]) - 1);
    json_free(row[0]);
    json_free(row[1]);
    task_model_close(&m);
}

/* LongBench-E: by length; a bucket without rows has no mean. */
static void check_buckets(void)
{
    struct results res = { { 0 }, { 0 } };
    struct task_run r = { .task = task_find("longbench"), .results = &res, .score_only = scratch("e"),
                          .buckets = true };
    char path[600];

    CHECK(!mkdir(r.score_only, 0777));
    str_format(path, sizeof path, "%s/qasper_e.jsonl", r.score_only);
    CHECK(scratch_write(path, "{\"pred\": \"x\", \"answers\": [\"x\"], \"all_classes\": null, \"length\": 3999}\n"
                        "{\"pred\": \"y\", \"answers\": [\"x\"], \"all_classes\": null, \"length\": 4000}\n"
                        "{\"pred\": \"x\", \"answers\": [\"y\", \"x\"], \"all_classes\": null, \"length\": 7999}\n"));
    CHECK(!r.task->run(&r));
    CHECK(strstr(res.list.at, "\"part\": \"0-4k\", \"value\": 1, \"percent\": 100, \"scale\": \"0-1\""));
    CHECK(strstr(res.list.at, "\"part\": \"4-8k\", \"value\": 0.5,"));
    CHECK(strstr(res.list.at, "\"part\": \"8k+\", \"value\": null"));
    results_free(&res);
    res = (struct results){ { 0 }, { 0 } };                /* 2/3 and 0: the mean is of what is not rounded */
    str_format(path, sizeof path, "%s/hotpotqa.jsonl", r.score_only);
    CHECK(scratch_write(path, "{\"pred\": \"x\", \"answers\": [\"y\"], \"all_classes\": null, \"length\": 9}\n"));
    r.buckets = false;
    CHECK(!r.task->run(&r));
    CHECK(strstr(res.list.at, "\"mean of tasks\", \"value\": 0.3333333333, \"percent\": 33.33333333, "
                              "\"scale\": \"0-1\""));
    results_free(&res);
}

/* The official prompts of all rows there are, by the hash of what Python's format made of them, a NUL after each. */
static void check_official(const char *root)
{
    static const struct { const char *task; int rows; const char *hash; } known[] = {
        { "narrativeqa", 6, "9e55fd3b09817bbd5cd0757e636e2981" },
        { "qasper", 9, "1eba3015f246909645f59f555d70a5ea" },
        { "multifieldqa_en", 7, "d75ae2c320ab2b2117bd18e5b6085afc" },
        { "multifieldqa_zh", 15, "ed55ec11a25937dd461aab6226f57017" },
        { "hotpotqa", 13, "ac19aaf38ad32ea20ef9fd441859cda2" },
        { "2wikimqa", 13, "6e96be7c515851c50be67ca310214f43" },
        { "musique", 7, "7ab0fe227d0ab93048e7f58f8b318c1a" },
        { "dureader", 6, "8bc3486e47ce4dfc0d9eaa968264406d" },
        { "gov_report", 12, "756f2b4fca47995697b2cb9eeb6c6985" },
        { "qmsum", 6, "200a0d8ab7d104a2d7a63c62015143c8" },
        { "multi_news", 11, "0e1775a5f05eaa12599600c37e4dfa49" },
        { "vcsum", 6, "9a63be28120e73b9972b628c010c717e" },
        { "trec", 8, "fbd3a328808daf0b222ee3747cc7b695" },
        { "triviaqa", 12, "c62476b3401b4b93a86faea802168d9a" },
        { "samsum", 15, "ec5e3530aa258c5b68975949660a52fd" },
        { "lsht", 8, "16ba3836bc7ca2c18101ab2b21f6f258" },
        { "passage_count", 4, "fc119c2ca581f412061d281c4d46c9d6" },
        { "passage_retrieval_en", 15, "bd802724d0405d651ce925e48a26d4f1" },
        { "passage_retrieval_zh", 15, "c1884b6a7eb37b33374140b189389628" },
        { "lcc", 26, "a397889b7669bdfddbfd4b2fe0854bea" },
        { "repobench-p", 23, "9716aca3a6b3903863db47f9ea50546c" }
    };
    char path[4096], hash[65];
    const char *pattern, *line;
    struct json *patterns, *row;
    char *text;
    size_t n = 0;

    str_format(path, sizeof path, "%s/data/longbench/config/dataset2prompt.json", root);
    if (access(path, R_OK)) {
        printf("no %s: official prompts are not checked\n", path);
        return;
    }
    text = file_read(path, &n);
    patterns = json_parse(text, n, path);
    for (size_t i = 0; i < LEN(known); i++) {
        struct lines *l;
        struct sha256 sum;
        int rows = 0;

        sha256_init(&sum);
        str_format(path, sizeof path, "%s/data/longbench/data_mini/%s.jsonl.zst", root, known[i].task);
        CHECK((l = lines_open(path)) && json_string(patterns, known[i].task, &pattern) > 0);
        for (; l && lines_next(l, &line, &n) > 0 && (row = lines_json(l, line, n)); rows++) {
            struct text prompt = { 0 };
            CHECK(!prompt_fill(&prompt, pattern, row));
            sha256_add(&sum, prompt.at, prompt.n + 1);
            text_free(&prompt);
            json_free(row);
        }
        sha256_end_hex(&sum, hash);
        CHECK(rows == known[i].rows && !strncmp(hash, known[i].hash, 32));
        if (l)
            lines_close(l);
    }
    json_free(patterns);
    free(text);
}

int main(void)
{
    struct opened m;

    scratch_open();
    CHECK(task_model_open(&m, false));
    check_filling();
    check_cutting(&m);
    check_wrapping();
    check_answers(&m);
    check_prompts(&m);
    check_buckets();
    check_samsum();
    if (test_reference())
        check_official(test_reference());
    else
        printf("PALIMPSA_REFERENCE is not set: official prompts are not checked\n");
    task_model_close(&m);
    scratch_close();
    return test_done("longbench");
}
