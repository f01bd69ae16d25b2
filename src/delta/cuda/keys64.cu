/* The method "keys64" on a GPU: forward by the kernels of keys.cuh, backward by those of keys_back.cuh where a block has
   enough shared memory (sm_80, sm_90 and such), the rest as "recurrent" does it. */
#include "delta/cuda/cuda.h"

#include <stdio.h>

extern "C" {
#include "core/context.h"
#include "core/span.h"
extern const carry_delta_method carry_delta_cuda_recurrent, carry_delta_cuda_keys64;
}
#include "delta/cuda/keys.cuh"
#include "delta/cuda/keys_cuda.h"
#include "device/cuda.h"

namespace {

constexpr int SHARED = 103 << 10; /* bytes of a block of the walk, with more than 64 keys */

bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    const carry_delta_problem *p = &plan->problem;
    int most = SHARED;
    (void)carry_delta_keys_most(plan->ordinal, &most);
    const char *reason = p->gate != CARRY_DELTA_KEY_GATE                 ? "it is for gates by key channel"
                         : p->dtype == CARRY_F32                         ? "it is for bf16 and f16"
                         : p->key > 128 || p->key < 16                   ? "it is for K of 16 to 128"
                         : p->value < 16                                 ? "it is for V of 16 and more"
                         : p->snapshot_every > 0 || p->snapshot_last > 0 ? "it makes no snapshots"
                         : p->key > 64 && most < SHARED                  ? "K above 64 needs blocks with 103 KiB"
                                                                         : NULL;
    if (reason != NULL) {
        (void)snprintf(why, why_size, "%s", reason);
        return false;
    }
    return carry_delta_gpu_is_new_enough(plan, why, why_size);
}

int64_t slots_of(const carry_delta_plan *plan) {
    return plan->problem.batch * plan->problem.tokens / CARRY_DELTA_KEEP + plan->sequences;
}

/* Seconds, counted: pages of all chunks, two at a time a multiprocessor, then the walks. */
double cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double units = plan->gpu.units > 0 ? plan->gpu.units : 1;
    double length = (double)p->batch * (double)p->tokens / (double)plan->sequences;
    double chunks = (double)(int64_t)((length + CARRY_DELTA_KEEP - 1) / CARRY_DELTA_KEEP);
    double rounds = (double)plan->sequences * (double)(p->value_heads * ((p->value + 63) / 64)) / (2.0 * units);
    return 12e-6 + chunks * (double)plan->sequences * (double)p->value_heads * 5e-6 / units +
           (rounds > 1.0 ? rounds : 1.0) * chunks * 6e-6;
}

struct layout {
    int64_t *borders;
    void *pages;
};

layout take(const carry_delta_plan *plan, carry_arena *arena) {
    layout l;
    int64_t count = plan->problem.sequences > 0 ? plan->sequences + 1 : 0;
    l.borders = (int64_t *)carry_arena_take(arena, (size_t)count, sizeof(int64_t));
    l.pages = carry_arena_take(arena, (size_t)(slots_of(plan) * plan->problem.value_heads),
                               plan->problem.key <= 64 ? sizeof(delta_keys::page<64>) : sizeof(delta_keys::page<128>));
    return l;
}

bool workspace(carry_delta_plan *plan) {
    carry_arena forward = carry_arena_over(NULL, 0);
    (void)take(plan, &forward);
    return carry_delta_cuda_recurrent.workspace(plan) && carry_arena_total(&forward, &plan->forward_workspace) &&
           (!carry_delta_keys_backward_applies(plan) || carry_delta_keys_backward_workspace(plan));
}

float *floats(const carry_tensor *tensor) {
    return tensor != NULL ? (float *)tensor->data : NULL;
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    carry_ctx *ctx = plan->ctx;
    const carry_delta_problem *p = &plan->problem;
    int ordinal = plan->ordinal;
    cudaStream_t stream = (cudaStream_t)carry_ctx_stream(ctx, p->device);
    carry_arena arena = carry_arena_over(memory, bytes);
    layout l = take(plan, &arena);
    carry_delta_job job = carry_delta_step_job(plan, &args->o, NULL, args);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    CARRY_TRY(carry_delta_upload_borders(plan, l.borders, carry_delta_given(&args->cu_seqlens), stream));
    job.borders = args->cu_seqlens.data != NULL ? l.borders : NULL;
    job.initial = floats(carry_delta_given(&args->initial_state));
    job.final_state = floats(carry_delta_given(&args->final_state));
    job.kept = (float *)args->kept;
    carry_delta_keys_part all = {};
    all.heads = p->value_heads;
    all.sequences = plan->sequences;
    all.slots = slots_of(plan);
    all.pages = l.pages;
    const bool f16 = p->dtype == CARRY_F16;
    CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_prepare : delta_keys::launch_prepare)(&job, &all, false, stream),
                   "the delta rule could not be started");
    CARRY_CUDA_TRY((f16 ? delta_keys_f16::launch_walk : delta_keys::launch_walk)(&job, &all, false, ordinal,
                                                                                 plan->gpu.units, stream),
                   "the delta rule could not be started");
    double tokens = (double)(p->batch * p->tokens);
    plan->flops = 10.0 * tokens * (double)p->value_heads * (double)(p->key * p->value);
    carry_span_work(ctx, plan->flops, tokens);
    return CARRY_OK;
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    return carry_delta_keys_backward_applies(plan)
               ? carry_delta_keys_backward(plan, args, memory, bytes)
               : carry_delta_cuda_recurrent.backward(plan, args, memory, bytes);
}

carry_status step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                  const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    return carry_delta_cuda_recurrent.step(plan, o, state, inputs, memory, bytes);
}

carry_status range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                   const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    return carry_delta_cuda_recurrent.range(plan, M, L, inputs, memory, bytes);
}

} // namespace

cudaError_t carry_delta_keys_most(int ordinal, int *bytes) {
    return cudaDeviceGetAttribute(bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal);
}

extern "C" const carry_delta_method carry_delta_cuda_keys64 = {
    .name = "keys64",
    .about = "gates by key channel: chunks of 64 on tensor cores, bf16 and f16, K of 16 to 128",
    .chunk = CARRY_DELTA_KEEP,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .step = step,
    .range = range,
};
