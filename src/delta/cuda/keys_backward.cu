/* The backward pass of "keys64": its kernels (keys_back.cuh) over parts of the problem, so that the workspace stays
   below one and a half times the inputs: fewer heads at a time where one sequence has no room with all of them, and as many
   sequences at a time as then have room. */
#include <stddef.h>
#include <string.h>

extern "C" {
#include "core/context.h"
#include "core/span.h"
}
#include "delta/cuda/keys_gradients.cuh"
#include "device/cuda.h"

namespace {

constexpr double MOST = 1.497, LARGE = 32e6; /* times the inputs; a workspace below this many bytes is not cut */

/* How it is cut: value heads and slots at a time. */
struct cut {
    int64_t heads, slots;
};

/* What lies in the workspace; the same lines count it and carve it. */
struct layout {
    int64_t *borders;
    float *part_beta, *part_q, *part_k;
    char *pages;
    uint16_t *states, *dstates, *values;
};

int64_t columns_of(const carry_delta_problem *p) {
    return (p->value + 63) / 64 * 64;
}
size_t page_bytes(const carry_delta_problem *p) {
    return p->key <= 64 ? sizeof(delta_keys::back_page<64>) : sizeof(delta_keys::back_page<128>);
}
size_t state_bytes(const carry_delta_problem *p) {
    return (size_t)(columns_of(p) * (p->key <= 64 ? 64 : 128)) * sizeof(uint16_t);
}
/* x of a chunk takes the place of its q and of its k that is left: they follow each other, and the walk back was their
   last reader. 0: it has no room there. */
size_t room_in_page(const carry_delta_problem *p) {
    return columns_of(p) > 2 * (p->key <= 64 ? 64 : 128) ? 0
           : p->key <= 64                                ? offsetof(delta_keys::back_page<64>, faded_q)
                                                         : offsetof(delta_keys::back_page<128>, faded_q);
}
size_t value_bytes(const carry_delta_problem *p) {
    return room_in_page(p) > 0 ? 0 : (size_t)(CARRY_DELTA_KEEP * columns_of(p)) * sizeof(uint16_t);
}
int64_t slots_before(const carry_delta_plan *plan, const int64_t *borders, int64_t sequence) {
    return (borders != NULL ? borders[sequence] : sequence * plan->problem.tokens) / CARRY_DELTA_KEEP + sequence;
}

/* q, k, v, do and gates in f32. */
double inputs_of(const carry_delta_problem *p) {
    return (double)(p->batch * p->tokens) *
           (4.0 * (double)(p->heads * p->key + p->value_heads * p->value) + 4.0 * (double)(p->value_heads * p->key));
}

/* As many heads as have room with the slots of one sequence, which may be all tokens; then as many slots as there is
   room for. Borders are not known to a plan. */
cut cut_of(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    const double tokens = (double)(p->batch * p->tokens), K = (double)p->key;
    const double most = MOST * inputs_of(p) > LARGE ? MOST * inputs_of(p) : LARGE;
    const double left = most - 8.0 * (double)(plan->sequences + 1) - 4.0 * tokens * (double)p->value_heads - 4096.0;
    const double chunk = (double)(page_bytes(p) + 2 * state_bytes(p) + value_bytes(p));
    const int64_t all = p->batch * p->tokens / CARRY_DELTA_KEEP + plan->sequences;
    const int64_t one = p->tokens / CARRY_DELTA_KEEP + 2, least = all < one ? all : one;
    cut c = {plan->group, least};
    for (int64_t rounds = 1; rounds <= p->heads; rounds++) {
        const int64_t heads = (p->heads + rounds - 1) / rounds * plan->group;
        const double each = left / (double)heads - (plan->group > 1 ? 8.0 * tokens * K : 0.0);
        if (each >= chunk * (double)least) {
            c.heads = heads;
            c.slots = each < chunk * (double)all ? (int64_t)(each / chunk) : all;
            break;
        }
    }
    return c;
}

layout take(const carry_delta_plan *plan, cut c, carry_arena *arena, bool states) {
    const carry_delta_problem *p = &plan->problem;
    layout l;
    size_t tokens = (size_t)(p->batch * p->tokens), chunks = (size_t)(c.heads * c.slots);
    size_t parts = plan->group > 1 ? tokens * (size_t)(c.heads * p->key) : 0;
    size_t count = p->sequences > 0 ? (size_t)plan->sequences + 1 : 0;
    l.borders = (int64_t *)carry_arena_take(arena, count, sizeof(int64_t));
    l.part_beta = (float *)carry_arena_take(arena, tokens * (size_t)p->value_heads, sizeof(float));
    l.part_q = (float *)carry_arena_take(arena, parts, sizeof(float));
    l.part_k = (float *)carry_arena_take(arena, parts, sizeof(float));
    l.pages = (char *)carry_arena_take(arena, chunks, page_bytes(p));
    l.dstates = (uint16_t *)carry_arena_take(arena, chunks, state_bytes(p));
    l.values = (uint16_t *)carry_arena_take(arena, chunks, value_bytes(p));
    l.states = states ? (uint16_t *)carry_arena_take(arena, chunks, state_bytes(p)) : NULL;
    return l;
}

carry_delta_back_job job_of(const carry_delta_plan *plan, const carry_delta_backward_args *args, const layout *l) {
    carry_delta_forward_args inputs;
    carry_delta_back_job back;
    memset(&inputs, 0, sizeof inputs);
    memset(&back, 0, sizeof back);
    inputs.q = args->q;
    inputs.k = args->k;
    inputs.v = args->v;
    inputs.beta = args->beta;
    inputs.g = args->g;
    back.job = carry_delta_step_job(plan, NULL, NULL, &inputs);
    back.job.initial = (const float *)args->initial_state.data;
    back.job.borders = args->cu_seqlens.data != NULL ? l->borders : NULL;
    back.job.kept = (float *)(uintptr_t)args->kept;
    back.grad_o = carry_delta_array_of(&args->d_o);
    back.dq = carry_delta_array_of(&args->dq);
    back.dk = carry_delta_array_of(&args->dk);
    back.dv = carry_delta_array_of(&args->dv);
    back.dbeta = carry_delta_array_of(&args->dbeta);
    back.dg = carry_delta_array_of(carry_delta_given(&args->dg));
    back.dfinal = (const float *)args->dfinal_state.data;
    back.dinitial = (float *)args->dinitial_state.data;
    back.dA_log = (float *)args->dA_log.data;
    back.ddt_bias = (float *)args->ddt_bias.data;
    back.blocks = 1;
    back.part_q = plan->group > 1 ? l->part_q : NULL;
    back.part_k = plan->group > 1 ? l->part_k : NULL;
    back.part_beta = l->part_beta;
    return back;
}

carry_delta_array heads_from(carry_delta_array array, int64_t head) {
    array.data = static_cast<uint16_t *>(array.data) + head * array.head;
    return array;
}

/* dq and dk of heads whose value heads are a part. */
cudaError_t add_rows(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream) {
    carry_delta_back_job some = *back;
    const int64_t first = part->first / back->job.group;
    some.job.heads = part->heads / back->job.group;
    some.job.value_heads = part->heads;
    some.job.q = heads_from(some.job.q, first);
    some.job.k = heads_from(some.job.k, first);
    some.dq = heads_from(some.dq, first);
    some.dk = heads_from(some.dk, first);
    return carry_delta_rows_launch(&some, stream);
}

carry_status run(carry_delta_plan *plan, const carry_delta_back_job *back, const carry_delta_keys_part *part,
                 cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    const int ordinal = plan->ordinal, units = plan->gpu.units;
    const bool f16 = plan->problem.dtype == CARRY_F16;
    const char *what = "the delta rule's backward pass could not be started";
    CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_prepare : delta_keys::launch_prepare)(&back->job, part, true, stream),
                   what);
    if (part->states != NULL) {
        CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_walk : delta_keys::launch_walk)(&back->job, part, true, ordinal,
                                                                                     units, stream),
                       what);
    }
    CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_back_walk : delta_keys::launch_back_walk)(back, part, ordinal, units,
                                                                                           stream),
                   what);
    CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_values : delta_keys::launch_values)(back, part, stream), what);
    CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_gradients : delta_keys::launch_gradients)(back, part, stream), what);
    return CARRY_OK;
}

