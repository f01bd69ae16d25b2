/* Steps that stay on a GPU: ids, logits and tokens are there, and the host waits for results only. */
#include <stdlib.h>

#include "core/context.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"

/* Sequences up to which the decoding kernel is faster than recorded passes (docs/attempts/decode.md). */
#define DECODE_MOST 8

/* The parts of a slot, then those of a page; to NULL it counts. -1: one of them is not whole words. */
static int list_parts(carry_model_runner *r, carry_slot_part *to) {
    int count = 0;
    for (int of_page = 0; of_page < 2; of_page++) {
        carry_model_runner_walk at = {0};
        void *data;
        size_t bytes;
        while (carry_model_runner_next_piece(r, of_page == 1, 0, &at, &data, &bytes)) {
            if (bytes % 4 != 0) {
                return -1;
            }
            if (to != NULL) {
                to[count] = (carry_slot_part){.base = data, .bytes = bytes};
            }
            count++;
        }
        r->slot_parts = of_page == 0 ? count : r->slot_parts;
    }
    r->page_parts = count - r->slot_parts;
    return count;
}

static carry_status open_parts(carry_model_runner *r) {
    const int count = list_parts(r, NULL);
    if (count <= 0) {
        r->copies = NULL; /* part after part, then */
        return CARRY_OK;
    }
    const size_t bytes = (size_t)count * sizeof(carry_slot_part);
    void *there;
    carry_slot_part *parts = malloc(bytes);
    if (parts == NULL) {
        return carry_fail(r->head.ctx, CARRY_EMEMORY, "out of memory: the parts of a state");
    }
    (void)list_parts(r, parts);
    carry_status status = carry_device_alloc(r->head.ctx, &there, r->device, bytes);
    if (status == CARRY_OK) {
        r->parts = there;
        status = carry_device_copy(r->head.ctx, there, r->device, parts, 0, bytes, NULL);
    }
    free(parts);
    return status;
}

carry_status carry_model_runner_open_device(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    const carry_runner_sizes *sizes = &r->head.sizes;
    void *there;
    if (r->device == 0) {
        return CARRY_OK;
    }
    r->copies = carry_slot_kernel_of(r->device, &r->ordinal);
    if (r->copies != NULL) {
        CARRY_TRY(open_parts(r));
    }
    CARRY_TRY(carry_device_sampler_open(&r->sampling, ctx, r->device, sizes->sequences, sizes->vocabulary));
    if (r->sampling == NULL) {
        return CARRY_OK;
    }
    const size_t bytes = (size_t)(sizes->slots + 1) * sizeof *r->last_there;
    CARRY_TRY(carry_device_alloc(ctx, &there, r->device, bytes));
    r->last_there = there;
    CARRY_TRY(carry_device_fill(ctx, there, r->device, 0, bytes, NULL));
    CARRY_TRY(carry_stream_wait(ctx, r->device, NULL));
    if (r->dtype != CARRY_BF16) {
        return CARRY_OK;
    }
    const carry_decode_options options = {.sequences = sizes->sequences < DECODE_MOST ? sizes->sequences : DECODE_MOST,
                                          .last = r->last_there};
    return carry_decode_open(&r->decode, r->lm, r->pool, r->wide, &options);
}

void carry_model_runner_close_device(carry_model_runner *r) {
    carry_decode_close(r->decode);
    carry_device_sampler_close(r->sampling);
    carry_device_free(r->head.ctx, r->device, r->last_there);
    carry_device_free(r->head.ctx, r->device, r->parts);
}

/* Every run is one token, and wants the next. */
static bool is_decoding(const carry_model_runner *r, int64_t count) {
    return r->places.steps == count && r->places.wanted_count == count;
}

carry_status carry_model_runner_run_there(carry_model_runner *r, const carry_run *runs, int64_t count) {
    carry_ctx *ctx = r->head.ctx;
    carry_tensor logits = r->dtype == CARRY_BF16 ? r->logits : r->wide;
    if (is_decoding(r, count) && r->places.waves == 0 && r->decode != NULL &&
        count <= carry_decode_sequences(r->decode)) {
        CARRY_TRY(carry_decode_step(r->decode, runs, count));
        logits = r->wide;
    } else if (is_decoding(r, count) && r->records) {
        CARRY_TRY(carry_model_runner_replay(r));
    } else {
        CARRY_TRY(carry_device_copy(ctx, r->listed.slots, r->device, r->list.slots, 0, r->list_bytes,
                                    carry_ctx_stream(ctx, r->device)));
        CARRY_TRY(carry_model_runner_enqueue(r));
    }
    CARRY_TRY(carry_device_sampler_run(r->sampling, logits, r->row_of, runs, count, r->last_there));
    for (int64_t i = 0; i < count; i++) {
        r->last[runs[i].slot] = runs[i].wants_token ? 0 : -1;
    }
    return CARRY_OK;
}

carry_status carry_model_runner_copy_there(carry_model_runner *r, bool of_page, int32_t to, int32_t from) {
    carry_stream *stream = carry_ctx_stream(r->head.ctx, r->device);
    const int count = of_page ? r->page_parts : r->slot_parts;
    return count > 0 ? r->copies->copy(r->head.ctx, r->ordinal, stream, r->parts + (of_page ? r->slot_parts : 0), count,
                                       of_page ? NULL : r->last_there, to, from)
                     : CARRY_OK;
}
