/* Metrics over steps, such as the loss of a training: one plot for each metric, the runs overlaid. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/html.h"
#include "lab/plot.h"
#include "lab/report_parts.h"

#define METRICS 8
#define POINTS 300 /* more than a screen shows; longer curves are means over as many equal stretches */

typedef struct stretch {
    double x[POINTS], y[POINTS];
    int count;
    bool averaged;
} stretch;

/* Steps may come in any order and repeat; what is not finite is left out. */
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

static carry_status draw_metric(carry_page *page, const char *metric, stretch *stretches) {
    carry_plot_series series[CARRY_REPORT_RUNS];
    char names[CARRY_REPORT_RUNS][80];
    char title[96];
    int count = 0;
    double low = INFINITY;
    double high = -INFINITY;
    bool averaged = false;
    for (int i = 0; i < page->count; i++) {
        stretch *s = &stretches[i];
        collect(s, page->runs[i], metric);
        averaged = averaged || s->averaged;
        for (int j = 0; j < s->count; j++) {
            low = fmin(low, s->y[j]);
            high = fmax(high, s->y[j]);
        }
        if (s->count > 0) {
            (void)snprintf(names[i], sizeof names[i], "run %lld, %.50s", (long long)page->runs[i]->id,
                           page->runs[i]->name);
            series[count] = (carry_plot_series){.name = names[i],
                                                .style = i,
                                                .line = s->count > 1,
                                                .points = s->count <= 24,
                                                .count = s->count,
                                                .x = s->x,
                                                .y = s->y};
            count++;
        }
    }
    (void)snprintf(title, sizeof title, "%.64s over steps", metric);
    carry_plot plot = {.title = title,
                       .x = {.label = "step"},
                       .y = {.label = metric, .log = low > 0.0 && high > 20.0 * low},
                       .count = count,
                       .series = series};
    return carry_report_figure(page, &plot,
                               averaged ? "Each point is the mean of a stretch of neighbouring steps."
                                        : "Each point is one logged step.",
                               page->count > 1);
}

carry_status carry_report_curves(carry_page *page) {
    const char *metric[METRICS];
    int count = 0;
    bool more = false;
    for (int i = 0; i < page->count; i++) {
        for (int j = 0; j < page->runs[i]->metrics; j++) {
            const char *name = page->runs[i]->metric[j].name;
            int at = 0;
            while (at < count && strcmp(metric[at], name) != 0) {
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
    stretch *stretches = calloc((size_t)page->count, sizeof *stretches);
    if (stretches == NULL) {
        return carry_fail(page->ctx, CARRY_EMEMORY, "no memory for the curves of %d runs", page->count);
    }
    carry_html_raw(page->to, "<section>\n<h2 id=\"over\">Over steps</h2>\n<div class=\"figures\">\n");
    carry_status status = CARRY_OK;
    for (int i = 0; i < count && status == CARRY_OK; i++) {
        status = draw_metric(page, metric[i], stretches);
    }
    carry_html_raw(page->to, "</div>\n%s</section>\n",
                   more ? "<p class=\"note\">Only the first 8 metrics are drawn.</p>\n" : "");
    free(stretches);
    return status;
}
