/* palimpsa_tiled.cu - the palimpsa scan at full speed for common shapes: scratch and the order of the passes. */
#include "palimpsa_tiled.cuh"

/* Shapes that have kernels; rows: those of the memory that a block owns; warps of a block, blocks of a
 * multiprocessor. */
static const struct { int K, rows, warps, reverse_blocks, read_blocks; } shapes[] = {
    { 16, 32, 1, 8, 8 }, { 48, 48, 2, 4, 8 }, { 64, 32, 2, 4, 8 }, { 96, 48, 4, 2, 4 }, { 128, 32, 4, 2, 4 },
};

static int shape_of(const struct scan_io *x)
{
    for (int i = 0; i < (int)LEN(shapes); i++)
        if (x->k.dim[2] == shapes[i].K && x->v.dim[2] % shapes[i].rows == 0)
            return i;
    return -1;
}

/* May the tokens of a tile be told apart in 31 bits of bytes? */
static bool near(struct tensor t) { return t.row < (int64_t)1 << 23; }

bool palimpsa_tiled_fits(const struct dev *d, const struct scan_io *x)
{
    int major = 0;

    CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, d->index));
    return major == 9 && shape_of(x) >= 0 && x->q.type == BF16 && !x->var.data && x->v.dim[1] < 65536 &&
        packs(x->q, 8) && packs(x->k, 8) && packs(x->v, 8) && packs(x->beta, 8) && packs(x->o, 8) &&
        near(x->q) && near(x->k) && near(x->v) && near(x->beta) && near(x->o);
}

bool palimpsa_tiled_fits_back(const struct scan_io *g)
{
    return !g->var.data && packs(g->o, 8) && packs(g->q, 2) && packs(g->k, 2) && packs(g->v, 2) && packs(g->beta, 2) &&
        near(g->o) && near(g->q) && near(g->k) && near(g->v) && near(g->beta);
}

/* How a row may be cut: tokens of a piece at most and at least; what a piece costs of its own, in tokens. */
struct cutting { int64_t jobs, running, most, least, extra; bool uneven; };

/* Tokens of a piece of the row that one block walks: few waves of blocks, and full ones. Where pieces queue and are
 * uneven, the last is half done when the others are. Where documents begin with every `even` tokens, a piece of a
 * multiple of that costs nothing of its own. */
static int64_t piece_tokens(int64_t T, const struct cutting *c, int64_t even)
{
    int64_t best = c->most;
    double  least = 1e30;

    for (int64_t n = c->most; n >= c->least; n /= 2) {
        const int64_t all = ceil_div(T, n) * c->jobs;
        const double  waves = c->uneven && all > c->running ? (double)all / (double)c->running + 0.5
                                                            : (double)ceil_div(all, c->running);
        const double  cost = waves * (double)(n + (n % even ? c->extra : 0));
        if (cost < 0.99 * least)
            least = cost, best = n;
    }
    return best;
}

/* Pieces for these documents. There are at most `most`, wherever documents begin: scratch is for so many. */
struct pieces { int64_t tokens, n, most, period; };

static struct pieces pieces_of(const struct seqs *s, struct cutting c)
{
    const int64_t T = s->tokens, even = seqs_even(s);
    struct pieces p;

    c.least  = piece_tokens(T, &c, INT64_MAX);
    p.most   = ceil_div(T, c.least);
    p.tokens = piece_tokens(T, &c, even);
    p.n      = ceil_div(T, p.tokens);
    p.period = even < T ? ceil_div(even, p.tokens) : p.n;
    return p;
}

static struct tiled tiled_of(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward,
                             struct carver *m)
{
    const int64_t T = s->tokens, H = x->v.dim[1], V = x->v.dim[2], K = x->k.dim[2], memory = H * V * K * 2;
    const int shape = shape_of(x);
    struct tiled w = {};

    w.docs = (struct docs){ s->dstart, s->dseq };
    w.T = T, w.H = H, w.V = V, w.one = 1.f;
    w.opens = (const uint64_t *)carve(m, 2 * seqs_tiles(s));
    if (!backward) {
        const struct pieces p = pieces_of(s, { H * V / shapes[shape].rows, shapes[shape].read_blocks * cuda_of(d)->sms,
                                               1024, 2 * TILE, 32, false });
        w.span_tokens = p.tokens, w.spans = p.n, w.period = p.period;
        w.span      = carve(m, p.most * memory);
        w.kept      = carve(m, p.most * H);
        w.next      = (int *)carve(m, 1);
        return w;
    }
    w.parts     = V / shapes[shape].rows;
    const struct pieces p = pieces_of(s, { H * w.parts, shapes[shape].reverse_blocks * cuda_of(d)->sms, 2048, 2 * TILE,
                                           45, true });
    w.segment   = p.tokens, w.segments = p.n, w.period = p.period;
    w.grad      = carve(m, p.most * memory);
    w.grad_kept = carve(m, p.most * H);
    w.rest      = carve(m, seqs_tiles(s) * H);
    w.check     = (float4 *)carve(m, cuda_of(d)->sms * shapes[shape].reverse_blocks * 7 * shapes[shape].rows * K * 2);
    w.next      = (int *)carve(m, 1);
    w.dump      = carve(m, 1024);
    w.priors    = w.segments * w.parts * shapes[shape].warps;
    w.prior     = carve(m, p.most * w.parts * shapes[shape].warps * H);
    if (w.parts > 1 || x->q.dim[1] != H)
        w.dq    = carve(m, w.parts * T * H * K);
    if (w.parts > 1 || x->k.dim[1] != H)
        w.dk    = carve(m, w.parts * T * H * K);
    if (w.parts > 1)
        w.decay = carve(m, w.parts * T * H);
    return w;
}

int64_t palimpsa_tiled_scratch(const struct dev *d, const struct seqs *s, const struct scan_io *x, bool backward)
{
    struct carver m = {};

    tiled_of(d, s, x, backward, &m);
    return m.used;
}

void palimpsa_tiled_forward(struct dev *d, const struct seqs *s, const struct scan_io *x, void *scratch)
{
    struct carver m = { (char *)scratch, 0 };
    const struct tiled w = tiled_of(d, s, x, false, &m);

    palimpsa_openings(d, &w);
    if (w.period > 1)
        palimpsa_span_states(d, x, &w);
    palimpsa_read(d, x, &w);
}

void palimpsa_tiled_backward(struct dev *d, const struct seqs *s, const struct scan_io *x, const struct scan_io *g,
                             void *scratch)
{
    struct carver m = { (char *)scratch, 0 };
    const struct tiled w = tiled_of(d, s, x, true, &m);

    palimpsa_openings(d, &w);
    palimpsa_reverse(d, x, g, &w);
    palimpsa_correct(d, x, g, &w);
    if (w.dq)
        palimpsa_fold(d, g->q, w.dq, w.H, w.parts);
    if (w.dk)
        palimpsa_fold(d, g->k, w.dk, w.H, w.parts);
    if (w.decay) {
        struct tensor to = g->decay;        /* [T,H] as [T,H,1] */
        palimpsa_fold(d, to, w.decay, w.H, w.parts);
    }
    palimpsa_add_prior(d, g->prior[0], x->prior[0], w.prior, w.priors);
}
