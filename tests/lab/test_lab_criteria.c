/* Criteria: accepted expressions, their values on results made by hand, and refusals with their column. */
#include "lab/experiment/criteria.h"

#include <math.h>

#include "support.h"

static carry_ctx *ctx;

static int open_context(void **state) {
    (void)state;
    ctx = support_ctx(1, "plain", NULL);
    return 0;
}

static int close_context(void **state) {
    (void)state;
    carry_ctx_free(ctx);
    return 0;
}

#define GPU "there is no GPU here"

/* slow takes 8 ms and 64 ms, fast is 2 and 4 times faster; n64 has another pair; one problem needs something that is
   missing here. */
static const carry_outcome outcomes[] = {
    {.problem = "scan:dense:f32:t10:n32",
     .stage = "cpu",
     .method = "slow",
     .device = "cpu",
     .perplexity = 20,
     .busy = 0.75,
     .cost = 10,
     .repeats = 5,
     .products = 80,
     .median = 8e-3,
     .flops = 8e6,
     .bytes = 16e6,
     .workspace = 100,
     .tokens = 10,
     .share = 0.5,
     .error = 1e-7,
     .error_absolute = 2e-7,
     .bound = 1e-5},
    {.problem = "scan:dense:f32:t10:n32",
     .stage = "cpu",
     .method = "fast",
     .device = "cpu",
     .repeats = 5,
     .products = 20,
     .median = 4e-3,
     .flops = 4e6,
     .bytes = 16e6,
     .workspace = 300,
     .tokens = 10,
     .share = 0.8,
     .error = 1e-6,
     .error_absolute = 2e-6,
     .bound = 1e-5},
    {.problem = "scan:dense:f32:t20:n32",
     .stage = "cpu",
     .method = "slow",
     .device = "cpu",
     .perplexity = 25,
     .busy = 0.5,
     .cost = 14,
     .repeats = 5,
     .products = 200,
     .median = 64e-3,
     .flops = 64e6,
     .bytes = 32e6,
     .workspace = 100,
     .tokens = 20,
     .share = 0.4,
     .error = 3e-7,
     .error_absolute = 4e-7,
     .bound = 1e-5},
    {.problem = "scan:dense:f32:t20:n32",
     .stage = "cpu",
     .method = "fast",
     .device = "cpu",
     .repeats = 5,
     .products = 40,
     .median = 16e-3,
     .flops = 16e6,
     .bytes = 32e6,
     .workspace = 200,
     .tokens = 20,
     .share = 0.7,
     .error = 3e-6,
     .error_absolute = 4e-6,
     .bound = 1e-5},
    {.problem = "scan:dense:bf16:t10:n64:device=cuda",
     .stage = "gpu",
     .method = "slow",
     .device = "cuda",
     .reason = GPU},
    {.problem = "scan:dense:bf16:t10:n64:device=cuda",
     .stage = "gpu",
     .method = "fast",
     .device = "cuda",
     .reason = GPU},
    /* fast runs on this problem, slow does not */
    {.problem = "scan:dense:f16:t10:n8",
     .stage = "half",
     .method = "fast",
     .device = "cpu",
     .repeats = 5,
     .products = 0,
     .median = 1e-3,
     .error = 1e-3,
     .error_absolute = NAN,
     .bound = 1e-2},
    /* a fast method that is wrong, and one whose result has a NaN, which counts as an infinite error */
    {.problem = "scan:dense:f16:t10:n9",
     .stage = "bad",
     .method = "wrong",
     .device = "cpu",
     .repeats = 5,
     .median = 1e-6,
     .error = 0.5,
     .error_absolute = 0.5,
     .bound = 1e-2},
    {.problem = "scan:dense:f16:t20:n9",
     .stage = "bad",
     .method = "wrong",
     .device = "cpu",
     .repeats = 5,
     .median = 1e-6,
     .error = INFINITY,
     .error_absolute = INFINITY,
     .bound = 1e-2},
    /* not compared with the reference */
    {.problem = "scan:dense:f32:t10:n7",
     .stage = "unchecked",
     .method = "free",
     .device = "cpu",
     .repeats = 5,
     .median = 1e-3,
     .error = NAN,
     .error_absolute = NAN,
     .bound = NAN},
    /* streams: one that takes turns, one that overlaps, one without a score, one that shows other pictures */
    {.problem = "stream:depth1",
     .stage = "stream",
     .method = "pipeline",
     .median = 80e-3,
     .overlap = 0,
     .slower_stage = 40e-3},
    {.problem = "stream:depth2",
     .stage = "stream",
     .method = "pipeline",
     .median = 42e-3,
     .overlap = 0.95,
     .slower_stage = 40e-3,
     .denoise = 30e-3,
     .clean = 8e-3,
     .decode = 16e-3},
    {.problem = "stream:depth3",
     .stage = "short",
     .method = "pipeline",
     .median = 42e-3,
     .overlap = NAN,
     .slower_stage = 40e-3},
    {.problem = "stream:depth4",
     .stage = "wrong",
     .method = "pipeline",
     .median = 42e-3,
     .overlap = 1,
     .slower_stage = 40e-3,
     .error = 1e-9},
};
#define COUNT ((int)(sizeof outcomes / sizeof outcomes[0]))

