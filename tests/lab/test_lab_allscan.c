/* Problems of several ranks: their definition, that all ranks make the same calls, counts, and criteria over them.
   Ranks are threads here; test_allscan.sh has those of mpirun. */
#include "bench/bench_ranks.h"
#include "lab/experiment/criteria.h"

#include <math.h>

#include "core/error.h"
#include "ops/product/rates.h"
#include "support.h"

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(2, NULL, NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

static carry_status plan(const char *text) {
    carry_problem problem;
    const carry_family *family;
    void *instance = NULL;
    CARRY_TRY(carry_problem_parse(ctx, &problem, text));
    CARRY_TRY(carry_family_of(ctx, &family, &problem));
    CARRY_TRY(carry_family_plan(family, ctx, &instance, &problem, false));
    carry_family_close(family, instance);
    return CARRY_OK;
}

static void test_words_and_sizes_are_understood_or_refused(void **state) {
    (void)state;
    static const char *const fine[] = {"allscan:wy:p8",
                                       "allscan:dense:bf16:h3:k5:v7:p1",
                                       "allscan:factors:r9:p2:reversed:initial",
                                       "allscan:diagonal:p1024:algo=doubling",
                                       "allscan:wy:gather:p3",
                                       "allscan:wy:p3:algo=lasp1",
                                       "delta:f32:t100:h2:k8:v8:p3:backward:initial",
                                       "delta:bf16:t5:p7:wire=bf16:groups=2:method=chunk32"};
    for (size_t i = 0; i < sizeof fine / sizeof fine[0]; i++) {
        assert_ok(ctx, plan(fine[i]));
    }
    static const struct {
        const char *problem, *words;
        carry_status status;
    } bad[] = {{"allscan:wy:p0", "'p0'", CARRY_ESIZE},
               {"allscan:wy:p1025", "p1 to p1024", CARRY_ESIZE},
               {"allscan:wy", "how many ranks", CARRY_EARGUMENT},
               {"allscan:p2", "one of wy, factors, diagonal", CARRY_EARGUMENT},
               {"allscan:wy:diagonal:p2", "one of wy, factors, diagonal", CARRY_EARGUMENT},
               {"allscan:wy:r3:p2", "only factors have rows", CARRY_EARGUMENT},
               {"allscan:wy:f32:bf16:p2", "more than one element type", CARRY_EARGUMENT},
               {"allscan:wy:f16:p2", "'f16'", CARRY_EARGUMENT},
               {"allscan:wy:t5:p2", "no size 't'", CARRY_EARGUMENT},
               {"allscan:wy:gather:algo=chain:p2", "gather and for algo=chain", CARRY_EARGUMENT},
               {"allscan:wy:p2:algo=zebra", "\"zebra\"", CARRY_ENOTFOUND},
               {"allscan:wy:p2:comm=peer", "device=cuda", CARRY_EARGUMENT},
               {"allscan:wy:p2:h999999999:k999999999", "more than memory can be", CARRY_ESIZE},
               {"delta:p1025", "p1 to p1024", CARRY_ESIZE},
               {"delta:t9223372036854775807:p2", "at most", CARRY_ESIZE},
               {"delta:p2:step", "'step'", CARRY_EARGUMENT},
               {"delta:p2:wire=f16", "f32 or bf16", CARRY_EARGUMENT},
               {"delta:p2:groups=none", "groups", CARRY_EARGUMENT},
               {"delta:p2:method=zebra", "zebra", CARRY_ENOTFOUND}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_refused(ctx, bad[i].status, bad[i].words, plan(bad[i].problem));
    }
}

static void test_how_many_ranks_a_problem_is_for(void **state) {
    (void)state;
    assert_int_equal(carry_collective_ranks(ctx, "allscan:wy:p8"), 8);
    assert_int_equal(carry_collective_ranks(ctx, "delta:t64:p3"), 3);
    assert_int_equal(carry_collective_ranks(ctx, "delta:t64"), 0);
    assert_int_equal(carry_collective_ranks(ctx, "scan:dense:t8"), 0);
    assert_int_equal(carry_collective_ranks(ctx, "allscan:wy:p1025"), 0);
    assert_int_equal(carry_collective_ranks(ctx, "zebra:p2"), 0);
}

/* Counts the results, which must come from every rank's runs. */
typedef struct kept {
    int results;
    double sum;
} kept;

static void keep(void *user, const carry_bench_result *result, const double *samples) {
    kept *k = user;
    k->results++;
    for (int i = 0; i < result->repeats; i++) {
        k->sum += samples[i];
    }
}

static const carry_bench_result *result_of(const carry_bench_result *results, int count, const char *method) {
    for (int i = 0; i < count; i++) {
        if (strcmp(results[i].algorithm, method) == 0) {
            return &results[i];
        }
    }
    fail_msg("%s has no result", method);
    return NULL;
}

/* The chain receives h K V numbers of 2 bytes; gather receives the pairs of all earlier ranks, without the M of the
   first. */
static void test_every_kind_is_right_and_the_chain_receives_as_much_on_any_number_of_ranks(void **state) {
    (void)state;
    static const char *const kinds[] = {"wy", "factors:r5:reversed", "diagonal:initial"};
    for (int kind = 0; kind < 3; kind++) {
        for (int p = 2; p <= 5; p++) {
            char problem[96];
            carry_bench_result results[CARRY_BENCH_METHODS];
            kept k = {0};
            int count = 0;
            (void)snprintf(problem, sizeof problem, "allscan:%s:bf16:h3:k17:v5:p%d", kinds[kind], p);
            assert_ok(ctx, carry_bench_problem(ctx, problem, &(carry_ceilings){1, 1},
                                               &(carry_bench_options){.repeats = 3, .keep = keep, .keep_user = &k},
                                               results, &count));
            assert_int_equal(count, 5);
            assert_int_equal(k.results, 5);
            assert_true(k.sum > 0.0);
            for (int i = 0; i < count; i++) {
                assert_string_equal(results[i].reason, "");
                assert_int_equal(results[i].repeats, 3);
                assert_int_equal(results[i].ranks, p);
                assert_true(results[i].cores >= 1);
                assert_true(results[i].median > 0.0);
                assert_true(results[i].worst.error <= results[i].worst.bound);
            }
            const double state_bytes = 2.0 * 3 * 17 * 5;
            assert_true(result_of(results, count, "chain")->counts.received == state_bytes);
            assert_true(result_of(results, count, "serial")->counts.received == state_bytes);
            assert_true(result_of(results, count, "gather")->counts.received >= (p - 1) * state_bytes);
            assert_true(result_of(results, count, "doubling")->counts.received >= state_bytes);
        }
    }
}

/* Enough runs that ranks which counted by their own clocks would end at different ones. */
static void test_ranks_agree_on_how_many_runs_there_are(void **state) {
    (void)state;
    carry_bench_result results[CARRY_BENCH_METHODS];
    int count = 0;
    assert_ok(ctx, carry_bench_problem(ctx, "allscan:wy:h1:k8:v8:p3", &(carry_ceilings){1, 1},
                                       &(carry_bench_options){.seconds = 0.02}, results, &count));
    assert_int_equal(count, 5);
    for (int i = 0; i < count; i++) {
        assert_true(results[i].repeats >= 5);
        assert_int_equal(results[i].counts.exposed < 0.0, 1); /* All-Scan alone hides behind nothing */
    }
}

static bool stop_at_once(void) {
    return true;
}

static void test_one_that_is_stopped_stops_all(void **state) {
    (void)state;
    carry_bench_result results[CARRY_BENCH_METHODS];
    int count = 0;
    assert_refused(ctx, CARRY_EINTERRUPTED, "interrupted",
                   carry_bench_problem(ctx, "allscan:wy:h1:k8:v8:p3", &(carry_ceilings){1, 1},
                                       &(carry_bench_options){.stop = stop_at_once}, results, &count));
}

static void test_the_delta_rule_over_ranks_is_right(void **state) {
    (void)state;
    static const char *const problems[] = {
        "delta:f32:t67:h2:k16:v8:p3", "delta:f32:t67:h2:k16:v8:p3:backward:initial", "delta:f32:t2:h2:k8:v8:p5:initial",
        "delta:bf16:t40:hv4:h2:k8:v8:p2:wire=bf16", "delta:f32:t33:h2:k8:v8:p2:nogate:algo=gather"};
    for (size_t i = 0; i < sizeof problems / sizeof problems[0]; i++) {
        carry_bench_result results[CARRY_BENCH_METHODS];
        int count = 0;
        assert_ok(ctx, carry_bench_problem(ctx, problems[i], &(carry_ceilings){1, 1},
                                           &(carry_bench_options){.repeats = 2}, results, &count));
        assert_int_equal(count, strstr(problems[i], "algo=") != NULL ? 1 : 5);
        for (int m = 0; m < count; m++) {
            assert_string_equal(results[m].reason, "");
            assert_true(results[m].worst.error <= results[m].worst.bound);
            assert_true(results[m].counts.exposed >= 0.0 && results[m].counts.exposed <= 1.0);
            assert_true(results[m].exposed_low <= results[m].counts.exposed);
            assert_true(results[m].exposed_high >= results[m].counts.exposed);
            assert_true(results[m].counts.waited >= 0.0 && results[m].counts.waited <= 1.0);
            assert_true(results[m].counts.received > 0.0);
            assert_true(results[m].counts.tokens > 0.0);
        }
    }
}

/* The same on existing ranks: more than the problem needs, and too few. */
static carry_status bench_on_five(void *user, carry_comm *comm) {
    int *counts = user;
    carry_ctx *own = carry_comm_ctx(comm);
    carry_bench_result results[CARRY_BENCH_METHODS];
    int count = 0;
    CARRY_TRY(carry_bench_problem_ranks(comm, "allscan:wy:h1:k8:v8:p3", &(carry_ceilings){1, 1},
                                        &(carry_bench_options){.repeats = 2}, results, &count));
    counts[carry_comm_rank(comm)] = count == 5 && results[4].ranks == 3 && results[4].repeats == 2 ? 5 : -1;
    const carry_status status = carry_bench_problem_ranks(comm, "allscan:wy:h1:k8:v8:p6", &(carry_ceilings){1, 1},
                                                          &(carry_bench_options){.repeats = 2}, results, &count);
    if (status != CARRY_EUNSUPPORTED || strstr(carry_ctx_error(own), "more than the 5 ranks") == NULL) {
        counts[carry_comm_rank(comm)] = -2;
    }
    return CARRY_OK;
}

static void test_the_first_ranks_of_many_work_and_all_know_the_figures(void **state) {
    (void)state;
    carry_ctx *ctxs[5];
    int counts[5] = {0};
    for (int r = 0; r < 5; r++) {
        ctxs[r] = support_ctx(1, NULL, NULL);
    }
    assert_ok(ctxs[0], carry_comm_threads(ctxs, 5, NULL, bench_on_five, counts));
    for (int r = 0; r < 5; r++) {
        assert_int_equal(counts[r], 5);
        carry_ctx_free(ctxs[r]);
    }
}

static void test_the_note_says_when_cores_are_short(void **state) {
    (void)state;
    char note[CARRY_COLLECTIVE_NOTE];
    assert_string_equal(carry_collective_note(note, 8, 2), "8 ranks on 2 cores: times include waiting for a core");
    assert_string_equal(carry_collective_note(note, 2, 1), "2 ranks on 1 core: times include waiting for a core");
    assert_string_equal(carry_collective_note(note, 2, 2), "");
}

static carry_verdict judged(const char *text, const carry_outcome *outcomes, int count) {
    carry_criterion *criterion;
    assert_ok(ctx, carry_criterion_parse(ctx, &criterion, text));
    assert_ok(ctx, carry_criterion_check(ctx, criterion, outcomes, count));
    const carry_verdict verdict = carry_criterion_judge(criterion, outcomes, count);
    carry_criterion_free(criterion);
    return verdict;
}

static void test_criteria_over_what_is_received_and_exposed(void **state) {
    (void)state;
    const carry_outcome outcomes[] = {
        {.problem = "allscan:wy:p2", .stage = "ranks", .method = "chain", .ranks = 2, .received = 64, .exposed = NAN},
        {.problem = "allscan:wy:p8", .stage = "ranks", .method = "chain", .ranks = 8, .received = 64, .exposed = NAN},
        {.problem = "allscan:wy:p8", .stage = "ranks", .method = "gather", .ranks = 8, .received = 832, .exposed = NAN},
        {.problem = "delta:p4", .stage = "layer", .method = "chain", .ranks = 4, .received = 9, .exposed = 0.03},
        {.problem = "scan:t8", .stage = "cpu", .method = "cyclic", .exposed = 0.5, .received = 3}};
    const int count = (int)(sizeof outcomes / sizeof outcomes[0]);
    assert_int_equal(judged("received(chain, p=8) == received(chain, p=2)", outcomes, count).kind, CARRY_MET);
    assert_true(judged("received(gather) / received(chain, wy) > 7", outcomes, count).value == 13.0);
    assert_true(judged("received(chain) > 1", outcomes, count).value == 64.0); /* the worst is the largest */
    assert_int_equal(judged("exposed(chain, stage=layer) < 0.05", outcomes, count).kind, CARRY_MET);
    assert_int_equal(judged("exposed(chain, stage=layer) < 0.02", outcomes, count).kind, CARRY_NOT_MET);
    assert_int_equal(judged("exposed(chain, stage=ranks) < 1", outcomes, count).kind, CARRY_NOT_MEASURED);
    assert_int_equal(judged("received(cyclic) < 9", outcomes, count).kind, CARRY_NOT_MEASURED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_and_sizes_are_understood_or_refused),
        cmocka_unit_test(test_how_many_ranks_a_problem_is_for),
        cmocka_unit_test(test_every_kind_is_right_and_the_chain_receives_as_much_on_any_number_of_ranks),
        cmocka_unit_test(test_ranks_agree_on_how_many_runs_there_are),
        cmocka_unit_test(test_one_that_is_stopped_stops_all),
        cmocka_unit_test(test_the_delta_rule_over_ranks_is_right),
        cmocka_unit_test(test_the_first_ranks_of_many_work_and_all_know_the_figures),
        cmocka_unit_test(test_the_note_says_when_cores_are_short),
        cmocka_unit_test(test_criteria_over_what_is_received_and_exposed),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
