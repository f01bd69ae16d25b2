/* Checks of envelopes and results: each by itself, and its order after the previous one. */
#include "stream/envelope.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "core/error.h"
#include "core/tensor.h"
#include "stream/envelope_bytes.h"

#define CHANNELS 16
#define STEP_MOST 1000

#define REFUSE(ctx, ...) carry_fail(ctx, CARRY_EARGUMENT, __VA_ARGS__)

static bool is_absent(const carry_tensor *tensor) {
    return tensor->rank == 0 && tensor->data == NULL;
}

/* shape[i] is -1 where any size of at least `least` is accepted. */
static carry_status check_tensor(carry_ctx *ctx, const char *name, const carry_tensor *tensor, carry_dtype dtype,
                                 int rank, const int64_t *shape, int64_t least) {
    char has[CARRY_SHAPE_TEXT];
    if (tensor->dtype != dtype) {
        return REFUSE(ctx, "%s has type %s where %s is needed", name, carry_dtype_name(tensor->dtype),
                      carry_dtype_name(dtype));
    }
    if (tensor->rank != rank) {
        return REFUSE(ctx, "%s has rank %d where %d is needed", name, tensor->rank, rank);
    }
    for (int i = 0; i < rank; i++) {
        const int64_t size = tensor->shape[i];
        if (shape[i] < 0 ? size < least : size != shape[i]) {
            return REFUSE(ctx, "%s has shape %s: size %d must be %s%" PRId64, name,
                          carry_shape_text(has, rank, tensor->shape), i, shape[i] < 0 ? "at least " : "",
                          shape[i] < 0 ? least : shape[i]);
        }
    }
    size_t bytes = 0;
    size_t filled = 0;
    if (!carry_part_bytes(&bytes, &filled, rank, tensor->shape, dtype)) {
        return REFUSE(ctx, "%s has shape %s, which is larger than memory can be", name,
                      carry_shape_text(has, rank, tensor->shape));
    }
    if (tensor->device != 0 || !carry_tensor_is_packed(tensor, 0)) {
        return REFUSE(ctx, "%s is on device %d or has gaps between its elements: it must be packed, on the CPU", name,
                      tensor->device);
    }
    if (bytes > 0 && (tensor->data == NULL || (uintptr_t)tensor->data % carry_dtype_size(dtype) != 0)) {
        return REFUSE(ctx, "%s has no data, or at an address that is not a multiple of %zu", name,
                      carry_dtype_size(dtype));
    }
    return CARRY_OK;
}

static carry_status check_total(carry_ctx *ctx, const void *object, bool is_result) {
    size_t bytes = 0;
    if (!carry_message_bytes(&bytes, object, is_result) || bytes > CARRY_ENVELOPE_BYTES) {
        return REFUSE(ctx, "the message has %zu bytes: at most %zu are sent", bytes, CARRY_ENVELOPE_BYTES);
    }
    return CARRY_OK;
}

static carry_status check_version(carry_ctx *ctx, uint32_t version) {
    return version == CARRY_ENVELOPE_VERSION
               ? CARRY_OK
               : REFUSE(ctx, "version is %" PRIu32 ": this is version %d", version, CARRY_ENVELOPE_VERSION);
}

/* NOOP and SHUTDOWN envelopes have ids and no other content. */
static carry_status check_empty(carry_ctx *ctx, const carry_envelope *e, const char *action) {
    if (!is_absent(&e->conditioning) || !is_absent(&e->latents_in) || !is_absent(&e->steps) ||
        !is_absent(&e->context_frames)) {
        return REFUSE(ctx, "%s carries a tensor", action);
    }
    uint32_t bits[2];
    memcpy(&bits[0], &e->kv_bias, 4);
    memcpy(&bits[1], &e->noise_scale, 4);
    if (e->height != 0 || e->width != 0 || e->current_start_frame != 0 || e->num_denoise_steps != 0 ||
        e->expected_generator_calls != 0 || e->do_recompute || e->init_cache || e->reset_cache ||
        e->reset_cross_cache || e->seed != 0 || bits[0] != 0 || bits[1] != 0) {
        return REFUSE(ctx, "%s has a field of INFER that is not 0", action);
    }
    return CARRY_OK;
}

