/* Plots of accuracy and of the distance to the machine's limits: errors by method, and the roofline of each device. */
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/report_drawing.h"

#define DEVICES 8

static int rows_of_errors(carry_drawing *d, char (*labels)[64], int *zeros) {
    int rows = 0;
    bool several = false;
    for (int i = 1; i < d->run->results; i++) {
        several = several || strcmp(d->place[i].type, d->place[0].type) != 0;
    }
    carry_drawing_clear(d);
    carry_curve *bounds = &d->curve[CARRY_REPORT_METHODS];
    for (int i = 0; i < d->run->results; i++) {
        const carry_stored_result *r = &d->run->result[i].is;
        int method = carry_report_method(d->page, r->method);
        if (method < 0 || !carry_report_measured(&d->run->result[i]) || !isfinite(r->error)) {
            continue;
        }
        if (r->error <= 0.0) {
            ++*zeros;
            continue;
        }
        char label[64];
        (void)snprintf(label, sizeof label, "%.24s%s%s", r->method, several ? " " : "",
                       several ? d->place[i].type : "");
        int row = 0;
        while (row < rows && strcmp(labels[row], label) != 0) {
            row++;
        }
        if (row == CARRY_PLOT_SERIES) {
            continue;
        }
        memcpy(labels[row], label, sizeof label);
        rows = row == rows ? rows + 1 : rows;
        carry_curve_add(&d->curve[method], r->error, row, r->error, r->error);
        if (isfinite(r->bound)) {
            carry_curve_add(bounds, r->bound, row, r->bound, r->bound);
        }
    }
    return rows;
}

static carry_status draw_errors(carry_drawing *d) {
    char labels[CARRY_PLOT_SERIES][64];
    const char *names[CARRY_PLOT_SERIES];
    char caption[512];
    int zeros = 0;
    int rows = rows_of_errors(d, labels, &zeros);
    const carry_curve *bounds = &d->curve[CARRY_REPORT_METHODS];
    for (int i = 0; i < rows; i++) {
        names[i] = labels[i];
    }
    if (bounds->count > 0) {
        carry_drawing_rule(d, "bound", bounds->x, bounds->y, bounds->count, false);
    }
    carry_drawing_curves(d, false, false);
    int length = snprintf(caption, sizeof caption,
                          "Largest difference from float64 over the largest magnitude, a point for each problem.%s",
                          bounds->count > 0 ? " Grey crosses: the bound from type and length." : "");
    if (zeros > 0) {
        (void)snprintf(caption + length, sizeof caption - (size_t)length,
                       " %d result%s exactly equal, which this axis cannot show.", zeros, zeros > 1 ? "s are" : " is");
    }
    carry_plot plot = {.title = "Accuracy",
                       .x = {.label = "error", .log = true, .unit = CARRY_PLOT_SMALL},
                       .y = {.label = "", .names = names, .tics = rows},
                       .count = d->count,
                       .series = d->series};
    return rows > 0 ? carry_report_figure(d->page, &plot, caption, false) : CARRY_OK;
}

static bool on_roof(const carry_stored_result *r, const char *device) {
    return strcmp(r->device, device) == 0 && r->flops > 0.0 && r->bytes > 0.0 && r->median > 0.0 &&
           isfinite(r->flops) && isfinite(r->bytes) && r->gemm_gflops > 0.0 && r->copy_gbytes_s > 0.0 &&
           isfinite(r->gemm_gflops) && isfinite(r->copy_gbytes_s);
}

static carry_status draw_roofline(carry_drawing *d, const char *device) {
    double gemm = 0.0;
    double copy = 0.0;
    double left = INFINITY;
    double right = 0.0;
    double down = INFINITY;
    carry_drawing_clear(d);
    for (int i = 0; i < d->run->results; i++) {
        const carry_stored_result *r = &d->run->result[i].is;
        int method = carry_report_method(d->page, r->method);
        if (method < 0 || !carry_report_measured(&d->run->result[i]) || !on_roof(r, device)) {
            continue;
        }
        double intensity = r->flops / r->bytes;
        double rate = 1e-9 * r->flops / r->median;
        gemm = r->gemm_gflops;
        copy = r->copy_gbytes_s;
        left = fmin(left, intensity);
        right = fmax(right, intensity);
        down = fmin(down, rate);
        carry_curve_add(&d->curve[method], intensity, rate, rate, rate);
    }
    if (gemm <= 0.0) {
        return CARRY_OK;
    }
    double ridge = gemm / copy;
    left = fmin(0.6 * left, 0.25 * ridge);
    right = fmax(1.6 * right, 5.0 * ridge);
    down = fmin(0.5 * down, 0.25 * gemm);
    double slope_x[2] = {fmax(left, down / copy), ridge};
    double slope_y[2] = {copy * slope_x[0], gemm};
    double flat_x[2] = {ridge, right};
    double flat_y[2] = {gemm, gemm};
    char slope[64];
    char flat[64];
    char figure[CARRY_HTML_FIGURE];
    (void)snprintf(slope, sizeof slope, "copy %s GB/s", carry_figure_plain(figure, copy));
    (void)snprintf(flat, sizeof flat, "product %s GFLOP/s", carry_figure_plain(figure, gemm));
    carry_drawing_rule(d, slope, slope_x, slope_y, 2, true);
    carry_drawing_rule(d, flat, flat_x, flat_y, 2, true);
    carry_drawing_curves(d, false, false);
    char title[128];
    (void)snprintf(title, sizeof title, "Roofline%s%.60s", strcmp(device, "cpu") == 0 ? "" : " of ",
                   strcmp(device, "cpu") == 0 ? "" : device);
    carry_plot plot = {.title = title,
                       .x = {.label = "operations for each byte moved", .log = true, .low = left, .high = right},
                       .y = {.label = "GFLOP/s", .log = true, .low = down, .high = 2.0 * gemm},
                       .count = d->count,
                       .series = d->series};
    return carry_report_figure(
        d->page, &plot,
        "Rate of every measured problem under this run's own ceilings: what movement allows, and "
        "what arithmetic allows.",
        true);
}

carry_status carry_drawing_limits(carry_drawing *d) {
    int drawn = 0;
    CARRY_TRY(draw_errors(d));
    for (int i = 0; i < d->run->results; i++) {
        const char *device = d->run->result[i].is.device;
        bool seen = false;
        for (int j = 0; j < i && !seen; j++) {
            seen = strcmp(d->run->result[j].is.device, device) == 0;
        }
        if (!seen && drawn++ < DEVICES) {
            CARRY_TRY(draw_roofline(d, device));
        }
    }
    return CARRY_OK;
}
