/* The delta rule over ranks: the schedule of a call. A rank has three kinds of sequences.

       early  the next rank needs their final state, and they need nothing from other ranks: they run first
       rest   none of their states crosses a border: they run while states travel
       late   they need a state of the previous rank, and run when it has arrived

   A sequence that both enters and leaves the rank is late, and a local pass computes its (M, L) first. The backward
   pass is the same with the ranks in reverse order: gradients of states travel, M was kept by the forward pass, and L
   comes from a backward pass that computes only gradients of states.

   For each group of heads, the call computes the states to send and begins the exchange. Then it runs the rest. Then,
   for each group, it ends the exchange and runs the late sequences. Exchanges in progress are polled between chunks. */
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/error.h"
#include "core/span.h"
#include "delta/ranks.h"

typedef struct job {
    carry_delta_ranks_plan *plan;
    const carry_delta_forward_args *forward; /* one of the two is NULL */
    const carry_delta_backward_args *backward;
    carry_delta_inputs in;
    carry_all_scan_plan **scans;
    carry_all_scan_role role;
    carry_delta_span early, rest, late;
    carry_delta_ranks_memory memory;
    float *M; /* in the kept memory, or in the workspace */
    int begun, ended;
    int done[CARRY_DELTA_RANKS_GROUPS];
    carry_status polled;
} job;

static void poll(void *user) {
    job *j = user;
    for (int g = j->ended; j->polled == CARRY_OK && g < j->begun; g++) {
        if (!j->done[g]) {
            j->polled = carry_all_scan_poll(j->scans[g], &j->done[g]);
        }
    }
}

static float *of_group(const job *j, float *states, int group, int64_t columns) {
    int64_t before = carry_delta_group_before(j->plan, group);
    return states != NULL ? states + before * j->plan->problem.key * columns : NULL;
}

static carry_delta_part part_of(job *j, int group, carry_delta_span span) {
    const int64_t *head = j->plan->group_head + group;
    return (carry_delta_part){.sequences = j->memory.table + span.first,
                              .count = span.count,
                              .first_head = head[0],
                              .heads = head[1] - head[0],
                              .pause = j->plan->chained ? poll : NULL,
                              .user = j};
}

/* Computes M and L for a group's heads; in the backward pass only L. */
static void run_local(job *j, int group) {
    carry_delta_ranks_plan *plan = j->plan;
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(plan->ctx, "delta", "ranks local");
    float *L = of_group(j, j->memory.L, group, p->value);
    if (j->backward != NULL) {
        carry_delta_back back = j->memory.back;
        back.part = part_of(j, group, j->late);
        back.states_only = true;
        back.departing = L;
        carry_delta_back_part(&back);
        return;
    }
    carry_delta_run run = {.in = j->in,
                           .leaving = L,
                           .maps = of_group(j, j->M, group, p->key),
                           .chunks_only = true,
                           .part = part_of(j, group, j->late)};
    carry_arena arena = j->memory.pass;
    (void)carry_delta_run_take_part(plan->inner, &arena, &run, p->value + p->key, true);
    carry_delta_run_part(&run);
}

/* Computes the outputs of some sequences. */
static void run_final(job *j, int group, carry_delta_span span) {
    carry_delta_ranks_plan *plan = j->plan;
    const carry_delta_problem *p = &plan->problem;
    if (span.count == 0) {
        return;
    }
    CARRY_SPAN(plan->ctx, "delta", "ranks final");
    /* With role MAP, the exchange uses L until its end, and the final state is not needed again. */
    float *L = j->role == CARRY_ALL_SCAN_CUT ? of_group(j, j->memory.L, group, p->value) : NULL;
    const float *state = of_group(j, j->memory.state, group, p->value);
    if (j->backward != NULL) {
        carry_delta_back back = j->memory.back;
        back.part = part_of(j, group, span);
        back.arriving = state;
        back.departing = L;
        carry_delta_back_part(&back);
        return;
    }
    carry_delta_run run = {.in = j->in,
                           .o = &j->forward->o,
                           .final_state = carry_delta_given(&j->forward->final_state),
                           .kept = j->forward->kept,
                           .entering = state,
                           .leaving = L,
                           .part = part_of(j, group, span)};
    carry_arena arena = j->memory.pass;
    (void)carry_delta_run_take_part(plan->inner, &arena, &run, p->value, true);
    carry_delta_run_part(&run);
}

