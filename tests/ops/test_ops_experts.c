/* The operators of a mixture of experts against float64, over odd sizes, all types and 1, 2, 3 threads. */
#include "nn_support.h"

#include "carry/nn.h"
#include "ops/experts.h"

static int64_t *numbers(int64_t count) {
    int64_t *made = keep(malloc((size_t)(count + 1) * sizeof *made));
    memset(made, 0xff, (size_t)(count + 1) * sizeof *made);
    return made;
}

typedef struct problem {
    array logits;
    const double *dweights;
    const int64_t *chosen;
    carry_router router;
    int64_t tokens, experts, k;
} problem;

static double score_of(const problem *p, const double *logits, int64_t e) {
    double sum = 0.0;
    for (int64_t i = 0; i < p->experts; i++) {
        sum += exp(logits[i]);
    }
    return p->router.score == CARRY_ROUTER_SIGMOID ? sigmoid64(logits[e]) : exp(logits[e]) / sum;
}

/* The weight of choice j of a token whose experts are given. */
static double weight_of(const problem *p, int64_t t, int64_t j) {
    const double *logits = p->logits.v + t * p->experts;
    const int64_t *chosen = p->chosen + t * p->k;
    double sum = 0.0;
    for (int64_t i = 0; i < p->k; i++) {
        sum += score_of(p, logits, chosen[i]);
    }
    return (double)p->router.scale * score_of(p, logits, chosen[j]) / (p->router.normalise ? sum : 1.0);
}

static double loss(const void *given) {
    const problem *p = given;
    double sum = 0.0;
    for (int64_t i = 0; i < p->tokens * p->k; i++) {
        sum += p->dweights[i] * weight_of(p, i / p->k, i % p->k);
    }
    return sum;
}

/* The sum of the two largest scores c in the group of an expert. */
static double group_of(const problem *p, const double *c, int64_t e) {
    const int64_t each = p->experts / (p->router.groups > 1 ? p->router.groups : 1);
    double best[2] = {-INFINITY, -INFINITY};
    for (int64_t i = e / each * each; i < (e / each + 1) * each; i++) {
        best[1] = c[i] > best[0] ? best[0] : c[i] > best[1] ? c[i] : best[1];
        best[0] = c[i] > best[0] ? c[i] : best[0];
    }
    return best[0] + (each > 1 ? best[1] : 0.0);
}

/* An expert is chosen if fewer groups are better than its own than are kept, and fewer than k experts of the kept
   groups are better than it. */
static bool is_chosen(const problem *p, const double *c, int64_t e) {
    const int64_t groups = p->router.groups > 1 ? p->router.groups : 1;
    const int64_t kept_groups = p->router.groups > 1 ? p->router.kept_groups : 1;
    const int64_t each = p->experts / groups;
    bool remains[64];
    int64_t better = 0;
    for (int64_t g = 0; g < groups; g++) {
        int64_t above = 0;
        for (int64_t o = 0; o < groups; o++) {
            above += group_of(p, c, o * each) > group_of(p, c, g * each);
        }
        remains[g] = above < kept_groups;
    }
    for (int64_t i = 0; i < p->experts; i++) {
        better += remains[i / each] && c[i] > c[e];
    }
    return remains[e / each] && better < p->k;
}

