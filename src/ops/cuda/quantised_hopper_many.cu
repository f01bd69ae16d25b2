/* Products of 9 to 32 sequences with quantised matrices in tiles: one block for each multiprocessor. */
#include "ops/cuda/quantised_launch_hopper.cuh"

namespace quantised {

template <class F, int NT>
static carry_status put_tiles(const launch_place &place, const carry_tile_product &p, int sequences, bool *fits) {
    ring_plan plan;
    *fits = plan_ring<F, NT, 16>(&plan, p, sequences, place.ordinal);
    return *fits ? put_kernel(place, ring<F, NT, 16>, 16, p, plan, sequences, false) : CARRY_OK;
}

carry_status put_many(const launch_place &place, const carry_tile_product &p, int sequences, bool *fits) {
    return with_form(p.format, [&](auto form) {
        return sequences <= 16 ? put_tiles<decltype(form), 2>(place, p, sequences, fits)
                               : put_tiles<decltype(form), 4>(place, p, sequences, fits);
    });
}

} // namespace quantised
