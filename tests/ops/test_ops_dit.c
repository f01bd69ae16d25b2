/* Layer norm, bias, gate, the norm of spread rows and rotary positions against float64: odd sizes around the piece of
   1024, all types, 1, 2 and 3 threads, in place and out of place. */
#include "nn_support.h"

#include "carry/nn.h"
#include "ops/sampler.h"
#include "ops/video.h"

static const int64_t widths[] = {1, 7, 16, 33, 1023, 1024, 1025, 2500};
enum { WIDTHS = sizeof widths / sizeof *widths };

/* Rows with a mean of 3. The result is below sqrt(n) in magnitude and usually near 1. The mean and variance are sums of
   n numbers in 16 parts: off by n/16 + 5 roundings of 2^-24 at worst, relative, which for 2500 is below 2^-16 of |x| /
   deviation, about 4 here, and of the value. Twice that is allowed. */
static void check_layer_norm(carry_dtype type, int64_t tokens, int64_t n, bool in_place, float plus) {
    array x = random_array(type, 2, SHAPE(tokens, n), 2, 4);
    array w = random_array(plus > 0.0f ? CARRY_F32 : type, 1, &n, -1, 1), b = random_array(type, 1, &n, -1, 1);
    double *want = keep(malloc((size_t)x.count * sizeof *want));
    for (int parts = 0; parts < 4; parts++) {
        bool weighted = parts % 2 == 1, biased = parts / 2 == 1;
        for (int64_t t = 0; t < tokens; t++) {
            const double *row = x.v + t * n;
            double mean = 0.0, variance = 0.0;
            for (int64_t i = 0; i < n; i++) {
                mean += row[i] / (double)n;
            }
            for (int64_t i = 0; i < n; i++) {
                variance += (row[i] - mean) * (row[i] - mean) / (double)n;
            }
            for (int64_t i = 0; i < n; i++) {
                double value = (row[i] - mean) / sqrt(variance + 1e-2);
                value = weighted ? value * (w.v[i] + (double)plus) : value;
                want[t * n + i] = biased ? value + b.v[i] : value;
            }
        }
        array first;
        for (int c = 0; c < CTXS; c += ctxs_step()) {
            array from = copy_of(&x);
            array y = in_place ? from : poisoned(type, 2, SHAPE(tokens, n));
            assert_ok(ctxs[c], carry_layer_norm(ctxs[c], y.t, from.t, weighted ? w.t : absent, biased ? b.t : absent,
                                                plus, 1e-2f));
            first = c == 0 ? y : first;
            assert_same("layer norm", &y, &first);
        }
        assert_near("layer norm", &first, want, 0x1p-14);
    }
}

static void test_layer_norm_matches_float64(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < WIDTHS; k++) {
            check_layer_norm(types[i], k % 3 + 1, widths[k], k % 2 == 0, (float)(k / 2 % 2));
            (void)free_kept(NULL);
        }
        check_layer_norm(types[i], 211, 96, false, 1.0f);
        (void)free_kept(NULL);
    }
}

/* A mean of 1000 and a deviation of 1: squares minus the square of the mean would lose all but 4 bits. */
static void test_layer_norm_keeps_rows_far_from_zero(void **state) {
    (void)state;
    enum { N = 512 };
    array x = random_array(CARRY_F32, 2, SHAPE(1, N), 999, 1001), y = poisoned(CARRY_F32, 2, SHAPE(1, N));
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < N; i++) {
        mean += x.v[i] / N;
    }
    for (int i = 0; i < N; i++) {
        variance += (x.v[i] - mean) * (x.v[i] - mean) / N;
    }
    for (int i = 0; i < N; i++) {
        x.v[i] = (x.v[i] - mean) / sqrt(variance);
    }
    assert_ok(ctxs[0], carry_layer_norm(ctxs[0], y.t, x.t, absent, absent, 0.0f, 0.0f));
    assert_near("layer norm", &y, x.v, 1000 * 0x1p-20); /* the mean is off by a few 2^-24 of 1000 */
}