static void check_route(carry_dtype type, carry_router router, bool biased, int64_t tokens, int64_t experts,
                        int64_t k) {
    problem p = {.logits = random_array(type, 2, SHAPE(tokens, experts), -3, 3),
                 .router = router,
                 .tokens = tokens,
                 .experts = experts,
                 .k = k};
    const array bias = random_array(CARRY_F32, 1, &experts, -0.3f, 0.3f);
    const array dweights = random_array(CARRY_F32, 2, SHAPE(tokens, k), -1, 1);
    const carry_tensor offset = biased ? bias.t : absent;
    array first[2];
    int64_t *chosen = numbers(tokens * k);
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array weights = poisoned(CARRY_F32, 2, SHAPE(tokens, k));
        array dlogits = poisoned(type, 2, SHAPE(tokens, experts));
        const carry_tensor list = carry_view_2d(chosen, CARRY_I64, tokens, k);
        assert_ok(ctxs[c], carry_route(ctxs[c], weights.t, list, p.logits.t, offset, &router));
        assert_ok(ctxs[c], carry_route_backward(ctxs[c], dlogits.t, dweights.t, p.logits.t, list, &router));
        first[0] = c == 0 ? weights : first[0];
        first[1] = c == 0 ? dlogits : first[1];
        assert_same("weights", &weights, &first[0]);
        assert_same("dlogits", &dlogits, &first[1]);
    }
    p.chosen = chosen;
    p.dweights = dweights.v;
    double *want = keep(malloc((size_t)(tokens * k) * sizeof *want));
    for (int64_t t = 0; t < tokens; t++) {
        double c[64];
        for (int64_t e = 0; e < experts; e++) {
            c[e] = score_of(&p, p.logits.v + t * experts, e) + (biased ? bias.v[e] : 0.0);
        }
        for (int64_t j = 0; j < k; j++) {
            const int64_t e = chosen[t * k + j];
            assert_in_range(e, 0, experts - 1);
            assert_true(is_chosen(&p, c, e) || type != CARRY_F32); /* 16-bit logits may be equal */
            assert_true(j == 0 || c[e] <= c[chosen[t * k + j - 1]]);
            want[t * k + j] = weight_of(&p, t, j);
        }
    }
    assert_near("weights", &first[0], want, 1e-6 * (double)router.scale);
    read_back(&first[1]);
    assert_gradient("dlogits", &first[1], &p.logits, 1, loss, &p, 1e-5);
}

static void test_routes_choose_the_largest_scores(void **state) {
    (void)state;
    const carry_router routers[] = {
        {.normalise = true, .scale = 1.0f},
        {.scale = 1.0f},
        {.score = CARRY_ROUTER_SIGMOID, .normalise = true, .scale = 2.5f},
        {.score = CARRY_ROUTER_SIGMOID, .groups = 4, .kept_groups = 2, .normalise = true, .scale = 1.5f},
        {.score = CARRY_ROUTER_SIGMOID, .groups = 12, .kept_groups = 7, .scale = 1.0f}};
    for (size_t r = 0; r < sizeof routers / sizeof *routers; r++) {
        for (int type = 0; type < 3; type++) {
            check_route(types[type], routers[r], r >= 2, 7, 12, 3);
        }
        check_route(CARRY_F32, routers[r], r >= 2, 1, 12, r == 3 ? 6 : r == 4 ? 7 : 12);
        (void)free_kept(NULL);
    }
    check_route(CARRY_F32, routers[0], false, 3, 1, 1);
}

static void test_nan_gives_different_experts_in_range(void **state) {
    (void)state;
    const carry_router routers[] = {
        {.normalise = true, .scale = 1.0f},
        {.score = CARRY_ROUTER_SIGMOID, .groups = 3, .kept_groups = 2, .normalise = true, .scale = 1.0f}};
    for (int r = 0; r < 2; r++) {
        for (unsigned bad = 0; bad < 64; bad++) { /* each of the six logits is a number or NaN */
            float logits[6];
            float weights[4];
            int64_t chosen[4] = {-1, -1, -1, -1};
            for (int e = 0; e < 6; e++) {
                logits[e] = (bad >> e & 1u) != 0 ? NAN : (float)(e * 5 % 7);
            }
            int64_t first = CARRY_ROUTER_NO_NAN;
            carry_router router = routers[r];
            router.first_nan = &first;
            router.mark = 700;
            assert_ok(ctxs[0], carry_route(ctxs[0], carry_view_2d(weights, CARRY_F32, 1, 4),
                                           carry_view_2d(chosen, CARRY_I64, 1, 4),
                                           carry_view_2d(logits, CARRY_F32, 1, 6), absent, &router));
            assert_int_equal(first, bad != 0 ? 700 : CARRY_ROUTER_NO_NAN);
            unsigned seen = 0;
            for (int i = 0; i < 4; i++) {
                assert_int_equal(isnan(weights[i]) != 0, bad != 0);
                assert_in_range(chosen[i], 0, 5);
                assert_false(seen >> chosen[i] & 1u);
                seen |= 1u << chosen[i];
            }
        }
    }
}

