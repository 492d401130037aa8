/* test_niah.c - needles: where they stand, how long prompts are, that they never change; and BABILong's scores. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "score_file.h"
#include "task_babi.h"
#include "task_model.h"
#include "task_niah.h"
#include "task_recall.h"
#include "task_text.h"
#include "scratch.h"
#include <unistd.h>

static int64_t occurrences(const char *in, const char *what)
{
    int64_t n = 0;

    for (const char *p = in; (p = strstr(p, what)); p++)
        n++;
    return n;
}

static const char prose[] =
    "It was late.  The ship\nlay at anchor! Was anybody there? \"Nobody,\" he said. The lamp went out, and then the "
    "wind rose. Mr. Grey slept.";

/* Every form, length and depth: the budget is used but for a unit, the needle stands once and where it should. */
static void check_prompts(struct opened *m)
{
    static const double depths[] = { 0, 30, 100 };
    static const int64_t lengths[] = { 1500, 4096 };
    struct task task = { .name = "niah" };
    struct task_run r = { .m = m, .task = &task };
    struct wording w;

    CHECK(!wording_open(&w, NULL, NULL));
    wording_sentences(&w, prose, strlen(prose));
    CHECK(w.sentences == 7 && !strcmp(w.sentence[1], "The ship lay at anchor!"));
    CHECK(!strcmp(w.sentence[3], "\"Nobody,\" he said."));
    for (const struct niah_form *f = NULL; (f = niah_form_next(f));)
        for (size_t l = 0; l < LEN(lengths); l++)
            for (size_t d = 0; d < LEN(depths); d++) {
                struct niah_sample s = { .form = f, .length = lengths[l], .number = (int64_t)d, .depth = depths[d],
                                         .seed = 7 };
                struct text a = { 0 }, b = { 0 };
                char key[NEEDLE_NAME], value[NEEDLE_NAME];
                int64_t tokens;
                const char *end, *at;
                double where;

                CHECK(!niah_prompt(&r, &w, &s, 128, &a) && !niah_prompt(&r, &w, &s, 128, &b));
                CHECK(a.n == b.n && !memcmp(a.at, b.at, a.n));
                tokens = recall_tokens(&r, &a);
                CHECK(tokens <= s.length - 128 && tokens > s.length - 128 - 150);
                niah_needle(&w, &s, 0, key, value);
                CHECK(occurrences(a.at, value) == 1);
                CHECK(occurrences(a.at, key) == f->values + 2);      /* beside the values, twice in the question */
                at = strstr(a.at, value);
                end = strstr(a.at, "Which secret");
                where = 100 * (double)(at - a.at) / (double)(end - a.at);
                CHECK_NEAR(where, s.depth, s.length > 2000 ? 7 : 17);
                for (int64_t k = 1; k < f->needles; k++) {
                    niah_needle(&w, &s, k, key, value);
                    CHECK(occurrences(a.at, value) == 1);
                    CHECK(occurrences(a.at, key) == (f->values > 1 ? 6 : k < f->queries ? 3 : 1));
                }
                CHECK(f->needles == (f->haystack == PROSE && strncmp(f->name, "single", 6) ? 4 : 1));
                text_free(&a);
                text_free(&b);
            }
    wording_close(&w);
}