/* All sequences of some heads, as many at a time as have room. */
carry_status run_heads(carry_delta_plan *plan, const carry_delta_back_job *back, carry_delta_keys_part part,
                       int64_t slots, const int64_t *borders, cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    const int ordinal = plan->ordinal;
    for (part.sequence = 0; part.sequence < plan->sequences; part.sequence += part.sequences) {
        part.slot = slots_before(plan, borders, part.sequence);
        int64_t end = part.sequence + 1;
        while (end < plan->sequences && slots_before(plan, borders, end + 1) - part.slot <= slots) {
            end++;
        }
        part.sequences = end - part.sequence;
        part.slots = slots_before(plan, borders, end) - part.slot;
        CARRY_TRY(run(plan, back, &part, stream));
    }
    if (back->part_q != NULL) {
        CARRY_CUDA_TRY(add_rows(back, &part, stream), "gradients of the delta rule could not be summed");
    }
    return CARRY_OK;
}

} // namespace

bool carry_delta_keys_backward_applies(const carry_delta_plan *plan) {
    const size_t needed = plan->problem.key <= 64 ? sizeof(delta_keys::gradient_memory<64>)
                                                  : sizeof(delta_keys::gradient_memory<128>);
    int most = 0;
    return carry_delta_keys_most(plan->ordinal, &most) == cudaSuccess &&
           (size_t)most >= needed;
}

