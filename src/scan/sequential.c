/* Step after step, as in the definition: T products, reading A once. It divides the batch, and the channels of a
   diagonal or the columns of a dense recurrence, among threads. If these fill the machine, no other algorithm does less
   work. */
#include "core/context.h"
#include "core/span.h"
#include "core/threads.h"
#include "scan/algorithm.h"
#include "scan/walk.h"

typedef struct job {
    const carry_scan_work *work;
    carry_scan_lanes lanes;
    float *states, *scratch; /* one piece for each thread */
    int64_t state_floats, scratch_floats;
} job;

static void lay_out(const carry_scan_shape *shape, int threads, carry_arena *arena, job *j) {
    j->lanes = carry_scan_cut(shape, threads);
    j->state_floats = carry_scan_lane_state(shape, j->lanes);
    j->scratch_floats = carry_scan_walk_scratch(shape);
    j->states = carry_arena_take(arena, (size_t)threads, (size_t)j->state_floats * sizeof(float));
    j->scratch = carry_arena_take(arena, (size_t)threads, (size_t)j->scratch_floats * sizeof(float));
}

static void walk_lanes(void *argument, int64_t begin, int64_t end, int worker) {
    const job *j = argument;
    float *state = j->states + worker * j->state_floats;
    for (int64_t i = begin; i < end; i++) {
        carry_scan_lane lane = carry_scan_lane_at(j->work, j->lanes, i);
        carry_scan_lane_start(j->work, lane, state);
        carry_scan_walk(j->work, lane, 0, j->work->steps, false, state, j->scratch + worker * j->scratch_floats);
    }
}

static double cost(const carry_scan_shape *shape, const carry_rates_table *rates, int threads) {
    carry_scan_lanes lanes = carry_scan_cut(shape, threads);
    double busy = (double)(shape->batch * lanes.per_item);
    double rounds = (double)((shape->batch * lanes.per_item + threads - 1) / threads);
    bool dense = shape->kind == CARRY_SCAN_DENSE;
    int64_t n = dense ? shape->n : lanes.size;
    int64_t width = dense ? lanes.size : shape->width;
    double step = dense ? carry_rates_product(rates, n, width) : carry_rates_diagonal_step(rates, n * width);
    double work = rounds * (double)shape->steps * step + (busy > 1.0 ? rates->fork : 0.0);
    double bytes = (double)shape->batch * (double)shape->steps *
                   (double)(carry_scan_A_size(shape) + 2 * carry_scan_b_size(shape)) * 4.0;
    double traffic = bytes / carry_rates_bandwidth(rates, busy < threads ? busy : (double)threads);
    return work > traffic ? work : traffic;
}

static bool workspace(const carry_scan_shape *shape, int threads, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    job j;
    lay_out(shape, threads, &arena, &j);
    return carry_arena_total(&arena, bytes);
}

static carry_status run(carry_scan_work *work) {
    carry_arena arena = carry_arena_over(work->workspace, work->workspace_bytes);
    job j = {.work = work};
    lay_out(work, carry_ctx_threads(work->ctx), &arena, &j);
    carry_parallel(work->ctx, work->batch * j.lanes.per_item, 1, walk_lanes, &j);
    work->products += work->batch * work->steps;
    work->flops += 2.0 * (double)(work->batch * work->steps) * (double)(carry_scan_A_size(work) * work->width);
    return CARRY_OK;
}

const carry_scan_algorithm carry_scan_sequential = {
    .name = "sequential",
    .span = CARRY_SPAN_SITE("scan", "sequential"),
    .about = "step after step; splits batch, and channels (diagonal) or columns (dense), over threads",
    .applies = carry_scan_always,
    .cost = cost,
    .workspace = workspace,
    .run = run,
};
