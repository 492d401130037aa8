/* scratch.c - see scratch.h. */
#define _DEFAULT_SOURCE
#include "scratch.h"
#include "json.h"
#include "safetensors.h"
#include <dirent.h>
#include <unistd.h>

char scratch_root[] = "/tmp/palimpsa_test_XXXXXX";

static int kept_stderr, caught;

void scratch_open(void)
{
    if (!mkdtemp(scratch_root))
        BUG("no scratch directory in /tmp");
}

void scratch_close(void)
{
    scratch_sweep(scratch_root);
}

const char *scratch(const char *name)
{
    static char path[8][512];
    static int next;
    char *p = path[next = (next + 1) % 8];

    str_format(p, sizeof path[0], "%s/%s", scratch_root, name);
    return p;
}

void scratch_sweep(const char *dir)
{
    char path[1024];
    DIR *d = opendir(dir);

    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        if (str_format(path, sizeof path, "%s/%s", dir, e->d_name) && unlink(path))
            scratch_sweep(path);
    }
    if (d)
        closedir(d);
    rmdir(dir);
}

bool scratch_write(const char *path, const char *text)
{
    return !file_write(path, text, strlen(text));
}

bool scratch_copy(const char *from, const char *to)
{
    size_t n = 0;
    char *data = file_read(from, &n);
    bool good = data && !file_write(to, data, n);

    free(data);
    return good;
}

bool scratch_same(const char *one, const char *two)
{
    struct st *a = st_open(one), *b = st_open(two);
    bool same = a && b && a->n == b->n;

    for (int64_t i = 0; same && i < a->n; i++) {
        const struct st_tensor *s = &a->at[i], *t = st_find(b, s->name);
        same = t && t->type == s->type && t->ndim == s->ndim && !memcmp(t->dim, s->dim, sizeof t->dim) &&
               !memcmp(t->data, s->data, (size_t)t->bytes);
    }
    st_close(a);
    st_close(b);
    return same;
}

void scratch_listen(void)
{
    char path[] = "/tmp/palimpsa_said_XXXXXX";

    fflush(stderr);
    kept_stderr = dup(2);
    caught = mkstemp(path);
    unlink(path);
    dup2(caught, 2);
}

bool scratch_heard(const char *a, const char *b, const char *c)
{
    static char said[4096];
    ssize_t n;

    dup2(kept_stderr, 2);
    close(kept_stderr);
    n = pread(caught, said, sizeof said - 1, 0);
    said[n > 0 ? n : 0] = 0;
    close(caught);
    if (strstr(said, a) && strstr(said, b) && strstr(said, c))
        return true;
    printf("said: %s", said);
    return false;
}