static carry_status check_numbers(carry_ctx *ctx, const carry_envelope *e) {
    if (e->height < 1 || e->width < 1) {
        return REFUSE(ctx, "height and width are %" PRId32 " and %" PRId32 ": they must be 1 or more", e->height,
                      e->width);
    }
    if (e->current_start_frame < 0) {
        return REFUSE(ctx, "current_start_frame is %" PRId32 ": it must be 0 or more", e->current_start_frame);
    }
    if (e->num_denoise_steps < 1 || e->num_denoise_steps > CARRY_ENVELOPE_STEPS) {
        return REFUSE(ctx, "num_denoise_steps is %" PRId32 ": it must be 1 to %d", e->num_denoise_steps,
                      CARRY_ENVELOPE_STEPS);
    }
    const int32_t least = e->num_denoise_steps + (e->do_recompute ? 1 : 0);
    if (e->expected_generator_calls != least && e->expected_generator_calls != least + 1) {
        return REFUSE(ctx,
                      "expected_generator_calls is %" PRId32 ": %" PRId32 " steps%s are %" PRId32 ", or %" PRId32
                      " with a clean pass",
                      e->expected_generator_calls, e->num_denoise_steps, e->do_recompute ? " and a recompute" : "",
                      least, least + 1);
    }
    /* This form of the condition also refuses NaN. */
    if (!(e->kv_bias > 0 && e->kv_bias <= 1)) {
        return REFUSE(ctx, "kv_bias is %g: it must be above 0, up to 1", (double)e->kv_bias);
    }
    if (!(e->noise_scale >= 0 && isfinite(e->noise_scale))) {
        return REFUSE(ctx, "noise_scale is %g: it must be 0 or more, and finite", (double)e->noise_scale);
    }
    return CARRY_OK;
}

static carry_status check_steps(carry_ctx *ctx, const carry_envelope *e) {
    CARRY_TRY(check_tensor(ctx, "steps", &e->steps, CARRY_I64, 1, (const int64_t[]){(int64_t)e->num_denoise_steps}, 0));
    const int64_t *step = e->steps.data;
    for (int32_t i = 0; i < e->num_denoise_steps; i++) {
        if (step[i] < 1 || step[i] > STEP_MOST || (i > 0 && step[i] >= step[i - 1])) {
            return REFUSE(ctx, "steps[%" PRId32 "] is %" PRId64 ": steps fall, from at most %d to at least 1", i,
                          step[i], STEP_MOST);
        }
    }
    return CARRY_OK;
}

static carry_status check_tensors(carry_ctx *ctx, const carry_envelope *e) {
    const int64_t frames[] = {CHANNELS, -1, e->height, e->width};
    CARRY_TRY(check_tensor(ctx, "latents_in", &e->latents_in, CARRY_BF16, 4, frames, 1));
    CARRY_TRY(check_steps(ctx, e));
    const bool has_rows = e->conditioning.rank == 2 && e->conditioning.shape[0] != 0;
    CARRY_TRY(check_tensor(ctx, "conditioning", &e->conditioning, CARRY_BF16, 2,
                           (const int64_t[]){has_rows ? -1 : 0, -1}, 1));
    if (has_rows != e->reset_cross_cache) {
        return REFUSE(ctx, "conditioning has %" PRId64 " rows and reset_cross_cache is %s: rows come exactly with it",
                      e->conditioning.shape[0], e->reset_cross_cache ? "true" : "false");
    }
    if (is_absent(&e->context_frames) == e->do_recompute) {
        return REFUSE(ctx, "do_recompute is %s, and context_frames are%s there", e->do_recompute ? "true" : "false",
                      e->do_recompute ? " not" : "");
    }
    return e->do_recompute ? check_tensor(ctx, "context_frames", &e->context_frames, CARRY_BF16, 4, frames, 1)
                           : CARRY_OK;
}

