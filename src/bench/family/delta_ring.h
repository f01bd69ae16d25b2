/* Steps of the delta rule with a ring of recent tokens (carry_delta_step_ring) as a problem: delta:...:step:ring=8. A
   run has as many steps as the ring is long, all with the same token, from an empty ring to the step that writes the
   state. */
#ifndef CARRY_BENCH_DELTA_RING_H
#define CARRY_BENCH_DELTA_RING_H

#include "bench/family/delta_set.h"
#include "bench/problem.h"

typedef struct carry_bench_ring {
    int64_t length; /* 0: no ring */
    void *memory;
} carry_bench_ring;

/* Parses the setting ring=, which may be missing. */
carry_status carry_bench_ring_parse(carry_ctx *ctx, carry_bench_ring *ring, carry_problem *problem, bool step);
/* Allocates an empty ring on the plan's device, and frees the previous one. */
carry_status carry_bench_ring_open(carry_ctx *ctx, carry_bench_ring *ring, const carry_delta_plan *plan, int device);
carry_status carry_bench_ring_run(const carry_bench_ring *ring, carry_delta_plan *plan, carry_delta_set *set,
                                  const carry_delta_forward_args *args, void *workspace, size_t bytes);
/* Computes o of the last step, and the state after it, in float64. */
carry_status carry_bench_ring_reference(carry_ctx *ctx, const carry_bench_ring *ring, double *o, double *final_state,
                                        const carry_delta_problem *problem, const carry_delta_forward_args *args);
/* Bytes of a run: every step reads the state, and one writes it. */
double carry_bench_ring_bytes(const carry_bench_ring *ring, const carry_delta_problem *problem);

#endif
