/* Reports: stored runs as one self-contained HTML file, for a desktop, a phone or paper.

   The decision comes first, then the criteria, the plots, the tables, and at the end the method and the machine. The
   same runs give the same bytes: a report has no dates other than those of the runs. */
#ifndef CARRY_LAB_REPORT_H
#define CARRY_LAB_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "bench/problem.h"
#include "lab/store/store.h"

#define CARRY_REPORT_RUNS 32 /* maximum number of runs */

typedef struct carry_report_options {
    /* Method to which speedups refer; NULL: the one in the criteria, else sequential, else the first. */
    const char *baseline;
    bool (*stop)(void); /* NULL: never */
} carry_report_options;

typedef struct carry_report {
    char *html; /* the caller frees */
    size_t length;
    int plots;
    char warning[512]; /* why there are no plots, or ""; also shown on the page */
} carry_report;

carry_status carry_report_make(carry_ctx *ctx, carry_report *report, carry_run *const *runs, int count,
                               const carry_report_options *options);

/* The plot in which a problem is drawn: its text without the steps and the method. */
typedef struct carry_report_place {
    char group[CARRY_PROBLEM_TEXT + 24]; /* "scan:dense:f32:n32:w1", with " on DEVICE" unless it is the CPU */
    char type[8];                        /* f32, ...; "": the problem does not state it */
    int64_t steps;                       /* T, or -1 without */
} carry_report_place;

void carry_report_place_of(carry_ctx *ctx, carry_report_place *place, const char *problem, const char *device);

#endif