static void check_additions(carry_dtype type, int64_t tokens, int64_t n) {
    array x = random_array(type, 2, SHAPE(tokens, n), -1, 1), y = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    array g = random_array(tokens % 2 == 0 ? CARRY_F32 : type, 1, &n, -1, 1);
    array first[2];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array biased = copy_of(&x), gated = copy_of(&x);
        assert_ok(ctxs[c], carry_add_bias(ctxs[c], biased.t, g.t));
        assert_ok(ctxs[c], carry_gated_add(ctxs[c], gated.t, y.t, g.t));
        first[0] = c == 0 ? biased : first[0];
        first[1] = c == 0 ? gated : first[1];
        assert_same("bias", &biased, &first[0]);
        assert_same("gate", &gated, &first[1]);
    }
    double *want = keep(malloc((size_t)x.count * 2 * sizeof *want));
    for (int64_t i = 0; i < x.count; i++) {
        want[i] = x.v[i] + g.v[i % n];
        want[x.count + i] = x.v[i] + g.v[i % n] * y.v[i];
    }
    assert_near("bias", &first[0], want, 0x1p-23);
    assert_near("gate", &first[1], want + x.count, 0x1p-22);
}

static void test_bias_and_gate_match_float64(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < WIDTHS; k++) {
            check_additions(types[i], k % 4 + 1, widths[k]);
            (void)free_kept(NULL);
        }
        check_additions(types[i], 301, 65);
        (void)free_kept(NULL);
    }
}

/* A row split into parts whose sums are added has the norm of the whole row: relative, the sum is off by n/16 + 5
   roundings at worst, and values are below 4. */
static void check_spread_norm(carry_dtype type, int64_t tokens, int64_t n, int64_t parts, bool in_place) {
    const int64_t whole = n * parts;
    array x[3], w[3], sums[3];
    float *total = keep(calloc((size_t)tokens, sizeof *total));
    double *squares = keep(calloc((size_t)tokens, sizeof *squares));
    for (int64_t p = 0; p < parts; p++) {
        x[p] = random_array(type, 2, SHAPE(tokens, n), -2, 2);
        w[p] = random_array(type, 1, &n, -1, 1);
        sums[p] = poisoned(CARRY_F32, 1, &tokens);
        assert_ok(ctxs[p % CTXS], carry_row_squares(ctxs[p % CTXS], sums[p].t, x[p].t));
        for (int64_t i = 0; i < x[p].count; i++) {
            squares[i / n] += x[p].v[i] * x[p].v[i];
        }
        for (int64_t t = 0; t < tokens; t++) {
            total[t] += ((const float *)sums[p].t.data)[t];
        }
    }
    double *want = keep(malloc((size_t)(tokens * n) * sizeof *want));
    for (int64_t p = 0; p < parts; p++) {
        bool weighted = p != 1;
        array y = in_place ? x[p] : poisoned(type, 2, SHAPE(tokens, n));
        for (int64_t i = 0; i < x[p].count; i++) {
            want[i] = x[p].v[i] / sqrt(squares[i / n] / (double)whole + 1e-3) * (weighted ? w[p].v[i % n] : 1.0);
        }
        assert_ok(ctxs[p % CTXS], carry_rms_scale(ctxs[p % CTXS], y.t, x[p].t, carry_view_1d(total, CARRY_F32, tokens),
                                                  weighted ? w[p].t : absent, whole, 1e-3f));
        assert_near("norm", &y, want, 0x1p-15);
    }
}

static void test_norm_of_spread_rows_is_that_of_the_whole(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < WIDTHS; k++) {
            check_spread_norm(types[i], 5 - k % 4, widths[k], k % 3 + 1, k % 2 == 0);
            (void)free_kept(NULL);
        }
        check_spread_norm(types[i], 203, 128, 3, false);
        (void)free_kept(NULL);
    }
}

