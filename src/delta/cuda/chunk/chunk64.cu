/* The method "chunk64" of Hopper GPUs: the entries of the table over the kernels of chunk_cuda.h. Single tokens and
   ranges are the plain method's. */
#include "delta/cuda/chunk/chunk_cuda.h"
#include "delta/cuda/cuda.h"

#include <stdio.h>
#include <string.h>

extern "C" {
#include "core/context.h"
#include "core/span.h"
extern const carry_delta_method carry_delta_cuda_chunk64;
}
#include "device/cuda.h"

namespace {

constexpr int64_t CHUNK = 64;

bool has_size(int64_t key, int64_t value) {
    return (key == 64 || key == 128 || key == 256) && (value == 64 || value == 128 || value == 256);
}

bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    const carry_delta_problem *p = &plan->problem;
    double chunks = (double)(p->batch * p->tokens) / CHUNK + (double)plan->sequences;
    const char *reason = NULL;
    if (p->dtype == CARRY_F32) {
        reason = "it is for bf16 and f16";
    } else if (!has_size(p->key, p->value)) {
        reason = "it is for K and V of 64, 128 or 256";
    } else if (p->gate == CARRY_DELTA_KEY_GATE) {
        reason = "it has no gates by key channel";
    } else if (p->snapshot_every > 0 || p->snapshot_last > 0) {
        reason = "it makes no snapshots";
    } else if (chunks * (double)(p->value_heads * p->value / 64) > 2147483647.0) {
        reason = "there are too many chunks";
    } else if (!carry_delta_chunk_works(plan->ordinal)) {
        reason = "it is for GPUs of sm_90a";
    }
    if (reason != NULL) {
        (void)snprintf(why, why_size, "%s", reason);
    }
    return reason == NULL;
}

/* Seconds, from times on an H200: prepare by chunks, and the longer of its sequences' walks by turns. */
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

carry_delta_chunk_job job_of(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_chunk_job job;
    memset(&job, 0, sizeof job);
    job.batch = p->batch;
    job.tokens = p->tokens;
    job.heads = p->heads;
    job.value_heads = p->value_heads;
    job.key = p->key;
    job.value = p->value;
    job.sequences = plan->sequences;
    job.scale = plan->scale;
    job.state_transposed = p->state_transposed;
    job.l2norm = p->l2norm;
    job.gate_inside = p->gate_inside;
    job.beta_sigmoid = p->beta_sigmoid;
    job.beta_factor = p->beta_factor;
    return job;
}

/* The tiles behind the borders of packed sequences; the same lines count and carve. */
struct layout {
    int64_t *borders;
    void *kernels;
};

layout take(const carry_delta_plan *plan, carry_arena *arena, bool backward) {
    static const int64_t packed = 0;
    carry_delta_chunk_job job = job_of(plan);
    job.cu_seqlens = plan->problem.sequences > 0 ? &packed : NULL; /* to count chunks, it only says that they are */
    layout l;
    l.borders = (int64_t *)carry_arena_take(arena, plan->problem.sequences > 0 ? (size_t)plan->sequences + 1 : 0,
                                            sizeof(int64_t));
    int units = plan->gpu.units;
    l.kernels = carry_arena_take(
        arena, backward ? carry_delta_chunk_back_bytes(&job, units) : carry_delta_chunk_bytes(&job, units), 1);
    return l;
}

bool workspace(carry_delta_plan *plan) {
    carry_arena forward = carry_arena_over(NULL, 0);
    carry_arena backward = carry_arena_over(NULL, 0);
    (void)take(plan, &forward, false);
    (void)take(plan, &backward, true);
    plan->kept = 0; /* backward makes everything again */
    plan->range_workspace = 0;
    return carry_arena_total(&forward, &plan->forward_workspace) &&
           carry_arena_total(&backward, &plan->backward_workspace);
}

carry_delta_view view_of(const carry_tensor *tensor) {
    carry_delta_array array = carry_delta_array_of(tensor);
    return {array.data, array.batch, array.token, array.head, (int)array.dtype};
}

float *floats(const carry_tensor *tensor) {
    return tensor != NULL ? (float *)tensor->data : NULL;
}

carry_status begin(carry_delta_plan *plan, carry_delta_chunk_job *job, const layout &l, const carry_tensor *cu_seqlens,
                   cudaStream_t *stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    *stream = (cudaStream_t)carry_ctx_stream(ctx, plan->problem.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    job->cu_seqlens = cu_seqlens != NULL ? l.borders : NULL;
    job->borders = cu_seqlens != NULL ? (const int64_t *)cu_seqlens->data : NULL;
    job->workspace = l.kernels;
    return carry_delta_upload_borders(plan, l.borders, cu_seqlens, *stream);
}

template <typename Args> void set_inputs(carry_delta_chunk_job *job, const Args *args) {
    job->q = view_of(&args->q);
    job->k = view_of(&args->k);
    job->v = view_of(&args->v);
    job->beta = view_of(&args->beta);
    job->g = view_of(carry_delta_given(&args->g));
    job->A_log = floats(carry_delta_given(&args->A_log));
    job->dt_bias = floats(carry_delta_given(&args->dt_bias));
    job->initial_state = floats(carry_delta_given(&args->initial_state));
}

void told(carry_delta_plan *plan, double factor) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    plan->flops = factor * tokens * (double)p->value_heads * (double)(p->key * p->value);
    carry_span_work(plan->ctx, plan->flops, tokens);
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    layout l = take(plan, &arena, false);
    carry_delta_chunk_job job = job_of(plan);
    CARRY_TRY(begin(plan, &job, l, carry_delta_given(&args->cu_seqlens), &stream));
    set_inputs(&job, args);
    job.o = view_of(&args->o);
    job.final_state = floats(carry_delta_given(&args->final_state));
    told(plan, 10.0);
    return plan->problem.dtype == CARRY_F16
               ? carry_delta_chunk_forward_f16(plan->ctx, &job, plan->ordinal, stream)
               : carry_delta_chunk_forward(plan->ctx, &job, plan->ordinal, stream);
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    layout l = take(plan, &arena, true);
    carry_delta_chunk_back back;
    memset(&back, 0, sizeof back);
    back.job = job_of(plan);
    CARRY_TRY(begin(plan, &back.job, l, carry_delta_given(&args->cu_seqlens), &stream));
    set_inputs(&back.job, args);
    back.grad_o = view_of(&args->d_o);
    back.dq = view_of(&args->dq);
    back.dk = view_of(&args->dk);
    back.dv = view_of(&args->dv);
    back.dbeta = view_of(&args->dbeta);
    back.dg = view_of(carry_delta_given(&args->dg));
    back.dfinal_state = floats(carry_delta_given(&args->dfinal_state));
    back.dinitial_state = floats(carry_delta_given(&args->dinitial_state));
    back.dA_log = floats(carry_delta_given(&args->dA_log));
    back.ddt_bias = floats(carry_delta_given(&args->ddt_bias));
    told(plan, 36.0);
    return plan->problem.dtype == CARRY_F16
               ? carry_delta_chunk_backward_f16(plan->ctx, &back, plan->ordinal, stream)
               : carry_delta_chunk_backward(plan->ctx, &back, plan->ordinal, stream);
}

} // namespace

extern "C" const carry_delta_method carry_delta_cuda_chunk64 = {
    .name = "chunk64",
    .about = "chunks of 64 on the tensor cores of Hopper GPUs, bf16 and f16, K and V of 64, 128 or 256",
    .chunk = CHUNK,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};
