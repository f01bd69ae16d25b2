/* Gradients of layer norm, bias and gate: float64 formulas and differences, over odd sizes, all types and 1, 2, 3
   threads. */
#include "nn_support.h"

#include "carry/nn.h"
#include "ops/video.h"

typedef struct problem {
    array x, w, b, y, g;
    const double *dy;
    int64_t tokens, n;
    double plus, eps;
    bool weighted;
} problem;

/* The sum of dy times the layer norm, in float64. */
static double layer_loss(const void *given) {
    const problem *p = given;
    double sum = 0.0;
    for (int64_t t = 0; t < p->tokens; t++) {
        const double *x = p->x.v + t * p->n;
        double mean = 0.0;
        double variance = 0.0;
        for (int64_t i = 0; i < p->n; i++) {
            mean += x[i] / (double)p->n;
        }
        for (int64_t i = 0; i < p->n; i++) {
            variance += (x[i] - mean) * (x[i] - mean) / (double)p->n;
        }
        for (int64_t i = 0; i < p->n; i++) {
            const double factor = p->weighted ? p->w.v[i] + p->plus : 1.0;
            sum += p->dy[t * p->n + i] * ((x[i] - mean) / sqrt(variance + p->eps) * factor + p->b.v[i]);
        }
    }
    return sum;
}

/* dx is a difference of numbers below 2 dy / sqrt(eps + variance). Rows of length 1 have s = 1/sqrt(0.01) = 10, so a
   step is off by a few 2^-24 of 20. Sums over tokens and over a row add at most their length times 2^-24 of values
   below 4. */
static void check_layer_norm(carry_dtype type, int64_t tokens, int64_t n, bool weighted, bool accumulate) {
    problem p = {.x = random_array(type, 2, SHAPE(tokens, n), -2, 2),
                 .w = random_array(CARRY_F32, 1, &n, -1, 1),
                 .b = random_array(CARRY_F32, 1, &n, -1, 1),
                 .tokens = tokens,
                 .n = n,
                 .plus = 1.0,
                 .eps = 0.01,
                 .weighted = weighted};
    array dy = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    array before = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    const size_t bytes = carry_layer_norm_backward_workspace(tokens, n);
    void *workspace = keep(malloc(bytes + 1));
    array first[3];
    p.dy = dy.v;
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array dx = accumulate ? copy_of(&before) : poisoned(type, 2, SHAPE(tokens, n));
        array dw = poisoned(CARRY_F32, 1, &n);
        array db = poisoned(CARRY_F32, 1, &n);
        memset(dw.t.data, 0, (size_t)n * sizeof(float));
        memset(db.t.data, 0, (size_t)n * sizeof(float));
        memset(workspace, 255, bytes);
        assert_ok(ctxs[c], carry_layer_norm_backward(ctxs[c],
                                                     &(carry_layer_norm_backward_args){.dx = dx.t,
                                                                                       .dw = dw.t,
                                                                                       .db = db.t,
                                                                                       .dy = dy.t,
                                                                                       .x = p.x.t,
                                                                                       .w = weighted ? p.w.t : absent,
                                                                                       .plus = 1.0f,
                                                                                       .eps = 0.01f,
                                                                                       .accumulate = accumulate},
                                                     workspace, bytes));
        first[0] = c == 0 ? dx : first[0];
        first[1] = c == 0 ? dw : first[1];
        first[2] = c == 0 ? db : first[2];
        assert_same("dx", &dx, &first[0]);
        assert_same("dw", &dw, &first[1]);
        assert_same("db", &db, &first[2]);
    }
    const int64_t step = 1 + p.x.count / 40;
    const double bound = 0x1p-24 * 20.0 * (8.0 + sqrt((double)n));
    if (accumulate) { /* the same numbers accumulated: one more rounding, of sums below 24 */
        array alone = poisoned(type, 2, SHAPE(tokens, n));
        assert_ok(
            ctxs[0],
            carry_layer_norm_backward(
                ctxs[0],
                &(carry_layer_norm_backward_args){
                    .dx = alone.t, .dy = dy.t, .x = p.x.t, .w = weighted ? p.w.t : absent, .plus = 1.0f, .eps = 0.01f},
                NULL, 0));
        for (int64_t i = 0; i < before.count; i++) {
            before.v[i] += carry_tensor_at(&alone.t, i);
        }
        assert_near("dx added", &first[0], before.v, rounding(type) * 24.0);
    } else {
        assert_gradient("dx", &first[0], &p.x, step, layer_loss, &p, bound + 1e-7);
    }
    const double sums = 0x1p-24 * 4.0 * (double)tokens;
    if (weighted) {
        assert_gradient("dw", &first[1], &p.w, 1 + n / 20, layer_loss, &p, sums + 1e-7);
    }
    assert_gradient("db", &first[2], &p.b, 1 + n / 20, layer_loss, &p, sums + 1e-7);
}

