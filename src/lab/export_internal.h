/* Shared by the export formats. */
#ifndef CARRY_LAB_EXPORT_INTERNAL_H
#define CARRY_LAB_EXPORT_INTERNAL_H

#include <stdio.h>

#include "lab/store/store.h"
#include "core/json_write.h"

/* Ends the object that was begun in `text` and writes it as one line. */
carry_status carry_export_line(carry_ctx *ctx, FILE *to, const carry_run *run, carry_json_text *text);
void carry_export_csv_text(FILE *to, const char *text);
void carry_export_csv_number(FILE *to, double value); /* writes a comma before it */

/* The time of a step in seconds since 1970, interpolated: the store has only the start and the end of a run. */
double carry_export_time(const carry_run *run, int64_t step);

/* Iterates over a run's metrics step by step; the run has them sorted by name, then step. */
typedef struct carry_export_steps {
    const carry_run *run;
    int names;
    int first[64], at[64], end[64]; /* for each name, indices in run->metric: the first, the next, one past the last */
} carry_export_steps;

/* Returns false if the run has more names than fit: the rest is left out. */
bool carry_export_steps_begin(carry_export_steps *s, const carry_run *run);
/* Finds the next step and, for each name, its metric at that step or NULL. Returns false at the end. */
bool carry_export_steps_next(carry_export_steps *s, int64_t *step, const carry_run_metric *found[64]);

#endif