static carry_status begin(job *j, int group) {
    const carry_delta_problem *p = &j->plan->problem;
    int64_t heads = carry_delta_group_heads(j->plan, group);
    carry_all_scan_args args = {
        .role = j->role,
        .state = carry_view_3d(of_group(j, j->memory.state, group, p->value), CARRY_F32, heads, p->key, p->value),
        .L = carry_view_3d(of_group(j, j->memory.L, group, p->value), CARRY_F32, heads, p->key, p->value),
        .M = carry_view_3d(of_group(j, j->M, group, p->key), CARRY_F32, heads, p->key, p->key)};
    CARRY_TRY(carry_all_scan_begin(j->scans[group], &args, j->memory.scan[group],
                                   carry_all_scan_run_workspace(j->scans[group])));
    j->begun++;
    return j->polled;
}

static carry_status end(job *j, int group) {
    CARRY_SPAN(j->plan->ctx, "delta", "ranks exposed");
    CARRY_TRY(j->polled); /* the error may be of another group; this one is still in progress */
    j->ended++;
    CARRY_TRY(carry_all_scan_end(j->scans[group]));
    carry_all_scan_counts counts = {CARRY_INIT(carry_all_scan_counts)};
    CARRY_TRY(carry_all_scan_counted(j->scans[group], &counts));
    j->plan->exposed += counts.waited;
    return CARRY_OK;
}

static carry_status run_groups(job *j) {
    const carry_delta_ranks_plan *plan = j->plan;
    for (int g = 0; g < plan->groups; g++) {
        if (j->role == CARRY_ALL_SCAN_MAP) {
            run_local(j, g);
        }
        run_final(j, g, j->early);
        if (plan->chained) {
            CARRY_TRY(begin(j, g));
        }
    }
    for (int g = 0; g < plan->groups; g++) {
        run_final(j, g, j->rest);
    }
    for (int g = 0; g < plan->groups; g++) {
        if (plan->chained) {
            CARRY_TRY(end(j, g));
        }
        run_final(j, g, j->late);
    }
    return j->polled;
}

/* Sequences of one kind are adjacent in the table: those that enter are first, those that leave are last. If one
   sequence does both (a packed one, or all of a batch), the table has no other kinds. */
static void sort_out(job *j) {
    carry_delta_ranks_plan *plan = j->plan;
    const carry_delta_sequence *table = j->memory.table;
    const int64_t *borders = j->in.cu_seqlens != NULL ? j->in.cu_seqlens->data : NULL;
    bool back = j->backward != NULL;
    int64_t count = plan->inner != NULL ? carry_delta_ranks_layout(plan, borders, j->memory.table) : 0;
    int64_t enters = 0;
    int64_t leaves = 0;
    for (int64_t i = 0; i < count; i++) {
        enters += table[i].enters;
        leaves += table[i].leaves;
    }
    carry_delta_span first = {.first = 0, .count = enters};
    carry_delta_span last = {.first = count - leaves, .count = leaves};
    j->late = back ? last : first;
    j->early = back ? first : last;
    j->role = count == 0 ? CARRY_ALL_SCAN_PASS : CARRY_ALL_SCAN_CUT;
    if (enters > 0 && leaves > 0 && table[0].leaves) {
        j->role = CARRY_ALL_SCAN_MAP;
        j->early.count = 0;
        enters = 0;
    }
    j->rest = (carry_delta_span){.first = enters, .count = count - enters - leaves};
    /* No rank uses L, but it must be defined. */
    if (j->role == CARRY_ALL_SCAN_CUT && j->early.count == 0 && plan->chained) {
        size_t floats = (size_t)(plan->chains * plan->problem.value_heads * plan->problem.key * plan->problem.value);
        memset(j->memory.L, 0, floats * sizeof *j->memory.L);
    }
}

/* After a failure: waits for the scans in progress, since the caller will reuse their memory. */
static void give_up(job *j) {
    j->plan->is_broken = true;
    while (j->ended < j->begun) {
        (void)carry_all_scan_end(j->scans[j->ended++]);
    }
}

static carry_status run(job *j) {
    carry_delta_ranks_plan *plan = j->plan;
    const int64_t *borders = j->in.cu_seqlens != NULL ? j->in.cu_seqlens->data : NULL;
    double start = carry_seconds();
    carry_delta_borders_check check;
    plan->exposed = 0.0;
    sort_out(j);
    carry_status status = carry_delta_borders_begin(plan, borders, j->backward != NULL, &check);
    if (status == CARRY_OK) {
        status = run_groups(j);
    }
    if (status != CARRY_OK) {
        give_up(j);
    }
    carry_status agreed = carry_delta_borders_end(plan, &check);
    plan->is_broken = plan->is_broken || agreed != CARRY_OK;
    plan->seconds = carry_seconds() - start;
    return status != CARRY_OK ? status : agreed;
}

