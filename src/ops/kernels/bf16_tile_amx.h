/* bf16 products over eight tile registers of 16 rows of 64 bytes. A panel of a is two tiles of 16 rows by 32 k, one of
   b two of 16 pairs of k by 16 columns; their four products stay in tiles 0 to 3 while k runs. The file that includes
   this defines

       amx_tiles                          what holds the tiles, as `tiles`; unused on the processor
       TILES_OPEN, TILES_CLOSE            configures eight tiles of 16 x 64 bytes on this thread; releases them
       TILE_ZERO(t)                       tile t = 0
       TILE_LOAD(t, from, bytes)          16 rows of 64 bytes, `bytes` apart
       TILE_STORE(t, to, bytes)
       TILE_DOT(c, a, b)                  the instruction

   kernels_bf16_amx.c has the processor's, kernels_bf16_emulated.c the same in C. */
#ifndef CARRY_OPS_KERNELS_BF16_TILE_AMX_H
#define CARRY_OPS_KERNELS_BF16_TILE_AMX_H

#include "ops/kernels/bf16_pack.h"

#define AMX_LINES 32 /* rows of a panel of a, columns of one of b */
#define AMX_UNIT 32  /* k of a tile */
#define AMX_HALF 16  /* rows of a tile, columns of a tile of sums */

static void amx_pack_a(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    bf16_pack(AMX_UNIT, AMX_LINES, AMX_UNIT, to, from, row, across, lines, k);
}

static void amx_pack_b(uint16_t *to, const uint16_t *from, ptrdiff_t row, bool across, int64_t lines, int64_t k) {
    bf16_pack(2, AMX_LINES, AMX_UNIT, to, from, row, across, lines, k);
}

/* Both halves of a's rows. */
static void amx_whole(amx_tiles *tiles, int64_t k, const uint16_t *a, const uint16_t *b, const float *base,
                      ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    (void)tiles;
    if (base != NULL) {
        const float *below = base + AMX_HALF * base_row;
        TILE_LOAD(0, base, base_row * 4);
        TILE_LOAD(1, base + AMX_HALF, base_row * 4);
        TILE_LOAD(2, below, base_row * 4);
        TILE_LOAD(3, below + AMX_HALF, base_row * 4);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
    }
    for (int64_t l = 0; l < k; l += AMX_UNIT) {
        TILE_LOAD(4, a, 64);
        TILE_LOAD(6, b, 128);
        TILE_LOAD(7, b + 2 * AMX_HALF, 128);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        TILE_LOAD(5, a + AMX_HALF * AMX_UNIT, 64);
        TILE_DOT(2, 5, 6);
        TILE_DOT(3, 5, 7);
        a += AMX_LINES * AMX_UNIT;
        b += AMX_LINES * AMX_UNIT;
    }
    float *below = c + AMX_HALF * c_row;
    TILE_STORE(0, c, c_row * 4);
    TILE_STORE(1, c + AMX_HALF, c_row * 4);
    TILE_STORE(2, below, c_row * 4);
    TILE_STORE(3, below + AMX_HALF, c_row * 4);
}

/* The first half alone, for 16 rows and fewer. */
static void amx_upper(amx_tiles *tiles, int64_t k, const uint16_t *a, const uint16_t *b, const float *base,
                      ptrdiff_t base_row, float *c, ptrdiff_t c_row) {
    (void)tiles;
    if (base != NULL) {
        TILE_LOAD(0, base, base_row * 4);
        TILE_LOAD(1, base + AMX_HALF, base_row * 4);
    } else {
        TILE_ZERO(0);
        TILE_ZERO(1);
    }
    for (int64_t l = 0; l < k; l += AMX_UNIT) {
        TILE_LOAD(4, a, 64);
        TILE_LOAD(6, b, 128);
        TILE_LOAD(7, b + 2 * AMX_HALF, 128);
        TILE_DOT(0, 4, 6);
        TILE_DOT(1, 4, 7);
        a += AMX_LINES * AMX_UNIT;
        b += AMX_LINES * AMX_UNIT;
    }
    TILE_STORE(0, c, c_row * 4);
    TILE_STORE(1, c + AMX_HALF, c_row * 4);
}

static void amx_place(int64_t k, const uint16_t *a, const uint16_t *b, const float *base, ptrdiff_t base_row, float *c,
                      ptrdiff_t c_row, int64_t rows) {
    amx_tiles tiles;
    if (rows <= AMX_HALF) {
        amx_upper(&tiles, k, a, b, base, base_row, c, c_row);
    } else {
        amx_whole(&tiles, k, a, b, base, base_row, c, c_row);
    }
}

static void amx_tile(const carry_bf16_tile *t) {
    float beside[AMX_LINES * AMX_LINES] = {0};
    TILES_OPEN;
    bf16_panels(t, AMX_LINES, AMX_LINES, beside, amx_place);
    TILES_CLOSE;
}

#define AMX_BF16                                                                                           \
    .rows = AMX_LINES, .columns = AMX_LINES, .unit = AMX_UNIT, .pack_a = amx_pack_a, .pack_b = amx_pack_b, \
    .tile = amx_tile

#endif