static void test_bad_routers_are_refused(void **state) {
    (void)state;
    float logits[12] = {0};
    float weights[8];
    int64_t chosen[8];
    const carry_router grouped = {.groups = 5, .kept_groups = 2, .scale = 1.0f};
    const carry_router plain = {.scale = 1.0f};
    const carry_tensor w = carry_view_2d(weights, CARRY_F32, 1, 8), c = carry_view_2d(chosen, CARRY_I64, 1, 8);
    assert_int_equal(carry_route(ctxs[0], w, c, carry_view_2d(logits, CARRY_F32, 1, 7), absent, &plain), CARRY_ESHAPE);
    assert_int_equal(carry_route(ctxs[0], w, c, carry_view_2d(logits, CARRY_F32, 1, 12), absent, &grouped),
                     CARRY_ESHAPE);
    chosen[3] = 7;
    int64_t pair[8], place[8], offsets[8] = {0};
    memset(chosen, 0, sizeof chosen);
    chosen[3] = 7;
    assert_int_equal(carry_sort_experts(ctxs[0], carry_view_1d(pair, CARRY_I64, 8), carry_view_1d(place, CARRY_I64, 8),
                                        carry_view_1d(offsets, CARRY_I64, 8), c),
                     CARRY_ERANGE);
}

typedef struct sorted {
    carry_tensor chosen, pair, place, offsets;
} sorted;

static sorted sort_some(int64_t tokens, int64_t k, int64_t experts) {
    int64_t *chosen = numbers(tokens * k);
    for (int64_t i = 0; i < tokens * k; i++) {
        chosen[i] = (i * i + i / 3) % experts % (experts > 3 ? experts - 1 : experts); /* one expert has no rows */
    }
    const sorted s = {.chosen = carry_view_2d(chosen, CARRY_I64, tokens, k),
                      .pair = carry_view_1d(numbers(tokens * k), CARRY_I64, tokens * k),
                      .place = carry_view_1d(numbers(tokens * k), CARRY_I64, tokens * k),
                      .offsets = carry_view_1d(numbers(experts + 1), CARRY_I64, experts + 1)};
    assert_ok(ctxs[0], carry_sort_experts(ctxs[0], s.pair, s.place, s.offsets, s.chosen));
    return s;
}

static void test_pairs_are_sorted_by_expert(void **state) {
    (void)state;
    for (int64_t tokens = 1; tokens < 40; tokens += 13) {
        const int64_t k = 3, experts = 9, count = tokens * k;
        const sorted s = sort_some(tokens, k, experts);
        const int64_t *chosen = s.chosen.data, *pair = s.pair.data, *place = s.place.data, *offsets = s.offsets.data;
        assert_true(offsets[0] == 0 && offsets[experts] == count);
        for (int64_t e = 0; e < experts; e++) {
            for (int64_t r = offsets[e]; r < offsets[e + 1]; r++) {
                assert_true(chosen[pair[r]] == e && place[pair[r]] == r && (r == offsets[e] || pair[r] > pair[r - 1]));
            }
        }
    }
}

