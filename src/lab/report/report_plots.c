/* The plots of one run: decides which problems are drawn together, and makes series from their results. */
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/report_drawing.h"

static bool is_type(const char *word) {
    return strcmp(word, "f32") == 0 || strcmp(word, "bf16") == 0 || strcmp(word, "f16") == 0 ||
           strcmp(word, "f64") == 0;
}

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

void carry_report_place_of(carry_ctx *ctx, carry_report_place *place, const char *problem, const char *device) {
    carry_problem parsed;
    *place = (carry_report_place){.steps = -1};
    if (carry_problem_parse(ctx, &parsed, problem) != CARRY_OK) {
        (void)snprintf(place->group, sizeof place->group, "%.*s", CARRY_PROBLEM_TEXT - 1, problem);
        return;
    }
    size_t length = (size_t)snprintf(place->group, sizeof place->group, "%s", parsed.family);
    for (int i = 0; i < parsed.items; i++) {
        const carry_problem_item *item = &parsed.item[i];
        if (item->number >= 0 && strcmp(item->key, "t") == 0) {
            place->steps = item->number;
            continue;
        }
        if (strcmp(item->key, "algo") == 0 || strcmp(item->key, "device") == 0) {
            continue; /* methods differ within a plot; the device is appended below */
        }
        if (is_type(item->key)) {
            (void)snprintf(place->type, sizeof place->type, "%.7s", item->key);
        }
        char number[24] = "";
        if (item->number >= 0) {
            (void)snprintf(number, sizeof number, "%lld", (long long)item->number);
        }
        length += (size_t)snprintf(place->group + length, sizeof place->group - length, ":%s%s%s%s", item->key, number,
                                   item->value[0] != '\0' ? "=" : "", item->value);
    }
    if (device[0] != '\0' && strcmp(device, "cpu") != 0) {
        (void)snprintf(place->group + length, sizeof place->group - length, " on %.18s", device);
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
        status = carry_fail(page->ctx, CARRY_EMEMORY, "out of memory: the plots of run %lld", (long long)run->id);
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
