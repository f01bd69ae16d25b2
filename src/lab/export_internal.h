/* Shared by the export formats. */
#ifndef CARRY_LAB_EXPORT_INTERNAL_H
#define CARRY_LAB_EXPORT_INTERNAL_H

#include <stdio.h>

#include "lab/store/store.h"
#include "core/json_write.h"

/* The object that was begun in text is ended and written as one line. */
carry_status carry_export_line(carry_ctx *ctx, FILE *to, const carry_run *run, carry_json_text *text);
void carry_export_csv_text(FILE *to, const char *text);
void carry_export_csv_number(FILE *to, double value); /* with a comma before it */

/* When a step was, seconds since 1970: the store keeps the start and the end of a run. */
double carry_export_time(const carry_run *run, int64_t step);

/* The metrics of a run step by step: they are sorted by name, then step. */
typedef struct carry_export_steps {
    const carry_run *run;
    int names;
    int first[64], at[64], end[64]; /* places in run->metric of each name: begin, the next, one past the last */
} carry_export_steps;

/* False when the run has more names than there is room for: the rest is left out. */
bool carry_export_steps_begin(carry_export_steps *s, const carry_run *run);
/* The next step, and of each name its metric at it or NULL; false at the end. */
bool carry_export_steps_next(carry_export_steps *s, int64_t *step, const carry_run_metric *found[64]);

#endif
