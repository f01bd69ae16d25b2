/* Suggestions for misspelt words. */
#include <limits.h>
#include <string.h>

#include "core/nearest.h"
#include "support.h"

static const char *const verbs[] = {"bench", "check", "list", "plan", "run", "runs", "stream", "train", NULL};
static const char *const types[] = {"f32", "bf16", "f16", NULL};

static void test_distance_counts_edits(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        int distance;
    } cases[] = {{"", "", 0},           {"", "abc", 3},        {"bench", "bench", 0},   {"bnch", "bench", 1},
                 {"benhc", "bench", 1}, {"bxnch", "bench", 1}, {"kitten", "sitting", 3}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(carry_edit_distance(cases[i].a, cases[i].b), cases[i].distance);
        assert_int_equal(carry_edit_distance(cases[i].b, cases[i].a), cases[i].distance);
    }
    char lengthy[200];
    memset(lengthy, 'a', sizeof lengthy - 1);
    lengthy[sizeof lengthy - 1] = '\0';
    assert_int_equal(carry_edit_distance(lengthy, "a"), INT_MAX);
}

static void test_near_words_are_suggested_and_far_ones_not(void **state) {
    (void)state;
    char hint[CARRY_NEAREST_HINT];
    assert_string_equal(carry_nearest_among(hint, "bnch", verbs), "; did you mean 'bench'?");
    assert_string_equal(carry_nearest_among(hint, "rnu", verbs), "; did you mean 'run'?");
    assert_string_equal(carry_nearest_among(hint, "benchmark", verbs), "; did you mean 'bench'?");
    assert_string_equal(carry_nearest_among(hint, "fly", verbs), "");
    assert_string_equal(carry_nearest_among(hint, "", verbs), "");
    assert_string_equal(carry_nearest_among(hint, "fp16", types), "; did you mean 'f16'?");
    assert_string_equal(carry_nearest_among(hint, "bfloat16", types), "; did you mean 'bf16'?");
    assert_string_equal(carry_nearest_among(hint, "bfloat16", verbs), ""); /* a synonym of a missing word */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_distance_counts_edits),
                                       cmocka_unit_test(test_near_words_are_suggested_and_far_ones_not)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
