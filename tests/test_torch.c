/* test_torch.c - pytorch_model.bin: what torch wrote is read to the byte, anything else is refused in one line. */
#define _POSIX_C_SOURCE 200809L
#include "half.h"
#include "pickle.h"
#include "scratch.h"
#include "torch.h"
#include "torch_file.h"
#include <unistd.h>

static struct st *open_bytes(const struct bytes *b)
{
    return torch_open_memory(b->at, b->n, "t.bin");
}

/* Refused, and the word is in what was said. */
static bool refused(const struct bytes *b, const char *word)
{
    struct st *s;

    scratch_listen();
    s = open_bytes(b);
    st_close(s);
    return scratch_heard("error: t.bin: ", word, "") && !s;
}

/* The same for a pickle in an archive with one storage of four floats. */
static bool refused_pickle(struct bytes *pickle, const char *word)
{
    float four[4] = { 1, 2, 3, 4 };
    struct bytes storage = { (char *)four, sizeof four, sizeof four };
    struct archive a = archive_of(*pickle, &storage, 1);
    bool good = refused(&a.file, word);

    archive_free(&a);
    bytes_free(pickle);
    return good;
}

static struct bytes bytes_of(const char *s, size_t n)
{
    struct bytes b = { 0 };

    bytes_add(&b, s, n);
    return b;
}

#define CODE(text) (struct bytes[]){ bytes_of(text, sizeof text - 1) }

static const struct view square = { "w", "0", ST_F32, 4, 0, 2, { 2, 2 }, { 2, 1 } };

static void test_views(void)
{
    const uint16_t half[3] = { bf16_of(1.5f), bf16_of(-2), bf16_of(0.25f) };
    const float six[6] = { 0, 1, 2, 3, 4, 5 };
    const struct bytes storage[2] = { { (char *)six, sizeof six, 0 }, { (char *)half, sizeof half, 0 } };
    const struct view v[] = {
        { "z.t", "0", ST_F32, 6, 0, 2, { 3, 2 }, { 1, 3 } },             /* transposed */
        { "a", "0", ST_F32, 6, 0, 2, { 2, 3 }, { 3, 1 } },               /* two names on one storage */
        { "b", "0", ST_F32, 6, 2, 1, { 4 }, { 1 } },                     /* a part */
        { "h", "1", ST_BF16, 3, 0, 1, { 3 }, { 1 } },
        { "one", "0", ST_F32, 6, 5, 0, { 0 }, { 0 } },                   /* a scalar */
        { "none", "0", ST_F32, 6, 6, 2, { 0, 7 }, { 7, 1 } },
        { "odd", "0", ST_F32, 6, 1, 3, { 1, 2, 1 }, { 99, 1, 77 } },     /* strides of dims of one do not count */
    };
    struct bytes p = pickle_of(v, LEN(v));
    struct archive a = archive_of(p, storage, 2);
    struct st *s = open_bytes(&a.file);
    float x[6] = { NAN, NAN, NAN, NAN, NAN, NAN };

    CHECK(s && s->n == LEN(v));
    if (!s)
        return;
    CHECK(!st_float(st_find(s, "z.t"), x));
    CHECK(x[0] == 0 && x[1] == 3 && x[2] == 1 && x[3] == 4 && x[4] == 2 && x[5] == 5);
    CHECK(st_find(s, "z.t")->dim[0] == 3 && st_find(s, "z.t")->dim[1] == 2);
    CHECK(!memcmp(st_find(s, "a")->data, six, sizeof six));
    CHECK(!memcmp(st_find(s, "b")->data, six + 2, 16) && st_find(s, "b")->count == 4);
    CHECK(!memcmp(st_find(s, "h")->data, half, sizeof half) && st_find(s, "h")->type == ST_BF16);
    CHECK(!st_float(st_find(s, "one"), x) && x[0] == 5 && st_find(s, "one")->ndim == 0);
    CHECK(st_find(s, "none")->count == 0);
    CHECK(!st_float(st_find(s, "odd"), x) && x[0] == 1 && x[1] == 2);
    CHECK(!st_find(s, "y") && !strcmp(s->at[0].name, "a") && !strcmp(s->at[s->n - 1].name, "z.t"));
    st_close(s);
    archive_free(&a);
    bytes_free(&p);
}

