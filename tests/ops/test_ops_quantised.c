/* Formats of quantised blocks: decoding equals that of other programs bit by bit (the files are from
   tests/make_quantised.py), and encoding is within half a step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "ops/quantised/quantised.h"
#include "support.h"

#define FOLDER CARRY_SOURCE "/tests/golden/quantised/"

static unsigned char *read_golden(const char *name, size_t *bytes) {
    char path[512];
    (void)snprintf(path, sizeof path, FOLDER "%s.bin", name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *bytes = (size_t)ftell(file);
    rewind(file);
    unsigned char *data = malloc(*bytes);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, *bytes, file), *bytes);
    assert_int_equal(fclose(file), 0);
    return data;
}

static void test_decoding_equals_the_gguf_package(void **state) {
    (void)state;
    static const char *const names[] = {"q8_0", "q4_0", "q4_k", "q5_k", "q6_k"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const carry_quant_format *format = carry_quant_format_named(names[i]);
        size_t bytes;
        unsigned char *data = read_golden(names[i], &bytes);
        uint32_t head[2];
        assert_non_null(format);
        memcpy(head, data, sizeof head);
        assert_int_equal(head[1], format->block);
        const size_t blocks = (size_t)head[0] * format->bytes;
        const size_t values = (size_t)head[0] * (size_t)format->block * sizeof(float);
        assert_int_equal(bytes, sizeof head + blocks + values);
        float *decoded = malloc(values);
        assert_non_null(decoded);
        memset(decoded, 0xff, values);
        format->decode(decoded, data + sizeof head, head[0]);
        for (size_t at = 0; at < values / sizeof(float); at++) {
            float expected;
            memcpy(&expected, data + sizeof head + blocks + at * sizeof expected, sizeof expected);
            assert_true(decoded[at] == expected); /* the sign of a zero may differ */
        }
        assert_true(format->is_finite(data + sizeof head, head[0]));
        free(decoded);
        free(data);
    }
}

static void test_f8_equals_pytorch(void **state) {
    (void)state;
    size_t bytes;
    unsigned char *data = read_golden("fp8", &bytes);
    uint32_t count;
    memcpy(&count, data, sizeof count);
    assert_int_equal(bytes, 4 + 1024 + count * 5);
    for (int i = 0; i < 256; i++) {
        float expected;
        const float has = carry_f32_from_f8((uint8_t)i);
        memcpy(&expected, data + 4 + 4 * i, sizeof expected);
        assert_true(isnan(expected) ? isnan(has) : memcmp(&has, &expected, sizeof has) == 0);
    }
    for (uint32_t i = 0; i < count; i++) {
        float value;
        memcpy(&value, data + 1028 + 4 * i, sizeof value);
        assert_int_equal(carry_f8_from_f32(value), data[1028 + 4 * count + i]);
    }
    assert_int_equal(carry_f8_from_f32(1e30f), 0x7e);
    assert_int_equal(carry_f8_from_f32(-INFINITY), 0xfe);
    assert_int_equal(carry_f8_from_f32(NAN) & 0x7f, 0x7f);
    free(data);
}

/* The largest error of a format relative to the largest magnitude of 256 values. 8 bits: half of 1/127, and the
   rounding of an f16 scale; e4m3: half of 32/448; Q4_K and Q5_K: (high - low) / 15 and / 31, and a 63rd of it for
   rounded scales and minima; Q6_K: 1/31 and 1/127 for the scale. */
static double bound_of(const carry_quant_format *format) {
    const char *name = format->name;
    return strcmp(name, "q8_0") == 0 || strcmp(name, "int8") == 0 ? 0.6 / 127.0
           : strcmp(name, "fp8_block") == 0                       ? 0.51 / 14.0
           : strcmp(name, "q6_k") == 0                            ? 0.5 / 31.0 + 1.0 / 127.0
           : strcmp(name, "q5_k") == 0                            ? 1.0 / 31.0 + 2.0 / 63.0
           : strcmp(name, "q4_k") == 0                            ? 1.0 / 15.0 + 2.0 / 63.0
           : strcmp(name, "q4_0") == 0                            ? 1.0 / 8.0 + 1e-3
                                                                  : 1.0 / 15.0 + 1e-3;
}

static void test_encoding_is_within_a_step_of_the_values(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        const carry_quant_format *format = carry_quant_format_at(f);
        unsigned char blocks[2048];
        float from[256];
        float back[256];
        const int64_t count = 256 / format->block;
        for (uint64_t turn = 0; turn < 100; turn++) {
            assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(from, CARRY_F32, 256), 5, turn, 0.0f, 1.0f));
            const float by = turn % 4 == 0 ? 1.0f : turn % 4 == 1 ? 0.05f : turn % 4 == 2 ? 100.0f : 0.0f;
            float largest = 0.0f;
            for (int i = 0; i < 256; i++) {
                from[i] = by * (turn % 8 < 4 ? from[i] : fabsf(from[i]));
                largest = fabsf(from[i]) > largest ? fabsf(from[i]) : largest;
            }
            memset(blocks, 0xa5, sizeof blocks);
            format->encode(blocks, from, count);
            assert_true(format->is_finite(blocks, count));
            format->decode(back, blocks, count);
            for (int i = 0; i < 256; i++) {
                assert_true(fabs((double)back[i] - (double)from[i]) <= bound_of(format) * (double)largest);
            }
        }
    }
    carry_ctx_free(ctx);
}

