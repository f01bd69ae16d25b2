/* The plain kernels of the delta rule on a GPU: what cuda.cu and rounds.cu give to recurrent.cu, recurrent_backward.cu,
   gradients.cu, step.cu and step_rows.cu. Only *.cu files include it.

   Everything is token by token in f32, the gate being e^g of one token: no sum of gates is formed, so gates of 0, -1000
   and -inf are all exact. */
#ifndef CARRY_DELTA_CUDA_H
#define CARRY_DELTA_CUDA_H

#include <cuda_runtime.h>

extern "C" {
#include "core/error.h"
#include "delta/plan.h"
}

#define CARRY_DELTA_KEEP 64 /* tokens between two states that are kept for backward */
#define CARRY_DELTA_SUB 8   /* tokens whose states backward holds at once */

/* A [B, T, heads, size] or [B, T, heads] tensor; strides count elements. data NULL: it is not there. */
typedef struct carry_delta_array {
    void *data;
    carry_dtype dtype;
    int64_t batch, token, head;
} carry_delta_array;

/* All that a kernel is told. */
typedef struct carry_delta_job {
    int64_t tokens, sequences, heads, value_heads, group;
    int key, value;
    const int64_t *borders; /* on the device; NULL: a sequence is an item of the batch */
    carry_delta_array q, k, v, o, beta, g;
    const float *A_log, *dt_bias;
    const float *initial;
    float *final_state, *snapshots, *kept;
    /* kept is of sequences of so many tokens and so many value heads, of which these are some; kept_token: tokens of
       the sequences before these. */
    int64_t kept_tokens, kept_heads, kept_token;
    float *maps; /* M of a range: K columns behind V's */
    int64_t snapshot_every, snapshot_last, snapshot_count;
    float scale, beta_factor;
    bool transposed, l2norm, gated, by_key, gate_inside, beta_sigmoid;
} carry_delta_job;

/* Gradients. part_* are sums over the columns of one block of V, which gradients.cu adds up in order:
   part_q, part_k (and part_g with a key gate): [B T, HV, blocks, K]; part_beta (and part_g): [B T, HV, blocks]. */
typedef struct carry_delta_back_job {
    carry_delta_job job;
    carry_delta_array grad_o, dq, dk, dv, dbeta, dg;
    const float *dfinal;
    float *dinitial, *dA_log, *ddt_bias;
    int64_t blocks;    /* of V */
    int64_t lanes;     /* value heads of all sequences that blocks were counted for: those of the job, or more */
    bool add_partials; /* to what is there of dA_log and ddt_bias */
    float *part_q, *part_k, *part_beta, *part_g;
    int64_t most_blocks; /* of the grid */
    float4 *stash;       /* states of a few tokens, for each of them */
} carry_delta_back_job;

/* recurrent.cu */
cudaError_t carry_delta_recurrent_launch(const carry_delta_job *job, cudaStream_t stream);
/* recurrent_backward.cu: blocks of V, and bytes of stash with at most so many blocks of the grid, on a GPU with so many
   multiprocessors. */
int64_t carry_delta_back_blocks(const carry_delta_job *job, int multiprocessors);
size_t carry_delta_back_stash(const carry_delta_job *job, int64_t most, int multiprocessors);
cudaError_t carry_delta_back_launch(const carry_delta_back_job *back, int multiprocessors, cudaStream_t stream);
/* gradients.cu: all of them; dq and dk alone, from part_q and part_k. */
cudaError_t carry_delta_gradients_launch(const carry_delta_back_job *back, cudaStream_t stream);
cudaError_t carry_delta_rows_launch(const carry_delta_back_job *back, cudaStream_t stream);
/* step.cu: false: the state is transposed or not aligned, and the plain kernel has to do it. */
bool carry_delta_step_applies(const carry_delta_job *job);
cudaError_t carry_delta_step_launch(const carry_delta_job *job, int units, cudaStream_t stream);
/* step_rows.cu: the same for transposed states. */
bool carry_delta_step_rows_applies(const carry_delta_job *job);
cudaError_t carry_delta_step_rows_launch(const carry_delta_job *job, cudaStream_t stream);

/* cuda.cu: what other methods on GPUs need too. The kernels' view of a tensor, or of none; and cu_seqlens (on the CPU,
   checked) copied to device memory through kernel parameters, so that neither the caller's memory nor a stream that is
   being captured matters. */
carry_delta_array carry_delta_array_of(const carry_tensor *tensor);
/* A step's job; inputs NULL: of the state alone. */
carry_delta_job carry_delta_step_job(const carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                     const carry_delta_forward_args *inputs);
carry_status carry_delta_upload_borders(carry_delta_plan *plan, int64_t *to, const carry_tensor *cu_seqlens,
                                        cudaStream_t stream);
/* The same of `count` borders from `from` on, counted from the first of them. */
carry_status carry_delta_upload_some(carry_delta_plan *plan, int64_t *to, const int64_t *from, int64_t count,
                                     cudaStream_t stream);
bool carry_delta_gpu_is_new_enough(const carry_delta_plan *plan, char *why, size_t why_size);
/* What rounds.cu needs of it: a job without tensors, its inputs, forward over whole sequences by the plan's method. */
carry_delta_job carry_delta_plain_job(const carry_delta_plan *plan);
bool carry_delta_by_tiles(const carry_delta_plan *plan);
carry_status carry_delta_plain_begin(carry_delta_plan *plan, cudaStream_t *stream);
carry_status carry_delta_plain_walk(carry_delta_plan *plan, const carry_delta_job *job, cudaStream_t stream);
void carry_delta_plain_told(carry_delta_plan *plan, double factor);
/* Single tokens and ranges, for every method. */
carry_status carry_delta_plain_step(carry_delta_plan *plan, const carry_tensor *o, const carry_tensor *state,
                                    const carry_delta_forward_args *inputs, void *memory, size_t bytes);
carry_status carry_delta_plain_range(carry_delta_plan *plan, const carry_tensor *M, const carry_tensor *L,
                                     const carry_delta_forward_args *inputs, void *memory, size_t bytes);

/* rounds.cu: backward of "recurrent" and "tiles64". Sets backward_workspace and back_room of the plan; false: overflow.
 */
bool carry_delta_rounds_workspace(carry_delta_plan *plan);
carry_status carry_delta_rounds_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory,
                                         size_t bytes);

#endif
