/* Sampling on a GPU against sampling on the CPU. */
/* labels: gpu */
#include <math.h>
#include <stdlib.h>

#include "support.h"
#include "carry/device.h"
#include "carry/ops.h"
#include "core/rng.h"
#include "core/tensor.h"
#include "engine/sample_device.h"

#define ROWS 64 /* more rows than fit the device at once */
#define VOCABULARY 50021

typedef struct fixture {
    carry_ctx *ctx;
    int device;
    carry_device_sampler *sampler;
    float *logits; /* in host memory */
    carry_tensor there;
} fixture;

static float normal(uint64_t seed, uint64_t at) {
    const double a = carry_sample_unit(seed, 1, at);
    const double b = carry_sample_unit(seed, 2, at);
    return (float)(sqrt(-2.0 * log(1.0 - a)) * cos(6.283185307179586 * b));
}

static int open_fixture(void **state) {
    fixture *f = calloc(1, sizeof *f);
    assert_non_null(f);
    assert_int_equal(carry_ctx_new(&f->ctx, NULL), CARRY_OK);
    while (f->device + 1 < carry_device_count() && f->sampler == NULL) {
        f->device++;
        assert_int_equal(carry_device_sampler_open(&f->sampler, f->ctx, f->device, ROWS, VOCABULARY), CARRY_OK);
    }
    if (f->sampler != NULL) {
        void *data;
        assert_int_equal(carry_device_alloc(f->ctx, &data, f->device, (size_t)ROWS * VOCABULARY * 4), CARRY_OK);
        f->there = carry_view_on(f->device, data, CARRY_F32, 2, (const int64_t[]){ROWS, VOCABULARY});
        f->logits = malloc((size_t)ROWS * VOCABULARY * sizeof *f->logits);
    }
    *state = f;
    return 0;
}

static int close_fixture(void **state) {
    fixture *f = *state;
    carry_device_sampler_close(f->sampler);
    carry_device_free(f->ctx, f->device, f->there.data);
    carry_ctx_free(f->ctx);
    free(f->logits);
    free(f);
    return 0;
}

static void need_sampler(const fixture *f) {
    if (f->sampler == NULL) {
        skip();
    }
}

static void fill(fixture *f, uint64_t seed, float spread) {
    for (int64_t i = 0; i < (int64_t)ROWS * VOCABULARY; i++) {
        f->logits[i] = spread * normal(seed, (uint64_t)i);
    }
}

static void sample_all(fixture *f, carry_run *runs, carry_run_result *results) {
    const carry_tensor from = carry_view_2d(f->logits, CARRY_F32, ROWS, VOCABULARY);
    assert_int_equal(carry_copy(f->ctx, f->there, from), CARRY_OK);
    int64_t row_of[ROWS];
    for (int i = 0; i < ROWS; i++) {
        row_of[i] = i;
    }
    assert_int_equal(carry_device_sampler_run(f->sampler, f->there, row_of, runs, ROWS, NULL), CARRY_OK);
    assert_int_equal(carry_device_sampler_results(f->sampler, results, ROWS), CARRY_OK);
}

static carry_run run_of(const carry_sampling *sampling, int64_t row) {
    return (carry_run){.slot = (int32_t)row,
                       .count = 1,
                       .wants_token = true,
                       .sampling = sampling,
                       .stream = (uint64_t)row,
                       .at = 5,
                       .logprobs = -1};
}

/* The number of rows whose token differs from the CPU's. */
static int count_different(fixture *f, carry_sampling sampling, uint64_t seed) {
    static carry_run_result results[ROWS];
    carry_run runs[ROWS];
    carry_sampler *host;
    int different = 0;
    sampling.seed = seed;
    assert_int_equal(carry_sampler_new(f->ctx, &host, VOCABULARY, &sampling), CARRY_OK);
    for (int i = 0; i < ROWS; i++) {
        runs[i] = run_of(&sampling, i);
    }
    sample_all(f, runs, results);
    for (int i = 0; i < ROWS; i++) {
        int64_t token;
        assert_int_equal(carry_sample(f->ctx, host, f->logits + (size_t)i * VOCABULARY, (uint64_t)i, 5, &token),
                         CARRY_OK);
        assert_false(results[i].is_failed);
        assert_in_range(results[i].token, 0, VOCABULARY - 1);
        different += token != results[i].token;
    }
    carry_sampler_free(host);
    return different;
}

static void test_tokens_are_those_of_the_cpu(void **state) {
    static const carry_sampling samplings[] = {
        {.temperature = 0.0, .top_p = 1.0},
        {.temperature = 1.0, .top_p = 1.0, .top_k = 1},
        {.temperature = 1.0, .top_p = 1.0},
        {.temperature = 0.7, .top_p = 0.9},
        {.temperature = 1.3, .top_p = 1.0, .top_k = 40},
        {.temperature = 1.0, .top_p = 0.95, .top_k = 1000},
        {.temperature = 0.8, .top_p = 1.0, .min_p = 0.05},
        {.temperature = 2.0, .top_p = 0.5, .top_k = 20, .min_p = 0.1},
        {.temperature = 1e-3, .top_p = 0.99},
    };
    fixture *f = *state;
    need_sampler(f);
    static const float spreads[] = {0.01f, 1.0f, 4.0f};
    for (size_t spread = 0; spread < 3; spread++) {
        fill(f, 7 + (uint64_t)spread, spreads[spread]);
        for (size_t i = 0; i < sizeof samplings / sizeof *samplings; i++) {
            /* sums are rounded differently: a number near a boundary may select the neighbour */
            const int different = count_different(f, samplings[i], 1000 + (uint64_t)i);
            if (different > (i < 2 ? 0 : 1)) {
                fail_msg("sampling %zu, spread %g: %d of %d tokens differ", i, (double)spreads[spread], different,
                         ROWS);
            }
        }
    }
}

