/* json.c - cJSON with a guard in front (depth, size, bare Infinity and NaN) and a check behind
 * (duplicate keys), so that what reaches a getter has one meaning. */
#define _POSIX_C_SOURCE 200809L
#include "json.h"
#include <cjson/cJSON.h>
#include <math.h>

enum { JSON_DEPTH = 128 };                    /* cJSON recurses; so deep is no file of ours */
#define JSON_BYTES  ((size_t)1 << 29)
#define JSON_VALUES ((int64_t)1 << 23)        /* about 90 bytes of memory each */
#define JSON_EXACT  9007199254740992.0        /* 2^53: beyond it a double is no count */

/* What the guard found: a copy for cJSON, and which of its numbers were NaN. */
struct guard {
    const char *name, *in;
    size_t   n, at;
    char    *out;
    size_t   used;
    int64_t  numbers, values;
    int64_t *nan;
    size_t   nnan;
    int      depth;
};

static cJSON *node(const struct json *j)
{
    return (cJSON *)j;
}

static struct json *from(const cJSON *c)
{
    return (struct json *)c;
}

static int line_of(const char *text, size_t at)
{
    int line = 1;

    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    return line;
}

/* Every array and object carries the file's name in its number, which cJSON leaves unused there:
 * a getter sees only the object, and its message must name the file. */
static void name_set(cJSON *c, const char *name)
{
    _Static_assert(sizeof(char *) <= sizeof(double), "a pointer fits");
    memcpy(&c->valuedouble, &name, sizeof name);
}

static const char *name_of(const cJSON *c)
{
    const char *name;

    memcpy(&name, &c->valuedouble, sizeof name);
    return name;
}

static bool is_container(const cJSON *c)
{
    return cJSON_IsArray(c) || cJSON_IsObject(c);
}

static void put(struct guard *g, const char *s, size_t n)
{
    memcpy(g->out + g->used, s, n);
    g->used += n;
}

/* Copies a string with its quotes. A C string cannot hold NUL: \u0000 becomes C0 80, which no valid
 * text contains, rather than an end that nobody sees. */
static int guard_string(struct guard *g)
{
    size_t start = g->at++;

    g->out[g->used++] = '"';
    for (; g->at < g->n && g->in[g->at] != '"'; g->at++) {
        const char *p = g->in + g->at;

        if (*p == 0)
            break;
        if (*p == '\\' && g->n - g->at >= 6 && !memcmp(p, "\\u0000", 6)) {
            put(g, "\xC0\x80", 2);
            g->at += 5;
            continue;
        }
        g->out[g->used++] = *p;
        if (*p == '\\' && g->at + 1 < g->n)
            g->out[g->used++] = g->in[++g->at];
    }
    if (g->at == g->n || g->in[g->at] == 0)
        return fail("%s: line %d: string is never closed", g->name, line_of(g->in, start));
    g->out[g->used++] = '"';
    g->at++;
    return 0;
}

/* A bare word or number. Infinity becomes 1e999, which reads back as infinity; NaN the same, with
 * its place among the numbers noted. */
static void guard_word(struct guard *g)
{
    const char *p = g->in + g->at;
    size_t n = 0;

    while (g->at + n < g->n && !memchr(" \t\r\n,:[]{}\"", p[n], 12))      /* NUL too */
        n++;
    if ((n == 8 && !memcmp(p, "Infinity", 8)) || (n == 9 && !memcmp(p, "-Infinity", 9))) {
        put(g, n == 8 ? "1e999" : "-1e999", n == 8 ? 5 : 6);
        g->numbers++;
    } else if (n == 3 && !memcmp(p, "NaN", 3)) {
        if (!(g->nnan & (g->nnan + 1)))                              /* full: sizes are 2^k - 1 */
            g->nan = mem_grow(g->nan, 2 * g->nnan + 1, sizeof *g->nan);
        g->nan[g->nnan++] = g->numbers++;
        put(g, "0", 1);
    } else {
        g->numbers += n > 0 && (p[0] == '-' || (p[0] >= '0' && p[0] <= '9'));
        put(g, p, n);
    }
    g->at += n;
}

