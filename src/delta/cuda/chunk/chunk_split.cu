/* The method "chunk64" in two parts (delta/split.h): jobs of some heads for the kernels of chunk_cuda.h. */
#include "delta/cuda/chunk/chunk_cuda.h"
#include "delta/cuda/cuda.h"

#include <string.h>

extern "C" {
#include "core/context.h"
#include "delta/split.h"
extern const carry_delta_method carry_delta_cuda_chunk64;
}
#include "device/cuda.h"

namespace {

/* Of a tensor of all heads: those from `first` on. */
carry_delta_view view_of(const carry_tensor *tensor, int64_t first) {
    carry_delta_array array = carry_delta_array_of(tensor);
    carry_delta_view view = {array.data, array.batch, array.token, array.head, (int)array.dtype};
    if (view.data != NULL) {
        view.data = (const char *)view.data + (size_t)(first * view.head) * carry_dtype_size(array.dtype);
    }
    return view;
}

float *floats(const carry_tensor *tensor, int64_t first) {
    return tensor->data != NULL ? (float *)tensor->data + first : NULL;
}

carry_delta_chunk_job job_of(const carry_delta_plan *plan, int64_t heads, int sharing) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_chunk_job job;
    memset(&job, 0, sizeof job);
    job.batch = p->batch;
    job.tokens = p->tokens;
    job.heads = heads;
    job.value_heads = heads * plan->group;
    job.key = p->key;
    job.value = p->value;
    job.sequences = p->batch;
    job.scale = plan->scale;
    job.l2norm = p->l2norm;
    job.gate_inside = p->gate_inside;
    job.beta_sigmoid = p->beta_sigmoid;
    job.beta_factor = p->beta_factor;
    job.split = sharing;
    return job;
}

template <typename Args>
carry_delta_chunk_job inputs_of(const carry_delta_plan *plan, const carry_delta_split *split, const Args *args) {
    carry_delta_chunk_job job = job_of(plan, split->heads, split->sharing);
    int64_t head = split->first_head, value_head = head * plan->group;
    job.q = view_of(&args->q, head);
    job.k = view_of(&args->k, head);
    job.v = view_of(&args->v, value_head);
    job.beta = view_of(&args->beta, value_head);
    job.g = view_of(carry_delta_given(&args->g), value_head);
    job.A_log = floats(&args->A_log, value_head);
    job.dt_bias = floats(&args->dt_bias, value_head);
    job.workspace = split->workspace;
    return job;
}

carry_delta_chunk_job forward_job(const carry_delta_plan *plan, const carry_delta_split *split) {
    carry_delta_chunk_job job = inputs_of(plan, split, split->forward);
    job.o = view_of(&split->forward->o, split->first_head * plan->group);
    job.initial_state = split->entering;
    job.final_state = split->leaving;
    return job;
}

carry_delta_chunk_back backward_job(const carry_delta_plan *plan, const carry_delta_split *split) {
    const carry_delta_backward_args *args = split->backward;
    int64_t head = split->first_head, value_head = head * plan->group;
    carry_delta_chunk_back back;
    memset(&back, 0, sizeof back);
    back.job = inputs_of(plan, split, args);
    back.job.initial_state = split->states;
    back.grad_o = view_of(&args->d_o, value_head);
    back.dq = view_of(&args->dq, head);
    back.dk = view_of(&args->dk, head);
    back.dv = view_of(&args->dv, value_head);
    back.dbeta = view_of(&args->dbeta, value_head);
    back.dg = view_of(carry_delta_given(&args->dg), value_head);
    back.dfinal_state = split->entering;
    back.dinitial_state = split->leaving;
    back.dA_log = floats(&args->dA_log, value_head);
    back.ddt_bias = floats(&args->ddt_bias, value_head);
    return back;
}

/* The kernels' entries for a type of q, k and v. */
struct entries {
    decltype(&carry_delta_chunk_pair) pair;
    decltype(&carry_delta_chunk_rest) rest;
    decltype(&carry_delta_chunk_back_pair) back_pair;
    decltype(&carry_delta_chunk_back_rest) back_rest;
};

constexpr entries BF16 = {carry_delta_chunk_pair, carry_delta_chunk_rest, carry_delta_chunk_back_pair,
                          carry_delta_chunk_back_rest};
constexpr entries F16 = {carry_delta_chunk_pair_f16, carry_delta_chunk_rest_f16, carry_delta_chunk_back_pair_f16,
                         carry_delta_chunk_back_rest_f16};

carry_status begin(carry_delta_plan *plan, entries *of, void **stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    *of = plan->problem.dtype == CARRY_F16 ? F16 : BF16;
    *stream = carry_ctx_stream(ctx, plan->problem.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    return CARRY_OK;
}

} // namespace

extern "C" bool carry_delta_splits(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return plan->method == &carry_delta_cuda_chunk64 && p->sequences == 0 && p->key <= 128 &&
           p->value <= 128 && !p->state_transposed;
}

extern "C" size_t carry_delta_split_bytes(const carry_delta_plan *plan, int64_t heads, int sharing, bool backward) {
    carry_delta_chunk_job job = job_of(plan, heads, sharing);
    int units = plan->gpu.units;
    return backward ? carry_delta_chunk_back_bytes(&job, units) : carry_delta_chunk_bytes(&job, units);
}

extern "C" carry_status carry_delta_split_pair(carry_delta_plan *plan, const carry_delta_split *split) {
    entries of;
    void *stream;
    CARRY_TRY(begin(plan, &of, &stream));
    if (split->backward != NULL) {
        carry_delta_chunk_back back = backward_job(plan, split);
        return of.back_pair(plan->ctx, &back, split->L, plan->ordinal, stream);
    }
    carry_delta_chunk_job job = forward_job(plan, split);
    return of.pair(plan->ctx, &job, split->M, split->L, plan->ordinal, stream);
}

extern "C" carry_status carry_delta_split_rest(carry_delta_plan *plan, const carry_delta_split *split) {
    entries of;
    void *stream;
    CARRY_TRY(begin(plan, &of, &stream));
    if (split->backward != NULL) {
        carry_delta_chunk_back back = backward_job(plan, split);
        return of.back_rest(plan->ctx, &back, split->arrived, plan->ordinal, stream);
    }
    carry_delta_chunk_job job = forward_job(plan, split);
    return of.rest(plan->ctx, &job, split->arrived, plan->ordinal, stream);
}
