/* Conditioning: prompts by weight, transitions in equal steps, and no update if nothing changed. */
#include "support.h"

#include <math.h>

#include "model/dit/words.h"
#include "stream/conditioning.h"

enum { LENGTH = 7, WIDTH = 33 };

static carry_ctx *ctx;
static carry_control_state state_now;

static void set_prompt(int i, const char *text, double weight) {
    carry_prompt *p = &state_now.prompt[i];
    memset(p, 0, sizeof *p);
    p->length = strlen(text);
    memcpy(p->text, text, p->length);
    p->weight = weight;
    state_now.prompts = i + 1;
    state_now.prompt_version++;
}

static carry_conditioning *start(const char *text, int64_t transition) {
    carry_conditioning *c;
    state_now = carry_control_default();
    state_now.transition = transition;
    set_prompt(0, text, 1);
    assert_ok(ctx, carry_conditioning_new(ctx, &c, LENGTH, WIDTH, NULL));
    return c;
}

typedef struct shown {
    float value[LENGTH * WIDTH]; /* zeros past the rows */
    int64_t rows;
    bool is_new;
} shown;

static shown next(carry_conditioning *c) {
    shown s = {.is_new = true};
    carry_tensor t;
    memset(&t, 0xA5, sizeof t);
    assert_ok(ctx, carry_conditioning_next(c, &state_now, &t, &s.is_new));
    assert_true(t.dtype == CARRY_BF16 && t.rank == 2 && t.shape[0] >= 1 && t.shape[0] <= LENGTH);
    assert_true(t.shape[1] == WIDTH && t.stride[1] == 1 && t.stride[0] == WIDTH && t.device == 0);
    s.rows = t.shape[0];
    for (int64_t i = 0; i < s.rows * WIDTH; i++) {
        s.value[i] = carry_f32_from_bf16(((const uint16_t *)t.data)[i]);
    }
    return s;
}

static int64_t words(float *to, const char *text) {
    int64_t rows;
    assert_ok(ctx,
              carry_words_encode(ctx, carry_view_2d(to, CARRY_F32, LENGTH, WIDTH), &rows, NULL, text, strlen(text)));
    return rows;
}

/* bf16 keeps 8 bits: half a unit of the last is 2^-9 of the value. Added to it is f32's error in sums of numbers below
   8. */
static void assert_close(const float *is, const float *expected) {
    for (int i = 0; i < LENGTH * WIDTH; i++) {
        if (!(fabsf(is[i] - expected[i]) <= fabsf(expected[i]) * 0x1p-8F + 1e-5F)) {
            fail_msg("element %d is %g, not %g", i, (double)is[i], (double)expected[i]);
        }
    }
}

static void test_the_first_chunk_is_its_prompt_and_then_nothing_is_new(void **state) {
    (void)state;
    float expected[LENGTH * WIDTH];
    carry_conditioning *c = start("a red ball", 4);
    assert_int_equal(words(expected, "a red ball"), 3);
    for (int i = 0; i < 5; i++) {
        const shown s = next(c);
        assert_true(s.is_new == (i == 0));
        assert_int_equal(s.rows, 3);
        assert_close(s.value, expected);
    }
    state_now.seed++; /* other controls cause no update */
    state_now.transition = 9;
    assert_false(next(c).is_new);
    state_now.prompt_version++; /* neither does an equal prompt */
    for (int i = 0; i < 10; i++) {
        assert_false(next(c).is_new);
    }
    carry_conditioning_free(c);
    carry_conditioning_free(NULL);
}

static void test_prompts_are_mixed_by_weight(void **state) {
    (void)state;
    float one[LENGTH * WIDTH], two[LENGTH * WIDTH], expected[LENGTH * WIDTH];
    carry_conditioning *c = start("red", 0);
    set_prompt(0, "a red ball", 3);
    set_prompt(1, "blue", 1);
    set_prompt(2, "one that weighs nothing and is long", 0);
    (void)words(one, "a red ball");
    (void)words(two, "blue");
    for (int i = 0; i < LENGTH * WIDTH; i++) {
        expected[i] = 0.75F * one[i] + 0.25F * two[i];
    }
    const shown s = next(c);
    assert_true(s.is_new && s.rows == 3);
    assert_close(s.value, expected);
    carry_conditioning_free(c);
}

