/* The kernels of "keys64" (keys.cuh, keys_back.cuh): their launches. Only *.cu files include it. */
#ifndef CARRY_DELTA_KEYS_CUDA_H
#define CARRY_DELTA_KEYS_CUDA_H

#include "delta/cuda/cuda.h"

/* Some value heads and some sequences that follow each other, and what is kept of their chunks, [slots, heads] of each
   (slot: the first one, among those of all sequences): pages; and for backward, in bf16, states that enter [columns, D]
   (NULL: they are in job.kept), gradients of those that leave, and corrected values [64, columns], value_step apart.
   columns: V, rounded up to 64; D: K, rounded up to 64 or 128. */
typedef struct carry_delta_keys_part {
    int64_t first, heads, sequence, sequences, slot, slots, columns;
    void *pages;
    uint16_t *states, *dstates, *values;
    int64_t value_step;
} carry_delta_keys_part;

/* Of keys_prepare.cu and keys_walk.cu: pages, and what goes through them; back: of backward, whose walk makes states.
   Then of backward (keys_back.cuh), in this order: dstates and, where dv belongs, y; then values, dv and part_beta
   [B T, HV]; then dg, and dq and dk, or part_q and part_k [B T, part's heads, K] where they are not NULL. */
#define CARRY_DELTA_KEYS_LAUNCHES                                                                                  \
    cudaError_t launch_prepare(const carry_delta_job *job, const carry_delta_keys_part *part, bool back,           \
                               cudaStream_t stream);                                                               \
    cudaError_t launch_walk(const carry_delta_job *job, const carry_delta_keys_part *part, bool back, int ordinal, \
                            int units, cudaStream_t stream);                                                       \
    cudaError_t launch_back_walk(const carry_delta_back_job *back, const carry_delta_keys_part *part, int ordinal, \
                                 int units, cudaStream_t stream);                                                  \
    cudaError_t launch_values(const carry_delta_back_job *back, const carry_delta_keys_part *part,                 \
                              cudaStream_t stream);                                                                \
    cudaError_t launch_gradients(const carry_delta_back_job *back, const carry_delta_keys_part *part,              \
                                 cudaStream_t stream);
namespace delta_keys {
CARRY_DELTA_KEYS_LAUNCHES
}
namespace delta_keys_f16 {
CARRY_DELTA_KEYS_LAUNCHES
}

/* keys64.cu: bytes of shared memory that a block may ask for. */
cudaError_t carry_delta_keys_most(int ordinal, int *bytes);

/* keys_backward.cu: backward by these kernels, cut so that it stays below 1.5 times its inputs; false: the GPU's blocks
   have too little shared memory. Sets the plan's workspace for backward, but not for the rest. */
bool carry_delta_keys_backward_applies(const carry_delta_plan *plan);
bool carry_delta_keys_backward_workspace(carry_delta_plan *plan);
carry_status carry_delta_keys_backward(carry_delta_plan *plan, const carry_delta_backward_args *args, void *memory,
                                       size_t bytes);

#endif
