/* Contexts: options, the last error and its source position, the log; and the list of statuses. */
#include <ctype.h>

#include "core/context.h"
#include "support.h"

typedef struct heard {
    int lines;
    carry_log_level level;
    char last[600];
} heard;

static void hear(void *user, carry_log_level level, const char *line) {
    heard *h = user;
    h->lines++;
    h->level = level;
    (void)snprintf(h->last, sizeof h->last, "%s", line);
}

/* "core/context.c:53": a folder of src, a C file and a line, without paths of the machine that built it. */
static void expect_place(const carry_ctx *ctx, const char *folder) {
    const char *place = carry_ctx_error_place(ctx);
    const char *colon = strrchr(place, ':');
    assert_int_equal(strncmp(place, folder, strlen(folder)), 0);
    assert_null(strstr(place, "src"));
    assert_null(strchr(place + strlen(folder), '/'));
    assert_non_null(colon);
    assert_true(colon - place > 2 && strncmp(colon - 2, ".c", 2) == 0);
    assert_true(isdigit((unsigned char)colon[1]) && colon[1 + strspn(colon + 1, "0123456789")] == '\0');
}

static void expect_refused_options(carry_ctx_options options, const char *words) {
    carry_ctx *ctx = NULL;
    carry_status status = carry_ctx_new(&ctx, &options);
    assert_non_null(ctx);
    assert_refused(ctx, CARRY_EARGUMENT, words, status);
    expect_place(ctx, "core/");
    carry_ctx_free(ctx);
}

static void test_defaults_are_every_core_and_the_best_kernels(void **state) {
    (void)state;
    static const carry_ctx_options zero = {CARRY_INIT(carry_ctx_options)};
    const carry_ctx_options *const both[] = {NULL, &zero};
    for (int i = 0; i < 2; i++) {
        carry_ctx *ctx = NULL;
        assert_int_equal(carry_ctx_new(&ctx, both[i]), CARRY_OK);
        assert_non_null(ctx);
        carry_device_properties cpu = {CARRY_INIT(carry_device_properties)};
        assert_ok(ctx, carry_device_properties_of(ctx, &cpu, 0));
        assert_true(carry_ctx_threads(ctx) >= 1);
        assert_int_equal(carry_ctx_threads(ctx), cpu.units);
        assert_string_equal(carry_ctx_error(ctx), "");
        const char *best = NULL;
        for (int k = 0; carry_kernels_name(k) != NULL; k++) {
            best = carry_kernels_usable(k) ? carry_kernels_name(k) : best;
        }
        assert_string_equal(carry_ctx_kernels(ctx), best);
        carry_ctx_free(ctx);
    }
    carry_ctx_free(NULL);
}

static void test_threads_are_as_many_as_asked_for(void **state) {
    (void)state;
    for (int threads = 1; threads <= 9; threads += 2) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        assert_int_equal(carry_ctx_threads(ctx), threads);
        carry_ctx_free(ctx);
    }
}

static void test_unacceptable_options_are_named(void **state) {
    (void)state;
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = -1}, "-1 threads");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = 1025}, "1025 threads");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = INT32_MAX}, "2147483647");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = INT32_MIN}, "-2147483648");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .log_level = (carry_log_level)3},
                           "log level 3");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .log_level = (carry_log_level)-2},
                           "log level -2");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .kernels = ""}, "kernels");
    expect_refused_options((carry_ctx_options){CARRY_INIT(carry_ctx_options), .wisdom = ""}, "wisdom");
}

static void test_every_usable_set_of_kernels_can_be_asked_for(void **state) {
    (void)state;
    int usable = 0;
    for (int i = 0; carry_kernels_name(i) != NULL; i++) {
        carry_ctx *ctx = support_ctx(1, carry_kernels_name(i), NULL);
        if (carry_kernels_usable(i)) {
            assert_string_equal(carry_ctx_kernels(ctx), carry_kernels_name(i));
            usable++;
        } else {
            assert_string_equal(carry_ctx_kernels(ctx), "none");
            assert_non_null(strstr(carry_ctx_error(ctx), carry_kernels_name(i)));
        }
        carry_ctx_free(ctx);
    }
    assert_true(usable >= 1);
    assert_string_equal(carry_kernels_name(0), "plain");
    assert_null(carry_kernels_name(-1));
    assert_null(carry_kernels_about(1000));
    assert_false(carry_kernels_usable(1000));
}

static void test_unknown_kernels_are_refused_when_they_are_needed(void **state) {
    (void)state;
    char name[] = "sse9";
    carry_ctx *ctx = support_ctx(1, name, NULL);
    memset(name, 'x', sizeof name - 1); /* the context keeps its own copy */
    assert_string_equal(carry_ctx_kernels(ctx), "none");
    assert_non_null(strstr(carry_ctx_error(ctx), "'sse9'"));
    expect_place(ctx, "ops/kernels/");
    carry_scan_plan *plan = NULL;
    carry_scan_problem problem = {.kind = CARRY_SCAN_DENSE, .batch = 1, .steps = 4, .n = 2, .width = 1};
    assert_refused(ctx, CARRY_ENOTFOUND, "'sse9'", carry_scan_plan_new(ctx, &plan, &problem, NULL));
    assert_null(plan);
    carry_ctx_free(ctx);
}

