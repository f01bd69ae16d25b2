/* Host functions that the methods share (cuda.h): jobs from plans and calls, borders of packed sequences. */
#include "delta/cuda/cuda.h"

#include <stdio.h>

extern "C" {
#include "core/context.h"
#include "core/span.h"
}
#include "device/cuda.h"

#define OLDEST 80    /* lowest compute capability, times ten */
#define BORDERS 1000 /* borders that one launch copies */

namespace {

struct some_borders {
    int64_t at[BORDERS];
};

__global__ void put_borders(int64_t *to, const __grid_constant__ some_borders from, int count) {
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        to[i] = from.at[i];
    }
}

float *floats(const carry_tensor *tensor) {
    return tensor != NULL ? (float *)tensor->data : NULL;
}

template <typename Float> void move(Float **floats, int64_t count) {
    *floats = *floats != NULL ? *floats + count : NULL;
}

void move(carry_delta_array *array, int64_t batch, int64_t token, int64_t head) {
    if (array->data != NULL) {
        const int64_t elements = batch * array->batch + token * array->token + head * array->head;
        array->data = (char *)array->data + elements * (int64_t)carry_dtype_size(array->dtype);
    }
}

int64_t state_offset(const carry_delta_job *job, int64_t head, int64_t sequence) {
    return (sequence * job->state_heads + head * job->group) * job->key * job->value;
}

} // namespace

carry_delta_array carry_delta_array_of(const carry_tensor *tensor) {
    if (tensor == NULL) {
        return carry_delta_array{};
    }
    return {tensor->data, tensor->dtype, tensor->stride[0], tensor->stride[1], tensor->stride[2]};
}

carry_delta_job carry_delta_job_of(const carry_delta_plan *plan, const carry_delta_inputs *inputs) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_job job = {};
    job.batch = p->batch;
    job.tokens = job.kept_tokens = p->tokens;
    job.sequences = plan->sequences;
    job.heads = p->heads;
    job.value_heads = job.state_heads = job.kept_heads = p->value_heads;
    job.group = plan->group;
    job.key = (int)p->key;
    job.value = (int)p->value;
    job.snapshot_every = p->snapshot_every;
    job.snapshot_last = p->snapshot_last;
    job.snapshot_count = carry_delta_snapshots(plan);
    job.scale = plan->scale;
    job.beta_factor = p->beta_factor != 0.0f ? p->beta_factor : 1.0f;
    job.transposed = p->state_transposed;
    job.l2norm = p->l2norm;
    job.gated = p->gate != CARRY_DELTA_NO_GATE;
    job.by_key = p->gate == CARRY_DELTA_KEY_GATE;
    job.gate_inside = p->gate_inside;
    job.beta_sigmoid = p->beta_sigmoid;
    if (inputs != NULL) {
        job.q = carry_delta_array_of(inputs->q);
        job.k = carry_delta_array_of(inputs->k);
        job.v = carry_delta_array_of(inputs->v);
        job.beta = carry_delta_array_of(inputs->beta);
        job.g = carry_delta_array_of(inputs->g);
        job.A_log = floats(inputs->A_log);
        job.dt_bias = floats(inputs->dt_bias);
        job.initial = floats(inputs->initial_state);
    }
    return job;
}

carry_delta_back_job carry_delta_back_job_of(const carry_delta_plan *plan, const carry_delta_backward_args *args) {
    const carry_delta_inputs inputs = carry_delta_back_inputs_of(args);
    carry_delta_back_job back = {};
    back.job = carry_delta_job_of(plan, &inputs);
    back.job.kept = (float *)(uintptr_t)args->kept;
    back.grad_o = carry_delta_array_of(&args->d_o);
    back.dq = carry_delta_array_of(&args->dq);
    back.dk = carry_delta_array_of(&args->dk);
    back.dv = carry_delta_array_of(&args->dv);
    back.dbeta = carry_delta_array_of(&args->dbeta);
    back.dg = carry_delta_array_of(carry_delta_given(&args->dg));
    back.dfinal = floats(carry_delta_given(&args->dfinal_state));
    back.dinitial = floats(carry_delta_given(&args->dinitial_state));
    back.dA_log = floats(carry_delta_given(&args->dA_log));
    back.ddt_bias = floats(carry_delta_given(&args->ddt_bias));
    back.blocks = 1;
    return back;
}

