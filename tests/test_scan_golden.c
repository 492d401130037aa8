/* The recurrences against float64 values: outputs, final state, and the gradients of a loss on
 * the mean (d*) and of one on mean and variance (dv_*).
 *
 * The files speak of mu and I, of A and dt; we of M = mu I, J = I - Ip, decay = -A dt, Ip_log. */
#include "check_data.h"
#include "safetensors.h"
#include "test.h"

struct golden {
    struct st *file;
    int64_t    B, T, H, V, K;
    bool       state;
};

/* A tensor as floats, which the caller frees; empty when the file has none. */
static float *load(const struct golden *g, const char *prefix, const char *name)
{
    char full[32];
    const struct st_tensor *t;
    float *y;

    str_format(full, sizeof full, "%s%s", prefix, name);
    t = st_find(g->file, full);
    y = mem_new(t ? (size_t)t->count : 0, sizeof *y);
    CHECK(t && !st_float(t, y));
    return y;
}

static void near(const char *what, const float *got, const double *want, int64_t count)
{
    double worst = 0, size = 0;

    for (int64_t i = 0; i < count; i++) {
        double error = fabs(got[i] - want[i]);
        if (!(error <= worst))
            worst = error;
        size = fmax(size, fabs(want[i]));
    }
    if (!(worst <= 1e-5 * size))
        printf("FAIL %s: off by %g, largest value %g\n", what, worst, size), test_failed++;
}

static void near_file(const struct golden *g, const char *prefix, const char *name,
                      const float *got, int64_t count)
{
    float *file = load(g, prefix, name);
    double *want = mem_new((size_t)count, sizeof *want);

    for (int64_t i = 0; i < count; i++)
        want[i] = file[i];
    near(name, got, want, count);
    free(want);
    free(file);
}

static int64_t head_of_state(const struct golden *g, int64_t i)
{
    return i / (g->V * g->K) % g->H;
}

static void set_inputs(struct check_data *m, const struct golden *g)
{
    static const struct { int field; const char *name; } same[] = {
        { CHECK_Q, "q" }, { CHECK_K, "k" }, { CHECK_V, "v" }, { CHECK_BETA, "b" },
    };
    float *A = load(g, "", "A"), *dt = load(g, "", "dt"), *Ip = load(g, "", "Ip");

    m->scale = 0.5f;
    for (size_t i = 0; i < LEN(same); i++) {
        float *y = load(g, "", same[i].name);
        memcpy(m->val[same[i].field], y, (size_t)tensor_count(m->shape[same[i].field]) * sizeof *y);
        free(y);
    }
    for (int64_t i = 0; i < m->seqs.tokens * g->H; i++)
        m->val[CHECK_DECAY][i] = -dt[i] * A[i % g->H];
    for (int64_t h = 0; h < g->H; h++)
        m->val[CHECK_PRIOR][h] = logf(Ip[h]);
    if (g->state) {
        float *mu = load(g, "", "mu0"), *I = load(g, "", "I0");
        for (int64_t i = 0; i < tensor_count(m->shape[CHECK_STATE]); i++) {
            m->val[CHECK_STATE][i]     = mu[i] * I[i];
            m->val[CHECK_STATE + 1][i] = I[i] - Ip[head_of_state(g, i)];
        }
        free(mu);
        free(I);
    }
    free(A);
    free(dt);
    free(Ip);
}

static void check_outputs(const struct check_data *m, const struct golden *g)
{
    int64_t count = tensor_count(m->shape[CHECK_NEXT]);
    float *I = mem_new((size_t)count, sizeof *I), *mu = mem_new((size_t)count, sizeof *mu);
    float *Ip = load(g, "", "Ip");

    for (int64_t i = 0; i < count; i++) {
        I[i]  = m->val[CHECK_NEXT + 1][i] + Ip[head_of_state(g, i)];
        mu[i] = m->val[CHECK_NEXT][i] / I[i];
    }
    near_file(g, "", "o", m->val[CHECK_O], tensor_count(m->shape[CHECK_O]));
    near_file(g, "", "ovar", m->val[CHECK_VAR], tensor_count(m->shape[CHECK_VAR]));
    near_file(g, "", "I", I, count);
    near_file(g, "", "mu", mu, count);
    free(Ip);
    free(I);
    free(mu);
}

/* The chain rule from our variables to those of the file. */
static void check_gates(const struct check_data *m, const struct golden *g, const char *d,
                        double *dIp)
{
    float *A = load(g, "", "A"), *dt = load(g, "", "dt");
    float *ddt = mem_new((size_t)(m->seqs.tokens * g->H), sizeof *ddt);
    float *dA = mem_new((size_t)g->H, sizeof *dA), *prior = mem_new((size_t)g->H, sizeof *prior);

    for (int64_t i = 0; i < m->seqs.tokens * g->H; i++) {
        ddt[i] = -A[i % g->H] * m->grad[CHECK_DECAY][i];
        dA[i % g->H] -= dt[i] * m->grad[CHECK_DECAY][i];
    }
    for (int64_t h = 0; h < g->H; h++)
        prior[h] = (float)dIp[h];
    near_file(g, d, "dt", ddt, m->seqs.tokens * g->H);
    near_file(g, d, "A", dA, g->H);
    near_file(g, d, "Ip", prior, g->H);
    free(A);
    free(dt);
    free(ddt);
    free(dA);
    free(prior);
}

