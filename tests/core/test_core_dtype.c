/* Element types. The oracle is the list of all representable numbers, made by ldexp: a conversion must pick the nearer
   of the two neighbours of a value, and the even pattern of two equally near ones. */
#include <math.h>

#include "core/rng.h"
#include "support.h"

#define RANDOM_VALUES 2000000u

/* A small float type: its finite non-negative numbers, in the order of their patterns. */
typedef struct small_type {
    int fraction_bits, lowest; /* 2^lowest is the smallest normal number */
    uint32_t infinity;         /* its pattern, one past the largest finite one */
    double *numbers;           /* infinity + 1 numbers; the last is where the next finite one would be */
} small_type;

static double f16_numbers[0x7c00 + 1];
static double bf16_numbers[0x7f80 + 1];
static const small_type f16 = {.fraction_bits = 10, .lowest = -14, .infinity = 0x7c00, .numbers = f16_numbers};
static const small_type bf16 = {.fraction_bits = 7, .lowest = -126, .infinity = 0x7f80, .numbers = bf16_numbers};

static double number_of(const small_type *type, uint32_t pattern) {
    int exponent = (int)(pattern >> type->fraction_bits);
    int fraction = (int)(pattern & ((1u << type->fraction_bits) - 1u));
    if (exponent == 0) {
        return ldexp(fraction, type->lowest - type->fraction_bits);
    }
    return ldexp(fraction + (1 << type->fraction_bits), exponent - 1 + type->lowest - type->fraction_bits);
}

static int make_numbers(void **state) {
    (void)state;
    for (uint32_t i = 0; i <= f16.infinity; i++) {
        f16.numbers[i] = number_of(&f16, i);
    }
    for (uint32_t i = 0; i <= bf16.infinity; i++) {
        bf16.numbers[i] = number_of(&bf16, i);
    }
    return 0;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* The encoding nearest to a value that is not NaN. The distances are exact, because a float has 24 bits and shares the
   exponent of its neighbours. Near 0 they are not, but there one distance is much larger than the other, and rounding
   cannot change which is smaller. */
static uint16_t nearest(const small_type *type, float value) {
    uint32_t sign = signbit(value) ? 0x8000u : 0u;
    double magnitude = fabs((double)value);
    if (magnitude >= type->numbers[type->infinity]) {
        return (uint16_t)(sign | type->infinity);
    }
    uint32_t low = 0;
    uint32_t high = type->infinity;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (type->numbers[middle] <= magnitude) {
            low = middle;
        } else {
            high = middle;
        }
    }
    double below = magnitude - type->numbers[low];
    double above = type->numbers[high] - magnitude;
    bool takes_low = below < above || (below == above && low % 2 == 0);
    return (uint16_t)(sign | (takes_low ? low : high));
}

static void expect_nearest(uint32_t bits) {
    float value = float_of(bits);
    if (isnan(value)) {
        return;
    }
    uint16_t half = carry_f16_from_f32(value);
    uint16_t brain = carry_bf16_from_f32(value);
    if (half != nearest(&f16, value)) {
        fail_msg("f16 of %08x (%a) is %04x, nearest is %04x", bits, (double)value, half, nearest(&f16, value));
    }
    if (brain != nearest(&bf16, value)) {
        fail_msg("bf16 of %08x (%a) is %04x, nearest is %04x", bits, (double)value, brain, nearest(&bf16, value));
    }
}

/* The value, its neighbours among floats, and their negatives. */
static void expect_nearest_around(double value) {
    uint32_t bits = bits_of((float)value);
    for (uint32_t by = 0; by < 5; by++) {
        uint32_t near = bits + by - 2u;
        if (near <= 0x7f800000u) {
            expect_nearest(near);
            expect_nearest(near | 0x80000000u);
        }
    }
}

static void test_every_f16_pattern_reads_as_its_number(void **state) {
    (void)state;
    for (uint32_t pattern = 0; pattern <= 0xffffu; pattern++) {
        uint32_t magnitude = pattern & 0x7fffu;
        float read = carry_f32_from_f16((uint16_t)pattern);
        if (magnitude > f16.infinity) {
            assert_true(isnan(read));
            assert_int_equal(bits_of(read) >> 31, pattern >> 15);
            continue;
        }
        double expected = magnitude == f16.infinity ? (double)INFINITY : number_of(&f16, magnitude);
        assert_int_equal(bits_of(read), bits_of((float)(pattern & 0x8000u ? -expected : expected)));
    }
}