void carry_delta_job_move(carry_delta_job *job, int64_t batch, int64_t token, int64_t head, int64_t sequence) {
    const int64_t value_head = head * job->group, state = state_offset(job, head, sequence);
    move(&job->q, batch, token, head);
    move(&job->k, batch, token, head);
    for (carry_delta_array *array : {&job->v, &job->o, &job->beta, &job->g}) {
        move(array, batch, token, value_head);
    }
    move(&job->A_log, value_head);
    move(&job->dt_bias, value_head);
    move(&job->initial, state);
    move(&job->final_state, state);
    move(&job->kept, state);
}

void carry_delta_back_job_move(carry_delta_back_job *back, int64_t batch, int64_t token, int64_t head,
                               int64_t sequence) {
    const int64_t value_head = head * back->job.group, state = state_offset(&back->job, head, sequence);
    carry_delta_job_move(&back->job, batch, token, head, sequence);
    move(&back->dq, batch, token, head);
    move(&back->dk, batch, token, head);
    for (carry_delta_array *array : {&back->grad_o, &back->dv, &back->dbeta, &back->dg}) {
        move(array, batch, token, value_head);
    }
    move(&back->dfinal, state);
    move(&back->dinitial, state);
    move(&back->dA_log, value_head);
    move(&back->ddt_bias, value_head);
}

carry_status carry_delta_begin(const carry_delta_plan *plan, cudaStream_t *stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    *stream = (cudaStream_t)carry_ctx_stream(ctx, plan->problem.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    return CARRY_OK;
}

void carry_delta_count_work(carry_delta_plan *plan, double factor) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    plan->flops = factor * tokens * (double)p->value_heads * (double)(p->key * p->value);
    carry_span_work(plan->ctx, plan->flops, tokens);
}

int64_t *carry_delta_take_borders(const carry_delta_plan *plan, carry_arena *arena) {
    int64_t count = plan->problem.sequences > 0 ? plan->sequences + 1 : 0;
    return (int64_t *)carry_arena_take(arena, (size_t)count, sizeof(int64_t));
}

carry_status carry_delta_upload_borders(carry_delta_plan *plan, int64_t *to, const carry_tensor *cu_seqlens,
                                        cudaStream_t stream) {
    return cu_seqlens == NULL
               ? CARRY_OK
               : carry_delta_upload_some(plan, to, (const int64_t *)cu_seqlens->data, plan->sequences + 1, stream);
}

carry_status carry_delta_upload_some(carry_delta_plan *plan, int64_t *to, const int64_t *from, int64_t count,
                                     cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    for (int64_t i = 0; i < count; i += BORDERS) {
        some_borders some;
        int these = count - i < BORDERS ? (int)(count - i) : BORDERS;
        for (int j = 0; j < these; j++) {
            some.at[j] = from[i + j] - from[0];
        }
        put_borders<<<1, 256, 0, stream>>>(to + i, some, these);
        CARRY_CUDA_TRY(cudaGetLastError(), "cu_seqlens could not be copied to it");
    }
    return CARRY_OK;
}

int64_t carry_delta_kept_slots(const carry_delta_plan *plan) {
    return plan->problem.batch * plan->problem.tokens / CARRY_DELTA_KEEP + plan->sequences;
}

bool carry_delta_applies_unless(const carry_delta_plan *plan, const char *reason, char *why, size_t why_size) {
    int found = 0;
    if (reason != NULL) {
        (void)snprintf(why, why_size, "%s", reason);
        return false;
    }
    if (sscanf(plan->gpu.kernels, "sm_%d", &found) != 1 || found < OLDEST) {
        (void)snprintf(why, why_size, "device %d (%.48s) is %s, and the delta rule needs sm_%d or later",
                       plan->problem.device, plan->gpu.name, plan->gpu.kernels, OLDEST);
        return false;
    }
    return true;
}
