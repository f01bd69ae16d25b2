/* Two methods on a GPU: the entries of the table. "recurrent" has every size and option (cuda.h); "tiles64" walks chunks
   of 64 on tensor cores where K and V are small (tiles_cuda.h), and does the rest as "recurrent". */
#include "delta/cuda/cuda.h"

#include "delta/cuda/tiles_cuda.h"

#include <stdio.h>
#include <string.h>

extern "C" {
#include "core/context.h"
#include "core/span.h"
}
#include "device/cuda.h"

#define OLDEST 80    /* compute capability, times ten */
#define BORDERS 1000 /* copied by one launch */

extern "C" {
extern const carry_delta_method carry_delta_cuda_recurrent, carry_delta_cuda_tiles64;
}

namespace {

struct some_borders {
    int64_t at[BORDERS];
};

__global__ void put_borders(int64_t *to, const __grid_constant__ some_borders from, int count) {
    for (int i = (int)threadIdx.x; i < count; i += (int)blockDim.x) {
        to[i] = from.at[i];
    }
}

carry_delta_job job_of(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    carry_delta_job job;
    memset(&job, 0, sizeof job);
    job.tokens = p->tokens;
    job.sequences = plan->sequences;
    job.heads = p->heads;
    job.value_heads = p->value_heads;
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
    job.kept_tokens = p->tokens;
    job.kept_heads = p->value_heads;
    return job;
}

float *floats(const carry_tensor *tensor) {
    return tensor != NULL ? (float *)tensor->data : NULL;
}

size_t kept_floats(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    return (size_t)(p->batch * p->tokens / CARRY_DELTA_KEEP + plan->sequences) *
           (size_t)(p->value_heads * p->key * p->value);
}

int64_t *take_borders(const carry_delta_plan *plan, carry_arena *arena) {
    int64_t count = plan->problem.sequences > 0 ? plan->sequences + 1 : 0;
    return (int64_t *)carry_arena_take(arena, (size_t)count, sizeof(int64_t));
}

bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    return carry_delta_gpu_is_new_enough(plan, why, why_size);
}

bool tiles_apply(const carry_delta_plan *plan, char *why, size_t why_size) {
    const carry_delta_problem *p = &plan->problem;
    const int least = CARRY_DELTA_TILES_LEAST, most = CARRY_DELTA_TILES_MOST;
    const char *reason = p->dtype != CARRY_BF16                          ? "it is for bf16"
                         : p->key > most || p->value > most              ? "it is for K and V up to 64"
                         : p->key < least || p->value < least            ? "it is for K and V of 16 and more"
                         : p->gate == CARRY_DELTA_KEY_GATE               ? "it has no gates by key channel"
                         : p->snapshot_every > 0 || p->snapshot_last > 0 ? "it makes no snapshots"
                                                                         : NULL;
    if (reason != NULL) {
        (void)snprintf(why, why_size, "%s", reason);
        return false;
    }
    return carry_delta_gpu_is_new_enough(plan, why, why_size);
}

/* Seconds: some 9 us a chunk (docs/results/delta-cuda.md), two blocks a multiprocessor at once. */
double tiles_cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double rounds = (double)plan->sequences * (double)p->value_heads / (2.0 * (plan->gpu.units > 0 ? plan->gpu.units : 1));
    double length = (double)p->batch * (double)p->tokens / (double)plan->sequences;
    double chunks = (double)(int64_t)((length + CARRY_DELTA_KEEP - 1) / CARRY_DELTA_KEEP);
    return 6e-6 + (rounds > 1.0 ? rounds : 1.0) * chunks * 9e-6;
}

/* Seconds: about 0.47 us a token, some 8 blocks of 16 columns a multiprocessor at once. */
double cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double units = (double)plan->sequences * (double)p->value_heads * (double)((p->value + 15) / 16);
    double rounds = units / (8.0 * (plan->gpu.units > 0 ? plan->gpu.units : 1));
    double length = (double)p->batch * (double)p->tokens / (double)plan->sequences;
    return 5e-6 + (rounds > 1.0 ? rounds : 1.0) * length * 0.47e-6;
}

bool workspace(carry_delta_plan *plan) {
    carry_arena forward = carry_arena_over(NULL, 0);
    (void)take_borders(plan, &forward);
    plan->kept = kept_floats(plan) * sizeof(float);
    plan->range_workspace = 0;
    return carry_arena_total(&forward, &plan->forward_workspace) && carry_delta_rounds_workspace(plan);
}

void set_inputs(carry_delta_job *job, const carry_tensor *q, const carry_tensor *k, const carry_tensor *v,
                const carry_tensor *beta, const carry_tensor *g, const carry_tensor *A_log,
                const carry_tensor *dt_bias, const carry_tensor *initial) {
    job->q = carry_delta_array_of(q);
    job->k = carry_delta_array_of(k);
    job->v = carry_delta_array_of(v);
    job->beta = carry_delta_array_of(beta);
    job->g = carry_delta_array_of(g);
    job->A_log = floats(A_log);
    job->dt_bias = floats(dt_bias);
    job->initial = floats(initial);
}

/* One token from a state to a state, and nothing else wanted: what the kernels for steps do. */
bool is_step(const carry_delta_job *job) {
    return job->tokens == 1 && job->borders == NULL && job->initial != NULL && job->final_state != NULL &&
           job->o.data != NULL && job->kept == NULL && job->snapshots == NULL && job->maps == NULL;
}