static carry_verdict judge(const char *text) {
    carry_criterion *c;
    assert_ok(ctx, carry_criterion_parse(ctx, &c, text));
    assert_ok(ctx, carry_criterion_check(ctx, c, outcomes, COUNT));
    carry_verdict v = carry_criterion_judge(c, outcomes, COUNT);
    carry_criterion_free(c);
    return v;
}

static void gives(double value, const char *text) {
    char criterion[300];
    (void)snprintf(criterion, sizeof criterion, "%s >= 0", text);
    carry_verdict v = judge(criterion);
    if (v.kind == CARRY_NOT_MEASURED || fabs(v.value - value) > 1e-9 * fabs(value)) {
        fail_msg("%s gives %.17g (%s), not %.17g", text, v.value, v.reason, value);
    }
}

static void is(carry_verdict_kind kind, const char *text) {
    carry_verdict v = judge(text);
    if (v.kind != kind) {
        fail_msg("%s is %s, not %s: %g against %g, %s", text, carry_verdict_name(v.kind), carry_verdict_name(kind),
                 v.value, v.bound, v.reason);
    }
}

static void not_measured(const char *reason, const char *text) {
    carry_verdict v = judge(text);
    if (v.kind != CARRY_NOT_MEASURED || strstr(v.reason, reason) == NULL) {
        fail_msg("%s is %s because '%s', not because '%s'", text, carry_verdict_name(v.kind), v.reason, reason);
    }
}

static void refuse(const char *words, const char *text) {
    carry_criterion *c = (carry_criterion *)&ctx;
    carry_status status = carry_criterion_parse(ctx, &c, text);
    if (status == CARRY_OK) {
        status = carry_criterion_check(ctx, c, outcomes, COUNT);
        carry_criterion_free(c);
    } else {
        assert_null(c);
    }
    if (status != CARRY_EARGUMENT || strstr(carry_ctx_error(ctx), words) == NULL) {
        fail_msg("'%s' was not refused with '%s' but: %s", text, words, carry_ctx_error(ctx));
    }
}

static void test_arithmetic(void **state) {
    (void)state;
    gives(7, "1 + 2 * 3");
    gives(9, "(1 + 2) * 3");
    gives(-4, "2 - 3 - 3");
    gives(2, "16 / 4 / 2");
    gives(1.5, "6 * 2 / 8");
    gives(5, "2 - -3");
    gives(-5, "-(2 + 3)");
    gives(-1, "-3 + 2");
    gives(17.0 / 3.0, "2/3 * log2(1024) - 1");
    gives(3, "log2(8)");
    gives(3, "log2(16) - log2(2)");
    gives(0.00015, "1.5e-4");
    gives(0.5, ".5");
    gives(10, "\t10 ");
}

static void test_comparisons(void **state) {
    (void)state;
    is(CARRY_MET, "1 < 2");
    is(CARRY_NOT_MET, "2 < 2");
    is(CARRY_MET, "2 <= 2");
    is(CARRY_NOT_MET, "2 > 2");
    is(CARRY_MET, "2>=2");
    is(CARRY_MET, "2==2");
    is(CARRY_NOT_MET, "1 == 2");
    carry_verdict v = judge("1 + 1 < 2 * 3");
    assert_true(v.value == 2 && v.bound == 6);
}

