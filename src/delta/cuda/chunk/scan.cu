/* Compiles one scan kernel (scan.cuh): CARRY_INSTANCE_SHAPE, one of the kernels in scan_parts.cuh. */
#include "delta/cuda/chunk/host.cuh"

namespace DELTA_CHUNK {

/* Keeps blocks of one kind together: kinds that run at once are faster so (forward.cu). */
constexpr unsigned CLUSTER = 2;

template <typename Kernel>
carry_status launch_scan(carry_ctx *ctx, scan_launch &l, int64_t lanes, int64_t second_lanes, int ordinal,
                         cudaStream_t stream) {
    using first = typename Kernel::first;
    using second = typename Kernel::second;
    auto kernel = scan<first, second>;
    constexpr int SHARED = first::SHARED > second::SHARED ? first::SHARED : second::SHARED;
    static_assert(SHARED <= 232448 - 256, "the shared memory of a block");
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for the delta rule");
    l.blocks = (unsigned)lanes * blocks_of<first>(l.first.s);
    unsigned others = (unsigned)second_lanes * blocks_of<second>(l.first.s);
    cudaLaunchAttribute attributes[2] = {};
    unsigned count = 0;
    if (l.first.ready != nullptr) { /* the scan starts once all blocks of prepare run */
        attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[count++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (others > 0 && l.blocks % CLUSTER == 0 && others % CLUSTER == 0) {
        cudaLaunchAttribute &together = attributes[count++];
        together.id = cudaLaunchAttributeClusterDimension;
        together.val.clusterDim.x = CLUSTER;
        together.val.clusterDim.y = together.val.clusterDim.z = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(l.blocks + others);
    config.blockDim = dim3(first::THREADS);
    config.dynamicSmemBytes = SHARED;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = count;
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, l), "the delta rule could not be launched");
    return CARRY_OK;
}

template carry_status launch_scan<scans::CARRY_INSTANCE_SHAPE>(carry_ctx *ctx, scan_launch &l, int64_t lanes,
                                                               int64_t second_lanes, int ordinal, cudaStream_t stream);

} // namespace DELTA_CHUNK