static void test_the_error_is_that_of_the_last_failure(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float value = 0.0f;
    assert_string_equal(carry_ctx_error(ctx), "");
    assert_string_equal(carry_ctx_error_place(ctx), "");
    assert_refused(ctx, CARRY_ENOTFOUND, "device 99", carry_device_fill(ctx, &value, 99, 0, 4, NULL));
    expect_place(ctx, "device/");
    carry_tensor tensor = carry_view_1d(NULL, CARRY_F32, 1);
    assert_refused(ctx, CARRY_EARGUMENT, "out", carry_random_uniform(ctx, tensor, 0, 0, 0.0f, 1.0f));
    expect_place(ctx, "core/");
    carry_ctx_free(ctx);
}

static void test_a_sentence_that_is_too_long_is_cut(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char longest[5000];
    memset(longest, 'w', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_refused(ctx, CARRY_EFORMAT, "www", carry_fail(ctx, CARRY_EFORMAT, "%s", longest));
    assert_true(strlen(carry_ctx_error(ctx)) < sizeof longest - 1);
    carry_ctx_free(ctx);
}

static void test_the_sink_hears_what_its_level_asks_for(void **state) {
    (void)state;
    for (int wanted = CARRY_LOG_ERROR; wanted <= CARRY_LOG_DEBUG; wanted++) {
        heard h = {0};
        carry_ctx *ctx = NULL;
        carry_ctx_options options = {CARRY_INIT(carry_ctx_options), .threads = 1, .log_level = (carry_log_level)wanted,
                                     .log = hear, .log_user = &h};
        assert_int_equal(carry_ctx_new(&ctx, &options), CARRY_OK);
        for (int level = CARRY_LOG_ERROR; level <= CARRY_LOG_DEBUG; level++) {
            h = (heard){0};
            carry_log(ctx, (carry_log_level)level, "line %d of %s", level, "four");
            assert_int_equal(h.lines, level <= wanted ? 1 : 0);
            if (h.lines == 1) {
                char expected[32];
                (void)snprintf(expected, sizeof expected, "line %d of four", level);
                assert_string_equal(h.last, expected);
                assert_int_equal(h.level, level);
            }
        }
        carry_ctx_free(ctx);
    }
}

static void test_planning_tells_what_was_chosen_at_info(void **state) {
    (void)state;
    for (int wanted = CARRY_LOG_WARNING; wanted <= CARRY_LOG_INFO; wanted++) {
        heard h = {0};
        carry_ctx *ctx = NULL;
        carry_ctx_options options = {CARRY_INIT(carry_ctx_options), .threads = 1, .log_level = (carry_log_level)wanted,
                                     .log = hear, .log_user = &h};
        assert_int_equal(carry_ctx_new(&ctx, &options), CARRY_OK);
        const carry_rates_table rates = support_rates();
        assert_true(carry_rates_put(ctx, &rates));
        carry_scan_plan *plan = NULL;
        carry_scan_problem problem = {.kind = CARRY_SCAN_DIAGONAL, .batch = 1, .steps = 8, .n = 2, .width = 1};
        assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &problem, NULL));
        assert_int_equal(h.lines > 0, wanted == CARRY_LOG_INFO);
        assert_true(wanted != CARRY_LOG_INFO || strstr(h.last, carry_scan_plan_algorithm(plan)) != NULL);
        assert_null(strchr(h.last, '\n'));
        carry_scan_plan_free(plan);
        carry_ctx_free(ctx);
    }
}

static void test_every_status_has_its_name_and_text(void **state) {
    (void)state;
    static const struct {
        carry_status status;
        const char *name, *text;
    } all[] = {
#define X(name, text) {CARRY_##name, #name, text},
        CARRY_STATUS_LIST(X)
#undef X
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        assert_int_equal(all[i].status, i);
        assert_string_equal(carry_status_name(all[i].status), all[i].name);
        assert_string_equal(carry_status_text(all[i].status), all[i].text);
    }
    /* The numbers are part of the ABI: the first and the last of this version. */
    assert_int_equal(CARRY_OK, 0);
    assert_int_equal(CARRY_EINTERRUPTED, 17);
    static const int wrong[] = {-1, 18, 1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        assert_string_equal(carry_status_name((carry_status)wrong[i]), "?");
        assert_true(strlen(carry_status_text((carry_status)wrong[i])) > 0);
    }
}

static void test_the_version_is_that_of_the_headers(void **state) {
    (void)state;
    char expected[32];
    (void)snprintf(expected, sizeof expected, "%d.%d.%d", CARRY_VERSION_MAJOR, CARRY_VERSION_MINOR,
                   CARRY_VERSION_PATCH);
    assert_string_equal(carry_version(), expected);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_every_core_and_the_best_kernels),
        cmocka_unit_test(test_threads_are_as_many_as_asked_for),
        cmocka_unit_test(test_unacceptable_options_are_named),
        cmocka_unit_test(test_every_usable_set_of_kernels_can_be_asked_for),
        cmocka_unit_test(test_unknown_kernels_are_refused_when_they_are_needed),
        cmocka_unit_test(test_the_error_is_that_of_the_last_failure),
        cmocka_unit_test(test_a_sentence_that_is_too_long_is_cut),
        cmocka_unit_test(test_the_sink_hears_what_its_level_asks_for),
        cmocka_unit_test(test_planning_tells_what_was_chosen_at_info),
        cmocka_unit_test(test_every_status_has_its_name_and_text),
        cmocka_unit_test(test_the_version_is_that_of_the_headers),
    };
    return cmocka_run_group_tests_name("core context", tests, NULL, NULL);
}
