/* Medians, intervals of ratios, and the verdict over two runs. */
#include "bench/sample.h"

#include <math.h>
#include <unistd.h>

#include "lab/compare.h"
#include "lab/export.h"
#include "lab/quiet.h"
#include "support.h"

static uint64_t random_state;

/* xorshift64*: not the generator of the code under test. */
static double uniform(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)((random_state * 0x2545F4914F6CDD1Du) >> 11) / 9007199254740992.0;
}

/* Times as machines give them: a floor, a skewed tail and an occasional outlier. The median of the tail is scale * ln
   2. */
static double some_time(double scale) {
    double tail = -log(1.0 - uniform());
    return scale * (10.0 + tail + (uniform() < 0.02 ? 50.0 : 0.0));
}

static void fill(double *samples, int count, double scale) {
    for (int i = 0; i < count; i++) {
        samples[i] = some_time(scale);
    }
}

static void test_medians_and_quartiles_that_are_known(void **state) {
    (void)state;
    double odd[] = {5, 1, 4, 2, 3};
    carry_summary s = carry_summarise(odd, 5);
    assert_true(s.median == 3 && s.least == 1 && s.quartile_low == 2 && s.quartile_high == 4);
    assert_true(fabs(s.spread - 2.0 / 3.0) < 1e-15);
    for (int i = 0; i < 5; i++) {
        assert_true(odd[i] == i + 1); /* sorted in place */
    }
    double even[] = {4, 1, 3, 2};
    assert_true(carry_summarise(even, 4).median == 2.5);
    double one[] = {7};
    s = carry_summarise(one, 1);
    assert_true(s.median == 7 && s.least == 7 && s.spread == 0);
    double same[] = {2, 2, 2, 2};
    assert_true(carry_summarise(same, 4).spread == 0);
}

/* The bootstrap selects medians without sorting: shuffled samples must give the same medians. */
static void test_the_interval_holds_the_ratio_and_is_the_same_every_time(void **state) {
    (void)state;
    random_state = 7;
    for (int count = 1; count < 40; count++) {
        double a[40];
        double b[40];
        fill(a, count, 2.0);
        fill(b, count, 1.0);
        carry_ratio r = carry_ratio_of(a, count, b, count, 0.0, 1);
        carry_ratio again = carry_ratio_of(a, count, b, count, 0.0, 1);
        assert_memory_equal(&r.low, &again.low, sizeof r.low);
        assert_memory_equal(&r.high, &again.high, sizeof r.high);
        double sorted_a[40];
        double sorted_b[40];
        memcpy(sorted_a, a, sizeof a);
        memcpy(sorted_b, b, sizeof b);
        assert_true(r.ratio == carry_summarise(sorted_a, count).median / carry_summarise(sorted_b, count).median);
        assert_true(r.low <= r.ratio && r.ratio <= r.high);
        assert_true(r.low >= sorted_a[0] / sorted_b[count - 1] && r.high <= sorted_a[count - 1] / sorted_b[0]);
    }
}

/* 95 % of the intervals should hold the true ratio. Over 400 trials the count of hits has a standard deviation of
   sqrt(400 * 0.95 * 0.05) = 4.4; the bootstrap of a median from few samples is known to err by a few per cent, so 90 %
   to 99.5 % is asked for. An interval of 80 % or one that is twice too wide (99.99 %) fails. */
static void test_the_interval_covers_the_truth_about_as_often_as_it_says(void **state) {
    (void)state;
    static const int counts[] = {15, 30, 100, 600};
    random_state = 11;
    for (size_t c = 0; c < (size_t)support_cases(4, 2); c++) {
        int hits = 0;
        int trials = counts[c] > 100 ? 150 : 400;
        for (int trial = 0; trial < trials; trial++) {
            double a[600];
            double b[600];
            fill(a, counts[c], 1.3);
            fill(b, counts[c], 1.0);
            carry_ratio r = carry_ratio_of(a, counts[c], b, counts[c], 0.0, (uint64_t)trial);
            hits += r.low <= 1.3 && 1.3 <= r.high;
        }
        print_message("%d samples: %.1f %% of the intervals hold the ratio\n", counts[c], 100.0 * hits / trials);
        assert_in_range(1000 * hits / trials, 895, 995);
    }
}