carry_status carry_envelope_validate(carry_ctx *ctx, const carry_envelope *envelope) {
    CARRY_TRY(check_version(ctx, envelope->version));
    switch ((unsigned)envelope->action) { /* a peer may send any number */
    case CARRY_NOOP:
        return check_empty(ctx, envelope, "NOOP");
    case CARRY_SHUTDOWN:
        return check_empty(ctx, envelope, "SHUTDOWN");
    case CARRY_INFER:
        CARRY_TRY(check_numbers(ctx, envelope));
        CARRY_TRY(check_tensors(ctx, envelope));
        return check_total(ctx, envelope, false);
    default:
        return REFUSE(ctx, "action is %u: it must be 0 (NOOP), 1 (INFER) or 2 (SHUTDOWN)", (unsigned)envelope->action);
    }
}

carry_status carry_result_validate(carry_ctx *ctx, const carry_result *result) {
    CARRY_TRY(check_version(ctx, result->version));
    if (result->observed_generator_calls < 1) {
        return REFUSE(ctx, "observed_generator_calls is %" PRId32 ": it must be 1 or more",
                      result->observed_generator_calls);
    }
    if (result->mesh_start_frame < 0) {
        return REFUSE(ctx, "mesh_start_frame is %" PRId32 ": it must be 0 or more", result->mesh_start_frame);
    }
    if (!(result->stage1_ms >= 0 && isfinite(result->stage1_ms) && result->mesh_idle_ms >= 0 &&
          isfinite(result->mesh_idle_ms))) {
        return REFUSE(ctx, "stage1_ms and mesh_idle_ms are %g and %g: they must be 0 or more, and finite",
                      result->stage1_ms, result->mesh_idle_ms);
    }
    CARRY_TRY(check_tensor(ctx, "latents_out", &result->latents_out, CARRY_BF16, 4,
                           (const int64_t[]){CHANNELS, -1, -1, -1}, 1));
    return check_total(ctx, result, true);
}

/* Compares without adding 1, which would overflow for the largest number. */
static bool is_next(uint64_t now, uint64_t last) {
    return now > last && now - last == 1;
}

carry_status carry_envelope_follow(carry_ctx *ctx, carry_envelope_order *order, const carry_envelope *envelope) {
    const bool is_end = envelope->action == CARRY_SHUTDOWN;
    const bool is_chunk = envelope->action == CARRY_INFER;
    const bool is_second_end = is_end && order->ended && envelope->call_id == order->call_id;
    if (order->ended && !is_end) {
        return carry_fail(ctx, CARRY_EPEER, "call_id %" PRIu64 " came after SHUTDOWN, which was %" PRIu64,
                          envelope->call_id, order->call_id);
    }
    if (order->any && !is_second_end && !is_next(envelope->call_id, order->call_id)) {
        return carry_fail(ctx, CARRY_EPEER, "call_id %" PRIu64 " came after %" PRIu64 ": a %s", envelope->call_id,
                          order->call_id, envelope->call_id > order->call_id ? "gap" : "repeat");
    }
    if (is_chunk && order->any_chunk && !is_next(envelope->chunk_index, order->chunk_index)) {
        return carry_fail(ctx, CARRY_EPEER,
                          "chunk_index %" PRIu64 " came after %" PRIu64 " (call_id %" PRIu64 "): a %s",
                          envelope->chunk_index, order->chunk_index, envelope->call_id,
                          envelope->chunk_index > order->chunk_index ? "gap" : "repeat");
    }
    if (order->any && envelope->cache_epoch != order->cache_epoch &&
        !is_next(envelope->cache_epoch, order->cache_epoch)) {
        return carry_fail(ctx, CARRY_EPEER,
                          "cache_epoch %" PRIu64 " came after %" PRIu64 " (call_id %" PRIu64
                          "): it stays or grows by 1",
                          envelope->cache_epoch, order->cache_epoch, envelope->call_id);
    }
    order->any = true;
    order->ended = is_end;
    order->call_id = envelope->call_id;
    order->cache_epoch = envelope->cache_epoch;
    if (is_chunk) {
        order->any_chunk = true;
        order->chunk_index = envelope->chunk_index;
    }
    return CARRY_OK;
}
