/* Plots. Ranges and tick labels are computed here, since those that gnuplot chooses suit wide pictures. A script of
   numbers and placeholders is then written to gnuplot's standard input. */
#include "lab/report/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/plot_axis.h"
#include "lab/process.h"

/* Sizes in SVG user units. A phone shows the drawing at about 0.85 of this size and a desktop at about 1.1, so text of
   size TYPE is readable on both. */
#define WIDTH 440.0
#define HEIGHT 320.0
#define TYPE 14.0
#define CHARACTER (0.57 * TYPE)
#define RIGHT 16.0
#define TOP 34.0 /* with a title of the vertical axis, else 8 */
#define BOTTOM 48.0
#define ROW 30.0 /* height of a category */

#define TEXTS (2 * CARRY_PLOT_SERIES + 3 * CARRY_AXIS_TICS + 8)
#define GNUPLOT_SECONDS 30.0
#define GNUPLOT_BYTES ((size_t)8 << 20)

typedef struct sheet {
    const carry_plot *plot;
    FILE *to;
    carry_scale x, y;
    double left, top, height;
    int labels, texts;
    char text[TEXTS][96];
} sheet;

/* Adds a text and returns the number of its placeholder. Returns TEXTS, which is not a placeholder, if the table is
   full; the table is large enough for every plot within the limits. */
static int text_of(sheet *s, const char *text) {
    if (s->texts == TEXTS) {
        return TEXTS;
    }
    (void)snprintf(s->text[s->texts], sizeof s->text[0], "%s", text);
    return s->texts++;
}

static void write_tics(sheet *s, const carry_scale *to, char name) {
    carry_html_raw(s->to, "set %ctics (", name);
    for (int i = 0; i < to->tics; i++) {
        char text[CARRY_HTML_FIGURE];
        carry_html_raw(s->to, "%s'@%d@' %.17g", i > 0 ? ", " : "", text_of(s, carry_axis_text(text, to, i)),
                       to->tic[i]);
    }
    carry_html_raw(s->to, ")\n");
}

/* Writes a rule's name along it: at its right end if it is horizontal, else at its start. */
static void label_rule(sheet *s, const carry_plot_series *rule) {
    char name[CARRY_HTML_FIGURE];
    int last = rule->count - 1;
    double right =
        (carry_axis_along(&s->x, rule->x[last]) - carry_axis_along(&s->x, rule->x[0])) * (WIDTH - RIGHT - s->left);
    double up =
        (carry_axis_along(&s->y, rule->y[last]) - carry_axis_along(&s->y, rule->y[0])) * (s->height - s->top - BOTTOM);
    double angle = atan2(up, right);
    bool level = fabs(angle) < 0.02;
    carry_html_raw(s->to,
                   "set label %d '@%d@' at %.17g,%.17g %s rotate by %.1f offset %.2f,%.2f textcolor rgb '#000200'\n",
                   ++s->labels, text_of(s, carry_axis_shorten(name, rule->name, 40)), rule->x[level ? last : 0],
                   rule->y[level ? last : 0], level ? "right" : "left", level ? 0.0 : angle * 180.0 / 3.14159265358979,
                   level ? 0.0 : 0.4, level ? 0.45 : 0.9);
}

/* Writes an axis title horizontally beside the axis's end; gnuplot would rotate it or push it off the drawing. */
static void write_title(sheet *s, const char *words, double x, double y, const char *side) {
    if (words[0] != '\0') {
        char text[CARRY_HTML_FIGURE];
        carry_html_raw(s->to, "set label %d '@%d@' at screen %.4f,screen %.4f %s textcolor rgb '#000200'\n",
                       ++s->labels, text_of(s, carry_axis_shorten(text, words, 40)), x / WIDTH, y / s->height, side);
    }
}

