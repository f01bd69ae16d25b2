/* Time and speedup against T for each shape; a shape with a single length has a row for each method. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/report_drawing.h"
#include "bench/sample.h"

#define SHAPES 12 /* number of shapes drawn; further ones are only in the tables */

static void quartiles(const carry_run_result *result, double *low, double *high) {
    *low = *high = result->is.median;
    double *copy = result->samples > 0 ? malloc((size_t)result->samples * sizeof *copy) : NULL;
    if (copy == NULL) {
        return;
    }
    memcpy(copy, result->sample, (size_t)result->samples * sizeof *copy);
    carry_summary summary = carry_summarise(copy, result->samples);
    *low = fmin(summary.quartile_low, *low);
    *high = fmax(summary.quartile_high, *high);
    free(copy);
}

/* The distinct measured lengths T of a shape, in order. */
static int lengths_of(const carry_drawing *d, const char *group, double lengths[CARRY_PLOT_SERIES]) {
    int count = 0;
    for (int i = 0; i < d->run->results; i++) {
        double steps = (double)d->place[i].steps;
        if (strcmp(d->place[i].group, group) != 0 || !carry_report_measured(&d->run->result[i]) || steps < 1.0) {
            continue;
        }
        int at = 0;
        while (at < count && lengths[at] < steps) {
            at++;
        }
        if ((at < count && lengths[at] == steps) || count == CARRY_PLOT_SERIES) {
            continue;
        }
        memmove(&lengths[at + 1], &lengths[at], (size_t)(count - at) * sizeof lengths[0]);
        lengths[at] = steps;
        count++;
    }
    return count;
}

static void collect_times(carry_drawing *d, const char *group, bool against_steps) {
    carry_drawing_clear(d);
    int row = 0;
    for (int i = 0; i < d->run->results; i++) {
        const carry_run_result *r = &d->run->result[i];
        int method = carry_report_method(d->page, r->is.method);
        if (method < 0 || !carry_report_measured(r) || strcmp(d->place[i].group, group) != 0) {
            continue;
        }
        double low;
        double high;
        quartiles(r, &low, &high);
        if (against_steps && d->place[i].steps > 0) {
            carry_curve_add(&d->curve[method], (double)d->place[i].steps, r->is.median, low, high);
        } else if (!against_steps) {
            carry_curve_add(&d->curve[method], r->is.median, row++, low, high);
        }
    }
}

static bool run_has(const carry_run *run, const char *method, size_t length) {
    for (int i = 0; i < run->results; i++) {
        const char *name = run->result[i].is.method;
        if (strlen(name) == length && strncmp(name, method, length) == 0 && carry_report_measured(&run->result[i])) {
            return true;
        }
    }
    return false;
}

/* The method that speedups refer to: the requested one, else the second in the first speedup(a, b, ...) of the
   criteria, else sequential, else the first that was measured. A method that the run did not measure is skipped. -1:
   none. */
static int baseline_of(const carry_drawing *d) {
    const char *asked = d->page->options->baseline;
    if (asked != NULL && run_has(d->run, asked, strlen(asked))) {
        return carry_report_method(d->page, asked);
    }
    for (int i = 0; i < d->run->criteria; i++) {
        const char *call = strstr(d->run->criterion[i].text, "speedup(");
        const char *second = call != NULL ? strchr(call, ',') : NULL;
        if (second != NULL) {
            second += 1 + strspn(second + 1, " ");
            size_t length = strcspn(second, ",) ");
            char name[64];
            if (length < sizeof name && run_has(d->run, second, length)) {
                (void)snprintf(name, sizeof name, "%.*s", (int)length, second);
                return carry_report_method(d->page, name);
            }
        }
    }
    if (run_has(d->run, "sequential", strlen("sequential"))) {
        return carry_report_method(d->page, "sequential");
    }
    for (int i = 0; i < d->run->results; i++) {
        if (carry_report_measured(&d->run->result[i])) {
            return carry_report_method(d->page, d->run->result[i].is.method);
        }
    }
    return -1;
}

/* Replaces the times in d->curve by the baseline's time over them, where both exist. */
static void divide_by(carry_drawing *d, int baseline) {
    const carry_curve base = d->curve[baseline];
    for (int i = 0; i < d->page->methods; i++) {
        carry_curve *c = &d->curve[i];
        int kept = 0;
        for (int j = 0; j < c->count; j++) {
            for (int k = 0; k < base.count; k++) {
                if (base.x[k] == c->x[j] && c->y[j] > 0.0) {
                    c->x[kept] = c->x[j];
                    c->y[kept++] = base.y[k] / c->y[j];
                    break;
                }
            }
        }
        c->count = i == baseline ? 0 : kept;
    }
}

