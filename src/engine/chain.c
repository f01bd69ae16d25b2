/* The chain of kernels for a decoding step: its memory, and a step. chain_list.c lists the kernels. */
#include "engine/chain.h"

#include <stdlib.h>

#include "carry/device.h"
#include "carry/ops.h"
#include "core/context.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "engine/chain_inside.h"
#include "engine/decode_model.h"
#include "model/lm/lm_pass.h"
#include "ops/pool.h"

static carry_tensor take(const carry_chain *c, carry_arena *arena, int64_t width) {
    const int64_t shape[] = {CARRY_CHAIN_SEQUENCES, (width + 7) / 8 * 8};
    return carry_arena_tensor(arena, c->lm->own.device, CARRY_BF16, 2, shape);
}

static void place(carry_chain *c, carry_arena *arena) {
    const carry_lm_config *o = &c->lm->config;
    const int64_t delta = 2 * o->delta.key_width + 2 * o->delta.value_width + 2 * o->delta.value_heads;
    const int64_t heads = o->attention.heads * o->attention.head_dim;
    const int64_t attention = 2 * heads + 2 * o->attention.kv_heads * o->attention.head_dim;
    const int64_t maps = delta > attention ? delta : attention;
    const int64_t experts = o->experts.chosen * o->experts.width + o->experts.shared_width;
    const size_t rows = CARRY_CHAIN_SEQUENCES;
    c->low = take(c, arena, o->hidden_size);
    c->x = take(c, arena, o->hidden_size);
    c->maps = take(c, arena, o->experts.count > maps ? o->experts.count : maps);
    c->mixed = take(c, arena, heads > o->delta.value_width ? heads : o->delta.value_width);
    c->activated = take(c, arena, experts > o->swiglu.width ? experts : o->swiglu.width);
    c->h = carry_arena_take(arena, rows * (size_t)o->hidden_size, sizeof *c->h);
    const int64_t part = o->attention.heads * CARRY_CHAIN_SPLITS * (o->attention.head_dim + 2);
    c->part = carry_arena_take(arena, rows * (size_t)part, sizeof *c->part);
    c->numbers = carry_arena_take(arena, rows * CARRY_CHAIN_CHOSEN_MOST, sizeof *c->numbers);
    c->weights = carry_arena_take(arena, rows * (CARRY_CHAIN_CHOSEN_MOST + 1), sizeof *c->weights);
    c->rates = carry_arena_take(arena, (size_t)o->attention.rotary / 2 + 1, sizeof *c->rates);
}

static carry_status open_memory(carry_chain *c) {
    carry_ctx *ctx = c->lm->ctx;
    const int device = c->lm->own.device;
    carry_arena count = carry_arena_over(NULL, 0);
    size_t bytes;
    place(c, &count);
    c->ops = calloc((size_t)c->lm->config.num_hidden_layers * CARRY_CHAIN_OPS_OF_LAYER + 2, sizeof *c->ops);
    if (c->ops == NULL || !carry_arena_total(&count, &bytes)) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the kernels of a step");
    }
    CARRY_TRY(carry_device_alloc(ctx, &c->memory, device, bytes));
    carry_arena arena = carry_arena_over(c->memory, bytes);
    place(c, &arena);
    CARRY_TRY(carry_device_fill(ctx, c->memory, device, 0, bytes, NULL));
    CARRY_TRY(carry_decode_put_rates(c->lm, c->rates));
    return carry_stream_wait(ctx, device, NULL);
}

void carry_chain_close(carry_chain *c) {
    if (c != NULL) {
        carry_device_free(c->lm->ctx, c->lm->own.device, c->memory);
        free(c->ops);
        free(c);
    }
}

carry_status carry_chain_open(carry_chain **made, carry_lm *lm, carry_lm_state *pool,
                              const carry_chain_options *options) {
    int ordinal = 0;
    int64_t columns;
    *made = NULL;
    const carry_chain_device *device = carry_chain_device_of(lm->own.device, &ordinal);
    const carry_decode_needs needs = {.group = CARRY_CHAIN_GROUP, .rows = 1, .experts = true, .quantised = true};
    if (device == NULL || !carry_decode_supports(lm, &needs, &columns)) {
        return CARRY_OK;
    }
    carry_chain *c = calloc(1, sizeof *c);
    if (c == NULL) {
        return carry_fail(lm->ctx, CARRY_EMEMORY, "out of memory: the kernels of a step");
    }
    *c = (carry_chain){.lm = lm, .pool = pool, .device = device, .ordinal = ordinal};
    c->lists = options->lists;
    c->same_bits = options->same_bits;
    if (c->lists.sequences > CARRY_CHAIN_SEQUENCES) {
        c->lists.sequences = CARRY_CHAIN_SEQUENCES;
    }
    const carry_status status = open_memory(c);
    /* With quantised matrices the order of sums depends on the number of sequences. */
    if (status != CARRY_OK || !carry_chain_list(c) || (c->has_tiles && c->same_bits)) {
        carry_chain_close(c);
        return status;
    }
    *made = c;
    return CARRY_OK;
}