static int guard_scan(struct guard *g)
{
    while (g->at < g->n) {
        char c = g->in[g->at];

        if (c == '"') {
            if (guard_string(g))
                return -1;
            continue;
        }
        if (c && !strchr(" \t\r\n,:[]{}", c)) {
            guard_word(g);
            continue;
        }
        if (c == 0)
            return fail("%s: line %d: NUL byte outside a string", g->name, line_of(g->in, g->at));
        g->values += c == ',' || c == '[' || c == '{';
        if ((c == '[' || c == '{') && ++g->depth > JSON_DEPTH)
            return fail("%s: line %d: nested deeper than %d", g->name, line_of(g->in, g->at),
                        JSON_DEPTH);
        if (c == ']' || c == '}')
            g->depth--;
        g->out[g->used++] = c;
        g->at++;
    }
    if (g->values > JSON_VALUES)
        return fail("%s: %lld values; at most %lld are read", g->name, (long long)g->values,
                    (long long)JSON_VALUES);
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Two members of one name: which counts depends on the reader, so neither does. */
static int check_keys(const cJSON *object, const char *name)
{
    size_t n = 0, i = 0;
    int status = 0;

    for (const cJSON *c = object->child; c; c = c->next)
        n++;
    if (n < 2)
        return 0;
    char **key = mem_new(n, sizeof *key);
    for (const cJSON *c = object->child; c; c = c->next)
        key[i++] = c->string;
    qsort(key, n, sizeof *key, by_text);
    for (i = 1; i < n && !status; i++)
        if (!strcmp(key[i - 1], key[i]))
            status = fail("%s: key \"%s\" appears twice in one object", name, key[i]);
    free(key);
    return status;
}

/* In document order: names the containers, restores NaN, refuses duplicate keys. */
static int settle(cJSON *root, const struct guard *g, const char *name)
{
    cJSON *up[JSON_DEPTH + 1], *c = root;
    int depth = 0, status = 0;
    int64_t number = 0;
    size_t nan = 0;

    while (c) {
        if (cJSON_IsNumber(c) && nan < g->nnan && g->nan[nan] == number) {
            c->valuedouble = NAN;
            nan++;
        }
        number += cJSON_IsNumber(c);
        if (is_container(c))
            name_set(c, name);
        if (cJSON_IsObject(c) && check_keys(c, name))
            status = -1;
        if (c->child) {
            up[depth++] = c;
            c = c->child;
            continue;
        }
        while (c && !c->next)
            c = depth ? up[--depth] : NULL;
        if (c)
            c = c->next;
    }
    return status;
}

struct json *json_parse(const char *text, size_t n, const char *name)
{
    struct guard g = { .name = name, .in = text, .n = n };
    const char *end = NULL;
    cJSON *root = NULL;

    if (n > JSON_BYTES) {
        fail("%s: %zu bytes of JSON; at most %zu are read", name, n, JSON_BYTES);
        return NULL;
    }
    g.out = mem_new(n + 1, 1);                         /* every replacement is shorter */
    if (!guard_scan(&g)) {
        g.out[g.used] = 0;
        root = cJSON_ParseWithLengthOpts(g.out, g.used + 1, &end, 1);
        if (!root)
            fail("%s: line %d: not valid JSON", name,
                 end ? line_of(g.out, (size_t)(end - g.out)) : 1);
    }
    if (root) {
        size_t size = strlen(name) + 1;
        char *own = mem_new(size, 1);

        memcpy(own, name, size);
        if (settle(root, &g, own)) {
            cJSON_Delete(root);
            root = NULL;
        }
        if (!root || !is_container(root))
            free(own);
    }
    free(g.nan);
    free(g.out);
    return from(root);
}

void json_free(struct json *root)
{
    char *name = NULL;

    if (!root)
        return;
    if (is_container(node(root)))
        name = (char *)name_of(node(root));
    cJSON_Delete(node(root));
    free(name);
}

struct json *json_at(const struct json *object, const char *key)
{
    cJSON *c = object ? cJSON_GetObjectItemCaseSensitive(node(object), key) : NULL;

    return c && !cJSON_IsNull(c) ? from(c) : NULL;
}

/* What a value looks like in a message. */
static const char *shown(const cJSON *c, char *out, size_t size)
{
    if (cJSON_IsNumber(c))
        snprintf(out, size, "%.17g", c->valuedouble);
    else if (cJSON_IsString(c))
        snprintf(out, size, "\"%.40s\"", c->valuestring);
    else
        snprintf(out, size, "%s", cJSON_IsBool(c) ? cJSON_IsTrue(c) ? "true" : "false" :
                 cJSON_IsArray(c) ? "an array" : "an object");
    return out;
}

static int wrong(const struct json *object, const char *key, const char *expected)
{
    char text[64];

    return fail("%s: %s: expected %s, found %s", name_of(node(object)), key, expected,
                shown(node(json_at(object, key)), text, sizeof text));
}

int json_int(const struct json *object, const char *key, int64_t *out)
{
    const cJSON *c = node(json_at(object, key));

    if (!c)
        return 0;
    if (!cJSON_IsNumber(c) || !(fabs(c->valuedouble) <= JSON_EXACT) ||
        c->valuedouble != floor(c->valuedouble))
        return wrong(object, key, "an integer");
    *out = (int64_t)c->valuedouble;
    return 1;
}

/* Transformers from 5 on writes a number that is not finite as {"__float__": "Infinity"}. */
static bool number_of(const cJSON *c, double *out)
{
    const cJSON *word = cJSON_IsObject(c) && c->child && !c->child->next && !strcmp(c->child->string, "__float__")
                      ? c->child : NULL;

    if (cJSON_IsNumber(c)) {
        *out = c->valuedouble;
        return true;
    }
    if (!cJSON_IsString(word))
        return false;
    if (!strcmp(word->valuestring, "NaN"))
        *out = NAN;
    else if (!strcmp(word->valuestring, "Infinity") || !strcmp(word->valuestring, "-Infinity"))
        *out = word->valuestring[0] == '-' ? -INFINITY : INFINITY;
    else
        return false;
    return true;
}

int json_double(const struct json *object, const char *key, double *out)
{
    const cJSON *c = node(json_at(object, key));

    if (!c)
        return 0;
    return number_of(c, out) ? 1 : wrong(object, key, "a number");
}

int json_bool(const struct json *object, const char *key, bool *out)
{
    const cJSON *c = node(json_at(object, key));

    if (!c)
        return 0;
    if (!cJSON_IsBool(c))
        return wrong(object, key, "true or false");
    *out = cJSON_IsTrue(c);
    return 1;
}

int json_string(const struct json *object, const char *key, const char **out)
{
    const cJSON *c = node(json_at(object, key));

    if (!c)
        return 0;
    if (!cJSON_IsString(c))
        return wrong(object, key, "a string");
    *out = c->valuestring;
    return 1;
}

int64_t json_count(const struct json *j)
{
    int64_t n = 0;

    if (!j || !is_container(node(j)))
        return -1;
    for (const cJSON *c = node(j)->child; c; c = c->next)
        n++;
    return n;
}

struct json *json_first(const struct json *j)
{
    return j ? from(node(j)->child) : NULL;
}

struct json *json_next(const struct json *item)
{
    return from(node(item)->next);
}

const char *json_key(const struct json *item)
{
    return node(item)->string;
}

const char *json_text(const struct json *item)
{
    return item && cJSON_IsString(node(item)) ? node(item)->valuestring : NULL;
}

bool json_number(const struct json *item, double *out)
{
    return item && number_of(node(item), out);
}

bool json_is_object(const struct json *j)
{
    return j && cJSON_IsObject(node(j));
}

bool json_is_array(const struct json *j)
{
    return j && cJSON_IsArray(node(j));
}

static void text_leaf(struct text *t, const cJSON *c)
{
    if (cJSON_IsString(c))
        text_string(t, c->valuestring, strlen(c->valuestring));
    else if (!cJSON_IsNumber(c))
        text_add(t, cJSON_IsNull(c) ? "null" : cJSON_IsTrue(c) ? "true" : "false");
    else if (fabs(c->valuedouble) < JSON_EXACT && c->valuedouble == floor(c->valuedouble))
        text_add(t, "%.0f", c->valuedouble);
    else
        text_real(t, c->valuedouble);
}

void text_json(struct text *t, const struct json *j)
{
    const cJSON *up[JSON_DEPTH + 1], *c = node(j);
    int depth = 0;

    while (c) {
        if (depth && c->string) {
            text_string(t, c->string, strlen(c->string));
            text_add(t, ": ");
        }
        if (is_container(c))
            text_add(t, cJSON_IsArray(c) ? "[" : "{");
        else
            text_leaf(t, c);
        if (c->child) {
            up[depth++] = c;
            c = c->child;
            continue;
        }
        if (is_container(c))
            text_add(t, cJSON_IsArray(c) ? "]" : "}");
        while (depth && !c->next) {
            c = up[--depth];
            text_add(t, cJSON_IsArray(c) ? "]" : "}");
        }
        if (depth)
            text_add(t, ", ");
        c = depth ? c->next : NULL;
    }
}
