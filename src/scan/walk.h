/* Walks through time: steps from..to-1 of one lane, with its state.

   A lane is an independent part of a sequence: some of the n channels of a diagonal recurrence, or some of the w
   columns of a dense one. */
#ifndef CARRY_SCAN_WALK_H
#define CARRY_SCAN_WALK_H

#include "scan/algorithm.h"

typedef struct carry_scan_lane {
    int64_t item;
    int64_t first, end; /* channels (diagonal) or columns (dense) */
} carry_scan_lane;

/* How a batch is divided: lanes for each sequence, with `size` channels or columns in all but the last. */
typedef struct carry_scan_lanes {
    int64_t per_item, size;
} carry_scan_lanes;

/* Returns enough lanes for all threads, if the shape allows it. */
carry_scan_lanes carry_scan_cut(const carry_scan_shape *shape, int threads);
carry_scan_lane carry_scan_lane_at(const carry_scan_shape *shape, carry_scan_lanes lanes, int64_t index);

/* The floats of a lane's state, and of the scratch that a walk needs. */
int64_t carry_scan_lane_state(const carry_scan_shape *shape, carry_scan_lanes lanes);
int64_t carry_scan_walk_scratch(const carry_scan_shape *shape);

/* Writes the state that enters step 0 to `state` (packed). */
void carry_scan_lane_start(const carry_scan_work *work, carry_scan_lane lane, float *state);

/* Advances the state over steps from..to-1, and writes those steps of h unless only_state is set. */
void carry_scan_walk(const carry_scan_work *work, carry_scan_lane lane, int64_t from, int64_t to, bool only_state,
                     float *state, float *scratch);

#endif
