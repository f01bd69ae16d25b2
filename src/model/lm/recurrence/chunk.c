/* The delta rule in chunks, for tokens on this machine or split over ranks; a value head that is too wide is computed
   in slices. With more than one slice, the gradients of q, k, beta, g and of the gate's parameters are summed over
   slices. */
#include <stdlib.h>
#include <string.h>

#include "carry/ops.h"
#include "core/error.h"
#include "core/memory.h"
#include "core/tensor.h"
#include "model/lm/recurrence/chunk.h"

int64_t carry_lm_recurrence_slices(int64_t value) {
    int64_t slices = value > CARRY_MAX_DELTA_DIM ? (value + CARRY_MAX_DELTA_DIM - 1) / CARRY_MAX_DELTA_DIM : 1;
    while (value % slices != 0) {
        slices++;
    }
    return slices;
}

static carry_tensor take_rows(carry_arena *arena, const carry_delta_problem *p, int64_t heads, int64_t width) {
    const int64_t shape[] = {p->batch, p->tokens, heads, width};
    return carry_arena_tensor(arena, p->device, p->dtype, width > 0 ? 4 : 3, shape);
}

void carry_lm_chunk_take_sums(const carry_lm_chunk *m, carry_arena *arena, carry_lm_chunk_sums *s) {
    const carry_delta_problem *p = &m->problem;
    if (m->slices > 1) {
        int64_t heads = p->value_heads;
        s->dq = take_rows(arena, p, p->heads, p->key);
        s->dk = take_rows(arena, p, p->heads, p->key);
        s->dbeta = take_rows(arena, p, heads, 0);
        s->dg = take_rows(arena, p, heads, 0);
        s->dA_log = carry_arena_tensor(arena, p->device, CARRY_F32, 1, &heads);
        s->ddt_bias = carry_arena_tensor(arena, p->device, CARRY_F32, 1, &heads);
    }
    if (m->packed > 0) {
        const int64_t shape[] = {m->packed, p->value_heads, p->key, m->slice};
        s->states = carry_arena_tensor(arena, p->device, CARRY_F32, 4, shape);
    }
    s->rest = carry_arena_take(arena, m->delta_workspace, 1);
    s->rest_bytes = m->delta_workspace;
}

static void close_mixing(void *opened) {
    carry_lm_chunk *m = opened;
    if (m != NULL) {
        carry_delta_plan_free(m->plan);
        carry_delta_plan_free(m->pieces);
        carry_delta_ranks_plan_free(m->ranks);
        free(m);
    }
}

/* Sets the sizes of memory; needs the plan of a slice. */
static carry_status measure(carry_lm_chunk *m) {
    size_t kept, forward, backward;
    if (m->ranks != NULL) {
        m->keeps = true;
        forward = carry_delta_ranks_forward_workspace(m->ranks);
        backward = carry_delta_ranks_backward_workspace(m->ranks);
        kept = carry_delta_ranks_kept_bytes(m->ranks);
    } else {
        m->keeps = strcmp(carry_delta_plan_algorithm(m->plan), "recurrent") != 0;
        forward = carry_delta_forward_workspace(m->plan);
        backward = carry_delta_backward_workspace(m->plan);
        kept = carry_delta_kept_bytes(m->plan);
    }
    m->delta_workspace = forward > backward ? forward : backward;
    m->kept_slice = (kept + CARRY_ALIGN - 1) / CARRY_ALIGN * CARRY_ALIGN;
    carry_arena count = carry_arena_over(NULL, 0);
    carry_lm_chunk_take_sums(m, &count, &(carry_lm_chunk_sums){0});
    return carry_arena_total(&count, &m->workspace)
               ? CARRY_OK
               : carry_fail(m->ctx, CARRY_ESIZE, "the workspace of a layer is larger than memory can be");
}

/* over NULL: on this machine, with the named method. */
static carry_status open_either(carry_ctx *ctx, void **opened, const carry_delta_problem *problem, const char *method,
                                const carry_lm_ranks_options *over) {
    *opened = NULL;
    carry_lm_chunk *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: a recurrence");
    }
    m->ctx = ctx;
    m->problem = *problem;
    m->slices = carry_lm_recurrence_slices(problem->value);
    m->slice = m->slices > 0 ? problem->value / m->slices : problem->value;
    carry_delta_problem one = *problem;
    one.value = m->slice;
    carry_status status;
    if (over != NULL) {
        m->comm = over->comm;
        carry_delta_ranks_options delta = over->delta;
        delta.size = sizeof delta;
        status = carry_delta_ranks_plan_new(over->comm, &m->ranks, &one, &delta);
    } else {
        status = carry_delta_plan_new(ctx, &m->plan, &one,
                                      &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = method});
    }
    if (status == CARRY_OK) {
        status = measure(m);
    }
    if (status != CARRY_OK) {
        close_mixing(m);
        return status;
    }
    *opened = m;
    return CARRY_OK;
}

