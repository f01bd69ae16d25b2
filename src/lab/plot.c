/* Plots: ranges and figures along the axes are settled here, since gnuplot's own are for wide pictures; then a script
   of numbers and placeholders goes to gnuplot's standard input. */
#include "lab/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/html.h"
#include "lab/process.h"

/* In user units. A phone shows the drawing at about 0.85 of this, a desk at about 1.1: the type stays readable. */
#define WIDTH 440.0
#define HEIGHT 320.0
#define TYPE 14.0
#define CHARACTER (0.54 * TYPE)
#define RIGHT 16.0
#define TOP 34.0
#define BOTTOM 50.0
#define ROW 30.0 /* of a category */

#define TICS 12
#define TEXTS (2 * CARRY_PLOT_SERIES + 3 * TICS + 8)
#define GNUPLOT_SECONDS 30.0
#define GNUPLOT_BYTES ((size_t)8 << 20)

typedef struct scale {
    const carry_plot_axis *axis;
    double low, high;
    double tic[CARRY_PLOT_SERIES];
    int tics;
} scale;

typedef struct sheet {
    const carry_plot *plot;
    FILE *to;
    scale x, y;
    double left, height;
    int labels, texts;
    char text[TEXTS][96];
} sheet;

static bool is_drawn(const carry_plot_axis *axis, double value) {
    return isfinite(value) && (!axis->log || value > 0.0);
}

/* The number of a placeholder. Past the table's end it is one that stays as it is, which a plot of the permitted size
   does not reach. */
static int text_of(sheet *s, const char *text) {
    if (s->texts == TEXTS) {
        return TEXTS;
    }
    (void)snprintf(s->text[s->texts], sizeof s->text[0], "%s", text);
    return s->texts++;
}

static void widen(scale *to, const double *values, int count) {
    for (int i = 0; values != NULL && i < count; i++) {
        if (is_drawn(to->axis, values[i])) {
            to->low = fmin(to->low, values[i]);
            to->high = fmax(to->high, values[i]);
        }
    }
}

static void pad(scale *to, double share) {
    bool log = to->axis->log;
    double low = log ? log10(to->low) : to->low;
    double high = log ? log10(to->high) : to->high;
    double more = high > low ? share * (high - low) : log ? 0.3 : fmax(fabs(low), 1.0) * 0.1;
    more = log ? fmax(more, 0.04) : more;
    to->low = log ? pow(10.0, low - more) : low - more;
    to->high = log ? pow(10.0, high + more) : high + more;
}

static void choose_linear_tics(scale *to) {
    double rough = (to->high - to->low) / 5.0;
    double decade = pow(10.0, floor(log10(rough)));
    double step = decade * (rough / decade < 1.5   ? 1.0
                            : rough / decade < 3.5 ? 2.0
                            : rough / decade < 7.5 ? 5.0
                                                   : 10.0);
    to->tics = 0;
    for (double value = ceil(to->low / step) * step; value <= to->high && to->tics < TICS; value += step) {
        to->tic[to->tics++] = fabs(value) < step * 1e-9 ? 0.0 : value;
    }
}

/* Figures whose first digit is in digits, in every `step`th decade. */
static void take_digits(scale *to, const char *digits, int step) {
    int last = (int)ceil(log10(to->high));
    to->tics = 0;
    for (int decade = (int)floor(log10(to->low)); decade <= last; decade++) {
        for (const char *digit = digits; *digit != '\0' && decade % step == 0; digit++) {
            double value = (*digit - '0') * pow(10.0, decade);
            if (value >= to->low && value <= to->high && to->tics < TICS) {
                to->tic[to->tics++] = value;
            }
        }
    }
}

/* As many of 1, 2, 5 and whole decades as can be read; a narrow range has steps of equal size. */
static void choose_log_tics(scale *to) {
    double decades = log10(to->high / to->low);
    if (decades < 2.2) {
        take_digits(to, "125", 1);
    } else {
        take_digits(to, "1", decades <= 6.0 ? 1 : (int)ceil(decades / 6.0));
    }
    if (to->tics < 3 && decades < 1.0) {
        choose_linear_tics(to);
    }
}

