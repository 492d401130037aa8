/* Where the recurrences must meet each other, a sum, or a number worked out by hand. */
#include "check_data.h"
#include "test.h"

static struct dev device[] = {
    { .kind = DEV_NAIVE, .type = F32, .threads = 1 },
    { .kind = DEV_CPU, .type = F32, .threads = 2 },
};

/* A case is { Hq, Hk, H, K, V, LENGTHS(..), .. }. */
#define LENGTHS(...) \
    .length = (const int32_t[]){ __VA_ARGS__ }, .n = (int)LEN(((const int32_t[]){ __VA_ARGS__ }))
#define DECAYS(...) \
    .decay = (const float[]){ __VA_ARGS__ }, .decays = (int)LEN(((const float[]){ __VA_ARGS__ }))

static struct check_data *filled(const char *scan, const struct scan_case *c)
{
    struct check_data *m = check_new(scan_find(scan), c);

    check_fill(m);
    return m;
}

static void set_all(float *to, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = value;
}

/* Largest difference over largest value. */
static double apart(const float *a, const float *b, int64_t count)
{
    double worst = 0, size = 0;

    for (int64_t i = 0; i < count; i++) {
        worst = fabs((double)a[i] - b[i]) <= worst ? worst : fabs((double)a[i] - b[i]);
        size = fmax(size, fabs((double)b[i]));
    }
    return worst / (size + 1e-30);
}

static void copy(struct check_data *to, const struct check_data *from, int field)
{
    size_t bytes = (size_t)tensor_count(from->shape[field]) * sizeof(float);

    memcpy(to->val[field], from->val[field], bytes);
    memcpy(to->grad[field], from->grad[field], bytes);
}

/* Without gains of precision and with Ip = 1 the memory is that of gated linear attention. With a
 * huge Ip the gains are lost beside it, and v times Ip undoes the division. */
static void meets_linear(struct dev *d, float Ip_log, float beta, double allowed)
{
    const struct scan_case c = { 1, 2, 2, 12, 9, LENGTHS(5, 130), .state = true, .seed = 5 };
    static const int same[] = {
        CHECK_Q, CHECK_K, CHECK_V, CHECK_DECAY, CHECK_STATE, CHECK_O, CHECK_NEXT,
    };
    struct check_data *p = filled("palimpsa", &c), *l = filled("linear", &c);
    float Ip = expf(Ip_log);

    for (size_t i = 0; i < LEN(same); i++)
        copy(p, l, same[i]);
    set_all(p->val[CHECK_BETA], tensor_count(p->shape[CHECK_BETA]), beta);
    set_all(p->val[CHECK_PRIOR], 2, Ip_log);
    set_all(p->val[CHECK_STATE + 1], tensor_count(p->shape[CHECK_STATE]), 0);
    set_all(p->grad[CHECK_NEXT + 1], tensor_count(p->shape[CHECK_NEXT]), 0);
    for (int64_t i = 0; i < tensor_count(p->shape[CHECK_V]); i++)
        p->val[CHECK_V][i] *= Ip;
    for (int64_t i = 0; i < tensor_count(p->shape[CHECK_STATE]); i++) {
        p->val[CHECK_STATE][i] *= Ip;
        p->grad[CHECK_NEXT][i] /= Ip;
    }
    CHECK(!check_run(p, d) && !check_run(l, d));
    for (int64_t i = 0; i < tensor_count(p->shape[CHECK_V]); i++)
        p->grad[CHECK_V][i] *= Ip;
    for (int64_t i = 0; i < tensor_count(p->shape[CHECK_STATE]); i++) {
        p->val[CHECK_NEXT][i] /= Ip;
        p->grad[CHECK_STATE][i] *= Ip;
    }
    for (size_t i = 0; i < LEN(same); i++) {
        int64_t count = tensor_count(p->shape[same[i]]);
        bool out = same[i] >= CHECK_O;
        CHECK_NEAR(apart(out ? p->val[same[i]] : p->grad[same[i]],
                   out ? l->val[same[i]] : l->grad[same[i]], count), 0, allowed);
    }
    check_free(p);
    check_free(l);
}

