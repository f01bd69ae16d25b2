/* The delta rule over ranks on a GPU: calls of the one-rank plan, with exchanges of states between ranks.

   All heads go together, to fill the GPU. L is the final state of a forward pass from zero. M is the final state of a
   pass from the identity with K columns whose v is zero. The outputs of that second pass, times the state that enters,
   are missing in the outputs of the first pass. They are added by a product instead of a third pass, unless o is not
   packed or the caller asks for `kept`, which only a pass from the right state can fill. In the backward pass, L is the
   gradient of the state that entered, from a pass in which no gradient arrives; the pass that follows overwrites its
   other results. Passes run on the context's stream, the exchange on a separate stream (scan/all_scan).

   A rank's sequences keep their indices among all sequences: those without tokens on this rank are empty in its plan.
 */
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/context.h"
#include "core/error.h"
#include "core/tensor.h"
#include "delta/ranks_split.h"

#define LINE 256 /* alignment in bytes of each piece of memory */

typedef struct memory {
    float *L, *state, *M;
    float *entering, *ending; /* [sequences]: states, or their gradients */
    void *scan, *o, *inner;
    size_t inner_bytes;
} memory;

typedef struct call {
    carry_delta_ranks_plan *plan;
    const carry_delta_forward_args *forward; /* one of the two is NULL */
    const carry_delta_backward_args *backward;
    const int64_t *borders; /* borders of the whole row of packed sequences, or NULL */
    /* The sequence that continues from the previous rank, and the one that continues on the next; -1: none. */
    int64_t entered, left;
    carry_all_scan_role role;
    memory at;
    float *kept_states; /* states that entered; in the kept memory */
} call;

static int64_t sequences_of(const carry_delta_ranks_plan *plan) {
    return plan->problem.sequences > 0 ? plan->problem.sequences : plan->problem.batch;
}

static size_t state_floats(const carry_delta_ranks_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return (size_t)(p->value_heads * p->key * p->value);
}

static size_t lines(size_t bytes) {
    return (bytes + LINE - 1) / LINE * LINE;
}

/* The offset in the kept memory of M and of the states that entered, after the data that the one-rank plan keeps. */
static size_t maps_at(const carry_delta_ranks_plan *plan) {
    return lines(plan->inner != NULL ? plan->inner->kept : 0);
}

static size_t maps_bytes(const carry_delta_ranks_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return plan->chained ? lines((size_t)(plan->chains * p->value_heads * p->key * p->key) * sizeof(float)) : 0;
}

static void take(const carry_delta_ranks_plan *plan, carry_arena *arena, memory *at) {
    const carry_delta_problem *p = &plan->problem;
    const size_t chain = plan->chained ? (size_t)plan->chains * state_floats(plan) : 0;
    const size_t all = (size_t)sequences_of(plan) * state_floats(plan);
    size_t scan = 0, inner = 0;
    if (plan->chained) {
        const size_t forth = carry_all_scan_run_workspace(plan->forward[0]);
        const size_t back = carry_all_scan_run_workspace(plan->backward[0]);
        scan = forth > back ? forth : back;
    }
    const carry_delta_plan *plans[] = {plan->inner, plan->maps};
    for (int i = 0; i < 2; i++) {
        const size_t forth = plans[i] != NULL ? plans[i]->forward_workspace : 0;
        const size_t back = plans[i] != NULL ? plans[i]->backward_workspace : 0;
        inner = forth > inner ? forth : inner;
        inner = back > inner ? back : inner;
    }
    at->L = carry_arena_take(arena, chain, sizeof(float));
    at->state = carry_arena_take(arena, chain, sizeof(float));
    at->M = carry_arena_take(arena, maps_bytes(plan), 1);
    at->entering = carry_arena_take(arena, all, sizeof(float));
    at->ending = carry_arena_take(arena, all, sizeof(float));
    at->o = carry_arena_take(arena, plan->maps != NULL ? (size_t)(p->batch * p->tokens * p->value_heads * p->key) : 0,
                             carry_dtype_size(p->dtype));
    at->scan = carry_arena_take(arena, scan, 1);
    at->inner = carry_arena_take(arena, inner + LINE, 1);
    at->inner_bytes = inner + LINE;
}