static carry_status draw_speedup(carry_drawing *d, const char *group, const double *lengths, int count) {
    int baseline = baseline_of(d);
    char title[128];
    char level[64];
    char caption[512];
    if (baseline < 0 || d->curve[baseline].count == 0) {
        return CARRY_OK;
    }
    divide_by(d, baseline);
    d->count = 0;
    carry_drawing_curves(d, true, false);
    if (d->count == 0) {
        return CARRY_OK;
    }
    double most = 1.0;
    double least = 1.0;
    for (int i = 0; i < d->count; i++) {
        for (int j = 0; j < d->series[i].count; j++) {
            most = fmax(most, d->series[i].y[j]);
            least = fmin(least, d->series[i].y[j]);
        }
    }
    bool log = most > 6.0 * least;
    double ends[2] = {lengths[0], lengths[count - 1]};
    double ones[2] = {1.0, 1.0};
    (void)snprintf(level, sizeof level, "%.40s = 1", d->page->method[baseline]);
    carry_drawing_rule(d, level, ends, ones, 2, true);
    (void)snprintf(title, sizeof title, "Speedup over %.40s", d->page->method[baseline]);
    (void)snprintf(caption, sizeof caption, "How many times faster than %.40s, for %.280s. Above 1 is faster.",
                   d->page->method[baseline], group);
    carry_plot plot = {.title = title,
                       .x = {.label = "T, steps", .log = true, .tic = lengths, .tics = count},
                       .y = {.label = log ? "times faster, log scale" : "times faster",
                             .log = log,
                             .low = 0.0,
                             .high = log ? 0.0 : 1.1 * most},
                       .count = d->count,
                       .series = d->series};
    return carry_report_figure(d->page, &plot, caption, true);
}

static carry_status draw_times(carry_drawing *d, const char *group, const double *lengths, int count) {
    char caption[512];
    collect_times(d, group, true);
    carry_drawing_curves(d, true, true);
    (void)snprintf(caption, sizeof caption,
                   "One run of %.280s: median, whiskers at the quartiles. Both axes logarithmic.", group);
    carry_plot plot = {.title = "Time against T",
                       .x = {.label = "T, steps", .log = true, .tic = lengths, .tics = count},
                       .y = {.label = "time", .log = true, .unit = CARRY_PLOT_SECONDS},
                       .count = d->count,
                       .series = d->series};
    CARRY_TRY(carry_report_figure(d->page, &plot, caption, true));
    return draw_speedup(d, group, lengths, count);
}

/* Draws a shape with a single length: a row for each method. */
static carry_status draw_rows(carry_drawing *d, const char *group, const char *problem) {
    const char *names[CARRY_PLOT_SERIES];
    char caption[512];
    collect_times(d, group, false);
    carry_drawing_curves(d, false, true);
    int rows = 0;
    for (int i = 0; i < d->count; i++) {
        carry_curve *c = &d->curve[d->series[i].style];
        for (int j = 0; j < c->count; j++) {
            c->y[j] = i;
        }
        names[rows++] = d->series[i].name;
    }
    if (rows < 2) {
        return CARRY_OK; /* a table shows a single row in less space */
    }
    (void)snprintf(caption, sizeof caption, "One run of %.280s: median, whiskers at the quartiles. Logarithmic axis.",
                   problem);
    carry_plot plot = {.title = "Time by method",
                       .x = {.label = "time", .log = true, .unit = CARRY_PLOT_SECONDS},
                       .y = {.label = "", .names = names, .tics = rows},
                       .count = d->count,
                       .series = d->series};
    return carry_report_figure(d->page, &plot, caption, false);
}

carry_status carry_drawing_times(carry_drawing *d) {
    int shapes = 0;
    for (int i = 0; i < d->run->results; i++) {
        const char *group = d->place[i].group;
        bool seen = !carry_report_measured(&d->run->result[i]);
        for (int j = 0; j < i && !seen; j++) {
            seen = carry_report_measured(&d->run->result[j]) && strcmp(d->place[j].group, group) == 0;
        }
        if (seen || ++shapes > SHAPES) {
            continue;
        }
        double lengths[CARRY_PLOT_SERIES];
        int count = lengths_of(d, group, lengths);
        CARRY_TRY(count > 1 ? draw_times(d, group, lengths, count) : draw_rows(d, group, d->run->result[i].is.problem));
    }
    if (shapes > SHAPES && d->page->drawing) {
        carry_html_raw(d->page->to, "<p class=\"note\">%d more shapes are in the table only.</p>\n", shapes - SHAPES);
    }
    return CARRY_OK;
}
