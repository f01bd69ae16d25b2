/* Sizes of a product by quantised_stream_hopper.cuh: rounds of tiles, slots of warps, and shared memory. */
#ifndef CARRY_OPS_CUDA_QUANTISED_STREAM_PLAN_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_STREAM_PLAN_HOPPER_CUH

#include "ops/cuda/quantised_tile_hopper.cuh"

namespace quantised {

constexpr int STREAM_SLOTS = 12 /* of a warp, at most */;

/* Sizes of a launch, and offsets in shared memory in bytes. */
struct stream_plan {
    int items, each;    /* tiles, or pairs of tiles for SwiGLU; tiles of an item */
    int cluster, units; /* blocks that share the columns; units of a tile of each block, at most */
    int slots;          /* units that a warp copies ahead */
    int round, touched; /* tiles of a round; tiles of a round that a warp has units of, at most */
    int turns;          /* 2: parts of two rounds have separate memory */
    int pitch, sums_at, parts_at, part_bytes, squares_at, other_at, ring_at, bytes;
};

/* Returns false if the sizes do not fit. most: bytes of shared memory. */
template <class F, int NT, int W>
static bool stream_plan_for(stream_plan *made, const carry_tile_product &p, int sequences, int blocks, int cluster,
                            int most) {
    stream_plan m = {};
    const int clusters = blocks / cluster;
    if (sequences > 8 * NT || 2 * W < sequences || clusters < 1 || p.units < 1) {
        return false;
    }
    m.each = p.output == CARRY_TILE_SWIGLU ? 2 : 1;
    m.items = p.tiles;
    m.cluster = cluster;
    m.units = (p.units + cluster - 1) / cluster;
    const int tiles = (m.items + clusters - 1) / clusters * m.each;
    m.round = 2 * W / sequences * m.each; /* an output for each thread */
    m.round = m.round < tiles ? m.round : tiles;
    m.touched = (m.round + W - 1) / W + 1; /* whatever the number of units */
    m.touched = m.touched < m.round ? m.touched : m.round;
    m.turns = NT == 1 ? 2 : 1;
    m.pitch = m.units * CARRY_QUANT_UNIT_COLUMNS * 2 + 64; /* an odd multiple of half of the banks */
    m.sums_at = m.pitch * sequences;
    m.parts_at = m.sums_at + (F::OF_SUMS && F::MINIMUM ? m.units * 64 * NT : 0);
    m.part_bytes = W * m.touched * sequences * ROWS * 4;
    m.squares_at = m.parts_at + m.turns * m.part_bytes;
    m.other_at = m.squares_at + sequences * W * 4;
    m.ring_at = (m.other_at + (cluster > 1 ? 2 * cluster * 3 * 32 * W * 4 : 0) + 127) / 128 * 128;
    m.slots = (most - m.ring_at) / (W * (int)p.unit_bytes);
    m.slots = m.slots < STREAM_SLOTS ? m.slots : STREAM_SLOTS;
    m.bytes = m.ring_at + m.slots * W * (int)p.unit_bytes;
    *made = m;
    return p.units > m.units * (cluster - 1) && m.slots >= 2;
}

} // namespace quantised

#endif
