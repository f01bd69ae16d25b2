/* The code of the AVX512_BF16 and AMX products with the instructions written in C as their manual defines them. So
   panels, indices and edges are tested on every machine, and the real instructions are compared with this where they
   exist. */
#include <math.h>
#include <string.h>

#include "ops/kernels/bf16.h"

/* A function that replaces one instruction, which works on registers: the sanitizers check only the loads and stores
   around it. */
#define INSTRUCTION static __attribute__((no_sanitize("address", "undefined", "thread")))

/* Subnormal operands and results count as zero. */
INSTRUCTION float flushed(float x) {
    return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x;
}

INSTRUCTION float widened(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return flushed(x);
}

INSTRUCTION float fused(float sum, uint16_t x, uint16_t y) {
    return flushed(fmaf(widened(x), widened(y), sum));
}

typedef struct sums {
    float of[16];
} sums;

typedef struct pairs {
    uint16_t of[16][2];
} pairs;

static sums sums_zero(void) {
    return (sums){{0}};
}

static sums sums_load(const float *from) {
    sums made;
    memcpy(&made, from, sizeof made);
    return made;
}

static void sums_store(float *to, sums sum) {
    memcpy(to, &sum, sizeof sum);
}

static pairs pairs_load(const uint16_t *from) {
    pairs made;
    memcpy(&made, from, sizeof made);
    return made;
}

static pairs pairs_all(const uint16_t *from) {
    pairs made;
    for (int i = 0; i < 16; i++) {
        made.of[i][0] = from[0];
        made.of[i][1] = from[1];
    }
    return made;
}

/* VDPBF16PS: the odd products first. */
INSTRUCTION sums dot_pairs(sums sum, pairs x, pairs y) {
    for (int i = 0; i < 16; i++) {
        sum.of[i] = fused(flushed(sum.of[i]), x.of[i][1], y.of[i][1]);
        sum.of[i] = fused(sum.of[i], x.of[i][0], y.of[i][0]);
    }
    return sum;
}

#include "ops/kernels/bf16_tile_avx512.h"

typedef union amx_tiles {
    float sum[8][16][16];
    uint16_t element[8][16][32];
} amx_tiles;

static void load_tile(amx_tiles *tiles, int t, const void *from, ptrdiff_t bytes) {
    for (int r = 0; r < 16; r++) {
        memcpy(tiles->sum[t][r], (const char *)from + r * bytes, 64);
    }
}

static void store_tile(const amx_tiles *tiles, int t, void *to, ptrdiff_t bytes) {
    for (int r = 0; r < 16; r++) {
        memcpy((char *)to + r * bytes, tiles->sum[t][r], 64);
    }
}

/* TDPBF16PS: chains of even and of odd products, added together and then to c. */
INSTRUCTION void dot_tiles(amx_tiles *tiles, int c, int a, int b) {
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 16; column++) {
            float chain[2] = {0.0f, 0.0f};
            for (int l = 0; l < 16; l++) {
                for (int odd = 0; odd < 2; odd++) {
                    chain[odd] =
                        fused(chain[odd], tiles->element[a][row][2 * l + odd], tiles->element[b][l][2 * column + odd]);
                }
            }
            float *sum = &tiles->sum[c][row][column];
            *sum = flushed(flushed(*sum) + flushed(chain[0] + chain[1]));
        }
    }
}

#define TILES_OPEN
#define TILES_CLOSE
#define TILE_ZERO(t) memset(tiles->sum[t], 0, sizeof tiles->sum[t])
#define TILE_LOAD(t, from, bytes) load_tile(tiles, t, from, bytes)
#define TILE_STREAM(t, from, bytes) load_tile(tiles, t, from, bytes)
#define TILE_STORE(t, to, bytes) store_tile(tiles, t, to, bytes)
#define TILE_DOT(c, a, b) dot_tiles(tiles, c, a, b)

#include "ops/kernels/bf16_tile_amx.h"

static const char *missing(void) {
    return NULL;
}

extern const carry_bf16 carry_bf16_emulated_avx512;
extern const carry_bf16 carry_bf16_emulated_amx;
const carry_bf16 carry_bf16_emulated_avx512 = {.name = "avx512-bf16-emulated",
                                               .about = "VDPBF16PS written out in C, for tests",
                                               .missing = missing,
                                               .emulated = true,
                                               VECTOR_BF16};
const carry_bf16 carry_bf16_emulated_amx = {.name = "amx-emulated",
                                            .about = "TDPBF16PS written out in C, for tests",
                                            .missing = missing,
                                            .emulated = true,
                                            AMX_BF16};
