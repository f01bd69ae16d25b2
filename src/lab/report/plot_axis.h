/* The axes of a plot: their ranges, the positions of ticks, and their labels. */
#ifndef CARRY_LAB_PLOT_AXIS_H
#define CARRY_LAB_PLOT_AXIS_H

#include "lab/report/html.h"
#include "lab/report/plot.h"

#define CARRY_AXIS_TICS 12

typedef struct carry_scale {
    const carry_plot_axis *axis;
    bool is_x;
    double low, high;
    double tic[CARRY_PLOT_SERIES];
    int tics;
} carry_scale;

bool carry_axis_shows(const carry_plot_axis *axis, double value);
/* Computes the range and the ticks from the plot's data. Returns false if there is nothing to draw. */
bool carry_axis_settle(carry_scale *to, const carry_plot *plot);
/* The label of a tick: a number or a name. */
const char *carry_axis_text(char text[CARRY_HTML_FIGURE], const carry_scale *to, int index);
/* The position of a value along the axis, 0 to 1. */
double carry_axis_along(const carry_scale *to, double value);
int carry_axis_characters(const char *text);
/* Shortens the text to at most `most` characters; if some are left out, the last one is an ellipsis. */
const char *carry_axis_shorten(char text[CARRY_HTML_FIGURE], const char *from, int most);

#endif
