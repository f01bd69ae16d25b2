/* Steps with a ring as a problem: parses, allocates, runs and checks them. */
#include "bench/family/delta_ring.h"

#include <stdlib.h>
#include <string.h>

#include "carry/device.h"
#include "core/context.h"

carry_status carry_bench_ring_parse(carry_ctx *ctx, carry_bench_ring *ring, carry_problem *problem, bool step) {
    const char *text = carry_problem_setting(problem, "ring");
    if (text == NULL) {
        return CARRY_OK;
    }
    char *end;
    ring->length = strtol(text, &end, 10);
    if (!step || *end != '\0' || ring->length < 1 || ring->length > CARRY_MAX_DELTA_RING) {
        return carry_fail(ctx, CARRY_EARGUMENT, "ring=%s: a ring of 1 to %d tokens, with the word step", text,
                          CARRY_MAX_DELTA_RING);
    }
    return CARRY_OK;
}

carry_status carry_bench_ring_open(carry_ctx *ctx, carry_bench_ring *ring, const carry_delta_plan *plan, int device) {
    const size_t bytes = ring->length > 0 ? carry_delta_ring_bytes(plan, ring->length) : 0;
    carry_device_free(ctx, device, ring->memory);
    ring->memory = NULL;
    if (bytes == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_device_alloc(ctx, &ring->memory, device, bytes));
    CARRY_TRY(carry_device_fill(ctx, ring->memory, device, 0, bytes, NULL));
    return carry_stream_wait(ctx, device, NULL);
}

carry_status carry_bench_ring_run(const carry_bench_ring *ring, carry_delta_plan *plan, carry_delta_set *set,
                                  const carry_delta_forward_args *args, void *workspace, size_t bytes) {
    for (int64_t i = 0; i < ring->length; i++) {
        CARRY_TRY(carry_delta_step_ring(plan, set->o, set->state,
                                        (carry_delta_ring_memory){.data = ring->memory, .length = ring->length}, args,
                                        workspace, bytes));
    }
    return CARRY_OK;
}

/* A view that repeats the same token, with a stride of 0. */
static carry_tensor repeated(carry_tensor one, int64_t times) {
    one.shape[1] = times;
    one.stride[1] = 0;
    return one;
}

carry_status carry_bench_ring_reference(carry_ctx *ctx, const carry_bench_ring *ring, double *o, double *final_state,
                                        const carry_delta_problem *problem, const carry_delta_forward_args *args) {
    carry_delta_problem p = *problem;
    carry_delta_forward_args all = *args;
    const size_t row = (size_t)(p.value_heads * p.value);
    p.tokens = ring->length;
    double *every = calloc((size_t)(p.batch * p.tokens) * row, sizeof *every);
    if (every == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the float64 reference");
    }
    carry_tensor g = args->g.data != NULL ? repeated(args->g, p.tokens) : (carry_tensor){0};
    all.q = repeated(args->q, p.tokens);
    all.k = repeated(args->k, p.tokens);
    all.v = repeated(args->v, p.tokens);
    all.beta = repeated(args->beta, p.tokens);
    all.g = args->g.data != NULL ? g : (carry_tensor){0};
    carry_status status = carry_delta_reference(ctx, every, final_state, &p, &all);
    for (int64_t i = 0; status == CARRY_OK && i < p.batch; i++) {
        memcpy(o + (size_t)i * row, every + (size_t)((i + 1) * p.tokens - 1) * row, row * sizeof *o);
    }
    free(every);
    return status;
}

double carry_bench_ring_bytes(const carry_bench_ring *ring, const carry_delta_problem *problem) {
    const double state = carry_delta_set_bytes(problem, true, false) - carry_delta_set_bytes(problem, false, false);
    return (double)ring->length * carry_delta_set_bytes(problem, false, false) + state;
}