/* Allocates zeros for v, and the identity for every head. */
static carry_status make_constants(carry_delta_ranks_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    carry_ctx *ctx = plan->ctx;
    const int64_t heads = plan->chains * p->value_heads, key = p->key;
    const size_t bytes = (size_t)(heads * key * key) * sizeof(float);
    const size_t values = (size_t)(p->batch * p->tokens * p->value_heads * key) * carry_dtype_size(p->dtype);
    float *host = calloc(1, bytes);
    if (host == NULL) {
        return carry_fail(ctx, CARRY_EMEMORY, "out of memory: the identity of %lld heads", (long long)heads);
    }
    for (int64_t i = 0; i < heads * key; i++) {
        host[i * key + i % key] = 1.0f;
    }
    carry_status status = carry_device_alloc(ctx, &plan->identity, p->device, bytes);
    if (status == CARRY_OK) {
        status = carry_device_copy(ctx, plan->identity, p->device, host, 0, bytes, NULL);
    }
    if (status == CARRY_OK) {
        status = carry_device_alloc(ctx, &plan->zeros, p->device, values);
    }
    if (status == CARRY_OK) {
        status = carry_device_fill(ctx, plan->zeros, p->device, 0, values, NULL);
    }
    if (status == CARRY_OK) {
        status = carry_stream_wait(ctx, p->device, NULL);
    }
    free(host);
    return status;
}

carry_status carry_delta_ranks_device_fill(carry_delta_ranks_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    memory at;
    carry_arena arena = carry_arena_over(NULL, 0);
    plan->borders = calloc((size_t)p->sequences + 1, sizeof *plan->borders);
    if (plan->borders == NULL) {
        return carry_fail(plan->ctx, CARRY_EMEMORY, "out of memory: a plan");
    }
    if (p->tokens > 0 && plan->chained && !plan->split && !plan->is_first && !plan->is_last) { /* M may be needed */
        carry_delta_problem maps = *p;
        maps.value = p->key;
        maps.sequences = 0;
        CARRY_TRY(carry_delta_plan_new(plan->ctx, &plan->maps, &maps, NULL));
        CARRY_TRY(make_constants(plan));
    }
    CARRY_TRY(carry_event_new(plan->ctx, &plan->started, p->device));
    CARRY_TRY(carry_event_new(plan->ctx, &plan->stopped, p->device));
    if (!plan->split) {
        take(plan, &arena, &at);
    }
    if (plan->split ? !carry_delta_ranks_split_bytes(plan, &plan->workspace)
                    : !carry_arena_total(&arena, &plan->workspace)) {
        return carry_fail(plan->ctx, CARRY_ESIZE, "the workspace of this problem is larger than memory can be");
    }
    plan->kept = maps_at(plan) + maps_bytes(plan) + (size_t)sequences_of(plan) * state_floats(plan) * sizeof(float);
    return CARRY_OK;
}

void carry_delta_ranks_device_free(carry_delta_ranks_plan *plan) {
    const int device = plan->problem.device;
    if (plan->started != NULL) {
        (void)carry_stream_wait(plan->ctx, device, carry_ctx_stream(plan->ctx, device));
    }
    carry_delta_plan_free(plan->maps);
    carry_device_free(plan->ctx, device, plan->identity);
    carry_device_free(plan->ctx, device, plan->zeros);
    carry_event_free(plan->ctx, device, plan->started);
    carry_event_free(plan->ctx, device, plan->stopped);
    free(plan->borders);
}

static carry_status copy(const call *c, float *to, const float *from, size_t floats) {
    const int device = c->plan->problem.device;
    carry_stream *stream = carry_ctx_stream(c->plan->ctx, device);
    return from != NULL ? carry_device_copy(c->plan->ctx, to, device, from, device, floats * sizeof(float), stream)
                        : carry_device_fill(c->plan->ctx, to, device, 0, floats * sizeof(float), stream);
}

