/* Metrics over steps, such as the loss of a training: one plot for each metric, with all runs in it. A metric named
   WHAT:WHICH, such as loss:cyclic, is a curve in the plot of WHAT; eval_loss, the loss on held-out text, is in the
   plot of loss. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/plot.h"
#include "lab/report/report_parts.h"

#define METRICS 8
#define CURVES 32  /* maximum curves of a plot */
#define POINTS 300 /* more than a screen shows; longer curves are averaged over this many equal intervals */

typedef struct stretch {
    double x[POINTS], y[POINTS];
    int count;
    bool averaged;
} stretch;

/* Averages a metric over intervals of steps. Steps may come in any order and repeat; values that are not finite are
   left out. */
static void collect(stretch *to, const carry_run *run, const char *metric) {
    double low = INFINITY;
    double high = -INFINITY;
    double sum_x[POINTS] = {0};
    double sum_y[POINTS] = {0};
    int64_t each[POINTS] = {0};
    int64_t values = 0;
    for (int i = 0; i < run->metrics; i++) {
        if (strcmp(run->metric[i].name, metric) == 0 && isfinite(run->metric[i].value)) {
            low = fmin(low, (double)run->metric[i].step);
            high = fmax(high, (double)run->metric[i].step);
            values++;
        }
    }
    for (int i = 0; i < run->metrics; i++) {
        const carry_run_metric *m = &run->metric[i];
        if (strcmp(m->name, metric) == 0 && isfinite(m->value)) {
            double share = high > low ? ((double)m->step - low) / (high - low) : 0.0;
            int at = (int)fmin(share * POINTS, POINTS - 1);
            sum_x[at] += (double)m->step;
            sum_y[at] += m->value;
            each[at]++;
        }
    }
    to->count = 0;
    for (int i = 0; i < POINTS; i++) {
        if (each[i] > 0) {
            to->x[to->count] = sum_x[i] / (double)each[i];
            to->y[to->count++] = sum_y[i] / (double)each[i];
        }
    }
    to->averaged = values > to->count;
}

static bool is_held_out(const char *name) {
    return strcmp(name, "eval_loss") == 0;
}

/* The length of the WHAT part of a name. */
static size_t what(const char *name) {
    return strcspn(name, ":");
}

static bool is_of(const char *name, const char *metric) {
    const char *a = is_held_out(name) ? "loss" : name;
    const char *b = is_held_out(metric) ? "loss" : metric;
    return what(a) == what(b) && strncmp(a, b, what(b)) == 0;
}

/* One plot being drawn. */
typedef struct drawing {
    carry_plot_series series[CURVES];
    char names[CURVES][96];
    stretch *stretches; /* CURVES */
    int count;
    double low, high;
    bool averaged, more;
} drawing;

/* ", METHOD" for a training that states the method of its layers; else "". */
static void method_of(char text[48], const carry_run *run) {
    static const char key[] = "method: \"";
    const char *line = run->spec != NULL && strcmp(run->kind, "train") == 0 ? strstr(run->spec, key) : NULL;
    text[0] = '\0';
    if (line != NULL && (line == run->spec || line[-1] == '\n')) {
        line += sizeof key - 1;
        (void)snprintf(text, 48, ", %.*s", (int)(strcspn(line, "\"\n") < 40 ? strcspn(line, "\"\n") : 40), line);
    }
}

