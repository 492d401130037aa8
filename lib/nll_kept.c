/* nll_kept.c - sums and memory in a file, so that what was stopped goes on.
 *
 * "sums" F64 are loss and unigram's loss, "counts" I64 rows through the model, predictions, longest document;
 * "loss" F64 and "predictions" I64 by position; the memory as in model_state.h; all after the same row. In the
 * metadata, model: what computed them; rows: sha256 of the ids that they are of. The same text passes again, only not
 * through the model, and must have the same sum when it comes to that row: so no name, size or option is compared. */
#define _POSIX_C_SOURCE 200809L
#include "model_state.h"
#include "nll_parts.h"
#include "sha256.h"
#include <unistd.h>

enum { SUMS = 2, COUNTS = 3 };

struct nll_kept {
    char    path[4096], model[65], want[65];
    struct sha256 rows;                     /* of all rows so far */
    int64_t done, row;                      /* rows whose sums were there, rows that came */
    double  every, at;
    bool    wrong;
};

static void made_by(struct nll *n, char out[65])
{
    struct sha256 h;

    model_identity(n->model, out);
    sha256_init(&h);
    sha256_add(&h, out, 64);
    if (n->unigram)
        sha256_add(&h, n->unigram, (size_t)n->model->cfg.vocab * sizeof *n->unigram);
    sha256_end_hex(&h, out);
}

/* count numbers of 8 bytes, whatever their alignment in the file. */
static int take(const struct st *in, const char *path, const char *name, enum st_type type, int64_t count, void *out)
{
    const struct st_tensor *t = st_find(in, name);

    if (!t || t->type != type || t->count != count)
        return fail("%s: expected %s with %lld numbers of %s", path, name, (long long)count, st_type_name(type));
    memcpy(out, t->data, (size_t)t->bytes);
    return 0;
}

static int load(struct nll *n, const struct st *in)
{
    struct nll_kept *k = n->kept;
    const char *model = st_meta(in, "model"), *rows = st_meta(in, "rows");
    const struct st_tensor *loss = st_find(in, "loss");
    double sums[SUMS];
    int64_t counts[COUNTS], sum = 0;

    if (!model || !rows || strlen(rows) != 64 || !loss)
        return fail("%s: expected the sums of a run that was stopped", k->path);
    if (strcmp(model, k->model))
        return fail("%s: the sums of another model or unigram; without the file it begins again", k->path);
    n->buckets = loss->count;
    n->bucket_loss = mem_grow(n->bucket_loss, (size_t)n->buckets, sizeof *n->bucket_loss);
    n->bucket_count = mem_grow(n->bucket_count, (size_t)n->buckets, sizeof *n->bucket_count);
    if (take(in, k->path, "sums", ST_F64, SUMS, sums) || take(in, k->path, "counts", ST_I64, COUNTS, counts) ||
        take(in, k->path, "loss", ST_F64, n->buckets, n->bucket_loss) ||
        take(in, k->path, "predictions", ST_I64, n->buckets, n->bucket_count))
        return -1;
    for (int64_t i = 0; i < n->buckets; i++)
        sum += n->bucket_count[i] >= 0 && n->bucket_count[i] <= counts[1] ? n->bucket_count[i] : counts[1] + 1;
    if (counts[0] < 1 || counts[1] < 0 || counts[2] < 0 || sum != counts[1])
        return fail("%s: expected predictions that add up to %lld, found %lld", k->path, (long long)counts[1],
                    (long long)sum);
    n->loss = sums[0], n->unigram_loss = sums[1];
    k->done = counts[0], n->predicted = counts[1], n->longest = counts[2];
    memcpy(k->want, rows, 65);
    return state_read(in, k->path, n->model, &n->state);
}

int nll_keep(struct nll *n, const char *path, double every)
{
    struct nll_kept *k = n->kept = mem_new(1, sizeof *k);
    struct st *in;
    int status;

    *k = (struct nll_kept){ .every = every, .at = time_now() };
    if (!str_format(k->path, sizeof k->path, "%s", path))
        return fail("%s: path too long", path);
    made_by(n, k->model);
    sha256_init(&k->rows);
    if (access(path, F_OK))
        return 0;
    if (!(in = st_open(path)))
        return -1;
    status = load(n, in);
    st_close(in);
    return status;
}

bool nll_passing(const struct nll *n)
{
    return n->kept && n->kept->row < n->kept->done;
}

int nll_wrong(const struct nll *n)
{
    return n->kept && n->kept->wrong ? -1 : 0;
}

static void rows_text(const struct nll_kept *k, char out[65])
{
    struct sha256 h = k->rows;

    sha256_end_hex(&h, out);
}

bool nll_passes(struct nll *n, const struct batch *b)
{
    struct nll_kept *k = n->kept;
    char now[65];

    if (!k)
        return false;
    if (k->wrong)
        return true;
    sha256_add(&k->rows, b->token, (size_t)b->seqs.tokens * sizeof *b->token);
    sha256_add(&k->rows, b->target, (size_t)b->seqs.tokens * sizeof *b->target);
    sha256_add(&k->rows, b->seqs.start, ((size_t)b->seqs.n + 1) * sizeof *b->seqs.start);
    if (k->row++ >= k->done)
        return false;
    if (k->row < k->done)
        return true;
    rows_text(k, now);
    if (strcmp(now, k->want))
        k->wrong = fail("%s: the sums of another text or settings; without the file it begins again", k->path);
    return true;
}

static int save(const struct nll *n, const struct nll_kept *k)
{
    const double sums[SUMS] = { n->loss, n->unigram_loss };
    const int64_t counts[COUNTS] = { k->row, n->predicted, n->longest }, two = SUMS, three = COUNTS;
    struct st_writer *w = st_create(k->path);
    char rows[65];

    if (!w)
        return -1;
    rows_text(k, rows);
    st_describe(w, "model", k->model);
    st_describe(w, "rows", rows);
    st_declare(w, "sums", ST_F64, 1, &two);
    st_declare(w, "counts", ST_I64, 1, &three);
    st_declare(w, "loss", ST_F64, 1, &n->buckets);
    st_declare(w, "predictions", ST_I64, 1, &n->buckets);
    state_declare(w, n->model, &n->state);
    if (st_write(w, sums, sizeof sums) || st_write(w, counts, sizeof counts) ||
        st_write(w, n->bucket_loss, (size_t)n->buckets * sizeof *n->bucket_loss) ||
        st_write(w, n->bucket_count, (size_t)n->buckets * sizeof *n->bucket_count) ||
        state_write(w, n->model, &n->state)) {
        st_abort(w);
        return -1;
    }
    return st_finish(w);
}

void nll_scored(struct nll *n)
{
    struct nll_kept *k = n->kept;

    if (!k || time_now() - k->at < k->every)
        return;
    k->wrong = save(n, k);
    k->at = time_now();
}

int nll_whole(const struct nll *n)
{
    if (nll_wrong(n))
        return -1;
    if (nll_passing(n))
        return fail("%s: the sums of a longer text; without the file it begins again", n->kept->path);
    return 0;
}

void nll_forget(struct nll *n)
{
    if (n->kept)
        unlink(n->kept->path);
}
