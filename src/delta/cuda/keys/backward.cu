/* The backward pass of "keys64": runs its kernels (back.cuh) on parts of the problem, so that the workspace stays below
   one and a half times the inputs. If one sequence with all heads does not fit, a part has fewer heads. Each part has
   as many sequences as fit. */
#include <stddef.h>

#include "delta/cuda/keys/gradients.cuh"
#include "device/cuda.h"

namespace {

/* Workspace limit: MOST times the inputs, or LARGE bytes if that is more. */
constexpr double MOST = 1.497, LARGE = 32e6;

/* The value heads and slots of one part. */
struct cut {
    int64_t heads, slots;
};

/* The parts of the workspace; `take` both computes its size and divides it. */
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
/* The offset in a page at which x of its chunk (back.cuh) is stored, or 0 if x does not fit there. x overwrites faded_q
   and left_k, which are adjacent and which no kernel reads after the backward walk. */
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

/* The size in bytes of q, k, v and do, and of the gates in f32. */
double inputs_of(const carry_delta_problem *p) {
    return (double)(p->batch * p->tokens) *
           (4.0 * (double)(p->heads * p->key + p->value_heads * p->value) + 4.0 * (double)(p->value_heads * p->key));
}

/* Chooses the most heads that fit with the slots of one sequence (which may have all tokens), then the most slots that
   fit. A plan does not know the borders of packed sequences. */
cut cut_of(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    const double tokens = (double)(p->batch * p->tokens), K = (double)p->key;
    const double most = MOST * inputs_of(p) > LARGE ? MOST * inputs_of(p) : LARGE;
    const double left = most - 8.0 * (double)(plan->sequences + 1) - 4.0 * tokens * (double)p->value_heads - 4096.0;
    const double chunk = (double)(page_bytes(p) + 2 * state_bytes(p) + value_bytes(p));
    const int64_t all = carry_delta_kept_slots(plan);
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
    l.borders = carry_delta_take_borders(plan, arena);
    l.part_beta = (float *)carry_arena_take(arena, tokens * (size_t)p->value_heads, sizeof(float));
    l.part_q = (float *)carry_arena_take(arena, parts, sizeof(float));
    l.part_k = (float *)carry_arena_take(arena, parts, sizeof(float));
    l.pages = (char *)carry_arena_take(arena, chunks, page_bytes(p));
    l.dstates = (uint16_t *)carry_arena_take(arena, chunks, state_bytes(p));
    l.values = (uint16_t *)carry_arena_take(arena, chunks, value_bytes(p));
    l.states = states ? (uint16_t *)carry_arena_take(arena, chunks, state_bytes(p)) : NULL;
    return l;
}

/* Sums dq and dk of the heads whose value heads are in this part. */
cudaError_t add_rows(const carry_delta_back_job *back, const carry_delta_keys_part *part, cudaStream_t stream) {
    carry_delta_back_job some = *back;
    carry_delta_back_job_move(&some, 0, 0, part->first / back->job.group, 0);
    some.job.heads = part->heads / back->job.group;
    some.job.value_heads = part->heads;
    return carry_delta_rows_launch(&some, stream);
}

carry_status run(carry_delta_plan *plan, const carry_delta_back_job *back, const carry_delta_keys_part *part,
                 cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    const int ordinal = plan->ordinal, units = plan->gpu.units;
    const carry_delta_keys_kernels *kernels = carry_delta_keys_kernels_of(plan);
    const char *what = "the delta rule's backward pass could not be started";
    CARRY_CUDA_TRY(kernels->prepare(&back->job, part, true, stream), what);
    if (part->states != NULL) {
        CARRY_CUDA_TRY(kernels->walk(&back->job, part, true, ordinal, units, stream), what);
    }
    CARRY_CUDA_TRY(kernels->back_walk(back, part, ordinal, units, stream), what);
    CARRY_CUDA_TRY(kernels->values(back, part, stream), what);
    CARRY_CUDA_TRY(kernels->gradients(back, part, stream), what);
    return CARRY_OK;
}

/* Runs all sequences for some heads, in groups that fit into `slots`. */
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
    const size_t needed =
        plan->problem.key <= 64 ? sizeof(delta_keys::gradient_memory<64>) : sizeof(delta_keys::gradient_memory<128>);
    int most = 0;
    return carry_delta_keys_most(plan->ordinal, &most) == cudaSuccess && (size_t)most >= needed;
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
    const int64_t *borders = (const int64_t *)args->cu_seqlens.data;
    const cut c = cut_of(plan);
    carry_arena arena = carry_arena_over(memory, bytes);
    const layout l = take(plan, c, &arena, args->kept == NULL);
    cudaStream_t stream;
    carry_delta_back_job back = carry_delta_back_job_of(plan, args);
    back.job.borders = borders != NULL ? l.borders : NULL;
    back.part_q = plan->group > 1 ? l.part_q : NULL;
    back.part_k = plan->group > 1 ? l.part_k : NULL;
    back.part_beta = l.part_beta;
    carry_delta_keys_part part = {};
    part.columns = columns_of(p);
    part.pages = l.pages;
    part.states = l.states;
    part.dstates = l.dstates;
    const size_t room = room_in_page(p);
    part.values = room > 0 ? (uint16_t *)(l.pages + room) : l.values;
    part.value_step = room > 0 ? (int64_t)(page_bytes(p) / sizeof(uint16_t)) : CARRY_DELTA_KEEP * part.columns;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    CARRY_TRY(carry_delta_upload_borders(plan, l.borders, carry_delta_given(&args->cu_seqlens), stream));
    for (part.first = 0; part.first < p->value_heads; part.first += part.heads) {
        const int64_t left = p->value_heads - part.first;
        part.heads = left < c.heads ? left : c.heads;
        CARRY_TRY(run_heads(plan, &back, part, c.slots, borders, stream));
    }
    back.part_q = back.part_k = NULL; /* dq, dk and dg are already written */
    back.dg.data = NULL;
    CARRY_CUDA_TRY(carry_delta_gradients_launch(&back, stream), "gradients of the delta rule could not be summed");
    carry_delta_count_work(plan, args->kept == NULL ? 26.0 : 20.0);
    return CARRY_OK;
}