/* A drifting machine: neighbouring samples are alike. Intervals from single draws would be far too narrow. */
static void test_samples_that_drift_get_wider_intervals(void **state) {
    (void)state;
    random_state = 13;
    int hits = 0;
    const int trials = support_cases(200, 50);
    for (int trial = 0; trial < trials; trial++) {
        double samples[2][100];
        for (int side = 0; side < 2; side++) {
            double drift = 0.0;
            for (int i = 0; i < 100; i++) {
                drift = 0.8 * drift + 0.1 * (uniform() - 0.5);
                samples[side][i] = exp(drift + 0.01 * uniform());
            }
        }
        carry_ratio r = carry_ratio_of(samples[0], 100, samples[1], 100, 0.0, (uint64_t)trial);
        hits += r.low <= 1.0 && 1.0 <= r.high;
    }
    print_message("drifting: %.1f %% of the intervals hold the ratio\n", 100.0 * hits / trials);
    assert_in_range(100 * hits / trials, 80, 100); /* drawing single samples gives about 55 % here */
}

static void test_same_is_within_noise_and_a_fifth_is_not(void **state) {
    (void)state;
    random_state = 17;
    int same = 0;
    int shifted = 0;
    for (int trial = 0; trial < 100; trial++) {
        double a[40];
        double b[40];
        double c[40];
        fill(a, 40, 1.0);
        fill(b, 40, 1.0);
        fill(c, 40, 1.2);
        same += carry_ratio_of(a, 40, b, 40, 0.05, 1).within_noise;
        shifted += carry_ratio_of(c, 40, a, 40, 0.05, 1).within_noise;
        shifted += carry_ratio_of(a, 40, c, 40, 0.05, 1).within_noise;
    }
    assert_int_equal(same, 100);
    assert_int_equal(shifted, 0);
}

static void test_samples_of_a_damaged_store(void **state) {
    (void)state;
    double zero[] = {0, 0, 0};
    double some[] = {1, 2, 3};
    double odd[] = {NAN, 1, INFINITY, NAN, 2, NAN, -1};
    assert_true(isnan(carry_ratio_of(some, 0, some, 3, 0.05, 1).ratio));
    assert_true(carry_ratio_of(some, 3, zero, 3, 0.05, 1).within_noise); /* nothing can be said */
    assert_true(carry_ratio_of(zero, 3, zero, 3, 0.05, 1).within_noise);
    (void)carry_ratio_of(odd, 7, some, 3, 0.05, 1);
    carry_summary s = carry_summarise(odd, 7);
    assert_true(s.least == -1 && s.median == INFINITY);
}

/* Two runs made by hand. */
#define PAIRS 20
#define SAMPLES 30

typedef struct made {
    carry_run run;
    carry_run_result result[PAIRS];
    double sample[PAIRS][SAMPLES];
    char problem[PAIRS][32];
    carry_run_fact fact;
} made;

static made *make_run(int64_t id, double scale) {
    made *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->fact = (carry_run_fact){.name = (char *)(uintptr_t) "cpu", .value = (char *)(uintptr_t) "abacus"};
    m->run = (carry_run){.id = id, .results = PAIRS, .result = m->result, .facts = 1, .fact = &m->fact};
    for (int i = 0; i < PAIRS; i++) {
        (void)snprintf(m->problem[i], sizeof m->problem[i], "scan:dense:t%d", i);
        fill(m->sample[i], SAMPLES, scale);
        m->result[i] = (carry_run_result){.is = {.problem = m->problem[i],
                                                 .method = "cyclic",
                                                 .device = "cpu",
                                                 .reason = "",
                                                 .gemm_gflops = 50,
                                                 .copy_gbytes_s = 10},
                                          .samples = SAMPLES,
                                          .sample = m->sample[i]};
    }
    return m;
}