static void test_scales_that_are_not_finite_are_named(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        const carry_quant_format *format = carry_quant_format_at(f);
        const int64_t columns = 2 * format->block + 1; /* three blocks, the last incomplete */
        unsigned char blocks[4 * 3 * 256] = {0};
        const carry_tensor W = carry_quant_view(blocks, format, 2, columns);
        assert_int_equal(W.stride[0], 3 * format->bytes);
        assert_ok(ctx, carry_quant_check(ctx, "w", &W));
        const bool is_f32 = format->bytes == 132 || strncmp(format->name, "int4", 4) == 0;
        const size_t at = strcmp(format->name, "q6_k") == 0 ? 208 : 0;
        const float nan = NAN;
        const uint16_t infinity = 0x7c00;
        if (is_f32) {
            memcpy(blocks + 4 * format->bytes + at, &nan, sizeof nan);
        } else {
            memcpy(blocks + 4 * format->bytes + at, &infinity, sizeof infinity);
        }
        assert_int_equal(carry_quant_check(ctx, "w", &W), CARRY_EFORMAT);
        assert_non_null(strstr(carry_ctx_error(ctx), "block 1 of row 1"));
    }
    carry_ctx_free(ctx);
}

static void test_rows_and_odd_columns(void **state) {
    (void)state;
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        const carry_quant_format *format = carry_quant_format_at(f);
        float from[512];
        float to[512];
        float whole[512];
        unsigned char blocks[8 * 256];
        for (int i = 0; i < 512; i++) {
            from[i] = (float)((i * 37) % 101) - 50.0f;
        }
        format->encode(blocks, from, 512 / format->block);
        format->decode(whole, blocks, 512 / format->block);
        const int64_t columns = format->block + 1; /* one column in the second block */
        const carry_tensor W = carry_quant_view(blocks, format, 1, columns);
        memset(to, 0xff, sizeof to);
        carry_quant_decode(&W, 0, 0, columns, to);
        assert_memory_equal(to, whole, (size_t)columns * sizeof *to);
        carry_quant_decode(&W, 0, format->block, 1, to);
        assert_memory_equal(to, whole + format->block, sizeof *to);
    }
}

/* A scale that differs from the first of its 128 rows is found wherever it is; other formats never qualify. */
static void test_square_scales_are_recognised(void **state) {
    (void)state;
    enum { ROWS = 300, COLUMNS = 200, ACROSS = 2 };
    static const int64_t rows[] = {1, 127, 129, 255, ROWS - 1};
    const carry_quant_format *format = &carry_quant_fp8_block;
    const size_t row = carry_quant_row_bytes(format, COLUMNS);
    unsigned char *blocks = calloc(ROWS, row);
    assert_non_null(blocks);
    for (int64_t i = 0; i < (int64_t)ROWS * ACROSS; i++) {
        const float scale = (float)(1 + i / ACROSS / 128 + 10 * (i % ACROSS));
        memcpy(blocks + (size_t)i * format->bytes, &scale, sizeof scale);
        memset(blocks + (size_t)i * format->bytes + sizeof scale, (int)(i % 100), format->bytes - sizeof scale);
    }
    assert_true(carry_quant_is_square(format, blocks, ROWS, COLUMNS));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char *scale = blocks + (size_t)rows[i] * row + format->bytes;
        scale[0] ^= 1;
        assert_false(carry_quant_is_square(format, blocks, ROWS, COLUMNS));
        scale[0] ^= 1;
    }
    assert_false(carry_quant_is_square(&carry_quant_int8, blocks, ROWS, COLUMNS));
    free(blocks);
}

static void test_formats_are_found_by_name(void **state) {
    (void)state;
    char names[CARRY_QUANT_NAMES];
    size_t bytes;
    for (int f = 0; carry_quant_format_at(f) != NULL; f++) {
        const carry_quant_format *format = carry_quant_format_at(f);
        assert_ptr_equal(carry_quant_format_named(format->name), format);
        assert_int_equal(carry_quant_format_index(format), f);
        assert_non_null(strstr(carry_quant_format_names(names), format->name));
        assert_false(carry_quant_bytes(&bytes, format, INT64_MAX, INT64_MAX));
        assert_false(carry_quant_bytes(&bytes, format, INT64_MAX, 1));
        assert_false(carry_quant_bytes(&bytes, format, -1, 1));
    }
    assert_null(carry_quant_format_named("q2_k"));
    assert_null(carry_quant_format_at(-1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decoding_equals_the_gguf_package),
        cmocka_unit_test(test_f8_equals_pytorch),
        cmocka_unit_test(test_encoding_is_within_a_step_of_the_values),
        cmocka_unit_test(test_scales_that_are_not_finite_are_named),
        cmocka_unit_test(test_rows_and_odd_columns),
        cmocka_unit_test(test_square_scales_are_recognised),
        cmocka_unit_test(test_formats_are_found_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