static void test_every_bf16_pattern_reads_as_its_number(void **state) {
    (void)state;
    for (uint32_t pattern = 0; pattern <= 0xffffu; pattern++) {
        uint32_t magnitude = pattern & 0x7fffu;
        float read = carry_f32_from_bf16((uint16_t)pattern);
        if (magnitude > bf16.infinity) {
            assert_true(isnan(read));
            continue;
        }
        double expected = magnitude == bf16.infinity ? (double)INFINITY : number_of(&bf16, magnitude);
        assert_int_equal(bits_of(read), bits_of((float)(pattern & 0x8000u ? -expected : expected)));
    }
}

static void test_every_pattern_survives_the_round_trip(void **state) {
    (void)state;
    for (uint32_t pattern = 0; pattern <= 0xffffu; pattern++) {
        uint32_t quiet_f16 = (pattern & 0x7fffu) > f16.infinity ? pattern | 0x200u : pattern;
        uint32_t quiet_bf16 = (pattern & 0x7fffu) > bf16.infinity ? pattern | 0x40u : pattern;
        assert_int_equal(carry_f16_from_f32(carry_f32_from_f16((uint16_t)pattern)), quiet_f16);
        assert_int_equal(carry_bf16_from_f32(carry_f32_from_bf16((uint16_t)pattern)), quiet_bf16);
    }
}

static void test_random_bits_round_to_nearest(void **state) {
    (void)state;
    for (uint32_t i = 0; i < RANDOM_VALUES / 4; i++) {
        carry_words words = carry_philox(1, 0, i);
        for (int j = 0; j < 4; j++) {
            expect_nearest(words.word[j]);
        }
    }
}

/* Random bits seldom fall into f16's range (exponents 2^-26 to 2^16 are 42 of 254); these values all do. */
static void test_random_values_in_f16_range_round_to_nearest(void **state) {
    (void)state;
    for (uint32_t i = 0; i < RANDOM_VALUES / 4; i++) {
        carry_words words = carry_philox(2, 0, i);
        for (int j = 0; j < 4; j++) {
            uint32_t exponent = 127u - 27u + (words.word[j] >> 24) % 45u;
            expect_nearest((words.word[j] & 0x807fffffu) | exponent << 23);
        }
    }
}

static void test_every_tie_goes_to_even(void **state) {
    (void)state;
    const small_type *const types[] = {&f16, &bf16};
    for (int i = 0; i < 2; i++) {
        for (uint32_t low = 0; low < types[i]->infinity; low++) {
            double tie = 0.5 * types[i]->numbers[low] + 0.5 * types[i]->numbers[low + 1];
            expect_nearest_around(tie);
            expect_nearest_around(types[i]->numbers[low]);
        }
    }
}

