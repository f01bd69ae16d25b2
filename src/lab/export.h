/* Exporting stored runs as text for other programs. */
#ifndef CARRY_LAB_EXPORT_H
#define CARRY_LAB_EXPORT_H

#include <stdio.h>

#include "lab/store/store.h"

/* One object on one line, with everything: samples, criteria, metrics, the machine. */
carry_status carry_export_json(carry_ctx *ctx, FILE *to, const carry_run *run);
/* A row per result, or per sample; texts in quotes. */
void carry_export_csv_head(FILE *to, bool samples);
void carry_export_csv(FILE *to, const carry_run *run, bool samples);

/* A run that has no results but figures over steps, as a training has. */
bool carry_export_has_curve(const carry_run *run);
/* Of such runs: a row per logged step, a column per metric that one of them has. At most CARRY_EXPORT_METRICS. */
#define CARRY_EXPORT_METRICS 64
carry_status carry_export_csv_curves(carry_ctx *ctx, FILE *to, carry_run *const *runs, int count);
/* As Weights & Biases keeps histories: an object a line with _step, _timestamp, _runtime and the metrics of that step;
   results follow, a line each. Times between the start and the end of the run are spread evenly over its steps. */
carry_status carry_export_history(carry_ctx *ctx, FILE *to, const carry_run *run);

/* An event file for TensorBoard in a new folder of the run's name and number inside `folder`, which is made where it is
   missing; path gets its name. Metrics and the samples of results are scalars, the command and the options texts.
   CARRY_EARGUMENT when the run's folder exists. */
carry_status carry_export_tensorboard(carry_ctx *ctx, const char *folder, const carry_run *run, char path[4096]);

#endif
