/* Kernels of quantised_ring_hopper.cuh for one sequence. The number of sequences, the tiles of an item and the blocks
   of a cluster are constants, so that instructions take 19 to 23 KB: an H200 executes up to 32 KB of straight code at
   full speed, and the 49 KB of the kernels for 1 to 8 sequences at less than half. A step of one sequence takes 1.13 ms
   instead of 1.31 (4B, int4_g128; docs/attempts/quantised.md, 13.). */
#include "ops/cuda/quantised_launch_hopper.cuh"

namespace quantised {

template <class F, int EACH, int CLUSTER>
static __device__ __forceinline__ void run_one(const carry_tile_product &p, const ring_plan &m) {
    ring_plan own = m;
    own.each = EACH;
    own.cluster = CLUSTER;
    run_ring<F, 1, 12, true>(p, own, 1);
}

template <class F, int EACH, int CLUSTER>
static __global__ __launch_bounds__(32 * 12, 2) void ring_one(const __grid_constant__ carry_tile_product p,
                                                              const __grid_constant__ ring_plan m, int) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    run_one<F, EACH, CLUSTER>(p, m);
#endif
}

/* Needs about 80 registers, of which two blocks fit on a multiprocessor. A kernel with setmaxnreg starts with exactly
   as many registers as __maxnreg__ says, even if the instruction is not reached. (CARRY_CUDA_QUICK: functions are not
   inlined, and the compiler ignores it with a message.) */
template <class F, int EACH, int CLUSTER>
static __global__ __maxnreg__(BESIDE_REGISTERS) void ring_beside_one(const __grid_constant__ carry_tile_product p,
                                                                     const __grid_constant__ ring_plan m, int) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    run_one<F, EACH, CLUSTER>(p, m);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(CARRY_CUDA_QUICK)
    if (m.slots == 0) { /* never */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(BESIDE_REGISTERS));
    }
#endif
#endif
}

template <class F, int EACH, int CLUSTER>
static carry_status put_kernel_of(const launch_place &place, const carry_tile_product &p, const ring_plan &plan) {
    return p.is_second ? put_kernel(place, ring_beside_one<F, EACH, CLUSTER>, 12, p, plan, 1, true)
                       : put_kernel(place, ring_one<F, EACH, CLUSTER>, 12, p, plan, 1, true);
}

carry_status put_one(const launch_place &place, const carry_tile_product &p, const ring_plan &plan, bool *fits) {
    *fits = stages_one(p) && plan.cluster <= (plan.each == 1 ? 2 : 1);
    return with_form(p.format, [&](auto form) {
        using F = decltype(form);
        return !*fits              ? CARRY_OK
               : plan.each == 2    ? put_kernel_of<F, 2, 1>(place, p, plan)
               : plan.cluster == 1 ? put_kernel_of<F, 1, 1>(place, p, plan)
                                   : put_kernel_of<F, 1, 2>(place, p, plan);
    });
}

int one_registers(int format) {
    return with_form(format, [](auto form) {
        using F = decltype(form);
        return min(registers_of(ring_beside_one<F, 2, 1>),
                   min(registers_of(ring_beside_one<F, 1, 1>), registers_of(ring_beside_one<F, 1, 2>)));
    });
}

} // namespace quantised