static void test_known_boundaries(void **state) {
    (void)state;
    assert_int_equal(carry_f16_from_f32(0.0f), 0x0000);
    assert_int_equal(carry_f16_from_f32(-0.0f), 0x8000);
    assert_int_equal(carry_bf16_from_f32(-0.0f), 0x8000);
    assert_int_equal(carry_f16_from_f32(65504.0f), 0x7bff);
    assert_int_equal(carry_f16_from_f32(65519.99f), 0x7bff);
    assert_int_equal(carry_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(carry_f16_from_f32(-65519.99f), 0xfbff);
    assert_int_equal(carry_f16_from_f32(-65520.0f), 0xfc00);
    assert_int_equal(carry_f16_from_f32(0x1p-24f), 0x0001);
    assert_int_equal(carry_f16_from_f32(0x1p-25f), 0x0000); /* a tie with 0 */
    assert_int_equal(carry_f16_from_f32(0x1.000002p-25f), 0x0001);
    assert_int_equal(carry_f16_from_f32(0x1.8p-24f), 0x0002); /* a tie of 1 and 2 */
    assert_int_equal(carry_f16_from_f32(0x1.ffcp-15f),
                     0x0400); /* a tie of the largest subnormal and the first normal */
    assert_int_equal(carry_f16_from_f32(INFINITY), 0x7c00);
    assert_int_equal(carry_f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(carry_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(carry_bf16_from_f32(-INFINITY), 0xff80);
    assert_int_equal(carry_bf16_from_f32(0x1.fefffep127f), 0x7f7f);
    assert_int_equal(carry_bf16_from_f32(0x1.ffp127f),
                     0x7f80); /* a tie of the largest finite number and the next one */
    assert_int_equal(carry_bf16_from_f32(-0x1.fffffep127f), 0xff80);
    assert_int_equal(carry_bf16_from_f32(0x1p-149f), 0x0000);
    assert_int_equal(carry_bf16_from_f32(0x1p-133f), 0x0001);
}

static void test_nan_stays_nan_with_sign_and_upper_payload(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 100000; i++) {
        uint32_t random = carry_philox(3, 0, i).word[0];
        /* A single payload bit at every position, then random payloads. */
        uint32_t payload = i < 23 ? 1u << i : random & 0x7fffffu;
        if (payload == 0) {
            continue;
        }
        uint32_t bits = (random & 0x80000000u) | 0x7f800000u | payload;
        uint32_t half = carry_f16_from_f32(float_of(bits));
        uint32_t brain = carry_bf16_from_f32(float_of(bits));
        assert_int_equal(half, ((bits >> 16) & 0x8000u) | 0x7e00u | payload >> 13);
        assert_int_equal(brain, ((bits >> 16) & 0x8000u) | 0x7fc0u | payload >> 16);
    }
}

static void test_names_and_sizes(void **state) {
    (void)state;
    static const struct {
        carry_dtype dtype;
        const char *name;
        size_t size;
    } known[] = {{CARRY_F32, "f32", 4}, {CARRY_BF16, "bf16", 2}, {CARRY_F16, "f16", 2},
                 {CARRY_I64, "i64", 8}, {CARRY_F64, "f64", 8},   {CARRY_F8, "f8_e4m3", 1},
                 {CARRY_I8, "i8", 1},   {CARRY_I32, "i32", 4},   {CARRY_QUANTISED, "quantised", 1}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        carry_dtype parsed = (carry_dtype)-1;
        assert_string_equal(carry_dtype_name(known[i].dtype), known[i].name);
        assert_int_equal(carry_dtype_size(known[i].dtype), known[i].size);
        assert_int_equal(carry_dtype_parse(&parsed, known[i].name), CARRY_OK);
        assert_int_equal(parsed, known[i].dtype);
    }
}

static void test_unknown_types_are_named_and_refused(void **state) {
    (void)state;
    static const carry_dtype numbers[] = {(carry_dtype)9, (carry_dtype)-1, (carry_dtype)1000000};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        assert_string_equal(carry_dtype_name(numbers[i]), "?");
        assert_int_equal(carry_dtype_size(numbers[i]), 0);
    }
    static const char *const names[] = {"", "f", "f3", "f320", "F32", " f32", "f32 ", "f65", "?", "bf", "bf161"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        carry_dtype parsed = CARRY_I64;
        assert_int_equal(carry_dtype_parse(&parsed, names[i]), CARRY_ENOTFOUND);
        assert_int_equal(parsed, CARRY_I64);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_f16_pattern_reads_as_its_number),
        cmocka_unit_test(test_every_bf16_pattern_reads_as_its_number),
        cmocka_unit_test(test_every_pattern_survives_the_round_trip),
        cmocka_unit_test(test_random_bits_round_to_nearest),
        cmocka_unit_test(test_random_values_in_f16_range_round_to_nearest),
        cmocka_unit_test(test_every_tie_goes_to_even),
        cmocka_unit_test(test_known_boundaries),
        cmocka_unit_test(test_nan_stays_nan_with_sign_and_upper_payload),
        cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_unknown_types_are_named_and_refused),
    };
    return cmocka_run_group_tests_name("core dtype", tests, make_numbers, NULL);
}
