/* Products of one sequence with quantised matrices in tiles. */
#include "ops/cuda/quantised_plain_hopper.cuh"

namespace quantised {

carry_status put_one(const launch_place &place, const carry_tile_product &p, const ring_plan &plan) {
    return put_plain<true>(place, p, plan, 1);
}

int one_registers(int format) {
    return plain_registers<true>(format);
}

} // namespace quantised
