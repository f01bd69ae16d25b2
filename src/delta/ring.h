/* The layout of a ring (carry_delta_step_ring), in contiguous memory: for every sequence and value head the number of
   waiting tokens (i32), stored 8 times, once for each block of columns that a GPU may use; then, in f32, keys after
   normalisation, decays e^g, and corrected values u. */
#ifndef CARRY_DELTA_RING_H
#define CARRY_DELTA_RING_H

#include "delta/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CARRY_DELTA_RING_COUNTS 8 /* most blocks of columns */

typedef struct carry_delta_ring {
    int64_t length;
    int64_t decays;  /* decays of a token: K, or 1 */
    int32_t *counts; /* [N HV, 8] */
    float *k;        /* [N HV, length, K] */
    float *decay;    /* [N HV, length, decays] */
    float *u;        /* [N HV, length, V] */
} carry_delta_ring;

/* ring.cu: the tensors are checked. slots: as in carry_delta_step_ring_slots, or NULL. */
carry_status carry_delta_cuda_step_ring(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                        const int32_t *slots, const carry_delta_ring *ring,
                                        const carry_delta_forward_args *inputs);
/* Flushes the rings of units (a value head of a sequence) from `first` on. */
carry_status carry_delta_cuda_ring_flush(carry_delta_plan *plan, const carry_tensor *state,
                                         const carry_delta_ring *ring, int64_t first, int64_t units);

#ifdef __cplusplus
}
#endif
#endif
