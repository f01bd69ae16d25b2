/* One figure of the report: caption, drawing, and a legend that shows the drawing's own marks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/error.h"
#include "lab/report/html.h"
#include "lab/report/plot.h"
#include "lab/report/report_parts.h"

/* The last value of a series: the legend is in the order of the curves' right ends. */
static double last_of(const carry_plot_series *one) {
    return one->count > 0 ? one->y[one->count - 1] : -INFINITY;
}

static void write_swatch(const carry_page *page, const char *id, const carry_plot_series *one) {
    int colour = one->style % CARRY_PLOT_COLOURS;
    carry_html_raw(page->to, "<svg class=\"swatch\" viewBox=\"0 0 30 14\" aria-hidden=\"true\">");
    if (one->line) {
        carry_html_raw(page->to, "<path d=\"M0 7H30\" stroke=\"var(--s%d)\" stroke-width=\"2\"%s/>", colour,
                       one->style / CARRY_PLOT_COLOURS % 2 == 1 ? " stroke-dasharray=\"7 4\"" : "");
    }
    if (one->points) {
        carry_html_raw(page->to,
                       "<use href=\"#%s-gpPt%d\" transform=\"translate(15 7) scale(4.8)\" color=\"var(--s%d)\"/>", id,
                       carry_plot_shape(one->style), colour);
    }
    carry_html_raw(page->to, "</svg>");
}

static void write_legend(const carry_page *page, const carry_plot *plot) {
    bool written[CARRY_PLOT_SERIES] = {false};
    carry_html_raw(page->to, "<ul class=\"legend\">\n");
    for (;;) {
        int next = -1;
        for (int i = 0; i < plot->count; i++) {
            bool wanted = !written[i] && plot->series[i].style != CARRY_PLOT_RULE && plot->series[i].count > 0;
            if (wanted && (next < 0 || last_of(&plot->series[i]) > last_of(&plot->series[next]))) {
                next = i;
            }
        }
        if (next < 0) {
            break;
        }
        written[next] = true;
        carry_html_raw(page->to, "<li>");
        write_swatch(page, plot->id, &plot->series[next]);
        carry_html_around(page->to, " ", plot->series[next].name, "</li>\n");
    }
    carry_html_raw(page->to, "</ul>\n");
}

carry_status carry_report_figure(carry_page *page, carry_plot *plot, const char *caption, bool legend) {
    char id[24];
    char *svg;
    if (!page->drawing) {
        return CARRY_OK;
    }
    (void)snprintf(id, sizeof id, "plot%d", ++page->drawings);
    plot->id = id;
    plot->about = caption;
    carry_status status = carry_plot_svg(page->ctx, &svg, plot, page->options->stop);
    if (status == CARRY_EINTERRUPTED || status == CARRY_ERANGE) { /* having nothing to draw is not an error */
        return status == CARRY_ERANGE ? CARRY_OK : status;
    }
    if (status != CARRY_OK) {
        const char *why = status == CARRY_ENOTFOUND ? "gnuplot is not installed here" : carry_ctx_error(page->ctx);
        (void)snprintf(page->report->warning, sizeof page->report->warning,
                       "the report has no plots%s: %s; its tables have every figure",
                       page->report->plots > 0 ? " from here on" : "", why);
        page->drawing = false;
        carry_html_around(page->to, "<p class=\"warning\" role=\"note\"><b>Plots are missing.</b> Here ",
                          page->report->warning, ".</p>\n");
        return CARRY_OK;
    }
    page->report->plots++;
    carry_html_around(page->to, "<figure>\n<figcaption><b>", plot->title, "</b> ");
    carry_html_around(page->to, "<span>", caption, "</span></figcaption>\n");
    if (legend) {
        write_legend(page, plot);
    }
    (void)fputs(svg, page->to);
    carry_html_raw(page->to, "\n</figure>\n");
    free(svg);
    return CARRY_OK;
}