static void test_empty(void)
{
    struct archive a = { 0 };
    struct st *s;

    archive_put(&a, "w/data.pkl", "\x80\x02}.", 4);
    archive_end(&a);
    s = open_bytes(&a.file);
    CHECK(s && s->n == 0 && !st_find(s, "w") && st_metas(s) == 0);
    st_close(s);
    archive_free(&a);
    archive_end(&a);
    CHECK(refused(&a.file, "without a data.pkl"));
    archive_free(&a);
}

/* Nothing that is not a tensor's may run; the name of what was asked is shown. */
static void test_hostile_calls(void)
{
    CHECK(refused_pickle(CODE("\x80\x02" "cos\nsystem\n(X\x04\0\0\0date" "tR."), "os.system"));
    CHECK(refused_pickle(CODE("\x80\x02" "cposix\nsystem\n."), "posix.system"));
    CHECK(refused_pickle(CODE("\x80\x02" "cbuiltins\neval\n(X\x01\0\0\0" "1tR."), "builtins.eval"));
    CHECK(refused_pickle(CODE("\x80\x02" "ctorch\nload\n."), "torch.load"));
    CHECK(refused_pickle(CODE("\x80\x02" "c\x1b[31m\n\x07\n."), "?[31m.?"));
    CHECK(refused_pickle(CODE("\x80\x02(ios\nsystem\n."), "opcode"));                 /* INST */
    CHECK(refused_pickle(CODE("\x80\x02" "ccollections\nOrderedDict\n)\x81."), "opcode"));    /* NEWOBJ: __reduce__ */
    CHECK(refused_pickle(CODE("\x80\x04\x8c\x02os\x8c\x06system\x93."), "protocol"));
    CHECK(refused_pickle(CODE("\x80\x02\x8c\x02os\x8c\x06system\x93."), "opcode"));    /* STACK_GLOBAL */
    CHECK(refused_pickle(CODE("\x80\x02" "ccollections\nOrderedDict\n(K\x01tR."), "arguments"));
    CHECK(refused_pickle(CODE("\x80\x02" "ctorch\nFloatStorage\n)R."), "arguments"));
    CHECK(refused_pickle(CODE("\x80\x02)R."), "call of what"));
    CHECK(refused_pickle(CODE("\x80\x02R."), "call of what"));
    CHECK(refused_pickle(CODE("\x80\x02}}b}bb."), "attributes"));
    CHECK(refused_pickle(CODE("\x80\x02Nb."), "attributes"));
}

static void test_hostile_stacks(void)
{
    struct bytes b = bytes_of("\x80\x02}q\0", 5);

    CHECK(refused_pickle(CODE(""), "without STOP"));
    CHECK(refused_pickle(CODE("."), "expected a dictionary"));
    CHECK(refused_pickle(CODE("\x80\x02]."), "expected a dictionary"));
    CHECK(refused_pickle(CODE("\x80\x02}}."), "expected a dictionary"));
    CHECK(refused_pickle(CODE("\x80\x02}t."), "mark"));
    CHECK(refused_pickle(CODE("\x80\x02(t(u."), "container"));
    CHECK(refused_pickle(CODE("\x80\x02}(Nu."), "container"));
    CHECK(refused_pickle(CODE("\x80\x02](Ne}(NNe."), "not their container"));
    CHECK(refused_pickle(CODE("\x80\x02\x87."), "tuple"));
    CHECK(refused_pickle(CODE("\x80\x02s."), "container"));
    CHECK(refused_pickle(CODE("\x80\x02q\0."), "memo of nothing"));
    CHECK(refused_pickle(CODE("\x80\x02}r\xff\xff\xff\x7f."), "memo"));
    CHECK(refused_pickle(CODE("\x80\x02j\xff\xff\xff\xff."), "memo that was not"));
    CHECK(refused_pickle(CODE("\x80\x02X\xff\xff\xff\xff" "a."), "text"));
    CHECK(refused_pickle(CODE("\x80\x02X\xff\xff\xff\x7f" "a."), "text"));
    CHECK(refused_pickle(CODE("\x80\x02\x8a\xff."), "number"));
    CHECK(refused_pickle(CODE("\x80\x02\x8a\x09" "123456789."), "number"));
    CHECK(refused_pickle(CODE("\x80\x02NQ."), "storage"));
    CHECK(refused_pickle(CODE("\x80\x02)Q."), "storage"));
    /* a dictionary inside itself, and one that doubles with every level */
    pickle_text(&b, "a");
    bytes_add(&b, "h\0s.", 4);
    CHECK(refused_pickle(&b, "too deep"));
    b = bytes_of("\x80\x02}q\0", 5);
    for (int i = 0; i < 7; i++) {
        bytes_add(&b, "}q", 2);
        bytes_number(&b, (uint64_t)i + 1, 1);
        for (int j = 0; j < 40; j++) {
            pickle_text(&b, "k");
            bytes_add(&b, "h", 1);
            bytes_number(&b, (uint64_t)i, 1);
            bytes_add(&b, "s", 1);
        }
    }
    bytes_add(&b, ".", 1);
    CHECK(refused_pickle(&b, "expected a dictionary"));       /* many on the stack */
    b = bytes_of("\x80\x02}q\0", 5);
    pickle_text(&b, "\x1b[2J");
    bytes_add(&b, "}s.", 3);
    CHECK(refused_pickle(&b, "names"));
}

