/* Steps that stay on a GPU: ids, logits and tokens are on it, and the host waits only for results. */
#include <stdlib.h>

#include "core/context.h"
#include "core/tensor.h"
#include "engine/model_runner_inside.h"

/* With up to DECODE_MOST sequences, one kernel for the whole step (engine/decode.h) is faster than a chain of kernels
   (engine/chain.h). With up to CHAIN_MOST sequences, the chain is faster than the passes of model/lm, recorded as a
   graph (model_runner_graph.c). Measurements: docs/attempts/decode.md. */
#define DECODE_MOST 2
#define CHAIN_MOST 16

/* Lists the parts of a slot, then those of a page, and returns their number; if `to` is NULL, only counts. -1: a part
   is not a whole number of words. */
static int list_parts(carry_model_runner *r, carry_slot_part *to) {
    int count = 0;
    for (int of_page = 0; of_page < 2; of_page++) {
        uint64_t offset = 0;
        carry_model_runner_walk at = {0};
        void *data;
        size_t bytes;
        while (carry_model_runner_next_piece(r, of_page == 1, 0, &at, &data, &bytes)) {
            if (bytes % 4 != 0) {
                return -1;
            }
            if (to != NULL) {
                to[count] = (carry_slot_part){.base = data, .bytes = bytes, .offset = offset};
            }
            offset += bytes;
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
        r->copies = NULL; /* parts are then copied one by one */
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
    if (status == CARRY_OK && r->head.sizes.page_bytes > 0) {
        status = carry_device_alloc(r->head.ctx, &r->packed, r->device, r->head.sizes.page_bytes);
    }
    return status;
}

/* Opens the kernels of decoding steps, in bf16. With same_bits the chain runs all steps. */
static carry_status open_kernels(carry_model_runner *r) {
    const carry_runner_sizes *sizes = &r->head.sizes;
    const carry_decode_options options = {.sequences = sizes->sequences < DECODE_MOST ? sizes->sequences : DECODE_MOST,
                                          .last = r->last_there};
    const int64_t most = r->same_bits || r->lm->own.quantised > 0 ? CARRY_CHAIN_SEQUENCES : CHAIN_MOST;
    const carry_chain_options chain = {.lists = {.slots = r->listed.slots,
                                                 .offsets = r->listed.offsets,
                                                 .pages = r->listed.pages,
                                                 .lengths = r->listed.lengths,
                                                 .ids = r->listed.ids,
                                                 .last = r->last_there,
                                                 .sequences = (int)(sizes->sequences < most ? sizes->sequences : most)},
                                       .same_bits = r->same_bits};
    /* The kernel of a whole step reads only the usual types; the chain reads all. A model without attention has no keys
       and values. */
    const bool has_usual_kv = r->types.kv == CARRY_BF16 || sizes->page_bytes == 0;
    const bool is_usual = has_usual_kv && r->types.state == CARRY_F32;
    if (!r->same_bits && is_usual) {
        CARRY_TRY(carry_decode_open(&r->decode, r->lm, r->pool, r->wide, &options));
    }
    return carry_chain_open(&r->chain, r->lm, r->pool, &chain);
}

static carry_status open_sampling(carry_model_runner *r) {
    carry_ctx *ctx = r->head.ctx;
    const carry_runner_sizes *sizes = &r->head.sizes;
    void *there;
    r->copies = carry_slot_kernel_of(r->device, &r->ordinal);
    if (r->copies != NULL) {
        CARRY_TRY(open_parts(r));
    }
    CARRY_TRY(carry_device_sampler_open(&r->sampling, ctx, r->device, sizes->sequences, sizes->vocabulary));
    if (r->sampling == NULL) {
        return CARRY_OK;
    }
    r->head.overlaps = true;
    const size_t bytes = (size_t)(sizes->slots + 1) * sizeof *r->last_there;
    CARRY_TRY(carry_device_alloc(ctx, &there, r->device, bytes));
    r->last_there = there;
    CARRY_TRY(carry_device_fill(ctx, there, r->device, 0, bytes, NULL));
    CARRY_TRY(carry_stream_wait(ctx, r->device, NULL));
    /* These kernels do not give the hidden states, which multi-token heads need. */
    return r->dtype == CARRY_BF16 && r->heads.lm == NULL ? open_kernels(r) : CARRY_OK;
}

carry_status carry_model_runner_open_device(carry_model_runner *r) {
    if (r->device == 0) {
        return CARRY_OK;
    }
    CARRY_TRY(open_sampling(r));
    if (!r->same_bits) {
        return CARRY_OK;
    }
    if (r->chain == NULL || carry_chain_sequences(r->chain) < r->head.sizes.sequences || !r->records) {
        return carry_fail(
            r->head.ctx, CARRY_EUNSUPPORTED,
            "the same bits beside any sequences, on a GPU: expected bf16, at most %d sequences and guesses together, "
            "and a model that the decoding kernels support; use the CPU for others",
            CARRY_CHAIN_SEQUENCES);
    }
    r->head.reads_singly = true;
    r->single = calloc((size_t)r->head.sizes.sequences, sizeof *r->single);
    return r->single != NULL ? CARRY_OK : carry_fail(r->head.ctx, CARRY_EMEMORY, "out of memory: the runs of a step");
}

void carry_model_runner_close_device(carry_model_runner *r) {
    carry_decode_close(r->decode);
    carry_chain_close(r->chain);
    carry_device_sampler_close(r->sampling);
    carry_device_free(r->head.ctx, r->device, r->last_there);
    carry_device_free(r->head.ctx, r->device, r->parts);
    carry_device_free(r->head.ctx, r->device, r->packed);
}

/* True if every run has one token and wants the next. */
static bool is_decoding(const carry_model_runner *r, int64_t count) {
    return r->places.steps == count && r->places.wanted_count == count;
}

/* Runs token by token: run i takes part in the last runs[i].count rounds, so that the last round has the last token of
   every run, and its logits are the results. Guesses, which have one token each, are all in the last round, after the
   token that they follow. Each round overwrites the lists of the previous one. */
static carry_status run_singly(carry_model_runner *r, const carry_run *runs, int64_t count) {
    carry_stream *stream = carry_ctx_stream(r->head.ctx, r->device);
    int64_t rounds = 0;
    for (int64_t i = 0; i < count; i++) {
        rounds = runs[i].count > rounds ? runs[i].count : rounds;
    }
    for (int64_t round = 0; round < rounds; round++) {
        int64_t n = 0;
        for (int64_t i = 0; i < count; i++) {
            const int64_t at = round - (rounds - runs[i].count);
            if (at >= 0) {
                r->single[n] = runs[i];
                r->single[n].length += at;
                r->single[n].ids = runs[i].ids != NULL ? runs[i].ids + at : NULL;
                r->single[n].count = 1;
                r->single[n++].wants_token = true;
            }
        }
        CARRY_TRY(round > 0 ? carry_stream_wait(r->head.ctx, r->device, stream) : CARRY_OK);
        CARRY_TRY(carry_model_runner_list(r, r->single, n));
        CARRY_TRY(carry_model_runner_replay(r));
    }
    return CARRY_OK;
}

carry_status carry_model_runner_run_there(carry_model_runner *r, const carry_run *runs, int64_t count) {
    carry_ctx *ctx = r->head.ctx;
    carry_tensor logits = r->dtype == CARRY_BF16 ? r->logits : r->wide;
    if (r->same_bits) {
        CARRY_TRY(run_singly(r, runs, count));
    } else if (is_decoding(r, count) && r->places.waves == 0 && r->decode != NULL &&
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

carry_status carry_model_runner_move_page(carry_model_runner *r, int32_t page, void *to, const void *from) {
    carry_ctx *ctx = r->head.ctx;
    carry_stream *stream = carry_ctx_stream(ctx, r->device);
    const carry_slot_part *parts = r->parts + r->slot_parts;
    const size_t bytes = r->head.sizes.page_bytes;
    if (to == NULL) {
        CARRY_TRY(carry_device_copy(ctx, r->packed, r->device, from, 0, bytes, stream));
    }
    CARRY_TRY(r->copies->pack(ctx, r->ordinal, stream, parts, r->page_parts, r->packed, page, to == NULL));
    if (to != NULL) {
        CARRY_TRY(carry_device_copy(ctx, to, 0, r->packed, r->device, bytes, stream));
    }
    return carry_stream_wait(ctx, r->device, stream);
}
