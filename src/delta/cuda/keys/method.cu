/* The method "keys64" on a GPU. The forward pass uses the kernels of keys.cuh or, on Hopper GPUs with K = 128 and V of
   64, 128 or 256, those of chunk/ (chunk/keys_prepare.cuh) if starts and strides of tensors are multiples of 16 bytes.
   The backward pass uses the kernels of back.cuh if a block has enough shared memory (for example on sm_80 and sm_90).
   Single tokens, ranges and other backward passes use "recurrent". */
#include "delta/cuda/chunk/chunk.h"
#include "delta/cuda/keys/keys.cuh"
#include "device/cuda.h"

extern "C" {
extern const carry_delta_method carry_delta_cuda_recurrent, carry_delta_cuda_keys64;
}

namespace {

constexpr int SHARED = 103 << 10; /* bytes for a block of the walk with more than 64 keys */

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
    return carry_delta_applies_unless(plan, reason, why, why_size);
}

/* Seconds, estimated: pages of all chunks, two at a time on each multiprocessor, then the walks. */
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

/* The kernels of Hopper GPUs, or NULL if they do not apply to the problem. */
const carry_delta_chunk_kernels *hopper_kernels(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    const carry_delta_chunk_kernels *kernels = carry_delta_chunk_kernels_of(plan);
    const double bands = (double)carry_delta_kept_slots(plan) * (double)(p->value_heads * p->value / 64);
    return p->key == 128 && (p->value == 64 || p->value == 128 || p->value == 256) && bands <= 2147483647.0 &&
                   kernels->works(plan->ordinal)
               ? kernels
               : NULL;
}

/* The workspace is large enough for the pages of either set of kernels, since the choice also depends on the tensors of
   a call. */
layout take(const carry_delta_plan *plan, carry_arena *arena) {
    static const int64_t packed = 0;
    const carry_delta_chunk_kernels *hopper = hopper_kernels(plan);
    const size_t page = plan->problem.key <= 64 ? sizeof(delta_keys::page<64>) : sizeof(delta_keys::page<128>);
    const size_t pages = (size_t)(carry_delta_kept_slots(plan) * plan->problem.value_heads);
    size_t units = pages;
    if (hopper != NULL) {
        carry_delta_job job = carry_delta_job_of(plan, NULL);
        job.borders = plan->problem.sequences > 0 ? &packed : NULL; /* only checked for NULL here */
        const size_t needed = (hopper->keys_bytes(&job, plan->gpu.units) + page - 1) / page;
        units = needed > pages ? needed : pages;
    }
    layout l;
    l.borders = carry_delta_take_borders(plan, arena);
    l.pages = carry_arena_take(arena, units, page);
    return l;
}

bool workspace(carry_delta_plan *plan) {
    carry_arena forward = carry_arena_over(NULL, 0);
    (void)take(plan, &forward);
    return carry_delta_cuda_recurrent.workspace(plan) && carry_arena_total(&forward, &plan->forward_workspace) &&
           (!carry_delta_keys_backward_applies(plan) || carry_delta_keys_backward_workspace(plan));
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    layout l = take(plan, &arena);
    const carry_delta_inputs inputs = carry_delta_inputs_of(args);
    const carry_delta_keys_kernels *kernels = carry_delta_keys_kernels_of(plan);
    carry_delta_job job = carry_delta_job_of(plan, &inputs);
    CARRY_TRY(carry_delta_begin(plan, &stream));
    CARRY_TRY(carry_delta_upload_borders(plan, l.borders, inputs.cu_seqlens, stream));
    job.borders = inputs.cu_seqlens != NULL ? l.borders : NULL;
    job.o = carry_delta_array_of(&args->o);
    job.final_state = (float *)args->final_state.data;
    job.kept = (float *)args->kept;
    carry_delta_count_work(plan, 10.0);
    const carry_delta_chunk_kernels *hopper = hopper_kernels(plan);
    if (hopper != NULL && hopper->keys_apply(&job)) {
        job.workspace = l.pages;
        return hopper->keys(ctx, &job, ordinal, stream);
    }
    carry_delta_keys_part all = {};
    all.heads = plan->problem.value_heads;
    all.sequences = plan->sequences;
    all.slots = carry_delta_kept_slots(plan);
    all.pages = l.pages;
    CARRY_CUDA_TRY(kernels->prepare(&job, &all, false, stream), "the delta rule could not be started");
    CARRY_CUDA_TRY(kernels->walk(&job, &all, false, ordinal, plan->gpu.units, stream),
                   "the delta rule could not be started");
    return CARRY_OK;
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    return carry_delta_keys_backward_applies(plan) ? carry_delta_keys_backward(plan, args, memory, bytes)
                                                   : carry_delta_cuda_recurrent.backward(plan, args, memory, bytes);
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
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};
