/* The overlap score, against sequences worked out by hand. */
#include "support.h"

#include <math.h>

#include "core/rng.h"
#include "stream/overlap.h"

static carry_ctx *ctx;

static carry_overlap *new_overlap(int depth) {
    carry_overlap *overlap;
    assert_ok(ctx, carry_overlap_new(ctx, &overlap, depth));
    return overlap;
}

static void add(carry_overlap *overlap, double t0, double t1, double period) {
    carry_overlap_add(overlap, &(carry_chunk_times){.stage0 = t0, .stage1 = t1, .period = period});
}

/* Adds the first 10 chunks, which do not count. */
static void warm_up(carry_overlap *overlap) {
    for (int i = 0; i < CARRY_OVERLAP_WARMUP; i++) {
        add(overlap, 100, 100, 1);
    }
}

static carry_overlap_summary read_all(const carry_overlap *overlap) {
    carry_overlap_summary summary;
    memset(&summary, 0xA5, sizeof summary);
    carry_overlap_read(overlap, &summary);
    return summary;
}

/* t0 = 2, t1 = 3: hidden / min = (5 - period) / 2. */
static double score_with_period(double period) {
    carry_overlap *overlap = new_overlap(2);
    warm_up(overlap);
    for (int i = 0; i < 5; i++) {
        add(overlap, 2, 3, period);
    }
    const carry_overlap_summary s = read_all(overlap);
    assert_int_equal(s.counted, 5);
    assert_int_equal(s.chunks, 15);
    assert_true(s.passes == (s.score >= 0.30));
    carry_overlap_free(overlap);
    return s.score;
}

static void test_one_when_the_slower_stage_sets_the_pace_zero_when_they_take_turns(void **state) {
    (void)state;
    assert_true(score_with_period(3) == 1);
    assert_true(score_with_period(5) == 0);
    assert_true(score_with_period(4) == 0.5);
    assert_true(score_with_period(4.5) == 0.25);
    assert_true(score_with_period(50) == 0);     /* slower than without overlap: nothing hidden, never below 0 */
    assert_true(score_with_period(2.5) == 1.25); /* the measured value, not clamped to 1 */
}

static void test_the_gate_is_at_0_30(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        carry_overlap *overlap = new_overlap(2);
        warm_up(overlap);
        add(overlap, 1, 1, i == 0 ? 1.75 : 1.625); /* scores 0.25 and 0.375, exact in binary */
        assert_int_equal(read_all(overlap).passes, i);
        carry_overlap_free(overlap);
    }
}

static void test_the_first_ten_chunks_do_not_count(void **state) {
    (void)state;
    carry_overlap *overlap = new_overlap(2);
    carry_overlap_summary s = read_all(overlap);
    assert_true(s.chunks == 0 && s.counted == 0 && isnan(s.score) && !s.passes && isnan(s.stage0));
    for (int i = 0; i < CARRY_OVERLAP_WARMUP; i++) {
        add(overlap, 7, 9, 9);
        s = read_all(overlap);
        assert_true(s.chunks == i + 1 && s.counted == 0 && isnan(s.score) && !s.passes);
        assert_true(s.stage0 == 7 && s.stage1 == 9); /* the times of the stages are shown all the same */
        assert_true(i == 0 ? isnan(s.period) : s.period == 9);
    }
    add(overlap, 2, 3, 5);
    s = read_all(overlap);
    assert_true(s.counted == 1 && s.score == 0 && s.hidden == 0 && s.stage0 == 2 && s.stage1 == 3 && s.period == 5);
    carry_overlap_free(overlap);
}

static void test_medians_of_odd_and_even_counts(void **state) {
    (void)state;
    carry_overlap *overlap = new_overlap(2);
    warm_up(overlap);
    /* t0 = t1 = 1: the score of a chunk is 2 - period: 1/8, 7/8, 1/2, 3/4. */
    const double period[] = {1.875, 1.125, 1.5, 1.25};
    const double score[] = {0.125, 0.5, 0.5, 0.625}; /* median of the first one, two, three, four scores */
    for (int i = 0; i < 4; i++) {
        add(overlap, 1, 1, period[i]);
        assert_true(read_all(overlap).score == score[i]);
    }
    assert_true(read_all(overlap).period == 1.375);
    carry_overlap_free(overlap);
}

static void test_after_a_pause_the_next_period_is_none(void **state) {
    (void)state;
    carry_overlap *overlap = new_overlap(2);
    warm_up(overlap);
    add(overlap, 2, 3, 3);
    carry_overlap_restart(overlap);
    add(overlap, 2, 3, 1000); /* a pause is no period */
    carry_overlap_summary s = read_all(overlap);
    assert_true(s.chunks == 12 && s.counted == 1 && s.score == 1 && s.period == 3 && s.hidden == 2);
    add(overlap, 2, 3, 4);
    s = read_all(overlap);
    assert_true(s.chunks == 13 && s.counted == 2 && s.score == 0.75 && s.period == 3.5);
    carry_overlap_free(overlap);
}

