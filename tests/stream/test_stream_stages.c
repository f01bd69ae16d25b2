/* Tests whether the stages overlap. Both are slowed by the same wait, which is much longer than their work: the period
   is then one stage's time if they overlap, and two if they take turns. On a busy machine the waits become longer until
   the machine's own delays no longer matter. */
#include "stream_support.h"

#define SLOW 0.03  /* seconds: some hundred times the time of a chunk of the small model */
#define ATTEMPTS 6 /* the wait becomes four times as long after every second attempt */
#define AFTER_WARM 14

static carry_stream_figures measure(int depth, carry_recompute mode, int64_t context, double slow0, double slow1) {
    static stream s;
    s = (stream){.options = small_stream(), .ranks = 2};
    s.options.with_stage = true;
    s.options.depth = depth;
    s.options.recompute = mode;
    s.options.clean_pass = mode == CARRY_RECOMPUTE_OFF;
    s.options.context = context;
    s.options.slow_stage0 = slow0;
    s.options.slow_stage1 = slow1;
    s.options.chunks = CARRY_OVERLAP_WARMUP + AFTER_WARM;
    if (run_stream(&s) != CARRY_OK) {
        fail_msg("%s", s.message);
    }
    print_message("depth %d, recompute %d of %d, slowed by %g and %g ms: stages %.1f and %.1f ms, period %.1f ms "
                  "(predicted %.1f), mesh idle %.1f ms, score %.2f\n",
                  depth, (int)mode, (int)context, 1e3 * slow0, 1e3 * slow1, 1e3 * s.figures.overlap.stage0,
                  1e3 * s.figures.overlap.stage1, 1e3 * s.figures.overlap.period, 1e3 * s.figures.overlap.predicted,
                  1e3 * s.figures.overlap.idle, s.figures.overlap.score);
    assert_int_equal(s.figures.overlap.counted, AFTER_WARM);
    return s.figures;
}

static double longer(const carry_stream_figures *f) {
    return f->overlap.stage0 > f->overlap.stage1 ? f->overlap.stage0 : f->overlap.stage1;
}

/* Stages in turn would have a score of 0 and a period of both together, 1.6 to 1.9 times the longer one: on a busy
   machine the next chunk, which is sent when the previous one has arrived, may wait some milliseconds for a core. */
static bool overlaps(const carry_stream_figures *f) {
    return f->overlap.score >= 0.8 && f->overlap.passes && f->overlap.period <= 1.25 * longer(f);
}

static bool takes_turns(const carry_stream_figures *f) {
    return f->overlap.score <= 0.1 && !f->overlap.passes &&
           f->overlap.period >= 0.95 * (f->overlap.stage0 + f->overlap.stage1);
}

static void expect(int depth, carry_recompute mode, int64_t context, double slow0, double slow1,
                   bool (*is_so)(const carry_stream_figures *figures)) {
    for (int i = 0; i < ATTEMPTS; i++) {
        const double longer_by = (double)(1 << (i / 2 * 2));
        const carry_stream_figures f = measure(depth, mode, context, longer_by * slow0, longer_by * slow1);
        if (is_so(&f)) {
            return;
        }
    }
    fail_msg("not in %d attempts", ATTEMPTS);
}

static void test_depth_two_overlaps_and_one_takes_turns(void **state) {
    (void)state;
    expect(1, CARRY_RECOMPUTE_OFF, 0, SLOW, SLOW, takes_turns);
    expect(2, CARRY_RECOMPUTE_OFF, 0, SLOW, SLOW, overlaps);
    expect(3, CARRY_RECOMPUTE_OFF, 0, SLOW, SLOW, overlaps);
}

static void test_the_period_is_the_slower_stage(void **state) {
    (void)state;
    expect(2, CARRY_RECOMPUTE_OFF, 0, SLOW, SLOW / 2, overlaps);
    expect(2, CARRY_RECOMPUTE_OFF, 0, SLOW / 2, SLOW, overlaps);
}

/* The context of mode latent is available with the result, that of mode anchor when it has been decoded. With the
   frames of one chunk the mesh therefore waits for the decoder; with those of two chunks, the first of which was
   decoded earlier, it does not. */
static void test_an_anchor_couples_the_stages(void **state) {
    (void)state;
    expect(2, CARRY_RECOMPUTE_LATENT, 2, SLOW, SLOW, overlaps);
    expect(2, CARRY_RECOMPUTE_ANCHOR, 2, SLOW, SLOW, takes_turns);
    expect(2, CARRY_RECOMPUTE_ANCHOR, 4, SLOW, SLOW, overlaps);
}

int main(void) {
    take_filter();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_depth_two_overlaps_and_one_takes_turns),
        cmocka_unit_test(test_the_period_is_the_slower_stage),
        cmocka_unit_test(test_an_anchor_couples_the_stages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
