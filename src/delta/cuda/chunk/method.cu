/* The method "chunk64" on Hopper GPUs (chunk.h). Single tokens and ranges use the kernels of "recurrent". */
#include "delta/cuda/chunk/chunk.h"

extern "C" {
extern const carry_delta_method carry_delta_cuda_chunk64;
}

namespace {

constexpr int64_t CHUNK = 64;

bool has_size(int64_t key, int64_t value) {
    return (key == 64 || key == 128 || key == 256) && (value == 64 || value == 128 || value == 256 || value == 512);
}

bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    const carry_delta_problem *p = &plan->problem;
    double chunks = (double)(p->batch * p->tokens) / CHUNK + (double)plan->sequences;
    const char *reason = p->dtype == CARRY_F32             ? "it is for bf16 and f16"
                         : !has_size(p->key, p->value)     ? "it is for K of 64, 128 or 256 and V of those or 512"
                         : p->gate == CARRY_DELTA_KEY_GATE ? "it has no gates by key channel"
                         : p->snapshot_every > 0 || p->snapshot_last > 0 ? "it makes no snapshots"
                         : chunks * (double)(p->value_heads * p->value / 64) > 2147483647.0
                             ? "there are too many chunks"
                         : !carry_delta_chunk_kernels_of(plan)->works(plan->ordinal) ? "it is for GPUs of sm_90a"
                                                                                     : NULL;
    return carry_delta_applies_unless(plan, reason, why, why_size);
}

/* Estimated seconds, from times measured on an H200: the time of prepare for all chunks, plus that of the walks: that
   of one walk over a sequence, times the number of walks per multiprocessor if it is above 1. */
double cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double units = plan->gpu.units > 0 ? plan->gpu.units : 1;
    double lanes = (double)plan->sequences * (double)p->value_heads;
    double length = (double)p->batch * (double)p->tokens / (double)plan->sequences;
    double steps = (double)(int64_t)((length + CHUNK - 1) / CHUNK), rounds = lanes * (double)(p->value / 64) / units;
    double chunks = steps * (double)plan->sequences * (double)p->heads;
    steps *= p->key > 128 ? 1.8 : 1.0;
    return 8e-6 + chunks * (18e-9 + 11e-9 * (double)plan->group) * 132.0 / units +
           steps * 1.2e-6 * (rounds > 1.0 ? rounds : 1.0);
}

/* The layout of the workspace: borders of packed sequences, then the memory of the kernels. `take` both computes its
   size and divides it. */
struct layout {
    int64_t *borders;
    void *kernels;
};

/* A job without tensors, for sizes. */
carry_delta_job sizes_of(const carry_delta_plan *plan) {
    static const int64_t packed = 0;
    carry_delta_job job = carry_delta_job_of(plan, NULL);
    job.borders = plan->problem.sequences > 0 ? &packed : NULL; /* only checked for NULL here */
    return job;
}

layout take(const carry_delta_plan *plan, carry_arena *arena, bool backward) {
    const carry_delta_chunk_kernels *kernels = carry_delta_chunk_kernels_of(plan);
    const carry_delta_job job = sizes_of(plan);
    layout l;
    l.borders = carry_delta_take_borders(plan, arena);
    l.kernels = carry_arena_take(arena, (backward ? kernels->back_bytes : kernels->bytes)(&job, plan->gpu.units), 1);
    return l;
}

bool workspace(carry_delta_plan *plan) {
    carry_arena forward = carry_arena_over(NULL, 0);
    carry_arena backward = carry_arena_over(NULL, 0);
    (void)take(plan, &forward, false);
    (void)take(plan, &backward, true);
    const carry_delta_job job = sizes_of(plan);
    plan->kept = carry_delta_chunk_kernels_of(plan)->kept_bytes(&job, plan->gpu.units);
    plan->range_workspace = 0;
    return carry_arena_total(&forward, &plan->forward_workspace) &&
           carry_arena_total(&backward, &plan->backward_workspace);
}

carry_status begin(carry_delta_plan *plan, carry_delta_job *job, const layout &l, const carry_tensor *cu_seqlens,
                   cudaStream_t *stream) {
    CARRY_TRY(carry_delta_begin(plan, stream));
    job->borders = cu_seqlens != NULL ? l.borders : NULL;
    job->host_borders = cu_seqlens != NULL ? (const int64_t *)cu_seqlens->data : NULL;
    job->workspace = l.kernels;
    return carry_delta_upload_borders(plan, l.borders, cu_seqlens, *stream);
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    const carry_delta_inputs inputs = carry_delta_inputs_of(args);
    carry_delta_job job = carry_delta_job_of(plan, &inputs);
    CARRY_TRY(begin(plan, &job, take(plan, &arena, false), inputs.cu_seqlens, &stream));
    job.kept = plan->kept > 0 ? (float *)args->kept : NULL;
    job.o = carry_delta_array_of(&args->o);
    job.final_state = (float *)args->final_state.data;
    carry_delta_count_work(plan, 10.0);
    return carry_delta_chunk_kernels_of(plan)->forward(plan->ctx, &job, plan->ordinal, stream);
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    carry_delta_back_job back = carry_delta_back_job_of(plan, args);
    back.job.kept = plan->kept > 0 ? back.job.kept : NULL;
    CARRY_TRY(begin(plan, &back.job, take(plan, &arena, true), carry_delta_given(&args->cu_seqlens), &stream));
    carry_delta_count_work(plan, 36.0);
    return carry_delta_chunk_kernels_of(plan)->backward(plan->ctx, &back, plan->ordinal, stream);
}

} // namespace

extern "C" const carry_delta_method carry_delta_cuda_chunk64 = {
    .name = "chunk64",
    .about = "chunks of 64 on the tensor cores of Hopper GPUs, bf16 and f16, K of 64, 128 or 256, V also of 512",
    .chunk = CHUNK,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};
