/* The launches of the last kernels of the backward pass. */
#include "delta/cuda/chunk/gradients.cuh"
#include "delta/cuda/chunk/host.cuh"

namespace DELTA_CHUNK {

carry_status launch_gradients(carry_ctx *ctx, const carry_delta_back_job *b, const gradient_args &a, bool last,
                              int units, int ordinal, cudaStream_t stream) {
    const carry_delta_job *job = &b->job;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(gradients, cudaFuncAttributeMaxDynamicSharedMemorySize, GRADIENT_SHARED),
                   "no shared memory for the delta rule");
    gradient_args part = a;
    unsigned blocks = (unsigned)(a.items < units ? a.items : units);
    for (part.turn = 0; part.turn < a.turns; part.turn++) {
        gradients<<<blocks, GRADIENT_THREADS, GRADIENT_SHARED, stream>>>(part);
        CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule's gradients could not be launched");
    }
    if (a.turns > 1 && job->l2norm) {
        unsigned many = (unsigned)(a.items < 16 * units ? a.items : 16 * units);
        finish_norms<<<many, 128, 0, stream>>>(a, job->q, job->k);
        CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule's gradients could not be launched");
    }
    if (a.partial != NULL && last) {
        sum_partials<<<(unsigned)job->value_heads, 256, 0, stream>>>(
            a.partial, b->dA_log, b->ddt_bias, (int)slots_of(job), (int)job->value_heads, b->add_partials);
        CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule's gradients could not be launched");
    }
    return CARRY_OK;
}

} // namespace DELTA_CHUNK