static void test_a_transition_goes_in_equal_steps(void **state) {
    (void)state;
    float from[LENGTH * WIDTH], to[LENGTH * WIDTH], expected[LENGTH * WIDTH];
    for (int64_t steps = 0; steps <= 5; steps++) {
        carry_conditioning *c = start("a red ball", steps);
        (void)next(c);
        set_prompt(0, "blue", 1);
        (void)words(from, "a red ball");
        (void)words(to, "blue");
        const int64_t chunks = steps < 1 ? 1 : steps;
        for (int64_t k = 1; k <= chunks + 3; k++) {
            const float part = k < chunks ? (float)k / (float)chunks : 1;
            for (int i = 0; i < LENGTH * WIDTH; i++) {
                expected[i] = (1 - part) * from[i] + part * to[i];
            }
            const shown s = next(c);
            assert_true(s.is_new == (k <= chunks));
            assert_int_equal(s.rows, k < chunks ? 3 : 1); /* rows that have faded out are removed */
            assert_close(s.value, expected);
        }
        carry_conditioning_free(c);
    }
}

static void test_a_change_in_between_starts_from_what_is_shown(void **state) {
    (void)state;
    float a[LENGTH * WIDTH], b[LENGTH * WIDTH], d[LENGTH * WIDTH], expected[LENGTH * WIDTH];
    carry_conditioning *c = start("a red ball", 4);
    (void)next(c);
    (void)words(a, "a red ball");
    (void)words(b, "blue");
    (void)words(d, "green box");
    set_prompt(0, "blue", 1);
    (void)next(c);
    (void)next(c); /* half a, half b */
    set_prompt(0, "green box", 1);
    state_now.transition = 2;
    for (int i = 0; i < LENGTH * WIDTH; i++) {
        expected[i] = 0.25F * a[i] + 0.25F * b[i] + 0.5F * d[i];
    }
    shown s = next(c);
    assert_true(s.is_new && s.rows == 3);
    assert_close(s.value, expected);
    s = next(c);
    assert_true(s.is_new && s.rows == 2);
    assert_close(s.value, d);
    assert_false(next(c).is_new);
    carry_conditioning_free(c);
}

/* No chunk differs from the previous one by more than a step, even when prompts change with every chunk. */
static void test_nothing_jumps(void **state) {
    (void)state;
    const char *const text[] = {"a", "b c", "d e f", "", "g h i j k l m n"};
    carry_conditioning *c = start("start", 8);
    shown before = next(c);
    for (int k = 0; k < 60; k++) {
        if (k % 3 != 0) {
            set_prompt(0, text[k % 5], 1);
        }
        const shown now = next(c);
        for (int i = 0; i < LENGTH * WIDTH;
             i++) { /* vectors are within 6 of 0 here: 12 / 8, and bf16's rounding twice */
            assert_true(fabsf(now.value[i] - before.value[i]) < 12.0F / 8 + 0.05F);
        }
        before = now;
    }
    carry_conditioning_free(c);
}

static void test_an_empty_prompt_is_one_row_of_zeros(void **state) {
    (void)state;
    const float zeros[LENGTH * WIDTH] = {0};
    carry_conditioning *c = start("", 0);
    const shown s = next(c);
    assert_true(s.is_new && s.rows == 1);
    assert_memory_equal(s.value, zeros, sizeof zeros);
    carry_conditioning_free(c);
}

static void test_long_prompts_fill_all_rows(void **state) {
    (void)state;
    carry_conditioning *c = start("1 2 3 4 5 6 7 8 9", 0);
    assert_int_equal(next(c).rows, LENGTH);
    carry_conditioning_free(c);
}

static void test_empty_sizes_are_refused(void **state) {
    (void)state;
    carry_conditioning *c;
    const int64_t size[][2] = {{0, 1}, {1, 0}, {-1, 5}, {INT64_MAX, 8}, {INT64_MAX, INT64_MAX}};
    for (size_t i = 0; i < sizeof size / sizeof size[0]; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, "is empty", carry_conditioning_new(ctx, &c, size[i][0], size[i][1], NULL));
        assert_null(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_first_chunk_is_its_prompt_and_then_nothing_is_new),
        cmocka_unit_test(test_prompts_are_mixed_by_weight),
        cmocka_unit_test(test_a_transition_goes_in_equal_steps),
        cmocka_unit_test(test_a_change_in_between_starts_from_what_is_shown),
        cmocka_unit_test(test_nothing_jumps),
        cmocka_unit_test(test_an_empty_prompt_is_one_row_of_zeros),
        cmocka_unit_test(test_long_prompts_fill_all_rows),
        cmocka_unit_test(test_empty_sizes_are_refused),
    };
    ctx = support_ctx(1, NULL, NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
