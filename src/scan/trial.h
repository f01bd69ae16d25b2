/* Timing algorithms on generated inputs, for the planner. */
#ifndef CARRY_SCAN_TRIAL_H
#define CARRY_SCAN_TRIAL_H

#include "scan/plan.h"

typedef struct carry_scan_trial carry_scan_trial;

/* Creates inputs for the plan's problem on its device. Any contractive transitions will do. */
carry_status carry_scan_trial_new(carry_scan_plan *plan, carry_scan_trial **trial);
/* The least seconds of a few runs of the plan with its current settings, or INFINITY if it cannot run. */
double carry_scan_trial_seconds(carry_scan_plan *plan, carry_scan_trial *trial);
void carry_scan_trial_free(carry_scan_plan *plan, carry_scan_trial *trial);

#endif