static void add_curve(drawing *d, const carry_page *page, int at, const char *metric) {
    const carry_run *run = page->runs[at];
    const char *which = metric + what(metric);
    if (d->count == CURVES) {
        d->more = true;
        return;
    }
    stretch *s = &d->stretches[d->count];
    collect(s, run, metric);
    d->averaged = d->averaged || s->averaged;
    for (int j = 0; j < s->count; j++) {
        d->low = fmin(d->low, s->y[j]);
        d->high = fmax(d->high, s->y[j]);
    }
    if (s->count == 0) {
        return;
    }
    char *name = d->names[d->count];
    if (*which == '\0' && page->count == 1 && is_of(metric, "loss")) {
        (void)snprintf(name, sizeof d->names[0], "%s", is_held_out(metric) ? "held out" : "training");
    } else if (*which == '\0') {
        char method[48];
        method_of(method, run);
        (void)snprintf(name, sizeof d->names[0], "run %lld, %.40s%.20s%s", (long long)run->id, run->name, method,
                       is_held_out(metric) ? ", held out" : "");
    } else if (page->count > 1) {
        (void)snprintf(name, sizeof d->names[0], "%.50s, run %lld", which + 1, (long long)run->id);
    } else {
        (void)snprintf(name, sizeof d->names[0], "%.80s", which + 1);
    }
    d->series[d->count] = (carry_plot_series){.name = name,
                                              .style = *which != '\0'        ? d->count
                                                       : is_held_out(metric) ? page->count + at
                                                                             : at,
                                              .line = s->count > 1,
                                              .points = s->count <= 24,
                                              .count = s->count,
                                              .x = s->x,
                                              .y = s->y};
    d->count++;
}

/* Draws one metric. Metrics are sorted by name, so those of one name are consecutive. */
static carry_status draw_metric(carry_page *page, const char *metric, drawing *d) {
    char title[96];
    stretch *stretches = d->stretches;
    *d = (drawing){.stretches = stretches, .low = INFINITY, .high = -INFINITY};
    for (int i = 0; i < page->count; i++) {
        const char *last = NULL;
        for (int j = 0; j < page->runs[i]->metrics; j++) {
            const char *name = page->runs[i]->metric[j].name;
            if (is_of(name, metric) && !carry_report_of_result(page->runs[i], name) &&
                (last == NULL || strcmp(last, name) != 0)) {
                add_curve(d, page, i, name);
                last = name;
            }
        }
    }
    char label[65];
    const char *drawn = is_held_out(metric) ? "loss" : metric;
    (void)snprintf(label, sizeof label, "%.*s", (int)(what(drawn) < 64 ? what(drawn) : 64), drawn);
    (void)snprintf(title, sizeof title, "%s over steps", label);
    carry_plot plot = {.title = title,
                       .x = {.label = "step"},
                       .y = {.label = label, .log = d->low > 0.0 && d->high > 20.0 * d->low},
                       .count = d->count,
                       .series = d->series};
    const char *caption = d->more       ? "Only the first 32 curves are drawn."
                          : d->averaged ? "Each point is the mean of a stretch of neighbouring steps."
                                        : "Each point is one logged step.";
    return carry_report_figure(page, &plot, caption, d->count > 1 || page->count > 1 || metric[what(metric)] != '\0');
}

carry_status carry_report_curves(carry_page *page) {
    const char *metric[METRICS];
    int count = 0;
    bool more = false;
    for (int i = 0; i < page->count; i++) {
        for (int j = 0; j < page->runs[i]->metrics; j++) {
            const char *name = page->runs[i]->metric[j].name;
            int at = 0;
            if (carry_report_of_result(page->runs[i], name)) {
                continue;
            }
            while (at < count && !is_of(name, metric[at])) {
                at++;
            }
            if (at == count && count < METRICS) {
                metric[count++] = name;
            }
            more = more || at == METRICS;
        }
    }
    if (count == 0) {
        return CARRY_OK;
    }
    drawing *d = calloc(1, sizeof *d);
    stretch *stretches = calloc(CURVES, sizeof *stretches);
    if (d == NULL || stretches == NULL) {
        free(d);
        free(stretches);
        return carry_fail(page->ctx, CARRY_EMEMORY, "out of memory: the curves of %d runs", page->count);
    }
    d->stretches = stretches;
    carry_html_raw(page->to, "<section>\n<h2 id=\"over\">Over steps</h2>\n<div class=\"figures\">\n");
    carry_status status = CARRY_OK;
    for (int i = 0; i < count && status == CARRY_OK; i++) {
        status = draw_metric(page, metric[i], d);
    }
    carry_html_raw(page->to, "</div>\n%s</section>\n",
                   more ? "<p class=\"note\">Only the first 8 metrics are drawn.</p>\n" : "");
    free(stretches);
    free(d);
    return status;
}
