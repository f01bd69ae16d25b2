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
/* Range and figures from the plot's data; false when there is nothing that could be drawn. */
bool carry_axis_settle(carry_scale *to, const carry_plot *plot);
/* The figure or name at a tic. */
const char *carry_axis_text(char text[CARRY_HTML_FIGURE], const carry_scale *to, int index);
/* How far along the axis, 0 to 1. */
double carry_axis_along(const carry_scale *to, double value);
int carry_axis_characters(const char *text);
/* At most `most` characters; if some are left out, the last one is an ellipsis. */
const char *carry_axis_shorten(char text[CARRY_HTML_FIGURE], const char *from, int most);

#endif
