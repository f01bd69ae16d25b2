/* Contexts that share a wisdom file: plans and rates are measured once, and none is lost. */
#include <math.h>

#include "core/file.h"
#include "scan/wisdom.h"
#include "wisdom_support.h"

static const carry_scan_problem small_diagonal = {
    .kind = CARRY_SCAN_DIAGONAL, .batch = 2, .steps = 33, .n = 4, .width = 2};
static const carry_scan_problem small_dense = {.kind = CARRY_SCAN_DENSE, .batch = 1, .steps = 17, .n = 4, .width = 1};
static const carry_scan_options by_measuring = {CARRY_INIT(carry_scan_options), .effort = CARRY_PLAN_MEASURE};

typedef struct heard {
    int ignored, not_kept, other;
} heard;

static void hear(void *user, carry_log_level level, const char *line) {
    heard *h = user;
    if (level > CARRY_LOG_WARNING) {
        return;
    }
    h->ignored += strstr(line, "ignored") != NULL;
    h->not_kept += strstr(line, "not kept") != NULL;
    h->other += strstr(line, "ignored") == NULL && strstr(line, "not kept") == NULL;
}

static carry_ctx *listening(heard *h, const char *wisdom) {
    carry_ctx *ctx = NULL;
    *h = (heard){0};
    carry_ctx_options options = {CARRY_INIT(carry_ctx_options), .threads = 1, .wisdom = wisdom, .log = hear,
                                 .log_user = h};
    assert_int_equal(carry_ctx_new(&ctx, &options), CARRY_OK);
    return ctx;
}

/* Makes a plan; true if it was remembered. */
static bool plan_is_remembered(carry_ctx *ctx, const carry_scan_problem *problem, const carry_scan_options *options) {
    carry_scan_plan *plan = NULL;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, problem, options));
    assert_true(strlen(carry_scan_plan_algorithm(plan)) > 0);
    assert_true(carry_scan_plan_seconds(plan) > 0.0);
    bool remembered = strstr(carry_scan_plan_about(plan), "wisdom") != NULL;
    carry_scan_plan_free(plan);
    return remembered;
}

static void test_a_damaged_file_is_a_warning_and_is_replaced(void **state) {
    place *p = *state;
    static const char *const damaged[] = {"", "garbage", "carry-wisdom 1\n",
                                          "carry-wisdom 2\nmachine x\nend 00000000\n"};
    for (size_t i = 0; i < sizeof damaged / sizeof damaged[0]; i++) {
        heard h;
        assert_ok(p->ctx, carry_file_replace(p->ctx, p->file, damaged[i], strlen(damaged[i])));
        carry_ctx *ctx = listening(&h, p->file);
        assert_false(plan_is_remembered(ctx, &small_diagonal, &by_measuring));
        assert_false(plan_is_remembered(ctx, &small_dense, &by_measuring));
        assert_int_equal(h.ignored, 1);
        assert_int_equal(h.not_kept + h.other, 0);
        carry_ctx_free(ctx);
        ctx = listening(&h, p->file);
        assert_true(plan_is_remembered(ctx, &small_diagonal, NULL));
        assert_int_equal(h.ignored + h.not_kept + h.other, 0);
        carry_ctx_free(ctx);
    }
    assert_int_equal(unlink(p->file), 0);
}

/* A path below a regular file, and a file whose name is too long for a temporary file beside it. */
static void test_a_path_that_cannot_be_read_or_written_is_a_warning(void **state) {
    place *p = *state;
    heard h;
    assert_ok(p->ctx, carry_file_replace(p->ctx, p->file, "in the way", 10));
    carry_ctx *ctx = listening(&h, p->below);
    assert_false(plan_is_remembered(ctx, &small_diagonal, &by_measuring));
    assert_int_equal(h.not_kept, 1);
    assert_int_equal(h.ignored + h.other, 0);
    assert_true(plan_is_remembered(ctx, &small_diagonal, NULL)); /* in memory it is */
    carry_ctx_free(ctx);
    assert_int_equal(unlink(p->file), 0);
    char name[512];
    (void)snprintf(name, sizeof name, "%s/%0250d", p->folder, 1);
    ctx = listening(&h, name);
    assert_false(plan_is_remembered(ctx, &small_diagonal, &by_measuring));
    assert_int_equal(h.not_kept, 1);
    assert_int_equal(h.other, 0);
    assert_true(plan_is_remembered(ctx, &small_diagonal, NULL)); /* in memory it is */
    carry_ctx_free(ctx);
}

