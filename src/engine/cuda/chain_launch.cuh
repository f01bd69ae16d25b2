/* Launches a kernel of a decoding step, which may start before the previous one has ended. */
#ifndef CARRY_ENGINE_CHAIN_LAUNCH_CUH
#define CARRY_ENGINE_CHAIN_LAUNCH_CUH

#include "device/cuda.h"
#include "engine/cuda/chain_kernel.cuh"

namespace chain {

typedef struct launch_place {
    carry_ctx *ctx;
    int ordinal;
    carry_stream *stream;
    bool overlaps;
} launch_place;

template <typename... Parameters, typename... Arguments>
static inline carry_status put_of(const launch_place &place, void (*kernel)(Parameters...), int blocks, int threads,
                                  size_t memory, const Arguments &...arguments) {
    carry_ctx *ctx = place.ctx;
    const int ordinal = place.ordinal;
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = memory;
    config.stream = (cudaStream_t)place.stream;
    config.attrs = &attribute;
    config.numAttrs = place.overlaps ? 1 : 0;
    if (memory > 48 * 1024) {
        CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)memory),
                       "shared memory of a decoding kernel");
    }
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, arguments...), "a decoding kernel could not be launched");
    return CARRY_OK;
}

template <typename... Parameters, typename... Arguments>
static inline carry_status put(const launch_place &place, void (*kernel)(Parameters...), int blocks, size_t memory,
                               const Arguments &...arguments) {
    return put_of(place, kernel, blocks, THREADS, memory, arguments...);
}

/* chain_tile_experts.cu: quantised experts. */
carry_status put_tile_experts(const launch_place &place, const carry_chain_experts &e, int sequences, bool is_up);

/* chain_attend.cu: attention over splits of the tokens, and the sum of the splits. */
carry_status put_attend(const launch_place &place, const carry_chain_attend &a, const carry_chain_lists &lists);
carry_status put_combine(const launch_place &place, const carry_chain_attend &a, const carry_chain_lists &lists);

} // namespace chain

#endif
