/* Plots as SVG for use inside an HTML page, drawn by gnuplot.

   gnuplot receives only numbers: every text is a placeholder, replaced by the escaped text in gnuplot's output, so
   that no name in a store can be a command. Colours are CSS variables (--s0 ... --s7, --ink, --soft, --grid,
   --paper), so that one drawing suits a light page, a dark page and paper. Ids in the drawing begin with the plot's
   own id. */
#ifndef CARRY_LAB_PLOT_H
#define CARRY_LAB_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "carry/context.h"

#define CARRY_PLOT_COLOURS 8
#define CARRY_PLOT_SERIES 64 /* maximum number of series, and of categories */
#define CARRY_PLOT_RULE (-1) /* a style: a thin line with its name written along it */

typedef enum carry_plot_unit { CARRY_PLOT_PLAIN, CARRY_PLOT_SECONDS, CARRY_PLOT_SMALL } carry_plot_unit;

typedef struct carry_plot_axis {
    const char *label;
    bool log; /* values that are not positive are left out */
    carry_plot_unit unit;
    double low, high;         /* low == high: from the data */
    const double *tic;        /* positions of tick labels; NULL: chosen automatically */
    const char *const *names; /* y only: categories 0, 1, ... from the top, instead of numbers */
    int tics;                 /* number of entries in tic, or in names */
} carry_plot_axis;

typedef struct carry_plot_series {
    const char *name;
    int style; /* the same number has the same colour and shape in every plot; or CARRY_PLOT_RULE */
    bool line, points;
    int count;
    const double *x, *y;
    const double *low, *high; /* whiskers along y (along x if y has names); NULL: none */
} carry_plot_series;

typedef struct carry_plot {
    const char *id;            /* letters, digits, dashes: unique in the page */
    const char *title, *about; /* for readers who cannot see the drawing */
    carry_plot_axis x, y;
    int count;
    const carry_plot_series *series;
} carry_plot;

/* *svg is "<svg ...>...</svg>", which the caller frees. CARRY_ENOTFOUND: gnuplot is not installed. stop may be NULL. */
carry_status carry_plot_svg(carry_ctx *ctx, char **svg, const carry_plot *plot, bool (*stop)(void));

/* The number of a style's shape in gnuplot's id: 6 in "ID-gpPt6". */
int carry_plot_shape(int style);

/* plot_svg.c: rewrites gnuplot's drawing for a page. @0@, @1@, ... become the escaped texts. CARRY_EFORMAT if it is
   not a drawing, or contains scripts, links, images, styles or event handlers, which no drawing needs. */
carry_status carry_plot_adopt(carry_ctx *ctx, char **svg, const char *drawing, const carry_plot *plot,
                              const char (*texts)[96], int count);

#endif
