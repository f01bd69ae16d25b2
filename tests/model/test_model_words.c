/* Prompts as vectors: a word has the same vector at every position, any bytes are a prompt, and brackets give
   weights. */
#include "support.h"

#include <math.h>

#include "core/rng.h"
#include "model/dit/words.h"

enum { ROWS = 9, WIDTH = 300 }; /* more than one block of the position's part, and not a multiple of it */

static carry_ctx *ctx;
static float a[ROWS * WIDTH], b[ROWS * WIDTH];

static int64_t encode_bytes(float *to, const char *prompt, size_t length, int64_t *left_out) {
    int64_t rows = -1;
    memset(to, 0xFF, ROWS * WIDTH * sizeof *to);
    assert_ok(ctx, carry_words_encode(ctx, carry_view_2d(to, CARRY_F32, ROWS, WIDTH), &rows, left_out, prompt, length));
    for (int64_t i = rows * WIDTH; i < ROWS * WIDTH; i++) {
        assert_true(to[i] == 0);
    }
    for (int64_t i = 0; i < rows * WIDTH; i++) {
        assert_true(isfinite(to[i]));
    }
    return rows;
}

static int64_t encode(float *to, const char *prompt) {
    int64_t left_out = -1;
    const int64_t rows = encode_bytes(to, prompt, strlen(prompt), &left_out);
    assert_int_equal(left_out, 0);
    return rows;
}

static void assert_same(const char *prompt, const char *other) {
    assert_int_equal(encode(a, prompt), encode(b, other));
    assert_memory_equal(a, b, sizeof a);
}

static void assert_differ(const char *prompt, const char *other) {
    (void)encode(a, prompt);
    (void)encode(b, other);
    assert_memory_not_equal(a, b, sizeof a);
}

static double dot(const float *x, const float *y) {
    double sum = 0;
    for (int i = 0; i < WIDTH; i++) {
        sum += (double)x[i] * y[i];
    }
    return sum / WIDTH;
}

static void test_prompts_are_cut_into_words(void **state) {
    (void)state;
    assert_int_equal(encode(a, ""), 0);
    assert_int_equal(encode(a, " \t\n\v\f\r "), 0);
    assert_int_equal(encode(a, "ball"), 1);
    assert_int_equal(encode(a, "a red ball, 3d"), 5);  /* the comma is one */
    assert_int_equal(encode(a, "caf\xC3\xA9!? x"), 3); /* caf, then neither letters nor spaces, then x */
    assert_same("A Red BALL", "a red ball");
    assert_same("  a   red\tball ", "a red ball");
    assert_differ("a red ball", "a ball red");
    assert_differ("red", "rde");
    assert_differ("red ball", "redball");
    assert_same("red,ball", "red , ball");
}

/* Rows of the same word are equal except for the position: with parts of variance 1 and 1/16, sums over 300 numbers are
   1 with a deviation of about sqrt(2/300) = 0.08; other words give 0 with about 0.06. Six deviations are allowed. */
static void test_a_word_is_the_same_wherever_it_stands(void **state) {
    (void)state;
    assert_int_equal(encode(a, "red ball red"), 3);
    assert_true(fabs(dot(a, a + 2 * WIDTH) - 1) < 0.5);
    assert_true(fabs(dot(a, a + WIDTH)) < 0.4);
    assert_true(fabs(dot(a, a) - 17.0 / 16) < 0.5);
    assert_memory_not_equal(a, a + 2 * WIDTH, WIDTH * sizeof *a);
    assert_int_equal(encode(b, "blue box red"), 3);
    assert_memory_equal(a + 2 * WIDTH, b + 2 * WIDTH, WIDTH * sizeof *a);
}

