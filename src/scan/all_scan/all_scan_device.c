/* Plans whose states are in GPU memory. Products, copies and messages are enqueued on a separate stream of the plan.
   The plan's stream starts after the work that was on the caller's stream at begin, and at the end the caller's stream
   waits for it. So states travel while the caller's stream computes, and the CPU waits only for the CPUs of other
   ranks. While a function of the plan runs, its stream is the context's stream, which messages and kernels use. */
#include <math.h>

#include "carry/device.h"
#include "core/clock.h"
#include "core/context.h"
#include "scan/all_scan/all_scan.h"

#define TRIES 5

#ifndef CARRY_HAVE_CUDA
const carry_all_scan_arith carry_all_scan_on_gpu; /* never used: no device above 0 exists */

carry_status carry_all_scan_stream_new(carry_ctx *ctx, carry_stream **stream, int device) {
    return carry_stream_new(ctx, stream, device);
}
#endif

carry_status carry_all_scan_device_open(carry_all_scan_plan *plan) {
    if (plan->device == 0) {
        return CARRY_OK;
    }
    plan->arith = &carry_all_scan_on_gpu;
    CARRY_TRY(carry_all_scan_stream_new(plan->ctx, &plan->stream, plan->device));
    CARRY_TRY(carry_event_new(plan->ctx, &plan->before, plan->device));
    CARRY_TRY(carry_event_new(plan->ctx, &plan->reached, plan->device));
    CARRY_TRY(carry_event_new(plan->ctx, &plan->closing, plan->device));
    CARRY_TRY(carry_event_new(plan->ctx, &plan->left, plan->device));
    return carry_event_new(plan->ctx, &plan->after, plan->device);
}

void carry_all_scan_device_close(carry_all_scan_plan *plan) {
    if (plan->stream != NULL) {
        (void)carry_stream_wait(plan->ctx, plan->device, plan->stream);
        carry_stream_free(plan->ctx, plan->device, plan->stream);
    }
    carry_event_free(plan->ctx, plan->device, plan->before);
    carry_event_free(plan->ctx, plan->device, plan->reached);
    carry_event_free(plan->ctx, plan->device, plan->closing);
    carry_event_free(plan->ctx, plan->device, plan->left);
    carry_event_free(plan->ctx, plan->device, plan->after);
}

carry_status carry_all_scan_enter(carry_all_scan_plan *plan, bool begins) {
    if (plan->device == 0) {
        return CARRY_OK;
    }
    plan->callers = carry_ctx_stream(plan->ctx, plan->device);
    if (begins) {
        CARRY_TRY(carry_event_record(plan->ctx, plan->device, plan->before, plan->callers));
        CARRY_TRY(carry_stream_after(plan->ctx, plan->device, plan->stream, plan->before));
    } else { /* marks the caller's work so far; the last mark before the CPU waits for other ranks is the one that
                counts */
        CARRY_TRY(carry_event_record(plan->ctx, plan->device, plan->has_arrived ? plan->closing : plan->reached,
                                     plan->callers));
    }
    return carry_ctx_set_stream(plan->ctx, plan->device, plan->stream);
}

