/* Random numbers: the published answers of Philox 4x32-10; a value depends only on seed, stream and index. */
#include <math.h>

#include "core/rng.h"
#include "support.h"

#define COUNT 100003 /* not a multiple of 4, and many times a thread's piece of work */

static void expect_words(carry_words words, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
    assert_int_equal(words.word[0], w0);
    assert_int_equal(words.word[1], w1);
    assert_int_equal(words.word[2], w2);
    assert_int_equal(words.word[3], w3);
}

/* From Random123's kat_vectors; the low word of each 64-bit argument comes first. */
static void test_philox_gives_the_published_answers(void **state) {
    (void)state;
    expect_words(carry_philox(0, 0, 0), 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    expect_words(carry_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX), 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
    expect_words(carry_philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u), 0xd16cfe09, 0x94fdcceb,
                 0x5001e420, 0x24126ea1);
}

static carry_status fill(carry_ctx *ctx, carry_tensor out, uint64_t seed, uint64_t stream, bool normal) {
    return normal ? carry_random_normal(ctx, out, seed, stream, 0.5f, 2.0f)
                  : carry_random_uniform(ctx, out, seed, stream, -1.0f, 3.0f);
}

static void *poisoned(size_t bytes) {
    void *data = malloc(bytes);
    assert_non_null(data);
    memset(data, 0xff, bytes); /* NaN in every type */
    return data;
}

static void test_values_do_not_depend_on_threads(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 5};
    for (int which = 0; which < 6; which++) {
        carry_dtype dtype = (carry_dtype)(which % 3);
        bool normal = which >= 3;
        size_t bytes = COUNT * carry_dtype_size(dtype);
        void *first = NULL;
        for (int i = 0; i < 4; i++) {
            carry_ctx *ctx = support_ctx(threads[i], NULL, NULL);
            void *data = poisoned(bytes);
            assert_ok(ctx, fill(ctx, carry_view_1d(data, dtype, COUNT), 7, 9, normal));
            carry_ctx_free(ctx);
            if (i == 0) {
                first = data;
                continue;
            }
            assert_memory_equal(first, data, bytes);
            free(data);
        }
        free(first);
    }
}

static void test_a_shorter_tensor_is_the_start_of_a_longer_one(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 7, 4095, 4096, 4097, 16383, 16384, 16385, 65537};
    for (int normal = 0; normal < 2; normal++) {
        float *whole = poisoned(COUNT * sizeof *whole);
        assert_ok(ctx, fill(ctx, carry_view_1d(whole, CARRY_F32, COUNT), 3, 4, normal != 0));
        for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
            size_t length = (size_t)lengths[i];
            float *part = poisoned((length + 1) * sizeof *part);
            assert_ok(ctx, fill(ctx, carry_view_1d(part, CARRY_F32, lengths[i]), 3, 4, normal != 0));
            assert_memory_equal(part, whole, length * sizeof *part);
            assert_true(isnan(part[length])); /* nothing after the end is written */
            free(part);
        }
        free(whole);
    }
    carry_ctx_free(ctx);
}

/* bf16 and f16 hold the f32 values, rounded; a shape in several dimensions holds the same row of values. */
static void test_values_do_not_depend_on_type_or_shape(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    enum { COUNT_3D = 13 * 17 * 19 };
    float *whole = poisoned(COUNT_3D * sizeof *whole);
    uint16_t *small = poisoned(COUNT_3D * sizeof *small);
    float *cube = poisoned(COUNT_3D * sizeof *cube);
    assert_ok(ctx, fill(ctx, carry_view_1d(whole, CARRY_F32, COUNT_3D), 5, 6, true));
    assert_ok(ctx, fill(ctx, carry_view_3d(cube, CARRY_F32, 13, 17, 19), 5, 6, true));
    assert_memory_equal(whole, cube, COUNT_3D * sizeof *whole);
    for (int type = 0; type < 2; type++) {
        assert_ok(ctx, fill(ctx, carry_view_1d(small, type == 0 ? CARRY_BF16 : CARRY_F16, COUNT_3D), 5, 6, true));
        for (int i = 0; i < COUNT_3D; i++) {
            assert_int_equal(small[i], type == 0 ? carry_bf16_from_f32(whole[i]) : carry_f16_from_f32(whole[i]));
        }
    }
    free(whole);
    free(small);
    free(cube);
    carry_ctx_free(ctx);
}