static carry_status open_mixing(carry_ctx *ctx, void **opened, const carry_delta_problem *problem,
                                const void *options) {
    return open_either(ctx, opened, problem, options, NULL);
}

static carry_status open_ranks(carry_ctx *ctx, void **opened, const carry_delta_problem *problem, const void *options) {
    *opened = NULL;
    if (options == NULL) {
        return carry_fail(ctx, CARRY_EARGUMENT, "a recurrence over ranks needs a communicator");
    }
    return open_either(ctx, opened, problem, NULL, options);
}

static const char *plan_line(const void *opened) {
    const carry_lm_chunk *m = opened;
    return m->ranks != NULL ? carry_delta_ranks_plan_about(m->ranks) : carry_delta_plan_about(m->plan);
}

static size_t workspace_bytes(const void *opened) {
    return ((const carry_lm_chunk *)opened)->workspace;
}

static size_t kept_bytes(const void *opened) {
    const carry_lm_chunk *m = opened;
    return m->keeps ? m->kept_slice * (size_t)m->slices : 0;
}

/* Slice `index` of the columns of every head of v, o or their gradients. */
carry_tensor carry_lm_chunk_slice_of(const carry_lm_chunk *m, carry_tensor tensor, int64_t index) {
    if (m->slices > 1) {
        tensor.data = (unsigned char *)tensor.data + (size_t)(index * m->slice) * carry_dtype_size(tensor.dtype);
        tensor.shape[3] = m->slice;
    }
    return tensor;
}

carry_tensor carry_lm_chunk_state_of(const carry_lm_chunk *m, const carry_tensor *state, int64_t index) {
    const int64_t *s = state->shape;
    const carry_tensor slices = carry_reshape_2d(*state, m->slices, s[0] * s[1] * s[2] * m->slice);
    return carry_reshape_4d(carry_slice(slices, index, 1), s[0], s[1], s[2], m->slice);
}

static carry_status forward_slice(carry_lm_chunk *m, const carry_delta_forward_args *args, int64_t index,
                                  void *workspace) {
    carry_tensor initial;
    carry_tensor final;
    carry_delta_forward_args one = *args;
    one.o = carry_lm_chunk_slice_of(m, args->o, index);
    one.v = carry_lm_chunk_slice_of(m, args->v, index);
    if (args->initial_state.data != NULL) {
        initial = carry_lm_chunk_state_of(m, carry_delta_given(&args->initial_state), index);
        one.initial_state = initial;
    }
    if (args->final_state.data != NULL) {
        final = carry_lm_chunk_state_of(m, carry_delta_given(&args->final_state), index);
        one.final_state = final;
    }
    one.kept = args->kept != NULL && m->keeps ? (unsigned char *)args->kept + (size_t)index * m->kept_slice : NULL;
    if (m->ranks != NULL) {
        return carry_delta_ranks_forward(m->ranks, &one, workspace, m->delta_workspace);
    }
    bool in_place = args->initial_state.data != NULL && args->final_state.data != NULL && initial.data == final.data;
    if (m->problem.tokens == 1 && m->problem.sequences == 0 && in_place) {
        return carry_delta_step(m->plan, one.o, final, &one, workspace, m->delta_workspace);
    }
    return carry_delta_forward(m->plan, &one, workspace, m->delta_workspace);
}

carry_status carry_lm_chunk_check_workspace(const carry_lm_chunk *m, size_t bytes) {
    return bytes >= m->workspace
               ? CARRY_OK
               : carry_fail(m->ctx, CARRY_EWORKSPACE, "a layer's workspace has %zu of %zu bytes", bytes, m->workspace);
}

static carry_status forward(void *opened, const carry_delta_forward_args *args, void *workspace, size_t bytes) {
    carry_lm_chunk *m = opened;
    carry_lm_chunk_sums s = {0};
    CARRY_TRY(carry_lm_chunk_check_workspace(m, bytes));
    carry_arena arena = carry_arena_over(workspace, bytes);
    carry_lm_chunk_take_sums(m, &arena, &s);
    for (int64_t i = 0; i < m->slices; i++) {
        CARRY_TRY(forward_slice(m, args, i, s.rest));
    }
    return CARRY_OK;
}

static carry_status add(const carry_lm_chunk *m, const carry_tensor *to, carry_tensor from) {
    return to != NULL ? carry_elementwise(m->ctx, *to, *to, from, CARRY_ADD) : CARRY_OK;
}