static void test_times_that_are_none_do_not_count(void **state) {
    (void)state;
    const double none[] = {NAN, INFINITY, -INFINITY, -1};
    carry_overlap *overlap = new_overlap(2);
    warm_up(overlap);
    add(overlap, 2, 3, 3);
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) {
        add(overlap, none[i], 3, 3);
        add(overlap, 2, none[i], 3);
        add(overlap, 2, 3, none[i]);
    }
    add(overlap, 0, 3, 3); /* nothing that could be hidden */
    add(overlap, 0, 0, 0);
    carry_overlap_summary s = read_all(overlap);
    assert_true(s.counted == 1 && s.score == 1 && s.passes && s.stage0 == 2 && s.period == 3);
    /* A part that was not measured does not affect the others. */
    carry_overlap_add(overlap, &(carry_chunk_times){
                                   .stage0 = 2, .stage1 = 3, .period = 3, .decode = NAN, .idle = 0.5, .denoise = 2.5});
    s = read_all(overlap);
    assert_true(s.counted == 2 && s.decode == 0 && s.idle == 0.25 && s.denoise == 1.25 && s.clean == 0);
    carry_overlap_free(overlap);
}

static void test_every_part_has_its_own_median(void **state) {
    (void)state;
    carry_overlap *overlap = new_overlap(2);
    warm_up(overlap);
    carry_overlap_add(overlap, &(carry_chunk_times){.stage0 = 1,
                                                    .stage1 = 2,
                                                    .period = 3,
                                                    .idle = 4,
                                                    .decode = 5,
                                                    .encode = 6,
                                                    .denoise = 7,
                                                    .recompute = 8,
                                                    .clean = 9,
                                                    .build = 10});
    const carry_overlap_summary s = read_all(overlap);
    assert_true(s.stage0 == 1 && s.stage1 == 2 && s.period == 3 && s.idle == 4 && s.decode == 5 && s.encode == 6);
    assert_true(s.denoise == 7 && s.recompute == 8 && s.clean == 9);
    carry_overlap_free(overlap);
}

static int by_value(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The medians over the newest 4096, compared with a sort. */
static void test_medians_are_those_of_the_newest(void **state) {
    (void)state;
    enum { TOTAL = CARRY_OVERLAP_KEPT + 1777 };
    static double seen[TOTAL];
    carry_overlap *overlap = new_overlap(2);
    warm_up(overlap);
    for (int i = 0; i < TOTAL; i++) {
        seen[i] = (double)(carry_philox(1, 0, (uint64_t)i).word[0] % 1000) / 8; /* many are equal */
        add(overlap, 1 + seen[i], 1, 1);
        if (i % 1237 == 5 || i == TOTAL - 1) {
            const int count = i + 1 < CARRY_OVERLAP_KEPT ? i + 1 : CARRY_OVERLAP_KEPT;
            static double sorted[CARRY_OVERLAP_KEPT];
            memcpy(sorted, seen + i + 1 - count, (size_t)count * sizeof sorted[0]);
            qsort(sorted, (size_t)count, sizeof sorted[0], by_value);
            const double middle = count % 2 ? sorted[count / 2] : (sorted[count / 2 - 1] + sorted[count / 2]) / 2;
            assert_true(read_all(overlap).stage0 == 1 + middle);
        }
    }
    assert_int_equal(read_all(overlap).counted, TOTAL);
    carry_overlap_free(overlap);
}

static void test_the_predicted_period_depends_on_the_depth(void **state) {
    (void)state;
    for (int depth = 1; depth <= 4; depth++) {
        carry_overlap *overlap = new_overlap(depth);
        warm_up(overlap);
        add(overlap, 2, 3, 3);
        const carry_overlap_summary s = read_all(overlap);
        assert_true(s.predicted == (depth == 1 ? 5 : 3));
        assert_true(s.use == (double)depth / (depth + 1));
        carry_overlap_free(overlap);
    }
    carry_overlap *overlap;
    assert_refused(ctx, CARRY_EARGUMENT, "a depth of 0", carry_overlap_new(ctx, &overlap, 0));
    assert_null(overlap);
    carry_overlap_free(NULL);
}

static void test_use_and_time_of_pipelines(void **state) {
    (void)state;
    const int64_t batches[] = {1, 2, 3, 4, 8};
    const double percent[] = {50, 66.7, 75, 80, 88.9};
    for (int i = 0; i < 5; i++) { /* given to one digit after the point */
        assert_true(fabs(100 * carry_pipeline_use(batches[i], 2) - percent[i]) < 0.05);
    }
    assert_true(carry_pipeline_use(7, 1) == 1);
    assert_true(carry_pipeline_use(4, 5) == 0.5);
    assert_true(carry_pipeline_use(0, 2) == 0 && carry_pipeline_use(-1, 2) == 0 && carry_pipeline_use(1, 0) == 0);
    assert_true(carry_pipeline_time(2, 3, 1) == 5);
    assert_true(carry_pipeline_time(2, 3, 4) == 14); /* 2 + 3 + 3 * 3 */
    assert_true(carry_pipeline_time(3, 2, 4) == 14);
    assert_true(carry_pipeline_time(2, 3, 0) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_when_the_slower_stage_sets_the_pace_zero_when_they_take_turns),
        cmocka_unit_test(test_the_gate_is_at_0_30),
        cmocka_unit_test(test_the_first_ten_chunks_do_not_count),
        cmocka_unit_test(test_medians_of_odd_and_even_counts),
        cmocka_unit_test(test_after_a_pause_the_next_period_is_none),
        cmocka_unit_test(test_times_that_are_none_do_not_count),
        cmocka_unit_test(test_every_part_has_its_own_median),
        cmocka_unit_test(test_medians_are_those_of_the_newest),
        cmocka_unit_test(test_the_predicted_period_depends_on_the_depth),
        cmocka_unit_test(test_use_and_time_of_pipelines),
    };
    ctx = support_ctx(1, NULL, NULL);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    carry_ctx_free(ctx);
    return failed;
}
