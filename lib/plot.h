/* plot.h - curves out of metrics.jsonl, and a figure drawn by gnuplot.
 *
 *   struct curve c = { 0 };
 *   curve_read(&c, "RUN", "tokens", "loss");            0, or -1 with the reason
 *   curve_smooth(&c, 20);
 *   figure_write(&(struct figure){ .curve = &c, .n = 1, ... }, "loss.svg");
 *   layers_draw("CONVERTED/convert.json", &frame, "windows.svg");        windows of a conversion's layers
 *   heat_draw("RUN", "spread", -1, &frame, "heat.svg");                   plasticity by layer and head
 *   curve_close(&c);
 *
 * Beside NAME.svg stay NAME.tsv, the numbers, and NAME.gp, the script that draws them. */
#ifndef PLOT_H
#define PLOT_H
#include "base.h"
EXTERN_C_BEGIN

struct point { double step, x, y, smooth, low, high; };     /* low and high: ends of a bar through y */
struct curve {
    char          label[128];
    struct point *train, *val;      /* val: the lines with val_loss, only when y is loss */
    int64_t       ntrain, nval;
    bool          again;            /* the curve before once more, from another seed: its colour, thin, unnamed */
};
struct frame {
    const char *title, *xlabel, *ylabel;      /* title may be NULL */
    int         width, height;                /* pixels at 96 a inch */
};
struct figure {
    struct frame        frame;
    bool                log_x, log_y;
    bool                smooth;     /* draw smooth, and y as a pale line behind it */
    bool                points;     /* marks on the curves */
    bool                bars;       /* points with bars from low to high, joined by lines */
    const char *const  *tic;        /* names at x = 0, 1, .. in the place of numbers; NULL ends; may be NULL */
    double              bottom, top;                 /* of the y axis; equal: as the numbers are */
    bool                whole;      /* x is a small number: 12, not 12.0 */
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
/* Least, median and largest window of every layer in a report of `palimpsa convert`, the swapped ones marked. */
int  layers_draw(const char *report, const struct frame *f, const char *path);
/* A figure of every head that metrics.jsonl holds since `pretrain --plasticity-every`, at the given step or, -1, the
 * last one, as a map of layers and heads; the .tsv has all figures of all steps. Or run is the table of `info
 * --plasticity`, a file that ends in .tsv. */
int  heat_draw(const char *run, const char *key, int64_t step, const struct frame *f, const char *path);
/* Results of `palimpsa eval --out`: maps of length and depth, or curves. BY_ANY: the first that path[0] has of these.
 * label: [n] names, or NULL: those of the files, when there are several. */
enum results_kind { BY_ANY, BY_DEPTH, BY_LENGTH, BY_POSITION };
int  results_draw(const char *const *path, int n, const char *const *label, enum results_kind kind, bool log_x,
                  const struct frame *f, const char *out);
EXTERN_C_END
#endif
