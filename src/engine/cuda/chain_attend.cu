/* Launches the kernels of attention of a decoding step. */
#include <algorithm>

#include "engine/cuda/chain_attend.cuh"
#include "engine/cuda/chain_launch.cuh"

namespace chain {

template <int D, bool F8>
static carry_status put_attend_of(const launch_place &place, const carry_chain_attend &a,
                                  const carry_chain_lists &lists) {
    carry_ctx *ctx = place.ctx;
    const int ordinal = place.ordinal;
    int units = 0;
    CARRY_CUDA_TRY(cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, ordinal),
                   "the number of multiprocessors is not known");
    const int items = lists.sequences * a.key_heads * SPLITS;
    return put_of(place, attend<D, F8>, std::min(items, ATTEND_BLOCKS * units), ATTEND_THREADS, 0, a, lists);
}

carry_status put_attend(const launch_place &place, const carry_chain_attend &a, const carry_chain_lists &lists) {
    const bool is_f8 = a.key_scales != nullptr;
    return a.width == 256
               ? is_f8 ? put_attend_of<256, true>(place, a, lists) : put_attend_of<256, false>(place, a, lists)
           : is_f8 ? put_attend_of<128, true>(place, a, lists)
                   : put_attend_of<128, false>(place, a, lists);
}

carry_status put_combine(const launch_place &place, const carry_chain_attend &a, const carry_chain_lists &lists) {
    const int blocks = lists.sequences * a.heads;
    return a.width == 256 ? put_of(place, combine<256>, blocks, 256, 0, a, lists)
                          : put_of(place, combine<128>, blocks, 128, 0, a, lists);
}

} // namespace chain
