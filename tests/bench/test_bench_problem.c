/* The problem grammar: accepted texts, in any order, and every kind of bad text, refused with an error message that
   names it. */
#include <ctype.h>

#include "core/rng.h"
#include "bench/family/family.h"
#include "bench/problem.h"
#include "support.h"

static int ctx_make(void **state) {
    carry_ctx *ctx = NULL;
    carry_status status =
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1, .log = support_silent});
    *state = ctx;
    return status == CARRY_OK ? 0 : -1;
}

static int ctx_end(void **state) {
    carry_ctx_free(*state);
    return 0;
}

static void expect_refused(carry_ctx *ctx, const char *text, carry_status expected, const char *words) {
    carry_problem problem;
    memset(&problem, 0xff, sizeof problem);
    carry_status status = carry_problem_parse(ctx, &problem, text);
    const char *message = carry_ctx_error(ctx);
    if (status != expected || strstr(message, words) == NULL) {
        fail_msg("'%s': expected %s with '%s', got %s: %s", text, carry_status_name(expected), words,
                 carry_status_name(status), status == CARRY_OK ? "" : message);
    }
    for (const char *at = message; *at != '\0'; at++) {
        assert_true(isprint((unsigned char)*at)); /* messages must not contain control characters */
    }
}

static void test_words_sizes_and_settings_are_told_apart(void **state) {
    carry_ctx *ctx = *state;
    carry_problem problem;
    assert_ok(ctx, carry_problem_parse(ctx, &problem, "scan:dense:f16:t4096:n64:w1:algo=cyclic"));
    assert_string_equal(problem.text, "scan:dense:f16:t4096:n64:w1:algo=cyclic");
    assert_string_equal(problem.family, "scan");
    assert_int_equal(problem.items, 6);
    assert_true(carry_problem_has(&problem, "dense"));
    assert_true(carry_problem_has(&problem, "f16"));
    assert_false(carry_problem_has(&problem, "diagonal"));
    assert_false(carry_problem_has(&problem, "t"));    /* a size is no word */
    assert_false(carry_problem_has(&problem, "algo")); /* nor is a setting */
    assert_int_equal(carry_problem_size(&problem, "t", 1), 4096);
    assert_int_equal(carry_problem_size(&problem, "n", 1), 64);
    assert_int_equal(carry_problem_size(&problem, "w", 7), 1);
    assert_int_equal(carry_problem_size(&problem, "b", 7), 7);
    assert_int_equal(carry_problem_size(&problem, "dense", 7), 7);
    assert_int_equal(carry_problem_size(&problem, "f", 7), 7); /* f16 is a type */
    assert_string_equal(carry_problem_setting(&problem, "algo"), "cyclic");
    assert_null(carry_problem_setting(&problem, "chunk"));
    assert_null(carry_problem_setting(&problem, "t"));
    assert_ok(ctx, carry_problem_finish(ctx, &problem, "all of this"));
}

static void test_a_family_alone_is_a_problem(void **state) {
    carry_ctx *ctx = *state;
    static const char *const good[] = {"scan", "s", "matmul_2", "a-b"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        carry_problem problem;
        assert_ok(ctx, carry_problem_parse(ctx, &problem, good[i]));
        assert_string_equal(problem.family, good[i]);
        assert_int_equal(problem.items, 0);
        assert_ok(ctx, carry_problem_finish(ctx, &problem, "nothing"));
    }
}

static void test_types_are_words_and_not_sizes(void **state) {
    carry_ctx *ctx = *state;
    static const char *const types[] = {"f32", "bf16", "f16"};
    for (int i = 0; i < 3; i++) {
        carry_problem problem;
        char text[64];
        (void)snprintf(text, sizeof text, "scan:%s:b16:f8", types[i]);
        assert_ok(ctx, carry_problem_parse(ctx, &problem, text));
        for (int j = 0; j < 3; j++) {
            assert_int_equal(carry_problem_has(&problem, types[j]), i == j);
        }
        assert_int_equal(carry_problem_size(&problem, "b", 1), 16);
        assert_int_equal(carry_problem_size(&problem, "bf", 1), 1);
        assert_int_equal(carry_problem_size(&problem, "f", 1), 8);
        assert_ok(ctx, carry_problem_finish(ctx, &problem, "a type and b"));
    }
}