bool carry_delta_keys_backward_workspace(carry_delta_plan *plan) {
    carry_arena arena = carry_arena_over(NULL, 0);
    (void)take(plan, cut_of(plan), &arena, true);
    return carry_arena_total(&arena, &plan->backward_workspace);
}

carry_status carry_delta_keys_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory,
                                       size_t bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    const int ordinal = plan->ordinal;
    const cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, p->device);
    const int64_t *borders = (const int64_t *)args->cu_seqlens.data;
    const cut c = cut_of(plan);
    carry_arena arena = carry_arena_over(memory, bytes);
    const layout l = take(plan, c, &arena, args->kept == NULL);
    carry_delta_back_job back = job_of(plan, args, &l);
    carry_delta_keys_part part;
    memset(&part, 0, sizeof part);
    part.columns = columns_of(p);
    part.pages = l.pages;
    part.states = l.states;
    part.dstates = l.dstates;
    const size_t room = room_in_page(p);
    part.values = room > 0 ? (uint16_t *)(l.pages + room) : l.values;
    part.value_step = room > 0 ? (int64_t)(page_bytes(p) / sizeof(uint16_t))
                               : CARRY_DELTA_KEEP * part.columns;
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_TRY(carry_delta_upload_borders(plan, l.borders, carry_delta_given(&args->cu_seqlens), stream));
    for (part.first = 0; part.first < p->value_heads; part.first += part.heads) {
        const int64_t left = p->value_heads - part.first;
        part.heads = left < c.heads ? left : c.heads;
        CARRY_TRY(run_heads(plan, &back, part, c.slots, borders, stream));
    }
    back.part_q = back.part_k = NULL; /* they, and dg, are written */
    back.dg.data = NULL;
    CARRY_CUDA_TRY(carry_delta_gradients_launch(&back, stream), "gradients of the delta rule could not be summed");
    double tokens = (double)(p->batch * p->tokens);
    plan->flops = (args->kept == NULL ? 26.0 : 20.0) * tokens * (double)p->value_heads * (double)(p->key * p->value);
    carry_span_work(ctx, plan->flops, tokens);
    return CARRY_OK;
}
