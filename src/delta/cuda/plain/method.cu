/* The method "recurrent" on a GPU, for every size and option. It also handles single tokens and ranges of all
   methods. */
#include "delta/cuda/plain/plain.h"

#include "device/cuda.h"

extern "C" {
extern const carry_delta_method carry_delta_cuda_recurrent;
}

namespace {

bool applies(const carry_delta_plan *plan, char *why, size_t why_size) {
    return carry_delta_applies_unless(plan, NULL, why, why_size);
}

/* Seconds: about 0.47 us for each token, with 8 blocks of 16 columns at once on a multiprocessor. */
double cost(const carry_delta_plan *plan) {
    const carry_delta_problem *p = &plan->problem;
    double units = (double)plan->sequences * (double)p->value_heads * (double)((p->value + 15) / 16);
    double rounds = units / (8.0 * (plan->gpu.units > 0 ? plan->gpu.units : 1));
    double length = (double)p->batch * (double)p->tokens / (double)plan->sequences;
    return 5e-6 + (rounds > 1.0 ? rounds : 1.0) * length * 0.47e-6;
}

/* True if a job takes one token from state to state with no other outputs. The kernels for steps handle such jobs. */
bool is_step(const carry_delta_job *job) {
    return job->tokens == 1 && job->borders == NULL && job->initial != NULL && job->final_state != NULL &&
           job->o.data != NULL && job->kept == NULL && job->snapshots == NULL && job->maps == NULL;
}

cudaError_t launch(const carry_delta_job *job, int units, cudaStream_t stream) {
    if (is_step(job) && carry_delta_step_applies(job)) {
        return carry_delta_step_launch(job, units, stream);
    }
    return is_step(job) && carry_delta_step_rows_applies(job) ? carry_delta_step_rows_launch(job, stream)
                                                              : carry_delta_recurrent_launch(job, stream);
}

const carry_delta_walks walks = {
    .forward = launch,
    .backward = carry_delta_back_launch,
    .blocks = carry_delta_back_blocks,
    .stash = carry_delta_back_stash,
    .writes_rows = false,
    .forward_cost = 0.86,
    .backward_cost = 2.0,
};

carry_status run(const carry_delta_plan *plan, const carry_delta_job *job) {
    carry_ctx *ctx = plan->ctx;
    int ordinal = plan->ordinal;
    cudaStream_t stream;
    CARRY_TRY(carry_delta_begin(plan, &stream));
    CARRY_CUDA_TRY(launch(job, plan->gpu.units, stream), "the delta rule could not be started");
    return CARRY_OK;
}

bool workspace(carry_delta_plan *plan) {
    return carry_delta_walks_workspace(plan, &walks);
}

carry_status forward(carry_delta_plan *plan, const carry_delta_forward_args *args, void *memory, size_t bytes) {
    return carry_delta_walks_forward(plan, &walks, args, memory, bytes);
}

carry_status backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory, size_t bytes) {
    return carry_delta_walks_backward(plan, &walks, args, memory, bytes);
}

} // namespace

carry_delta_job carry_delta_step_job(const carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                     const carry_delta_forward_args *inputs) {
    carry_delta_inputs in = {};
    if (inputs != NULL) {
        in = carry_delta_inputs_of(inputs);
        in.initial_state = state;
    }
    carry_delta_job job = carry_delta_job_of(plan, &in);
    job.o = carry_delta_array_of(o);
    job.final_state = (float *)state->data;
    return job;
}

carry_status carry_delta_plain_step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                    const int32_t *slots, const carry_delta_forward_args *inputs, void *memory,
                                    size_t bytes) {
    (void)memory;
    (void)bytes;
    carry_delta_job job = carry_delta_step_job(plan, o, state, inputs);
    job.slots = slots;
    CARRY_TRY(run(plan, &job));
    carry_delta_count_work(plan, 7.0);
    return CARRY_OK;
}

carry_status carry_delta_plain_range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                                     const carry_delta_forward_args *inputs, void *memory, size_t bytes) {
    (void)memory;
    (void)bytes;
    carry_delta_inputs in = carry_delta_inputs_of(inputs);
    in.initial_state = NULL;
    carry_delta_job job = carry_delta_job_of(plan, &in);
    job.final_state = (float *)L->data;
    job.maps = (float *)M->data;
    return run(plan, &job);
}

extern "C" const carry_delta_method carry_delta_cuda_recurrent = {
    .name = "recurrent",
    .about = "token by token, every size and option",
    .chunk = 0,
    .applies = applies,
    .cost = cost,
    .workspace = workspace,
    .forward = forward,
    .backward = backward,
    .step = carry_delta_plain_step,
    .range = carry_delta_plain_range,
};
