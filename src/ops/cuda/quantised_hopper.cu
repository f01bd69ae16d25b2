/* Launches products with quantised matrices in tiles. */
#include "ops/cuda/quantised_hopper.cuh"

#include "device/cuda.h"

namespace quantised {

constexpr int SLOTS = 132 * 4; /* blocks that keep an H200 reading */
constexpr size_t MOST_MEMORY = 100 * 1024, LAST_MEMORY = 200 * 1024;

struct launch_place {
    carry_ctx *ctx;
    int ordinal;
    carry_stream *stream;
    bool overlaps;
};

static cudaLaunchConfig_t config_of(const launch_place &place, cudaLaunchAttribute (&attributes)[2], int blocks,
                                    int threads, size_t bytes, int cluster) {
    cudaLaunchConfig_t config = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)cluster;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)blocks);
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = bytes;
    config.stream = (cudaStream_t)place.stream;
    config.attrs = attributes;
    config.numAttrs = place.overlaps ? 2 : 1;
    return config;
}

template <class F, int NT, int RT, int DEPTH, int BLOCKS>
static carry_status put(const launch_place &place, const carry_tile_product &p, int sequences) {
    carry_ctx *ctx = place.ctx;
    const int ordinal = place.ordinal;
    const int tiles = p.output == CARRY_TILE_SWIGLU ? p.tiles : (p.tiles + RT - 1) / RT;
    /* Clusters keep multiprocessors busy if there are few tiles, and give more memory to many sequences. */
    int cluster = 1;
    while (cluster < 8 && ((tiles * cluster < SLOTS / 2 && p.chunks >= 2 * WARPS * cluster) ||
                           (size_t)memory_for<F, NT, RT>(p.chunks, sequences, cluster).bytes > MOST_MEMORY)) {
        cluster *= 2;
    }
    const size_t bytes = (size_t)memory_for<F, NT, RT>(p.chunks, sequences, cluster).bytes;
    if (bytes > LAST_MEMORY) {
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a product of %d sequences with a quantised matrix of %d columns",
                          sequences, p.columns);
    }
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = config_of(place, attributes, tiles * cluster, THREADS, bytes, cluster);
    if (bytes > 48 * 1024) {
        CARRY_CUDA_TRY(cudaFuncSetAttribute(few<F, NT, RT, DEPTH, BLOCKS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                            (int)bytes),
                       "shared memory of a product with a quantised matrix");
    }
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, few<F, NT, RT, DEPTH, BLOCKS>, p, sequences),
                   "a product with a quantised matrix cannot be launched");
    return CARRY_OK;
}

template <class F> static carry_status put_form(const launch_place &place, const carry_tile_product &p, int sequences) {
    return sequences > 16                                   ? put<F, 4, 2, 2, 2>(place, p, sequences)
           : sequences > 8                                  ? put<F, 2, 2, 2, 2>(place, p, sequences)
           : p.output == CARRY_TILE_SWIGLU || sequences > 4 ? put<F, 1, 2, 2, 3>(place, p, sequences)
                                                            : put<F, 1, 1, 4, 3>(place, p, sequences);
}

} // namespace quantised

extern "C" bool carry_cuda_tile_product_works(int ordinal) {
    int major = 0;
    cudaFuncAttributes attributes;
    /* A build may lack code for Hopper; in code for other architectures the kernel is empty and needs few registers. */
    const bool is_there =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess && major >= 9 &&
        cudaFuncGetAttributes(&attributes, quantised::few<quantised::fp8_wide, 1, 1, 4, 3>) == cudaSuccess &&
        attributes.numRegs > 32;
    (void)cudaGetLastError();
    return is_there;
}

extern "C" carry_status carry_cuda_tile_product(carry_ctx *ctx, int ordinal, carry_stream *stream,
                                                const carry_tile_product *product, int sequences, bool overlaps) {
    const quantised::launch_place place = {ctx, ordinal, stream, overlaps};
    return quantised::with_form(
        product->format, [&](auto form) { return quantised::put_form<decltype(form)>(place, *product, sequences); });
}
