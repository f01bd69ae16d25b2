/* Slots and pages of a runner: clears and copies them and moves them to and from host memory, part by part of each
   layer. */
#include <inttypes.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"

static carry_status check_slot(const carry_model_runner *r, int32_t slot) {
    return slot >= 0 && slot < r->head.sizes.slots
               ? CARRY_OK
               : carry_fail(r->head.ctx, CARRY_ERANGE, "slot %" PRId32 ": expected 0 to %" PRId64, slot,
                            r->head.sizes.slots - 1);
}

static carry_status check_page(const carry_model_runner *r, int32_t page) {
    return page >= 0 && page < r->head.sizes.pages
               ? CARRY_OK
               : carry_fail(r->head.ctx, CARRY_ERANGE, "page %" PRId32 ": expected 0 to %" PRId64, page,
                            r->head.sizes.pages - 1);
}

/* carry_model_runner_next_piece for the parts of one pool. */
static bool next_of_pool(const carry_lm_state *pool, bool of_page, int64_t index, carry_model_runner_walk *at,
                         void **data, size_t *bytes) {
    for (; at->layer < pool->layers; at->layer++, at->part = 0) {
        for (; at->part < CARRY_LM_STATE_PARTS; at->part++, at->slice = 0) {
            const carry_tensor *part = &pool->part[at->layer][at->part];
            const carry_lm_state_part *about = &pool->about[at->layer][at->part];
            const int64_t slices = about->slices > 0 ? about->slices : 1;
            if (part->data != NULL && about->grows == of_page && at->slice < slices) {
                const int64_t row = at->slice++ * part->shape[0] + index;
                *bytes = (size_t)(carry_tensor_count(part) / part->shape[0] / slices) * carry_dtype_size(part->dtype);
                *data = (unsigned char *)part->data + (size_t)row * *bytes;
                return true;
            }
        }
    }
    return false;
}

bool carry_model_runner_next_piece(const carry_model_runner *r, bool of_page, int64_t index,
                                   carry_model_runner_walk *at, void **data, size_t *bytes) {
    if (!at->is_in_heads && next_of_pool(r->pool, of_page, index, at, data, bytes)) {
        return true;
    }
    if (r->heads.lm == NULL) {
        return false;
    }
    if (!at->is_in_heads) {
        *at = (carry_model_runner_walk){.is_in_heads = true};
    }
    if (of_page) {
        return next_of_pool(r->heads.pool, true, index, at, data, bytes);
    }
    const carry_tensor *hidden = &r->heads.hidden;
    *bytes = (size_t)hidden->shape[1] * carry_dtype_size(hidden->dtype);
    *data = (unsigned char *)hidden->data + (size_t)index * *bytes;
    return at->part++ == 0;
}

carry_status carry_model_runner_clear_slot(carry_runner *runner, int32_t slot) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_slot(r, slot));
    CARRY_TRY(carry_model_runner_fold(r, slot));
    r->last[slot] = -1;
    if (r->copies != NULL) {
        return carry_model_runner_copy_there(r, false, slot, -1);
    }
    CARRY_TRY(carry_lm_state_clear(r->pool, slot));
    return r->heads.lm != NULL ? carry_zero(r->head.ctx, carry_slice(r->heads.hidden, slot, 1)) : CARRY_OK;
}

static carry_status copy(carry_model_runner *r, bool of_page, int32_t to, int32_t from) {
    carry_stream *stream = carry_ctx_stream(r->head.ctx, r->device);
    carry_model_runner_walk at = {0};
    carry_model_runner_walk also = {0};
    void *into;
    void *source;
    size_t bytes;
    if (r->copies != NULL) {
        return to != from ? carry_model_runner_copy_there(r, of_page, to, from) : CARRY_OK;
    }
    while (to != from && carry_model_runner_next_piece(r, of_page, to, &at, &into, &bytes)) {
        (void)carry_model_runner_next_piece(r, of_page, from, &also, &source, &bytes);
        CARRY_TRY(carry_device_copy(r->head.ctx, into, r->device, source, r->device, bytes, stream));
    }
    return CARRY_OK;
}

