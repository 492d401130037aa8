/* json.c - any bytes, read as JSON, walked, and written again. */
#include "json.h"

static void walk(const struct json *j, struct text *t)
{
    int64_t whole;
    double real;
    bool yes;
    const char *s;

    for (const struct json *i = json_first(j); i; i = json_next(i)) {
        const char *key = json_key(i);

        if (key) {
            json_int(j, key, &whole);
            json_double(j, key, &real);
            json_bool(j, key, &yes);
            json_string(j, key, &s);
            text_string(t, key, strlen(key));
        }
        if (json_number(i, &real))
            text_real(t, real);
        if (json_text(i))
            text_string(t, json_text(i), strlen(json_text(i)));
        walk(i, t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct json *j = json_parse((const char *)data, n, "fuzz");
    struct text t = { 0 };

    if (j)
        walk(j, &t);
    json_free(j);
    text_free(&t);
    return 0;
}
