/* Plans and launches of the kernels in quantised_ring_hopper.cuh. */
#ifndef CARRY_OPS_CUDA_QUANTISED_LAUNCH_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_LAUNCH_HOPPER_CUH

#include "ops/cuda/quantised_ring_hopper.cuh"

#include <atomic>

#include "device/cuda.h"

namespace quantised {

constexpr int CLUSTER_MOST = 8;
/* Bytes of shared memory: of a block of ring that must not fit twice, of one of ring_beside that fits beside it, of a
   block that is alone on its multiprocessor, and of x. A multiprocessor has 228 KB; each block takes 1 KB more, and
   less than 1 KB that is static. */
constexpr int FIRST_MEMORY = 115 * 1024, BESIDE_MEMORY = 109 * 1024, LAST_MEMORY = 220 * 1024, X_MEMORY = 96 * 1024;

struct launch_place {
    carry_ctx *ctx;
    int ordinal;
    carry_stream *stream;
    bool overlaps;
};

static inline cudaLaunchConfig_t config_of(const launch_place &place, cudaLaunchAttribute (&attributes)[2], int blocks,
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
static inline int multiprocessors(int ordinal) {
    static std::atomic<int> known[CARRY_MAX_DEVICES];
    int count = ordinal < CARRY_MAX_DEVICES ? known[ordinal].load() : 0;
    if (count == 0 && cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, ordinal) == cudaSuccess &&
        ordinal < CARRY_MAX_DEVICES) {
        known[ordinal].store(count);
    }
    return count;
}

/* Tiles of the block that has most, compared with the mean. */
static inline double unevenness(int tiles, int blocks) {
    return (double)((tiles + blocks - 1) / blocks) * blocks / tiles;
}

/* shares: blocks of the next product run beside these. */
static inline carry_status put_kernel(const launch_place &place,
                                      void (*kernel)(const carry_tile_product, const ring_plan, int), int warps,
                                      const carry_tile_product &p, const ring_plan &plan, int sequences, bool shares) {
    carry_ctx *ctx = place.ctx;
    const int ordinal = place.ordinal, clusters = multiprocessors(ordinal) / plan.cluster;
    CARRY_CUDA_TRY(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.bytes),
                   "shared memory of a product with a quantised matrix");
    if (shares) {
        CARRY_CUDA_TRY(carry_cuda_share_most(kernel), "shared memory of a product with a quantised matrix");
    }
    cudaLaunchAttribute attributes[2];
    cudaLaunchConfig_t config = config_of(place, attributes, min(plan.items, clusters) * plan.cluster, 32 * warps,
                                          (size_t)plan.bytes, plan.cluster);
    CARRY_CUDA_TRY(cudaLaunchKernelEx(&config, kernel, p, plan, sequences),
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
        const int most = NT > 1 ? LAST_MEMORY : p.is_second ? BESIDE_MEMORY : FIRST_MEMORY;
        if (ring_plan_for<F, NT, W>(plan, p, sequences, all, cluster, most) && plan->sums_at <= X_MEMORY) {
            plan->bytes = NT == 1 && !p.is_second ? FIRST_MEMORY : plan->bytes;
            return true;
        }
    }
    return false;
}

/* Registers of a thread; 0 if the kernel is not compiled for compute capability 9.0 itself. */
template <class Kernel> static int registers_of(Kernel *kernel) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, kernel) != cudaSuccess || attributes.binaryVersion != 90) {
        (void)cudaGetLastError();
        return 0;
    }
    return attributes.numRegs;
}

/* quantised_hopper_one.cu: one sequence. *fits is false, and nothing is launched, if no kernel supports the product. */
carry_status put_one(const launch_place &place, const carry_tile_product &p, const ring_plan &plan, bool *fits);
/* The fewest registers of a thread in its kernels for products with is_second. */
int one_registers(int format);
/* quantised_hopper_many.cu: 9 to 32 sequences. *fits is false, and nothing is launched, if x takes too much memory. */
carry_status put_many(const launch_place &place, const carry_tile_product &p, int sequences, bool *fits);

} // namespace quantised

#endif
