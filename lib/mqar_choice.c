/* mqar_choice.c - which rate of a model is the best on a mix, and which runs that leaves to do.
 *
 * The best rate is the one whose mean accuracy over finished seeds, and over the lengths of the mix, is greatest; a run
 * that diverged counts with what it had learned. With --rate-seeds only the first seeds choose, and the best rate alone
 * gets the others, once all runs that choose are over. */
#include "mqar_grid.h"
#include <math.h>

static const struct mqar_cell *cell_at(const struct mqar_grid *g, int seed, int mix, int rate, int model)
{
    return &g->cell[((seed * g->mixes + mix) * g->rates + rate) * g->models + model];
}

int mqar_choosing(const struct mqar_grid *g)
{
    int64_t n = g->o->rate_seeds;

    return (int)(n > 0 && n < g->o->seeds ? n : g->o->seeds);
}

struct mqar_spread mqar_spread_of(const struct mqar_grid *g, int mix, int rate, int model, int seeds)
{
    struct mqar_spread s = { 0 };
    int kinds = g->mix[mix].n;

    for (int k = 0; k < kinds; k++)
        s.low[k] = 1;
    for (int seed = 0; seed < seeds; seed++) {
        const struct mqar_cell *c = cell_at(g, seed, mix, rate, model);
        if (!mqar_is_over(c))
            continue;
        s.n++;
        s.seconds += c->told.seconds;
        for (int k = 0; k < kinds; k++) {
            double a = c->told.accuracy[k];
            s.mean[k] += a;
            s.square[k] += a * a;
            s.low[k] = fmin(s.low[k], a);
            s.high[k] = fmax(s.high[k], a);
        }
    }
    s.seconds /= s.n;
    for (int k = 0; k < kinds; k++) {
        s.mean[k] /= s.n;
        s.whole += s.mean[k] / kinds;
    }
    return s;
}

int mqar_best_rate(const struct mqar_grid *g, int mix, int model, struct mqar_spread *out)
{
    double most = 0;
    int best = -1;

    for (int r = 0; r < g->rates; r++) {
        struct mqar_spread s = mqar_spread_of(g, mix, r, model, mqar_choosing(g));
        if (s.n && (best < 0 || s.whole > most)) {
            best = r;
            most = s.whole;
        }
    }
    if (best >= 0 && out)
        *out = mqar_spread_of(g, mix, best, model, (int)g->o->seeds);
    return best;
}

bool mqar_chosen(const struct mqar_grid *g, int mix, int model)
{
    for (int r = 0; r < g->rates; r++)
        for (int seed = 0; seed < mqar_choosing(g); seed++)
            if (!mqar_is_over(cell_at(g, seed, mix, r, model)))
                return false;
    return true;
}

enum mqar_want mqar_wanted(const struct mqar_grid *g, const struct mqar_cell *c)
{
    if (c->seed < mqar_choosing(g))
        return MQAR_WANTED;
    if (!mqar_chosen(g, c->mix, c->model))
        return MQAR_PERHAPS;
    return c->rate == mqar_best_rate(g, c->mix, c->model, NULL) ? MQAR_WANTED : MQAR_NEVER;
}

bool mqar_counts(const struct mqar_grid *g, const struct mqar_cell *c)
{
    enum mqar_want want = mqar_wanted(g, c);

    return want == MQAR_WANTED || (want == MQAR_PERHAPS && !c->rate);
}

void mqar_count(const struct mqar_grid *g, int *all, int *over)
{
    *all = *over = 0;
    for (int i = 0; i < g->n; i++) {
        const struct mqar_cell *c = &g->cell[i];
        *all += mqar_counts(g, c);
        *over += mqar_wanted(g, c) == MQAR_WANTED && mqar_is_over(c);
    }
}
