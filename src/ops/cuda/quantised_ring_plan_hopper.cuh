/* Sizes of a product by quantised_ring_hopper.cuh: rounds of tiles, slots of warps, and shared memory. */
#ifndef CARRY_OPS_CUDA_QUANTISED_RING_PLAN_HOPPER_CUH
#define CARRY_OPS_CUDA_QUANTISED_RING_PLAN_HOPPER_CUH

#include "ops/cuda/quantised_tile_hopper.cuh"

namespace quantised {

/* Sizes of a launch, and offsets in shared memory in bytes. */
struct ring_plan {
    int items, each;            /* tiles, or pairs of tiles for SwiGLU; tiles of an item */
    int items_each, items_more; /* items of a block; number of first blocks that have one more */
    int cluster, units;         /* blocks that share the columns; units of a tile of each block, at most */
    int slots;                  /* units that a warp copies ahead */
    int round;                  /* tiles of a round */
    int turns;                  /* 2: parts of two rounds have separate memory */
    int share;                  /* results of a round that each block of a cluster stores */
    int pitch, sums_at, parts_at, part_bytes, squares_at, other_at, other_floats, ring_at, bytes;
};

/* The numbers of slots that await_oldest knows. */
static inline int slots_within(int most) {
    return most >= 8 ? 8 : most >= 6 ? 6 : most >= 4 ? 4 : most;
}

/* Returns false if the sizes do not fit. most: bytes of shared memory. */
template <class F, int NT, int W>
static bool ring_plan_for(ring_plan *made, const carry_tile_product &p, int sequences, int blocks, int cluster,
                          int most) {
    ring_plan m = {};
    const int clusters = blocks / cluster;
    if (sequences > 8 * NT || clusters < 1 || p.units < 1 || p.unit_bytes != unit_of<F>::BYTES) {
        return false;
    }
    m.each = p.output == CARRY_TILE_SWIGLU ? 2 : 1;
    m.items = p.tiles;
    m.cluster = cluster;
    m.units = (p.units + cluster - 1) / cluster;
    const int used = m.items < clusters ? m.items : clusters;
    m.items_each = m.items / used;
    m.items_more = m.items % used;
    const int tiles = (m.items + clusters - 1) / clusters * m.each;
    m.round = 2 * W / sequences * m.each; /* a result for each thread, or a tile for each warp */
    m.round = m.round > W ? m.round : W;
    m.round = m.round < tiles ? m.round : tiles;
    m.turns = m.round < tiles && NT == 1 ? 2 : 1;
    m.share = (m.round / m.each * ROWS * sequences + cluster - 1) / cluster;
    m.pitch = m.units * CARRY_QUANT_UNIT_COLUMNS * 2 + 64; /* an odd multiple of half of the banks */
    m.sums_at = m.pitch * sequences;
    m.parts_at = m.sums_at + m.units * unit_of<F>::GROUPS * 32 * NT;
    m.part_bytes = (m.round + W - 1) * sequences * ROWS * 4; /* a warp's sums of a tile are at index tile + warp */
    m.squares_at = m.parts_at + m.turns * m.part_bytes;
    m.other_at = m.squares_at + sequences * W * 4;
    m.other_floats = cluster > 1 ? cluster * (m.share * m.each + sequences) : 0;
    m.ring_at = (m.other_at + 2 * m.other_floats * 4 + 127) / 128 * 128;
    m.slots = slots_within((most - m.ring_at) / (W * unit_of<F>::BYTES));
    m.bytes = m.ring_at + m.slots * W * unit_of<F>::BYTES;
    *made = m;
    return p.units > m.units * (cluster - 1) && m.slots >= 2;
}

} // namespace quantised

#endif
