/* convert_parts.h - a conversion in hand, as the files behind convert.h share it. */
#ifndef CONVERT_PARTS_H
#define CONVERT_PARTS_H
#include "ckpt_parts.h"
#include "convert.h"

/* Tokens to measure on: rows of one length, the same for both models. */
struct calibration {
    struct loader  loader;               /* of shards */
    bool           shards;
    int32_t       *ids, *target;         /* [rows * length] of a text, or drawn */
    int32_t        start[2];
    int64_t        rows, length;
};
int  calibration_open(struct calibration *c, const struct convert_options *o, const struct config *cfg);
int  calibration_row(struct calibration *c, int64_t i, struct batch *b);
void calibration_close(struct calibration *c);

/* One run of a stored model over the calibration. */
struct run_through {
    struct calibration *data;
    double *decay, *evidence;            /* [layers * heads] sums of log decays, and of J below; may be NULL */
    int64_t kept;                        /* rows whose logits are looked at */
    /* Logits of the real ids of a row, [length, vocab]; 0 or -1. */
    int (*look)(void *arg, int64_t row, const struct batch *b, const float *logits, int64_t vocab);
    void *arg;
};
int convert_run_through(const char *dir, const struct convert_options *o, const struct run_through *r);

struct convert {
    const struct convert_options *o;
    struct convert_report        *report;
    struct config src, dst;
    struct st    *st;
    struct model  from, into;            /* declared only */
    struct calibration data;
    bool          have_data;
    char          aside[4096];           /* where the result grows */
    double       *decay, *evidence;      /* [layers * heads] means; evidence for --init gain only */
    float        *logits;                /* of the source, [kept * length * real ids] */
    int64_t       kept;
    bool          chosen[MAX_LAYERS];
    int           want;                  /* so many more are to be chosen by score */
};
int  convert_target(struct convert *c);          /* dst but for the layers chosen by score, or what forbids it */
void convert_choose(struct convert *c);          /* the scores, the rest of chosen, dst's layers */
int  convert_measure(struct convert *c);         /* windows and logits of the source */
int  convert_compare(struct convert *c);         /* the result against them */
int  convert_write(struct convert *c);           /* everything but convert.json into aside */
/* A new parameter's value at j. */
float convert_fresh(const struct convert *c, const struct param *a, int64_t j);
#endif