static void test_every_function_gives_the_worst_of_what_fits(void **state) {
    (void)state;
    gives(2, "speedup(fast, slow, stage=cpu)"); /* of 2 and 4 */
    gives(4, "speedup(fast, slow, t=20)");
    gives(0.5, "speedup(slow, fast, t=10, n=32)");
    gives(16e-3, "time(fast, stage=cpu)");
    gives(3e-6, "error(fast, stage=cpu)");
    gives(3e-6, "error(fast, f64, stage=cpu)"); /* every error is against float64 */
    gives(4e-6, "absolute_error(fast, stage=cpu)");
    gives(40, "products(fast, f32)");
    gives(300, "memory(fast, f32)");
    gives(0.7, "use(fast, f32)");
    gives(1.0, "gflops(fast, f32)");
    gives(2.0, "gbytes(fast, n=32, t=20)");
    gives(1250, "tokens_per_s(fast, n=32, t=20)");
    gives(1250, "tokens_per_s(fast, n=32)");
    gives(25, "perplexity(slow, stage=cpu, n=32)");
    gives(0.5, "busy(slow, stage=cpu)");
    gives(14, "cost(slow, stage=cpu)");
    gives(22.5, "mean(perplexity(slow, stage=cpu))");
    gives(12, "mean(cost(slow, stage=cpu))");
    gives(3, "mean(speedup(fast, slow, stage=cpu))");
    gives(4, "max(speedup(fast, slow))");
    gives(2, "min(speedup(fast, slow))");
    gives(4e-3, "min(time(fast, stage=cpu))");
    gives(1e-6, "min(error(fast, f32))");
    gives(4, "products(slow, t=10, stage=cpu) / products(fast, t=10, stage=cpu)");
    gives(300, "memory(fast, device=cpu, stage=cpu)");
    for (int i = 0;; i++) { /* each is in the help */
        const char *about = NULL;
        if (carry_criterion_function(i, &about) == NULL) {
            assert_int_equal(i, 22); /* received and exposed belong to ranks: test_lab_allscan.c */
            break;
        }
        assert_true(strlen(about) > 0);
    }
}

static void test_the_overlap_of_streams(void **state) {
    (void)state;
    gives(0, "overlap(pipeline, stage=stream)"); /* the least */
    gives(0.95, "max(overlap(pipeline, stage=stream))");
    gives(0.95, "overlap(pipeline, depth=2)");
    gives(1.05, "time(pipeline, depth=2) / slower_stage(pipeline, depth=2)");
    is(CARRY_MET, "overlap(pipeline, depth=2) >= 0.9");
    is(CARRY_MET, "overlap(pipeline, depth=1) <= 0.3");
    is(CARRY_NOT_MET, "overlap(pipeline, depth=1) >= 0.3");
    is(CARRY_NOT_MET, "time(pipeline, stage=stream, depth=1) <= 1.1 * slower_stage(pipeline, depth=1)");
    not_measured("has no figure", "overlap(pipeline, stage=short) >= 0");
    not_measured("its result is wrong", "overlap(pipeline, stage=wrong) >= 0.9");
    not_measured("has no figure", "overlap(fast, stage=cpu) >= 0"); /* no streams */
    not_measured("has no figure", "slower_stage(fast, stage=cpu) > 0");
    gives(38e-3, "denoise(pipeline, depth=2) + clean(pipeline, depth=2)");
    gives(0.4, "decode(pipeline, depth=2) / slower_stage(pipeline, depth=2)");
    not_measured("has no figure", "recompute(pipeline, depth=2) > 0"); /* the pipeline has no such figure */
    not_measured("has no figure", "decode(fast, stage=cpu) > 0");
}

static void test_growth_is_the_least_along_every_series(void **state) {
    (void)state;
    gives(2, "grows(speedup(fast, slow, f32), t)"); /* from 2 to 4 */
    gives(4, "grows(time(fast, f32), t)");
    gives(2.5, "grows(products(slow, f32), t)");
    /* Two widths: one grows by 3, the other shrinks to a third. The order of the list does not matter. */
    const carry_outcome two[] = {{.problem = "scan:n1:t8", .stage = "", .method = "m", .median = 1},
                                 {.problem = "scan:n2:t8", .stage = "", .method = "m", .median = 3},
                                 {.problem = "scan:n1:t16", .stage = "", .method = "m", .median = 3},
                                 {.problem = "scan:n2:t16", .stage = "", .method = "m", .median = 1},
                                 {.problem = "scan:n1:t4", .stage = "", .method = "m", .median = 0.5},
                                 {.problem = "scan:n1:t4", .stage = "other", .method = "m", .median = 9}};
    carry_criterion *c;
    assert_ok(ctx, carry_criterion_parse(ctx, &c, "grows(time(m), t) > 1"));
    assert_ok(ctx, carry_criterion_check(ctx, c, two, 6));
    carry_verdict v = carry_criterion_judge(c, two, 6);
    assert_true(v.kind == CARRY_NOT_MET && fabs(v.value - 1.0 / 3.0) < 1e-12);
    carry_criterion_free(c);
    refuse("column 7: no two problems that fit differ in 't' alone", "grows(speedup(fast, slow, t=10, f32), t) > 1");
    refuse("no two problems that fit differ in 'q' alone", "grows(speedup(fast, slow), q) > 1");
    refuse("no two problems that fit differ in 'f' alone",
           "grows(time(fast), f) > 1"); /* f32 and f16 are not sizes of f */
}