static void check_rows(carry_dtype type, int64_t tokens, int64_t k, int64_t n) {
    const sorted s = sort_some(tokens, k, 5);
    const int64_t *pair = s.pair.data, *place = s.place.data;
    const array x = random_array(type, 2, SHAPE(tokens, n), -1, 1),
                rows = random_array(type, 2, SHAPE(tokens * k, n), -1, 1);
    const array weights = random_array(CARRY_F32, 2, SHAPE(tokens, k), -1, 1),
                base = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    double *gathered = keep(calloc((size_t)(tokens * k * n), sizeof(double)));
    double *sum = keep(calloc((size_t)(tokens * n), sizeof(double)));
    double *dweights = keep(calloc((size_t)(tokens * k), sizeof(double)));
    for (int64_t r = 0; r < tokens * k; r++) {
        for (int64_t i = 0; i < n; i++) {
            gathered[r * n + i] = weights.v[pair[r]] * x.v[pair[r] / k * n + i];
            sum[r / k * n + i] += weights.v[r] * rows.v[place[r] * n + i] + (r % k == 0 ? base.v[r / k * n + i] : 0.0);
            dweights[r] += x.v[r / k * n + i] * rows.v[place[r] * n + i];
        }
    }
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = poisoned(type, 2, SHAPE(tokens * k, n)), to = poisoned(type, 2, SHAPE(tokens, n));
        array dw = poisoned(CARRY_F32, 2, SHAPE(tokens, k));
        assert_ok(ctxs[c], carry_gather_pairs(ctxs[c], y.t, x.t, s.pair, weights.t));
        assert_ok(ctxs[c], carry_combine_pairs(ctxs[c], to.t, base.t, rows.t, s.place, weights.t));
        assert_ok(ctxs[c], carry_combine_pairs_backward(ctxs[c], dw.t, x.t, rows.t, s.place));
        read_back(&y);
        read_back(&to);
        read_back(&dw);
        assert_near("rows", &y, gathered, 1e-7);
        assert_near("sum", &to, sum, 1e-6 * (double)(k + 1));
        assert_near("dweights", &dw, dweights, 1e-6);
    }
}

static void check_gate(carry_dtype type, int64_t tokens, int64_t n) {
    const array x = random_array(type, 2, SHAPE(tokens, n), -1, 1), s = random_array(type, 2, SHAPE(tokens, 1), -4, 4);
    const array dy = random_array(type, 2, SHAPE(tokens, n), -1, 1);
    double *y64 = keep(calloc((size_t)(tokens * n), sizeof(double)));
    double *dx64 = keep(calloc((size_t)(tokens * n), sizeof(double)));
    double *ds64 = keep(calloc((size_t)tokens, sizeof(double)));
    for (int64_t i = 0; i < tokens * n; i++) {
        const double g = sigmoid64(s.v[i / n]);
        y64[i] = dy.v[i] + g * x.v[i];
        dx64[i] = g * dy.v[i];
        ds64[i / n] += g * (1.0 - g) * dy.v[i] * x.v[i];
    }
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = poisoned(type, 2, SHAPE(tokens, n)), dx = poisoned(type, 2, SHAPE(tokens, n));
        array ds = poisoned(type, 2, SHAPE(tokens, 1));
        assert_ok(ctxs[c], carry_row_gate(ctxs[c], y.t, dy.t, x.t, s.t));
        assert_ok(ctxs[c], carry_row_gate_backward(ctxs[c], dx.t, ds.t, dy.t, x.t, s.t));
        read_back(&y);
        read_back(&dx);
        read_back(&ds);
        assert_near("y", &y, y64, 1e-6);
        assert_near("dx", &dx, dx64, 1e-6);
        assert_near("ds", &ds, ds64, 1e-6 * (double)n);
    }
}

static void test_rows_are_gathered_and_combined(void **state) {
    (void)state;
    for (int type = 0; type < 3; type++) {
        check_rows(types[type], 1, 2, 1);
        check_rows(types[type], 13, 3, 37);
        check_rows(types[type], 5, 1, 1027);
        check_gate(types[type], 9, 1030);
        check_gate(types[type], 1, 3);
        (void)free_kept(NULL);
    }
}

