/* Sampling: the distribution is the requested one, thresholds equal those of a full sort, and the random numbers of a
   text depend on that text alone. */
#include <math.h>

#include "support.h"

#include "core/rng.h"
#include "engine/sample.h"

#define SIZE 1031

static carry_sampler *sampler(carry_ctx *ctx, int64_t vocabulary, double temperature, int64_t top_k, double top_p) {
    carry_sampler *made;
    const carry_sampling sampling = {.temperature = temperature, .top_k = top_k, .top_p = top_p, .seed = 11};
    assert_ok(ctx, carry_sampler_new(ctx, &made, vocabulary, &sampling));
    return made;
}

static double uniform(uint64_t stream, uint64_t at) {
    return ((double)carry_philox(99, stream, at).word[0] + 0.5) * 0x1p-32;
}

/* Logits of random size, some of them equal, some -0, some -infinity. */
static void random_logits(float *logits, int64_t count, uint64_t stream, double spread) {
    for (int64_t i = 0; i < count; i++) {
        double u = uniform(stream, (uint64_t)i);
        logits[i] = (float)(spread * (2.0 * u - 1.0));
        logits[i] = i % 7 == 3 ? roundf(logits[i]) : i % 13 == 5 ? -0.0f : i % 11 == 2 ? -INFINITY : logits[i];
    }
}

/* The reference finds the kept tokens and their probabilities by sorting. */
typedef struct entry {
    float logit;
    int64_t id;
} entry;

static int larger_first(const void *a, const void *b) {
    const entry *x = a;
    const entry *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : (x->id > y->id) - (x->id < y->id);
}

static int64_t reference(double *p, const float *logits, int64_t count, double temperature, int64_t top_k,
                         double top_p) {
    entry *sorted = malloc((size_t)count * sizeof *sorted);
    assert_non_null(sorted);
    for (int64_t i = 0; i < count; i++) {
        sorted[i] = (entry){logits[i], i};
        p[i] = 0.0;
    }
    qsort(sorted, (size_t)count, sizeof *sorted, larger_first);
    int64_t kept = top_k > 0 && top_k < count ? top_k : count;
    double sum = 0.0;
    for (int64_t i = 0; i < kept; i++) {
        sum += exp(((double)sorted[i].logit - (double)sorted[0].logit) / temperature);
    }
    double taken = 0.0;
    int64_t last = 0;
    while (last < kept && taken < top_p * sum) {
        taken += exp(((double)sorted[last++].logit - (double)sorted[0].logit) / temperature);
    }
    int64_t possible = 0;
    for (int64_t i = 0; i < last; i++) {
        p[sorted[i].id] = exp(((double)sorted[i].logit - (double)sorted[0].logit) / temperature) / taken;
        possible += p[sorted[i].id] > 0.0;
    }
    free(sorted);
    return possible;
}

/* Chi-square over the tokens that are expected 5 times or more, with the rest taken together. With many degrees of
   freedom f it is near normal with mean f and variance 2f: slightly more than 5 deviations are exceeded once in
   millions of seeds. */
static void compare(carry_ctx *ctx, const float *logits, int64_t count, double temperature, int64_t top_k,
                    double top_p) {
    const int draws = support_cases(20000, 4000);
    double *p = malloc((size_t)count * sizeof *p);
    int64_t *drawn = calloc((size_t)count, sizeof *drawn);
    assert_true(p != NULL && drawn != NULL);
    (void)reference(p, logits, count, temperature, top_k, top_p);
    carry_sampler *s = sampler(ctx, count, temperature, top_k, top_p);
    for (uint64_t i = 0; i < (uint64_t)draws; i++) {
        int64_t token = -1;
        assert_ok(ctx, carry_sample(ctx, s, logits, 3, i, &token));
        assert_in_range(token, 0, count - 1);
        if (p[token] == 0.0) {
            fail_msg("token %lld was drawn and is not among those kept (T %g, k %lld, p %g)", (long long)token,
                     temperature, (long long)top_k, top_p);
        }
        drawn[token]++;
    }
    double chi = 0.0;
    double freedom = -1.0;
    double rest = 0.0;
    double rest_drawn = 0.0;
    for (int64_t i = 0; i < count; i++) {
        double expected = p[i] * draws;
        if (expected >= 5.0) {
            chi += ((double)drawn[i] - expected) * ((double)drawn[i] - expected) / expected;
            freedom += 1.0;
        } else {
            rest += expected;
            rest_drawn += (double)drawn[i];
        }
    }
    if (rest >= 5.0) {
        chi += (rest_drawn - rest) * (rest_drawn - rest) / rest;
        freedom += 1.0;
    }
    if (freedom > 0.0 && chi > freedom + 5.0 * sqrt(2.0 * freedom) + 10.0) {
        fail_msg("chi-square %g with %g degrees of freedom (T %g, k %lld, p %g)", chi, freedom, temperature,
                 (long long)top_k, top_p);
    }
    carry_sampler_free(s);
    free(p);
    free(drawn);
}

