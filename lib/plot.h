/* plot.h - curves out of metrics.jsonl, and a figure drawn by gnuplot.
 *
 *   struct curve c = { 0 };
 *   curve_read(&c, "RUN", "tokens", "loss");            0, or -1 with the reason
 *   curve_smooth(&c, 20);
 *   figure_write(&(struct figure){ .curve = &c, .n = 1, ... }, "loss.svg");
 *   curve_close(&c);
 *
 * Beside NAME.svg stay NAME.tsv, the numbers, and NAME.gp, the script that draws them. */
#ifndef PLOT_H
#define PLOT_H
#include "base.h"
EXTERN_C_BEGIN

struct point { double step, x, y, smooth; };
struct curve {
    char          label[128];
    struct point *train, *val;      /* val: the lines with val_loss, only when y is loss */
    int64_t       ntrain, nval;
};
struct figure {
    const char         *title, *xlabel, *ylabel;
    bool                log_x, log_y;
    bool                smooth;     /* draw smooth, and y as a pale line behind it */
    int                 width, height;               /* pixels at 96 a inch */
    const struct curve *curve;
    int                 n;
};

/* path: metrics.jsonl, or the directory that holds it. x and y are keys of its lines; lines that
 * lack y are passed over. Where a run was resumed from an earlier step, the later lines count. */
int  curve_read  (struct curve *c, const char *path, const char *x, const char *y);
/* Fills smooth with the mean over span training points around each; fewer near the ends. */
void curve_smooth(struct curve *c, int64_t span);
void curve_close (struct curve *c);
/* path ends in .svg, .png or .pdf. 0, or -1 with the reason; .tsv and .gp stay when only gnuplot is missing. */
int  figure_write(const struct figure *f, const char *path);
EXTERN_C_END
#endif