/* Copies the states that cross a border into the array of all sequences' states, or out of it: one state of a packed
   row, or those of the whole batch. If from is NULL, writes zeros. */
static carry_status put_chain(const call *c, float *states, int64_t sequence, const float *from) {
    const size_t floats = state_floats(c->plan);
    return c->borders != NULL ? copy(c, states + (size_t)sequence * floats, from, floats)
                              : copy(c, states, from, (size_t)c->plan->chains * floats);
}

static carry_status get_chain(const call *c, float *to, const float *states, int64_t sequence) {
    const size_t floats = state_floats(c->plan);
    return c->borders != NULL ? copy(c, to, states + (size_t)sequence * floats, floats)
                              : copy(c, to, states, (size_t)c->plan->chains * floats);
}

static carry_tensor states_view(const call *c, float *data) {
    const carry_delta_problem *p = &c->plan->problem;
    const int64_t shape[] = {sequences_of(c->plan), p->value_heads, p->key, p->value};
    return carry_view_on(p->device, data, CARRY_F32, 4, shape);
}

static carry_tensor local_borders(const call *c) {
    return c->borders != NULL ? carry_view_1d(c->plan->borders, CARRY_I64, c->plan->problem.sequences + 1)
                              : (carry_tensor){0};
}

static carry_status forward_pass(const call *c, void *kept) {
    carry_delta_forward_args args = *c->forward;
    args.initial_state = states_view(c, c->at.entering);
    args.final_state = states_view(c, c->at.ending);
    args.cu_seqlens = local_borders(c);
    args.kept = kept;
    return carry_delta_forward(c->plan->inner, &args, c->at.inner, c->at.inner_bytes);
}

/* at.entering holds the gradients of states that end on this rank; at.ending receives those of states that start. */
static carry_status backward_pass(const call *c) {
    carry_delta_backward_args args = *c->backward;
    args.initial_state = states_view(c, c->kept_states);
    args.dfinal_state = states_view(c, c->at.entering);
    args.dinitial_state = states_view(c, c->at.ending);
    args.cu_seqlens = local_borders(c);
    return carry_delta_backward(c->plan->inner, &args, c->at.inner, c->at.inner_bytes);
}

/* Computes M of this rank's tokens. */
static carry_status map_pass(const call *c, float *M) {
    const carry_delta_problem *p = &c->plan->maps->problem;
    const int64_t maps[] = {p->batch, p->value_heads, p->key, p->key};
    const int64_t rows[] = {p->batch, p->tokens, p->value_heads, p->key};
    carry_delta_forward_args args = *c->forward;
    args.v = carry_view_on(p->device, c->plan->zeros, p->dtype, 4, rows);
    args.o = carry_view_on(p->device, c->at.o, p->dtype, 4, rows);
    args.initial_state = carry_view_on(p->device, c->plan->identity, CARRY_F32, 4, maps);
    args.final_state = carry_view_on(p->device, M, CARRY_F32, 4, maps);
    args.cu_seqlens = (carry_tensor){0};
    args.kept = NULL;
    return carry_delta_forward(c->plan->maps, &args, c->at.inner, c->at.inner_bytes);
}

/* Finds the sequences that cross this rank's borders. */
static void find_crossing(call *c) {
    carry_delta_ranks_plan *plan = c->plan;
    const carry_delta_problem *p = &plan->problem;
    const int64_t first = plan->first, last = plan->first + p->tokens;
    c->entered = c->left = -1;
    if (c->borders == NULL && p->tokens > 0) {
        c->entered = plan->is_first ? -1 : 0;
        c->left = plan->is_last ? -1 : 0;
    }
    for (int64_t i = 0; i <= p->sequences && c->borders != NULL; i++) {
        const int64_t at = c->borders[i], inside = at < first ? 0 : at > last ? p->tokens : at - first;
        plan->borders[i] = inside;
        if (i < p->sequences && p->tokens > 0) {
            const int64_t next = c->borders[i + 1];
            c->entered = at < first && next > first ? i : c->entered;
            c->left = at < last && next > last ? i : c->left;
        }
    }
    const bool through = c->entered >= 0 && c->entered == c->left;
    c->role = p->tokens == 0 ? CARRY_ALL_SCAN_PASS : through ? CARRY_ALL_SCAN_MAP : CARRY_ALL_SCAN_CUT;
}

