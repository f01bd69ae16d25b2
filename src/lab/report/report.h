/* Reports: stored runs as one HTML file that needs nothing else, to be read on a desktop, a phone or paper.

   The decision comes first, then the criteria, the plots, the tables, and at the end how it was measured and on what.
   The same runs give the same bytes: there is no date in it but theirs. */
#ifndef CARRY_LAB_REPORT_H
#define CARRY_LAB_REPORT_H

#include <stdbool.h>
#include <stddef.h>

#include "bench/problem.h"
#include "lab/store/store.h"

#define CARRY_REPORT_RUNS 32 /* at most */

typedef struct carry_report_options {
    const char *baseline; /* method to which speedups refer; NULL: the one the criteria name, else sequential, else the
                             first */
    bool (*stop)(void);   /* NULL: never */
} carry_report_options;

typedef struct carry_report {
    char *html; /* the caller frees */
    size_t length;
    int plots;
    char warning[512]; /* why there are no plots, or ""; the page says it too */
} carry_report;

carry_status carry_report_make(carry_ctx *ctx, carry_report *report, carry_run *const *runs, int count,
                               const carry_report_options *options);

/* The key of the plot that a problem is drawn in: its text without the steps and the method. */
typedef struct carry_report_place {
    char group[CARRY_PROBLEM_TEXT + 24]; /* "scan:dense:f32:n32:w1", with " on DEVICE" where that is not the CPU */
    char type[8];                        /* f32, ...; "" when the problem does not say */
    int64_t steps;                       /* T, or -1 */
} carry_report_place;

void carry_report_place_of(carry_ctx *ctx, carry_report_place *place, const char *problem, const char *device);

#endif