static void test_equal_logits_are_taken_from_the_first(void **state) {
    fixture *f = *state;
    need_sampler(f);
    for (int64_t i = 0; i < (int64_t)ROWS * VOCABULARY; i++) {
        f->logits[i] = 2.5f;
    }
    static carry_run_result results[ROWS];
    carry_run runs[ROWS];
    carry_sampling sampling = {.temperature = 1.0, .top_p = 1.0, .top_k = 3};
    for (int i = 0; i < ROWS; i++) {
        runs[i] = run_of(&sampling, i);
    }
    sample_all(f, runs, results);
    bool seen[3] = {false};
    for (int i = 0; i < ROWS; i++) {
        assert_in_range(results[i].token, 0, 2);
        seen[results[i].token] = true;
    }
    assert_true(seen[0] && seen[1] && seen[2]);
    sampling = (carry_sampling){.temperature = 1.0, .top_p = 0.0001};
    sample_all(f, runs, results);
    for (int i = 0; i < ROWS; i++) {
        assert_in_range(results[i].token, 0, 5); /* 0.0001 of 50,021 tokens are 6 */
    }
    sampling = (carry_sampling){.temperature = 0.0, .top_p = 1.0};
    sample_all(f, runs, results);
    assert_int_equal(results[5].token, 0);
}

static void test_a_row_with_nan_fails_alone(void **state) {
    fixture *f = *state;
    need_sampler(f);
    static carry_run_result results[ROWS];
    carry_run runs[ROWS];
    const carry_sampling sampling = {.temperature = 0.0, .top_p = 1.0};
    fill(f, 3, 1.0f);
    f->logits[(size_t)3 * VOCABULARY + 40000] = NAN;
    f->logits[(size_t)5 * VOCABULARY + 17] = INFINITY;
    for (int i = 0; i < VOCABULARY; i++) {
        f->logits[(size_t)(6 * VOCABULARY + i)] = -INFINITY;
    }
    for (int i = 0; i < ROWS; i++) {
        runs[i] = run_of(&sampling, i);
        runs[i].wants_token = true;
    }
    sample_all(f, runs, results);
    for (int i = 0; i < ROWS; i++) {
        assert_true(results[i].is_failed == (i == 3 || i == 5 || i == 6));
        assert_true((results[i].token < 0) == results[i].is_failed);
    }
}

static void test_masks_biases_and_penalties_change_the_choice(void **state) {
    fixture *f = *state;
    need_sampler(f);
    static carry_run_result results[ROWS];
    static uint32_t allowed[(VOCABULARY + 31) / 32];
    static float bias[VOCABULARY];
    carry_run runs[ROWS];
    const carry_sampling greedy = {.temperature = 0.0, .top_p = 1.0};
    const carry_sampling penal = {.temperature = 0.0, .top_p = 1.0, .repetition = 1e6};
    fill(f, 9, 1.0f);
    for (int i = 0; i < ROWS; i++) {
        runs[i] = run_of(&greedy, i);
    }
    sample_all(f, runs, results);
    const uint32_t first = (uint32_t)results[1].token;
    allowed[777 / 32] = 1u << (777 % 32);
    bias[4242] = 100.0f;
    runs[0].allowed = allowed;
    runs[1].sampling = &penal;
    runs[1].seen = &first;
    runs[1].seen_count = 1;
    runs[2].bias = bias;
    runs[3].logprobs = 3;
    sample_all(f, runs, results);
    assert_int_equal(results[0].token, 777);
    assert_int_not_equal(results[1].token, (int32_t)first);
    assert_int_equal(results[2].token, 4242);
    double sum = 0.0;
    const float *row = f->logits + (size_t)3 * VOCABULARY;
    for (int i = 0; i < VOCABULARY; i++) {
        sum += exp((double)row[i]);
    }
    assert_int_equal(results[3].top[0], results[3].token);
    assert_true(row[results[3].top[1]] >= row[results[3].top[2]] && row[results[3].top[0]] >= row[results[3].top[1]]);
    for (int i = 0; i < 3; i++) {
        assert_true(fabs((double)results[3].top_logprob[i] - ((double)row[results[3].top[i]] - log(sum))) < 1e-4);
    }
    assert_true(results[3].logprob == results[3].top_logprob[0]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tokens_are_those_of_the_cpu),
        cmocka_unit_test(test_equal_logits_are_taken_from_the_first),
        cmocka_unit_test(test_a_row_with_nan_fails_alone),
        cmocka_unit_test(test_masks_biases_and_penalties_change_the_choice),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
