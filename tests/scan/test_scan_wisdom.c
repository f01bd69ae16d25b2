/* The wisdom file: printed wisdom reads back the same, and any damage is refused. */
#include <math.h>

#include "core/file.h"
#include "core/rng.h"
#include "scan/wisdom.h"
#include "wisdom_support.h"

#define MACHINE "a machine of this test, 2 cores, plain, carry 0.1.0"

static carry_wisdom *wisdom_new(const char *machine) {
    carry_wisdom *wisdom = calloc(1, sizeof *wisdom);
    assert_non_null(wisdom);
    (void)snprintf(wisdom->machine, sizeof wisdom->machine, "%s", machine);
    return wisdom;
}

/* Between 1e-9 and 1e9, or 0. */
static double random_number(uint64_t seed, uint64_t index) {
    carry_words words = carry_philox(seed, 0, index);
    return words.word[0] % 50 == 0 ? 0.0 : pow(10.0, -9.0 + 18.0 * (double)words.word[1] * 0x1p-32);
}

static void fill_table(carry_rates_table *table, uint64_t seed) {
    char name[32];
    const char *unit;
    double *number;
    for (int i = 0; (number = carry_rates_number(table, i, name, &unit)) != NULL; i++) {
        *number = random_number(seed, (uint64_t)i);
    }
}

static carry_wisdom *random_wisdom(uint64_t seed, int plans, int rates) {
    carry_wisdom *wisdom = wisdom_new(MACHINE);
    wisdom->plans = plans;
    wisdom->rates = rates;
    for (int i = 0; i < plans; i++) {
        carry_wisdom_plan *plan = &wisdom->plan[i];
        plan->threads = i % 7 == 0 ? 1024 : i % 5 + 1;
        (void)snprintf(plan->kernels, sizeof plan->kernels, "%s", i % 3 == 0 ? "plain" : "neon");
        plan->seconds = random_number(seed, 1000 + (uint64_t)i);
        (void)snprintf(plan->key, sizeof plan->key, "scan:dense:f32:b1:t%d:n%d:w1", i + 1, i * i + 1);
        (void)snprintf(plan->algorithm, sizeof plan->algorithm, "%s", i % 2 == 0 ? "sequential" : "cyclic");
    }
    for (int i = 0; i < rates; i++) {
        wisdom->rate[i].threads = i / 2 + 1;
        (void)snprintf(wisdom->rate[i].kernels, sizeof wisdom->rate[i].kernels, "%s", i % 2 == 0 ? "plain" : "neon");
        fill_table(&wisdom->rate[i].table, seed + 100 + (uint64_t)i);
    }
    return wisdom;
}

static void expect_same(const carry_wisdom *read, const carry_wisdom *written) {
    assert_int_equal(read->plans, written->plans);
    assert_int_equal(read->rates, written->rates);
    for (int i = 0; i < written->plans; i++) {
        assert_int_equal(read->plan[i].threads, written->plan[i].threads);
        assert_string_equal(read->plan[i].kernels, written->plan[i].kernels);
        assert_string_equal(read->plan[i].key, written->plan[i].key);
        assert_string_equal(read->plan[i].algorithm, written->plan[i].algorithm);
        assert_true(read->plan[i].seconds == written->plan[i].seconds);
    }
    for (int i = 0; i < written->rates; i++) {
        carry_rates_table a = read->rate[i].table;
        carry_rates_table b = written->rate[i].table;
        char name[32];
        const char *unit;
        assert_int_equal(read->rate[i].threads, written->rate[i].threads);
        assert_string_equal(read->rate[i].kernels, written->rate[i].kernels);
        for (int j = 0; carry_rates_number(&a, j, name, &unit) != NULL; j++) {
            assert_true(*carry_rates_number(&a, j, name, &unit) == *carry_rates_number(&b, j, name, &unit));
        }
    }
}

static void test_what_is_printed_is_read(void **state) {
    place *p = *state;
    static const int sizes[][2] = {{0, 0}, {1, 0}, {0, 1}, {5, 2}, {100, 3}, {CARRY_WISDOM_PLANS, CARRY_WISDOM_RATES}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        carry_wisdom *written = random_wisdom(i, sizes[i][0], sizes[i][1]);
        carry_wisdom *read = wisdom_new(MACHINE);
        char *text;
        char *again;
        size_t length;
        size_t again_length;
        assert_ok(p->ctx, carry_wisdom_print(p->ctx, written, &text, &length));
        assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
        expect_same(read, written);
        assert_ok(p->ctx, carry_wisdom_print(p->ctx, read, &again, &again_length));
        assert_int_equal(length, again_length);
        assert_memory_equal(text, again, length);
        free(text);
        free(again);
        free(written);
        free(read);
    }
}

