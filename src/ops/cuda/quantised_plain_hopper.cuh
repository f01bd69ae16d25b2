/* Kernels of quantised_ring_hopper.cuh for x in bf16 that is aligned (is_plain), for one sequence and for 2 to 8. The
   tiles of an item, the blocks of a cluster and, for one, the number of sequences are constants, so that instructions
   take 19 to 23 KB for one sequence and less than 32 KB for more: an H200 executes up to 32 KB of straight code at full
   speed, and the 49 KB of the general kernels at less than half. A first version for one sequence, of 29 KB, took
   1.20 ms a step instead of 1.31 (4B, int4_g128; docs/attempts/quantised.md, 13.). */
#ifndef CARRY_OPS_CUDA_QUANTISED_PLAIN_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_PLAIN_HOPPER_CUH

#include "ops/cuda/quantised_launch_hopper.cuh"

namespace quantised {

template <class F, int EACH, int CLUSTER, bool ONE>
static __device__ __forceinline__ void run_plain(const carry_tile_product &p, const ring_plan &m, int sequences) {
    ring_plan own = m;
    own.each = EACH;
    own.cluster = CLUSTER;
    run_ring<F, 1, 12, true, ONE>(p, own, ONE ? 1 : sequences);
}

template <class F, int EACH, int CLUSTER, bool ONE>
static __global__ __launch_bounds__(32 * 12, 2) void ring_plain(const __grid_constant__ carry_tile_product p,
                                                                const __grid_constant__ ring_plan m, int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    run_plain<F, EACH, CLUSTER, ONE>(p, m, sequences);
#endif
}

/* Needs about 80 registers, of which two blocks fit on a multiprocessor. A kernel with setmaxnreg starts with exactly
   as many registers as __maxnreg__ says, even if the instruction is not reached. (CARRY_CUDA_QUICK: functions are not
   inlined, and the compiler ignores it with a message.) */
template <class F, int EACH, int CLUSTER, bool ONE>
static __global__ __maxnreg__(BESIDE_REGISTERS) void ring_plain_beside(const __grid_constant__ carry_tile_product p,
                                                                       const __grid_constant__ ring_plan m,
                                                                       int sequences) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    run_plain<F, EACH, CLUSTER, ONE>(p, m, sequences);
#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(CARRY_CUDA_QUICK)
    if (m.slots == 0) { /* never */
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(BESIDE_REGISTERS));
    }
#endif
#endif
}

template <class F, int EACH, int CLUSTER, bool ONE>
static carry_status put_plain_kernel(const launch_place &place, const carry_tile_product &p, const ring_plan &plan,
                                     int sequences) {
    return p.is_second ? put_kernel(place, ring_plain_beside<F, EACH, CLUSTER, ONE>, 12, p, plan, sequences, true)
                       : put_kernel(place, ring_plain<F, EACH, CLUSTER, ONE>, 12, p, plan, sequences, true);
}

/* Launches a product for which has_plain is true. */
template <bool ONE>
static carry_status put_plain(const launch_place &place, const carry_tile_product &p, const ring_plan &plan,
                              int sequences) {
    return with_form(p.format, [&](auto form) {
        using F = decltype(form);
        return plan.each == 2      ? put_plain_kernel<F, 2, 1, ONE>(place, p, plan, sequences)
               : plan.cluster == 1 ? put_plain_kernel<F, 1, 1, ONE>(place, p, plan, sequences)
                                   : put_plain_kernel<F, 1, 2, ONE>(place, p, plan, sequences);
    });
}

/* The fewest registers of a thread in the kernels for products with is_second. */
template <bool ONE> static int plain_registers(int format) {
    return with_form(format, [](auto form) {
        using F = decltype(form);
        return min(registers_of(ring_plain_beside<F, 2, 1, ONE>),
                   min(registers_of(ring_plain_beside<F, 1, 1, ONE>), registers_of(ring_plain_beside<F, 1, 2, ONE>)));
    });
}

} // namespace quantised

#endif