/* Values that must never change: they are what results are compared by. */
static void check_values(void)
{
    struct niah_sample s = { .form = niah_form("single_1"), .length = 4096, .number = 3, .depth = 50, .seed = 1 };
    char key[NEEDLE_NAME], value[NEEDLE_NAME];
    struct wording w;

    CHECK(!wording_open(&w, NULL, NULL) && w.adjectives == 64 && w.nouns == 64);
    for (int i = 0; i < 64; i++)
        for (int j = 0; j < i; j++)
            CHECK(strcmp(w.adjective[i], w.adjective[j]) && strcmp(w.noun[i], w.noun[j]));
    niah_needle(&w, &s, 0, key, value);
    CHECK(!strcmp(key, "fresh-hat") && !strcmp(value, "2013265"));
    s.depth = 0;
    niah_needle(&w, &s, 0, key, value);
    CHECK(!strcmp(value, "2013265"));                         /* the depth has no say */
    s.form = niah_form("multikey_3");
    niah_needle(&w, &s, 9, key, value);
    CHECK(!strcmp(key, "9752c131-9afa-4504-af38-542cdc2adce9"));
    CHECK(!strcmp(value, "73e0be8c-3805-4dbe-a67f-1427148c8462"));
    s.form = niah_form("multiquery");
    for (int k = 0; k < 4; k++) {
        char other[4][NEEDLE_NAME];
        niah_needle(&w, &s, k, other[k], value);
        for (int i = 0; i < k; i++)
            CHECK(strcmp(other[i], other[k]));
    }
    s.form = niah_form("multikey_3");
    niah_needle(&w, &s, 9, key, value);
    CHECK(strlen(value) == 36 && value[14] == '4' && strchr("89ab", value[19]));
    wording_close(&w);
}

static void check_wording(struct opened *m)
{
    struct task task = { .name = "niah" };
    struct task_run r = { .m = m, .task = &task };
    struct niah_sample s = { .form = niah_form("single_1"), .length = 400, .depth = 100, .seed = 1 };
    struct text out = { 0 };
    struct wording w;
    const char *path = scratch("wording.json"), *at;

    CHECK(scratch_write(path, "{\"prompt\": \"{{A}} {type_needle_v}:\\n{context}\\nfor {query}?\", "
        "\"needle\": \"{type_needle_v} {key}={value}\", \"noise\": \"hum\", \"nouns\": [\"cat\"], "
        "\"adjectives\": [\"big\"]}"));
    CHECK(!wording_open(&w, path, NULL) && !niah_prompt(&r, &w, &s, 100, &out));
    CHECK(!strncmp(out.at, "{A} number:\nhum\nhum\n", 20));
    CHECK((at = strstr(out.at, "hum\nnumbers big-cat=")) && strstr(at, "\nfor big-cat?"));
    s.form = niah_form("multiquery");
    scratch_listen();
    CHECK(niah_prompt(&r, &w, &s, 100, &out) < 0 &&
          scratch_heard("multiquery needs a --wording with 'prompts'", "", ""));
    wording_close(&w);
    CHECK(scratch_write(path, "{\"prompts\": \"all {type_needle_v}: {context} of {query}?\"}"));
    CHECK(!wording_open(&w, path, NULL));
    wording_sentences(&w, prose, strlen(prose));
    s.length = 600;
    CHECK(!niah_prompt(&r, &w, &s, 100, &out) && !strncmp(out.at, "all numbers: ", 13));
    CHECK((at = strstr(out.at, " of ")) && occurrences(at, ", and ") == 1);
    wording_close(&w);
    s.form = niah_form("single_1");
    s.length = 110;
    CHECK(!wording_open(&w, NULL, NULL));
    scratch_listen();
    CHECK(niah_prompt(&r, &w, &s, 100, &out) < 0);
    CHECK(scratch_heard("niah: a prompt without other text has ", " tokens; its length leaves 10 beside", ""));
    wording_close(&w);
    scratch_listen();
    CHECK(scratch_write(path, "{\"needle\": \"{key}\"}"));
    CHECK(wording_open(&w, path, NULL) < 0 && scratch_heard("needle: expected {key} and {value} in it", "", ""));
    wording_close(&w);
    text_free(&out);
}

static void check_matching(void)
{
    const char *two[] = { "1234567", "\xC3\x84pfel" };

    CHECK_NEAR(match_all(" is 1234567.", two, 1), 1, 0);
    CHECK_NEAR(match_all(" is 123456.", two, 1), 0, 0);
    CHECK_NEAR(match_all("1234567 and \xC3\xA4PFEL", two, 2), 1, 0);
    CHECK_NEAR(match_all("1234567 and apfel", two, 2), 0.5, 0);
    CHECK(recall_length(1) == 1 && recall_length(4096) == 4096 && recall_length(4097) == 8192);
}