/* Runs the exchange on the context's stream. The state that arrives is written to at.state. */
static carry_status exchange(call *c, float *M) {
    const carry_delta_problem *p = &c->plan->problem;
    carry_all_scan_plan *scan = c->backward != NULL ? c->plan->backward[0] : c->plan->forward[0];
    const int64_t state[] = {c->plan->chains * p->value_heads, p->key, p->value};
    const int64_t map[] = {c->plan->chains * p->value_heads, p->key, p->key};
    const carry_all_scan_args args = {.role = c->role,
                                      .state = carry_view_on(p->device, c->at.state, CARRY_F32, 3, state),
                                      .L = carry_view_on(p->device, c->at.L, CARRY_F32, 3, state),
                                      .M = carry_view_on(p->device, M, CARRY_F32, 3, map)};
    c->plan->last_scan = scan;
    return carry_all_scan_run(scan, &args, c->at.scan, carry_all_scan_run_workspace(scan));
}

/* True if sequence i has tokens on this rank and ends (starts) here. */
static bool ends_here(const call *c, int64_t i) {
    return c->borders != NULL ? c->plan->borders[i] < c->plan->borders[i + 1] && i != c->left : c->left < 0;
}

static bool starts_here(const call *c, int64_t i) {
    return c->borders != NULL ? c->plan->borders[i] < c->plan->borders[i + 1] && i != c->entered : c->entered < 0;
}

/* to[i] = from[i] for the sequences that end (or start) on this rank, or zero if from is NULL. */
static carry_status copy_states(const call *c, float *to, const float *from, bool (*here)(const call *, int64_t)) {
    const size_t floats = state_floats(c->plan);
    for (int64_t i = 0; i < sequences_of(c->plan) && c->plan->problem.tokens > 0 && to != NULL; i++) {
        if (here(c, i)) {
            CARRY_TRY(copy(c, to + (size_t)i * floats, from != NULL ? from + (size_t)i * floats : NULL, floats));
        }
    }
    return CARRY_OK;
}

static carry_status start_states(const call *c, const carry_tensor *given, bool (*here)(const call *, int64_t)) {
    CARRY_TRY(copy(c, c->at.entering, NULL, (size_t)sequences_of(c->plan) * state_floats(c->plan)));
    return given->data != NULL ? copy_states(c, c->at.entering, given->data, here) : CARRY_OK;
}

static carry_status run_forward(call *c, float *M) {
    const carry_delta_ranks_plan *plan = c->plan;
    void *kept = c->forward->kept;
    bool done = plan->problem.tokens == 0;
    CARRY_TRY(start_states(c, &c->forward->initial_state, starts_here));
    if (c->left >= 0) {
        done = c->entered < 0;
        CARRY_TRY(forward_pass(c, done ? kept : NULL));
        CARRY_TRY(get_chain(c, c->at.L, c->at.ending, c->left));
        if (c->role == CARRY_ALL_SCAN_MAP) {
            CARRY_TRY(map_pass(c, M));
        }
    } else if (plan->chained) {
        CARRY_TRY(put_chain(&(call){.plan = c->plan}, c->at.L, 0, NULL)); /* no rank uses it, but it must be defined */
    }
    if (plan->chained) {
        CARRY_TRY(exchange(c, M));
    }
    if (c->entered >= 0) {
        CARRY_TRY(put_chain(c, c->at.entering, c->entered, c->at.state));
    }
    if (c->role == CARRY_ALL_SCAN_MAP && kept == NULL && carry_tensor_is_packed(&c->forward->o, 0)) {
        CARRY_TRY(carry_delta_ranks_correct(plan, c->forward->o.data, c->at.o, c->at.state));
    } else if (!done) {
        CARRY_TRY(forward_pass(c, kept));
    }
    if (kept != NULL) {
        CARRY_TRY(copy(c, c->kept_states, c->at.entering, (size_t)sequences_of(plan) * state_floats(plan)));
    }
    return copy_states(c, c->forward->final_state.data, c->at.ending, ends_here);
}

