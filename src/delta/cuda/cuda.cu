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

/* What lies in a workspace; the same lines count it and carve it. */
struct layout {
    int64_t *borders;
    float *part_q, *part_k, *part_beta, *part_g, *kept;
    float4 *stash;
};

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

void take_borders(const carry_delta_plan *plan, carry_arena *arena, layout *l) {
    int64_t count = plan->problem.sequences > 0 ? plan->sequences + 1 : 0;
    l->borders = (int64_t *)carry_arena_take(arena, (size_t)count, sizeof(int64_t));
}

bool by_tiles(const carry_delta_plan *plan) {
    return plan->method == &carry_delta_cuda_tiles64;
}

/* Of V, in backward. */
int64_t blocks_of(const carry_delta_plan *plan, const carry_delta_job *job) {
    return by_tiles(plan) ? 1 : carry_delta_back_blocks(job, plan->gpu.units);
}

/* kept: there is room for it. */
void take_backward(const carry_delta_plan *plan, carry_arena *arena, layout *l, bool kept) {
    const carry_delta_problem *p = &plan->problem;
    const carry_delta_job job = job_of(plan);
    size_t rows = (size_t)(p->batch * p->tokens * p->value_heads * blocks_of(plan, &job));
    size_t stash = by_tiles(plan) ? 0 : carry_delta_back_stash(&job, plan->gpu.units);
    size_t K = (size_t)p->key;
    take_borders(plan, arena, l);
    l->part_q = l->part_k = NULL;
    if (!by_tiles(plan) || plan->group > 1) { /* else dq and dk are written as they are made */
        l->part_q = (float *)carry_arena_take(arena, rows, K * sizeof(float));
        l->part_k = (float *)carry_arena_take(arena, rows, K * sizeof(float));
    }
    l->part_g = (float *)carry_arena_take(arena, rows, (job.by_key ? K : 1) * sizeof(float));
    l->part_beta = (float *)carry_arena_take(arena, rows, sizeof(float));
    l->stash = (float4 *)carry_arena_take(arena, stash, 1);
    l->kept = kept ? (float *)carry_arena_take(arena, kept_floats(plan), sizeof(float)) : NULL;
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
    carry_arena backward = carry_arena_over(NULL, 0);
    layout l;
    take_borders(plan, &forward, &l);
    take_backward(plan, &backward, &l, true);
    plan->kept = kept_floats(plan) * sizeof(float);
    plan->range_workspace = 0;
    return carry_arena_total(&forward, &plan->forward_workspace) &&
           carry_arena_total(&backward, &plan->backward_workspace);
}

carry_status begin(carry_delta_plan *plan, cudaStream_t *stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    *stream = (cudaStream_t)carry_ctx_stream(ctx, plan->problem.device);
    CARRY_CUDA_TRY(cudaSetDevice(ordinal), "it cannot be used");
    return CARRY_OK;
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

/* Forward over whole sequences, by the plan's method. */
carry_status walk(carry_delta_plan *plan, const carry_delta_job *job, cudaStream_t stream) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    if (!by_tiles(plan)) {
        return run(plan, job, stream);
    }
    CARRY_CUDA_TRY(carry_delta_tiles_forward(job, stream), "the delta rule could not be started");
    return CARRY_OK;
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
    carry_delta_job job = job_of(plan);
    layout l;
    CARRY_TRY(begin(plan, &stream));
    take_borders(plan, &arena, &l);
    CARRY_TRY(carry_delta_upload_borders(plan, l.borders, carry_delta_given(&args->cu_seqlens), stream));
    set_inputs(&job, &args->q, &args->k, &args->v, &args->beta, carry_delta_given(&args->g),
               carry_delta_given(&args->A_log), carry_delta_given(&args->dt_bias), carry_delta_given(&args->initial_state));
    job.borders = args->cu_seqlens.data != NULL ? l.borders : NULL;
    job.o = carry_delta_array_of(&args->o);
    job.final_state = floats(carry_delta_given(&args->final_state));
    job.snapshots = floats(carry_delta_given(&args->snapshots));
    job.kept = (float *)args->kept;
    CARRY_TRY(walk(plan, &job, stream));
    told(plan, 7.0);
    return CARRY_OK;
}

