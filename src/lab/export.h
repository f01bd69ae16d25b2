/* Stored runs as text that other programs read. */
#ifndef CARRY_LAB_EXPORT_H
#define CARRY_LAB_EXPORT_H

#include <stdio.h>

#include "lab/store/store.h"

/* One object on one line, with everything: samples, criteria, metrics, the machine. */
carry_status carry_export_json(carry_ctx *ctx, FILE *to, const carry_run *run);
/* A row per result, or per sample; texts in quotes. */
void carry_export_csv_head(FILE *to, bool samples);
void carry_export_csv(FILE *to, const carry_run *run, bool samples);

#endif