static void test_order_is_free(void **state) {
    carry_ctx *ctx = *state;
    enum { PARTS = 6 };
    static const char *const parts[PARTS] = {"dense", "bf16", "t77", "n5", "algo=blelloch", "reversed"};
    for (uint64_t round = 0; round < 200; round++) {
        int order[PARTS] = {0, 1, 2, 3, 4, 5};
        char text[128] = "scan";
        for (int i = PARTS - 1; i >= 0; i--) {
            int j = (int)(carry_philox(round, 0, (uint64_t)i).word[0] % (uint32_t)(i + 1));
            int taken = order[j];
            order[j] = order[i];
            order[i] = taken;
            (void)snprintf(text + strlen(text), sizeof text - strlen(text), ":%s", parts[taken]);
        }
        carry_problem problem;
        assert_ok(ctx, carry_problem_parse(ctx, &problem, text));
        assert_true(carry_problem_has(&problem, "dense") && carry_problem_has(&problem, "bf16"));
        assert_true(carry_problem_has(&problem, "reversed"));
        assert_int_equal(carry_problem_size(&problem, "t", 0), 77);
        assert_int_equal(carry_problem_size(&problem, "n", 0), 5);
        assert_string_equal(carry_problem_setting(&problem, "algo"), "blelloch");
        assert_ok(ctx, carry_problem_finish(ctx, &problem, "it all"));
    }
}

static void test_sizes_reach_to_the_largest_number(void **state) {
    carry_ctx *ctx = *state;
    carry_problem problem;
    assert_ok(ctx, carry_problem_parse(ctx, &problem, "scan:t9223372036854775807:n1:b007"));
    assert_true(carry_problem_size(&problem, "t", 0) == INT64_MAX);
    assert_int_equal(carry_problem_size(&problem, "n", 0), 1);
    assert_int_equal(carry_problem_size(&problem, "b", 0), 7);
    expect_refused(ctx, "scan:t9223372036854775808", CARRY_ESIZE, "'t9223372036854775808'");
    expect_refused(ctx, "scan:t18446744073709551617", CARRY_ESIZE, "'t18446744073709551617'"); /* 1 when it wraps */
    expect_refused(ctx, "scan:n99999999999999999999999999999999999", CARRY_ESIZE, "larger than any size");
    expect_refused(ctx, "scan:t0", CARRY_ESIZE, "'t0'");
    expect_refused(ctx, "scan:n8:t000", CARRY_ESIZE, "zero");
}

static void test_text_without_a_family_is_refused(void **state) {
    carry_ctx *ctx = *state;
    static const char *const bad[] = {"",      ":",          "::",  ":dense",       " scan:dense", "1scan", "_scan",
                                      "-scan", "scan dense", "a=b", "scan.x:dense", "\t",          "%s%n",  "../scan"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        expect_refused(ctx, bad[i], CARRY_EFORMAT, "family");
    }
    expect_refused(ctx, "familynamesoffortycharactersarenotaccepted:t1", CARRY_EFORMAT, "family");
}

static void test_empty_parts_are_refused(void **state) {
    carry_ctx *ctx = *state;
    static const char *const bad[] = {"scan:", "scan::", "scan::dense", "scan:dense:", "scan:dense::t4", "scan:t4:n4:"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        expect_refused(ctx, bad[i], CARRY_EFORMAT, bad[i]);
    }
}

