/* Ranges and tick labels of the axes: gnuplot's own suit wide pictures. */
#include "lab/report/plot_axis.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool carry_axis_shows(const carry_plot_axis *axis, double value) {
    return isfinite(value) && (!axis->log || value > 0.0);
}

static void widen(carry_scale *to, const double *values, int count) {
    for (int i = 0; values != NULL && i < count; i++) {
        if (carry_axis_shows(to->axis, values[i])) {
            to->low = fmin(to->low, values[i]);
            to->high = fmax(to->high, values[i]);
        }
    }
}

static void pad(carry_scale *to, double share) {
    bool log = to->axis->log;
    double low = log ? log10(to->low) : to->low;
    double high = log ? log10(to->high) : to->high;
    double more = high > low ? share * (high - low) : log ? 0.3 : fmax(fabs(low), 1.0) * 0.1;
    more = log ? fmax(more, 0.04) : more;
    to->low = log ? pow(10.0, low - more) : low - more;
    to->high = log ? pow(10.0, high + more) : high + more;
}

/* Along x, labels are side by side, so fewer fit. */
static void choose_linear_tics(carry_scale *to) {
    double rough = (to->high - to->low) / (to->is_x && to->axis->unit == CARRY_PLOT_SECONDS ? 3.0 : 5.0);
    double decade = pow(10.0, floor(log10(rough)));
    double step = decade * (rough / decade < 1.5   ? 1.0
                            : rough / decade < 3.5 ? 2.0
                            : rough / decade < 7.5 ? 5.0
                                                   : 10.0);
    to->tics = 0;
    for (double value = ceil(to->low / step) * step; value <= to->high && to->tics < CARRY_AXIS_TICS; value += step) {
        to->tic[to->tics++] = fabs(value) < step * 1e-9 ? 0.0 : value;
    }
}

/* Places ticks at numbers whose first digit is in `digits`, in every `step`th decade. */
static void take_digits(carry_scale *to, const char *digits, int step) {
    int last = (int)ceil(log10(to->high));
    to->tics = 0;
    for (int decade = (int)floor(log10(to->low)); decade <= last; decade++) {
        for (const char *digit = digits; *digit != '\0' && decade % step == 0; digit++) {
            double value = (*digit - '0') * pow(10.0, decade);
            if (value >= to->low && value <= to->high && to->tics < CARRY_AXIS_TICS) {
                to->tic[to->tics++] = value;
            }
        }
    }
}

/* Places as many ticks at 1, 2, 5 and whole decades as are readable; a narrow range has ticks at equal steps. */
static void choose_log_tics(carry_scale *to) {
    double decades = log10(to->high / to->low);
    bool wide = to->is_x && to->axis->unit == CARRY_PLOT_SECONDS; /* labels with units need more space */
    if (wide && decades >= 1.3) {
        take_digits(to, "1", (int)ceil(decades / 4.0));
    } else if (decades < 2.2) {
        take_digits(to, "125", 1);
    } else if (decades < 3.5) {
        take_digits(to, "13", 1);
    } else {
        take_digits(to, "1", decades <= 6.0 ? 1 : (int)ceil(decades / 6.0));
    }
    if (to->tics < 3 && decades < 1.0) {
        choose_linear_tics(to);
    }
}

/* Places ticks where the caller wants them, and leaves out every second one until they fit. */
static void take_tics(carry_scale *to, int room) {
    int step = 1;
    while ((to->axis->tics + step - 1) / step > room) {
        step++;
    }
    for (int i = 0; i < to->axis->tics; i += step) {
        to->tic[to->tics++] = to->axis->tic[i];
    }
}

bool carry_axis_settle(carry_scale *to, const carry_plot *plot) {
    bool is_y = !to->is_x;
    const carry_plot_axis *axis = to->axis;
    if (axis->names != NULL) {
        to->low = -0.5;
        to->high = axis->tics - 0.5;
        for (int i = 0; i < axis->tics; i++) {
            to->tic[to->tics++] = i;
        }
        return axis->tics > 0;
    }
    to->low = INFINITY;
    to->high = -INFINITY;
    for (int i = 0; i < plot->count; i++) {
        const carry_plot_series *one = &plot->series[i];
        bool whiskers_here = is_y == (plot->y.names == NULL);
        widen(to, is_y ? one->y : one->x, one->count);
        widen(to, whiskers_here ? one->low : NULL, one->count);
        widen(to, whiskers_here ? one->high : NULL, one->count);
    }
    if (!(to->low <= to->high)) {
        return false;
    }
    if (axis->low != axis->high) {
        to->low = axis->low;
        to->high = axis->high;
    } else {
        pad(to, 0.06);
    }
    if (!isfinite(to->high - to->low) || !(to->low < to->high) || !carry_axis_shows(axis, to->low)) {
        return false; /* values near the limits of a double */
    }
    if (axis->tic != NULL) {
        take_tics(to, 6);
    } else if (axis->log) {
        choose_log_tics(to);
    } else {
        choose_linear_tics(to);
    }
    return true;
}

const char *carry_axis_shorten(char text[CARRY_HTML_FIGURE], const char *from, int most) {
    size_t length = 0;
    int count = 0;
    while (length < CARRY_HTML_FIGURE - 4 && from[length] != '\0') {
        count += (from[length] & 0xC0) != 0x80;
        if (count > most) {
            break;
        }
        length++;
    }
    bool cut = from[length] != '\0';
    while (cut && length > 0 && (from[length] & 0xC0) == 0x80) {
        length--;
    }
    (void)snprintf(text, CARRY_HTML_FIGURE, "%.*s%s", (int)length, from, cut ? "\xE2\x80\xA6" : "");
    return text;
}

const char *carry_axis_text(char text[CARRY_HTML_FIGURE], const carry_scale *to, int index) {
    double value = to->tic[index];
    if (to->axis->names != NULL) {
        return carry_axis_shorten(text, to->axis->names[index], 24);
    }
    if (to->axis->unit == CARRY_PLOT_SMALL) {
        (void)carry_figure_small(text, value);
        if (text[0] == '1' && strncmp(text, "1.0\xC3\x97", 5) == 0) { /* a power of ten needs no factor */
            memmove(text, text + 5, strlen(text + 5) + 1);
        }
        return text;
    }
    if (to->axis->unit == CARRY_PLOT_SECONDS) {
        char *end;
        (void)carry_figure_time(text, value);
        double figure = strtod(text, &end); /* labels on an axis are round: 10 µs, not 10.0 µs */
        char unit[16];
        (void)snprintf(unit, sizeof unit, "%s", end);
        (void)snprintf(text, CARRY_HTML_FIGURE, "%g%s", figure, unit);
        return text;
    }
    if (fabs(value) >= 1e-3 && fabs(value) < 1e4) {
        (void)snprintf(text, CARRY_HTML_FIGURE, "%.4g", value);
        return text;
    }
    return carry_figure_plain(text, value);
}

int carry_axis_characters(const char *text) {
    int count = 0;
    for (; *text != '\0'; text++) {
        count += (*text & 0xC0) != 0x80;
    }
    return count;
}

double carry_axis_along(const carry_scale *to, double value) {
    return to->axis->log ? log(value / to->low) / log(to->high / to->low) : (value - to->low) / (to->high - to->low);
}
