/* The method "tiles64" on a GPU: chunks of 64 on tensor cores for small K and V (mma.cuh). Single tokens and ranges use
   "recurrent". */
#include "delta/cuda/tiles/tiles.h"

extern "C" {
extern const carry_delta_method carry_delta_cuda_tiles64;
}

namespace {

constexpr int LEAST = 16, MOST = 64; /* limits of K and V */

bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    const carry_delta_problem *p = &plan->problem;
    const char *reason = p->dtype != CARRY_BF16                          ? "it is for bf16"
                         : p->key > MOST || p->value > MOST              ? "it is for K and V up to 64"
                         : p->key < LEAST || p->value < LEAST            ? "it is for K and V of 16 and more"
                         : p->gate == CARRY_DELTA_KEY_GATE               ? "it has no gates by key channel"
                         : p->snapshot_every > 0 || p->snapshot_last > 0 ? "it makes no snapshots"
                                                                         : NULL;
    return carry_delta_applies_unless(plan, reason, why, why_size);
}

/* Seconds: about 9 us for each chunk (docs/results/delta-cuda.md), with two blocks at once on a multiprocessor. */
double cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double rounds =
        (double)plan->sequences * (double)p->value_heads / (2.0 * (plan->gpu.units > 0 ? plan->gpu.units : 1));
    double length = (double)p->batch * (double)p->tokens / (double)plan->sequences;
    double chunks = (double)(int64_t)((length + CARRY_DELTA_KEEP - 1) / CARRY_DELTA_KEEP);
    return 6e-6 + (rounds > 1.0 ? rounds : 1.0) * chunks * 9e-6;
}

const carry_delta_walks walks = {
    .forward = carry_delta_tiles_forward,
    .backward = carry_delta_tiles_backward,
    .blocks = NULL,
    .stash = NULL,
    .writes_rows = true,
    .forward_cost = 0.14,
    .backward_cost = 0.28,
};

bool workspace(carry_delta_plan *plan) {
    return carry_delta_walks_workspace(plan, &walks);
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    return carry_delta_walks_forward(plan, &walks, args, memory, bytes);
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    return carry_delta_walks_backward(plan, &walks, args, memory, bytes);
}

} // namespace

extern "C" const carry_delta_method carry_delta_cuda_tiles64 = {
    .name = "tiles64",
    .about = "chunks of 64 on tensor cores, bf16, K and V of 16 to 64",
    .chunk = CARRY_DELTA_KEEP,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};