static void check_rotary(carry_dtype type, int64_t tokens, int64_t heads, int64_t size, bool in_place) {
    array x = random_array(type, 3, SHAPE(tokens, heads, size), -2, 2);
    array table = poisoned(CARRY_F32, 3, SHAPE(tokens, size / 2, 2));
    for (int64_t i = 0; i < table.count / 2; i++) {
        ((float *)table.t.data)[2 * i] = (float)cos(0.7 * (double)i);
        ((float *)table.t.data)[2 * i + 1] = (float)sin(0.7 * (double)i);
    }
    read_back(&table);
    double *want = keep(malloc((size_t)x.count * sizeof *want));
    array first;
    for (int back = 0; back < 2; back++) {
        for (int64_t i = 0; i < x.count / 2; i++) {
            int64_t t = 2 * i / (heads * size), p = i % (size / 2);
            double c = table.v[(t * size / 2 + p) * 2], s = table.v[(t * size / 2 + p) * 2 + 1] * (back ? -1.0 : 1.0);
            want[2 * i] = x.v[2 * i] * c - x.v[2 * i + 1] * s;
            want[2 * i + 1] = x.v[2 * i] * s + x.v[2 * i + 1] * c;
        }
        for (int c = 0; c < CTXS; c += ctxs_step()) {
            array from = copy_of(&x), y = in_place ? from : poisoned(type, 3, x.t.shape);
            assert_ok(ctxs[c], carry_rotary(ctxs[c], y.t, from.t, table.t, back == 1));
            first = c == 0 ? y : first;
            assert_same("rotary", &y, &first);
        }
        assert_near("rotary", &first, want, 0x1p-21);
    }
}

static void test_rotary_matches_float64_and_turns_back(void **state) {
    (void)state;
    static const int64_t sizes[] = {2, 6, 32, 128, 1026};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 5; k++) {
            check_rotary(types[i], k + 1, k % 3 + 1, sizes[k], k % 2 == 1);
            (void)free_kept(NULL);
        }
        check_rotary(types[i], 151, 5, 44, true);
        (void)free_kept(NULL);
    }
}

/* Weights of the keys of one query and head, in float64. */
static void weigh(double *p, const array *q, const array *k, const array *w, int64_t t, int64_t h, int64_t heads,
                  int64_t keys) {
    const int64_t n = q->t.shape[1], width = n / heads;
    double squares = 0.0, sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        squares += q->v[t * n + i] * q->v[t * n + i];
    }
    const double over = w != NULL ? 1.0 / sqrt(squares / (double)n + 1e-2) : 1.0;
    for (int64_t j = 0; j < keys; j++) {
        double score = j == keys - 1 ? 1.5 : 0.0;
        for (int64_t i = h * width; i < (h + 1) * width; i++) {
            score += q->v[t * n + i] * over * (w != NULL ? w->v[i] : 1.0) * k->v[j * n + i] / sqrt((double)width);
        }
        p[j] = exp(score);
        sum += p[j];
    }
    for (int64_t j = 0; j < keys; j++) {
        p[j] /= sum;
    }
}

static void test_key_weights_match_float64(void **state) {
    static const int64_t sizes[][5] = {{1, 1, 1, 1, 1}, {3, 2, 5, 4, 7}, {9, 6, 16, 21, 24}}; /* T, heads, D, keys, S */
    (void)state;
    for (int c = 0; c < 3 * 3 * 2; c++) {
        const int64_t *s = sizes[c % 3], n = s[1] * s[2];
        const carry_dtype type = types[c / 3 % 3];
        array q = random_array(type, 2, SHAPE(s[0], n), -1, 1), k = random_array(type, 2, SHAPE(s[4], n), -1, 1);
        array w = random_array(CARRY_F32, 1, &n, 0.5f, 1.5f), p = poisoned(type, 2, SHAPE(s[0], s[1] * s[4]));
        const bool normed = c / 9 == 1;
        double *want = keep(calloc((size_t)p.count, sizeof *want));
        for (int64_t i = 0; i < s[0] * s[1]; i++) {
            weigh(want + i * s[4], &q, &k, normed ? &w : NULL, i / s[1], i % s[1], s[1], s[3]);
        }
        assert_ok(ctxs[1], carry_key_weights(ctxs[1], &(carry_key_weights_args){.p = p.t,
                                                                                .q = q.t,
                                                                                .k = k.t,
                                                                                .w = normed ? w.t : absent,
                                                                                .heads = s[1],
                                                                                .keys = s[3],
                                                                                .last = 1.5f,
                                                                                .eps = 1e-2f}));
        assert_near("key weights", &p, want, 0x1p-20);
        (void)free_kept(NULL);
    }
    array q = random_array(CARRY_F32, 2, SHAPE(2, 6), -1, 1), p = poisoned(CARRY_F32, 2, SHAPE(2, 4));
    carry_key_weights_args args = {.p = p.t, .q = q.t, .k = q.t, .heads = 2, .keys = 3};
    assert_int_equal(carry_key_weights(ctxs[0], &args), CARRY_ERANGE); /* p has space for two keys, k has two */
    args.heads = 4;
    assert_int_equal(carry_key_weights(ctxs[0], &args), CARRY_ESHAPE);
}