static void test_parts_given_twice_are_refused(void **state) {
    carry_ctx *ctx = *state;
    expect_refused(ctx, "scan:t4:t5", CARRY_EFORMAT, "'t' twice");
    expect_refused(ctx, "scan:t4:t4", CARRY_EFORMAT, "'t' twice");
    expect_refused(ctx, "scan:dense:n4:dense", CARRY_EFORMAT, "'dense' twice");
    expect_refused(ctx, "scan:algo=a:algo=b", CARRY_EFORMAT, "'algo' twice");
    expect_refused(ctx, "scan:t4:t=5", CARRY_EFORMAT, "'t' twice");
    expect_refused(ctx, "scan:f32:n3:f32", CARRY_EFORMAT, "'f32' twice");
}

static void test_upper_case_and_stray_characters_are_refused(void **state) {
    carry_ctx *ctx = *state;
    expect_refused(ctx, "Scan:dense", CARRY_EFORMAT, "Scan");
    expect_refused(ctx, "SCAN", CARRY_EFORMAT, "SCAN");
    expect_refused(ctx, "scan:Dense", CARRY_EFORMAT, "'Dense'");
    expect_refused(ctx, "scan:T1024", CARRY_EFORMAT, "'T1024'");
    expect_refused(ctx, "scan:BF16", CARRY_EFORMAT, "'BF16'");
    expect_refused(ctx, "scan:Algo=x", CARRY_EFORMAT, "'Algo=x'");
    expect_refused(ctx, "scan:1024", CARRY_EFORMAT, "'1024'");
    expect_refused(ctx, "scan: dense", CARRY_EFORMAT, "' dense'");
    expect_refused(ctx, "scan:t=", CARRY_EFORMAT, "'t='");
    expect_refused(ctx, "scan:=t", CARRY_EFORMAT, "'=t'");
    expect_refused(ctx, "scan:=", CARRY_EFORMAT, "'='");
    expect_refused(ctx, "scan:t 4", CARRY_EFORMAT, "'t 4'");
    expect_refused(ctx, "scan:t+4", CARRY_EFORMAT, "'t+4'");
}

static void test_a_setting_has_one_equals_sign(void **state) {
    carry_ctx *ctx = *state;
    expect_refused(ctx, "scan:a=b=c", CARRY_EFORMAT, "a=b=c");
    expect_refused(ctx, "scan:algo==", CARRY_EFORMAT, "algo==");
}

static void test_control_characters_are_refused_everywhere(void **state) {
    carry_ctx *ctx = *state;
    static const char *const forms[] = {"%cscan:dense", "sc%can:dense",  "scan:den%cse",   "scan:dense%c",
                                        "scan:t4%c",    "scan:al%cgo=x", "scan:algo=x%cy", "scan:algo=%c"};
    static const int characters[] = {1, 7, 8, '\t', '\n', '\r', 27, 127, 128, 155, 255};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        for (size_t j = 0; j < sizeof characters / sizeof characters[0]; j++) {
            char text[64];
            const char *mark = strchr(forms[i], '%');
            (void)snprintf(text, sizeof text, "%.*s%c%s", (int)(mark - forms[i]), forms[i], characters[j], mark + 2);
            expect_refused(ctx, text, CARRY_EFORMAT, "?");
        }
    }
}

