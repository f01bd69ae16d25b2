/* Going through time step by step: steps from..to-1 of one lane, with its state at hand.

   A lane is a part of a sequence that does not depend on the others: some of the n channels of a diagonal
   recurrence, or some of the w columns of a dense one. */
#ifndef CARRY_SCAN_WALK_H
#define CARRY_SCAN_WALK_H

#include "scan/algorithm.h"

typedef struct carry_scan_lane {
    int64_t item;
    int64_t first, end; /* channels (diagonal) or columns (dense) */
} carry_scan_lane;

/* How a batch is cut: lanes a sequence, each of `size` channels or columns but the last. */
typedef struct carry_scan_lanes {
    int64_t per_item, size;
} carry_scan_lanes;

/* Enough lanes for all threads when the shape has them. */
carry_scan_lanes carry_scan_cut(const carry_scan_shape *shape, int threads);
carry_scan_lane carry_scan_lane_at(const carry_scan_shape *shape, carry_scan_lanes lanes, int64_t index);

/* Floats of a lane's state, and of the scratch that a walk needs. */
int64_t carry_scan_lane_state(const carry_scan_shape *shape, carry_scan_lanes lanes);
int64_t carry_scan_walk_scratch(const carry_scan_shape *shape);

/* The state that enters step 0, into state (packed). */
void carry_scan_lane_start(const carry_scan_work *work, carry_scan_lane lane, float *state);

/* Advances state over steps from..to-1; writes those steps of h unless only_state. */
void carry_scan_walk(const carry_scan_work *work, carry_scan_lane lane, int64_t from, int64_t to, bool only_state,
                     float *state, float *scratch);

#endif
