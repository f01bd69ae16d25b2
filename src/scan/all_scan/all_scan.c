/* Plans of All-Scan, and the calls of a scan from begin to end. */
#include <stdlib.h>
#include <string.h>

#include "comm/rates.h"
#include "core/clock.h"
#include "core/context.h"
#include "core/sized.h"
#include "scan/all_scan/all_scan.h"

static carry_status lay_out_workspace(const carry_all_scan_plan *plan, carry_arena *arena, float **scratch,
                                      void **area) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const bool factors = p->kind == CARRY_ALL_SCAN_FACTORS;
    *scratch = carry_arena_take(arena, factors ? (size_t)plan->shape.threads : 0,
                                (size_t)(p->rows * p->value) * sizeof(float));
    *area = carry_arena_take(arena, 1, plan->area_bytes);
    return arena->overflowed ? carry_fail(plan->ctx, CARRY_ESIZE, "the workspace of %s is larger than memory can be",
                                          plan->algorithm->name)
                             : CARRY_OK;
}

/* Allocates everything that a scan needs besides the caller's memory. */
static carry_status make_room(carry_all_scan_plan *plan) {
    carry_arena arena = carry_arena_over(NULL, 0);
    float *scratch;
    void *area;
    if (!plan->algorithm->workspace(plan, &plan->area_bytes)) {
        return carry_fail(plan->ctx, CARRY_ESIZE, "the workspace of %s is larger than memory can be",
                          plan->algorithm->name);
    }
    CARRY_TRY(lay_out_workspace(plan, &arena, &scratch, &area));
    if (!carry_arena_total(&arena, &plan->workspace_bytes)) {
        return carry_fail(plan->ctx, CARRY_ESIZE, "the workspace of %s is larger than memory can be",
                          plan->algorithm->name);
    }
    plan->requests = plan->algorithm->requests(&plan->shape, plan->blocks);
    const size_t count = plan->requests > 0 ? (size_t)plan->requests : 1;
    plan->receives = calloc(count, sizeof *plan->receives);
    plan->sends = calloc(count, sizeof *plan->sends);
    plan->role_receives = calloc(plan->device > 0 ? count : 1, sizeof *plan->receives);
    plan->role_sends = calloc(plan->device > 0 ? count : 1, sizeof *plan->sends);
    plan->roles_got = calloc(2 * count + (size_t)plan->shape.ranks, 1);
    if (plan->receives == NULL || plan->sends == NULL || plan->role_receives == NULL || plan->role_sends == NULL ||
        plan->roles_got == NULL) {
        return carry_fail(plan->ctx, CARRY_EMEMORY, "out of memory: %zu messages each way", count);
    }
    plan->roles_sent = plan->roles_got + count;
    plan->walked = plan->roles_sent + count;
    return CARRY_OK;
}

static carry_status fill_plan(carry_all_scan_plan *plan, const carry_all_scan_options *options,
                              const carry_all_scan_machine *machine) {
    CARRY_TRY(carry_kernels_of(plan->ctx, &plan->kernels));
    CARRY_TRY(carry_all_scan_device_open(plan));
    if (machine != NULL) {
        plan->machine = *machine;
    } else {
        CARRY_TRY(carry_all_scan_measure(plan));
    }
    CARRY_TRY(carry_all_scan_choose(plan, options));
    return make_room(plan);
}

/* Cancels all requests of the scan, so that the caller may free its memory. */
static carry_status fail_plan(carry_all_scan_plan *plan, carry_status status) {
    carry_comm_withdraw(plan->receives, plan->requests);
    carry_comm_withdraw(plan->sends, plan->requests);
    if (plan->device > 0) {
        carry_comm_withdraw(plan->role_receives, plan->requests);
        carry_comm_withdraw(plan->role_sends, plan->requests);
    }
    plan->state = CARRY_ALL_SCAN_FAILED;
    return status;
}

static carry_status advance(carry_all_scan_plan *plan, bool wait) {
    bool done = false;
    carry_status status = plan->algorithm->poll(plan, wait, &done);
    status = status != CARRY_OK ? status : plan->broken;
    if (status != CARRY_OK) {
        return fail_plan(plan, status);
    }
    plan->state = done ? CARRY_ALL_SCAN_DONE : CARRY_ALL_SCAN_UNDER_WAY;
    return CARRY_OK;
}

