/* bpe.c - a tokenizer from its file, and where text may be cut without changing its ids. */
#define _POSIX_C_SOURCE 200809L
#include "bpe_parts.h"
#include "sha256.h"
#include <utf8proc.h>

void bpe_ids_reserve(struct bpe_ids *ids, int64_t more)
{
    if (ids->cap - ids->n >= more)
        return;
    ids->cap = ids->n + more > 2 * ids->cap ? ids->n + more : 2 * ids->cap;
    ids->at = mem_grow(ids->at, (size_t)ids->cap, sizeof *ids->at);
}

void bpe_ids_free(struct bpe_ids *ids)
{
    free(ids->at);
    *ids = (struct bpe_ids){ 0 };
}

int32_t bpe_vocab(const struct bpe *b)
{
    return b->vocab;
}

int32_t bpe_eot(const struct bpe *b)
{
    return b->eot;
}

int32_t bpe_bos(const struct bpe *b)
{
    return b->bos;
}

int32_t bpe_id(const struct bpe *b, const char *token)
{
    return vocab_find(b, token, strlen(token));
}

bool bpe_is_control(const struct bpe *b, int32_t id)
{
    return id >= 0 && id < b->vocab && (b->token[id].flags & TOKEN_CONTROL);
}

const char *bpe_sha256(const struct bpe *b)
{
    return b->sha256;
}

const char *const bpe_separators[] = { "<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<|eos|>", "[EOS]", NULL };

static int32_t separator(const struct bpe *b)
{
    for (int i = 0; bpe_separators[i]; i++)
        if (bpe_is_control(b, bpe_id(b, bpe_separators[i])))
            return bpe_id(b, bpe_separators[i]);
    return -1;
}

/* A control token that merging could make would turn text into control. */
static int control_apart(const struct bpe *b)
{
    int32_t id = -1;

    for (uint64_t i = 0; i <= b->pair_mask && id < 0; i++)
        if (b->pair[i].key != PAIR_FREE && bpe_is_control(b, b->pair[i].id))
            id = b->pair[i].id;
    for (int i = 0; i < 256 && (b->byte_level || b->byte_fallback) && id < 0; i++)
        if (b->byte_id[i] != b->unk && bpe_is_control(b, b->byte_id[i]))
            id = b->byte_id[i];
    for (uint64_t i = 0; !b->byte_level && i <= b->letter_mask && id < 0; i++)
        if (b->letter[i].id >= 0 && bpe_is_control(b, b->letter[i].id))
            id = b->letter[i].id;
    if (id < 0)
        return 0;
    return fail("%s: control token \"%.*s\" can also come from text", b->name, (int)b->token[id].n_name,
                b->text.at + b->token[id].name);
}

/* Normalizers under which "x y" is the forms of "x" and " y" side by side. */
static bool norms_local(const struct bpe *b, bool *marks)
{
    for (int i = 0; i < b->norms; i++) {
        const struct norm *n = &b->norm[i];
        bool mark = !b->byte_level && n->kind == NORM_REPLACE && !n->regex && n->from.n == 1 && n->from.at[0] == ' ' &&
                    n->to.n == 3 && !memcmp(n->to.at, "\xE2\x96\x81", 3);

        if ((n->kind == NORM_REPLACE && !mark) || (n->kind == NORM_FORM && (n->form & UTF8PROC_COMPAT)))
            return false;
        *marks = *marks || mark;
    }
    return true;
}

/* Whether pieces end between a character and a space, or a newline, whatever lies farther away. The
 * first step that always cuts there decides; those before it must not look past their neighbours. */
static void cuts_find(struct bpe *b)
{
    bool marks = false, each = false;

    for (int i = 0; i < b->norms; i++)
        b->prefixes = b->prefixes || b->norm[i].kind == NORM_PREPEND;
    for (int i = 0; i < b->pres; i++)
        b->prefixes = b->prefixes || b->pre[i].kind == PRE_PREFIX || b->pre[i].prefix;
    if (!norms_local(b, &marks))
        return;
    for (int i = 0; i < b->pres; i++) {
        const struct pre *p = &b->pre[i];

        if (p->kind == PRE_GPT2 || p->before_space) {
            b->cut_space = true;
            b->cut_line = p->kind == PRE_GPT2;
            return;
        }
        if (p->kind == PRE_SPLIT || (p->kind == PRE_METASPACE && (b->byte_level || p->literal.n != 3 ||
                                                                  memcmp(p->literal.at, "\xE2\x96\x81", 3))))
            return;
        marks = marks || p->kind == PRE_METASPACE;
        each = each || p->each;
    }
    if (b->byte_level)
        return;
    b->cut_space = marks && (b->word_start || each);
    b->cut_line = b->line_apart;
}

bool bpe_can_cut(const struct bpe *b)
{
    return b->cut_space || b->cut_line;
}

/* After an added token a prefix may be due, which a part that continues does not get. */
static bool after_added(const struct bpe *b, const char *text, size_t n)
{
    for (int64_t i = 0; b->prefixes && i < b->addeds; i++) {
        const struct token *t = &b->token[b->added[i].id];

        if (t->n_name <= n && !memcmp(text + n - t->n_name, b->text.at + t->name, t->n_name))
            return true;
    }
    return false;
}

size_t bpe_cut(const struct bpe *b, const char *text, size_t n)
{
    do
        n = pretoken_cut(text, n, b->cut_space, b->cut_line);
    while (n && after_added(b, text, n));
    return n;
}

static int read_all(struct bpe *b, const struct json *root)
{
    if (!json_is_object(root))
        return fail("%s: expected a JSON object", b->name);
    if (components_read(b, root) || vocab_read(b, root) || added_read(b, root) || post_processor_read(b, root) ||
        control_apart(b))
        return -1;
    b->eot = separator(b);
    cuts_find(b);
    return added_build(b) || decoder_read(b, root) ? -1 : 0;
}

struct bpe *bpe_parse(const char *text, size_t n, const char *name)
{
    struct json *root = json_parse(text, n, name);
    struct bpe *b;
    size_t length = strlen(name) + 1;

    if (!root)
        return NULL;
    pretoken_init();
    b = mem_new(1, sizeof *b);
    b->name = memcpy(mem_new(length, 1), name, length);
    b->limit = n < 1 << 24 ? (int64_t)n : 1 << 24;
    b->bos = b->eot = b->unk = -1;
    sha256_hex(text, n, b->sha256);
    if (read_all(b, root)) {
        bpe_close(b);
        b = NULL;
    }
    json_free(root);
    return b;
}

struct bpe *bpe_open(const char *path)
{
    size_t n;
    char *text = file_read(path, &n);
    struct bpe *b = text ? bpe_parse(text, n, path) : NULL;

    free(text);
    return b;
}

void bpe_close(struct bpe *b)
{
    if (!b)
        return;
    for (int i = 0; i < STEPS; i++) {
        free(b->norm[i].from.at);
        free(b->norm[i].to.at);
        free(b->pre[i].literal.at);
        regex_close(b->norm[i].regex);
        regex_close(b->pre[i].regex);
    }
    free(b->raw.node);
    free(b->normal.node);
    free(b->name);
    free(b->token);
    free(b->text.at);
    free(b->slot);
    free(b->pair);
    free(b->letter);
    free(b->added);
    free(b);
}