carry_status carry_model_runner_copy_slot(carry_runner *runner, int32_t to, int32_t from) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_slot(r, to));
    CARRY_TRY(check_slot(r, from));
    CARRY_TRY(carry_model_runner_fold(r, to));
    CARRY_TRY(carry_model_runner_fold(r, from));
    r->last[to] = r->last[from];
    return copy(r, false, to, from);
}

carry_status carry_model_runner_copy_page(carry_runner *runner, int32_t to, int32_t from) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_page(r, to));
    CARRY_TRY(check_page(r, from));
    return copy(r, true, to, from);
}

static carry_status move(carry_model_runner *r, bool of_page, int32_t index, void *to, const void *from) {
    carry_ctx *ctx = r->head.ctx;
    carry_stream *stream = carry_ctx_stream(ctx, r->device);
    size_t done = 0;
    carry_model_runner_walk at = {0};
    void *data;
    size_t bytes;
    if (of_page && r->packed != NULL) {
        return carry_model_runner_move_page(r, index, to, from);
    }
    while (carry_model_runner_next_piece(r, of_page, index, &at, &data, &bytes)) {
        CARRY_TRY(to != NULL
                      ? carry_device_copy(ctx, (unsigned char *)to + done, 0, data, r->device, bytes, stream)
                      : carry_device_copy(ctx, data, r->device, (const unsigned char *)from + done, 0, bytes, stream));
        done += bytes;
    }
    return carry_stream_wait(ctx, r->device, stream);
}

carry_status carry_model_runner_read_slot(carry_runner *runner, void *to, int32_t slot) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_slot(r, slot));
    CARRY_TRY(carry_model_runner_fold(r, slot));
    return move(r, false, slot, to, NULL);
}

carry_status carry_model_runner_write_slot(carry_runner *runner, int32_t slot, const void *from) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_slot(r, slot));
    CARRY_TRY(carry_model_runner_fold(r, slot));
    r->last[slot] = -1;
    return move(r, false, slot, NULL, from);
}

carry_status carry_model_runner_read_page(carry_runner *runner, void *to, int32_t page) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_page(r, page));
    return move(r, true, page, to, NULL);
}

carry_status carry_model_runner_write_page(carry_runner *runner, int32_t page, const void *from) {
    carry_model_runner *r = (carry_model_runner *)runner;
    CARRY_TRY(check_page(r, page));
    return move(r, true, page, NULL, from);
}

static void measure(const carry_lm *lm, const carry_lm_pool_types *types, size_t *slot, size_t *page) {
    for (int64_t layer = 0; layer < lm->config.num_hidden_layers; layer++) {
        carry_lm_state_part about[CARRY_LM_STATE_PARTS];
        carry_lm_pool_describe(lm, layer, types, about);
        for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
            size_t count = about[i].rank > 0 ? 1 : 0;
            for (int j = about[i].grows ? 1 : 0; j < about[i].rank; j++) {
                count *= (size_t)about[i].shape[j];
            }
            *(about[i].grows ? page : slot) += count * (about[i].grows ? CARRY_PAGE_TOKENS : 1) *
                                               carry_dtype_size(carry_lm_pool_part_type(&about[i], types));
        }
    }
}

void carry_model_runner_measure(const carry_lm *lm, const carry_lm *heads, carry_dtype dtype,
                                const carry_state_types *types, size_t *slot, size_t *page) {
    const carry_state_types usual = {.kv = dtype, .state = CARRY_F32};
    const carry_lm_pool_types pool = carry_state_types_of_pool(types != NULL ? types : &usual, dtype, 1);
    *slot = *page = 0;
    measure(lm, &pool, slot, page);
    if (heads != NULL) {
        measure(heads, &pool, slot, page);
        *slot += (size_t)heads->config.hidden_size * carry_dtype_size(dtype);
    }
}