static void test_what_was_not_measured_says_why(void **state) {
    (void)state;
    not_measured("fast on scan:dense:bf16:t10:n64:device=cuda: " GPU, "speedup(fast, slow, device=cuda) >= 1");
    not_measured(GPU, "speedup(fast, slow) >= 1"); /* one matching outcome lacks the figure, so the worst is unknown */
    not_measured(GPU, "1 < time(slow, bf16)");
    not_measured(GPU, "time(slow, f32) / time(slow, stage=gpu) < 1"); /* division by a missing result */
    not_measured(GPU, "time(slow, stage=gpu) / time(slow, f32) < 1");
    not_measured(GPU, "max(time(slow, stage=gpu)) < 1");
    not_measured("a division by zero", "1 / products(fast, f16) > 1");
    not_measured("a division by zero", "1 / (2 - 2) > 1");
    not_measured("a logarithm of 0", "log2(products(fast, f16)) > 1");
    not_measured("a logarithm of -1", "log2(-1) > 1");
    not_measured("absolute_error of fast on scan:dense:f16:t10:n8 has no figure", "absolute_error(fast, f16) < 1");
    not_measured("error of free on scan:dense:f32:t10:n7 has no figure", "error(free) < 1");
    is(CARRY_MET, "time(free) < 1");                /* timed without a comparison, because a person asked for it */
    is(CARRY_MET, "max(speedup(fast, slow)) >= 4"); /* a maximum needs only the outcomes that were measured */
}

static void test_the_time_of_a_wrong_result_is_not_measured(void **state) {
    (void)state;
    not_measured("wrong on scan:dense:f16:t10:n9: its result is wrong (error 5.00e-01, bound 1.00e-02)",
                 "time(wrong, t=10) < 1");
    not_measured("its result is wrong", "gflops(wrong) > 0");
    not_measured("its result is wrong", "use(wrong) > 0");
    is(CARRY_NOT_MET, "error(wrong, t=10) < 1e-2"); /* but its error is a figure */
    is(CARRY_NOT_MET, "error(wrong, t=20) < 1e-2");
    is(CARRY_MET, "max(error(wrong)) > 1e-1");
}

static void test_speedups_are_over_the_problems_that_both_run(void **state) {
    (void)state;
    gives(2, "speedup(fast, slow, device=cpu)"); /* the f16 problem has no slow */
    refuse("no problem of the grid with the method fast and with slow fits its filters",
           "speedup(fast, slow, f16) > 1");
    refuse("no problem of the grid with the method wrong and with slow fits", "speedup(wrong, slow) > 1");
}

