/* Exports stored runs as text for other programs. */
#ifndef CARRY_LAB_EXPORT_H
#define CARRY_LAB_EXPORT_H

#include <stdio.h>

#include "lab/store/store.h"

/* Writes one object on one line, with everything: samples, criteria, metrics, the machine. */
carry_status carry_export_json(carry_ctx *ctx, FILE *to, const carry_run *run);
/* Writes a row per result, or per sample; texts are in quotes. */
void carry_export_csv_head(FILE *to, bool samples);
void carry_export_csv(FILE *to, const carry_run *run, bool samples);

/* True if a run has no results but metrics over steps, as a training has. */
bool carry_export_has_curve(const carry_run *run);
/* Writes the metrics over steps of runs as a table: a row per logged step, and a column per metric of any of the runs,
   at most CARRY_EXPORT_METRICS columns. */
#define CARRY_EXPORT_METRICS 64
carry_status carry_export_csv_curves(carry_ctx *ctx, FILE *to, carry_run *const *runs, int count);
/* Writes a history in the format of Weights & Biases: per line an object with _step, _timestamp, _runtime and the
   metrics of that step; then a line per result. Times between the start and the end of the run are spread evenly
   over its steps. */
carry_status carry_export_history(carry_ctx *ctx, FILE *to, const carry_run *run);

/* Writes an event file for TensorBoard into a new folder with the run's name and number inside `folder`, which is
   made if it is missing; `path` receives the file's name. Metrics and the samples of results become scalars; the
   command and the options become texts. CARRY_EARGUMENT if the run's folder exists. */
carry_status carry_export_tensorboard(carry_ctx *ctx, const char *folder, const carry_run *run, char path[4096]);

#endif
