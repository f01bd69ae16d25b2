/* Launches products with quantised matrices in tiles. */
#include "ops/cuda/quantised_ring_hopper.cuh"

#include <atomic>

#include "device/cuda.h"

namespace quantised {

constexpr int CLUSTER_MOST = 8;
/* Bytes of shared memory: of a block if two fit on a multiprocessor, of a single block, and of x. */
constexpr int PAIR_MEMORY = 111 * 1024, LAST_MEMORY = 220 * 1024, X_MEMORY = 96 * 1024;

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

/* Multiprocessors of a GPU, asked for once. */
static int multiprocessors(int ordinal) {
    static std::atomic<int> known[CARRY_MAX_DEVICES];
    int count = ordinal < CARRY_MAX_DEVICES ? known[ordinal].load() : 0;
    if (count == 0 && cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal) == cudaSuccess &&
        ordinal < CARRY_MAX_DEVICES) {
        known[ordinal].store(count);
    }
    return count;
}

/* Tiles of the block that has most, compared with the mean. */
static double unevenness(int tiles, int blocks) {
    return (double)((tiles + blocks - 1) / blocks) * blocks / tiles;
}

template <class F, int NT, int W>
static carry_status put_ring(const launch_place &place, const carry_tile_product &p, const ring_plan &plan,
                             int sequences) {
    carry_ctx *ctx = place.ctx;
    const int ordinal = place.ordinal, clusters = multiprocessors(ordinal) / plan.cluster;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(ring<F, NT, W>, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.bytes),
                   "shared memory of a product with a quantised matrix");
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = config_of(place, attributes, min(plan.items, clusters) * plan.cluster, 32 * W,
                                          (size_t)plan.bytes, plan.cluster);
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, ring<F, NT, W>, p, plan, sequences),
                   "a product with a quantised matrix cannot be launched");
    return CARRY_OK;
}

/* Chooses the cluster size; the blocks of a cluster share the columns. Tries one block first, or two if there are at
   most 8 sequences, no norm and more than one unit, and the tiles divide unevenly among the multiprocessors. Doubles
   the size until the plan fits in shared memory and x of all sequences takes at most X_MEMORY per block. Returns false
   if no size fits. */
template <class F, int NT, int W>
static bool plan_ring(ring_plan *plan, const carry_tile_product &p, int sequences, int ordinal) {
    const int all = multiprocessors(ordinal);
    const bool in_pairs = NT == 1 && p.norm == NULL && p.units > 1 && unevenness(p.tiles, all) > 1.3;
    for (int cluster = in_pairs ? 2 : 1; cluster <= CLUSTER_MOST; cluster *= 2) {
        if (ring_plan_for<F, NT, W>(plan, p, sequences, all, cluster, NT == 1 ? PAIR_MEMORY : LAST_MEMORY) &&
            plan->sums_at <= X_MEMORY) {
            return true;
        }
    }
    return false;
}

template <class F> static carry_status put_form(const launch_place &place, const carry_tile_product &p, int sequences) {
    ring_plan plan;
    if (sequences <= 8 && plan_ring<F, 1, 12>(&plan, p, sequences, place.ordinal)) {
        return put_ring<F, 1, 12>(place, p, plan, sequences);
    }
    if (sequences > 8 && sequences <= 16 && plan_ring<F, 2, 16>(&plan, p, sequences, place.ordinal)) {
        return put_ring<F, 2, 16>(place, p, plan, sequences);
    }
    if (sequences > 16 && plan_ring<F, 4, 16>(&plan, p, sequences, place.ordinal)) {
        return put_ring<F, 4, 16>(place, p, plan, sequences);
    }
    if (sequences == 1) {
        carry_ctx *ctx = place.ctx;
        return carry_fail(ctx, CARRY_EUNSUPPORTED, "a product with a quantised matrix of %d columns", p.columns);
    }
    const int half = sequences > 8 ? (sequences / 2 + 7) / 8 * 8 : sequences / 2; /* too many columns for all */
    carry_tile_product rest = p;
    rest.x = (const char *)p.x + (size_t)(half * p.x_stride) * (p.x_is_wide ? sizeof(float) : sizeof(uint16_t));
    rest.y = (char *)p.y + (size_t)(half * p.y_stride) * (p.y_is_wide ? sizeof(float) : sizeof(uint16_t));
    rest.base = p.base != NULL ? (const char *)p.base + ((const char *)rest.y - (const char *)p.y) : NULL;
    rest.h = p.h != NULL ? p.h + half * p.y_stride : NULL;
    CARRY_TRY(put_form<F>(place, p, half));
    return put_form<F>(place, rest, sequences - half);
}

} // namespace quantised

extern "C" bool carry_cuda_tile_product_works(int ordinal) {
    int major = 0;
    cudaFuncAttributes attributes;
    /* A build may lack code for Hopper; in code for other architectures the kernel is empty and needs few registers. */
    const bool is_there =
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess && major >= 9 &&
        cudaFuncGetAttributes(&attributes, quantised::ring<quantised::fp8_wide, 1, 12>) == cudaSuccess &&
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
