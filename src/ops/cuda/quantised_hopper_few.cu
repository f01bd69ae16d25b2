/* Products of 2 to 8 sequences with quantised matrices in tiles. */
#include "ops/cuda/quantised_plain_hopper.cuh"

namespace quantised {

carry_status put_few(const launch_place &place, const carry_tile_product &p, const ring_plan &plan, int sequences) {
    return put_plain<false>(place, p, plan, sequences);
}

int few_registers(int format) {
    return plain_registers<false>(format);
}

} // namespace quantised
