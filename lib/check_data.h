/* check_data.h - one case of a recurrence as plain host arrays, and running it on a device. */
#ifndef CHECK_DATA_H
#define CHECK_DATA_H
#include "check_scan.h"

enum check_field {
    CHECK_Q, CHECK_K, CHECK_V, CHECK_DECAY, CHECK_BETA, CHECK_ETA, CHECK_PRIOR,
    CHECK_STATE = CHECK_PRIOR + SCAN_PRIORS, CHECK_INPUTS = CHECK_STATE + SCAN_STATES,
    CHECK_O = CHECK_INPUTS, CHECK_VAR, CHECK_NEXT, CHECK_FIELDS = CHECK_NEXT + SCAN_STATES,
};

/* Dense F32 arrays. Of inputs val is given and grad computed; of outputs the other way round. */
struct check_data {
    const struct scan *scan;
    struct scan_case   c;
    int32_t           *length, *start;               /* [n], [n+1] */
    struct seqs        seqs;
    struct tensor      shape[CHECK_FIELDS];          /* ndim 0: the scan has no such field */
    bool               storage[CHECK_FIELDS];        /* of the device's type, else F32 */
    float             *val[CHECK_FIELDS], *grad[CHECK_FIELDS];
    float              scale;                        /* on the query; 0.7 unless changed */
    float              weight_grad;                  /* gradients of weights before backward */
    bool               absent[2][CHECK_FIELDS];      /* no value [0], no gradient [1] handed over */
    bool               inplace;                      /* memory carried out overwrites the one in */
    bool               forward_only;
    int                repeats;                      /* > 0: also time */
    struct scan_time   time;
};

const char *check_name(int field);
struct tensor *check_tensor(struct scan_io *x, int field);
/* Shapes and room; fill draws the values. Free with check_free. */
struct check_data *check_new(const struct scan *f, const struct scan_case *c);
void check_fill(struct check_data *m);
void check_free(struct check_data *m);
/* Rounds what the device stores in 16 bits. */
void check_round(struct check_data *m, enum dtype type);
/* Computes the outputs and gradients on d. Returns NULL, or which memory was written by mistake. */
const char *check_run(struct check_data *m, const struct dev *d);
#endif
