/* Shared by the plots of one run: the points of each method, and the series made from them. */
#ifndef CARRY_LAB_REPORT_DRAWING_H
#define CARRY_LAB_REPORT_DRAWING_H

#include "lab/report/plot.h"
#include "lab/report/report_parts.h"

#define CARRY_CURVE_POINTS 256 /* maximum points of one method in one plot */

typedef struct carry_curve {
    double x[CARRY_CURVE_POINTS], y[CARRY_CURVE_POINTS], low[CARRY_CURVE_POINTS], high[CARRY_CURVE_POINTS];
    int count;
} carry_curve;

typedef struct carry_drawing {
    carry_page *page;
    const carry_run *run;
    carry_report_place *place; /* one per result */
    carry_curve *curve;        /* one per method, and one more for points without a method */
    carry_plot_series series[CARRY_PLOT_SERIES];
    int count;
} carry_drawing;

/* Adds a point, sorted by x, since lines are drawn in the order given. Points beyond the limit are left out. */
void carry_curve_add(carry_curve *to, double x, double y, double low, double high);
void carry_drawing_clear(carry_drawing *d);
/* Makes a series for every method that has points, in the page's order. */
void carry_drawing_curves(carry_drawing *d, bool line, bool whiskers);
void carry_drawing_rule(carry_drawing *d, const char *name, const double *x, const double *y, int count, bool line);

/* report_times.c: time and speedup of each shape. report_limits.c: errors, and the roofline of each device. */
carry_status carry_drawing_times(carry_drawing *d);
carry_status carry_drawing_limits(carry_drawing *d);

#endif
