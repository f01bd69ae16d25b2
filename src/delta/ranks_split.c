/* The delta rule over ranks on a GPU, with methods that compute a pair before the outputs (split.h), some heads at a
   time:

       pair of group 0, its exchange begins; pair of group 1, ...; then for each group: the arrived state, the rest

   So the states of a group travel, on the streams of All-Scan, while the pairs of the next group are computed, and
   those of the last group travel while the outputs of the first are computed. No rank walks its tokens more often than
   it would alone. The CPU waits only for the CPUs of other ranks. Its stream waits for a state to arrive, not for it to
   be passed on. */
#include "delta/ranks_split.h"

#include "core/context.h"
#include "core/error.h"
#include "core/span.h"
#include "delta/split.h"

#ifndef CARRY_HAVE_CUDA
bool carry_delta_splits(const carry_delta_plan *plan) {
    (void)plan;
    return false;
}

size_t carry_delta_split_bytes(const carry_delta_plan *plan, int64_t heads, int sharing, bool backward) {
    (void)plan;
    (void)heads;
    (void)sharing;
    (void)backward;
    return 0;
}

carry_status carry_delta_split_pair(carry_delta_plan *plan, const carry_delta_split *split) {
    (void)split;
    return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "this build has no CUDA");
}

carry_status carry_delta_split_rest(carry_delta_plan *plan, const carry_delta_split *split) {
    (void)split;
    return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "this build has no CUDA");
}
#endif

typedef struct memory {
    float *L, *state, *M;
    void *scan[CARRY_DELTA_RANKS_GROUPS], *inner[CARRY_DELTA_RANKS_GROUPS];
} memory;

typedef struct job {
    const carry_delta_ranks_call *call;
    carry_delta_ranks_plan *plan;
    memory at;
    float *M;
    carry_all_scan_plan **scans;
    int begun;
} job;

static int64_t group_heads(const carry_delta_ranks_plan *plan, int g) {
    return plan->group_head[g + 1] - plan->group_head[g];
}

static void take(const carry_delta_ranks_plan *plan, carry_arena *arena, memory *at) {
    const carry_delta_problem *p = &plan->problem;
    const size_t heads = (size_t)(plan->chains * p->value_heads * p->key);
    at->L = carry_arena_take(arena, heads * (size_t)p->value, sizeof(float));
    at->state = carry_arena_take(arena, heads * (size_t)p->value, sizeof(float));
    at->M = carry_arena_take(arena, heads * (size_t)p->key, sizeof(float));
    for (int g = 0; g < plan->groups; g++) {
        const size_t forth = carry_all_scan_run_workspace(plan->forward[g]);
        const size_t back = carry_all_scan_run_workspace(plan->backward[g]);
        at->scan[g] = carry_arena_take(arena, forth > back ? forth : back, 1);
        if (plan->inner != NULL) {
            const size_t there = carry_delta_split_bytes(plan->inner, group_heads(plan, g), plan->sharing, false);
            const size_t again = carry_delta_split_bytes(plan->inner, group_heads(plan, g), plan->sharing, true);
            at->inner[g] = carry_arena_take(arena, there > again ? there : again, 1);
        }
    }
}

bool carry_delta_ranks_split_bytes(const carry_delta_ranks_plan *plan, size_t *bytes) {
    carry_arena arena = carry_arena_over(NULL, 0);
    memory at;
    take(plan, &arena, &at);
    return carry_arena_total(&arena, bytes);
}

static float *from_group(const job *j, const void *states, int g, int64_t columns) {
    const int64_t before = carry_delta_group_before(j->plan, g) * j->plan->problem.key * columns;
    return states != NULL ? (float *)(uintptr_t)states + before : NULL;
}

/* Returns the arguments of a group, with the addresses of its states. */
static carry_delta_split part_of(const job *j, int g) {
    const carry_delta_ranks_plan *plan = j->plan;
    const carry_delta_ranks_call *c = j->call;
    const int64_t value = plan->problem.value;
    const bool back = c->backward != NULL;
    const bool starts = back ? plan->is_last : plan->is_first, ends = back ? plan->is_first : plan->is_last;
    const void *entering = back ? c->backward->dfinal_state.data : c->forward->initial_state.data;
    const void *leaving = back ? c->backward->dinitial_state.data : c->forward->final_state.data;
    return (carry_delta_split){.forward = c->forward,
                               .backward = c->backward,
                               .first_head = plan->group_head[g],
                               .heads = group_heads(plan, g),
                               .sharing = plan->sharing,
                               .entering = starts ? from_group(j, entering, g, value) : NULL,
                               .arrived = starts ? NULL : from_group(j, j->at.state, g, value),
                               .states = back ? from_group(j, c->kept_states, g, value) : NULL,
                               .M = back ? NULL : from_group(j, j->M, g, plan->problem.key),
                               .L = from_group(j, j->at.L, g, value),
                               .leaving = ends ? from_group(j, leaving, g, value) : NULL,
                               .workspace = j->at.inner[g]};
}