static void check_babi(void)
{
    struct babi b = { 0 };
    const char *path = scratch("qa1_test.txt");
    char table[] = "a,\"b, \"\"c\"\"\nd\",\r\n\"\",x\nlast,1,2", bad[] = "a,\"b", *at = table, *field[3];

    CHECK(scratch_write(path, "1 John went out.\n2 Mary came.\n3 Where is John? \tgarden\t1\n"
        "4 John slept.\n5 Where is Mary? |hall|2\n1 Sandra sat.\n2 Where is Sandra? \tkitchen\t1\n"));
    CHECK(!babi_read(&b, path, 0) && b.n == 3);
    CHECK(!strcmp(b.at[0].fact, "John went out.\nMary came.\n") && !strcmp(b.at[0].question, "Where is John?"));
    CHECK(!strcmp(b.at[0].target, "garden") && !strcmp(b.at[1].target, "hall") && !strcmp(b.at[0].task, "qa1"));
    CHECK(!strcmp(b.at[1].fact, "John went out.\nMary came.\nJohn slept.\n"));
    CHECK(!strcmp(b.at[2].fact, "Sandra sat.\n"));
    babi_free(&b);
    CHECK(babi_task("x/qa10_y.txt") && !strcmp(babi_task("x/qa10_y.txt"), "qa10") && !babi_task("qa1/text"));
    CHECK(babi_right("qa1", "Garden", "In the GARDEN. Or the office.", "Where is John?"));
    CHECK(!babi_right("qa1", "garden", "in the garden or the office", "Where is John?"));
    CHECK(babi_right("qa4", "garden", "garden is north of the office", "What is north of the office?"));
    CHECK(!babi_right("qa6", "yes", "nothing. yes", "Is John in the hall?"));
    CHECK(babi_right("qa8", "apple,milk", "apple,milk", "What is carried?"));
    CHECK(babi_right("qa1", "garden", "the garden<example> office", "?"));
    CHECK(csv_next(&at, field, 3) == 3 && !strcmp(field[1], "b, \"c\"\nd") && !*field[2]);
    CHECK(csv_next(&at, field, 3) == 2 && !*field[0] && !strcmp(field[1], "x"));
    CHECK(csv_next(&at, field, 2) == 3 && !strcmp(field[1], "1") && !csv_next(&at, field, 3));
    at = bad;
    CHECK(csv_next(&at, field, 3) < 0);
}

/* Every row of two published tables, as BABILong's own code scores it. */
static bool check_golden(void)
{
    static const char *const tasks[] = { "qa1", "qa2" };
    char path[4096], *golden;
    const char *root = test_reference();
    size_t n;
    struct json *j;

    if (!root || !str_format(path, sizeof path, "%s/data/babilong/evals/golden_scores.json", root))
        return false;
    if (access(path, R_OK) || !(golden = file_read(path, &n)))
        return false;
    CHECK((j = json_parse(golden, n, path)) != NULL);
    for (size_t i = 0; i < LEN(tasks); i++) {
        struct json *want = json_first(json_at(json_at(j, tasks[i]), "per_row"));
        char *text, *at, *field[4];
        int64_t rows = 0;
        double x;

        str_format(path, sizeof path, "%s/data/babilong/evals/Phi-3-mini-128k-instruct_%s_4k.csv", root, tasks[i]);
        CHECK((text = at = file_read(path, &n)) && csv_next(&at, field, 4) == 4 && !strcmp(field[2], "output"));
        for (; at && csv_next(&at, field, 4) == 4; rows++, want = json_next(want))
            CHECK(want && json_number(want, &x) && babi_right(tasks[i], field[1], field[2], field[3]) == (x != 0));
        CHECK(rows > 990 && !want && !*at);
        free(text);
    }
    json_free(j);
    free(golden);
    return true;
}