/* Nothing is forgotten: the memory is a sum over tokens. */
static void only_adds(struct dev *d)
{
    const struct scan_case c = { 1, 1, 1, 3, 2, LENGTHS(100), DECAYS(0), .seed = 6 };
    struct check_data *m = filled("palimpsa", &c);
    double sum[2][6] = { { 0 } };

    CHECK(!check_run(m, d));
    for (int64_t t = 0; t < 100; t++)
        for (int i = 0; i < 6; i++) {
            double k = m->val[CHECK_K][t * 3 + i % 3];
            sum[0][i] += k * m->val[CHECK_V][t * 2 + i / 3];
            sum[1][i] += k * k * m->val[CHECK_BETA][t * 2 + i / 3];
        }
    for (int i = 0; i < 6; i++) {
        CHECK_NEAR(m->val[CHECK_NEXT][i], sum[0][i], 1e-5);
        CHECK_NEAR(m->val[CHECK_NEXT + 1][i], sum[1][i], 1e-5);
    }
    check_free(m);
}

/* sum over v,k of -e r mu and -f r r at every token, for one head, in double. */
static void local_sums(double *S, const struct check_data *m, int64_t T, int64_t V, int64_t K)
{
    double M[64] = { 0 }, J[64] = { 0 }, Ip = exp((double)m->val[CHECK_PRIOR][0]);

    for (int64_t t = 0; t < T; t++) {
        const float *q = m->val[CHECK_Q] + t * K, *k = m->val[CHECK_K] + t * K;
        double a = exp((double)m->val[CHECK_DECAY][t]);
        S[t] = 0;
        for (int64_t i = 0; i < V * K; i++) {
            int64_t at = t * V + i / K, j = i % K;
            double go = m->scale * (double)m->grad[CHECK_O][at], r;
            double gv = m->scale * (double)m->grad[CHECK_VAR][at];
            M[i] = a * M[i] + (double)m->val[CHECK_V][at] * k[j];
            J[i] = a * J[i] + (double)m->val[CHECK_BETA][at] * k[j] * k[j];
            r = 1 / (J[i] + Ip);
            S[t] -= go * q[j] * r * M[i] * r + gv * q[j] * q[j] * r * r;
        }
    }
}

/* The gradient of the decays also follows from sums that cost nothing per entry of the memory:
 *   ddecay_t = ddecay_{t+1} - Ip S_t - <v,dv> - <b,db> - <var,dvar>
 * and behind the last token stands <M,gM> + <J,gJ>. */
static void factorised_decay(struct dev *d)
{
    enum { T = 90, V = 3, K = 5 };
    const struct scan_case c = { 1, 1, 1, K, V, LENGTHS(T), .var = true, .seed = 7 };
    static const int inner[] = { CHECK_V, CHECK_BETA, CHECK_VAR };
    struct check_data *m = filled("palimpsa", &c);
    double S[T], X = 0, Ip = exp((double)m->val[CHECK_PRIOR][0]), size = 0;

    CHECK(!check_run(m, d));
    local_sums(S, m, T, V, K);
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < V * K; i++)
            X += (double)m->val[CHECK_NEXT + j][i] * m->grad[CHECK_NEXT + j][i];
    for (int64_t t = T - 1; t >= 0; t--) {
        X -= Ip * S[t];
        for (int64_t i = t * V; i < (t + 1) * V; i++)
            for (int f = 0; f < 3; f++)
                X -= (double)m->val[inner[f]][i] * m->grad[inner[f]][i];
        size = fmax(size, fabs(X));
        CHECK_NEAR(m->grad[CHECK_DECAY][t], X, 2e-5 * size);
    }
    check_free(m);
}

