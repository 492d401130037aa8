/* test_longbench.c - prompts filled, cut and wrapped; answers written, continued, refused; the table. */
#define _POSIX_C_SOURCE 200809L
#include "scratch.h"
#include "score_file.h"
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
    struct text t = { 0 };
    int plain = 0, wrapped = 0;

    text_add(&t, "p{prompt}");
    CHECK(!prompt_wrap(&t, "[INST]{prompt}[/INST]") && !strcmp(t.at, "[INST]p{prompt}[/INST]"));
    scratch_listen();
    CHECK(prompt_wrap(&t, "[INST]") < 0);
    CHECK(scratch_heard("expected {prompt}", "", ""));
    text_free(&t);
    for (const struct score_task *s = NULL; (s = score_task_next(s));)
        s->plain ? plain++ : wrapped++;
    CHECK(plain == 6 && wrapped == 15 && score_task("samsum")->plain && score_task("lcc")->plain);
    CHECK(score_task("lsht")->first_line && score_task("trec")->first_line && !score_task("lcc")->first_line);
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
    CHECK(!answer(m, dir, 4, 0, "<{prompt}>"));
    l = lines_open(scratch("prompts.jsonl"));
    while (l && lines_next(l, &line, &n) > 0) {
        struct json *j = lines_json(l, line, n);

        CHECK(json_string(j, "prompt", &prompt) > 0 && json_string(j, "sha256", &hash) > 0);
        CHECK(json_string(j, "task", &task) > 0);
        sha256_hex(prompt, strlen(prompt), real);
        CHECK(!strcmp(real, hash) && (prompt[0] == '<') == !strcmp(task, "hotpotqa") && strchr(prompt, '\n'));
        json_free(j);
        rows++;
    }
    CHECK(rows == 14);
    if (l)
        lines_close(l);
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
}

/* The official prompt of the first row, by the hash of what Python's format made of it. */
static void check_official(const char *root)
{
    static const char *const known[][2] = {
        { "hotpotqa", "347ced9b78bc9e1249d91dfd0f133ecebbdfa0e660e7552a4052ed730457867f" },
        { "vcsum", "0b311dd88a75cbcd3d8088af9e85ffcef2498e56bdd51c8ab885235d01003952" },
        { "repobench-p", "8cff4feb4eeaaf1891e862d3fb65a050bfac59658fd2466e5cffa716a26a6bff" }
    };
    char path[4096], hash[65];
    const char *pattern, *line;
    struct json *patterns;
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
        struct text prompt = { 0 };
        struct lines *l;
        struct json *row = NULL;

        str_format(path, sizeof path, "%s/data/longbench/data_mini/%s.jsonl.zst", root, known[i][0]);
        l = lines_open(path);
        CHECK(l && lines_next(l, &line, &n) > 0 && (row = lines_json(l, line, n)));
        CHECK(json_string(patterns, known[i][0], &pattern) > 0 && !prompt_fill(&prompt, pattern, row));
        sha256_hex(prompt.at, prompt.n, hash);
        CHECK(!strcmp(hash, known[i][1]));
        text_free(&prompt);
        json_free(row);
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
    if (test_reference())
        check_official(test_reference());
    else
        printf("PALIMPSA_REFERENCE is not set: official prompts are not checked\n");
    task_model_close(&m);
    scratch_close();
    return test_done("longbench");
}