static void scale_pair(made *m, int pair, double by) {
    for (int i = 0; i < SAMPLES; i++) {
        m->sample[pair][i] *= by;
    }
}

static void test_runs_of_the_same_thing_are_within_noise(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    random_state = 19;
    for (int trial = 0; trial < 20; trial++) {
        made *a = make_run(1, 1.0);
        made *b = make_run(2, 1.0);
        carry_comparison c;
        assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
        assert_true(c.within_noise && c.pairs == PAIRS && c.same_machine);
        assert_true(c.low <= c.mean && c.mean <= c.high);
        carry_compare_free(&c);
        free(a);
        free(b);
    }
    carry_ctx_free(ctx);
}

static void test_a_change_is_seen_in_all_in_half_and_in_one(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    random_state = 23;
    carry_comparison c;
    made *a = make_run(1, 1.2);
    made *b = make_run(2, 1.0);
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(!c.within_noise && !c.mean_within && c.mean > 1.15 && c.faster == PAIRS && c.slower == 0);
    carry_compare_free(&c);
    assert_ok(ctx, carry_compare(ctx, &c, &b->run, &a->run, 0.0));
    assert_true(!c.within_noise && c.mean < 0.87 && c.slower == PAIRS);
    carry_compare_free(&c);
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.5)); /* differs by less than the tolerance of 0.5 */
    assert_true(c.within_noise);
    carry_compare_free(&c);
    free(a);
    /* Half of them faster and half slower: the mean does not show it. */
    a = make_run(1, 1.0);
    for (int i = 0; i < PAIRS; i++) {
        scale_pair(a, i, i % 2 == 0 ? 1.25 : 0.8);
    }
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(!c.within_noise && c.mean_within && c.faster == PAIRS / 2 && c.slower == PAIRS / 2);
    carry_compare_free(&c);
    free(a);
    /* One of twenty is half as fast: too far for chance. */
    a = make_run(1, 1.0);
    scale_pair(a, 3, 0.5);
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(!c.within_noise && c.mean_within && c.slower == 1);
    carry_compare_free(&c);
    free(a);
    free(b);
    carry_ctx_free(ctx);
}

static void test_what_only_one_run_has_and_what_one_has_twice(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, "plain", NULL);
    random_state = 29;
    made *a = make_run(1, 1.0);
    made *b = make_run(2, 1.0);
    carry_comparison c;
    a->result[0].samples = 0; /* not measured in A */
    b->result[1].is.method = "other";
    /* The same problem with hot and cold caches, in two stages. */
    for (int side = 0; side < 2; side++) {
        made *m = side == 0 ? a : b;
        m->result[5].is.problem = m->result[4].is.problem;
        scale_pair(m, 5, 9.0);
    }
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_int_equal(c.pairs, PAIRS - 2);
    assert_int_equal(c.only_a, 1);
    assert_int_equal(c.only_b, 2);
    assert_true(c.within_noise);
    carry_compare_free(&c);
    /* A drift of the ceilings is noise on one machine, but not between two machines. */
    for (int i = 0; i < PAIRS; i++) {
        b->result[i].is.gemm_gflops = 25;
    }
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(c.drift > 0.69 && c.slack > 0.74);
    carry_compare_free(&c);
    b->fact.value = (char *)(uintptr_t) "slide rule";
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(!c.same_machine && c.slack < 0.06 && c.contention == 0.0);
    carry_compare_free(&c);
    /* Other processes used half of the machine while one problem was measured: it may take twice as long. */
    char name[] = CARRY_CONTENTION;
    carry_run_metric noted[] = {
        {.step = 0, .name = name}, {.step = 7, .name = name, .value = 0.5}, {.step = 8, .name = name}};
    a->run.metrics = 3;
    a->run.metric = noted;
    scale_pair(a, 7, 1.8);
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(c.contention == 0.5 && c.within_noise && c.faster == 0 && c.slack < 0.2);
    carry_compare_free(&c);
    noted[1].value = 0.0;
    assert_ok(ctx, carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    assert_true(!c.within_noise && c.faster == 1);
    carry_compare_free(&c);
    b->run.results = 0;
    assert_refused(ctx, CARRY_EARGUMENT, "the runs 1 and 2 have measured nothing in common",
                   carry_compare(ctx, &c, &a->run, &b->run, 0.0));
    free(a);
    free(b);
    carry_ctx_free(ctx);
}

