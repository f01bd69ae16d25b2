/* The fused forward pass (fused.cuh): its kernel and its launch. */
#include "delta/cuda/chunk/fused.cuh"
#include "delta/cuda/chunk/host.cuh"

namespace DELTA_CHUNK {

static __global__ void __launch_bounds__(512, 1) fused(const __grid_constant__ fused_args a) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    using Shape = fused_shape;
    extern __shared__ char memory[];
    __shared__ scan_barriers<Shape::STAGES> b;
    __shared__ prepare_numbers n;
    scan_places<Shape> p = places_of<Shape>(memory, b);
    scan_item item = item_of<Shape>(a.walk.s, a.walk.r, blockIdx.x);
    clear_triangles(p, (int)threadIdx.x);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 3; i++) {
            hopper::barrier_init(p.keys_full + 8 * i, 1);
        }
        for (int i = 0; i < Shape::STAGES; i++) {
            hopper::barrier_init(p.prepared + 8 * i, 4 * ARRIVING);
        }
        init_barriers(p);
    }
    __syncthreads();
    int group = __shfl_sync(0xffffffffu, (int)threadIdx.x / 128, 0);
    int warp = __shfl_sync(0xffffffffu, (int)threadIdx.x % 128 / 32, 0), lane = (int)threadIdx.x % 32;
    if (group == 3) {
        hopper::registers_give<128>();
        if (item.chunks > 0) {
            fused_preparer me = {a.prepare, a.walk.v, item, p, n, (int)threadIdx.x % 128, warp, lane};
            me.run();
        }
    } else if (group == 2) {
        hopper::registers_give<Shape::OUT_REGISTERS>();
        fused_output me = {a.walk, item, p, warp, lane};
        me.run();
    } else {
        hopper::registers_take<Shape::WORK_REGISTERS>();
        scan_worker<Shape> me = {a.walk, item, p, group, warp, lane};
        me.run();
    }
#endif
}

bool fused_applies(const carry_delta_job *job, int units) {
    return job->key == D && job->value == D && job->split == 0 && job->sequences * job->value_heads * 2 > units * 3 / 2;
}

carry_status launch_fused(carry_ctx *ctx, const carry_delta_job *job, const scan_args &walk,
                          const prepare_args &prepare, int ordinal, cudaStream_t stream) {
    constexpr int SHARED = fused_shape::SHARED;
    static_assert(SHARED + sizeof(prepare_numbers) + 1024 <= 232448, "the shared memory of a block");
    fused_args a = {walk, prepare};
    CARRY_CUDA_TRY(cudaFuncSetAttribute(fused, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED),
                   "no shared memory for the delta rule");
    fused<<<(unsigned)(job->sequences * job->value_heads), fused_shape::THREADS, SHARED, stream>>>(a);
    CARRY_CUDA_TRY(cudaGetLastError(), "the delta rule could not be launched");
    return CARRY_OK;
}

} // namespace DELTA_CHUNK
