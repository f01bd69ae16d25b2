/* Shared by the delta rule's methods on a GPU: kernel arguments, host functions around the launches, and single
   tokens, ranges and backward rounds for methods that have no kernels for them. Each method is a folder, plain/,
   tiles/, keys/ or chunk/, whose method.cu has the entry for the table (delta/table.c). Device functions that the
   methods share are in device.cuh, and in mma.cuh and mma_walk.cuh for chunks on tensor cores (tiles/ and keys/). This
   header needs CUDA's headers. */
#ifndef CARRY_DELTA_CUDA_H
#define CARRY_DELTA_CUDA_H

#include <cuda_runtime.h>

extern "C" {
#include "core/error.h"
#include "delta/plan.h"
}

#define CARRY_DELTA_KEEP 64 /* tokens between two states that are kept for the backward pass */

/* A [B, T, heads, size] or [B, T, heads] tensor; strides count elements. data NULL: absent. */
typedef struct carry_delta_array {
    void *data;
    carry_dtype dtype; /* not after the strides: there, walks of keys/ spill 350 bytes more (nvcc 13.0) */
    int64_t batch, token, head;
} carry_delta_array;

/* Kernel arguments, and for chunk/ the host code around its kernels. */
typedef struct carry_delta_job {
    int64_t tokens, sequences, heads, value_heads, group;
    int key, value;
    const int64_t *borders; /* borders of packed sequences in device memory; NULL: each batch item is a sequence */
    carry_delta_array q, k, v, o, beta, g;
    const float *A_log, *dt_bias;
    const float *initial;
    float *final_state, *snapshots, *kept;
    /* Strides of `kept`, which may cover more tokens and value heads than this job. kept_token: the job's first token
       in it. */
    int64_t kept_tokens, kept_heads, kept_token;
    float *maps; /* M of a range: K columns after those of V */
    int64_t snapshot_every, snapshot_last, snapshot_count;
    float scale, beta_factor;
    bool transposed, l2norm, gated, by_key, gate_inside, beta_sigmoid;
    int64_t batch;
    int64_t state_heads; /* value heads of the states in memory, which may be more than those of this job */
    /* Read by the host code of chunk/ only. */
    const int64_t *host_borders; /* `borders` in host memory */
    int64_t first_token;         /* the token that `borders` counts from */
    void *workspace;
    int split;            /* above 0: computed in two calls, pair and rest; the number of ranks that share the GPU */
    const int32_t *slots; /* for a step: sequence i has state slots[i]; NULL: state i */
} carry_delta_job;

/* Arguments of the backward kernels. part_* are sums over the columns of one block of V, which gradients.cu adds up
   in order: part_q, part_k (and part_g with a key gate): [B T, HV, blocks, K]; part_beta (and part_g): [B T, HV,
   blocks]. */
typedef struct carry_delta_back_job {
    carry_delta_job job;
    carry_delta_array grad_o, dq, dk, dv, dbeta, dg;
    const float *dfinal;
    float *dinitial, *dA_log, *ddt_bias;
    int64_t blocks;    /* number of blocks of V */
    int64_t lanes;     /* value heads of all sequences for which `blocks` was computed: those of the job, or more */
    bool add_partials; /* dA_log and ddt_bias are added to, not overwritten */
    float *part_q, *part_k, *part_beta, *part_g;
    int64_t most_blocks; /* most blocks in the grid */
    float4 *stash;       /* states of a few tokens for each block of the grid */
} carry_delta_back_job;

/* Defined in cuda.cu. A job has the sizes and options of the plan, and the inputs and gradients of a call. */
carry_delta_array carry_delta_array_of(const carry_tensor *tensor); /* tensor NULL: absent */
/* Inputs may be NULL. */
carry_delta_job carry_delta_job_of(const carry_delta_plan *plan, const carry_delta_inputs *inputs);
carry_delta_back_job carry_delta_back_job_of(const carry_delta_plan *plan, const carry_delta_backward_args *args);
/* Moves every tensor, parameter and state of a job forward by the given numbers of batch items, tokens, heads of q and
   k, and sequences. */