/* The mean of N values has standard error s / sqrt(N); their variance s^2 sqrt((k - 1) / N) with k the kurtosis: 3 for
   normal, 1.8 for uniform values. Five standard errors, for a fixed seed. */
static void test_mean_and_variance_are_within_five_standard_errors(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    float *values = poisoned(COUNT * sizeof *values);
    for (int normal = 0; normal < 2; normal++) {
        double mean = normal ? 0.5 : 1.0;
        double variance = normal ? 4.0 : 16.0 / 12.0;
        double kurtosis = normal ? 3.0 : 1.8;
        for (uint64_t seed = 0; seed < 4; seed++) {
            assert_ok(ctx, fill(ctx, carry_view_1d(values, CARRY_F32, COUNT), seed, 1, normal != 0));
            double sum = 0.0;
            double squares = 0.0;
            for (int i = 0; i < COUNT; i++) {
                double off = (double)values[i] - mean;
                sum += off;
                squares += off * off;
            }
            assert_true(fabs(sum / COUNT) < 5.0 * sqrt(variance / COUNT));
            assert_true(fabs(squares / COUNT - variance) < 5.0 * variance * sqrt((kurtosis - 1.0) / COUNT));
        }
    }
    free(values);
    carry_ctx_free(ctx);
}

/* Adjacent values come from one counter, and must not be correlated either. The correlation of N independent pairs has
   standard error 1 / sqrt(N). */
static void test_neighbours_are_not_correlated(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float *values = poisoned(COUNT * sizeof *values);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(values, CARRY_F32, COUNT), 11, 0, 0.0f, 1.0f));
    for (int lag = 1; lag <= 5; lag++) {
        double sum = 0.0;
        for (int i = 0; i + lag < COUNT; i++) {
            sum += (double)values[i] * (double)values[i + lag];
        }
        assert_true(fabs(sum / (COUNT - lag)) < 5.0 / sqrt(COUNT - lag));
    }
    free(values);
    carry_ctx_free(ctx);
}

static void test_uniform_values_keep_to_their_bounds(void **state) {
    (void)state;
    static const float bounds[][2] = {{0.0f, 1.0f}, {0.8f, 1.0f}, {-1e-3f, 1e-3f}, {5.0f, 5.0f}, {-3e4f, 6e4f}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    float *values = poisoned(COUNT * sizeof *values);
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        float low = bounds[i][0];
        float high = bounds[i][1];
        memset(values, 0xff, COUNT * sizeof *values);
        assert_ok(ctx, carry_random_uniform(ctx, carry_view_1d(values, CARRY_F32, COUNT), 1, i, low, high));
        float least = high;
        float most = low;
        for (int j = 0; j < COUNT; j++) {
            assert_true(values[j] >= low && values[j] <= high);
            least = values[j] < least ? values[j] : least;
            most = values[j] > most ? values[j] : most;
        }
        /* With 10^5 values the ends are reached to within 10^-3 of the width, except with probability e^-100. */
        assert_true(least - low <= 1e-3f * (high - low) && high - most <= 1e-3f * (high - low));
    }
    free(values);
    carry_ctx_free(ctx);
}

static int equal_values(const float *a, const float *b, int count) {
    int equal = 0;
    for (int i = 0; i < count; i++) {
        equal += a[i] == b[i];
    }
    return equal;
}

static void test_seeds_and_streams_differ(void **state) {
    (void)state;
    enum { LENGTH = 4096, FILLS = 6 };
    /* Differences in low and in high words of both, and the two swapped. */
    static const uint64_t pairs[FILLS][2] = {{1, 2}, {2, 1}, {1, 3}, {1, 2 + (1ull << 32)}, {1 + (1ull << 32), 2},
                                             {0, 0}};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float *values = poisoned(FILLS * LENGTH * sizeof *values);
    for (int i = 0; i < FILLS; i++) {
        carry_tensor out = carry_view_1d(values + i * LENGTH, CARRY_F32, LENGTH);
        assert_ok(ctx, carry_random_normal(ctx, out, pairs[i][0], pairs[i][1], 0.0f, 1.0f));
    }
    for (int i = 0; i < FILLS; i++) {
        for (int j = i + 1; j < FILLS; j++) {
            assert_true(equal_values(values + i * LENGTH, values + j * LENGTH, LENGTH) < 8);
        }
    }
    free(values);
    carry_ctx_free(ctx);
}