static void test_layer_norm_matches_differences(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {3, 7}, {65, 48}, {130, 33}, {2, 1025}};
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            check_layer_norm(types[t], sizes[i][0], sizes[i][1], true, false);
            check_layer_norm(types[t], sizes[i][0], sizes[i][1], i % 2 == 0, true);
            check_layer_norm(types[t], sizes[i][0], sizes[i][1], false, false);
        }
    }
}

/* Sums of `tokens` products below 1 in f32: each addition rounds by 2^-24 of the sum so far, which is below their
   number. */
static void check_sums(carry_dtype type, int64_t tokens, int64_t n) {
    array dx = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    array y = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    array g = random_array(CARRY_F32, 1, &n, -1, 1);
    double *bias = keep(calloc((size_t)n, sizeof *bias));
    double *gate = keep(calloc((size_t)n, sizeof *gate));
    double *want = keep(calloc((size_t)(tokens * n), sizeof *want));
    for (int64_t i = 0; i < tokens * n; i++) {
        bias[i % n] += dx.v[i];
        gate[i % n] += dx.v[i] * y.v[i];
        want[i] = dx.v[i] * g.v[i % n];
    }
    array first[3];
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array db = poisoned(CARRY_F32, 1, &n);
        array dg = poisoned(CARRY_F32, 1, &n);
        array dy = poisoned(type, 2, SHAPE(tokens, n));
        for (int64_t i = 0; i < n; i++) {
            ((float *)db.t.data)[i] = ((float *)dg.t.data)[i] = 2.0f; /* results are added to the existing values */
            bias[i] += c == 0 ? 2.0 : 0.0;
            gate[i] += c == 0 ? 2.0 : 0.0;
        }
        assert_ok(ctxs[c], carry_add_bias_backward(ctxs[c], db.t, dx.t));
        assert_ok(ctxs[c], carry_gated_add_backward(ctxs[c], dy.t, dg.t, dx.t, y.t, g.t));
        first[0] = c == 0 ? db : first[0];
        first[1] = c == 0 ? dg : first[1];
        first[2] = c == 0 ? dy : first[2];
        assert_same("db", &db, &first[0]);
        assert_same("dg", &dg, &first[1]);
        assert_same("dy", &dy, &first[2]);
    }
    const double bound = 0x1p-24 * 2.0 * (double)tokens;
    assert_near("db", &first[0], bias, bound);
    assert_near("dg", &first[1], gate, bound);
    assert_near("dy", &first[2], want, 0x1p-23);
    array in_place = copy_of(&y);
    array dg = poisoned(CARRY_F32, 1, &n);
    memset(dg.t.data, 0, (size_t)n * sizeof(float));
    assert_ok(ctxs[1], carry_gated_add_backward(ctxs[1], in_place.t, dg.t, dx.t, in_place.t, g.t));
    assert_same("dy in place of y", &in_place, &first[2]);
}

static void test_bias_and_gate_match_float64(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {1, 31}, {2, 33}, {63, 32}, {65, 100}, {700, 65}, {3, 1025}};
    for (size_t t = 0; t < 3; t++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            check_sums(types[t], sizes[i][0], sizes[i][1]);
        }
    }
}

static void test_what_does_not_fit_is_named(void **state) {
    (void)state;
    const int64_t n = 5;
    array x = random_array(CARRY_F32, 2, SHAPE(3, 5), -1, 1);
    array y = random_array(CARRY_F32, 2, SHAPE(4, 5), -1, 1);
    array w = random_array(CARRY_F32, 1, &n, -1, 1);
    array low = random_array(CARRY_BF16, 1, &n, -1, 1);
    float workspace[64];
    assert_refused(ctxs[0], CARRY_ESHAPE, "dy",
                   carry_layer_norm_backward(ctxs[0],
                                             &(carry_layer_norm_backward_args){
                                                 .dx = x.t, .dy = y.t, .x = x.t, .w = w.t, .plus = 0, .eps = 1e-6f},
                                             NULL, 0));
    assert_refused(ctxs[0], CARRY_EDTYPE, "dw",
                   carry_layer_norm_backward(ctxs[0],
                                             &(carry_layer_norm_backward_args){
                                                 .dw = low.t, .dy = x.t, .x = x.t, .w = w.t, .plus = 0, .eps = 1e-6f},
                                             workspace, sizeof workspace));
    assert_refused(ctxs[0], CARRY_EWORKSPACE, "layer_norm_backward",
                   carry_layer_norm_backward(ctxs[0],
                                             &(carry_layer_norm_backward_args){
                                                 .dw = w.t, .dy = x.t, .x = x.t, .w = w.t, .plus = 0, .eps = 1e-6f},
                                             workspace, 39)); /* one block needs 2 rows of 5 floats */
    assert_refused(ctxs[0], CARRY_EDTYPE, "db", carry_add_bias_backward(ctxs[0], low.t, x.t));
    assert_refused(ctxs[0], CARRY_ESHAPE, "y", carry_gated_add_backward(ctxs[0], absent, w.t, x.t, y.t, w.t));
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_layer_norm_matches_differences),
        TEST(test_bias_and_gate_match_float64),
        TEST(test_what_does_not_fit_is_named),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
