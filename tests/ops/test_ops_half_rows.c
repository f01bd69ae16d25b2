/* Operators on bf16 rows in one pass (kernels/half_rows.h), of every set of kernels that has them, against float64 over
   odd sizes: within the rounding of bf16 and 2^-12; the same bits at every position of an element; a NaN affects only
   its own result. */
#include <math.h>

#include "nn_support.h"

#include "ops/kernels/kernels.h"

enum { GUARD = 8, MOST = 300 };
static const int64_t sizes[] = {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 256};
#define SIZES (sizeof sizes / sizeof *sizes)
/* A sigmoid within 2^-13, a scale and products of f32. */
#define BOUND 0x1p-12

static const carry_kernels *next_set(int *at) {
    for (; carry_kernels_at(*at) != NULL; (*at)++) {
        if (carry_kernels_at(*at)->usable() && carry_kernels_at(*at)->half_rows != NULL) {
            return carry_kernels_at((*at)++);
        }
    }
    return NULL;
}

static const uint16_t *bits_of(const array *a) {
    return a->t.data;
}

/* Compares `count` results with float64, and checks that the memory after them is unchanged. */
static void assert_rows(const char *what, const char *set, const uint16_t *got, const double *want, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const double have = (double)carry_f32_from_bf16(got[i]);
        const double allowed = fabs(want[i]) * (rounding(CARRY_BF16) + BOUND) + 1e-30;
        if (!(fabs(have - want[i]) <= allowed)) {
            fail_msg("%s of %s: element %lld of %lld is %.9g where %.9g is expected", what, set, (long long)i,
                     (long long)count, have, want[i]);
        }
    }
    for (int64_t i = count; i < count + GUARD; i++) {
        assert_int_equal(got[i], 0xffff);
    }
}

static void test_swiglu_matches_float64(void **state) {
    (void)state;
    const carry_kernels *kernels;
    for (int set = 0; (kernels = next_set(&set)) != NULL;) {
        for (size_t s = 0; s < SIZES; s++) {
            array gate = random_array(CARRY_BF16, 1, SHAPE(sizes[s]), -12.0f, 12.0f);
            array up = random_array(CARRY_BF16, 1, SHAPE(sizes[s]), -2.0f, 2.0f);
            uint16_t y[MOST + GUARD];
            double want[MOST];
            memset(y, 255, sizeof y);
            kernels->half_rows->swiglu(y, bits_of(&gate), bits_of(&up), sizes[s]);
            for (int64_t i = 0; i < sizes[s]; i++) {
                want[i] = gate.v[i] * sigmoid64(gate.v[i]) * up.v[i];
            }
            assert_rows("swiglu", kernels->name, y, want, sizes[s]);
            for (int64_t i = 0; i < sizes[s]; i++) { /* alone */
                uint16_t one = 0xffff;
                kernels->half_rows->swiglu(&one, bits_of(&gate) + i, bits_of(&up) + i, 1);
                assert_int_equal(one, y[i]);
            }
            free_kept(NULL);
        }
    }
}

static void test_large_and_odd_numbers_have_their_sigmoid(void **state) {
    (void)state;
    const float x[] = {-3e38f, -1000.0f, -100.0f, -88.0f, -0.0f, 0.0f, 1e-30f, 88.0f, 1000.0f, 3e38f, NAN, INFINITY};
    const carry_kernels *kernels;
    for (int set = 0; (kernels = next_set(&set)) != NULL;) {
        for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
            uint16_t gate = carry_bf16_from_f32(x[i]);
            uint16_t up = carry_bf16_from_f32(1.0f);
            uint16_t y = 0;
            kernels->half_rows->swiglu(&y, &gate, &up, 1);
            const double have = (double)carry_f32_from_bf16(y);
            const double from = (double)carry_f32_from_bf16(gate);
            if (isnan(x[i])) {
                assert_true(isnan(have));
            } else if (x[i] > 0.0f) {
                assert_true(have == from * sigmoid64(from) || fabs(have / (from * sigmoid64(from)) - 1.0) < 0x1p-7);
            } else { /* nothing is left, however large x is */
                assert_true(fabs(have) <= 0x1p-118);
            }
        }
    }
}

