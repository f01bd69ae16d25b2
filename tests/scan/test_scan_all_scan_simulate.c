/* Simulated clusters: results equal those computed by hand, the same every time; more ranks, bytes or work are never
   faster; and the planner's choice is near the best one. */
#include "support.h"

#include <math.h>
#include <string.h>

#include "scan/all_scan/all_scan_simulate.h"

static const carry_all_scan_network nodes = {.node = 8, .latency = {2e-6, 4e-6}, .bandwidth = {450e9, 50e9}};
static const carry_all_scan_costs gpu = {.launch = 2.4e-6, .step = 0.5e-6, .product = 97e12, .memory = 4.2e12};

static carry_all_scan_problem problem_of(int64_t heads, bool diagonal) {
    return (carry_all_scan_problem){.kind = diagonal ? CARRY_ALL_SCAN_DIAGONAL : CARRY_ALL_SCAN_DENSE,
                                    .heads = heads,
                                    .key = 128,
                                    .value = 128,
                                    .wire = CARRY_BF16};
}

static carry_all_scan_simulated simulate(carry_ctx *ctx, const carry_all_scan_problem *p, int ranks, const char *name) {
    carry_all_scan_simulated result;
    assert_ok(ctx, carry_all_scan_simulate(ctx, &result, p, ranks, name, &nodes, &gpu));
    return result;
}

/* The chain in one piece: P-1 messages, and at each rank between them a product and the state unpacked and packed. The
   first rank has no product (no state enters it), the last only unpacks. */
static void test_the_serial_chain_is_what_it_is_by_hand(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_all_scan_problem p = problem_of(16, false);
    const double numbers = 16.0 * 128 * 128, handled = numbers * 6.0 / gpu.memory;
    const double product = gpu.launch + 16.0 * 2.0 * 128 * 128 * 128 / gpu.product;
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        const carry_all_scan_simulated r = simulate(ctx, &p, ranks, "serial");
        const double hop = nodes.latency[0] + 2.0 * numbers / nodes.bandwidth[0];
        const double start =
            8.0 * numbers / gpu.memory + handled; /* the first rank: zeros into its state, L onto the wire */
        const double wanted = start + (ranks - 1) * (hop + handled) + (ranks - 2) * (product + handled);
        assert_true(fabs(r.seconds - wanted) < 1e-3 * wanted);
        assert_int_equal(r.received, (int64_t)(2 * numbers));
        assert_int_equal(r.messages, 2 * (ranks - 1));
    }
    carry_ctx_free(ctx);
}

static void test_the_same_comes_out_every_time_and_more_ranks_take_longer(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    const carry_all_scan_problem p = problem_of(16, false);
    for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
        double before = 0.0;
        for (int ranks = 1; ranks <= 32; ranks *= 2) {
            const double seconds = simulate(ctx, &p, ranks, carry_all_scan_name(i)).seconds;
            assert_true(seconds == simulate(ctx, &p, ranks, carry_all_scan_name(i)).seconds);
            assert_true(seconds >= before);
            before = seconds;
        }
    }
    carry_ctx_free(ctx);
}

/* Within a tenth if nodes and heads are divided evenly, within a quarter for any number of ranks: the formula does not
   include the time that all-to-all messages wait for each other at ports (docs/results/ranks.md). */
static void test_the_planner_is_within_a_tenth_of_the_best(void **state) {
    (void)state;
    static const int ranks[] = {2,  3,  4,  5,  6,  7,  8,  9,  11, 12, 14,  15,
                                16, 17, 24, 25, 32, 44, 48, 56, 63, 64, 100, 128};
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (size_t r = 0; r < sizeof ranks / sizeof ranks[0]; r += (size_t)support_cases(1, 5)) {
        const double bound = (ranks[r] & (ranks[r] - 1)) == 0 ? 1.1 : 1.25;
        for (int which = 0; which < 4; which++) {
            const carry_all_scan_problem p = problem_of(which / 2 ? 64 : 16, which % 2);
            const carry_all_scan_simulated planned = simulate(ctx, &p, ranks[r], NULL);
            for (int i = 0; carry_all_scan_name(i) != NULL; i++) {
                const double other = simulate(ctx, &p, ranks[r], carry_all_scan_name(i)).seconds;
                if (planned.seconds > bound * other) {
                    fail_msg("%d ranks, %d: %s takes %g us, %s %g", ranks[r], which, planned.algorithm,
                             1e6 * planned.seconds, carry_all_scan_name(i), 1e6 * other);
                }
            }
        }
    }
    carry_ctx_free(ctx);
}

static void test_what_cannot_be_simulated_is_refused(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_all_scan_simulated r;
    carry_all_scan_problem p = problem_of(2, false);
    assert_refused(ctx, CARRY_ESIZE, "1 to 4096", carry_all_scan_simulate(ctx, &r, &p, 0, NULL, &nodes, &gpu));
    assert_refused(ctx, CARRY_ENOTFOUND, "no algorithm",
                   carry_all_scan_simulate(ctx, &r, &p, 2, "bogus", &nodes, &gpu));
    carry_all_scan_network bad = nodes;
    bad.bandwidth[1] = 0;
    assert_refused(ctx, CARRY_EARGUMENT, "above 0", carry_all_scan_simulate(ctx, &r, &p, 2, NULL, &bad, &gpu));
    p.kind = CARRY_ALL_SCAN_FACTORS;
    p.rows = 3;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "factors", carry_all_scan_simulate(ctx, &r, &p, 2, NULL, &nodes, &gpu));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_serial_chain_is_what_it_is_by_hand),
        cmocka_unit_test(test_the_same_comes_out_every_time_and_more_ranks_take_longer),
        cmocka_unit_test(test_the_planner_is_within_a_tenth_of_the_best),
        cmocka_unit_test(test_what_cannot_be_simulated_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