static carry_status check_call(const carry_delta_ranks_plan *plan, const carry_delta_inputs *in, const void *workspace,
                               size_t workspace_bytes) {
    const carry_delta_problem *p = &plan->problem;
    if (plan->is_broken) {
        return carry_fail(plan->ctx, CARRY_EARGUMENT,
                          "a call with this plan has failed half way: it can only be freed");
    }
    if (p->tokens > 0) {
        CARRY_TRY(carry_delta_check_rows(plan->ctx, p, in));
    }
    CARRY_TRY(carry_delta_check_parameters(plan->ctx, p, in));
    CARRY_TRY(carry_delta_check_borders(plan->ctx, p, plan->total, in->cu_seqlens));
    return carry_delta_check_workspace(plan->ctx, workspace, workspace_bytes, plan->workspace);
}

/* The address of a rank's M in the kept memory, after the data that one rank alone would keep. */
static float *kept_maps(const carry_delta_ranks_plan *plan, const void *kept) {
    size_t before = plan->inner != NULL ? plan->inner->kept : 0;
    return (float *)((uintptr_t)kept + before);
}

carry_status carry_delta_ranks_forward(carry_delta_ranks_plan *plan, const carry_delta_forward_args *args,
                                       void *workspace, size_t workspace_bytes) {
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(plan->ctx, "delta", "ranks forward");
    job j = {.plan = plan, .forward = args, .in = carry_delta_inputs_of(args), .scans = plan->forward};
    CARRY_TRY(check_call(plan, &j.in, workspace, workspace_bytes));
    if (p->tokens > 0) {
        CARRY_TRY(carry_delta_check_written(plan->ctx, p, "o", &args->o, p->value_heads, p->value));
    }
    if (args->final_state.data != NULL) {
        CARRY_TRY(carry_delta_check_state(plan->ctx, p, "final_state", &args->final_state));
    }
    if (args->snapshots.data != NULL) {
        return carry_fail(plan->ctx, CARRY_EUNSUPPORTED, "the delta rule over ranks has no snapshots");
    }
    CARRY_TRY(carry_delta_check_kept(plan->ctx, &plan->problem, args->kept));
    CARRY_TRY(carry_delta_ranks_empty(plan, args->cu_seqlens.data, carry_delta_given(&args->final_state),
                                      carry_delta_given(&args->initial_state)));
    if (p->device > 0) {
        return carry_delta_ranks_device_forward(plan, args, workspace, workspace_bytes);
    }
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_ranks_take(plan, &arena, false, &j.memory);
    j.M = args->kept != NULL ? kept_maps(plan, args->kept) : j.memory.M;
    return run(&j);
}

static void clear_heads(const carry_delta_ranks_plan *plan, const carry_tensor *heads) {
    if (heads != NULL) {
        memset(heads->data, 0, (size_t)plan->problem.value_heads * sizeof(float));
    }
}

carry_status carry_delta_ranks_backward(carry_delta_ranks_plan *plan, const carry_delta_backward_args *args,
                                        void *workspace, size_t workspace_bytes) {
    const carry_delta_problem *p = &plan->problem;
    CARRY_SPAN(plan->ctx, "delta", "ranks backward");
    job j = {.plan = plan, .backward = args, .in = carry_delta_back_inputs_of(args), .scans = plan->backward};
    CARRY_TRY(check_call(plan, &j.in, workspace, workspace_bytes));
    if (p->tokens > 0) {
        CARRY_TRY(carry_delta_check_gradients(plan->ctx, p, args));
    }
    CARRY_TRY(carry_delta_check_state_gradients(plan->ctx, p, args));
    if (args->kept == NULL && plan->kept > 0) {
        return carry_fail(plan->ctx, CARRY_EARGUMENT, "kept is missing: over ranks, backward needs what forward kept");
    }
    CARRY_TRY(carry_delta_check_kept(plan->ctx, &plan->problem, args->kept));
    CARRY_TRY(carry_delta_ranks_empty(plan, args->cu_seqlens.data, carry_delta_given(&args->dinitial_state),
                                      carry_delta_given(&args->dfinal_state)));
    if (p->device > 0) {
        return carry_delta_ranks_device_backward(plan, args, workspace, workspace_bytes);
    }
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    (void)carry_delta_ranks_take(plan, &arena, true, &j.memory);
    j.M = kept_maps(plan, args->kept);
    j.memory.back.args = args;
    j.memory.back.in = j.in;
    j.memory.back.kept = args->kept;
    if (plan->inner == NULL) {
        clear_heads(plan, carry_delta_given(&args->dA_log));
        clear_heads(plan, carry_delta_given(&args->ddt_bias));
        return run(&j);
    }
    carry_delta_back_start(&j.memory.back);
    CARRY_TRY(run(&j));
    carry_delta_back_finish(&j.memory.back);
    return CARRY_OK;
}
