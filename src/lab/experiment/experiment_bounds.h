/* The keys priority, budget, price and stop_when of an experiment. */
#ifndef CARRY_LAB_EXPERIMENT_BOUNDS_H
#define CARRY_LAB_EXPERIMENT_BOUNDS_H

#include "lab/experiment/experiment.h"

carry_status carry_bounds_read_budget(carry_experiment *e, double *budget, carry_yaml *mapping);
carry_status carry_bounds_read_priority(carry_experiment *e, int *priority, carry_yaml *entry);
/* Reads price: {gpu_hour: NUMBER}. Call it before the outcomes are laid out. */
carry_status carry_bounds_read_price(carry_experiment *e);
/* Seconds that problems on a GPU took, including earlier invocations if the experiment has a budget or a price. */
double carry_bounds_gpu_seconds(const carry_experiment *e);
/* Reads stop_when. Call it after the outcomes are laid out: the criteria are checked against them. */
carry_status carry_bounds_read_stops(carry_experiment *e);
/* Sorts problems by falling priority, otherwise in the order written. Call it before the outcomes are laid out. */
void carry_bounds_order(carry_experiment *e);
/* Why the next problem is not measured, or "". A problem that was started is always finished. */
const char *carry_bounds_reached(const carry_experiment *e, const carry_point *next, char reason[256]);

#endif
