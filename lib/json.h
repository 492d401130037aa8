/* json.h - cJSON behind a few typed getters that name the file and key when something is amiss.
 *
 *   struct json *j = json_parse(text, n, "config.json");       NULL with the reason on stderr
 *   json_int(j, "hidden_size", &width)                          1 found, 0 absent, -1 wrong type (said on stderr)
 *   json_free(j);
 * Bare Infinity, -Infinity and NaN are read (Hugging Face writes them, or {"__float__": "Infinity"}) and written bare.
 * Integers are exact up to 2^53. \u0000 inside a string reads as the two bytes C0 80. */
#ifndef JSON_H
#define JSON_H
#include "base.h"
EXTERN_C_BEGIN
struct json;                                     /* a value; borrowed from its root, which json_parse gave */

struct json *json_parse(const char *text, size_t n, const char *name);
void         json_free(struct json *root);
struct json *json_at(const struct json *object, const char *key);       /* NULL when absent or null */
int json_int   (const struct json *object, const char *key, int64_t *out);   /* an integral number within int64 */
int json_double(const struct json *object, const char *key, double *out);
int json_bool  (const struct json *object, const char *key, bool *out);
int json_string(const struct json *object, const char *key, const char **out);   /* points into the tree */
/* walking: arrays and objects */
int64_t      json_count(const struct json *j);                          /* -1 when neither array nor object */
struct json *json_first(const struct json *j);
struct json *json_next(const struct json *item);
const char  *json_key(const struct json *item);                         /* NULL in an array */
const char  *json_text(const struct json *item);                        /* a string's bytes, else NULL */
bool         json_number(const struct json *item, double *out);
bool         json_is_object(const struct json *j);
bool         json_is_array(const struct json *j);

/* A growing text, for writing JSON: strings are escaped, commas are the caller's. */
struct text { char *at; size_t n, cap; };
void text_add(struct text *t, const char *fmt, ...) PRINTF(2, 3);
void text_string(struct text *t, const char *s, size_t n);              /* quoted and escaped JSON string */
void text_real(struct text *t, double x);                               /* shortest that reads back; bare Infinity */
void text_json(struct text *t, const struct json *j);                   /* a value as it was read */
void text_free(struct text *t);

/* Whole files. name is for messages; the caller frees. NULL with the reason on stderr. */
char *file_read(const char *path, size_t *n);
/* Writes aside, fsyncs, renames: path is the old or the new content, never a part. */
int   file_write(const char *path, const void *data, size_t n);
int   dir_make(const char *path);               /* unless it is there; those above it too. 0, or -1 with the reason */
int   file_sync_parent(const char *path);       /* fsyncs the directory that holds path, after a rename */
EXTERN_C_END
#endif
