/* mqar_grid.h - the whole experiment: every model at every rate, length and seed, as processes side by side. */
#ifndef MQAR_GRID_H
#define MQAR_GRID_H
#include "mqar_run.h"
EXTERN_C_BEGIN

struct mqar_cell {                       /* one run */
    struct mqar_job  job;
    int              seed, mix, rate, model;     /* places in the lists */
    struct mqar_told told;               /* the last that was heard of it */
};
struct mqar_grid {
    const struct mqar_options *o;
    struct mqar_cell *cell;
    int       n;
    struct mqar_mix *mix;                /* [mixes] */
    int       mixes;
    char    (*model)[256];
    int       models;
    double   *rate;
    int       rates;
};
/* Settings of a preset, "laptop" or "paper". */
struct mqar_options mqar_preset(const char *name);
/* Reads the lists and refuses what cannot run. 0, or -1 with the reason. */
int  mqar_grid_open(struct mqar_grid *g, const struct mqar_options *o);
void mqar_grid_close(struct mqar_grid *g);
/* Runs what is not finished, until a signal or --max-seconds; fills told. 0; 1 when runs failed; -1 with the reason
 * when nothing could run. */
int  mqar_grid_run(struct mqar_grid *g);
/* OUT/runs.tsv, results.json, results.md and the figures. 0 or -1. */
int  mqar_grid_write(const struct mqar_grid *g);
/* What is known of a run from its files. */
int  mqar_cell_read(const struct mqar_grid *g, struct mqar_cell *c);
bool mqar_cell_path(const struct mqar_grid *g, const struct mqar_cell *c, const char *name, char *out, size_t size);
const char *mqar_state_name(enum mqar_state s);

/* Accuracies of one model at one rate, on one mix, over the finished ones of the first seeds. */
struct mqar_spread {
    int    n;
    double mean[MQAR_MIX], low[MQAR_MIX], high[MQAR_MIX], square[MQAR_MIX];
    double whole, seconds;               /* means: of the lengths, of a run's time */
};
struct mqar_spread mqar_spread_of(const struct mqar_grid *g, int mix, int rate, int model, int seeds);
/* The seeds that choose a rate, and the rate so far; -1 when none of these runs is over. out: of all seeds, or NULL. */
int  mqar_choosing(const struct mqar_grid *g);
int  mqar_best_rate(const struct mqar_grid *g, int mix, int model, struct mqar_spread *out);
bool mqar_chosen(const struct mqar_grid *g, int mix, int model);     /* all of these runs are over */
/* Whether a run is to be done: not yet when its rate may still be chosen, never when another was. */
enum mqar_want { MQAR_NEVER, MQAR_PERHAPS, MQAR_WANTED };
enum mqar_want mqar_wanted(const struct mqar_grid *g, const struct mqar_cell *c);
/* Whether it is one of those to do in all; of rates that are not chosen yet one will be: the first stands for it. */
bool mqar_counts(const struct mqar_grid *g, const struct mqar_cell *c);
/* How many runs there are to do in all, and how many of them are over. */
void mqar_count(const struct mqar_grid *g, int *all, int *over);
static inline bool mqar_is_over(const struct mqar_cell *c)
{
    return c->told.state == MQAR_FINISHED || c->told.state == MQAR_DIVERGED;
}
EXTERN_C_END
#endif