/* A text with a correct checksum, whatever its lines say. */
static char *sealed(const char *lines, size_t *length) {
    char *text = malloc(strlen(lines) + 400);
    assert_non_null(text);
    int used = sprintf(text, "carry-wisdom 1\nmachine %s\n%s", MACHINE, lines);
    used += sprintf(text + used, "end %08x\n", carry_crc32c(0, text, (size_t)used));
    *length = (size_t)used;
    return text;
}

/* Rounding to the digits of the file must not make a number unreadable: 2.22507e-308, for example, is subnormal. */
static void test_every_number_that_is_read_can_be_written_and_read_again(void **state) {
    place *p = *state;
    static const char *const numbers[] = {"0",  "1e-300", "1.7976931348623157e308", "2.2250738585072014e-308",
                                          "-0", "0x1p-3"};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        carry_wisdom *read = wisdom_new(MACHINE);
        char line[128];
        size_t length;
        (void)snprintf(line, sizeof line, "plan 1 neon scan:dense sequential %s\n", numbers[i]);
        char *text = sealed(line, &length);
        if (carry_wisdom_parse(p->ctx, read, text, length) == CARRY_OK) {
            free(text);
            assert_ok(p->ctx, carry_wisdom_print(p->ctx, read, &text, &length));
            if (carry_wisdom_parse(p->ctx, read, text, length) != CARRY_OK) {
                fail_msg("%s was read, but as it was written anew it is refused: %s", numbers[i],
                         carry_ctx_error(p->ctx));
            }
        }
        free(text);
        free(read);
    }
}

static void test_lines_that_say_nothing_sensible_are_refused(void **state) {
    place *p = *state;
    static const char *const lines[] = {
        "\n",
        "hello\n",
        "plan\n",
        "plan \n",
        "plan 1\n",
        "plan 1 neon key\n",
        "plan 1 neon key sequential\n",
        "plan 1 neon key sequential \n",
        "plan 1 neon key sequential x\n",
        "plan 1 neon key sequential 1x\n",
        "plan 1 neon key sequential nan\n",
        "plan 1 neon key sequential inf\n",
        "plan 1 neon key sequential -1\n",
        "plan 1 neon key sequential 1e999\n",
        "plan 1 neon key chunkwise, 1\n",
        "plan 1 neon key chunkwise,chunk= 1\n",
        "plan 1 neon key chunkwise,chunk=0 1\n",
        "plan 1 neon key chunkwise,chunk=-4 1\n",
        "plan 1 neon key chunkwise,chunk=99999999999999999999 1\n",
        "plan 1 neon key chunkwise,threads=1025 1\n",
        "plan 1 neon key chunkwise,threads=1,chunk=4 1\n",
        "plan 1 neon key ,chunk=4 1\n",
        "plan 0 neon key sequential 1\n",
        "plan -1 neon key sequential 1\n",
        "plan 1025 neon key sequential 1\n",
        "plan 99999999999999999999 neon key sequential 1\n",
        "plan x neon key sequential 1\n",
        "plan 1 neon  sequential 1\n",
        "plan 1 neon key anamethatislongerthananyalgorithm 1\n",
        "rate 1 neon fork\n",
        "rate 1 neon fork x\n",
        "rate 1 neon nothing 1\n",
        "rate 0 neon fork 1\n",
        "rate 1 neon fork -1\n",
        "carry-wisdom 1\n",
    };
    carry_wisdom *read = wisdom_new(MACHINE);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        size_t length;
        char *text = sealed(lines[i], &length);
        if (carry_wisdom_parse(p->ctx, read, text, length) != CARRY_EFORMAT) {
            fail_msg("the line '%s' is not refused", lines[i]);
        }
        assert_non_null(strstr(carry_ctx_error(p->ctx), "line 3"));
        assert_int_equal(read->plans + read->rates, 0);
        free(text);
    }
    free(read);
}

static void test_more_than_there_is_room_for_is_refused(void **state) {
    place *p = *state;
    char *lines = malloc((CARRY_WISDOM_PLANS + 1) * 32);
    assert_non_null(lines);
    carry_wisdom *read = wisdom_new(MACHINE);
    for (int more = 0; more <= 1; more++) {
        size_t used = 0;
        for (int i = 0; i < CARRY_WISDOM_PLANS + more; i++) {
            used += (size_t)sprintf(lines + used, "plan 1 neon k%d cyclic 1\n", i);
        }
        size_t length;
        char *text = sealed(lines, &length);
        assert_int_equal(carry_wisdom_parse(p->ctx, read, text, length), more == 0 ? CARRY_OK : CARRY_EFORMAT);
        assert_int_equal(read->plans, more == 0 ? CARRY_WISDOM_PLANS : 0);
        free(text);
        used = 0;
        for (int i = 1; i <= CARRY_WISDOM_RATES + more; i++) {
            used += (size_t)sprintf(lines + used, "rate %d neon fork 1\n", i);
        }
        text = sealed(lines, &length);
        assert_int_equal(carry_wisdom_parse(p->ctx, read, text, length), more == 0 ? CARRY_OK : CARRY_EFORMAT);
        free(text);
    }
    free(lines);
    free(read);
}

