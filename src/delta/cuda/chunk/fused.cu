/* The fused kernel (fused.cuh) and its launch. */
#include "delta/cuda/chunk/fused_prepare.cuh"
#include "delta/cuda/chunk/fused_walk.cuh"
#include <stdlib.h>

#include "delta/cuda/chunk/host.cuh"

namespace DELTA_CHUNK {

static __device__ __forceinline__ fused_places fused_places_of(char *memory, fused_barriers &b) {
    using namespace hopper;
    fused_places p;
    p.start = (shared_address(memory) + 1023u) & ~1023u;
    p.data = memory + (p.start - shared_address(memory));
    p.full = shared_address(b.full);
    p.rows_full = shared_address(b.rows_full);
    p.rows_empty = shared_address(&b.rows_empty);
    p.prepared = shared_address(b.prepared);
    p.done = shared_address(b.done);
    p.rank = cluster_rank();
    return p;
}

static __device__ __forceinline__ void fused_init(const fused_places &p) {
    using namespace hopper;
    for (int i = 0; i < FUSED_STAGES; i++) {
        barrier_init(p.full + 8 * i, 1);
    }
    for (int i = 0; i < 2; i++) {
        barrier_init(p.rows_full + 8 * i, 1);
    }
    barrier_init(p.rows_empty, 4);
    for (int i = 0; i < FUSED_SLOTS; i++) {
        barrier_init(p.prepared + 8 * i, 1);
        barrier_init(p.done + 8 * i, 8); /* four warps of each walk */
    }
    barriers_show();
}

/* The upper right quarters of T and W stay zero. */
static __device__ __forceinline__ void fused_clear(const fused_places &p, int thread) {
    constexpr int PARTS = QUARTER / 16;
    for (int i = thread; i < FUSED_SLOTS * 2 * PARTS; i += FUSED_THREADS) {
        uint32_t to = p.slot(i / (2 * PARTS)) + BAND + i / PARTS % 2 * HALF + i % PARTS * 16;
        hopper::shared_store(to, make_uint4(0, 0, 0, 0));
    }
    hopper::fence_async();
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(FUSED_THREADS, 1)
    fused(const __grid_constant__ fused_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using namespace hopper;
    extern __shared__ char memory[];
    __shared__ fused_barriers b;
    __shared__ fused_work work[2];
    fused_places p = fused_places_of(memory, b);
    if (threadIdx.x == 0) {
        fused_init(p);
    }
    fused_clear(p, (int)threadIdx.x);
    cluster_meet();
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0), thread = (int)threadIdx.x % 128;
    int warp = __shfl_sync(0xffffffffu, thread / 32, 0), lane = thread % 32;
    if (group == 3) {
        registers_give<24>();
        if (thread == 0) {
            fused_load(a, p);
        } else if (thread == 32) {
            fused_load_rows(a, p);
        }
        __syncwarp();
    } else if (group > 0) {
        registers_give<128>();
        /* The last band has the most to do, so its warp is another one in the second warpgroup. */
        int band = __shfl_sync(0xffffffffu, (warp + 2 * group) % 4, 0);
        fused_preparer me = {a, p, work[group - 1], thread, band, lane, group - 1};
        me.run();
    } else {
        registers_take<232>();
        fused_walk(a, p, warp, lane);
    }
    cluster_meet(); /* until the other block has read and written everything here */
#endif
}

bool fused_applies(const carry_delta_job *job, int units) {
    int64_t items = job->sequences * job->value_heads;
    return getenv("CARRY_TRY_FUSED") != NULL && job->key <= D && job->value == D && job->split == 0 && job->kept == NULL &&
           items * 4 >= units;
}

carry_status launch_fused(carry_ctx *ctx, const carry_delta_job *job, const fused_args &a, int units, int ordinal,
                          cudaStream_t stream) {
    CARRY_CUDA_TRY(cudaFuncSetAttribute(fused, cudaFuncAttributeMaxDynamicSharedMemorySize, FUSED_SHARED),
                   "no shared memory for the delta rule");
    /* Packed sequences have different lengths, so each gets clusters of its own. */
    unsigned turns = job->borders != NULL ? 1 : (a.items + (unsigned)units / 2 - 1) / ((unsigned)units / 2);
    unsigned clusters = turns == 1 ? a.items : (unsigned)units / 2;
    fused<<<2 * clusters, FUSED_THREADS, FUSED_SHARED, stream>>>(a);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

} // namespace DELTA_CHUNK
