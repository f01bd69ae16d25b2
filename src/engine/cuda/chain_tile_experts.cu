/* Launches the kernels for quantised experts of a decoding step. */
#include "engine/cuda/chain_tile_experts.cuh"

#include "engine/cuda/chain_launch.cuh"

namespace chain {

/* With one sequence a block has one tile, so that all multiprocessors have work; with several, its input is loaded for
   more tiles. */
carry_status put_tile_experts(const launch_place &place, const carry_chain_experts &e, int sequences, bool is_up) {
    const int each = sequences > 4 ? TILES_MOST : sequences > 1 ? 2 : 1;
    const auto blocks_of = [&](int rows) { return (rows / TILE_ROWS + each - 1) / each; };
    const int blocks = is_up ? e.chosen * blocks_of(e.width) + blocks_of(e.shared_width) : blocks_of(e.columns);
    const int64_t shared = e.shared_width > 0 ? e.shared_tiles.units : 0;
    const size_t input = is_up ? (size_t)e.columns : (size_t)(e.chosen * e.down_tiles.units + shared) * UNIT;
    return quantised::with_form(is_up ? e.up_tiles.format : e.down_tiles.format, [&](auto form) {
        using F = decltype(form);
        return put(place, is_up ? tile_experts_up<F> : tile_experts_down<F>, sequences * blocks, input * sizeof(float),
                   e, each);
    });
}

} // namespace chain