/* Copied to a block of exactly its size, so that a sanitizer sees a read beyond it. */
static void expect_refused(place *p, carry_wisdom *read, const char *text, size_t length, const char *what, size_t at) {
    char *exact = malloc(length > 0 ? length : 1);
    assert_non_null(exact);
    memcpy(exact, text, length);
    carry_status status = carry_wisdom_parse(p->ctx, read, exact, length);
    free(exact);
    if ((status != CARRY_EFORMAT && status != CARRY_EUNSUPPORTED) || read->plans != 0 || read->rates != 0) {
        fail_msg("%s at byte %zu: %s, %d plans, %d rates", what, at, carry_status_name(status), read->plans,
                 read->rates);
    }
}

static void test_a_file_cut_off_at_any_byte_is_refused(void **state) {
    place *p = *state;
    carry_wisdom *wisdom = random_wisdom(5, 4, 1);
    carry_wisdom *read = wisdom_new(MACHINE);
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    for (size_t cut = 0; cut < length; cut++) {
        expect_refused(p, read, text, cut, "cut off", cut);
    }
    assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
    free(text);
    free(wisdom);
    free(read);
}

static void test_any_changed_byte_is_refused(void **state) {
    place *p = *state;
    carry_wisdom *wisdom = random_wisdom(6, 4, 1);
    carry_wisdom *read = wisdom_new(MACHINE);
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    for (size_t at = 0; at < length; at++) {
        static const char changes[] = {1, 0x20};
        for (int i = 0; i < 2; i++) {
            text[at] = (char)(text[at] ^ changes[i]);
            expect_refused(p, read, text, length, "changed", at);
            text[at] = (char)(text[at] ^ changes[i]);
        }
    }
    assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
    free(text);
    free(wisdom);
    free(read);
}

/* A 0 byte ends strings, not lines: the text after it must not be ignored. */
static void test_any_inserted_byte_is_refused(void **state) {
    place *p = *state;
    static const char bytes[] = {'\0', ' ', '0', '\n', '\r'};
    carry_wisdom *wisdom = random_wisdom(8, 2, 1);
    carry_wisdom *read = wisdom_new(MACHINE);
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    char *longer = malloc(length + 1);
    assert_non_null(longer);
    for (size_t at = 0; at <= length; at++) {
        for (size_t i = 0; i < sizeof bytes; i++) {
            memcpy(longer, text, at);
            longer[at] = bytes[i];
            memcpy(longer + at + 1, text + at, length - at);
            expect_refused(p, read, longer, length + 1, "a byte more", at);
        }
    }
    free(longer);
    free(text);
    free(wisdom);
    free(read);
}

static void test_anything_after_the_end_is_refused(void **state) {
    place *p = *state;
    static const char *const tails[] = {"\n", " ", "x", "plan 1 neon key cyclic 1\n", "end 00000000\n"};
    carry_wisdom *read = wisdom_new(MACHINE);
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        size_t length;
        char *text = sealed("rate 1 neon fork 1e-6\n", &length);
        assert_ok(p->ctx, carry_wisdom_parse(p->ctx, read, text, length));
        strcat(text, tails[i]);
        expect_refused(p, read, text, length + strlen(tails[i]), "continued", length);
        free(text);
    }
    free(read);
}

static void test_the_file_of_another_machine_is_told_apart(void **state) {
    place *p = *state;
    carry_wisdom *wisdom = random_wisdom(7, 3, 1);
    carry_wisdom *read = wisdom_new("another machine");
    char *text;
    size_t length;
    assert_ok(p->ctx, carry_wisdom_print(p->ctx, wisdom, &text, &length));
    assert_refused(p->ctx, CARRY_EUNSUPPORTED, MACHINE, carry_wisdom_parse(p->ctx, read, text, length));
    assert_non_null(strstr(carry_ctx_error(p->ctx), "another machine"));
    assert_int_equal(read->plans + read->rates, 0);
    free(text);
    free(wisdom);
    free(read);
}
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_printed_is_read),
        cmocka_unit_test(test_every_number_that_is_read_can_be_written_and_read_again),
        cmocka_unit_test(test_lines_that_say_nothing_sensible_are_refused),
        cmocka_unit_test(test_more_than_there_is_room_for_is_refused),
        cmocka_unit_test(test_a_file_cut_off_at_any_byte_is_refused),
        cmocka_unit_test(test_any_changed_byte_is_refused),
        cmocka_unit_test(test_any_inserted_byte_is_refused),
        cmocka_unit_test(test_anything_after_the_end_is_refused),
        cmocka_unit_test(test_the_file_of_another_machine_is_told_apart),
    };
    return cmocka_run_group_tests_name("scan wisdom", tests, place_make, place_end);
}