/* Figures where the caller wants them, every second one left out until they fit. */
static void take_tics(scale *to, int room) {
    int step = 1;
    while ((to->axis->tics + step - 1) / step > room) {
        step++;
    }
    for (int i = 0; i < to->axis->tics; i += step) {
        to->tic[to->tics++] = to->axis->tic[i];
    }
}

static bool settle(sheet *s, scale *to, bool is_y) {
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
    for (int i = 0; i < s->plot->count; i++) {
        const carry_plot_series *one = &s->plot->series[i];
        bool whiskers_here = is_y == (s->plot->y.names == NULL);
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
    if (!isfinite(to->high - to->low) || !(to->low < to->high) || !is_drawn(axis, to->low)) {
        return false; /* figures at the ends of what a double holds */
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

static const char *tic_text(char text[CARRY_HTML_FIGURE], const scale *to, int index) {
    double value = to->tic[index];
    if (to->axis->names != NULL) {
        (void)snprintf(text, CARRY_HTML_FIGURE, "%.40s", to->axis->names[index]);
        return text;
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
        double figure = strtod(text, &end); /* a figure on an axis is round: 10 µs, not 10.0 µs */
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

static int characters(const char *text) {
    int count = 0;
    for (; *text != '\0'; text++) {
        count += (*text & 0xC0) != 0x80;
    }
    return count;
}

static void write_tics(sheet *s, const scale *to, char name) {
    carry_html_raw(s->to, "set %ctics (", name);
    for (int i = 0; i < to->tics; i++) {
        char text[CARRY_HTML_FIGURE];
        carry_html_raw(s->to, "%s'@%d@' %.17g", i > 0 ? ", " : "", text_of(s, tic_text(text, to, i)), to->tic[i]);
    }
    carry_html_raw(s->to, ")\n");
}

/* How far along the axis, 0 to 1. */
static double along(const scale *to, double value) {
    return to->axis->log ? log(value / to->low) / log(to->high / to->low) : (value - to->low) / (to->high - to->low);
}

/* A rule's name is written along it: at its end when it is level, else at its start. */
static void label_rule(sheet *s, const carry_plot_series *rule) {
    int last = rule->count - 1;
    double right = (along(&s->x, rule->x[last]) - along(&s->x, rule->x[0])) * (WIDTH - RIGHT - s->left);
    double up = (along(&s->y, rule->y[last]) - along(&s->y, rule->y[0])) * (s->height - TOP - BOTTOM);
    double angle = atan2(up, right);
    bool level = fabs(angle) < 0.02;
    carry_html_raw(s->to,
                   "set label %d '@%d@' at %.17g,%.17g %s rotate by %.1f offset %.2f,%.2f textcolor rgb '#000200'\n",
                   ++s->labels, text_of(s, rule->name), rule->x[level ? last : 0], rule->y[level ? last : 0],
                   level ? "right" : "left", level ? 0.0 : angle * 180.0 / 3.14159265358979, level ? 0.0 : 0.4,
                   level ? 0.45 : 0.9);
}

static void write_frame(sheet *s) {
    const carry_plot *plot = s->plot;
    carry_html_raw(s->to,
                   "set terminal svg size %.0f,%.0f dynamic noenhanced font 'x,%.0f'\n"
                   "set encoding utf8\nset key off\nset border 3 lc rgb '#000200'\nset errorbars small\n"
                   "set tics nomirror out scale 0.4,0 textcolor rgb '#000200'\n"
                   "set lmargin at screen %.4f\nset rmargin at screen %.4f\nset tmargin at screen %.4f\n"
                   "set bmargin at screen %.4f\n",
                   WIDTH, s->height, TYPE, s->left / WIDTH, 1.0 - RIGHT / WIDTH, 1.0 - TOP / s->height,
                   BOTTOM / s->height);
    if (plot->x.log || plot->y.log) {
        carry_html_raw(s->to, "set logscale %s%s\n", plot->x.log ? "x" : "", plot->y.log ? "y" : "");
    }
    carry_html_raw(s->to, "set xrange [%.17g:%.17g]\nset yrange [%.17g:%.17g]\n", s->x.low, s->x.high,
                   plot->y.names != NULL ? s->y.high : s->y.low, plot->y.names != NULL ? s->y.low : s->y.high);
    write_tics(s, &s->x, 'x');
    write_tics(s, &s->y, 'y');
    carry_html_raw(s->to, "set grid xtics ytics back lc rgb '#000100' lw 1 dt solid\n");
    carry_html_raw(s->to, "set xlabel '@%d@' offset 0,0.3 textcolor rgb '#000200'\n", text_of(s, plot->x.label));
    carry_html_raw(s->to, "set label %d '@%d@' at screen 0.012,screen %.4f left textcolor rgb '#000200'\n", ++s->labels,
                   text_of(s, plot->y.label), 1.0 - 15.0 / s->height);
    for (int i = 0; i < plot->count; i++) {
        if (plot->series[i].style == CARRY_PLOT_RULE && plot->series[i].count > 1) {
            label_rule(s, &plot->series[i]);
        }
    }
}

static void write_data(sheet *s, int index) {
    const carry_plot_series *one = &s->plot->series[index];
    bool sideways = s->plot->y.names != NULL;
    carry_html_raw(s->to, "$d%d << E\n", index);
    for (int i = 0; i < one->count; i++) {
        if (!is_drawn(&s->plot->x, one->x[i]) || !is_drawn(&s->plot->y, one->y[i])) {
            continue;
        }
        double middle = sideways ? one->x[i] : one->y[i];
        bool whiskers = one->low != NULL && is_drawn(sideways ? &s->plot->x : &s->plot->y, one->low[i]);
        carry_html_raw(s->to, "%.17g %.17g %.17g %.17g\n", one->x[i], one->y[i], whiskers ? one->low[i] : middle,
                       whiskers && one->high != NULL ? one->high[i] : middle);
    }
    carry_html_raw(s->to, "E\n");
}

static bool has_data(const sheet *s, const carry_plot_series *one) {
    for (int i = 0; i < one->count; i++) {
        if (is_drawn(&s->plot->x, one->x[i]) && is_drawn(&s->plot->y, one->y[i])) {
            return true;
        }
    }
    return false;
}

static void write_series(sheet *s, int index, const char **comma) {
    const carry_plot_series *one = &s->plot->series[index];
    int title = text_of(s, one->name);
    if (!has_data(s, one)) {
        return;
    }
    if (one->style == CARRY_PLOT_RULE) {
        carry_html_raw(s->to, "%s$d%d using 1:2 with %s lc rgb '#000200' %s title '@%d@'", *comma, index,
                       one->line ? "lines" : "points", one->line ? "lw 1.2 dt (6,4)" : "pt 1 ps 0.9", title);
        *comma = ", ";
        return;
    }
    int colour = one->style % CARRY_PLOT_COLOURS;
    bool dashed = one->style / CARRY_PLOT_COLOURS % 2 == 1;
    if (one->line) {
        carry_html_raw(s->to, "%s$d%d using 1:2 with lines lc rgb '#01%02x00' lw 2 dt %s title '@%d@'", *comma, index,
                       colour, dashed ? "(7,4)" : "solid", title);
        *comma = ", ";
    }
    if (one->points) {
        const char *bars = s->plot->y.names != NULL ? "xerrorbars" : "yerrorbars";
        carry_html_raw(s->to, "%s$d%d using %s with %s lc rgb '#01%02x00' pt %d ps 0.85 lw 1.2 title '@%d@'", *comma,
                       index, one->low != NULL ? "1:2:3:4" : "1:2", one->low != NULL ? bars : "points", colour,
                       carry_plot_shape(one->style) + 1, title);
        *comma = ", ";
    }
}

static void write_script(sheet *s) {
    const char *comma = "plot ";
    double widest = characters(s->plot->y.label) > 0 ? 3.0 : 2.0;
    for (int i = 0; i < s->y.tics; i++) {
        char text[CARRY_HTML_FIGURE];
        widest = fmax(widest, characters(tic_text(text, &s->y, i)));
    }
    s->left = fmin(16.0 + CHARACTER * widest, 0.5 * WIDTH);
    s->height = s->plot->y.names != NULL ? TOP + BOTTOM + ROW * s->plot->y.tics : HEIGHT;
    write_frame(s);
    for (int i = 0; i < s->plot->count; i++) {
        write_data(s, i);
    }
    for (int i = 0; i < s->plot->count; i++) {
        write_series(s, i, &comma);
    }
    carry_html_raw(s->to, "\n");
}

static carry_status draw(carry_ctx *ctx, char **svg, const sheet *s, const char *script, size_t length,
                         bool (*stop)(void)) {
    carry_process_result result = {0};
    CARRY_TRY(carry_process_run(ctx, &result,
                                &(carry_process){.arguments = (const char *const[]){"gnuplot", "-d", "-", NULL},
                                                 .input = script,
                                                 .input_length = length,
                                                 .limit = GNUPLOT_BYTES,
                                                 .seconds = GNUPLOT_SECONDS,
                                                 .stop = stop}));
    carry_status status;
    if (result.stopped) {
        status = carry_fail(ctx, CARRY_EINTERRUPTED, "interrupted while a plot was drawn");
    } else if (result.timed_out) {
        status = carry_fail(ctx, CARRY_ETIMEOUT, "gnuplot took longer than %.0f seconds", GNUPLOT_SECONDS);
    } else if (result.code != 0) {
        const char *why = result.errors + strspn(result.errors, " \t\r\n");
        status = carry_fail(ctx, CARRY_EIO, "gnuplot failed (exit %d): %.*s", result.code,
                            (int)(strcspn(why, "\r\n") < 160 ? strcspn(why, "\r\n") : 160), why);
    } else {
        status = carry_plot_adopt(ctx, svg, result.output, s->plot, s->text, s->texts);
    }
    carry_process_free(&result);
    return status;
}

int carry_plot_shape(int style) {
    /* Filled circle, square, triangle, diamond, triangle down, pentagon, cross, star; then their outlines. */
    static const int shapes[16] = {6, 4, 8, 12, 10, 14, 1, 2, 5, 3, 7, 11, 9, 13, 0, 2};
    return shapes[(style % 16 + 16) % 16];
}

carry_status carry_plot_svg(carry_ctx *ctx, char **svg, const carry_plot *plot, bool (*stop)(void)) {
    *svg = NULL;
    if (plot->count > CARRY_PLOT_SERIES || plot->x.tics > CARRY_PLOT_SERIES || plot->y.tics > CARRY_PLOT_SERIES) {
        return carry_fail(ctx, CARRY_ESIZE, "a plot has more than %d series, figures or rows", CARRY_PLOT_SERIES);
    }
    sheet *s = calloc(1, sizeof *s);
    char *script = NULL;
    size_t length = 0;
    if (s == NULL || (s->to = open_memstream(&script, &length)) == NULL) {
        free(s);
        return carry_fail(ctx, CARRY_EMEMORY, "no memory for a plot");
    }
    s->plot = plot;
    s->x.axis = &plot->x;
    s->y.axis = &plot->y;
    bool drawn = settle(s, &s->x, false) && settle(s, &s->y, true);
    if (drawn) {
        write_script(s);
    }
    carry_status status = CARRY_OK;
    bool lost = ferror(s->to) != 0;
    if (fclose(s->to) != 0 || lost) {
        status = carry_fail(ctx, CARRY_EMEMORY, "no memory for a plot");
    } else if (!drawn) {
        status = carry_fail(ctx, CARRY_ERANGE, "there is nothing to draw in '%.80s'", plot->title);
    } else {
        status = draw(ctx, svg, s, script, length, stop);
    }
    free(script);
    free(s);
    return status;
}