/* Time and memory stay in proportion to the bytes. */
static void test_hostile_lengths(void)
{
    enum { LONG = 200000 };
    struct bytes b = bytes_of("\x80\x02", 2), key = { 0 };
    double began = time_now();

    for (int i = 0; i < LONG; i++)
        bytes_add(&b, "N", 1);
    bytes_add(&b, ".", 1);
    CHECK(refused_pickle(&b, "expected a dictionary"));
    b = bytes_of("\x80\x02", 2);
    for (int i = 0; i < LONG; i++)
        bytes_add(&b, "(", 1);
    CHECK(refused_pickle(&b, "without STOP"));
    /* one key of a hundred kilobytes, used again and again */
    for (int i = 0; i < 100000; i++)
        bytes_add(&key, "k", 1);
    bytes_add(&key, "", 1);
    b = bytes_of("\x80\x02}", 3);
    pickle_text(&b, key.at);
    bytes_add(&b, "q\0}s.", 5);
    CHECK(refused_pickle(&b, "names"));
    bytes_free(&key);
    CHECK(time_now() - began < 20);
}

static bool refused_view(const struct view *v, const char *word)
{
    struct bytes b = pickle_of(v, 1);

    return refused_pickle(&b, word);
}

static void test_hostile_tensors(void)
{
    struct view v = square, two[2] = { square, square };
    struct bytes b;

    v.dim[0] = 3;
    CHECK(refused_view(&v, "past its storage"));
    v = square, v.offset = 1;
    CHECK(refused_view(&v, "past its storage"));
    v = square, v.offset = INT64_MAX;
    CHECK(refused_view(&v, "past its storage"));
    v = square, v.dim[0] = INT64_MAX, v.dim[1] = INT64_MAX;
    CHECK(refused_view(&v, "past its storage"));
    v = square, v.stride[0] = INT64_MAX / 2 + 1;
    CHECK(refused_view(&v, "past its storage"));
    v = square, v.stride[0] = 0, v.dim[0] = (int64_t)1 << 40;
    CHECK(refused_view(&v, "past its storage"));                 /* a terabyte out of two numbers */
    v = square, v.dim[0] = -1;
    CHECK(refused_view(&v, "sizes, strides"));
    v = square, v.elements = 5;
    CHECK(refused_view(&v, "expected a storage of 5 F32, found 16 bytes"));
    v = square, v.elements = INT64_MAX;
    CHECK(refused_view(&v, "expected a storage"));
    v = square, v.elements = -1;
    CHECK(refused_view(&v, "storage"));
    v = square, v.type = ST_BF16;
    CHECK(refused_view(&v, "expected a storage of 4 BF16"));
    v = square, v.storage = "../../etc/passwd";
    CHECK(refused_view(&v, "not in the archive"));
    v = square, v.storage = "0\n";
    CHECK(refused_view(&v, "printable"));
    v = square, v.name = "two\nlines";
    CHECK(refused_view(&v, "printable"));
    b = pickle_of(two, 2);
    CHECK(refused_pickle(&b, "two tensors named w"));
}

/* Thousands of transposed views of one storage are not copied. */
static void test_many_copies(void)
{
    enum { N = 64, VIEWS = 400 };
    static float big[N * N];
    static char name[VIEWS][16];
    static struct view v[VIEWS];
    struct bytes storage = { (char *)big, sizeof big, 0 }, p;
    struct archive a;

    for (int i = 0; i < VIEWS; i++) {
        snprintf(name[i], sizeof name[i], "w%d", i);
        v[i] = (struct view){ name[i], "0", ST_F32, N * N, 0, 2, { N, N }, { 1, N } };
    }
    p = pickle_of(v, VIEWS);
    a = archive_of(p, &storage, 1);
    CHECK(refused(&a.file, "strided views"));
    archive_free(&a);
    bytes_free(&p);
}

