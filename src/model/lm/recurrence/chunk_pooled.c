/* The delta rule in chunks for states in a pool. A call has one token of each of several sequences (steps), tokens
   of one sequence (a piece), or tokens of several (packed pieces). On a GPU all pieces of a call are packed: a piece
   alone would have one thread block for each head and 64 columns of its state, fewer than a GPU has multiprocessors. */
#include "core/error.h"
#include "core/tensor.h"
#include "model/lm/recurrence/chunk.h"
#include "ops/pool.h"

#define MOST_PACKED 32 /* packed pieces of one call of the delta rule; bounds the memory for their states */

carry_status carry_lm_chunk_open_pooled(void *opened, int64_t sequences) {
    carry_lm_chunk *m = opened;
    if (m->problem.device != 0) {
        carry_delta_problem one = m->problem;
        one.value = m->slice;
        const carry_delta_options named = {CARRY_INIT(carry_delta_options),
                                           .algorithm = m->plan->is_named ? m->plan->method->name : NULL};
        CARRY_TRY(carry_delta_plan_new(m->ctx, &m->pieces, &one, &named));
        m->packed = sequences < MOST_PACKED ? sequences : MOST_PACKED;
    }
    m->delta_workspace = carry_delta_plan_most_workspace(m->plan, sequences, m->problem.tokens);
    carry_arena count = carry_arena_over(NULL, 0);
    carry_lm_chunk_take_sums(m, &count, &(carry_lm_chunk_sums){0});
    return carry_arena_total(&count, &m->workspace)
               ? CARRY_OK
               : carry_fail(m->ctx, CARRY_ESIZE, "the workspace of a layer is larger than memory can be");
}

bool carry_lm_chunk_packs(const void *opened) {
    return ((const carry_lm_chunk *)opened)->packed > 0;
}

/* Tokens first..first+count-1 of a tensor [1, T, ...]. */
static carry_tensor tokens_of(carry_tensor rows, int64_t first, int64_t count) {
    if (rows.data == NULL) {
        return rows;
    }
    rows.data = (char *)rows.data + (size_t)(first * rows.stride[1]) * carry_dtype_size(rows.dtype);
    rows.shape[1] = count;
    return rows;
}

/* Packed pieces first..first+count-1 of a call, for one slice: their states are copied out of the pool and back. */
static carry_status some_pieces(carry_lm_chunk *m, const carry_lm_pooled_call *call,
                                const carry_delta_forward_args *args, carry_tensor pool, const carry_lm_chunk_sums *s,
                                int64_t first, int64_t count) {
    const int64_t from = call->borders[first];
    const int64_t tokens = call->borders[first + count] - from;
    const int64_t width = carry_tensor_count(&pool) / pool.shape[0];
    const carry_tensor rows = carry_reshape_2d(pool, pool.shape[0], width);
    const carry_tensor states = carry_slice(s->states, 0, count);
    int64_t borders[MOST_PACKED + 1];
    for (int64_t i = 0; i <= count; i++) {
        borders[i] = call->borders[first + i] - from;
    }
    carry_delta_forward_args one = *args;
    one.o = tokens_of(args->o, from, tokens);
    one.q = tokens_of(args->q, from, tokens);
    one.k = tokens_of(args->k, from, tokens);
    one.v = tokens_of(args->v, from, tokens);
    one.beta = tokens_of(args->beta, from, tokens);
    one.g = tokens_of(args->g, from, tokens);
    one.initial_state = one.final_state = states;
    one.cu_seqlens = carry_view_on(0, borders, CARRY_I64, 1, (const int64_t[]){count + 1});
    CARRY_TRY(carry_delta_plan_pack(m->pieces, count, tokens));
    CARRY_TRY(carry_take_slots(m->ctx, carry_reshape_2d(states, count, width), rows, call->slots + first));
    CARRY_TRY(carry_delta_forward(m->pieces, &one, s->rest, m->delta_workspace));
    return carry_put_slots(m->ctx, rows, carry_reshape_2d(states, count, width), call->slots + first);
}

static carry_status pooled_pieces(carry_lm_chunk *m, const carry_lm_pooled_call *call,
                                  const carry_delta_forward_args *args, const carry_lm_chunk_sums *s) {
    for (int64_t i = 0; i < m->slices; i++) {
        carry_delta_forward_args one = *args;
        one.o = carry_lm_chunk_slice_of(m, args->o, i);
        one.v = carry_lm_chunk_slice_of(m, args->v, i);
        for (int64_t first = 0; first < call->packed; first += m->packed) {
            const int64_t left = call->packed - first;
            CARRY_TRY(some_pieces(m, call, &one, carry_lm_chunk_state_of(m, &call->pool, i), s, first,
                                  left < m->packed ? left : m->packed));
        }
    }
    return CARRY_OK;
}

/* A plan has a ring where it has one token. Wide value heads, which are computed in slices, have none. */
size_t carry_lm_chunk_ring_bytes(void *opened, int64_t slots) {
    carry_lm_chunk *m = opened;
    return m->slices == 1 && carry_delta_plan_resize(m->plan, 1, 1) == CARRY_OK
               ? carry_delta_ring_bytes_of(m->plan, CARRY_LM_RING, slots)
               : 0;
}

carry_status carry_lm_chunk_fold(void *opened, carry_tensor pool, void *ring, int64_t slot) {
    carry_lm_chunk *m = opened;
    CARRY_TRY(carry_delta_plan_resize(m->plan, 1, 1));
    return carry_delta_ring_flush_slot(m->plan, pool, (carry_delta_ring_memory){.data = ring, .length = CARRY_LM_RING},
                                       slot);
}

carry_status carry_lm_chunk_pooled(void *opened, const carry_lm_pooled_call *call, const carry_delta_forward_args *args,
                                   void *workspace, size_t bytes) {
    carry_lm_chunk *m = opened;
    carry_lm_chunk_sums s = {0};
    CARRY_TRY(carry_lm_chunk_check_workspace(m, bytes));
    carry_arena arena = carry_arena_over(workspace, bytes);
    carry_lm_chunk_take_sums(m, &arena, &s);
    if (call->packed > 0) {
        return pooled_pieces(m, call, args, &s);
    }
    carry_delta_plan *plan = call->slots == NULL && m->pieces != NULL ? m->pieces : m->plan;
    CARRY_TRY(carry_delta_plan_resize(plan, call->batch, call->tokens));
    for (int64_t i = 0; i < m->slices; i++) {
        carry_delta_forward_args one = *args;
        carry_tensor states = carry_lm_chunk_state_of(m, &call->pool, i);
        one.o = carry_lm_chunk_slice_of(m, args->o, i);
        one.v = carry_lm_chunk_slice_of(m, args->v, i);
        if (call->slots != NULL && call->ring != NULL) {
            const carry_delta_ring_memory ring = {.data = call->ring, .length = CARRY_LM_RING};
            return carry_delta_step_ring_slots(plan, one.o, states, ring, call->slots, &one, s.rest,
                                               m->delta_workspace);
        }
        if (call->slots != NULL) {
            CARRY_TRY(carry_delta_step_slots(plan, one.o, states, call->slots, &one, s.rest, m->delta_workspace));
            continue;
        }
        one.initial_state = one.final_state = carry_slice(states, call->slot, 1);
        CARRY_TRY(call->tokens == 1 ? carry_delta_step(plan, one.o, one.final_state, &one, s.rest, m->delta_workspace)
                                    : carry_delta_forward(plan, &one, s.rest, m->delta_workspace));
    }
    return CARRY_OK;
}
