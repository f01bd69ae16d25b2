/* The kernels written once over vectors of LANES floats. A file per instruction set defines

      LANES            floats in a vector
      TILE_VECTORS     widest tile, in vectors
      TILE_ROWS        rows of the widest tile: its sums, a row of b and an element of a fit the registers
      THREE_ROWS       rows of tiles of three vectors; 0: not used
      PAIR_ROWS        rows of tiles of two vectors
      ONE_ROWS         rows of tiles of one vector
      DOT_AHEAD        distance in floats at which a product with a vector prefetches its matrix; 0: no prefetch
      PACK_AHEAD       distance in k at which panels are prefetched into the first-level cache; 0: no prefetch
      PACK_ROWS, PACK_VECTORS: the tile of packed products; PACK_DEPTH: k of a block
      SQUARE           side of the squares that packing transposes in registers, 4 or 8
      TOKEN_VECTORS    vectors of a row of the delta rule's state that are updated at a time; this takes twice as many
                       registers and a few more
      vec              the vector type, by vector_size
      wide_bits        LANES uint32_t
      f16_load, f16_store, bf16_load, bf16_store: LANES 16-bit elements to a vector and back
      bf16_upper       rounded to bf16, in the upper halves of the result; the lower halves are undefined
      clamped          clamped to least..most; undefined for NaN
      reciprocal       within 2^-13

   and includes this file. Vectors are the compiler's own (vector_size), so the same source serves gcc and clang, ARM
   and x86. */
#include <string.h>

#include "ops/kernels/kernels.h"
#include "ops/kernels/rows_loops.h"

#define INLINE static inline __attribute__((always_inline))

typedef float vec_unaligned __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

INLINE vec load(const float *from) {
    return *(const vec_unaligned *)from;
}

INLINE void keep(float *to, vec value) {
    *(vec_unaligned *)to = value;
}

/* Load and store LANES elements of a stored type. NOTHING is the type of h if only the state is wanted. */
#define NOTHING (-1)

INLINE vec load_as(const int type, const void *from, int64_t at) {
    return type == CARRY_F32    ? load((const float *)from + at)
           : type == CARRY_BF16 ? bf16_load((const uint16_t *)from + at)
                                : f16_load((const uint16_t *)from + at);
}

INLINE void keep_as(const int type, void *to, int64_t at, vec value) {
    if (type == CARRY_F32) {
        keep((float *)to + at, value);
    } else if (type == CARRY_BF16) {
        bf16_store((uint16_t *)to + at, value);
    } else if (type == CARRY_F16) {
        f16_store((uint16_t *)to + at, value);
    }
}

/* The last elements, fewer than a vector, go through a full vector. */
INLINE void widen(const int type, float *to, const uint16_t *from, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        keep(to + i, load_as(type, from, i));
    }
    if (i < count) {
        uint16_t in[LANES] = {0};
        float out[LANES];
        memcpy(in, from + i, (size_t)(count - i) * sizeof *in);
        keep(out, load_as(type, in, 0));
        memcpy(to + i, out, (size_t)(count - i) * sizeof *out);
    }
}

INLINE void narrow(const int type, uint16_t *to, const float *from, int64_t count) {
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        keep_as(type, to, i, load(from + i));
    }
    if (i < count) {
        float in[LANES] = {0};
        uint16_t out[LANES];
        memcpy(in, from + i, (size_t)(count - i) * sizeof *in);
        keep_as(type, out, 0, load(in));
        memcpy(to + i, out, (size_t)(count - i) * sizeof *out);
    }
}

#include "ops/kernels/vector_diagonal.h"
#include "ops/kernels/vector_dots.h"
#include "ops/kernels/vector_exact.h"
#include "ops/kernels/vector_half_dots.h"
#include "ops/kernels/vector_half_rows.h"
#include "ops/kernels/vector_pack.h"
#include "ops/kernels/vector_product.h"
#include "ops/kernels/vector_packed.h"
#include "ops/kernels/vector_token.h"

static void f32_from_bf16(float *to, const uint16_t *from, int64_t count) {
    widen(CARRY_BF16, to, from, count);
}

static void bf16_from_f32(uint16_t *to, const float *from, int64_t count) {
    narrow(CARRY_BF16, to, from, count);
}

static void f32_from_f16(float *to, const uint16_t *from, int64_t count) {
    widen(CARRY_F16, to, from, count);
}

static void f16_from_f32(uint16_t *to, const float *from, int64_t count) {
    narrow(CARRY_F16, to, from, count);
}

#define VECTOR_KERNELS                                                                                                 \
    .usable = usable, .product = product, .packed = &packed_kernels, .columns = TILE_VECTORS * LANES,                  \
    .diagonal_scan = diagonal_scan, .diagonal_apply = diagonal_apply, .delta_token = delta_token,                      \
    .half_dots = half_dots_of, .exact_dots = exact_dots, .f32_from_bf16 = f32_from_bf16, .f32_from_f16 = f32_from_f16, \
    .bf16_from_f32 = bf16_from_f32, .f16_from_f32 = f16_from_f32, .rows = &row_loops, .half_rows = &half_row_kernels,  \
    .transpose = transpose
