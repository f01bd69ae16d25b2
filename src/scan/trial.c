/* Timing algorithms for the planner. */
#include "scan/trial.h"

#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/context.h"

#define RUNS 5
#define PATIENCE 0.5 /* seconds for each algorithm */
#define GPU_RUNS 10  /* runs between two events, since one run is too short to measure */

struct carry_scan_trial {
    carry_tensor A, b, h;
    carry_event *from, *to; /* events of a GPU */
};

static carry_status make(carry_scan_plan *plan, carry_tensor *tensor, carry_dtype dtype, int rank, const int64_t *shape,
                         size_t bytes) {
    void *data;
    carry_status status = carry_device_alloc(plan->ctx, &data, plan->problem.device, bytes);
    *tensor = carry_view(data, dtype, rank, shape);
    tensor->device = plan->problem.device;
    return status;
}

/* Fills a tensor with uniform numbers in low..high. The generator runs on the CPU. */
static carry_status fill(carry_scan_plan *plan, const carry_tensor *tensor, uint64_t stream, float low, float high,
                         size_t bytes) {
    carry_ctx *ctx = plan->ctx;
    if (tensor->device == 0) {
        return carry_random_uniform(ctx, *tensor, 1, stream, low, high);
    }
    carry_tensor host = carry_view(carry_aligned_new(bytes), tensor->dtype, tensor->rank, tensor->shape);
    if (host.data == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: measuring this problem (%zu bytes)", bytes);
    }
    carry_status status = carry_random_uniform(ctx, host, 1, stream, low, high);
    carry_stream *queue = carry_ctx_stream(ctx, tensor->device);
    if (status == CARRY_OK) {
        status = carry_device_copy(ctx, tensor->data, tensor->device, host.data, 0, bytes, queue);
    }
    if (status == CARRY_OK) {
        status = carry_stream_wait(ctx, tensor->device, queue);
    }
    free(host.data);
    return status;
}

static carry_status prepare(carry_scan_plan *plan, carry_scan_trial *t) {
    const carry_scan_problem *p = &plan->problem;
    bool dense = p->kind == CARRY_SCAN_DENSE;
    const int64_t A_shape[] = {p->batch, p->steps, p->n, p->n};
    const int64_t b_shape[] = {p->batch, p->steps, p->n, p->width};
    size_t A_bytes;
    size_t b_count;
    if (!carry_size_product(&A_bytes, A_shape, dense ? 4 : 3, carry_dtype_size(p->dtype)) ||
        !carry_size_product(&b_count, b_shape, 4, 1)) {
        return carry_fail(plan->ctx, CARRY_ESIZE, "the problem is too large to measure");
    }
    carry_dtype result = p->f32_result ? CARRY_F32 : p->dtype;
    CARRY_TRY(make(plan, &t->A, p->dtype, dense ? 4 : 3, A_shape, A_bytes));
    CARRY_TRY(make(plan, &t->b, p->dtype, 4, b_shape, b_count * carry_dtype_size(p->dtype)));
    CARRY_TRY(make(plan, &t->h, result, 4, b_shape, b_count * carry_dtype_size(result)));
    if (p->device != 0) {
        CARRY_TRY(carry_event_new(plan->ctx, &t->from, p->device));
        CARRY_TRY(carry_event_new(plan->ctx, &t->to, p->device));
    }
    float bound = dense ? 1.0f / (float)p->n : 1.0f;
    CARRY_TRY(fill(plan, &t->A, 0, dense ? -bound : 0.8f, bound, A_bytes));
    return fill(plan, &t->b, 1, -1.0f, 1.0f, b_count * carry_dtype_size(p->dtype));
}

carry_status carry_scan_trial_new(carry_scan_plan *plan, carry_scan_trial **trial) {
    *trial = calloc(1, sizeof **trial);
    if (*trial == NULL) {
        return carry_fail(plan->ctx, CARRY_EMEMORY, "out of memory: measuring");
    }
    carry_status status = prepare(plan, *trial);
    if (status != CARRY_OK) {
        carry_scan_trial_free(plan, *trial);
        *trial = NULL;
    }
    return status;
}

static carry_status run(carry_scan_plan *plan, const carry_scan_trial *t, void *workspace) {
    if (!plan->problem.backward) {
        return carry_scan_run(plan, &(carry_scan_args){.h = t->h, .A = t->A, .b = t->b}, workspace, plan->workspace);
    }
    return carry_scan_backward(plan, &(carry_scan_backward_args){.db = t->h, .A = t->A, .h = t->b, .dh = t->b},
                               workspace, plan->workspace);
}

/* Measures one sample. */
static carry_status time_once(carry_scan_plan *plan, const carry_scan_trial *t, void *workspace, double *seconds) {
    int device = plan->problem.device;
    carry_ctx *ctx = plan->ctx;
    if (device == 0) {
        double before = carry_seconds();
        CARRY_TRY(run(plan, t, workspace));
        *seconds = carry_seconds() - before;
        return CARRY_OK;
    }
    carry_stream *queue = carry_ctx_stream(ctx, device);
    CARRY_TRY(carry_event_record(ctx, device, t->from, queue));
    for (int i = 0; i < GPU_RUNS; i++) {
        CARRY_TRY(run(plan, t, workspace));
    }
    CARRY_TRY(carry_event_record(ctx, device, t->to, queue));
    CARRY_TRY(carry_event_elapsed(ctx, seconds, device, t->from, t->to));
    *seconds /= GPU_RUNS;
    return CARRY_OK;
}

double carry_scan_trial_seconds(carry_scan_plan *plan, carry_scan_trial *trial) {
    void *workspace;
    double best = INFINITY;
    if (carry_device_alloc(plan->ctx, &workspace, plan->problem.device, plan->workspace) != CARRY_OK) {
        return best;
    }
    double start = carry_seconds();
    for (int i = 0; i < RUNS; i++) {
        double seconds;
        if (time_once(plan, trial, workspace, &seconds) != CARRY_OK) {
            break;
        }
        best = seconds < best ? seconds : best;
        if (carry_seconds() - start > PATIENCE) {
            break;
        }
    }
    carry_device_free(plan->ctx, plan->problem.device, workspace);
    return best;
}

void carry_scan_trial_free(carry_scan_plan *plan, carry_scan_trial *trial) {
    carry_ctx *ctx = plan->ctx;
    int device = plan->problem.device;
    carry_device_free(ctx, device, trial->A.data);
    carry_device_free(ctx, device, trial->b.data);
    carry_device_free(ctx, device, trial->h.data);
    carry_event_free(ctx, device, trial->from);
    carry_event_free(ctx, device, trial->to);
    free(trial);
}