static void test_measured_plans_are_remembered_across_contexts(void **state) {
    place *p = *state;
    heard h;
    carry_ctx *ctx = listening(&h, p->file);
    carry_scan_plan *plan = NULL;
    char measured[64];
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &small_dense, &by_measuring));
    assert_null(strstr(carry_scan_plan_about(plan), "wisdom"));
    (void)snprintf(measured, sizeof measured, "%s", carry_scan_plan_algorithm(plan));
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    ctx = listening(&h, p->file);
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &small_dense, NULL));
    assert_non_null(strstr(carry_scan_plan_about(plan), "wisdom"));
    assert_string_equal(carry_scan_plan_algorithm(plan), measured);
    carry_scan_plan_free(plan);
    /* Another problem, or another number of threads, is not remembered. */
    carry_scan_problem reversed = small_dense;
    reversed.reversed = true;
    assert_false(plan_is_remembered(ctx, &reversed, &by_measuring));
    carry_ctx_free(ctx);
    ctx = support_ctx(2, NULL, p->file);
    assert_false(plan_is_remembered(ctx, &small_dense, &by_measuring));
    carry_ctx_free(ctx);
    assert_int_equal(h.ignored + h.not_kept + h.other, 0);
    assert_int_equal(unlink(p->file), 0);
}

static void test_rates_are_measured_once_for_all_contexts(void **state) {
    place *p = *state;
    heard h;
    char first[128];
    assert_int_equal(setenv("CARRY_CEILINGS", "rough", 1), 0); /* as ctest sets it: rough rates are not stored */
    carry_ctx *ctx = listening(&h, p->file);
    assert_ok(ctx, carry_rates(ctx, false));
    carry_ctx_free(ctx);
    assert_int_equal(access(p->file, F_OK), -1);
    assert_int_equal(unsetenv("CARRY_CEILINGS"), 0);
    ctx = listening(&h, p->file);
    assert_ok(ctx, carry_rates(ctx, false));
    (void)snprintf(first, sizeof first, "%s", carry_rate_line(ctx, 0));
    int lines = 0;
    while (carry_rate_line(ctx, lines) != NULL) {
        lines++;
    }
    assert_true(lines > 10);
    carry_ctx_free(ctx);
    ctx = listening(&h, p->file);
    assert_ok(ctx, carry_rates(ctx, false));
    assert_string_equal(carry_rate_line(ctx, 0), first);
    assert_null(carry_rate_line(ctx, lines));
    assert_null(carry_rate_line(ctx, -1));
    carry_ctx_free(ctx);
    assert_int_equal(setenv("CARRY_CEILINGS", "rough", 1), 0);
    assert_int_equal(unlink(p->file), 0);
}

static void test_two_contexts_keep_each_others_plans(void **state) {
    place *p = *state;
    heard h[3];
    carry_ctx *first = listening(&h[0], p->file);
    carry_ctx *second = listening(&h[1], p->file);
    assert_null(carry_wisdom_find(first, "nothing")); /* both have tried to read the file, which does not exist yet */
    assert_null(carry_wisdom_find(second, "nothing"));
    assert_false(plan_is_remembered(first, &small_diagonal, &by_measuring));
    assert_false(plan_is_remembered(second, &small_dense, &by_measuring));
    carry_ctx *third = listening(&h[2], p->file);
    assert_true(plan_is_remembered(third, &small_diagonal, NULL));
    assert_true(plan_is_remembered(third, &small_dense, NULL));
    for (int i = 0; i < 3; i++) {
        assert_int_equal(h[i].ignored + h[i].not_kept + h[i].other, 0);
    }
    carry_ctx_free(first);
    carry_ctx_free(second);
    carry_ctx_free(third);
    assert_int_equal(unlink(p->file), 0);
}

/* An algorithm that is missing in this build is not an error. */
static void test_a_plan_that_cannot_be_used_is_ignored(void **state) {
    (void)state;
    heard h;
    carry_ctx *ctx = listening(&h, NULL);
    char key[CARRY_SCAN_KEY];
    carry_scan_key(key, &small_dense);
    assert_ok(ctx, carry_wisdom_remember(ctx, key, "of_the_future", 1e-9));
    assert_false(plan_is_remembered(ctx, &small_dense, &by_measuring));
    assert_true(plan_is_remembered(ctx, &small_dense, NULL));
    carry_ctx_free(ctx);
}

static carry_ctx *of_threads(int threads, const char *wisdom) {
    carry_ctx *ctx = NULL;
    assert_int_equal(
        carry_ctx_new(&ctx, &(carry_ctx_options){CARRY_INIT(carry_ctx_options), .threads = threads, .wisdom = wisdom}),
        CARRY_OK);
    return ctx;
}

enum { STEPS = 257 };

