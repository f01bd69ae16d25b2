/* The plots of one run. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/html.h"
#include "lab/report_drawing.h"

void carry_curve_add(carry_curve *to, double x, double y, double low, double high) {
    int at = to->count;
    if (at == CARRY_CURVE_POINTS) {
        return;
    }
    while (at > 0 && to->x[at - 1] > x) {
        to->x[at] = to->x[at - 1];
        to->y[at] = to->y[at - 1];
        to->low[at] = to->low[at - 1];
        to->high[at] = to->high[at - 1];
        at--;
    }
    to->x[at] = x;
    to->y[at] = y;
    to->low[at] = low;
    to->high[at] = high;
    to->count++;
}

void carry_drawing_clear(carry_drawing *d) {
    for (int i = 0; i <= CARRY_REPORT_METHODS; i++) {
        d->curve[i].count = 0;
    }
    d->count = 0;
}

void carry_drawing_curves(carry_drawing *d, bool line, bool whiskers) {
    for (int i = 0; i < d->page->methods; i++) {
        const carry_curve *c = &d->curve[i];
        if (c->count > 0 && d->count < CARRY_PLOT_SERIES) {
            d->series[d->count++] = (carry_plot_series){.name = d->page->method[i],
                                                        .style = i,
                                                        .line = line && c->count > 1,
                                                        .points = true,
                                                        .count = c->count,
                                                        .x = c->x,
                                                        .y = c->y,
                                                        .low = whiskers ? c->low : NULL,
                                                        .high = whiskers ? c->high : NULL};
        }
    }
}

void carry_drawing_rule(carry_drawing *d, const char *name, const double *x, const double *y, int count, bool line) {
    if (d->count < CARRY_PLOT_SERIES) {
        d->series[d->count++] = (carry_plot_series){
            .name = name, .style = CARRY_PLOT_RULE, .line = line, .points = !line, .count = count, .x = x, .y = y};
    }
}

carry_status carry_report_plots(carry_page *page, const carry_run *run) {
    carry_drawing *d = calloc(1, sizeof *d);
    carry_status status = CARRY_OK;
    if (d != NULL) {
        d->page = page;
        d->run = run;
        d->place = calloc((size_t)run->results + 1, sizeof *d->place);
        d->curve = calloc(CARRY_REPORT_METHODS + 1, sizeof *d->curve);
    }
    if (d == NULL || d->place == NULL || d->curve == NULL) {
        status = carry_fail(page->ctx, CARRY_EMEMORY, "no memory for the plots of run %lld", (long long)run->id);
    } else {
        for (int i = 0; i < run->results; i++) {
            carry_report_place_of(page->ctx, &d->place[i], run->result[i].is.problem, run->result[i].is.device);
        }
        carry_report_heading(page, "Plots");
        carry_html_raw(page->to, "<div class=\"figures\">\n");
        status = carry_drawing_times(d);
        status = status == CARRY_OK ? carry_drawing_limits(d) : status;
        carry_html_raw(page->to, "</div>\n");
    }
    if (d != NULL) {
        free(d->place);
        free(d->curve);
    }
    free(d);
    return status;
}