static void test_what_cannot_be_filled_is_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int64_t data[64];
    memset(data, 0x5a, sizeof data);
    carry_tensor strided = carry_view_2d(data, CARRY_F32, 4, 8);
    strided.stride[0] = 16;
    carry_tensor transposed = carry_view_2d(data, CARRY_F32, 4, 8);
    transposed.stride[0] = 1;
    transposed.stride[1] = 4;
    carry_tensor elsewhere = carry_view_1d(data, CARRY_F32, 4);
    elsewhere.device = 1;
    carry_tensor deep = carry_view_1d(data, CARRY_F32, 4);
    deep.rank = CARRY_MAX_RANK + 1;
    carry_tensor negative = carry_view_1d(data, CARRY_F32, -4);
    carry_tensor endless = carry_view_3d(data, CARRY_F32, (int64_t)1 << 40, (int64_t)1 << 40, 1);
    carry_tensor crooked = carry_view_1d((char *)data + 1, CARRY_F32, 4);
    for (int normal = 0; normal < 2; normal++) {
        bool n = normal != 0;
        assert_refused(ctx, CARRY_EARGUMENT, "out", fill(ctx, carry_view_1d(data, CARRY_I64, 8), 0, 0, n));
        assert_refused(ctx, CARRY_EARGUMENT, "packed", fill(ctx, strided, 0, 0, n));
        assert_refused(ctx, CARRY_EARGUMENT, "packed", fill(ctx, transposed, 0, 0, n));
        assert_refused(ctx, CARRY_EARGUMENT, "CPU", fill(ctx, elsewhere, 0, 0, n));
        assert_refused(ctx, CARRY_EARGUMENT, "null", fill(ctx, carry_view_1d(NULL, CARRY_F32, 4), 0, 0, n));
        assert_refused(ctx, CARRY_EDTYPE, "99", fill(ctx, carry_view_1d(data, (carry_dtype)99, 4), 0, 0, n));
        assert_refused(ctx, CARRY_ESHAPE, "out has rank", fill(ctx, deep, 0, 0, n));
        assert_refused(ctx, CARRY_ESIZE, "a size is below 0", fill(ctx, negative, 0, 0, n));
        assert_refused(ctx, CARRY_ESIZE, "out", fill(ctx, endless, 0, 0, n));
        assert_refused(ctx, CARRY_EALIGN, "out", fill(ctx, crooked, 0, 0, n));
    }
    for (size_t i = 0; i < sizeof data / sizeof data[0]; i++) {
        assert_int_equal(data[i], 0x5a5a5a5a5a5a5a5a);
    }
    carry_ctx_free(ctx);
}

/* No elements: nothing to write, so no data is needed; and large extents beside a 0 must not be multiplied unchecked.
 */
static void test_empty_tensors_are_done_at_once(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    int64_t large = (int64_t)1 << 62;
    assert_ok(ctx, fill(ctx, carry_view_1d(NULL, CARRY_F32, 0), 0, 0, false));
    assert_ok(ctx, fill(ctx, carry_view_2d(NULL, CARRY_BF16, 0, 5), 0, 0, true));
    (void)fill(ctx, carry_view_3d(NULL, CARRY_F32, 0, large, large), 0, 0, false);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_gives_the_published_answers),
        cmocka_unit_test(test_values_do_not_depend_on_threads),
        cmocka_unit_test(test_a_shorter_tensor_is_the_start_of_a_longer_one),
        cmocka_unit_test(test_values_do_not_depend_on_type_or_shape),
        cmocka_unit_test(test_mean_and_variance_are_within_five_standard_errors),
        cmocka_unit_test(test_neighbours_are_not_correlated),
        cmocka_unit_test(test_uniform_values_keep_to_their_bounds),
        cmocka_unit_test(test_seeds_and_streams_differ),
        cmocka_unit_test(test_what_cannot_be_filled_is_refused),
        cmocka_unit_test(test_empty_tensors_are_done_at_once),
    };
    return cmocka_run_group_tests_name("core rng", tests, NULL, NULL);
}