static void test_contention_is_a_share_and_known_only_after_a_while(void **state) {
    (void)state;
    carry_quiet before;
    double share;
    do { /* in immediate succession: repeated if this process was paused in between */
        before = carry_quiet_now();
        share = carry_quiet_contention(before, 1);
    } while (carry_quiet_now().wall - before.wall > 0.1);
    assert_true(share == 0.0);
    (void)usleep(300000);
    share = carry_quiet_contention(before, 1000000); /* more threads than any machine has cores */
    assert_true(share >= 0.0 && share <= 0.9);
    share = carry_quiet_contention(before, 1);
    assert_true(share >= 0.0 && share <= 0.9);
    assert_true(carry_quiet_contention(before, 0) == 0.0);
}

/* The number of cells in a row; quoted commas do not separate cells. */
static int cells(const char *row) {
    int count = 1;
    bool quoted = false;
    for (; *row != '\0'; row++) {
        quoted = *row == '"' ? !quoted : quoted;
        count += *row == ',' && !quoted;
    }
    return count;
}

static void test_tables_have_as_many_cells_in_every_row(void **state) {
    (void)state;
    random_state = 31;
    made *a = make_run(1, 1.0);
    a->run.name = (char *)(uintptr_t) "na\"me, with all";
    a->result[1].is.reason = "a reason, with \"quotes\"";
    a->result[2].is.error = NAN;
    for (int samples = 0; samples < 2; samples++) {
        char *text = NULL;
        size_t length = 0;
        FILE *to = open_memstream(&text, &length);
        assert_non_null(to);
        carry_export_csv_head(to, samples == 1);
        carry_export_csv(to, &a->run, samples == 1);
        assert_int_equal(fclose(to), 0);
        int rows = 0;
        int wanted = 0;
        for (char *row = strtok(text, "\n"); row != NULL; row = strtok(NULL, "\n")) {
            wanted = rows == 0 ? cells(row) : wanted;
            assert_int_equal(cells(row), wanted);
            rows++;
        }
        assert_int_equal(wanted, samples == 1 ? 7 : 21);
        assert_int_equal(rows, 1 + (samples == 1 ? PAIRS * SAMPLES : PAIRS));
        free(text);
    }
    free(a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_medians_and_quartiles_that_are_known),
        cmocka_unit_test(test_the_interval_holds_the_ratio_and_is_the_same_every_time),
        cmocka_unit_test(test_the_interval_covers_the_truth_about_as_often_as_it_says),
        cmocka_unit_test(test_samples_that_drift_get_wider_intervals),
        cmocka_unit_test(test_same_is_within_noise_and_a_fifth_is_not),
        cmocka_unit_test(test_samples_of_a_damaged_store),
        cmocka_unit_test(test_runs_of_the_same_thing_are_within_noise),
        cmocka_unit_test(test_a_change_is_seen_in_all_in_half_and_in_one),
        cmocka_unit_test(test_what_only_one_run_has_and_what_one_has_twice),
        cmocka_unit_test(test_contention_is_a_share_and_known_only_after_a_while),
        cmocka_unit_test(test_tables_have_as_many_cells_in_every_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