static void test_length_is_limited(void **state) {
    carry_ctx *ctx = *state;
    char text[400];
    memset(text, 'a', sizeof text);
    text[300] = '\0';
    expect_refused(ctx, text, CARRY_ESIZE, "longer than 255");
    memcpy(text, "scan:dense:", 11);
    expect_refused(ctx, text, CARRY_ESIZE, "scan:dense:");
    text[CARRY_PROBLEM_TEXT] = '\0';
    expect_refused(ctx, text, CARRY_ESIZE, "longer");
    text[CARRY_PROBLEM_TEXT - 1] = '\0';
    expect_refused(ctx, text, CARRY_EFORMAT, "aaaa"); /* short enough, but longer than any word may be */
    memset(text, 27, 300);
    text[300] = '\0';
    expect_refused(ctx, text, CARRY_ESIZE, "longer"); /* too long to be parsed, and shown all the same */
    memset(text, 'a', 300);
    /* The longest word, and one letter more. */
    char problem_text[CARRY_PROBLEM_TEXT];
    carry_problem problem;
    (void)snprintf(problem_text, sizeof problem_text, "scan:%.*s", CARRY_PROBLEM_WORD - 1, text + 20);
    assert_ok(ctx, carry_problem_parse(ctx, &problem, problem_text));
    assert_int_equal(strlen(problem.item[0].key), CARRY_PROBLEM_WORD - 1);
    (void)snprintf(problem_text, sizeof problem_text, "scan:%.*s", CARRY_PROBLEM_WORD, text + 20);
    expect_refused(ctx, problem_text, CARRY_EFORMAT, "aaaa");
    (void)snprintf(problem_text, sizeof problem_text, "scan:algo=%.*s", CARRY_PROBLEM_WORD, text + 20);
    expect_refused(ctx, problem_text, CARRY_EFORMAT, "algo=aaaa");
    (void)snprintf(problem_text, sizeof problem_text, "scan:%.*s=x", CARRY_PROBLEM_WORD, text + 20);
    expect_refused(ctx, problem_text, CARRY_EFORMAT, "=x");
}

static void test_the_number_of_parts_is_limited(void **state) {
    carry_ctx *ctx = *state;
    char text[CARRY_PROBLEM_TEXT] = "scan";
    for (int parts = 1; parts <= 30; parts++) {
        size_t used = strlen(text);
        (void)snprintf(text + used, sizeof text - used, ":%c%c%d", 'a' + parts / 10, 'a' + parts % 10, parts);
        if (parts <= CARRY_PROBLEM_ITEMS) {
            carry_problem problem;
            assert_ok(ctx, carry_problem_parse(ctx, &problem, text));
            assert_int_equal(problem.items, parts);
        } else {
            expect_refused(ctx, text, CARRY_ESIZE, "more than 24 parts");
        }
    }
}

static void test_what_nobody_asked_for_is_named(void **state) {
    carry_ctx *ctx = *state;
    carry_problem problem;
    assert_ok(ctx, carry_problem_parse(ctx, &problem, "scan:t4:q9:wide:mode=x"));
    assert_refused(ctx, CARRY_EARGUMENT, "size 't'", carry_problem_finish(ctx, &problem, "the things it takes"));
    assert_non_null(strstr(carry_ctx_error(ctx), "the things it takes"));
    assert_int_equal(carry_problem_size(&problem, "t", 1), 4);
    assert_refused(ctx, CARRY_EARGUMENT, "'q'", carry_problem_finish(ctx, &problem, "t"));
    assert_int_equal(carry_problem_size(&problem, "q", 1), 9);
    assert_refused(ctx, CARRY_EARGUMENT, "'wide'", carry_problem_finish(ctx, &problem, "t, q"));
    assert_true(carry_problem_has(&problem, "wide"));
    assert_refused(ctx, CARRY_EARGUMENT, "'mode=x'", carry_problem_finish(ctx, &problem, "t, q, wide"));
    assert_string_equal(carry_problem_setting(&problem, "mode"), "x");
    assert_ok(ctx, carry_problem_finish(ctx, &problem, "it all"));
}

/* Reading a value in the wrong form does not mark it as used. */
static void test_asking_in_the_wrong_form_is_not_asking(void **state) {
    carry_ctx *ctx = *state;
    carry_problem problem;
    assert_ok(ctx, carry_problem_parse(ctx, &problem, "scan:t4"));
    assert_false(carry_problem_has(&problem, "t"));
    assert_false(carry_problem_has(&problem, "t4"));
    assert_null(carry_problem_setting(&problem, "t"));
    assert_refused(ctx, CARRY_EARGUMENT, "'t'", carry_problem_finish(ctx, &problem, ""));
    assert_ok(ctx, carry_problem_parse(ctx, &problem, "scan:algo=x"));
    assert_false(carry_problem_has(&problem, "algo"));
    assert_int_equal(carry_problem_size(&problem, "algo", 3), 3);
    assert_refused(ctx, CARRY_EARGUMENT, "'algo=x'", carry_problem_finish(ctx, &problem, ""));
}