static void draws_have_the_distribution_that_was_asked_for(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static float logits[SIZE];
    static const int64_t counts[] = {2, 37, SIZE};
    uint64_t stream = 0;
    for (int i = 0; i < 3; i++) {
        random_logits(logits, counts[i], stream++, 4.0);
        compare(ctx, logits, counts[i], 1.0, 0, 1.0);
        compare(ctx, logits, counts[i], 0.5, 0, 0.9);
        compare(ctx, logits, counts[i], 2.0, 7, 1.0);
        compare(ctx, logits, counts[i], 1.5, 20, 0.6);
    }
    carry_ctx_free(ctx);
}

/* The drawn tokens are those that the sort keeps, and all of these are drawn: of 12 with equal chances one is missed in
   600 draws with probability 12 (11/12)^600, below 1e-20. */
static void ties_are_cut_by_number(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float logits[40];
    for (int i = 0; i < 40; i++) {
        logits[i] = i % 2 == 0 ? 1.0f : -5.0f;
    }
    static const struct {
        int64_t top_k;
        double top_p;
        int64_t kept; /* even numbers from 0 on */
    } cases[] = {{5, 1.0, 5},   {12, 1.0, 12}, {20, 0.5, 10}, {20, 0.501, 11},
                 {3, 1e-12, 1}, {20, 0.05, 1}, {8, 0.25, 2}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        carry_sampler *s = sampler(ctx, 40, 1.0, cases[c].top_k, cases[c].top_p);
        int64_t drawn[40] = {0};
        for (uint64_t i = 0; i < 600; i++) {
            int64_t token;
            assert_ok(ctx, carry_sample(ctx, s, logits, c, i, &token));
            drawn[token]++;
        }
        for (int64_t i = 0; i < 40; i++) {
            assert_int_equal(drawn[i] > 0, i % 2 == 0 && i / 2 < cases[c].kept);
        }
        carry_sampler_free(s);
    }
    carry_ctx_free(ctx);
}

/* Against the sort, for random sizes, thresholds and temperatures: no token is drawn that was cut, and if the sort
   leaves one token, it is drawn. */
static void thresholds_are_those_of_a_sort(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static float logits[SIZE];
    static double p[SIZE];
    for (uint64_t trial = 0; trial < (uint64_t)support_cases(400, 100); trial++) {
        int64_t count = 1 + (int64_t)(uniform(1000 + trial, 0) * SIZE);
        count = count > SIZE ? SIZE : count;
        random_logits(logits, count, trial, trial % 3 == 0 ? 80.0 : 3.0);
        logits[0] = 0.5f; /* at least one possible token */
        int64_t top_k = trial % 4 == 0 ? 0 : 1 + (int64_t)(uniform(1000 + trial, 1) * (double)count);
        double top_p = trial % 5 == 0 ? 1.0 : uniform(1000 + trial, 2);
        double temperature = pow(10.0, 4.0 * uniform(1000 + trial, 3) - 2.0);
        (void)reference(p, logits, count, temperature, top_k, top_p);
        carry_sampler *s = sampler(ctx, count, temperature, top_k, top_p);
        for (uint64_t i = 0; i < 50; i++) {
            int64_t token = -1;
            assert_ok(ctx, carry_sample(ctx, s, logits, 0, i, &token));
            if (token < 0 || token >= count || !(p[token] > 0.0)) {
                fail_msg("trial %d: token %lld of %lld was drawn and is not kept", (int)trial, (long long)token,
                         (long long)count);
            }
        }
        carry_sampler_free(s);
    }
    carry_ctx_free(ctx);
}

static void the_largest_is_taken_at_temperature_0(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static const float logits[] = {-3.0f, 2.0f, 2.0f, -INFINITY, 1.0f};
    static const double temperatures[] = {0.0, 1e-300, 1e-30, 1.0, 5.0};
    for (int i = 0; i < 5; i++) {
        carry_sampler *s = sampler(ctx, 5, temperatures[i], i < 3 ? 0 : 1, 1.0);
        int64_t ones = 0;
        for (uint64_t at = 0; at < 50; at++) {
            int64_t token;
            assert_ok(ctx, carry_sample(ctx, s, logits, 0, at, &token));
            assert_true(token == 1 || (token == 2 && i > 0 && i < 3)); /* equal logits have equal chances */
            ones += token == 1;
        }
        assert_true(ones > 5);
        carry_sampler_free(s);
    }
    carry_ctx_free(ctx);
}

