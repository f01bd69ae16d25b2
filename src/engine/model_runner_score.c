/* Steps that score tokens instead of sampling: the loss of each target is returned, and the host adds those of a run in
   order, in double. */
#include <inttypes.h>
#include <stdlib.h>

#include "carry/device.h"
#include "core/context.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"
#include "model/host.h"

static carry_status open_pending(carry_model_runner *r, carry_model_runner_pending *pending) {
    carry_ctx *ctx = r->head.ctx;
    const size_t bytes = (size_t)r->head.sizes.tokens * sizeof *pending->losses;
    void *losses = NULL;
    if (r->device != 0) {
        CARRY_TRY(carry_host_alloc(ctx, &losses, bytes));
        pending->losses = losses;
        CARRY_TRY(carry_event_new(ctx, &pending->done, r->device));
    } else {
        pending->losses = malloc(bytes);
    }
    pending->rows = calloc((size_t)r->head.sizes.sequences * 2, sizeof *pending->rows);
    return pending->losses != NULL && pending->rows != NULL
               ? CARRY_OK
               : carry_fail(ctx, CARRY_EMEMORY, "out of memory: losses of %" PRId64 " tokens", r->head.sizes.tokens);
}

carry_status carry_model_runner_open_scores(carry_model_runner *r) {
    for (int i = 0; i < CARRY_MODEL_RUNNER_PENDING; i++) {
        CARRY_TRY(open_pending(r, &r->pending[i]));
    }
    if (r->device == 0) {
        return CARRY_OK;
    }
    void *there;
    CARRY_TRY(
        carry_device_alloc(r->head.ctx, &there, r->device, (size_t)r->head.sizes.tokens * sizeof *r->losses_there));
    r->losses_there = there;
    r->head.overlaps = true;
    return CARRY_OK;
}

void carry_model_runner_close_scores(carry_model_runner *r) {
    for (int i = 0; i < CARRY_MODEL_RUNNER_PENDING; i++) {
        carry_model_runner_pending *pending = &r->pending[i];
        if (r->device != 0) {
            carry_host_free(r->head.ctx, pending->losses);
            carry_event_free(r->head.ctx, r->device, pending->done);
        } else {
            free(pending->losses);
        }
        free(pending->rows);
    }
    carry_device_free(r->head.ctx, r->device, r->losses_there);
}

carry_status carry_model_runner_score(carry_model_runner *r, int64_t count) {
    carry_ctx *ctx = r->head.ctx;
    carry_stream *stream = r->device != 0 ? carry_ctx_stream(ctx, r->device) : NULL;
    carry_model_runner_pending *pending = &r->pending[(r->oldest + r->waiting) % CARRY_MODEL_RUNNER_PENDING];
    const int64_t rows = r->starts[count];
    const int64_t shape[] = {1, rows};
    for (int64_t i = 0; i < count; i++) { /* single tokens come first in a call */
        pending->rows[2 * r->order[i]] = r->starts[i];
        pending->rows[2 * r->order[i] + 1] = r->starts[i + 1] - r->starts[i];
    }
    const carry_lm_args args = {
        .ids = carry_view_on(r->device, r->listed.ids, CARRY_I64, 2, shape),
        .labels = carry_view_on(r->device, r->listed.targets, CARRY_I64, 2, shape),
        .losses = carry_view_on(r->device, r->device != 0 ? r->losses_there : pending->losses, CARRY_F32, 1, &rows),
        .scale = 1.0f,
        .places = &r->places};
    if (r->device == 0) {
        CARRY_TRY(carry_lm_pack(r->lm, r->dtype, rows));
        return carry_lm_run(r->pass, &args, r->memory, carry_lm_pass_memory(r->pass));
    }
    CARRY_TRY(carry_device_copy(ctx, r->listed.slots, r->device, r->list.slots, 0, r->list_bytes, stream));
    CARRY_TRY(carry_lm_run(r->pass, &args, r->memory, carry_lm_pass_memory(r->pass)));
    CARRY_TRY(carry_device_copy(ctx, pending->losses, 0, r->losses_there, r->device,
                                (size_t)rows * sizeof *pending->losses, stream));
    return carry_event_record(ctx, r->device, pending->done, stream);
}

carry_status carry_model_runner_scores(carry_runner *runner, double *losses, int64_t count) {
    carry_model_runner *r = (carry_model_runner *)runner;
    const carry_model_runner_pending *pending = &r->pending[r->oldest];
    if (!r->scores || r->waiting == 0 || pending->count != count) {
        return carry_fail(r->head.ctx, CARRY_EARGUMENT,
                          "scores of %" PRId64 " runs: the oldest step has %" PRId64 " that were not read", count,
                          r->scores && r->waiting > 0 ? pending->count : 0);
    }
    if (r->device != 0) {
        CARRY_TRY(carry_event_wait(r->head.ctx, r->device, pending->done));
    }
    for (int64_t i = 0; i < count; i++) {
        const float *of_run = pending->losses + pending->rows[2 * i];
        losses[i] = 0.0;
        for (int64_t j = 0; j < pending->rows[2 * i + 1]; j++) {
            losses[i] += (double)of_run[j];
        }
    }
    r->oldest = (r->oldest + 1) % CARRY_MODEL_RUNNER_PENDING;
    r->waiting--;
    return CARRY_OK;
}
