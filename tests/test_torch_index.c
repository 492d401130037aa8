/* test_torch_index.c - weights in several .bin files are those of one, and an index that lies is refused. */
#define _POSIX_C_SOURCE 200809L
#include "convert_model.h"
#include "json.h"
#include "scratch.h"
#include "torch.h"
#include "torch_file.h"
#include <sys/stat.h>

/* The tensors of f whose place in the list leaves `rest` when divided by two, as torch.save writes them. */
static void put_part(const struct st *f, int rest, const char *path)
{
    struct view *view = mem_new((size_t)f->n, sizeof *view);
    struct bytes *storage = mem_new((size_t)f->n, sizeof *storage), pickle;
    char (*name)[16] = mem_new((size_t)f->n, sizeof *name);
    struct archive a;
    int n = 0;

    for (int64_t i = rest; i < f->n; i += 2, n++) {
        const struct st_tensor *t = &f->at[i];
        int64_t dense = 1;
        snprintf(name[n], sizeof name[n], "%d", n);
        view[n] = (struct view){ .name = t->name, .storage = name[n], .type = t->type, .elements = t->count,
                                 .ndim = t->ndim };
        for (int d = t->ndim - 1; d >= 0; d--) {
            view[n].dim[d] = t->dim[d];
            view[n].stride[d] = dense;
            dense *= t->dim[d];
        }
        bytes_add(&storage[n], t->data, (size_t)t->bytes);
    }
    pickle = pickle_of(view, n);
    a = archive_of(pickle, storage, n);
    REQUIRE(!file_write(path, a.file.at, a.file.n));
    for (int i = 0; i < n; i++)
        bytes_free(&storage[i]);
    archive_free(&a);
    bytes_free(&pickle);
    free(storage);
    free(view);
    free(name);
}

/* weight_map of f's tensors; one may be named otherwise, left out, or put elsewhere. */
static void put_index(const struct st *f, const char *path, int64_t wrong, const char *name, const char *file)
{
    struct text t = { 0 };
    bool begun = false;

    text_add(&t, "{\"metadata\": {\"total_size\": 1}, \"weight_map\": {");
    for (int64_t i = 0; i < f->n; i++) {
        const char *key = i == wrong && name ? name : f->at[i].name;
        if (!*key)
            continue;
        text_add(&t, "%s\"%s\": \"%s\"", begun ? ", " : "", key, i == wrong && file ? file : i % 2 ? "b.bin" : "a.bin");
        begun = true;
    }
    text_add(&t, "}}");
    REQUIRE(!file_write(path, t.at, t.n));
    text_free(&t);
}

static bool refused(const char *index, const char *a, const char *b)
{
    struct st *s;
    bool heard;

    scratch_listen();
    s = torch_open_index(index);
    heard = scratch_heard(a, b, "");
    st_close(s);
    return heard && !s;
}

static void put_text(const char *path, const char *text)
{
    REQUIRE(!file_write(path, text, strlen(text)));
}

int main(void)
{
    const char *dir, *index, *golden;
    char from[600], *config;
    struct st *f, *s;
    size_t n;

    scratch_open();
    dir = place("split");
    index = place("split/pytorch_model.bin.index.json");
    golden = convert_golden("state_spaces_mamba2");
    REQUIRE(!mkdir(dir, 0777));
    str_format(from, sizeof from, "%s/config.json", golden);
    config = file_read(from, &n);
    REQUIRE(config && !file_write(place("split/config.json"), config, n));
    free(config);
    str_format(from, sizeof from, "%s/pytorch_model.bin", golden);
    f = torch_open(from);
    REQUIRE(f);
    put_part(f, 0, place("split/a.bin"));
    put_part(f, 1, place("split/b.bin"));
    put_index(f, index, -1, NULL, NULL);

    s = torch_open_index(index);
    CHECK(s && s->n == f->n);
    for (int64_t i = 0; s && i < f->n; i++) {
        const struct st_tensor *t = st_find(s, f->at[i].name);
        CHECK(t && t->bytes == f->at[i].bytes && !memcmp(t->data, f->at[i].data, (size_t)t->bytes));
    }
    CHECK(!s || !st_find(s, "absent"));
    st_close(s);
    CHECK(!convert_turn(golden, place("one"), "hf") && !convert_turn(dir, place("two"), "hf") && said.equal);
    CHECK(same_weights(place("one"), place("two")) && same_config(place("one"), place("two")));

    put_index(f, index, 3, "foo.bar", NULL);
    CHECK(refused(index, "is not listed in", f->at[3].name));
    put_index(f, index, 3, "", NULL);
    CHECK(refused(index, "is not listed in", f->at[3].name));
    put_index(f, index, 3, NULL, "a.bin");
    CHECK(refused(index, "is not in a.bin", f->at[3].name));
    put_index(f, index, 3, NULL, "../a.bin");
    CHECK(refused(index, "expected the name of a file beside the index", ""));
    put_index(f, index, 3, NULL, "c.bin");
    CHECK(refused(index, "c.bin", "No such file"));
    put_part(f, 0, place("split/c.bin"));
    CHECK(refused(index, "both hold", ""));
    put_text(index, "{\"weight_map\": {\"a\": 3}}");
    CHECK(refused(index, "expected the name of a file", ""));
    put_text(index, "{\"weight_map\": []}");
    CHECK(refused(index, "expected an object weight_map", ""));
    put_text(index, "{}");
    CHECK(refused(index, "expected an object weight_map", ""));
    put_text(index, "{\"weight_map\": {\"foo\": \"a.bin\"");
    CHECK(refused(index, "not valid JSON", ""));
    put_text(place("split/a.bin"), "GIF89a");
    put_index(f, index, -1, NULL, NULL);
    CHECK(refused(index, "a.bin", ""));
    st_close(f);
    scratch_close();
    return test_done("torch_index");
}