static carry_status begin(job *j, int g) {
    carry_delta_ranks_plan *plan = j->plan;
    const carry_delta_problem *p = &plan->problem;
    const int64_t heads = carry_delta_group_heads(plan, g);
    const int64_t state[] = {heads, p->key, p->value}, map[] = {heads, p->key, p->key};
    const carry_all_scan_args args = {
        .role = j->call->role,
        .state = carry_view_on(p->device, from_group(j, j->at.state, g, p->value), CARRY_F32, 3, state),
        .L = carry_view_on(p->device, from_group(j, j->at.L, g, p->value), CARRY_F32, 3, state),
        .M = carry_view_on(p->device, from_group(j, j->M, g, p->key), CARRY_F32, 3, map)};
    CARRY_TRY(carry_all_scan_begin(j->scans[g], &args, j->at.scan[g], carry_all_scan_run_workspace(j->scans[g])));
    j->begun++;
    return CARRY_OK;
}

/* Forward: stores the states that entered, for the backward pass. */
static carry_status keep(const job *j, int g, const carry_delta_split *part) {
    const carry_delta_ranks_plan *plan = j->plan;
    const carry_delta_problem *p = &plan->problem;
    const size_t bytes = (size_t)(carry_delta_group_heads(plan, g) * p->key * p->value) * sizeof(float);
    const float *entered = part->arrived != NULL ? part->arrived : part->entering;
    void *to = from_group(j, j->call->kept_states, g, p->value);
    carry_stream *stream = carry_ctx_stream(plan->ctx, p->device);
    return entered != NULL ? carry_device_copy(plan->ctx, to, p->device, entered, p->device, bytes, stream)
                           : carry_device_fill(plan->ctx, to, p->device, 0, bytes, stream);
}

static carry_status pair(const job *j, int g) {
    CARRY_SPAN(j->plan->ctx, "delta", "ranks local");
    const carry_delta_split part = part_of(j, g);
    return j->plan->inner != NULL ? carry_delta_split_pair(j->plan->inner, &part) : CARRY_OK;
}

static carry_status rest(const job *j, int g) {
    CARRY_SPAN(j->plan->ctx, "delta", "ranks final");
    const carry_delta_split part = part_of(j, g);
    if (j->call->forward != NULL && j->call->kept_states != NULL) {
        CARRY_TRY(keep(j, g, &part));
    }
    return j->plan->inner != NULL ? carry_delta_split_rest(j->plan->inner, &part) : CARRY_OK;
}

static carry_status run_groups(job *j) {
    const int groups = j->plan->groups;
    for (int g = 0; g < groups; g++) {
        CARRY_TRY(pair(j, g));
        CARRY_TRY(begin(j, g));
    }
    for (int g = 0; g < groups; g++) {
        CARRY_TRY(carry_all_scan_arrive(j->scans[g]));
        CARRY_TRY(rest(j, g));
    }
    return CARRY_OK;
}

carry_status carry_delta_ranks_split_run(carry_delta_ranks_plan *plan, const carry_delta_ranks_call *call,
                                         void *workspace, size_t bytes) {
    job j = {.call = call, .plan = plan, .scans = call->backward != NULL ? plan->backward : plan->forward};
    carry_arena arena = carry_arena_over(workspace, bytes);
    take(plan, &arena, &j.at);
    j.M = call->M != NULL ? call->M : j.at.M;
    plan->last_scan = j.scans[0];
    carry_status status = run_groups(&j);
    for (int g = 0; g < j.begun; g++) { /* also after a failure: the caller will reuse the memory */
        const carry_status ended = carry_all_scan_end(j.scans[g]);
        status = status == CARRY_OK ? ended : status;
    }
    return status;
}

/* Reads the times from events, after the call has finished. */
void carry_delta_ranks_device_times(carry_delta_ranks_plan *plan) {
    carry_all_scan_plan *const *scans = plan->last_scan == plan->backward[0] ? plan->backward : plan->forward;
    (void)carry_event_elapsed(plan->ctx, &plan->seconds, plan->problem.device, plan->started, plan->stopped);
    plan->exposed = 0.0;
    for (int g = 0; plan->last_scan != NULL && g < plan->groups; g++) {
        double exposed = 0.0;
        (void)carry_all_scan_exposed(scans[g], &exposed);
        plan->exposed += exposed;
    }
}