static struct archive named(const char *one, const char *two, int method)
{
    struct bytes p = pickle_of(&square, 1);
    struct archive a = { 0 };

    archive_put_as(&a, one, p.at, p.n, method);
    archive_put(&a, two, "0123456789abcdef", 16);
    archive_end(&a);
    bytes_free(&p);
    return a;
}

static bool refused_names(const char *one, const char *two, int method, const char *word)
{
    struct archive a = named(one, two, method);
    bool good = refused(&a.file, word);

    archive_free(&a);
    return good;
}

static void test_archives(void)
{
    struct archive a = named("w/data.pkl", "w/data/0", 0);
    struct st *s = open_bytes(&a.file);

    CHECK(s && s->n == 1);
    st_close(s);
    memset(a.file.at + a.file.n - 22 - a.directory.n + 46 + 10 + 42, 0, 4);      /* both lie in one place */
    CHECK(refused(&a.file, "overlap"));
    archive_free(&a);
    CHECK(refused_names("w/data.pkl", "w/data.pkl", 0, "two members named"));
    CHECK(refused_names("w/data.pkl", "v/data.pkl", 0, "several data.pkl"));
    CHECK(refused_names("w/data.pkl", "w/data/1", 0, "not in the archive"));
    CHECK(refused_names("w/data.pkl", "w/data/0", 8, "compressed"));
    CHECK(refused_names("w/data.txt", "w/data/0", 0, "without a data.pkl"));
    CHECK(refused_names("w/data.pkl", "w/constants.pkl", 0, "TorchScript"));
    CHECK(refused_names("w/data.pkl", "w/byteorder", 0, "little-endian"));
    CHECK(refused_names("/data.pkl", "/data/0", 0, "plain relative path"));
    CHECK(refused_names("w/data.pkl", "/etc/passwd", 0, "plain relative path"));
    CHECK(refused_names("../data.pkl", "../data/0", 0, "plain relative path"));
    CHECK(refused_names("w/data.pkl", "w/data/../../0", 0, "plain relative path"));
    CHECK(refused_names("w/data.pkl", "w\\data\\0", 0, "plain relative path"));
    CHECK(refused_names("w/data.pkl", "w/\x1b[2J", 0, "plain relative path"));
    CHECK(refused_names("w/data.pkl", "", 0, "plain relative path"));
    CHECK(refused(&(struct bytes){ "\x80\x02\x8a\nl\xfc\x9c", 7, 0 }, "before 1.6"));
    CHECK(refused(&(struct bytes){ "<!DOCTYPE html><html>not found</html>", 37, 0 }, "not a zip archive"));
}

/* Cut anywhere it is refused; with any one byte changed it is read or refused, and nothing else. */
static void test_damage(void)
{
    struct archive a = named("w/data.pkl", "w/data/0", 0);
    int read = 0;

    scratch_listen();
    for (size_t n = 0; n < a.file.n; n++) {
        char *part = mem_new(n ? n : 1, 1);                      /* a sanitizer sees where it ends */
        struct st *s;
        memcpy(part, a.file.at, n);
        s = torch_open_memory(part, n, "t.bin");
        read += s != NULL;
        st_close(s);
        free(part);
    }
    for (size_t i = 0; i < a.file.n; i++)
        for (int bit = 0; bit < 8; bit += 3) {
            char old = a.file.at[i];
            struct st *s;
            a.file.at[i] = (char)(old ^ 1 << bit);
            s = open_bytes(&a.file);
            if (s && s->n) {
                float x[4];
                REQUIRE(s->at[0].count > 4 || s->at[0].type != ST_F32 || !st_float(&s->at[0], x));
            }
            st_close(s);
            a.file.at[i] = old;
        }
    CHECK(scratch_heard("", "", ""));
    CHECK(read == 0);
    archive_free(&a);
}

