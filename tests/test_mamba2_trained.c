/* test_mamba2_trained.c - a trained Mamba2 of the state-spaces family against float64 values of another
 * implementation: logits, loss, and the memory after the last token. */
#include "json.h"
#include "op.h"
#include "opened.h"
#include "test.h"

/* A little-endian .npy of float64 or int32/int64; count numbers as double. */
static double *npy(const char *dir, const char *name, int64_t count)
{
    char path[1024];
    size_t n, head;
    char *text;
    double *x;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    text = file_read(path, &n);
    if (!text || n < 128 || memcmp(text, "\x93NUMPY", 6)) {
        free(text);
        return NULL;
    }
    head = 10 + (size_t)(unsigned char)text[8] + 256 * (size_t)(unsigned char)text[9];
    x = mem_new((size_t)count, sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        int32_t small;
        int64_t wide;
        if (n - head == (size_t)count * 4) {
            memcpy(&small, text + head + i * 4, 4);
            x[i] = small;
        } else if (strstr(text, "i8")) {
            memcpy(&wide, text + head + i * 8, 8);
            x[i] = (double)wide;
        } else {
            memcpy(&x[i], text + head + i * 8, 8);
        }
    }
    free(text);
    return x;
}

static double distance(const float *got, const double *want, int64_t n)
{
    double diff = 0, size = 0;

    for (int64_t i = 0; i < n; i++) {
        diff += (got[i] - want[i]) * (got[i] - want[i]);
        size += want[i] * want[i];
    }
    return sqrt(diff / size);
}

enum { IDS = 257, T = 256, VOCAB = 80, CHANNELS = 320, H = 8, P = 32, S = 32 };

/* Their tail holds the last four inputs of every channel, oldest first and channels innermost; ours the last three. */
static void check_states(struct opened *o, struct model_state *s, const char *dir)
{
    float *tail = mem_new(3 * CHANNELS, sizeof *tail), *memory = mem_new(H * P * S, sizeof *memory);

    for (int l = 0; l < o->model.cfg.layers; l++) {
        char name[64];
        double *want;
        snprintf(name, sizeof name, "final_ssm_state_layer%d.npy", l);
        want = npy(dir, name, H * P * S);
        CHECK(want != NULL);
        op_get(&o->dev, memory, s->at[l][0].data, (size_t)(H * P * S) * 4);
        if (want)
            CHECK_NEAR(distance(memory, want, H * P * S), 0, 1e-4);
        free(want);
        snprintf(name, sizeof name, "final_conv_state_layer%d.npy", l);
        want = npy(dir, name, 4 * CHANNELS);
        CHECK(want != NULL);
        op_get(&o->dev, tail, s->at[l][SCAN_STATES].data, 3 * CHANNELS * 4);
        if (want)
            CHECK_NEAR(distance(tail, want + CHANNELS, 3 * CHANNELS), 0, 1e-4);
        free(want);
    }
    free(tail);
    free(memory);
}

static void check_model(const char *dir, const char *device, const double *ids, const double *logits, int64_t length)
{
    struct opened o;
    struct model_state s = { 0 };
    int32_t token[IDS], start[2] = { 0, (int32_t)length };
    struct batch b = { .token = token, .target = token + 1, .seqs = seqs_of(start, 1) };
    struct pass p = { .fresh = true };
    float *got = mem_new(IDS * VOCAB, sizeof *got);

    for (int i = 0; i < IDS; i++)
        token[i] = (int32_t)ids[i];
    if (opened_open(&o, dir, device, "fp32", 2, &(struct model_use){ 0 })) {
        CHECK(!"the trained model opens");
        free(got);
        return;
    }
    CHECK(o.model.cfg.vocab == VOCAB && o.model.cfg.vocab_real == 65);
    CHECK(model_state_open(&o.model, &s, 1) == 0);
    CHECK(model_reserve(&o.model, JOB_LOGITS, length) == 0);
    p.state = s.at;
    model_logits(&o.model, &b, &p, false, got);
    CHECK_NEAR(distance(got, logits, 256 * VOCAB), 0, 1e-4);
    check_states(&o, &s, dir);
    start[1] = T;
    b.seqs = seqs_of(start, 1);
    CHECK(model_reserve(&o.model, JOB_LOSS, T) == 0);
    CHECK_NEAR(model_loss(&o.model, &b, NULL, NULL) / T, 1.9985186, 1e-5);
    printf("%s: logits off by %.2g, loss %.6f\n", device, distance(got, logits, 256 * VOCAB),
           model_loss(&o.model, &b, NULL, NULL) / T);
    model_state_close(&o.model, &s);
    opened_close(&o);
    free(got);
}

int main(void)
{
    char dir[1024];
    double *ids, *logits;

    if (!test_reference())
        return test_skip("mamba2_trained", "PALIMPSA_REFERENCE is not set");
    snprintf(dir, sizeof dir, "%s/data/checkpoints/mamba2-char-shakespeare", test_reference());
    ids = npy(dir, "input_ids.npy", IDS);
    if (!ids)
        return test_skip("mamba2_trained", "no trained checkpoint among the reference data");
    logits = npy(dir, "logits_f64.npy", 256 * VOCAB);
    CHECK(logits != NULL);
    if (logits) {
        check_model(dir, "cpu", ids, logits, T);
        check_model(dir, "naive", ids, logits, T);
    }
    free(ids);
    free(logits);
    return test_done("mamba2_trained");
}
