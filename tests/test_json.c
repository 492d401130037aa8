/* test_json.c - what json.h reads, refuses and writes. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include "test.h"
#include <unistd.h>

static struct json *parse(const char *s)
{
    return json_parse(s, strlen(s), "test.json");
}

static bool refused(const char *s)
{
    struct json *j = parse(s);

    json_free(j);
    return !j;
}

static void test_values(void)
{
    struct json *j = parse("{\"a\": 3, \"b\": [1, NaN, -Infinity, 2.5, Infinity, 7], \"t\": true,\n"
                           " \"s\": \"NaN, \\\"Infinity\\\" \\u00e9 [\", \"z\": null, "
                           "\"x\": 1e300, \"big\": 9007199254740993e3}");
    int64_t i = -7;
    double x = 0;
    bool t = false;
    const char *s = NULL;

    CHECK(j && json_is_object(j) && json_count(j) == 7);
    CHECK(json_int(j, "a", &i) == 1 && i == 3);
    CHECK(json_int(j, "none", &i) == 0 && i == 3);
    CHECK(json_int(j, "z", &i) == 0 && !json_at(j, "z"));
    CHECK(json_int(j, "s", &i) == -1 && json_int(j, "x", &i) == -1 && json_int(j, "big", &i) == -1);
    CHECK(json_bool(j, "t", &t) == 1 && t && json_bool(j, "a", &t) == -1);
    CHECK(json_string(j, "s", &s) == 1 && !strcmp(s, "NaN, \"Infinity\" \xC3\xA9 ["));
    CHECK(json_double(j, "x", &x) == 1 && x == 1e300 && json_double(j, "t", &x) == -1);

    struct json *e = json_first(json_at(j, "b"));
    CHECK(json_is_array(json_at(j, "b")) && json_count(json_at(j, "b")) == 6);
    CHECK(json_number(e, &x) && x == 1);
    CHECK(json_number(e = json_next(e), &x) && isnan(x));
    CHECK(json_number(e = json_next(e), &x) && isinf(x) && x < 0);
    CHECK(json_number(e = json_next(e), &x) && x == 2.5);
    CHECK(json_number(e = json_next(e), &x) && isinf(x) && x > 0);
    CHECK(json_number(e = json_next(e), &x) && x == 7 && !json_next(e) && !json_key(e));
    json_free(j);

    j = parse("[{\"__float__\": \"NaN\"}, {\"__float__\": \"-Infinity\"}, {\"__float__\": \"1\"}, {\"__float__\": 1}, "
              "{\"__float__\": \"NaN\", \"a\": 1}, {\"float\": \"NaN\"}, {}, []]");
    CHECK(json_number(e = json_first(j), &x) && isnan(x));
    CHECK(json_number(e = json_next(e), &x) && isinf(x) && x < 0);
    while ((e = json_next(e)))
        CHECK(!json_number(e, &x));
    json_free(j);
    j = parse("\"a\\u0000b\"");
    CHECK(j && !strcmp(json_text(j), "a\xC0\x80" "b"));
    json_free(j);
    j = parse(" 12 ");
    CHECK(j && json_number(j, &x) && x == 12 && json_count(j) == -1);
    json_free(j);
}

static void test_refusals(void)
{
    char deep[600];

    CHECK(refused("") && refused("{") && refused("{\"a\": }") && refused("[1,]") && refused("[1] 2"));
    CHECK(refused("{\"a\": 1, \"b\": 2, \"a\": 3}") && refused("[{\"k\": {\"x\": 1, \"x\": 1}}]"));
    CHECK(refused("[nan]") && refused("[Infinityx]") && refused("[\"open") && refused("<html>"));
    CHECK(refused("[\"a\\"));
    CHECK(!json_parse("[1\0]", 4, "nul.json"));
    memset(deep, '[', 300);
    memset(deep + 300, ']', 299);
    deep[599] = 0;
    CHECK(refused(deep));
    memset(deep, '[', 100);
    memset(deep + 100, ']', 100);
    deep[200] = 0;
    CHECK(!refused(deep));
    CHECK(!refused("{\"a\": 1, \"A\": 2}"));
}

static void test_text(void)
{
    static const double reals[] = { 0, -0.0, 1, 0.1, 1e-5, 1.0 / 3, 1e22,
                                    123456789.125, 5e-324, INFINITY, -INFINITY, NAN };
    static const char odd[] = "q\"b\\n\n\t\x01\xC3\xA9 end";
    struct text t = { 0 };
    struct json *j, *e;
    double x;

    text_add(&t, "[");
    for (size_t i = 0; i < LEN(reals); i++) {
        text_real(&t, reals[i]);
        text_add(&t, ", ");
    }
    text_string(&t, odd, sizeof odd - 1);
    text_add(&t, "]");
    CHECK(strlen(t.at) == t.n);
    CHECK(!strncmp(t.at, "[0.0, -0.0, 1.0, 0.1, 1e-05, ", 29));
    j = json_parse(t.at, t.n, "text");
    e = json_first(j);
    for (size_t i = 0; i < LEN(reals) && e; i++, e = json_next(e))
        CHECK(json_number(e, &x) && (x == reals[i] || (isnan(x) && isnan(reals[i]))));
    CHECK(e && json_text(e) && !strcmp(json_text(e), odd));
    json_free(j);
    text_free(&t);
    CHECK(!t.at && !t.n);
}

static void test_rewriting(void)
{
    static const char in[] = "{\"a\": [1, [], {}, [2.5, -Infinity]], "
                             "\"b\": {\"c\": null, \"d\": \"\\n\"}, \"e\": true}";
    struct json *j = parse(in);
    struct text t = { 0 };

    text_json(&t, j);
    CHECK(!strcmp(t.at, in));
    t.n = 0;
    text_json(&t, json_at(j, "b"));
    CHECK(!strcmp(t.at, "{\"c\": null, \"d\": \"\\n\"}"));
    text_free(&t);
    json_free(j);
}

static void test_files(void)
{
    char dir[] = "/tmp/test_json_XXXXXX", path[64], aside[64];
    size_t n = 0;
    char *back;

    CHECK(mkdtemp(dir));
    str_format(path, sizeof path, "%s/a.json", dir);
    str_format(aside, sizeof aside, "%s/a.json.tmp", dir);
    CHECK(!file_write(path, "first", 5) && !file_write(path, "second\0x", 8));
    back = file_read(path, &n);
    CHECK(back && n == 8 && !memcmp(back, "second\0x", 9));
    free(back);
    CHECK(access(aside, F_OK));
    CHECK(!file_read(aside, &n) && !file_read(dir, &n));
    CHECK(file_write("/nonexistent/dir/x", "a", 1) == -1);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    test_values();
    test_refusals();
    test_text();
    test_rewriting();
    test_files();
    return test_done("json");
}