static void finite(struct dev *d, const char *scan, const struct scan_case *c)
{
    struct check_data *m = filled(scan, c);

    CHECK(!check_run(m, d));
    for (int i = 0; i < CHECK_FIELDS; i++)
        for (int64_t j = 0; j < tensor_count(m->shape[i]); j++)
            if (!isfinite(m->val[i][j]) || !isfinite(m->grad[i][j])) {
                CHECK(isfinite(m->val[i][j]) && isfinite(m->grad[i][j]));
                break;
            }
    check_free(m);
}

/* Strong decays: values and gradients as in double, within 1e-4 for every head. */
static void strong_decays(struct dev *d, const char *scan)
{
    const struct scan_case c[] = {
        { 1, 1, 3, 16, 24, LENGTHS(257), .var = true, DECAYS(-30), .seed = 8 },
        { 2, 2, 2, 24, 16, LENGTHS(128), .var = true, DECAYS(-1e-6f, -1, -80), .seed = 9 },
        { 1, 1, 2, 8, 8, LENGTHS(4096), .state = true, DECAYS(-1e-6f, -1, -80), .seed = 10 },
        { 1, 1, 2, 8, 8, LENGTHS(300), .state = true, DECAYS(-1e-3f, -30, -200), .seed = 11 },
    };

    for (size_t i = 0; i < LEN(c); i++) {
        struct scan_error e = check_scan_agreement(d, scan_find(scan), &c[i]);
        CHECK_NEAR(e.worst * 2e-4, 0, 1e-4);
        if (e.worst > 0.5)
            printf("  %s: %s\n", scan, e.where);
        finite(d, scan, &c[i]);
    }
}

/* A = -1, dt = ln 2, one key and query of 1: an impulse halves with every token. */
static void impulse(struct dev *d)
{
    static const double want[] = { 0.693147, 0.346574, 0.173287, 0.086643 };
    const double dt = log(2);
    struct scan_case whole = { 1, 1, 1, 1, 1, LENGTHS(4) };
    struct scan_case token = { 1, 1, 1, 1, 1, LENGTHS(1), .state = true };
    struct check_data *m = check_new(scan_find("linear"), &whole);
    struct check_data *one = check_new(scan_find("linear"), &token);

    m->scale = one->scale = 1;
    set_all(m->val[CHECK_Q], 4, 1);
    set_all(m->val[CHECK_K], 4, 1);
    set_all(m->val[CHECK_DECAY], 4, (float)-dt);
    m->val[CHECK_V][0] = (float)dt;
    CHECK(!check_run(m, d));
    for (int t = 0; t < 4; t++) {
        one->val[CHECK_Q][0] = one->val[CHECK_K][0] = 1;
        one->val[CHECK_DECAY][0] = (float)-dt;
        one->val[CHECK_V][0] = t ? 0 : (float)dt;
        CHECK(!check_run(one, d));
        one->val[CHECK_STATE][0] = one->val[CHECK_NEXT][0];
        CHECK_NEAR(m->val[CHECK_O][t], want[t], 1e-6);
        CHECK_NEAR(one->val[CHECK_O][0], want[t], 1e-6);
    }
    check_free(m);
    check_free(one);
}

/* Whole rows and token by token, at a length where rounding has had its time. */
static void modes_agree(struct dev *d, const char *scan)
{
    const struct scan_case c = { 1, 1, 2, 16, 8, LENGTHS(512), .seed = 12 };
    struct scan_error e = check_scan_decoding(d, scan_find(scan), &c);

    CHECK_NEAR(e.worst * 2e-4, 0, 1e-4);
}

int main(void)
{
    for (size_t i = 0; i < LEN(device); i++) {
        meets_linear(&device[i], 0, 0, 1e-5);
        meets_linear(&device[i], 20, 1, 1e-5);
        only_adds(&device[i]);
        factorised_decay(&device[i]);
        impulse(&device[i]);
        modes_agree(&device[i], "palimpsa");
        modes_agree(&device[i], "linear");
    }
    strong_decays(&device[1], "palimpsa");
    strong_decays(&device[1], "linear");
    return test_done("scan_limits");
}