carry_status run(carry_delta_plan *plan, const carry_delta_job *job, cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    if (is_step(job) && carry_delta_step_applies(job)) {
        CARRY_CUDA_TRY(carry_delta_step_launch(job, plan->gpu.units, stream),
                       "a step of the delta rule could not be started");
        return CARRY_OK;
    }
    if (is_step(job) && carry_delta_step_rows_applies(job)) {
        CARRY_CUDA_TRY(carry_delta_step_rows_launch(job, stream), "a step of the delta rule could not be started");
        return CARRY_OK;
    }
    CARRY_CUDA_TRY(carry_delta_recurrent_launch(job, stream), "the delta rule could not be started");
    return CARRY_OK;
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    carry_delta_job job = job_of(plan);
    int64_t *borders = take_borders(plan, &arena);
    CARRY_TRY(carry_delta_plain_begin(plan, &stream));
    CARRY_TRY(carry_delta_upload_borders(plan, borders, carry_delta_given(&args->cu_seqlens), stream));
    set_inputs(&job, &args->q, &args->k, &args->v, &args->beta, carry_delta_given(&args->g),
               carry_delta_given(&args->A_log), carry_delta_given(&args->dt_bias), carry_delta_given(&args->initial_state));
    job.borders = args->cu_seqlens.data != NULL ? borders : NULL;
    job.o = carry_delta_array_of(&args->o);
    job.final_state = floats(carry_delta_given(&args->final_state));
    job.snapshots = floats(carry_delta_given(&args->snapshots));
    job.kept = (float *)args->kept;
    CARRY_TRY(carry_delta_plain_walk(plan, &job, stream));
    carry_delta_plain_told(plan, 7.0);
    return CARRY_OK;
}

} // namespace

bool carry_delta_by_tiles(const carry_delta_plan *plan) {
    return plan->method == &carry_delta_cuda_tiles64;
}

carry_delta_job carry_delta_plain_job(const carry_delta_plan *plan) {
    return job_of(plan);
}

carry_status carry_delta_plain_begin(carry_delta_plan *plan, cudaStream_t *stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    *stream = (cudaStream_t)carry_ctx_stream(ctx, plan->problem.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    return CARRY_OK;
}

carry_status carry_delta_plain_walk(carry_delta_plan *plan, const carry_delta_job *job, cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    if (!carry_delta_by_tiles(plan)) {
        return run(plan, job, stream);
    }
    CARRY_CUDA_TRY(carry_delta_tiles_forward(job, stream), "the delta rule could not be started");
    return CARRY_OK;
}

void carry_delta_plain_told(carry_delta_plan *plan, double factor) {
    const carry_delta_problem *p = &plan->problem;
    double tokens = (double)(p->batch * p->tokens);
    plan->flops = factor * tokens * (double)p->value_heads * (double)(p->key * p->value);
    carry_span_work(plan->ctx, plan->flops, tokens);
}

carry_status carry_delta_plain_step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                    const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    const carry_delta_job job = carry_delta_step_job(plan, o, state, inputs);
    CARRY_TRY(carry_delta_plain_begin(plan, &stream));
    if (carry_delta_step_applies(&job)) {
        CARRY_CUDA_TRY(carry_delta_step_launch(&job, plan->gpu.units, stream),
                       "a step of the delta rule could not be started");
    } else {
        CARRY_TRY(run(plan, &job, stream));
    }
    carry_delta_plain_told(plan, 7.0);
    return CARRY_OK;
}

carry_status carry_delta_plain_range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                                     const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    cudaStream_t stream;
    carry_delta_job job = job_of(plan);
    CARRY_TRY(carry_delta_plain_begin(plan, &stream));
    set_inputs(&job, &inputs->q, &inputs->k, &inputs->v, &inputs->beta, carry_delta_given(&inputs->g),
               carry_delta_given(&inputs->A_log), carry_delta_given(&inputs->dt_bias), NULL);
    job.final_state = floats(L);
    job.maps = floats(M);
    return run(plan, &job, stream);
}

carry_delta_job carry_delta_step_job(const carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                     const carry_delta_forward_args *inputs) {
    carry_delta_job job = job_of(plan);
    if (inputs != NULL) {
        set_inputs(&job, &inputs->q, &inputs->k, &inputs->v, &inputs->beta, carry_delta_given(&inputs->g),
                   carry_delta_given(&inputs->A_log), carry_delta_given(&inputs->dt_bias), state);
    }
    job.o = carry_delta_array_of(o);
    job.final_state = floats(state);
    return job;
}

carry_delta_array carry_delta_array_of(const carry_tensor *tensor) {
    carry_delta_array array;
    memset(&array, 0, sizeof array);
    if (tensor != NULL) {
        array.data = tensor->data;
        array.dtype = tensor->dtype;
        array.batch = tensor->stride[0];
        array.token = tensor->stride[1];
        array.head = tensor->stride[2];
    }
    return array;
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

bool carry_delta_gpu_is_new_enough(const carry_delta_plan *plan, char *why, size_t why_size) {
    int found = 0;
    if (sscanf(plan->gpu.kernels, "sm_%d", &found) != 1 || found < OLDEST) {
        (void)snprintf(why, why_size, "device %d (%.48s) is %s, and the delta rule needs sm_%d or later",
                       plan->problem.device, plan->gpu.name, plan->gpu.kernels, OLDEST);
        return false;
    }
    return true;
}

extern "C" {
const carry_delta_method carry_delta_cuda_recurrent = {
    .name = "recurrent",
    .about = "token by token, every size and option",
    .chunk = 0,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .forward = forward,
    .backward = carry_delta_rounds_backward,
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};

const carry_delta_method carry_delta_cuda_tiles64 = {
    .name = "tiles64",
    .about = "chunks of 64 on tensor cores, bf16, K and V of 16 to 64",
    .chunk = CARRY_DELTA_KEEP,
    .applies = tiles_apply,
    .cost = tiles_cost,
    .workspace = workspace,
    .forward = forward,
    .backward = carry_delta_rounds_backward,
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};
}