carry_status step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                  const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    const carry_delta_job job = carry_delta_step_job(plan, o, state, inputs);
    CARRY_TRY(begin(plan, &stream));
    if (carry_delta_step_applies(&job)) {
        CARRY_CUDA_TRY(carry_delta_step_launch(&job, plan->gpu.units, stream),
                       "a step of the delta rule could not be started");
    } else {
        CARRY_TRY(run(plan, &job, stream));
    }
    told(plan, 7.0);
    return CARRY_OK;
}

carry_status range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                   const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    cudaStream_t stream;
    carry_delta_job job = job_of(plan);
    CARRY_TRY(begin(plan, &stream));
    set_inputs(&job, &inputs->q, &inputs->k, &inputs->v, &inputs->beta, carry_delta_given(&inputs->g), carry_delta_given(&inputs->A_log), carry_delta_given(&inputs->dt_bias),
               NULL);
    job.final_state = floats(L);
    job.maps = floats(M);
    return run(plan, &job, stream);
}

carry_delta_back_job back_job_of(const carry_delta_plan *plan, const carry_delta_backward_args *args,
                                 const layout *l) {
    carry_delta_back_job back;
    memset(&back, 0, sizeof back);
    back.job = job_of(plan);
    set_inputs(&back.job, &args->q, &args->k, &args->v, &args->beta, carry_delta_given(&args->g),
               carry_delta_given(&args->A_log), carry_delta_given(&args->dt_bias), carry_delta_given(&args->initial_state));
    back.job.borders = args->cu_seqlens.data != NULL ? l->borders : NULL;
    back.job.kept = args->kept != NULL ? (float *)(uintptr_t)args->kept : l->kept;
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
    back.blocks = blocks_of(plan, &back.job);
    back.part_q = l->part_q;
    back.part_k = l->part_k;
    back.part_beta = l->part_beta;
    back.part_g = l->part_g;
    back.stash = l->stash;
    return back;
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    carry_arena arena = carry_arena_over(memory, bytes);
    layout l;
    CARRY_TRY(begin(plan, &stream));
    take_backward(plan, &arena, &l, args->kept == NULL);
    CARRY_TRY(carry_delta_upload_borders(plan, l.borders, carry_delta_given(&args->cu_seqlens), stream));
    const carry_delta_back_job back = back_job_of(plan, args, &l);
    if (args->kept == NULL) { /* the forward pass again, for its states alone */
        CARRY_TRY(walk(plan, &back.job, stream));
    }
    CARRY_CUDA_TRY(by_tiles(plan) ? carry_delta_tiles_backward(&back, stream)
                                  : carry_delta_back_launch(&back, plan->gpu.units, stream),
                   "the delta rule's backward pass could not be started");
    CARRY_CUDA_TRY(carry_delta_gradients_launch(&back, stream), "gradients of the delta rule could not be summed");
    told(plan, args->kept == NULL ? 35.0 : 28.0);
    return CARRY_OK;
}

} // namespace

carry_delta_job carry_delta_step_job(const carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                     const carry_delta_forward_args *inputs) {
    carry_delta_job job = job_of(plan);
    if (inputs != NULL) {
        set_inputs(&job, &inputs->q, &inputs->k, &inputs->v, &inputs->beta, carry_delta_given(&inputs->g), carry_delta_given(&inputs->A_log), carry_delta_given(&inputs->dt_bias),
                   state);
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
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    int64_t count = cu_seqlens != NULL ? plan->sequences + 1 : 0;
    for (int64_t i = 0; i < count; i += BORDERS) {
        some_borders some;
        int these = count - i < BORDERS ? (int)(count - i) : BORDERS;
        memcpy(some.at, (const int64_t *)cu_seqlens->data + i, (size_t)these * sizeof(int64_t));
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
    .backward = backward,
    .step = step,
    .range = range,
};

const carry_delta_method carry_delta_cuda_tiles64 = {
    .name = "tiles64",
    .about = "chunks of 64 on tensor cores, bf16, K and V of 16 to 64",
    .chunk = CARRY_DELTA_KEEP,
    .applies = tiles_apply,
    .cost = tiles_cost,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .step = step,
    .range = range,
};
}