static carry_status run_backward(call *c, float *M) {
    const carry_delta_ranks_plan *plan = c->plan;
    bool done = plan->problem.tokens == 0;
    CARRY_TRY(start_states(c, &c->backward->dfinal_state, ends_here));
    if (c->entered >= 0) {
        done = c->left < 0;
        CARRY_TRY(backward_pass(c));
        CARRY_TRY(get_chain(c, c->at.L, c->at.ending, c->entered));
    } else if (plan->chained) {
        CARRY_TRY(put_chain(&(call){.plan = c->plan}, c->at.L, 0, NULL));
    }
    if (plan->chained) {
        CARRY_TRY(exchange(c, M));
    }
    if (c->left >= 0) {
        CARRY_TRY(put_chain(c, c->at.entering, c->left, c->at.state));
    }
    if (!done) {
        CARRY_TRY(backward_pass(c));
    }
    return copy_states(c, c->backward->dinitial_state.data, c->at.ending, starts_here);
}

static carry_status clear_heads(const call *c, const carry_tensor *heads) {
    return heads->data != NULL ? copy(c, heads->data, NULL, (size_t)c->plan->problem.value_heads) : CARRY_OK;
}

static carry_status run(call *c, void *workspace, size_t bytes, const void *kept) {
    carry_delta_ranks_plan *plan = c->plan;
    const int device = plan->problem.device;
    const double start = carry_seconds();
    carry_delta_borders_check check;
    carry_arena arena = carry_arena_over(workspace, bytes);
    if (!plan->split) {
        take(plan, &arena, &c->at);
    }
    find_crossing(c);
    c->kept_states = kept != NULL ? (float *)((uintptr_t)kept + maps_at(plan) + maps_bytes(plan)) : NULL;
    float *kept_maps = kept != NULL ? (float *)((uintptr_t)kept + maps_at(plan)) : NULL;
    float *M = kept_maps != NULL ? kept_maps : c->at.M;
    CARRY_TRY(carry_event_record(plan->ctx, device, plan->started, carry_ctx_stream(plan->ctx, device)));
    carry_status status = carry_delta_borders_begin(plan, c->borders, c->backward != NULL, &check);
    if (status == CARRY_OK && c->backward != NULL && plan->inner == NULL) {
        status = clear_heads(c, &c->backward->dA_log);
        status = status == CARRY_OK ? clear_heads(c, &c->backward->ddt_bias) : status;
    }
    if (status == CARRY_OK && plan->split) {
        const carry_delta_ranks_call split = {.forward = c->forward,
                                              .backward = c->backward,
                                              .role = c->role,
                                              .kept_states = c->kept_states,
                                              .M = kept_maps};
        status = carry_delta_ranks_split_run(plan, &split, workspace, bytes);
    } else if (status == CARRY_OK) {
        status = c->backward != NULL ? run_backward(c, M) : run_forward(c, M);
    }
    plan->is_broken = status != CARRY_OK;
    const carry_status agreed = carry_delta_borders_end(plan, &check);
    plan->is_broken = plan->is_broken || agreed != CARRY_OK;
    plan->seconds = carry_seconds() - start;
    CARRY_TRY(status);
    CARRY_TRY(agreed);
    return carry_event_record(plan->ctx, device, plan->stopped, carry_ctx_stream(plan->ctx, device));
}

carry_status carry_delta_ranks_device_forward(carry_delta_ranks_plan *plan, const carry_delta_forward_args *args,
                                              void *workspace, size_t bytes) {
    call c = {.plan = plan, .forward = args, .borders = args->cu_seqlens.data};
    return run(&c, workspace, bytes, args->kept);
}

carry_status carry_delta_ranks_device_backward(carry_delta_ranks_plan *plan, const carry_delta_backward_args *args,
                                               void *workspace, size_t bytes) {
    call c = {.plan = plan, .backward = args, .borders = args->cu_seqlens.data};
    return run(&c, workspace, bytes, args->kept);
}
