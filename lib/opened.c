/* opened.c - find the checkpoint, open the device, load. */
#define _POSIX_C_SOURCE 200809L
#include "opened.h"
#include "ckpt.h"
#include <unistd.h>

static bool has(const char *dir, const char *name)
{
    char path[4200];

    return str_format(path, sizeof path, "%s/%s", dir, name) && !access(path, F_OK);
}

int opened_dir(char *out, size_t size, const char *path)
{
    if (!has(path, "config.json") && has(path, "lock")) {
        if (ckpt_latest(path, out, size))
            return -1;
        return out[0] ? 0 : fail("%s: this run has no whole checkpoint yet", path);
    }
    return str_format(out, size, "%s", path) ? 0 : fail("%s: path too long", path);
}

static int open_tokenizer(struct opened *o)
{
    char path[4200];

    if (!has(o->dir, "tokenizer.json"))
        return 0;
    snprintf(path, sizeof path, "%s/tokenizer.json", o->dir);
    o->bpe = bpe_open(path);
    if (!o->bpe)
        return -1;
    if (bpe_vocab(o->bpe) > o->model.cfg.vocab)
        return fail("%s: its vocabulary of %d does not fit the model's %lld", path, bpe_vocab(o->bpe),
                    (long long)o->model.cfg.vocab);
    o->encoder = bpe_encoder_open(o->bpe);
    return 0;
}

int opened_open(struct opened *o, const char *path, const char *device, const char *dtype, int threads,
                const struct model_use *use)
{
    struct config c;

    *o = (struct opened){ 0 };
    if (opened_dir(o->dir, sizeof o->dir, path) || ckpt_config(o->dir, &c))
        return -1;
    if (dev_open(&o->dev, device, dtype_named(dtype), threads))
        return -1;
    if (model_open(&o->model, &o->dev, &c, use) == 0 && ckpt_load(o->dir, &o->model) == 0 && open_tokenizer(o) == 0)
        return 0;
    opened_close(o);
    return -1;
}

int opened_need_tokenizer(const struct opened *o)
{
    return o->bpe ? 0 : fail("%s: no tokenizer.json, so there is no text to read or write; put that of its training "
                             "there", o->dir);
}

int opened_encode(struct opened *o, const char *text, size_t n, bool separator, struct bpe_ids *ids)
{
    int32_t eot = bpe_eot(o->bpe);

    if (separator && eot >= 0) {
        bpe_ids_reserve(ids, 1);
        ids->at[ids->n++] = eot;
    }
    return bpe_encode(o->encoder, ids, text, n, 0) < 0 ? -1 : 0;
}

void opened_close(struct opened *o)
{
    if (o->encoder)
        bpe_encoder_close(o->encoder);
    if (o->bpe)
        bpe_close(o->bpe);
    if (o->model.layer)
        model_close(&o->model);
    dev_close(&o->dev);
    *o = (struct opened){ 0 };
}