/* torch's own files. The bf16 one is the fp32 one rounded; Hugging Face's names hold the same numbers. */
static void test_goldens(void)
{
    char path[512];
    struct st *f, *half, *hf;

    str_format(path, sizeof path, "%s/models/state_spaces_mamba2/pytorch_model.bin", test_golden());
    f = torch_open(path);
    str_format(path, sizeof path, "%s/models/state_spaces_mamba2_bf16/pytorch_model.bin", test_golden());
    half = torch_open(path);
    str_format(path, sizeof path, "%s/models/hf_mamba2", test_golden());
    hf = st_open(path);
    CHECK(f && half && hf && f->n == half->n && f->n == hf->n + 1);
    for (int64_t i = 0; f && half && hf && i < f->n; i++) {
        bool embed = strstr(f->at[i].name, "embedding") || !strcmp(f->at[i].name, "lm_head.weight");
        const struct st_tensor *t = &f->at[i], *h = st_find(half, t->name);
        const struct st_tensor *same = st_find(hf, embed ? "backbone.embeddings.weight" : t->name);
        CHECK(h && h->type == ST_BF16 && h->count == t->count && t->type == ST_F32);
        CHECK(same && same->bytes == t->bytes && !memcmp(same->data, t->data, (size_t)t->bytes));
        for (int64_t j = 0; h && j < t->count; j++) {
            float x;
            uint16_t rounded;
            memcpy(&x, (const char *)t->data + 4 * j, 4);
            memcpy(&rounded, (const char *)h->data + 2 * j, 2);
            if (rounded != bf16_of(x)) {
                CHECK(!"rounded as torch rounds");
                break;
            }
        }
    }
    st_close(f);
    st_close(half);
    st_close(hf);
}

static bool refused_file(const char *name, const char *word)
{
    char path[512];
    struct st *s;

    str_format(path, sizeof path, "%s/data/checkpoints/torch-zip/%s", test_reference(), name);
    scratch_listen();
    s = torch_open(path);
    st_close(s);
    return scratch_heard("error: ", name, word) && !s;
}

static void test_published(void)
{
    char path[512];
    const struct st_tensor *t;
    struct st *s, *safe;
    int32_t x[24];

    if (!test_reference())
        return;
    str_format(path, sizeof path, "%s/data/checkpoints/torch-zip/candle/fortran_tensor_3d.pth", test_reference());
    if (access(path, F_OK))
        return;
    s = torch_open(path);
    t = s ? st_find(s, "tensor_fortran") : NULL;
    CHECK(t && t->ndim == 3 && t->dim[0] == 2 && t->dim[1] == 3 && t->dim[2] == 4 && !st_int(t, x));
    for (int i = 0; t && i < 24; i++)                            /* stored with the first index fastest */
        CHECK(x[i] == i + 1);
    st_close(s);
    str_format(path, sizeof path, "%s/data/checkpoints/torch-zip/candle/test.pt", test_reference());
    s = torch_open(path);
    CHECK(s && s->n == 1 && (t = st_find(s, "test")) && t->type == ST_I64 && t->dim[0] == 2 && t->dim[1] == 4);
    st_close(s);
    str_format(path, sizeof path, "%s/data/checkpoints/torch-zip/candle/test_with_key.pt", test_reference());
    s = torch_open(path);
    CHECK(s && s->n == 1 && st_find(s, "model_state_dict.test"));
    st_close(s);
    CHECK(refused_file("tch-rs/foo.pt", "TorchScript"));
    CHECK(refused_file("tch-rs/foo1.pt", "TorchScript"));
    CHECK(refused_file("tch-rs/foo7.pt", "TorchScript"));
    str_format(path, sizeof path, "%s/data/checkpoints/mamba2-char-shakespeare/pytorch_model.bin", test_reference());
    s = torch_open(path);
    str_format(path, sizeof path, "%s/data/checkpoints/mamba2-char-shakespeare/model.safetensors", test_reference());
    safe = st_open(path);
    CHECK(s && safe);
    for (int64_t i = 0; s && safe && i < safe->n; i++) {
        t = st_find(s, safe->at[i].name);
        CHECK(t && t->type == safe->at[i].type && t->bytes == safe->at[i].bytes &&
              !memcmp(t->data, safe->at[i].data, (size_t)t->bytes));
    }
    st_close(s);
    st_close(safe);
}

int main(void)
{
    struct st *s;

    scratch_open();
    test_views();
    test_empty();
    test_hostile_calls();
    test_hostile_stacks();
    test_hostile_lengths();
    test_hostile_tensors();
    test_many_copies();
    test_archives();
    test_damage();
    test_goldens();
    test_published();
    scratch_listen();
    s = torch_open(scratch("absent.bin"));
    CHECK(scratch_heard("absent.bin", "No such file", "") && !s);
    scratch_write(scratch("empty.bin"), "");
    scratch_listen();
    s = torch_open(scratch("empty.bin"));
    CHECK(scratch_heard("empty.bin", "0 bytes", "") && !s);
    scratch_close();
    return test_done("torch");
}
