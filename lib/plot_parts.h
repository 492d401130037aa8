/* plot_parts.h - what every figure shares: its three files, the head of its script, and gnuplot.
 *
 *   struct drawing d;
 *   drawing_open(&d, "DIR/loss.svg")                names of .tsv and .gp beside it; an old figure goes
 *   drawing_head(&script, &d, &frame)               up to and without the plot command
 *   drawing_finish(&d, &table, &script)             writes, draws, frees both; 0 or -1 with the reason */
#ifndef PLOT_PARTS_H
#define PLOT_PARTS_H
#include "json.h"
#include "plot.h"

struct drawing {
    const char *path, *figure, *table, *terminal;     /* figure and table: names without the directory */
    char        dir[4096], tsv[4096], gp[4096];
};
int  drawing_open  (struct drawing *d, const char *path);
void drawing_head  (struct text *t, const struct drawing *d, const struct frame *f);
int  drawing_finish(const struct drawing *d, struct text *table, struct text *script);

/* Every whole line of metrics.jsonl at path, or in the directory path; name is FILE:LINE. file: which one was read. */
typedef int record_fn(void *arg, const struct json *j, const char *name);
int record_read(const char *path, char file[4096], record_fn *line, void *arg);

/* A gnuplot string: single quotes, doubled inside; control characters become spaces. */
void drawing_quote (struct text *t, const char *s);
void drawing_number(struct text *t, double x);        /* a tab and the number, or NaN */
#endif