/* The product of each expert has the bits of a linear layer on its rows. */
static void check_grouped(carry_dtype type, int64_t tokens, int64_t out, int64_t in) {
    enum { EXPERTS = 5, K = 2 };
    const int64_t rows = tokens * K;
    const sorted s = sort_some(tokens, K, EXPERTS);
    const int64_t *offsets = s.offsets.data;
    const array x = random_array(type, 2, SHAPE(rows, in), -1, 1), dy = random_array(type, 2, SHAPE(rows, out), -1, 1);
    const array W = random_array(type == CARRY_BF16 ? type : CARRY_F32, 3, SHAPE(EXPERTS, 2 * out, in), -1, 1);
    carry_tensor half = W.t;
    half.shape[1] = out; /* the second half of each expert's rows */
    half.data = (unsigned char *)W.t.data + (size_t)(out * in) * carry_dtype_size(W.t.dtype);
    for (int c = 0; c < CTXS; c += ctxs_step()) {
        array y = poisoned(type, 2, SHAPE(rows, out)), dx = poisoned(type, 2, SHAPE(rows, in));
        array dW = random_array(CARRY_F32, 3, SHAPE(EXPERTS, out, in), -1, 1);
        array y1 = poisoned(type, 2, SHAPE(rows, out)), dx1 = poisoned(type, 2, SHAPE(rows, in)), dW1 = copy_of(&dW);
        assert_ok(ctxs[c], carry_grouped_linear(ctxs[c], y.t, x.t, half, s.offsets));
        assert_ok(ctxs[c], carry_grouped_linear_backward(ctxs[c], dx.t, dW.t, dy.t, x.t, half, s.offsets, false));
        for (int64_t e = 0; e < EXPERTS; e++) {
            const int64_t first = offsets[e], count = offsets[e + 1] - first;
            carry_tensor one =
                carry_view_2d((unsigned char *)half.data + (size_t)(2 * e * out * in) * carry_dtype_size(W.t.dtype),
                              W.t.dtype, out, in);
            if (count > 0) {
                const carry_tensor from = carry_slice(x.t, first, count);
                const carry_tensor dW_one = carry_view_2d((float *)dW1.t.data + e * out * in, CARRY_F32, out, in);
                assert_ok(ctxs[c], carry_linear(ctxs[c], carry_slice(y1.t, first, count), from, one, false));
                assert_ok(ctxs[c], carry_linear_backward(ctxs[c], carry_slice(dx1.t, first, count), dW_one,
                                                         carry_slice(dy.t, first, count), from, one, false));
            }
        }
        assert_same("y", &y, &y1);
        assert_same("dx", &dx, &dx1);
        assert_same("dW", &dW, &dW1);
    }
    (void)free_kept(NULL);
}

static void test_grouped_products_equal_those_of_each_expert(void **state) {
    (void)state;
    for (int type = 0; type < 3; type++) {
        check_grouped(types[type], 1, 1, 1);
        check_grouped(types[type], 19, 7, 33);
        check_grouped(types[type], 150, 65, 130);
    }
    int64_t bad[] = {0, 3, 2};
    float x[8] = {0}, y[8], W[8] = {0};
    assert_int_equal(carry_grouped_linear(ctxs[0], carry_view_2d(y, CARRY_F32, 2, 2), carry_view_2d(x, CARRY_F32, 2, 2),
                                          carry_view_3d(W, CARRY_F32, 2, 2, 2), carry_view_1d(bad, CARRY_I64, 3)),
                     CARRY_ERANGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_routes_choose_the_largest_scores, free_kept),
        cmocka_unit_test_teardown(test_nan_gives_different_experts_in_range, free_kept),
        cmocka_unit_test_teardown(test_bad_routers_are_refused, free_kept),
        cmocka_unit_test_teardown(test_pairs_are_sorted_by_expert, free_kept),
        cmocka_unit_test_teardown(test_rows_are_gathered_and_combined, free_kept),
        cmocka_unit_test_teardown(test_grouped_products_equal_those_of_each_expert, free_kept),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