static carry_status backward_slice(carry_lm_chunk *m, const carry_delta_backward_args *args, int64_t index,
                                   const carry_lm_chunk_sums *s) {
    carry_tensor initial;
    carry_delta_backward_args one = *args;
    one.v = carry_lm_chunk_slice_of(m, args->v, index);
    one.dv = carry_lm_chunk_slice_of(m, args->dv, index);
    one.d_o = carry_lm_chunk_slice_of(m, args->d_o, index);
    if (args->initial_state.data != NULL) {
        initial = carry_lm_chunk_state_of(m, carry_delta_given(&args->initial_state), index);
        one.initial_state = initial;
    }
    one.kept =
        args->kept != NULL && m->keeps ? (const unsigned char *)args->kept + (size_t)index * m->kept_slice : NULL;
    if (index > 0) {
        one.dq = s->dq;
        one.dk = s->dk;
        one.dbeta = s->dbeta;
        one.dg = args->dg.data != NULL ? s->dg : (carry_tensor){0};
        one.dA_log = args->dA_log.data != NULL ? s->dA_log : (carry_tensor){0};
        one.ddt_bias = args->ddt_bias.data != NULL ? s->ddt_bias : (carry_tensor){0};
    }
    CARRY_TRY(m->ranks != NULL ? carry_delta_ranks_backward(m->ranks, &one, s->rest, s->rest_bytes)
                               : carry_delta_backward(m->plan, &one, s->rest, s->rest_bytes));
    if (index > 0) {
        CARRY_TRY(add(m, &args->dq, s->dq));
        CARRY_TRY(add(m, &args->dk, s->dk));
        CARRY_TRY(add(m, &args->dbeta, s->dbeta));
        CARRY_TRY(add(m, carry_delta_given(&args->dg), s->dg));
        CARRY_TRY(add(m, carry_delta_given(&args->dA_log), s->dA_log));
        CARRY_TRY(add(m, carry_delta_given(&args->ddt_bias), s->ddt_bias));
    }
    return CARRY_OK;
}

static carry_status backward(void *opened, const carry_delta_backward_args *args, void *workspace, size_t bytes) {
    carry_lm_chunk *m = opened;
    carry_lm_chunk_sums s = {0};
    CARRY_TRY(carry_lm_chunk_check_workspace(m, bytes));
    if (args->dinitial_state.data != NULL || args->dfinal_state.data != NULL) {
        return carry_fail(m->ctx, CARRY_EUNSUPPORTED, "a layer has no gradients of states");
    }
    carry_arena arena = carry_arena_over(workspace, bytes);
    carry_lm_chunk_take_sums(m, &arena, &s);
    for (int64_t i = 0; i < m->slices; i++) {
        CARRY_TRY(backward_slice(m, args, i, &s));
    }
    return CARRY_OK;
}

/* Zeroes the rows of `before` that belong to a sequence which ended before this rank's first token. The convolution
   handles starts of sequences among its own tokens, but does not check the halo. */
static carry_status forget_other_sequences(const carry_lm_chunk *m, carry_tensor before, carry_tensor cu_seqlens) {
    const int64_t *starts = cu_seqlens.data;
    int64_t window = before.shape[1];
    int64_t others = 0;
    for (int64_t i = 0; starts != NULL && i + 1 < cu_seqlens.shape[0]; i++) {
        int64_t ago = m->ranks->first - starts[i];
        if (ago >= 0 && ago < window) {
            others = window - ago; /* starts never decrease: the last one counts */
        }
    }
    const size_t bytes = (size_t)(others * before.shape[2]) * sizeof(float); /* packed: a batch of one */
    return others > 0 ? carry_device_fill(m->ctx, before.data, before.device, 0, bytes,
                                          carry_ctx_stream(m->ctx, before.device))
                      : CARRY_OK;
}

static carry_status halo(void *opened, carry_tensor before, carry_tensor x, carry_tensor cu_seqlens) {
    carry_lm_chunk *m = opened;
    CARRY_TRY(carry_halo_forward(m->comm, before, x));
    return forget_other_sequences(m, before, cu_seqlens);
}

static carry_status halo_backward(void *opened, carry_tensor dx, carry_tensor dbefore, carry_tensor cu_seqlens) {
    carry_lm_chunk *m = opened;
    CARRY_TRY(forget_other_sequences(m, dbefore, cu_seqlens));
    return carry_halo_backward(m->comm, dx, dbefore);
}

const carry_lm_recurrence carry_lm_recurrence_chunk = {
    .name = "chunk",
    .about = "the delta rule by chunks, as matrix products",
    .open = open_mixing,
    .close = close_mixing,
    .plan = plan_line,
    .workspace = workspace_bytes,
    .kept = kept_bytes,
    .forward = forward,
    .backward = backward,
    .open_pooled = carry_lm_chunk_open_pooled,
    .pooled = carry_lm_chunk_pooled,
    .packs = carry_lm_chunk_packs,
    .ring_bytes = carry_lm_chunk_ring_bytes,
    .fold = carry_lm_chunk_fold,
};

const carry_lm_recurrence carry_lm_recurrence_ranks = {
    .name = "ranks",
    .about = "the delta rule by chunks, tokens split over ranks",
    .open = open_ranks,
    .close = close_mixing,
    .plan = plan_line,
    .workspace = workspace_bytes,
    .kept = kept_bytes,
    .forward = forward,
    .backward = backward,
    .halo = halo,
    .halo_backward = halo_backward,
};
