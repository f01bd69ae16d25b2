/* The tile of c for a product on a Hopper GPU: the one with which the busiest multiprocessor computes the fewest
   elements. cuBLASLt's heuristics lose up to 9 %: 2160 x 5120 in tiles of 240 x 128 takes 360 tiles, three rounds of
   132 of which the last is 73 % full; in tiles of 168 x 256 it takes 260, two rounds, the last 97 % full. Measured: 176
   and 162 us (docs/attempts/stream-gpu.md). Tiles are counted and not timed, so that a shape always gives the same
   bits. */
#ifndef CARRY_OPS_BLASLT_TILES_CUH
#define CARRY_OPS_BLASLT_TILES_CUH

#include <cublasLt.h>

#include "ops/device.h"

/* cuBLASLt is column-major: n is the first number of a name. */
typedef struct product_tile {
    uint32_t id;
    int n, m;
} product_tile;

#define TILE(n, m) \
    { CUBLASLT_MATMUL_TILE_##n##x##m, n, m }
static const product_tile product_tiles[] = {
    TILE(256, 128), TILE(256, 136), TILE(256, 144), TILE(256, 152), TILE(256, 160), TILE(256, 168),
    TILE(256, 176), TILE(192, 144), TILE(192, 152), TILE(192, 160), TILE(192, 168), TILE(192, 176),
    TILE(192, 184), TILE(192, 192), TILE(192, 200), TILE(192, 208), TILE(192, 216), TILE(192, 224),
    TILE(128, 216), TILE(128, 224), TILE(128, 232), TILE(128, 240), TILE(128, 248), TILE(128, 256)};
#undef TILE

/* The number of elements that the busiest of `units` multiprocessors computes. wide, high: tiles of a cluster along n
   and m. */
static int64_t tile_cost(const product_tile *tile, const carry_device_product *p, int64_t units, int64_t wide,
                         int64_t high) {
    const int64_t across = ((p->n + tile->n - 1) / tile->n + wide - 1) / wide * wide;
    const int64_t down = ((p->m + tile->m - 1) / tile->m + high - 1) / high * high;
    return (across * down + units - 1) / units * tile->n * tile->m;
}

static const product_tile *tile_of(uint32_t id) {
    for (const product_tile &tile : product_tiles) {
        if (tile.id == id) {
            return &tile;
        }
    }
    return NULL;
}

/* The tile to use instead of `id`; NULL if none is better by a fiftieth, or `id` is not in the table. */
static const product_tile *better_tile(uint32_t id, const carry_device_product *p, int64_t units, int64_t wide,
                                       int64_t high) {
    const product_tile *given = tile_of(id), *best = given;
    for (const product_tile &tile : product_tiles) {
        if (best != NULL && tile_cost(&tile, p, units, wide, high) < tile_cost(best, p, units, wide, high)) {
            best = &tile;
        }
    }
    return best != given && 50 * tile_cost(best, p, units, wide, high) <= 49 * tile_cost(given, p, units, wide, high)
               ? best
               : NULL;
}

#endif