static void scan_into(carry_ctx *ctx, carry_scan_plan *plan, float *h, float *A, float *b) {
    const size_t bytes = carry_scan_run_workspace(plan);
    void *workspace = malloc(bytes + 1);
    assert_non_null(workspace);
    assert_ok(ctx, carry_scan_run(plan,
                                  &(carry_scan_args){.h = carry_view_4d(h, CARRY_F32, 1, STEPS, 3, 2),
                                                     .A = carry_view_4d(A, CARRY_F32, 1, STEPS, 3, 3),
                                                     .b = carry_view_4d(b, CARRY_F32, 1, STEPS, 3, 2)},
                                  workspace, bytes));
    free(workspace);
}

/* A remembered plan runs with its own chunk and threads: on one of three threads it gives the bits of the same plan on
   a context of one thread, and says so; afterwards the context has all of its threads again. */
static void test_a_tuned_plan_has_its_chunk_and_its_threads(void **state) {
    const place *p = *state;
    const carry_scan_problem problem = {.kind = CARRY_SCAN_DENSE, .batch = 1, .steps = STEPS, .n = 3, .width = 2};
    char key[CARRY_SCAN_KEY];
    float A[STEPS * 9], b[STEPS * 6], tuned[STEPS * 6], asked[STEPS * 6];
    for (int i = 0; i < STEPS * 9; i++) {
        A[i] = 0.01f * (float)(i % 31 - 15);
    }
    for (int i = 0; i < STEPS * 6; i++) {
        b[i] = 0.1f * (float)(i % 17 - 8);
        tuned[i] = asked[i] = NAN;
    }
    (void)unlink(p->file); /* of the test before */
    carry_ctx *ctx = of_threads(3, p->file);
    assert_ok(ctx, carry_wisdom_remember_tuned(ctx, carry_scan_key(key, &problem), "chunkwise", 40, 1, 1e-5));
    carry_ctx_free(ctx);
    ctx = of_threads(3, p->file);
    carry_scan_plan *plan;
    assert_ok(ctx, carry_scan_plan_new(ctx, &plan, &problem, NULL));
    assert_non_null(strstr(carry_scan_plan_about(plan), "chunkwise on 1 thread "));
    assert_non_null(strstr(carry_scan_plan_about(plan), "chunk 40"));
    scan_into(ctx, plan, tuned, A, b);
    assert_int_equal(carry_ctx_threads(ctx), 3);
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    ctx = of_threads(1, NULL);
    assert_ok(ctx, carry_scan_plan_new(
                       ctx, &plan, &problem,
                       &(carry_scan_options){CARRY_INIT(carry_scan_options), .algorithm = "chunkwise", .chunk = 40}));
    scan_into(ctx, plan, asked, A, b);
    carry_scan_plan_free(plan);
    carry_ctx_free(ctx);
    assert_memory_equal(tuned, asked, sizeof tuned);
    assert_int_equal(unlink(p->file), 0);
}

static void test_the_last_plans_are_kept_when_there_are_too_many(void **state) {
    (void)state;
    heard h;
    carry_ctx *ctx = listening(&h, NULL);
    char key[32];
    for (int i = 0; i < CARRY_WISDOM_PLANS + 10; i++) {
        (void)snprintf(key, sizeof key, "key%d", i);
        assert_ok(ctx, carry_wisdom_remember(ctx, key, "cyclic", 1.0 + i));
    }
    for (int i = 0; i < CARRY_WISDOM_PLANS + 10; i++) {
        (void)snprintf(key, sizeof key, "key%d", i);
        const carry_wisdom_plan *found = carry_wisdom_find(ctx, key);
        if ((found != NULL) != (i >= 10) || (found != NULL && found->seconds != 1.0 + i)) {
            fail_msg("of %d plans, number %d is %s", CARRY_WISDOM_PLANS + 10, i, found != NULL ? "kept" : "forgotten");
        }
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_damaged_file_is_a_warning_and_is_replaced),
        cmocka_unit_test(test_a_path_that_cannot_be_read_or_written_is_a_warning),
        cmocka_unit_test(test_measured_plans_are_remembered_across_contexts),
        cmocka_unit_test(test_rates_are_measured_once_for_all_contexts),
        cmocka_unit_test(test_two_contexts_keep_each_others_plans),
        cmocka_unit_test(test_a_plan_that_cannot_be_used_is_ignored),
        cmocka_unit_test(test_a_tuned_plan_has_its_chunk_and_its_threads),
        cmocka_unit_test(test_the_last_plans_are_kept_when_there_are_too_many),
    };
    return cmocka_run_group_tests_name("scan wisdom contexts", tests, place_make, place_end);
}