static carry_status check_state(const carry_all_scan_plan *plan, const char *operation, bool is_begin) {
    if (plan->state == CARRY_ALL_SCAN_FAILED) {
        return carry_fail(plan->ctx, CARRY_EARGUMENT, "%s: the last scan of this plan failed: it can only be freed",
                          operation);
    }
    if ((plan->state == CARRY_ALL_SCAN_IDLE) != is_begin) {
        return carry_fail(plan->ctx, CARRY_EARGUMENT,
                          is_begin ? "%s: a scan of this plan is under way: end it first"
                                   : "%s: no scan of this plan is under way: begin one",
                          operation);
    }
    return CARRY_OK;
}

carry_status carry_all_scan_plan_new_for(carry_comm *comm, carry_all_scan_plan **plan,
                                         const carry_all_scan_problem *problem, const carry_all_scan_options *o,
                                         const carry_all_scan_machine *machine) {
    carry_ctx *ctx = carry_comm_ctx(comm);
    *plan = NULL;
    /* The arguments are equal on all ranks, so all refuse or none. */
    CARRY_TRY(carry_all_scan_check_problem(ctx, problem, o));
    carry_all_scan_plan *made = calloc(1, sizeof *made);
    if (made == NULL) {
        const carry_status status = carry_fail(ctx, CARRY_EMEMORY, "out of memory: a plan");
        carry_comm_abort(comm, carry_ctx_error(ctx));
        return status;
    }
    made->comm = comm;
    made->host = carry_comm_host(comm);
    made->device = carry_comm_device(comm);
    made->ctx = ctx;
    made->arith = &carry_all_scan_real;
    made->tag = o->tag;
    made->shape =
        (carry_all_scan_shape){.problem = *problem, .ranks = carry_comm_size(comm), .threads = carry_ctx_threads(ctx)};
    if (made->device > 0 || (machine != NULL && machine->start > 0)) { /* one launch handles all heads */
        made->shape.threads = (int)(problem->heads < INT32_MAX ? problem->heads : INT32_MAX);
    }
    made->position = carry_all_scan_rank(made, carry_comm_rank(comm));
    const carry_status status = fill_plan(made, o, machine);
    if (status != CARRY_OK) {
        carry_all_scan_plan_free(made);
        /* All ranks find that out by themselves; other errors may affect one rank only. */
        if (status != CARRY_EUNSUPPORTED) {
            carry_comm_abort(comm, carry_ctx_error(ctx));
        }
        return status;
    }
    *plan = made;
    return CARRY_OK;
}

carry_status carry_all_scan_plan_new_on(carry_comm *comm, carry_all_scan_plan **plan,
                                        const carry_all_scan_problem *problem, const carry_all_scan_options *options,
                                        const carry_all_scan_machine *machine) {
    carry_all_scan_options own;
    *plan = NULL;
    CARRY_TRY(CARRY_SIZED_READ(carry_comm_ctx(comm), carry_all_scan_options, &own, options));
    CARRY_TRY(carry_all_scan_agree(carry_comm_host(comm), problem, &own));
    return carry_all_scan_plan_new_for(comm, plan, problem, &own, machine);
}

void carry_all_scan_set_arith(carry_all_scan_plan *plan, const carry_all_scan_arith *arith) {
    plan->arith = arith;
}

carry_status carry_all_scan_plan_new(carry_comm *comm, carry_all_scan_plan **plan,
                                     const carry_all_scan_problem *problem, const carry_all_scan_options *options) {
    return carry_all_scan_plan_new_on(comm, plan, problem, options, NULL);
}

void carry_all_scan_plan_free(carry_all_scan_plan *plan) {
    if (plan == NULL) {
        return;
    }
    if (plan->roles_sent != NULL) {
        (void)fail_plan(plan, CARRY_OK); /* cancels a scan that was begun and never ended */
    }
    carry_all_scan_device_close(plan);
    free(plan->role_receives);
    free(plan->role_sends);
    free(plan->roles_got);
    free(plan->receives);
    free(plan->sends);
    free(plan);
}

const char *carry_all_scan_plan_about(const carry_all_scan_plan *plan) {
    return plan->about;
}

const char *carry_all_scan_plan_algorithm(const carry_all_scan_plan *plan) {
    return plan->algorithm->name;
}

double carry_all_scan_plan_seconds(const carry_all_scan_plan *plan) {
    return plan->seconds;
}

size_t carry_all_scan_run_workspace(const carry_all_scan_plan *plan) {
    return plan->workspace_bytes;
}