static void check_conv(const carry_kernels *kernels, int64_t tokens, int64_t channels, bool silu) {
    enum { TAPS = CARRY_HALF_CONV_TAPS };
    const int64_t row = channels + 3;
    array x = random_array(CARRY_BF16, 2, SHAPE(tokens + TAPS - 1, row), -2.0f, 2.0f);
    array taps = random_array(CARRY_F32, 2, SHAPE(TAPS, row), -1.0f, 1.0f);
    array y = poisoned(CARRY_BF16, 2, SHAPE(tokens, row));
    array before = copy_of(&y);
    carry_half_conv conv = {.tokens = tokens,
                            .channels = channels,
                            .x = bits_of(&x),
                            .taps = taps.t.data,
                            .y = y.t.data,
                            .x_token = row,
                            .x_row = row,
                            .y_row = row,
                            .taps_row = row,
                            .silu = silu};
    kernels->half_rows->conv(&conv);
    for (int64_t t = 0; t < tokens; t++) {
        for (int64_t c = 0; c < row; c++) {
            double sum = 0.0;
            double size = 0.0;
            for (int64_t i = 0; i < TAPS; i++) {
                const double product = x.v[(t + i) * row + c] * taps.v[i * row + c];
                sum += product;
                size += fabs(product);
            }
            const double want = silu ? sum * sigmoid64(sum) : sum;
            const double have = (double)carry_f32_from_bf16(bits_of(&y)[t * row + c]);
            if (c >= channels) {
                assert_int_equal(bits_of(&y)[t * row + c], bits_of(&before)[t * row + c]);
            } else if (!(fabs(have - want) <= fabs(want) * (rounding(CARRY_BF16) + BOUND) + size * 0x1p-21)) {
                fail_msg("conv of %s, %lld channels: [%lld, %lld] is %.9g where %.9g is expected", kernels->name,
                         (long long)channels, (long long)t, (long long)c, have, want);
            }
        }
    }
    array again = copy_of(&before);
    conv.y = again.t.data;
    for (int64_t t = 0; t < tokens; t++) { /* one token at a time */
        carry_half_conv one = conv;
        one.tokens = 1;
        one.x += t * row;
        one.y += t * row;
        kernels->half_rows->conv(&one);
    }
    assert_memory_equal(again.t.data, y.t.data, (size_t)(tokens * row) * sizeof(uint16_t));
    array apart = poisoned(CARRY_BF16, 2, SHAPE(tokens * TAPS, row)); /* tokens of different sequences */
    for (int64_t i = 0; i < tokens * TAPS; i++) {
        memcpy((uint16_t *)apart.t.data + i * row, bits_of(&x) + (i / TAPS + i % TAPS) * row,
               (size_t)row * sizeof(uint16_t));
    }
    memcpy(again.t.data, before.t.data, (size_t)(tokens * row) * sizeof(uint16_t));
    conv.x = bits_of(&apart);
    conv.x_token = TAPS * row;
    kernels->half_rows->conv(&conv);
    assert_memory_equal(again.t.data, y.t.data, (size_t)(tokens * row) * sizeof(uint16_t));
    free_kept(NULL);
}

static void test_convolutions_match_float64(void **state) {
    (void)state;
    const carry_kernels *kernels;
    for (int set = 0; (kernels = next_set(&set)) != NULL;) {
        for (size_t s = 0; s < SIZES; s++) {
            check_conv(kernels, 5, sizes[s], true);
            check_conv(kernels, 2, sizes[s], false);
        }
    }
}

static void check_norm(const carry_kernels *kernels, int64_t rows, int64_t n, bool weighted, bool gated) {
    array x = random_array(CARRY_BF16, 2, SHAPE(rows, n), -2.0f, 2.0f);
    array z = random_array(CARRY_BF16, 2, SHAPE(rows, n), -6.0f, 6.0f);
    array w = random_array(CARRY_F32, 1, SHAPE(n), 0.5f, 1.5f);
    const int64_t count = rows * n;
    uint16_t *y = keep(malloc((size_t)(count + GUARD) * sizeof *y));
    double *want = keep(calloc((size_t)count, sizeof *want));
    float norms[8];
    memset(y, 255, (size_t)(count + GUARD) * sizeof *y);
    carry_half_norm norm = {.rows = rows,
                            .n = n,
                            .x = bits_of(&x),
                            .z = gated ? bits_of(&z) : NULL,
                            .w = weighted ? w.t.data : NULL,
                            .y = y,
                            .eps = 1e-6f};
    kernels->half_rows->norm(&norm);
    kernels->half_rows->unit_norms(norms, bits_of(&x), n, 1e-6f, rows, n);
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0.0;
        for (int64_t i = 0; i < n; i++) {
            squares += x.v[r * n + i] * x.v[r * n + i];
        }
        const double unit = 1.0 / sqrt(squares + (double)1e-6f);
        assert_true(fabs((double)norms[r] - unit) <= unit * 0x1p-21);
        for (int64_t i = 0; i < n; i++) {
            const double gate = gated ? z.v[r * n + i] * sigmoid64(z.v[r * n + i]) : 1.0;
            want[r * n + i] =
                x.v[r * n + i] / sqrt(squares / (double)n + (double)1e-6f) * (weighted ? w.v[i] : 1.0) * gate;
        }
    }
    assert_rows("norm", kernels->name, y, want, count);
    norm.y = x.t.data; /* in place */
    kernels->half_rows->norm(&norm);
    assert_memory_equal(x.t.data, y, (size_t)count * sizeof *y);
    free_kept(NULL);
}

static void test_norms_match_float64(void **state) {
    (void)state;
    const carry_kernels *kernels;
    for (int set = 0; (kernels = next_set(&set)) != NULL;) {
        for (size_t s = 0; s < SIZES; s++) {
            for (int form = 0; form < 4; form++) {
                check_norm(kernels, 3, sizes[s], (form & 1) != 0, (form & 2) != 0);
            }
        }
        check_norm(kernels, 2, CARRY_HALF_NORM_WIDTH, true, true);
        check_norm(kernels, 2, CARRY_HALF_NORM_WIDTH - 1, true, false);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_swiglu_matches_float64, free_kept),
        cmocka_unit_test_teardown(test_large_and_odd_numbers_have_their_sigmoid, free_kept),
        cmocka_unit_test_teardown(test_convolutions_match_float64, free_kept),
        cmocka_unit_test_teardown(test_norms_match_float64, free_kept),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