carry_status carry_all_scan_exit(carry_all_scan_plan *plan, bool ends) {
    if (plan->device == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(carry_ctx_set_stream(plan->ctx, plan->device, plan->callers));
    if (ends) {
        carry_event *over = plan->has_arrived ? plan->left : plan->after;
        CARRY_TRY(carry_event_record(plan->ctx, plan->device, over, plan->stream));
        CARRY_TRY(carry_stream_after(plan->ctx, plan->device, plan->callers, over));
    }
    return CARRY_OK;
}

carry_status carry_all_scan_mark(carry_all_scan_plan *plan) {
    if (plan->device == 0 || plan->is_marked) {
        return CARRY_OK;
    }
    plan->is_marked = true;
    return carry_event_record(plan->ctx, plan->device, plan->after, plan->stream);
}

carry_status carry_all_scan_exposed(carry_all_scan_plan *plan, double *seconds) {
    *seconds = 0.0;
    if (plan->device == 0) {
        return CARRY_OK;
    }
    double more = 0.0;
    CARRY_TRY(carry_event_elapsed(plan->ctx, seconds, plan->device, plan->reached, plan->after));
    if (plan->has_arrived) {
        CARRY_TRY(carry_event_elapsed(plan->ctx, &more, plan->device, plan->closing, plan->left));
    }
    *seconds = (*seconds > 0.0 ? *seconds : 0.0) + (more > 0.0 ? more : 0.0);
    return CARRY_OK;
}

/* Measures the seconds for one position of a walk over a rank's share of heads. */
static carry_status time_walk(carry_all_scan_plan *plan, double *seconds) {
    enum { FEW = 1, MANY = 9 };
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t heads = (p->heads + plan->shape.ranks - 1) / plan->shape.ranks;
    const int64_t state = heads * p->key * p->value, map = heads * carry_all_scan_map_floats(p);
    const size_t bytes = (size_t)(MANY * (2 * state + map)) * sizeof(float);
    unsigned char role[MANY] = {CARRY_ALL_SCAN_CUT}; /* a cut, then maps */
    double least[2] = {INFINITY, INFINITY};
    void *data;
    CARRY_TRY(carry_device_alloc(plan->ctx, &data, plan->device, bytes));
    carry_status status = carry_device_fill(plan->ctx, data, plan->device, 0, bytes, plan->stream);
    float *at = data;
    carry_all_scan_walk walk = {.states = at, .L = at + MANY * state, .M = at + MANY * 2 * state, .heads = heads};
    walk.role = role;
    for (int i = 0; i < 2 * TRIES && status == CARRY_OK; i++) {
        const double start = carry_seconds();
        walk.count = i % 2 == 0 ? FEW : MANY;
        carry_all_scan_walk_run(plan, &walk);
        status = plan->broken != CARRY_OK ? plan->broken : carry_stream_wait(plan->ctx, plan->device, plan->stream);
        const double spent = carry_seconds() - start;
        least[i % 2] = spent < least[i % 2] ? spent : least[i % 2];
    }
    carry_device_free(plan->ctx, plan->device, data);
    *seconds = least[1] > least[0] ? (least[1] - least[0]) / (MANY - FEW) : 1e-9;
    return status;
}

/* The least seconds for one launch, including the wait for it. */
static carry_status time_one(carry_all_scan_plan *plan, float *data, int which, double *seconds) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t state = carry_all_scan_state_floats(p), map = p->heads * carry_all_scan_map_floats(p);
    const carry_all_scan_view S = carry_all_scan_packed(p, data), out = carry_all_scan_packed(p, data + state);
    float *M = data + 2 * state;
    const carry_all_scan_map own = {
        .kind = p->kind == CARRY_ALL_SCAN_DIAGONAL ? CARRY_ALL_SCAN_DIAGONAL : CARRY_ALL_SCAN_DENSE, .M = M};
    *seconds = INFINITY;
    for (int i = 0; i < TRIES; i++) {
        const double start = carry_seconds();
        if (which == 0) {
            plan->arith->apply(plan, out, &own, S, out, p->heads, p->value);
        } else if (which == 1) {
            plan->arith->compose(plan, M + map, M, M, p->heads);
        } else {
            plan->arith->pack(plan, out.data, S, p->heads, p->key, p->value);
        }
        CARRY_TRY(plan->broken);
        CARRY_TRY(carry_stream_wait(plan->ctx, plan->device, plan->stream));
        const double spent = carry_seconds() - start;
        *seconds = spent < *seconds ? spent : *seconds;
    }
    return CARRY_OK;
}

carry_status carry_all_scan_device_measure(carry_all_scan_plan *plan, double *product, double *compose, double *rate,
                                           double *step) {
    const carry_all_scan_problem *p = &plan->shape.problem;
    const int64_t state = carry_all_scan_state_floats(p), map = p->heads * carry_all_scan_map_floats(p);
    const size_t bytes = (size_t)(2 * state + 2 * map) * sizeof(float);
    void *data;
    double handling = 0.0;
    CARRY_TRY(carry_device_alloc(plan->ctx, &data, plan->device, bytes));
    carry_status status = carry_all_scan_enter(plan, false);
    if (status == CARRY_OK) {
        status = carry_device_fill(plan->ctx, data, plan->device, 0, bytes, plan->stream);
        status = status == CARRY_OK ? time_one(plan, data, 0, product) : status;
        status = status == CARRY_OK ? time_one(plan, data, 1, compose) : status;
        status = status == CARRY_OK ? time_one(plan, data, 2, &handling) : status;
        status = status == CARRY_OK ? time_walk(plan, step) : status;
        const carry_status left = carry_all_scan_exit(plan, false);
        status = status == CARRY_OK ? left : status;
    }
    carry_device_free(plan->ctx, plan->device, data);
    *rate = handling / ((double)state * (sizeof(float) + (double)carry_dtype_size(p->wire)));
    return status;
}