carry_status carry_all_scan_begin(carry_all_scan_plan *plan, const carry_all_scan_args *args, void *workspace,
                                  size_t workspace_bytes) {
    CARRY_SPAN_OF(plan->ctx, &plan->algorithm->span);
    const double start = carry_seconds();
    CARRY_TRY(check_state(plan, "begin", true));
    CARRY_TRY(carry_all_scan_check_args(plan, args));
    if (workspace_bytes < plan->workspace_bytes || (workspace == NULL && plan->workspace_bytes > 0)) {
        return carry_fail(plan->ctx, CARRY_EWORKSPACE,
                          "the workspace has %zu bytes and the plan needs %zu (carry_all_scan_run_workspace)",
                          workspace == NULL ? 0 : workspace_bytes, plan->workspace_bytes);
    }
    carry_arena arena = carry_arena_over(workspace, workspace_bytes);
    CARRY_TRY(lay_out_workspace(plan, &arena, &plan->scratch, &plan->area));
    plan->args = *args;
    plan->next = plan->posted = plan->sent = 0;
    plan->counts = (carry_all_scan_counts){CARRY_INIT(carry_all_scan_counts)};
    plan->is_marked = plan->has_arrived = false;
    CARRY_TRY(carry_all_scan_enter(plan, true));
    carry_status status = plan->algorithm->begin(plan);
    status = status == CARRY_OK ? advance(plan, false) : fail_plan(plan, status);
    const carry_status left = carry_all_scan_exit(plan, false);
    CARRY_TRY(status);
    CARRY_TRY(left);
    plan->counts.waited = carry_seconds() - start;
    return CARRY_OK;
}

carry_status carry_all_scan_poll(carry_all_scan_plan *plan, int *done) {
    *done = 0;
    CARRY_TRY(check_state(plan, "poll", false));
    if (plan->state == CARRY_ALL_SCAN_UNDER_WAY) {
        CARRY_TRY(carry_all_scan_enter(plan, false));
        const carry_status status = advance(plan, false);
        CARRY_TRY(carry_all_scan_exit(plan, false));
        CARRY_TRY(status);
    }
    *done = plan->state == CARRY_ALL_SCAN_DONE;
    return CARRY_OK;
}

carry_status carry_all_scan_arrive(carry_all_scan_plan *plan) {
    CARRY_SPAN_OF(plan->ctx, &plan->algorithm->span);
    CARRY_TRY(check_state(plan, "arrive", false));
    if (plan->device == 0 || plan->has_arrived) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_all_scan_enter(plan, false));
    plan->arriving = true;
    carry_status status = plan->state == CARRY_ALL_SCAN_UNDER_WAY ? advance(plan, true) : CARRY_OK;
    plan->arriving = false;
    status = status == CARRY_OK ? carry_all_scan_mark(plan) : status;
    const carry_status left = carry_all_scan_exit(plan, false);
    CARRY_TRY(status);
    CARRY_TRY(left);
    plan->has_arrived = true;
    return carry_stream_after(plan->ctx, plan->device, carry_ctx_stream(plan->ctx, plan->device), plan->after);
}

carry_status carry_all_scan_end(carry_all_scan_plan *plan) {
    CARRY_SPAN_OF(plan->ctx, &plan->algorithm->span);
    const double start = carry_seconds();
    CARRY_TRY(check_state(plan, "end", false));
    CARRY_TRY(carry_all_scan_enter(plan, false));
    const carry_status status = plan->state == CARRY_ALL_SCAN_UNDER_WAY ? advance(plan, true) : CARRY_OK;
    const carry_status left = carry_all_scan_exit(plan, true);
    CARRY_TRY(status);
    CARRY_TRY(left);
    plan->state = CARRY_ALL_SCAN_IDLE;
    plan->counts.waited += carry_seconds() - start;
    return CARRY_OK;
}

carry_status carry_all_scan_run(carry_all_scan_plan *plan, const carry_all_scan_args *args, void *workspace,
                                size_t workspace_bytes) {
    CARRY_TRY(carry_all_scan_begin(plan, args, workspace, workspace_bytes));
    return carry_all_scan_end(plan);
}

carry_status carry_all_scan_counted(const carry_all_scan_plan *plan, carry_all_scan_counts *counts) {
    return CARRY_SIZED_WRITE(plan->ctx, carry_all_scan_counts, counts, &plan->counts);
}
