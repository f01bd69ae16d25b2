/* Compares the gradients of a delta-rule problem. */
#ifndef CARRY_LAB_DELTA_GRADIENTS_H
#define CARRY_LAB_DELTA_GRADIENTS_H

#include "bench/family/delta_set.h"
#include "bench/family/family.h"

/* Compares dv of a set on the CPU, in f32, with float64. */
carry_status carry_delta_gradients_dv(carry_ctx *ctx, carry_delta_set *set, const carry_delta_problem *problem,
                                      bool initial, carry_deviation *deviations, int *count);
/* Compares every gradient computed on a device with the CPU's. */
carry_status carry_delta_gradients_cpu(carry_ctx *ctx, carry_delta_set *set, const carry_delta_problem *problem,
                                       bool initial, carry_deviation deviations[CARRY_DEVIATIONS], int *count);

#endif
