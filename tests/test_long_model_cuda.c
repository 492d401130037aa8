/* Whole tiny models over rows of 262,140, 262,141 and 262,144 tokens in documents of 752, with a vocabulary that takes
 * the logits beyond 2^31: the last document's losses and gradients are those of its own run.
 *
 *   test_long_model_cuda            on a GPU with room for it, else skipped
 *   test_long_model_cuda DEVICE     the same with small sizes, to test the test */
#include "model.h"
#include "on_gpu.h"
#include "rng.h"

enum { DOCUMENT = 752 };
static bool small;

static int64_t length(void)
{
    return small ? 3000 : 262144;
}

/* A row of documents of 752 tokens. */
struct text { int32_t *token, *target, *start; struct batch b; };

static void text_open(struct text *x, int64_t tokens, int64_t vocab)
{
    int n = (int)((tokens + DOCUMENT - 1) / DOCUMENT);

    x->token = mem_new((size_t)tokens, sizeof *x->token);
    x->target = mem_new((size_t)tokens, sizeof *x->target);
    x->start = mem_new((size_t)n + 1, sizeof *x->start);
    for (int64_t t = 0; t < tokens; t++)
        x->token[t] = (int32_t)(rng_bits(7, 1, (uint64_t)t) % (uint64_t)vocab);
    for (int64_t t = 0; t < tokens; t++)
        x->target[t] = (t + 1) % DOCUMENT && t + 1 < tokens ? x->token[t + 1] : -1;
    for (int i = 0; i <= n; i++)
        x->start[i] = (int32_t)(i < n ? i * DOCUMENT : tokens);
    x->b = (struct batch){ .token = x->token, .target = x->target, .seqs = seqs_of(x->start, n) };
}

static void text_close(struct text *x)
{
    free(x->token);
    free(x->target);
    free(x->start);
}

/* Gradients of a step over this row, of all parameters. */
static float **grads_new(struct model *m, const struct batch *b, double *loss)
{
    float **g = mem_new((size_t)m->params.n, sizeof *g);

    params_zero_grad(&m->params, m->dev);
    *loss = model_learn(m, b, 1.f / DOCUMENT, NULL, NULL);
    for (int i = 0; i < m->params.n; i++) {
        g[i] = mem_new((size_t)tensor_count(m->params.at[i].grad), sizeof **g);
        param_get(m->dev, &m->params.at[i].grad, g[i]);
    }
    return g;
}

static double square(const float *x, int64_t n)
{
    double sum = 0;

    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * x[i];
    return sum;
}

/* Loss and gradients of the last document in the row and alone; only it has targets. */
static void check_text(struct model *m, const char *name, int64_t tokens)
{
    int64_t cut = (tokens - 1) / DOCUMENT * DOCUMENT, n = tokens - cut;
    float *nll = mem_new((size_t)tokens, sizeof *nll), *own = mem_new((size_t)n, sizeof *own), **a, **b;
    double allowed = m->dev->type == BF16 ? 3e-2 : 1e-3, loss[2], error, all = 0;
    double noise = m->dev->type == BF16 ? 0.01 : 0;        /* some sums of rounded numbers nearly vanish */
    int32_t start[2] = { 0, (int32_t)n };
    struct text x;
    struct batch last;

    text_open(&x, tokens, m->cfg.vocab_real);
    last = (struct batch){ .token = x.token + cut, .target = x.target + cut, .seqs = seqs_of(start, 1) };
    CHECK(isfinite(model_loss(m, &x.b, NULL, nll)));
    model_loss(m, &last, NULL, own);
    CHECK_NEAR(test_distance(nll + cut, own, n), 0, allowed / 10);
    for (int64_t t = 0; t < cut; t++)
        x.target[t] = -1;
    a = grads_new(m, &x.b, &loss[0]);
    b = grads_new(m, &last, &loss[1]);
    CHECK_NEAR(loss[0] / loss[1], 1, allowed / 10);
    for (int i = 0; i < m->params.n; i++)
        all += square(b[i], tensor_count(m->params.at[i].grad));
    for (int i = 0; i < m->params.n; i++) {
        int64_t count = tensor_count(m->params.at[i].grad);
        double size = sqrt(square(b[i], count));
        error = test_distance(a[i], b[i], count) * size / (size + noise * sqrt(all));
        if (!(error <= allowed)) {
            printf("FAIL %s %s T %lld: gradient of %s is off by %g\n", name, dtype_name(m->dev->type),
                   (long long)tokens, m->params.at[i].name, error);
            test_failed++;
        }
        free(a[i]);
        free(b[i]);
    }
    free(a);
    free(b);
    free(nll);
    free(own);
    text_close(&x);
}

/* T*vocabulary is 1.3e10: logits are computed by slices of rows, with offsets of the whole. */
static void check_model(struct dev *d, const char *name)
{
    struct model_use use = { .learn = true };
    double began = time_now();
    struct config c;
    struct model m;

    if (config_read(&c, name)) {
        test_failed++;
        return;
    }
    c.vocab = small ? 512 : 50288;
    c.vocab_real = small ? 500 : 50277;
    if (model_open(&m, d, &c, &use)) {
        test_failed++;
        return;
    }
    params_init(&m.params, d, 1, 0);
    if (model_reserve(&m, JOB_LEARN, length()) || model_reserve(&m, JOB_LOSS, length())) {
        printf("%s: skipped, no room\n", name);
    } else {
        check_text(&m, name, length() - 4);
        check_text(&m, name, length() - 3);
        check_text(&m, name, length());
        test_ran++;
        printf("%s %s: rows of %lld tokens, %.1f s\n", name, dtype_name(d->type), (long long)length(),
               time_now() - began);
    }
    model_close(&m);
    dev_reserve(d, 0, 0);
}

static void check(struct dev *d)
{
    check_model(d, "palimpsa-tiny");
    check_model(d, "meta_mamba2-tiny");
    check_model(d, "mamba2-tiny");
}

int main(int argc, char **argv)
{
    small = argc > 1;
    return test_on_gpu("long_model_cuda", argc, argv, 0, check);
}