static void test_typos_are_refused_with_their_column(void **state) {
    (void)state;
    refuse("column 1: there is no function 'sppedup'", "sppedup(fast, slow) >= 1.2");
    refuse("column 5: there is no function 'log'", "1 + log(2) > 1");
    refuse("column 1: it names the method 'fsat', which nothing here runs", "speedup(fsat, slow) >= 1.2");
    refuse("column 5: it names the method 'slwo', which", "2 + speedup(fast, slwo) >= 1.2");
    refuse("column 1: no problem of the grid with the method fast fits its filters", "time(fast, t=30) < 1");
    refuse("fits its filters", "time(fast, t) < 1");
    refuse("fits its filters", "time(fast, stage) < 1");
    refuse("fits its filters", "time(fast, stage=cpu, device=cuda) < 1");
    refuse("fits its filters", "time(fast, f64) < 1"); /* only an error is against float64 */
    refuse("column 19: ',' is expected here", "speedup(   fast   slow) > 1");
    refuse("column 13: ',' is expected here", "speedup(fast) > 1");
    refuse("column 6: a method is expected here", "time() < 1");
    refuse("a second method is expected here", "speedup(fast,) > 1");
    refuse("a filter such as t=128 or bf16 is expected here", "time(fast, ) < 1");
    refuse("a value is expected here", "time(fast, t=) < 1");
    refuse("column 11: ')' is expected here", "time(fast < 1");
    refuse("one of >= > <= < == is expected here", "time(fast)");
    refuse("one of >= > <= < == is expected here", "time(fast) = 1");
    refuse("one of >= > <= < == is expected here", "time(fast) != 1");
    refuse("a number or a function is expected here", "time(fast) < > 1");
    refuse("column 16: the criterion should end here", "time(fast) < 1 1");
    refuse("the criterion should end here", "1 < 2 < 3");
    refuse("a number or a function is expected here", "");
    refuse("a number or a function is expected here", "   ");
    refuse("a number or a function is expected here", "1 < ");
    refuse("a number or a function is expected here", "1 + * 2 < 3");
    refuse("'(' is expected here", "time < 1");
    refuse("this is not a number", "1e999 > 1");
    refuse("this is not a number", ". > 1");
    refuse("stand around one function", "max(2) > 1");
    refuse("stand around one function", "max(min(time(fast))) > 1");
    refuse("stand around one function", "grows(time(fast) + 1, t) > 1");
    refuse("',' is expected here", "grows(time(fast)) > 1");
    refuse("a size such as t is expected here", "grows(time(fast), ) > 1");
    refuse("is expected here", "time(fast, \xff) > 1");
}

static void test_hostile_lengths_and_nesting(void **state) {
    (void)state;
    char text[5000];
    memset(text, '(', 4000);
    text[4000] = '\0';
    refuse("a criterion of 4000 letters is longer than the 255", text);
    text[200] = '\0';
    refuse("nested too deeply", text);
    memset(text, '-', 200);
    refuse("nested too deeply", text);
    for (int i = 0; i < 31; i++) {
        (void)snprintf(text + 5 * i, 6, "log2(");
    }
    refuse("is expected here", text);
    for (int i = 0; i < 80; i++) {
        (void)snprintf(text + 2 * i, 3, "1+");
    }
    refuse("this is too long", text);
    (void)snprintf(text, sizeof text, "time(%0100d) > 1", 1);
    refuse("a method is expected here", text);
    (void)snprintf(text, sizeof text, "time(fast,a,b,c,d,e,f,g,h,i) > 1");
    refuse("too many filters", text);
    (void)snprintf(text, sizeof text, "1 %200s< 2", "");
    carry_criterion *c;
    assert_ok(ctx, carry_criterion_parse(ctx, &c, text));
    carry_criterion_free(c);
}

/* An expression cut at every letter is accepted or refused, and nothing else happens. */
static void test_cut_at_every_letter(void **state) {
    (void)state;
    static const char whole[] =
        "products(slow, t=10) / products(fast, stage=cpu) + grows(time(fast), t) >= 2/3 * log2(1e3) - 1";
    for (size_t length = 0; length < sizeof whole; length++) {
        char *cut = malloc(length + 1);
        assert_non_null(cut);
        memcpy(cut, whole, length);
        cut[length] = '\0';
        carry_criterion *c;
        if (carry_criterion_parse(ctx, &c, cut) == CARRY_OK) {
            (void)carry_criterion_check(ctx, c, outcomes, COUNT);
            (void)carry_criterion_judge(c, outcomes, COUNT);
            (void)carry_criterion_judge(c, outcomes, 0);
            carry_criterion_free(c);
        }
        free(cut);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arithmetic),
        cmocka_unit_test(test_comparisons),
        cmocka_unit_test(test_every_function_gives_the_worst_of_what_fits),
        cmocka_unit_test(test_the_overlap_of_streams),
        cmocka_unit_test(test_growth_is_the_least_along_every_series),
        cmocka_unit_test(test_what_was_not_measured_says_why),
        cmocka_unit_test(test_the_time_of_a_wrong_result_is_not_measured),
        cmocka_unit_test(test_speedups_are_over_the_problems_that_both_run),
        cmocka_unit_test(test_typos_are_refused_with_their_column),
        cmocka_unit_test(test_hostile_lengths_and_nesting),
        cmocka_unit_test(test_cut_at_every_letter),
    };
    return cmocka_run_group_tests(tests, open_context, close_context);
}