static void test_brackets_weigh_words(void **state) {
    (void)state;
    assert_same("(red:1) ball", "red ball");
    assert_same("(red ball:1.0)", "red ball");
    assert_same("(red:2)(ball:1)", "(red:2.000) ball");
    assert_differ("(red:2) ball", "red ball");
    (void)encode(a, "(red:0) ball");
    (void)encode(b, "(blue:0) ball");
    assert_memory_equal(a, b, sizeof a); /* weight 0 leaves only the position */
    /* weight w: row = w * word + position, so row(3) - row(1) = 2 (row(2) - row(1)) up to the rounding of f32 near
       10. */
    static float c[ROWS * WIDTH];
    (void)encode(a, "red");
    (void)encode(b, "(red:2)");
    (void)encode(c, "(red:3)");
    for (int i = 0; i < WIDTH; i++) {
        assert_true(fabsf((c[i] - a[i]) - 2 * (b[i] - a[i])) < 1e-5F);
    }
    /* Parentheses without a valid weight are plain text. */
    assert_int_equal(encode(a, "(red)"), 3);
    assert_int_equal(encode(a, "(red:)"), 3); /* "(", "red", ":)" */
    assert_int_equal(encode(a, "(red:x)"), 5);
    assert_int_equal(encode(a, "(red:-1)"), 5);
    assert_int_equal(encode(a, "(red:12345)"), 5);
    assert_int_equal(encode(a, "(red:1.2.3)"), 9);
    assert_int_equal(encode(a, "(:2)"), 0);
    assert_int_equal(encode(a, "(("), 1);
    assert_same("((red:2)", "( (red:2)");
    /* An escaped bracket is plain text. */
    assert_same("\\(red:2)", "\\( red : 2 )");
    assert_int_equal(encode(a, "\\(red\\)"), 3);
    assert_same("\\(", "(");
    assert_same("a \\\\ b", "a \\ b");
    assert_same("(a\\)b:2)", "(a\\) b:2)");
    assert_int_equal(encode(a, "red\\"), 2);
}

static void test_what_does_not_fit_is_counted(void **state) {
    (void)state;
    int64_t left_out;
    const char *many = "1 2 3 4 5 6 7 8 9 10 11 12";
    assert_int_equal(encode_bytes(a, many, strlen(many), &left_out), ROWS);
    assert_int_equal(left_out, 3);
    (void)encode(b, "1 2 3 4 5 6 7 8 9");
    assert_memory_equal(a, b, sizeof a);
    assert_ok(ctx, carry_words_encode(ctx, carry_view_2d(a, CARRY_F32, ROWS, WIDTH), NULL, NULL, many, strlen(many)));
}

static void test_any_bytes_of_any_length_are_a_prompt(void **state) {
    (void)state;
    static char bytes[1 << 20];
    int64_t left_out;
    for (uint64_t round = 0; round < 300; round++) {
        const size_t length = round < 256 ? (size_t)(round % 97) : sizeof bytes;
        for (size_t i = 0; i < length && round < 256; i++) {
            const uint32_t word = carry_philox(9, round, i).word[0];
            bytes[i] = word % 3 == 0 ? "():\\ 1.a"[word / 3 % 8] : (char)(word >> 8);
        }
        if (round >= 256) { /* slow if every bracket were searched to the end of the text */
            memset(bytes, "(:)\\ a1."[round % 8], sizeof bytes);
        }
        (void)encode_bytes(a, bytes, length, &left_out);
        assert_true(left_out >= 0);
        if (round >= 264) {
            break;
        }
    }
}

static void test_other_tensors_are_refused(void **state) {
    (void)state;
    carry_tensor t = carry_view_2d(a, CARRY_F32, ROWS, WIDTH);
    t.stride[0]++;
    assert_refused(ctx, CARRY_EARGUMENT, "packed", carry_words_encode(ctx, t, NULL, NULL, "a", 1));
    assert_refused(ctx, CARRY_EARGUMENT, "bf16",
                   carry_words_encode(ctx, carry_view_2d(a, CARRY_BF16, 1, 2), NULL, NULL, "a", 1));
    assert_refused(ctx, CARRY_EARGUMENT, "rank 1",
                   carry_words_encode(ctx, carry_view_1d(a, CARRY_F32, 2), NULL, NULL, "a", 1));
    assert_refused(ctx, CARRY_EARGUMENT, "no data",
                   carry_words_encode(ctx, carry_view_2d(NULL, CARRY_F32, 1, 2), NULL, NULL, "a", 1));
}

/* Models are trained on these numbers, so they must not change. */
static void test_vectors_stay_what_they_are(void **state) {
    (void)state;
    const float known[] = {0.1762113F, -0.68740427F, 1.0542357F, 1.9325687F};
    (void)encode(a, "circle (red:1.5)");
    for (int i = 0; i < 4; i++) { /* sin and log of other libraries may differ in the last digits */
        const float is = a[i == 3 ? WIDTH + 299 : i * 100];
        if (!(fabsf(is - known[i]) < 1e-5F)) {
            fail_msg("number %d is %.8g, not %.8g", i, (double)is, (double)known[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts_are_cut_into_words),
        cmocka_unit_test(test_a_word_is_the_same_wherever_it_stands),
        cmocka_unit_test(test_brackets_weigh_words),
        cmocka_unit_test(test_what_does_not_fit_is_counted),
        cmocka_unit_test(test_any_bytes_of_any_length_are_a_prompt),
        cmocka_unit_test(test_other_tensors_are_refused),
        cmocka_unit_test(test_vectors_stay_what_they_are),
    };
    ctx = support_ctx(1, NULL, NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