static void write_frame(sheet *s) {
    const carry_plot *plot = s->plot;
    carry_html_raw(s->to,
                   "set terminal svg size %.0f,%.0f dynamic noenhanced font 'x,%.0f'\n"
                   "set encoding utf8\nset key off\nset border 3 lc rgb '#000200'\nset errorbars small\n"
                   "set tics nomirror out scale 0.4,0 textcolor rgb '#000200'\nset xtics offset 0,0.35\n"
                   "set lmargin at screen %.4f\nset rmargin at screen %.4f\nset tmargin at screen %.4f\n"
                   "set bmargin at screen %.4f\n",
                   WIDTH, s->height, TYPE, s->left / WIDTH, 1.0 - RIGHT / WIDTH, 1.0 - s->top / s->height,
                   BOTTOM / s->height);
    if (plot->x.log || plot->y.log) {
        carry_html_raw(s->to, "set logscale %s%s\n", plot->x.log ? "x" : "", plot->y.log ? "y" : "");
    }
    carry_html_raw(s->to, "set xrange [%.17g:%.17g]\nset yrange [%.17g:%.17g]\n", s->x.low, s->x.high,
                   plot->y.names != NULL ? s->y.high : s->y.low, plot->y.names != NULL ? s->y.low : s->y.high);
    write_tics(s, &s->x, 'x');
    write_tics(s, &s->y, 'y');
    carry_html_raw(s->to, "set grid xtics ytics back lc rgb '#000100' lw 1 dt solid\n");
    write_title(s, plot->x.label, 0.5 * (s->left + WIDTH - RIGHT), 10.0, "center");
    write_title(s, plot->y.label, 0.0, s->height - 15.0, "left");
    for (int i = 0; i < plot->count; i++) {
        if (plot->series[i].style == CARRY_PLOT_RULE && plot->series[i].line && plot->series[i].count > 1) {
            label_rule(s, &plot->series[i]);
        }
    }
}

static void write_data(sheet *s, int index) {
    const carry_plot_series *one = &s->plot->series[index];
    bool sideways = s->plot->y.names != NULL;
    carry_html_raw(s->to, "$d%d << E\n", index);
    for (int i = 0; i < one->count; i++) {
        if (!carry_axis_shows(&s->plot->x, one->x[i]) || !carry_axis_shows(&s->plot->y, one->y[i])) {
            continue;
        }
        double middle = sideways ? one->x[i] : one->y[i];
        bool whiskers = one->low != NULL && carry_axis_shows(sideways ? &s->plot->x : &s->plot->y, one->low[i]);
        carry_html_raw(s->to, "%.17g %.17g %.17g %.17g\n", one->x[i], one->y[i], whiskers ? one->low[i] : middle,
                       whiskers && one->high != NULL ? one->high[i] : middle);
    }
    carry_html_raw(s->to, "E\n");
}

static bool has_data(const sheet *s, const carry_plot_series *one) {
    for (int i = 0; i < one->count; i++) {
        if (carry_axis_shows(&s->plot->x, one->x[i]) && carry_axis_shows(&s->plot->y, one->y[i])) {
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
    double widest = 3.0;
    for (int i = 0; i < s->y.tics; i++) {
        char text[CARRY_HTML_FIGURE];
        widest = fmax(widest, carry_axis_characters(carry_axis_text(text, &s->y, i)));
    }
    s->left = fmin(16.0 + CHARACTER * widest, 0.5 * WIDTH);
    s->top = s->plot->y.label[0] != '\0' ? TOP : 8.0;
    s->height = s->plot->y.names != NULL ? s->top + BOTTOM + ROW * s->plot->y.tics : HEIGHT;
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
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plot");
    }
    s->plot = plot;
    s->x.axis = &plot->x;
    s->x.is_x = true;
    s->y.axis = &plot->y;
    bool drawn = carry_axis_settle(&s->x, plot) && carry_axis_settle(&s->y, plot);
    if (drawn) {
        write_script(s);
    }
    carry_status status = CARRY_OK;
    bool lost = ferror(s->to) != 0;
    if (fclose(s->to) != 0 || lost) {
        status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plot");
    } else if (!drawn) {
        status = carry_fail(ctx, CARRY_ERANGE, "there is nothing to draw in '%.80s'", plot->title);
    } else {
        status = draw(ctx, svg, s, script, length, stop);
    }
    free(script);
    free(s);
    return status;
}
