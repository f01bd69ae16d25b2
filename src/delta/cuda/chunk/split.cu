/* The method "chunk64" in two calls (delta/split.h): creates jobs of some heads for the kernels of chunk.h. */
#include "delta/cuda/chunk/chunk.h"

extern "C" {
#include "delta/split.h"
extern const carry_delta_method carry_delta_cuda_chunk64;
}

namespace {

void set_heads(carry_delta_job *job, int64_t heads, int sharing) {
    job->heads = heads;
    job->value_heads = job->state_heads = heads * job->group;
    job->split = sharing;
}

carry_delta_job forward_job(const carry_delta_plan *plan, const carry_delta_split *split) {
    const carry_delta_inputs inputs = carry_delta_inputs_of(split->forward);
    carry_delta_job job = carry_delta_job_of(plan, &inputs);
    job.o = carry_delta_array_of(&split->forward->o);
    carry_delta_job_move(&job, 0, 0, split->first_head, 0);
    set_heads(&job, split->heads, split->sharing);
    job.initial = split->entering;
    job.final_state = split->leaving;
    job.workspace = split->workspace;
    return job;
}

carry_delta_back_job backward_job(const carry_delta_plan *plan, const carry_delta_split *split) {
    carry_delta_back_job back = carry_delta_back_job_of(plan, split->backward);
    carry_delta_back_job_move(&back, 0, 0, split->first_head, 0);
    set_heads(&back.job, split->heads, split->sharing);
    back.job.initial = split->states;
    back.dfinal = split->entering;
    back.dinitial = split->leaving;
    back.job.workspace = split->workspace;
    return back;
}

} // namespace

extern "C" bool carry_delta_splits(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return plan->method == &carry_delta_cuda_chunk64 && p->sequences == 0 && p->key <= 128 && p->value <= 128 &&
           !p->state_transposed;
}

extern "C" size_t carry_delta_split_bytes(const carry_delta_plan *plan, int64_t heads, int sharing, bool backward) {
    const carry_delta_chunk_kernels *kernels = carry_delta_chunk_kernels_of(plan);
    carry_delta_job job = carry_delta_job_of(plan, NULL);
    set_heads(&job, heads, sharing);
    return (backward ? kernels->back_bytes : kernels->bytes)(&job, plan->gpu.units);
}

extern "C" carry_status carry_delta_split_pair(carry_delta_plan *plan, const carry_delta_split *split) {
    const carry_delta_chunk_kernels *kernels = carry_delta_chunk_kernels_of(plan);
    cudaStream_t stream;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    if (split->backward != NULL) {
        carry_delta_back_job back = backward_job(plan, split);
        return kernels->back_pair(plan->ctx, &back, split->L, plan->ordinal, stream);
    }
    carry_delta_job job = forward_job(plan, split);
    return kernels->pair(plan->ctx, &job, split->M, split->L, plan->ordinal, stream);
}

extern "C" carry_status carry_delta_split_rest(carry_delta_plan *plan, const carry_delta_split *split) {
    const carry_delta_chunk_kernels *kernels = carry_delta_chunk_kernels_of(plan);
    cudaStream_t stream;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    if (split->backward != NULL) {
        carry_delta_back_job back = backward_job(plan, split);
        return kernels->back_rest(plan->ctx, &back, split->arrived, plan->ordinal, stream);
    }
    carry_delta_job job = forward_job(plan, split);
    return kernels->rest(plan->ctx, &job, split->arrived, plan->ordinal, stream);
}
