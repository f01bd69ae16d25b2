/* The forms of quantised formats in tiles (ops/quantised/tiles.h), as types for which kernels are compiled. */
#ifndef CARRY_OPS_CUDA_QUANTISED_FORMS_CUH
#define CARRY_OPS_CUDA_QUANTISED_FORMS_CUH

#include <stdint.h>

extern "C" {
#include "ops/quantised/tiles.h"
}

namespace quantised {

constexpr int ROWS = CARRY_QUANT_TILE_ROWS;

/* GROUP: columns per scale. Scales of 64 and 128 columns multiply sums, others codes. */
template <int BITS_, bool FLOATS_, int GROUP_, bool MINIMUM_, bool WIDE_> struct form {
    static constexpr int BITS = BITS_, GROUP = GROUP_;
    static constexpr bool FLOATS = FLOATS_, MINIMUM = MINIMUM_, WIDE = WIDE_, OF_SUMS = GROUP >= 64;
    static constexpr int SCALE_WORDS = GROUP == 16 ? 2 : OF_SUMS ? (WIDE || MINIMUM ? 2 : 1) : MINIMUM ? 4 : 2;
};

using fp8_wide = form<8, true, 128, false, true>;
using int8_wide = form<8, false, 128, false, true>;
using int4_wide = form<4, false, 128, true, false>;
using int4_middle = form<4, false, 64, true, false>;
using int4_short = form<4, false, 32, true, false>;
using int4_plain = form<4, false, 32, false, false>;
using int8_short = form<8, false, 32, true, false>;
using int8_plain = form<8, false, 32, false, false>;
using int8_shortest = form<8, false, 16, false, false>;

/* Calls f with the form of a format. */
template <typename Function> static auto with_form(int format, const Function &f) {
    switch (format) {
    case CARRY_QUANT_IS_fp8_block:
        return f(fp8_wide());
    case CARRY_QUANT_IS_int8:
        return f(int8_wide());
    case CARRY_QUANT_IS_int4_g64:
        return f(int4_middle());
    case CARRY_QUANT_IS_int4_g128:
        return f(int4_wide());
    case CARRY_QUANT_IS_q8_0:
        return f(int8_plain());
    case CARRY_QUANT_IS_q4_0:
        return f(int4_plain());
    case CARRY_QUANT_IS_q5_k:
        return f(int8_short());
    case CARRY_QUANT_IS_q6_k:
        return f(int8_shortest());
    default:
        return f(int4_short());
    }
}

/* Index of a lane's first word in the scales of a unit, for the first or the second 64 columns. */
template <class F> static __device__ __forceinline__ int scale_words_at(int half, int lane) {
    const int at = half * 8 + lane / 4;
    return (F::GROUP == 16 ? at * 2 + lane % 4 / 2 : at) * F::SCALE_WORDS;
}

/* Bytes of a unit, and sets of sums of x that it needs. */
template <class F> struct unit_of {
    static constexpr int CODES = ROWS * CARRY_QUANT_UNIT_COLUMNS * F::BITS / 8;
    static constexpr int SCALES = CARRY_QUANT_UNIT_COLUMNS / F::GROUP * (F::WIDE || F::MINIMUM ? 64 : 32);
    static constexpr int BYTES = CODES + SCALES;
    static constexpr int GROUPS = F::OF_SUMS && F::MINIMUM ? CARRY_QUANT_UNIT_COLUMNS / F::GROUP : 0;
};

} // namespace quantised

#endif
