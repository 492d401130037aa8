/* mixer.h - the interface of a token mixer. One file in lib/mixers defines one `mixer_<file>`. */
#ifndef MIXER_H
#define MIXER_H
#include "config.h"
#include "ops.h"
#include "param.h"
#include "scan.h"
EXTERN_C_BEGIN
enum { MIXER_STATES = SCAN_STATES + 3 };          /* scan states, then up to three conv tails */

struct layer {
    const struct mixer  *mixer;
    const struct config *cfg;
    struct params       *params;
    int                  index, first;            /* layer number; its mixer's first parameter */
};

/* Looks at a layer's recurrence right after it ran: for the model's doubt, plasticity, windows. */
typedef void watch_fn(void *arg, const struct layer *l, const struct seqs *s, const struct scan_io *x);

struct pass {                                      /* one trip of one packed row through the model */
    struct dev          *dev;
    const struct seqs   *seqs;
    struct tensor      (*state)[MIXER_STATES];     /* per layer; NULL: start from the empty memory, keep nothing.
                                                    * Present: read, then overwritten with the state carried out */
    bool                 fresh;                    /* with state: do not read it (first tokens), only write */
    bool                 train;                    /* keep what backward needs in dev->keep */
    bool                 alone;                    /* dev.alone, for this trip: scores that no batch changes */
    bool                 want_var;                 /* ask metaplastic scans for the variance of their read */
    watch_fn            *watch;                    /* may be NULL */
    void                *watch_arg;
};
struct mixer {
    const char *name, *brief;
    size_t      saved;                             /* sizeof what forward leaves for backward */
    /* declare parameters, in a fixed order; prefix is "model.layers.3." or "backbone.layers.3." */
    void (*init)    (struct layer *l, const char *prefix);
    void (*state)   (const struct layer *l, int64_t nseq, struct tensor shape[MIXER_STATES]);
    void (*forward) (struct layer *l, const struct pass *p, struct tensor y, struct tensor x, void *saved);
    /* dx is overwritten; gradients of weights accumulate */
    void (*backward)(struct layer *l, const struct pass *p, struct tensor dx, struct tensor dy,
                     struct tensor x, const void *saved);
    /* decoding, a token of each sequence: x [T,width] F32 += the layer of norm(x), in few launches; false: not
     * on this device, use forward. May be absent. */
    bool (*step)    (struct layer *l, const struct pass *p, struct tensor x, const struct param *norm);
    const struct scan *scan, *plain;               /* metaplastic, and with metaplasticity off */
};
static inline struct param *layer_param(const struct layer *l, int i) { return &l->params->at[l->first + i]; }
const struct mixer *mixer_find(const char *name);
const struct mixer *mixer_next(const struct mixer *m);    /* NULL starts; for help texts, tests and bench */
EXTERN_C_END
#endif