int64_t carry_chain_sequences(const carry_chain *c) {
    return c->lists.sequences;
}

/* Copies the states of `count` sequences, from those starting at index `from` to those starting at `to`. */
static carry_status follow(const carry_chain *c, int layer, int64_t to, int64_t from, int64_t count) {
    for (int i = 0; i < CARRY_LM_STATE_PARTS; i++) {
        const carry_tensor *states = &c->pool->part[layer][i];
        const carry_lm_state_part *about = &c->pool->about[layer][i];
        if (states->data == NULL || about->grows) {
            continue;
        }
        const int64_t slots = states->shape[0];
        const int64_t slices = about->slices > 0 ? about->slices : 1;
        const carry_tensor rows =
            carry_reshape_2d(*states, slices * slots, carry_tensor_count(states) / slots / slices);
        for (int64_t j = 0; j < slices; j++) {
            CARRY_TRY(carry_copy_slots(c->lm->ctx, carry_slice(rows, j * slots, slots), c->lists.slots + to,
                                       c->lists.slots + from, count));
        }
    }
    return CARRY_OK;
}

/* The same operation for the sequences from `first` on. */
static carry_chain_op from_row(const carry_chain_op *op, int64_t first) {
    carry_chain_op part = *op;
    if (op->kind == CARRY_CHAIN_DELTA) {
        carry_chain_delta *d = &part.as.delta;
        d->in = (const uint16_t *)d->in + first * d->in_stride;
        d->y = (uint16_t *)d->y + first * d->value_heads * CARRY_CHAIN_KEY;
    } else {
        carry_chain_attend *a = &part.as.attend;
        a->in = (const uint16_t *)a->in + first * a->in_stride;
        a->part += first * a->heads * CARRY_CHAIN_SPLITS * (a->width + 2);
        a->y = (uint16_t *)a->y + first * a->heads * a->width;
    }
    return part;
}

/* Runs an operation on states wave by wave (carry_chain_run). A later wave loads states or keys that the wave before it
   writes, so its kernel must not start before that of the wave before has ended. */
static carry_status run_waves(carry_chain *c, const carry_chain_op *op, const int64_t *wave, int64_t waves) {
    carry_lm *lm = c->lm;
    carry_stream *stream = carry_ctx_stream(lm->ctx, lm->own.device);
    for (int64_t i = 0; i < waves; i++) {
        const int64_t first = wave[i];
        const int64_t count = wave[i + 1] - first;
        const carry_chain_op part = from_row(op, first);
        carry_chain_lists lists = c->lists;
        lists.slots += first;
        lists.offsets += first;
        lists.lengths += first;
        lists.ids += first;
        lists.sequences = (int)count;
        if (i > 0 && op->kind == CARRY_CHAIN_DELTA) {
            CARRY_TRY(follow(c, op->layer, first, wave[i - 1], count));
        }
        CARRY_TRY(c->device->launch(lm->ctx, c->ordinal, stream, &part, &lists, i == 0));
    }
    return CARRY_OK;
}

carry_status carry_chain_run(carry_chain *c, carry_tensor logits, int64_t sequences, const int64_t *wave,
                             int64_t waves) {
    carry_lm *lm = c->lm;
    carry_stream *stream = carry_ctx_stream(lm->ctx, lm->own.device);
    carry_chain_lists lists = c->lists;
    if (sequences < 1 || sequences > c->lists.sequences) {
        return carry_fail(lm->ctx, CARRY_EARGUMENT, "a step of %lld sequences: at most %d are possible",
                          (long long)sequences, c->lists.sequences);
    }
    lists.sequences = (int)sequences;
    carry_chain_op *last = &c->ops[c->count - 1];
    if (c->head && last->kind == CARRY_CHAIN_TILES) {
        last->as.tiles.y = logits.data;
        last->as.tiles.y_stride = logits.stride[0];
    } else if (c->head) {
        last->as.product.y = logits.data;
        last->as.product.y_stride = (int)logits.stride[0];
    }
    for (int i = 0; i < c->count; i++) {
        const carry_chain_op *op = &c->ops[i];
        const bool in_waves = waves > 1 && (op->kind == CARRY_CHAIN_DELTA || op->kind == CARRY_CHAIN_ATTEND);
        CARRY_TRY(in_waves ? run_waves(c, op, wave, waves)
                           : c->device->launch(lm->ctx, c->ordinal, stream, op, &lists, i > 0));
    }
    return c->head ? CARRY_OK
                   : carry_linear(lm->ctx, logits, carry_slice(c->x, 0, sequences),
                                  carry_parameters_product(&lm->own, lm->head), false);
}