static void test_every_family_takes_its_example_and_refuses_what_it_does_not_know(void **state) {
    carry_ctx *ctx = *state;
    const carry_family *family;
    for (int i = 0; (family = carry_family_at(i)) != NULL; i++) {
        carry_problem problem;
        void *instance = NULL;
        assert_ok(ctx, carry_problem_parse(ctx, &problem, family->example));
        assert_string_equal(problem.family, family->name);
        assert_ok(ctx, carry_family_plan(family, ctx, &instance, &problem, false));
        assert_non_null(instance);
        carry_family_close(family, instance);
        char text[CARRY_PROBLEM_TEXT];
        (void)snprintf(text, sizeof text, "%s:zebra", family->example);
        assert_ok(ctx, carry_problem_parse(ctx, &problem, text));
        assert_refused(ctx, CARRY_EARGUMENT, "'zebra'", carry_family_plan(family, ctx, &instance, &problem, false));
        const carry_family *found = NULL;
        assert_ok(ctx, carry_family_find(ctx, &found, family->name));
        assert_ptr_equal(found, family);
    }
    const carry_family *missing = NULL;
    assert_refused(ctx, CARRY_ENOTFOUND, "'zebra'", carry_family_find(ctx, &missing, "zebra"));
    assert_null(missing);
    assert_null(carry_family_at(-1));
}

/* Sizes whose products leave 64 bits are refused, not wrapped (the sanitizers see the difference). */
static void test_sizes_that_overflow_are_refused_by_every_family(void **state) {
    carry_ctx *ctx = *state;
    static const char *const problems[] = {
        "block:bf16:d9223372036854775807",       "block:bf16:h9223372036854775807:d9223372036854775807",
        "attention:f32:h9223372036854775807:d2", "scan:f32:t9223372036854775807:n9223372036854775807",
        "delta:f32:t9223372036854775807",
    };
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        carry_problem problem;
        const carry_family *family = NULL;
        void *instance = NULL;
        assert_ok(ctx, carry_problem_parse(ctx, &problem, problems[i]));
        assert_ok(ctx, carry_family_find(ctx, &family, problem.family));
        assert_int_not_equal(carry_family_plan(family, ctx, &instance, &problem, false), CARRY_OK);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_sizes_and_settings_are_told_apart),
        cmocka_unit_test(test_a_family_alone_is_a_problem),
        cmocka_unit_test(test_types_are_words_and_not_sizes),
        cmocka_unit_test(test_order_is_free),
        cmocka_unit_test(test_sizes_reach_to_the_largest_number),
        cmocka_unit_test(test_text_without_a_family_is_refused),
        cmocka_unit_test(test_empty_parts_are_refused),
        cmocka_unit_test(test_parts_given_twice_are_refused),
        cmocka_unit_test(test_upper_case_and_stray_characters_are_refused),
        cmocka_unit_test(test_a_setting_has_one_equals_sign),
        cmocka_unit_test(test_control_characters_are_refused_everywhere),
        cmocka_unit_test(test_length_is_limited),
        cmocka_unit_test(test_the_number_of_parts_is_limited),
        cmocka_unit_test(test_what_nobody_asked_for_is_named),
        cmocka_unit_test(test_asking_in_the_wrong_form_is_not_asking),
        cmocka_unit_test(test_sizes_that_overflow_are_refused_by_every_family),
        cmocka_unit_test(test_every_family_takes_its_example_and_refuses_what_it_does_not_know),
    };
    return cmocka_run_group_tests_name("lab problem", tests, ctx_make, ctx_end);
}
