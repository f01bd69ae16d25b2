/* Shared by the files of the report. */
#ifndef CARRY_LAB_REPORT_PARTS_H
#define CARRY_LAB_REPORT_PARTS_H

#include <stdio.h>

#include "lab/report/report.h"

#define CARRY_REPORT_METHODS 64 /* methods with their own mark; further ones are only in the tables */

typedef struct carry_page {
    carry_ctx *ctx;
    FILE *to;
    carry_report *report;
    const carry_report_options *options;
    carry_run *const *runs;
    int count;
    /* In the order of their first appearance in the runs: a method looks the same in every plot of the page. */
    const char *method[CARRY_REPORT_METHODS];
    int methods;
    int drawings; /* number of attempted drawings, which makes ids unique */
    bool drawing; /* gnuplot has not failed yet */
} carry_page;

bool carry_report_measured(const carry_run_result *result);
/* The method's index in page->method, or -1. */
int carry_report_method(const carry_page *page, const char *name);

/* report_hotspots.c: for runs of this kind. */
#define CARRY_REPORT_PROFILE "profile"
void carry_report_hotspots(carry_page *page, const carry_run *run);

/* report_training.c: for runs of this kind. */
#define CARRY_REPORT_TRAIN "train"
void carry_report_hyperparameters(carry_page *page, const carry_run *run);

/* report_tables.c */
/* True if the step of this metric is not a step of time but the index of a result or hotspot, as experiment_run.c and
   cmd_profile.c store it. Such metrics are shown in tables and not drawn as curves. */
bool carry_report_of_result(const carry_run *run, const char *metric);
void carry_report_criteria(carry_page *page, const carry_run *run);
void carry_report_results(carry_page *page, const carry_run *run);
carry_status carry_report_compare(carry_page *page);

/* report_plots.c, report_curves.c: write figures with their headings. They fail only when interrupted. */
carry_status carry_report_plots(carry_page *page, const carry_run *run);
carry_status carry_report_curves(carry_page *page);

/* report.c: writes the heading of a section, one level below that of the run. */
void carry_report_heading(carry_page *page, const char *words);

/* report_figure.c: writes one figure. legend: its series are named below it. Writes nothing if there is nothing to
   draw or no gnuplot. */
struct carry_plot;
carry_status carry_report_figure(carry_page *page, struct carry_plot *plot, const char *caption, bool legend);

/* report_style.c */
extern const char *const carry_report_style[]; /* NULL at its end */

#endif