/* Tokens depend only on stream and position: in any order, with another stream in between, and with another sampler. */
static void numbers_are_a_function_of_stream_and_place(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static float logits[SIZE];
    int64_t first[64];
    int64_t differs = 0;
    random_logits(logits, SIZE, 5, 1.0);
    carry_sampler *a = sampler(ctx, SIZE, 1.0, 0, 0.99);
    carry_sampler *b = sampler(ctx, SIZE, 1.0, 0, 0.99);
    for (uint64_t i = 0; i < 64; i++) {
        assert_ok(ctx, carry_sample(ctx, a, logits, 1, i, &first[i]));
    }
    for (uint64_t i = 64; i-- > 0;) {
        int64_t again;
        int64_t other;
        assert_ok(ctx, carry_sample(ctx, b, logits, 2, i, &other));
        assert_ok(ctx, carry_sample(ctx, b, logits, 1, i, &again));
        assert_int_equal(again, first[i]);
        differs += other != first[i];
    }
    assert_true(differs > 50);
    carry_sampler_free(a);
    carry_sampler_free(b);
    carry_ctx_free(ctx);
}

/* A token can be drawn if and only if it has at least min_p of the largest probability. */
static void min_p_keeps_what_is_likely_enough(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static const float logits[] = {2.0f, 1.9f, 0.0f, -INFINITY, 1.2f, -3.0f};
    static const double least[] = {0.0, 0.3, 0.5, 1.0};
    for (size_t i = 0; i < sizeof least / sizeof least[0]; i++) {
        const carry_sampling sampling = {.temperature = 1.0, .top_p = 1.0, .min_p = least[i], .seed = 5};
        carry_sampler *made;
        bool seen[6] = {false};
        assert_ok(ctx, carry_sampler_new(ctx, &made, 6, &sampling));
        for (uint64_t at = 0; at < 4000; at++) { /* the least likely one that is kept has probability 0.002: 8 draws */
            int64_t token;
            assert_ok(ctx, carry_sample(ctx, made, logits, 1, at, &token));
            seen[token] = true;
        }
        for (int token = 0; token < 6; token++) {
            double share = exp((double)logits[token] - 2.0);
            assert_int_equal(seen[token], share > 0.0 && share >= least[i]);
        }
        carry_sampler_free(made);
    }
    carry_ctx_free(ctx);
}

static void a_penalty_divides_what_is_above_zero(void **unused) {
    (void)unused;
    float logits[] = {2.0f, -2.0f, 3.0f, 0.0f, -INFINITY};
    static const uint32_t seen[] = {0, 1, 3, 4};
    static const float expected[] = {1.0f, -4.0f, 3.0f, 0.0f, -INFINITY};
    carry_sample_penalize(logits, seen, 4, 2.0);
    for (int i = 0; i < 5; i++) {
        assert_true(logits[i] == expected[i]);
    }
}

static void what_cannot_be_sampled_is_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_sampler *s = sampler(ctx, 3, 1.0, 2, 0.9);
    int64_t token;
    const float bad[] = {0.0f, 1.0f, NAN};
    const float much[] = {0.0f, INFINITY, 1.0f};
    const float none[] = {-INFINITY, -INFINITY, -INFINITY};
    const float huge[] = {-3e38f, 3e38f, -INFINITY};
    assert_refused(ctx, CARRY_ERANGE, "token 2 is nan", carry_sample(ctx, s, bad, 0, 0, &token));
    assert_refused(ctx, CARRY_ERANGE, "token 1 is inf", carry_sample(ctx, s, much, 0, 0, &token));
    assert_refused(ctx, CARRY_ERANGE, "minus infinity", carry_sample(ctx, s, none, 0, 0, &token));
    assert_ok(ctx, carry_sample(ctx, s, huge, 0, 0, &token));
    assert_int_equal(token, 1);
    carry_sampler_free(s);
    static const carry_sampling refused[] = {{.temperature = -1.0, .top_p = 1.0},
                                             {.temperature = NAN, .top_p = 1.0},
                                             {.temperature = INFINITY, .top_p = 1.0},
                                             {.temperature = 1.0, .top_p = 0.0},
                                             {.temperature = 1.0, .top_p = 1.5},
                                             {.temperature = 1.0, .top_p = NAN},
                                             {.temperature = 1.0, .top_p = 1.0, .top_k = -1}};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        assert_refused(ctx, CARRY_EARGUMENT, "is needed", carry_sampler_new(ctx, &s, 3, &refused[i]));
        assert_null(s);
    }
    const carry_sampling good = {.temperature = 1.0, .top_p = 1.0};
    assert_refused(ctx, CARRY_ESIZE, "0 tokens", carry_sampler_new(ctx, &s, 0, &good));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_have_the_distribution_that_was_asked_for),
        cmocka_unit_test(ties_are_cut_by_number),
        cmocka_unit_test(thresholds_are_those_of_a_sort),
        cmocka_unit_test(the_largest_is_taken_at_temperature_0),
        cmocka_unit_test(numbers_are_a_function_of_stream_and_place),
        cmocka_unit_test(min_p_keeps_what_is_likely_enough),
        cmocka_unit_test(a_penalty_divides_what_is_above_zero),
        cmocka_unit_test(what_cannot_be_sampled_is_refused),
    };
    return cmocka_run_group_tests_name("model/sample", tests, NULL, NULL);
}