void carry_delta_job_move(carry_delta_job *job, int64_t batch, int64_t token, int64_t head, int64_t sequence);
void carry_delta_back_job_move(carry_delta_back_job *back, int64_t batch, int64_t token, int64_t head,
                               int64_t sequence);

/* Selects the plan's device and returns its stream. */
carry_status carry_delta_begin(const carry_delta_plan *plan, cudaStream_t *stream);
/* Records factor * tokens * HV * K * V floating-point operations. */
void carry_delta_count_work(carry_delta_plan *plan, double factor);
/* Copies cu_seqlens (in host memory, checked; NULL: not packed) to device memory. The values are passed as kernel
   parameters, so the caller may free its memory at once and the stream may be captured. upload_some copies `count`
   borders, subtracting the first from each. */
int64_t *carry_delta_take_borders(const carry_delta_plan *plan, carry_arena *arena);
carry_status carry_delta_upload_borders(carry_delta_plan *plan, int64_t *to, const carry_tensor *cu_seqlens,
                                        cudaStream_t stream);
carry_status carry_delta_upload_some(carry_delta_plan *plan, int64_t *to, const int64_t *from, int64_t count,
                                     cudaStream_t stream);
/* The largest number of states, one every CARRY_DELTA_KEEP tokens, that each value head may keep. */
int64_t carry_delta_kept_slots(const carry_delta_plan *plan);
/* `applies` of a method: true if reason is NULL and the GPU is new enough; otherwise writes the reason. */
bool carry_delta_applies_unless(const carry_delta_plan *plan, const char *reason, char *why, size_t why_size);

/* plain/method.cu: single tokens and ranges, for every method. */
carry_status carry_delta_plain_step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                    const int32_t *slots, const carry_delta_forward_args *inputs, void *memory,
                                    size_t bytes);
carry_status carry_delta_plain_range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                                     const carry_delta_forward_args *inputs, void *memory, size_t bytes);

/* Defined in gradients.cu. The first computes all gradients from their parts, the second only dq and dk from part_q and
   part_k. */
cudaError_t carry_delta_gradients_launch(const carry_delta_back_job *back, cudaStream_t stream);
cudaError_t carry_delta_rows_launch(const carry_delta_back_job *back, cudaStream_t stream);

/* Defined in rounds.cu: workspace, forward and backward pass of a method that walks tokens in order, using its
   launches. */
typedef struct carry_delta_walks {
    /* Walks all tokens forward. If job->kept is not NULL, stores a state there every CARRY_DELTA_KEEP tokens. */
    cudaError_t (*forward)(const carry_delta_job *job, int units, cudaStream_t stream);
    /* Walks all tokens backward. job.kept must be set. */
    cudaError_t (*backward)(const carry_delta_back_job *back, int units, cudaStream_t stream);
    /* The number of blocks of V, and the bytes of stash for a grid of at most `most` blocks. NULL: one block, no
       stash. */
    int64_t (*blocks)(const carry_delta_job *job, int units);
    size_t (*stash)(const carry_delta_job *job, int64_t most, int units);
    bool writes_rows; /* with one value head for each head, backward writes dq and dk, not part_q and part_k */
    double forward_cost, backward_cost; /* microseconds for each token */
} carry_delta_walks;

bool carry_delta_walks_workspace(carry_delta_plan *plan, const carry_delta_walks *walks);
carry_status carry_delta_walks_forward(carry_delta_plan *plan, const carry_delta_walks *walks,
                                       const carry_delta_forward_args *args, void *memory, size_t bytes);
carry_status carry_delta_walks_backward(carry_delta_plan *plan, const carry_delta_walks *walks,
                                        const carry_delta_backward_args *args, void *memory, size_t bytes);

#endif