static void check_state(const struct check_data *m, const struct golden *g, const char *d,
                        double *dIp)
{
    int64_t count = tensor_count(m->shape[CHECK_STATE]);
    const float *gM = m->grad[CHECK_STATE], *gJ = m->grad[CHECK_STATE + 1];
    float *mu = load(g, "", "mu0"), *I = load(g, "", "I0");
    float *dmu = mem_new((size_t)count, sizeof *dmu), *dI = mem_new((size_t)count, sizeof *dI);

    for (int64_t i = 0; i < count; i++) {
        dmu[i] = gM[i] * I[i];
        dI[i]  = gM[i] * mu[i] + gJ[i];
        dIp[head_of_state(g, i)] -= gJ[i];
    }
    near_file(g, d, "mu0", dmu, count);
    near_file(g, d, "I0", dI, count);
    free(mu);
    free(I);
    free(dmu);
    free(dI);
}

static void check_gradients(struct check_data *m, const struct golden *g, const char *d)
{
    float *Ip = load(g, "", "Ip");
    double *dIp = mem_new((size_t)g->H, sizeof *dIp);

    for (int64_t h = 0; h < g->H; h++)
        dIp[h] = (double)m->grad[CHECK_PRIOR][h] / Ip[h];
    if (g->state)
        check_state(m, g, d, dIp);
    near_file(g, d, "q", m->grad[CHECK_Q], tensor_count(m->shape[CHECK_Q]));
    near_file(g, d, "k", m->grad[CHECK_K], tensor_count(m->shape[CHECK_K]));
    near_file(g, d, "v", m->grad[CHECK_V], tensor_count(m->shape[CHECK_V]));
    near_file(g, d, "b", m->grad[CHECK_BETA], tensor_count(m->shape[CHECK_BETA]));
    check_gates(m, g, d, dIp);
    free(dIp);
    free(Ip);
}

static void check_file(const struct golden *g, enum dev_kind kind)
{
    const struct st_tensor *cu = st_find(g->file, "cu_seqlens");
    struct dev d = { .kind = kind, .type = F32, .threads = 2 };
    int n = cu ? (int)cu->count - 1 : (int)g->B;
    int32_t *length = mem_new((size_t)n + 1, sizeof *length);
    struct scan_case c = { g->H, g->H, g->H, g->K, g->V, .length = length, .n = n,
                           .state = g->state, .var = true };
    struct check_data *m;

    if (cu)
        CHECK(!st_int(cu, length));
    for (int i = 0; i < n; i++)
        length[i] = cu ? length[i + 1] - length[i] : (int32_t)g->T;
    m = check_new(scan_find("palimpsa"), &c);
    set_inputs(m, g);
    for (int var = 0; var < 2; var++) {
        float *go = load(g, "", "do"), *gvar = load(g, "", "dovar");
        memcpy(m->grad[CHECK_O], go, (size_t)tensor_count(m->shape[CHECK_O]) * sizeof *go);
        for (int64_t i = 0; i < tensor_count(m->shape[CHECK_VAR]); i++)
            m->grad[CHECK_VAR][i] = var ? gvar[i] : 0;
        CHECK(check_run(m, &d) == NULL);
        check_outputs(m, g);
        check_gradients(m, g, var ? "dv_" : "d");
        free(go);
        free(gvar);
    }
    check_free(m);
    free(length);
}

/* Gated linear attention: g is the log of what survives. */
static void check_linear(const struct golden *g, enum dev_kind kind)
{
    static const struct { int field; const char *name; } in[] = {
        { CHECK_Q, "q" }, { CHECK_K, "k" }, { CHECK_V, "v" }, { CHECK_DECAY, "g" },
    };
    const int32_t length[] = { (int32_t)g->T, (int32_t)g->T };
    struct dev d = { .kind = kind, .type = F32, .threads = 2 };
    struct scan_case c = { g->H, g->H, g->H, g->K, g->V, .length = length, .n = 2 };
    struct check_data *m = check_new(scan_find("linear"), &c);

    REQUIRE(g->B == 2);
    m->scale = 1;
    for (size_t i = 0; i < LEN(in); i++) {
        free(m->val[in[i].field]);
        m->val[in[i].field] = load(g, "", in[i].name);
    }
    free(m->grad[CHECK_O]);
    m->grad[CHECK_O] = load(g, "", "do");
    CHECK(check_run(m, &d) == NULL);
    near_file(g, "", "o", m->val[CHECK_O], tensor_count(m->shape[CHECK_O]));
    near_file(g, "", "S", m->val[CHECK_NEXT], tensor_count(m->shape[CHECK_NEXT]));
    for (size_t i = 0; i < LEN(in); i++)
        near_file(g, "d", in[i].name, m->grad[in[i].field], tensor_count(m->shape[in[i].field]));
    check_free(m);
}

int main(void)
{
    static const char *const name[] = { "scan_plain", "scan_state", "scan_varlen", "gla" };

    for (size_t i = 0; i < LEN(name); i++) {
        char path[4096];
        struct golden g = { 0 };
        const struct st_tensor *v, *k;

        str_format(path, sizeof path, "%s/ops/%s.safetensors", test_golden(), name[i]);
        g.file = st_open(path);
        if (!g.file)
            return 1;
        v = st_find(g.file, "v");
        k = st_find(g.file, "k");
        g.B = v->dim[0];
        g.T = v->dim[1];
        g.H = v->dim[2];
        g.V = v->dim[3];
        g.K = k->dim[3];
        g.state = st_find(g.file, "I0");
        for (enum dev_kind kind = DEV_NAIVE; kind <= DEV_CPU; kind++)
            (st_find(g.file, "Ip") ? check_file : check_linear)(&g, kind);
        st_close(g.file);
    }
    return test_done("scan_golden");
}