/* Far from zero the sigmoid is exactly 0 or 1, and nothing overflows into NaN. */
static void test_gelu_stands_large_values(void **state) {
    (void)state;
    float x[] = {-1e30f, -200.0f, -20.0f, 20.0f, 200.0f, 1e30f}, y[6], dx[6], dy[6] = {1, 1, 1, 1, 1, 1};
    carry_tensor X = carry_view_1d(x, CARRY_F32, 6);
    assert_ok(ctxs[0], carry_activate(ctxs[0], carry_view_1d(y, CARRY_F32, 6), X, CARRY_GELU));
    assert_ok(ctxs[0], carry_activate_backward(ctxs[0], carry_view_1d(dx, CARRY_F32, 6),
                                               carry_view_1d(dy, CARRY_F32, 6), X, CARRY_GELU));
    for (int i = 0; i < 6; i++) {
        assert_true(y[i] == (i < 3 ? 0.0f : x[i]) && dx[i] == (i < 3 ? 0.0f : 1.0f));
    }
}

static void test_wrong_tensors_are_named(void **state) {
    (void)state;
    float memory[64];
    carry_ctx *ctx = ctxs[0];
    carry_tensor m = carry_view_2d(memory, CARRY_F32, 4, 6), v = carry_view_1d(memory, CARRY_F32, 5);
    carry_tensor four = carry_view_1d(memory, CARRY_F32, 4), heads = carry_view_3d(memory, CARRY_F32, 2, 1, 3);
    assert_refused(ctx, CARRY_ESHAPE, "w", carry_layer_norm(ctx, m, m, v, absent, 0.0f, 0.0f));
    assert_refused(ctx, CARRY_ESHAPE, "b", carry_layer_norm(ctx, m, m, absent, v, 0.0f, 0.0f));
    assert_refused(ctx, CARRY_ESHAPE, "b", carry_add_bias(ctx, m, v));
    assert_refused(ctx, CARRY_ESHAPE, "y", carry_gated_add(ctx, m, v, v));
    assert_refused(ctx, CARRY_ESHAPE, "g", carry_gated_add(ctx, m, m, v));
    assert_refused(ctx, CARRY_ESHAPE, "sums", carry_row_squares(ctx, v, m));
    assert_refused(ctx, CARRY_EARGUMENT, "whole", carry_rms_scale(ctx, m, m, four, absent, 5, 0.0f));
    assert_refused(ctx, CARRY_ESHAPE, "pairs", carry_rotary(ctx, heads, heads, m, false));
}

static void test_parts_of_random_numbers_that_are_no_columns_are_refused(void **state) {
    (void)state;
    carry_ctx *own = support_ctx(1, NULL, NULL);
    float numbers[12];
    carry_random_part_args args = {.out = carry_view_1d(numbers, CARRY_F32, 12), .columns = 5, .next = 8};
    assert_refused(own, CARRY_EARGUMENT, "12 elements", carry_random_part(own, &args));
    args.columns = 4;
    args.first = 5;
    assert_refused(own, CARRY_EARGUMENT, "columns 5 to 9", carry_random_part(own, &args));
    carry_ctx_free(own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_of_random_numbers_that_are_no_columns_are_refused),
        cmocka_unit_test_teardown(test_layer_norm_matches_float64, free_kept),
        cmocka_unit_test_teardown(test_layer_norm_keeps_rows_far_from_zero, free_kept),
        cmocka_unit_test_teardown(test_bias_and_gate_match_float64, free_kept),
        cmocka_unit_test_teardown(test_norm_of_spread_rows_is_that_of_the_whole, free_kept),
        cmocka_unit_test_teardown(test_rotary_matches_float64_and_turns_back, free_kept),
        cmocka_unit_test_teardown(test_key_weights_match_float64, free_kept),
        cmocka_unit_test(test_gelu_stands_large_values),
        cmocka_unit_test(test_wrong_tensors_are_named),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