/* Every uuid becomes U. */
static char *masked(char *text)
{
    char *out = text;

    for (const char *p = text; *p;)
        if (strspn(p, "0123456789abcdef") == 8 && strspn(p, "0123456789abcdef-") == 36)
            *out++ = 'U', p += 36;
        else
            *out++ = *p++;
    *out = 0;
    return text;
}

static char *line_of(const char *text, size_t n)
{
    return memcpy(mem_new(n + 1, 1), text, n);
}

/* With the wording of RULER's own rows, what is generated is what they are but for the uuids: the same lines. */
static bool check_ruler(struct opened *m)
{
    struct task task = { .name = "niah" };
    struct task_run r = { .m = m, .task = &task };
    struct niah_sample s = { .form = niah_form("multikey_3"), .length = 9000, .depth = 50, .seed = 1 };
    const char *root = test_reference(), *line, *input = "", *end;
    char path[4096], *first, *needle, *last;
    struct text json = { 0 }, out = { 0 };
    struct lines *l;
    struct json *row = NULL;
    struct wording w;
    size_t n;

    if (!root || !str_format(path, sizeof path, "%s/data/ruler/ruler_4096_niah_multikey_3_first40.jsonl", root) ||
        access(path, R_OK))
        return false;
    l = lines_open(path);
    CHECK(l && lines_next(l, &line, &n) > 0 && (row = lines_json(l, line, n)) && json_string(row, "input", &input) > 0);
    end = strchr(input, '\n');
    first = masked(line_of(input, (size_t)(end - input)));
    needle = masked(line_of(end + 1, strcspn(end + 1, "\n")));
    last = masked(line_of(strrchr(input, '\n') + 1, strlen(strrchr(input, '\n') + 1)));
    text_add(&json, "{\"prompt\": \"%s", (first = text_replaced(first, "uuid", "{type_needle_v}")));
    text_add(&json, "\\n{context}\\n%s\", ",
             (last = text_replaced(text_replaced(last, "U", "{query}"), "uuid", "{type_needle_v}")));
    text_add(&json, "\"needle\": \"%s\"}",
             (needle = text_replaced(text_replaced(text_replaced(needle, "U is", "{key} is"), "U", "{value}"), "uuids",
                                     "{type_needle_v}")));
    CHECK(scratch_write(scratch("ruler.json"), json.at) && !wording_open(&w, scratch("ruler.json"), NULL));
    needle = text_replaced(text_replaced(needle, "{key}", "U"), "{value}", "U");
    needle = text_replaced(needle, "{type_needle_v}", "uuids");
    CHECK(!niah_prompt(&r, &w, &s, 128, &out));
    masked(out.at);
    input = masked(line_of(input, strlen(input)));
    CHECK(!strncmp(out.at, input, strcspn(input, "\n")) && !strcmp(strrchr(out.at, '\n'), strrchr(input, '\n')));
    for (const char *at = strchr(out.at, '\n') + 1; at < strrchr(out.at, '\n'); at = strchr(at, '\n') + 1)
        CHECK(!strncmp(at, needle, strlen(needle)) && at[strlen(needle)] == '\n');
    free(first);
    free(needle);
    free(last);
    free((char *)input);
    json_free(row);
    lines_close(l);
    text_free(&json);
    text_free(&out);
    wording_close(&w);
    return true;
}

int main(void)
{
    bool all;

    struct opened m;

    scratch_open();
    CHECK(task_model_open(&m, false));
    check_prompts(&m);
    check_values();
    check_wording(&m);
    check_matching();
    check_babi();
    all = check_ruler(&m);
    task_model_close(&m);
    scratch_close();
    if (!check_golden() || !all)
        return test_skip("niah", "RULER's rows or BABILong's scored tables are not here; the rest was tested");
    return test_done("niah");
}
