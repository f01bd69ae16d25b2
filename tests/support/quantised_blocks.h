/* Blocks of quantised weights for tests. */
#ifndef CARRY_TESTS_QUANTISED_BLOCKS_H
#define CARRY_TESTS_QUANTISED_BLOCKS_H

#include <stdlib.h>
#include <string.h>

#include "carry/nn.h"
#include "ops/quantised/quantised.h"
#include "support.h"

/* Random blocks whose values are normal. */
static inline unsigned char *make_blocks(carry_ctx *ctx, const carry_quant_format *format, int64_t rows,
                                         int64_t columns, uint64_t stream) {
    const int64_t blocks = (columns + format->block - 1) / format->block;
    unsigned char *made = malloc((size_t)(rows * blocks) * format->bytes);
    float *row = malloc((size_t)(blocks * format->block) * sizeof *row);
    assert_non_null(made);
    assert_non_null(row);
    for (int64_t r = 0; r < rows; r++) {
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(row, CARRY_F32, blocks * format->block), stream,
                                           (uint64_t)r, 0.1f, 1.0f));
        format->encode(made + (size_t)(r * blocks) * format->bytes, row, blocks);
    }
    free(row);
    return made;
}

/* Replaces everything but scales by random bytes: integers that no encoder makes, such as -128 in Q8_0, and all scales
   of sub-blocks. Values are at most 2. */
static inline void take_any_codes(carry_ctx *ctx, unsigned char *blocks, const carry_quant_format *format,
                                  int64_t count) {
    static const struct {
        const char *name;
        float scale;
        int first, second; /* offsets of f16 scales; -1: none, and the first is an f32 scale */
    } scales[] = {{"fp8_block", 1.0f / 448.0f, 0, -1}, {"int8", 1.0f / 128.0f, 0, -1},
                  {"int4_g32", 1.0f / 16.0f, 0, -1},   {"int4_g64", 1.0f / 16.0f, 0, -1},
                  {"int4_g128", 1.0f / 16.0f, 0, -1},  {"q8_0", 1.0f / 128.0f, 0, 0},
                  {"q4_0", 1.0f / 8.0f, 0, 0},         {"q4_k", 1.0f / 945.0f, 0, 2},
                  {"q5_k", 1.0f / 1953.0f, 0, 2},      {"q6_k", 1.0f / 4096.0f, 208, 208}};
    int at = 0;
    while (strcmp(scales[at].name, format->name) != 0) {
        at++;
    }
    for (int64_t b = 0; b < count; b++) {
        unsigned char *block = blocks + (size_t)b * format->bytes;
        float random[256];
        assert_true(format->bytes <= 256);
        assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(random, CARRY_F32, 256), 21, (uint64_t)b, 0.0f, 1e4f));
        for (size_t i = 0; i < format->bytes; i++) {
            block[i] = (unsigned char)(int)random[i];
            block[i] = at == 0 && (block[i] & 127) == 127 ? 0 : block[i]; /* not NaN in e4m3 */
        }
        if (scales[at].second < 0) {
            const uint32_t zero = block[4] % 17;
            memcpy(block, &scales[at].scale, sizeof scales[at].scale);
            if (strncmp(format->name, "int4", 4) == 0) {
                memcpy(block + 4, &zero, sizeof zero);
            }
        } else {
            const uint16_t bits = carry_f16_from_f32(scales[at].scale);
            memcpy(block + scales[at].first, &bits, sizeof bits);
            memcpy(block + scales[at].second, &bits, sizeof bits);
        }
    }
}

#endif
