/* Prompts of any bytes and lengths as rows: what a word depends on, weights, brackets, what does not fit. */
#include "support.h"

#include <math.h>

#include "core/rng.h"
#include "model/words.h"

enum { ROWS = 8, DIM = 33 };

static carry_ctx *ctx;

static int open_ctx(void **state) {
    (void)state;
    ctx = support_ctx(1, NULL, NULL);
    return 0;
}

static int close_ctx(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

typedef struct encoded {
    float row[ROWS][DIM];
    int64_t rows, left_out;
} encoded;

static encoded encode_bytes(const char *prompt, size_t length) {
    encoded e;
    memset(&e, 255, sizeof e);
    assert_ok(
        ctx, carry_words_encode(ctx, carry_view_2d(e.row, CARRY_F32, ROWS, DIM), &e.rows, &e.left_out, prompt, length));
    for (int64_t i = 0; i < ROWS * DIM; i++) {
        float value = e.row[i / DIM][i % DIM];
        assert_true(i / DIM < e.rows ? isfinite(value) : value == 0.0f);
    }
    return e;
}

static encoded encode(const char *prompt) {
    return encode_bytes(prompt, strlen(prompt));
}

static void assert_same(const char *a, const char *b) {
    encoded first = encode(a), second = encode(b);
    if (memcmp(&first, &second, sizeof first) != 0) {
        fail_msg("'%s' (%d words) and '%s' (%d words) differ", a, (int)first.rows, b, (int)second.rows);
    }
}

/* The part of a row that does not depend on its place: row i less the place's part, which a word of weight 0 shows. */
static void word_part(float part[DIM], const char *prompt, int row) {
    static const char nothing[] = "(a a a a a a a a:0)";
    encoded e = encode(prompt), places = encode(nothing);
    for (int i = 0; i < DIM; i++) {
        part[i] = e.row[row][i] - places.row[row][i];
    }
}

static double distance(const float *a, const float *b) {
    double sum = 0.0;
    for (int i = 0; i < DIM; i++) {
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    return sqrt(sum / DIM);
}

static void test_a_word_depends_on_its_bytes_and_place(void **state) {
    (void)state;
    float a[DIM], b[DIM];
    word_part(a, "red circle moving left", 0);
    word_part(b, "a (big red:1) circle", 2);
    assert_true(distance(a, b) < 1e-6);
    word_part(b, "rad circle moving left", 0);
    assert_true(distance(a, b) > 0.5); /* two vectors N(0, 1): sqrt 2 apart, 0.12 of deviation */
    encoded e = encode("red red");
    double apart = distance(e.row[0], e.row[1]);
    assert_true(apart > 0.1 && apart < 0.6); /* 0.25 sqrt 2: smaller than a word's own */
    double squares = 0.0;
    for (int i = 0; i < DIM; i++) {
        squares += (double)(a[i] * a[i]);
    }
    assert_true(squares / DIM > 0.4 && squares / DIM < 2.0);
}

static void test_case_and_spaces_do_not_count(void **state) {
    (void)state;
    assert_same("Red CIRCLE", " red\t\n circle \r\f\v");
    assert_same("red,circle", "red , circle");
    assert_same("", " \n ");
    assert_int_equal(encode("a1b2").rows, 1);
    assert_int_equal(encode("a-b").rows, 3);
    assert_int_equal(encode("\xd0\xba\xd1\x80 \xe2\x80\xa6!?").rows, 2);
    assert_int_equal(encode_bytes("a\0b", 3).rows, 3);
    assert_int_equal(encode_bytes(NULL, 0).rows, 0);
}

static void test_weights_weigh_and_others_count_as_one(void **state) {
    (void)state;
    float one[DIM], more[DIM];
    word_part(one, "red", 0);
    word_part(more, "(red:1.5)", 0);
    for (int i = 0; i < DIM; i++) {
        assert_true(fabsf(more[i] - 1.5f * one[i]) < 1e-5f);
    }
    assert_same("(big red:1.0) circle", "big red circle");
    assert_same("( red : 1 )circle", "red circle");
    assert_same("(red:-3)", "red");
    assert_same("(red:nan)", "red");
    assert_same("(red:inf)", "red");
    assert_same("(red:10.5)", "red");
    assert_same("(red:1e999)", "red");
    assert_same("(a:b:1)", "a : b");
    assert_true(distance(encode("(red:10)").row[0], encode("red").row[0]) > 4.0);
}

static void test_brackets_without_a_weight_are_bytes(void **state) {
    (void)state;
    assert_int_equal(encode("(red)").rows, 3);
    assert_int_equal(encode("(red").rows, 2);
    assert_int_equal(encode("red:1)").rows, 4);
    assert_int_equal(encode("(red:)").rows, 3);
    assert_int_equal(encode("(red:big)").rows, 5);
    assert_int_equal(encode("((red:1)").rows, 2);
    assert_same("\\(red:1\\)", "\\( red :1 \\)");
    assert_int_equal(encode("\\(red:1\\)").rows, 5);
    assert_int_equal(encode("(:1)").rows, 0);
    assert_int_equal(encode("()\\").rows, 1);
    float a[DIM], b[DIM];
    word_part(a, "(\\):1)", 0);
    word_part(b, "\\)", 0);
    assert_true(distance(a, b) < 1e-6);
}

static void test_what_does_not_fit_is_counted(void **state) {
    (void)state;
    encoded e = encode("1 2 3 4 5 6 7 8 9 10");
    assert_int_equal(e.rows, ROWS);
    assert_int_equal(e.left_out, 2);
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    memset(text, 'a', LONG);
    assert_int_equal(encode_bytes(text, LONG).rows, 1);
    memset(text, '(', LONG);
    assert_int_equal(encode_bytes(text, LONG).rows, 1);
    for (int i = 0; i < LONG; i++) {
        text[i] = i % 2 == 0 ? 'a' : ' ';
    }
    assert_int_equal(encode_bytes(text, LONG).left_out, LONG / 2 - ROWS);
    free(text);
}

/* Random bytes of what means something here: nothing is read past the end (sanitizers watch), all is written. */
static void test_any_bytes_are_a_prompt(void **state) {
    (void)state;
    static const char alphabet[] = "()\\:. \0a1-e\xff\n";
    for (uint64_t i = 0; i < 3000; i++) {
        carry_words dice = carry_philox(4, i, 0);
        size_t length = dice.word[0] % 24;
        char *text = malloc(length + 1); /* no end of a string: the last byte is not the prompt's */
        for (size_t k = 0; k < length; k++) {
            text[k] = alphabet[carry_philox(5, i, k).word[0] % (sizeof alphabet - 1)];
        }
        char *exact = malloc(length > 0 ? length : 1);
        memcpy(exact, text, length);
        encoded e = encode_bytes(exact, length);
        assert_in_range(e.rows, 0, ROWS);
        free(exact);
        free(text);
    }
}

static void test_wrong_tensors_are_refused(void **state) {
    (void)state;
    float numbers[8];
    assert_refused(ctx, CARRY_ESHAPE, "text_len",
                   carry_words_encode(ctx, carry_view_1d(numbers, CARRY_F32, 8), NULL, NULL, "a", 1));
    assert_refused(ctx, CARRY_ESHAPE, "f32",
                   carry_words_encode(ctx, carry_view_2d(numbers, CARRY_BF16, 2, 2), NULL, NULL, "a", 1));
    assert_ok(ctx, carry_words_encode(ctx, carry_view_2d(numbers, CARRY_F32, 2, 2), NULL, NULL, "a", 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_word_depends_on_its_bytes_and_place),
        cmocka_unit_test(test_case_and_spaces_do_not_count),
        cmocka_unit_test(test_weights_weigh_and_others_count_as_one),
        cmocka_unit_test(test_brackets_without_a_weight_are_bytes),
        cmocka_unit_test(test_what_does_not_fit_is_counted),
        cmocka_unit_test(test_any_bytes_are_a_prompt),
        cmocka_unit_test(test_wrong_tensors_are_refused),
    };
    return cmocka_run_group_tests(tests, open_ctx, close_ctx);
}
