/* The operators of a mixture of experts on every device except the CPU, against the CPU's result: all types and odd
   sizes. Skipped without such a device. */
/* labels: gpu */
#include "backend_support.h"

#include "ops/experts.h"

/* Terms below 1, added in two orders: 2^-24 of a sum of k terms for each order, with slack for tf32 in three parts. */
static double sums(int64_t k) {
    return 8.0 * (double)(k + 8) * 0x1p-24;
}

/* An operand that a call fills. */
static operand numbers(int64_t count) {
    int64_t *none = keep(malloc((size_t)(count + 1) * sizeof *none));
    memset(none, 0xff, (size_t)count * sizeof *none);
    return integers(none, count);
}

static carry_tensor as_pairs(carry_tensor list, int64_t k) {
    return carry_reshape_2d(list, list.shape[0] / k, k);
}

static void one_route(carry_dtype type, carry_router router, bool biased, int64_t T, int64_t E, int64_t k) {
    operand logits = given(type, 2, SHAPE(T, E), -3, 3),
            bias = biased ? given(CARRY_F32, 1, &E, -0.3f, 0.3f) : missing();
    operand weights = wanted(CARRY_F32, 2, SHAPE(T, k)), dweights = given(CARRY_F32, 2, SHAPE(T, k), -1, 1);
    operand dlogits = wanted(type, 2, SHAPE(T, E)), chosen = numbers(T * k);
    operand pair = numbers(T * k), place = numbers(T * k), offsets = numbers(E + 1);
    EACH_SIDE {
        const carry_tensor list = as_pairs(chosen.t[side], k);
        CALL(carry_route(ctx, weights.t[side], list, logits.t[side], bias.t[side], &router));
        CALL(carry_route_backward(ctx, dlogits.t[side], dweights.t[side], logits.t[side], list, &router));
        CALL(carry_sort_experts(ctx, pair.t[side], place.t[side], offsets.t[side], list));
    }
    compare("chosen", &chosen, 0.0);
    compare("weights", &weights, 0x1p-20);
    compare("dlogits", &dlogits, 0x1p-18);
    compare("pair", &pair, 0.0);
    compare("place", &place, 0.0);
    compare("offsets", &offsets, 0.0);
    free_operands();
}

static void case_route(carry_dtype type) {
    one_route(type, (carry_router){.normalise = true, .scale = 1.0f}, false, 37, 8, 2);
    one_route(type, (carry_router){.scale = 1.0f}, false, 5, 67, 3);
    one_route(type, (carry_router){.normalise = true, .scale = 1.0f}, false, 1100, 256, 8);
    one_route(type, (carry_router){.score = CARRY_ROUTER_SIGMOID, .normalise = true, .scale = 2.5f}, true, 9, 40, 7);
    one_route(
        type,
        (carry_router){.score = CARRY_ROUTER_SIGMOID, .groups = 8, .kept_groups = 3, .normalise = true, .scale = 1.0f},
        true, 33, 72, 9);
    one_route(type, (carry_router){.score = CARRY_ROUTER_SIGMOID, .groups = 40, .kept_groups = 9, .scale = 1.0f}, true,
              3, 40, 9);
    one_route(type, (carry_router){.scale = 1.0f}, false, 2, 2000, 5);
}

/* With NaN as input, the experts are different and in range, the weights of the token are NaN, and the first such token
   is stored. */
static void case_route_nan(carry_dtype type) {
    const int64_t T = 64, E = 6, k = 4;
    operand logits = given(type, 2, SHAPE(T, E), -3, 3), weights = wanted(CARRY_F32, 2, SHAPE(T, k)),
            chosen = numbers(T * k), first = numbers(1);
    carry_router router = {.score = CARRY_ROUTER_SIGMOID, .groups = 3, .kept_groups = 2, .scale = 1.0f, .mark = 700};
    int64_t list[64 * 4], found = CARRY_ROUTER_NO_NAN;
    float w[64 * 4];
    for (int64_t t = 0; t < T; t++) {
        for (int64_t e = 0; e < E; e++) {
            if ((t >> e & 1) != 0) {
                memset((unsigned char *)logits.t[0].data + (size_t)(t * E + e) * carry_dtype_size(type), 0xff,
                       carry_dtype_size(type));
            }
        }
    }
    CALL(carry_copy(ctx, logits.t[1], logits.t[0]));
    CALL(carry_copy(ctx, first.t[1], carry_view_1d(&found, CARRY_I64, 1)));
    router.first_nan = first.t[1].data;
    CALL(carry_route(ctx, weights.t[1], as_pairs(chosen.t[1], k), logits.t[1], (carry_tensor){0}, &router));
    CALL(carry_copy(ctx, carry_view_1d(list, CARRY_I64, T * k), chosen.t[1]));
    CALL(carry_copy(ctx, carry_view_2d(w, CARRY_F32, T, k), weights.t[1]));
    CALL(carry_copy(ctx, carry_view_1d(&found, CARRY_I64, 1), first.t[1]));
    assert_int_equal(found, 701); /* token 0 has no NaN */
    for (int64_t t = 0; t < T; t++) {
        unsigned seen = 0;
        for (int64_t j = 0; j < k; j++) {
            assert_int_equal(isnan(w[t * k + j]) != 0, t != 0);
            assert_in_range(list[t * k + j], 0, E - 1);
            assert_false(seen >> list[t * k + j] & 1u);
            seen |= 1u << list[t * k + j];
        }
    }
}

/* Pairs of T tokens with k experts each, and their sorted order. */
typedef struct sorted {
    operand pair, place, offsets;
} sorted;

static sorted sort_some(int64_t T, int64_t k, int64_t E) {
    int64_t *list = keep(malloc((size_t)(T * k) * sizeof *list));
    for (int64_t i = 0; i < T * k; i++) {
        list[i] = (i * i + i / 3) % E % (E > 3 ? E - 1 : E); /* one expert has no rows */
    }
    operand chosen = integers(list, T * k);
    const sorted s = {.pair = numbers(T * k), .place = numbers(T * k), .offsets = numbers(E + 1)};
    EACH_SIDE CALL(
        carry_sort_experts(ctx, s.pair.t[side], s.place.t[side], s.offsets.t[side], as_pairs(chosen.t[side], k)));
    return s;
}

static void one_rows(carry_dtype type, int64_t T, int64_t k, int64_t n) {
    const sorted s = sort_some(T, k, 5);
    operand x = given(type, 2, SHAPE(T, n), -1, 1), rows = given(type, 2, SHAPE(T * k, n), -1, 1);
    operand weights = given(CARRY_F32, 2, SHAPE(T, k), -1, 1), dweights = wanted(CARRY_F32, 2, SHAPE(T, k));
    operand to = wanted(type, 2, SHAPE(T * k, n)), plain = wanted(type, 2, SHAPE(T * k, n));
    operand sum = given(type, 2, SHAPE(T, n), -1, 1), alone = wanted(type, 2, SHAPE(T, n));
    operand scale = given(type, 2, SHAPE(T, 1), -4, 4), dscale = wanted(type, 2, SHAPE(T, 1));
    operand gated = given(type, 2, SHAPE(T, n), -1, 1), dx = given(type, 2, SHAPE(T, n), -1, 1);
    EACH_SIDE {
        const carry_tensor none = {0};
        CALL(carry_gather_pairs(ctx, to.t[side], x.t[side], s.pair.t[side], weights.t[side]));
        CALL(carry_gather_pairs(ctx, plain.t[side], x.t[side], s.pair.t[side], none));
        CALL(carry_combine_pairs(ctx, sum.t[side], sum.t[side], rows.t[side], s.place.t[side], weights.t[side]));
        CALL(carry_combine_pairs(ctx, alone.t[side], none, rows.t[side], s.place.t[side], none));
        CALL(carry_combine_pairs_backward(ctx, dweights.t[side], x.t[side], rows.t[side], s.place.t[side]));
        CALL(carry_row_gate(ctx, gated.t[side], gated.t[side], x.t[side], scale.t[side]));
        CALL(carry_row_gate_backward(ctx, dx.t[side], dscale.t[side], dx.t[side], x.t[side], scale.t[side]));
    }
    compare("rows with weights", &to, 0x1p-24);
    compare("rows", &plain, 0.0);
    compare("sum with base", &sum, sums(k));
    compare("sum", &alone, sums(k));
    compare("dweights", &dweights, sums(n));
    compare("gated", &gated, 0x1p-21);
    compare("dx", &dx, 0x1p-22);
    compare("dscale", &dscale, sums(n));
    free_operands();
}

static void case_rows(carry_dtype type) {
    one_rows(type, 1, 1, 1);
    one_rows(type, 13, 3, 37);
    one_rows(type, 130, 2, 264);
}

/* y is a set of columns of a wider array on the GPU; W is the second half of each expert's rows. */
static void one_grouped(carry_dtype type, int64_t T, int64_t E, int64_t out, int64_t in) {
    const int64_t k = 2, rows = T * k;
    const sorted s = sort_some(T, k, E);
    operand x = given(type, 2, SHAPE(rows, in), -1, 1), W = given(type, 3, SHAPE(E, 2 * out, in), -1, 1);
    operand y = wanted(type, 2, SHAPE(rows, out)), dy = given(type, 2, SHAPE(rows, out), -1, 1);
    operand dx = given(type, 2, SHAPE(rows, in), -1, 1), dW = given(CARRY_F32, 3, SHAPE(E, out, in), -1, 1);
    EACH_SIDE {
        carry_tensor half = W.t[side];
        half.shape[1] = out;
        half.data = (unsigned char *)half.data + (size_t)(out * in) * carry_dtype_size(type);
        CALL(carry_grouped_linear(ctx, y.t[side], x.t[side], half, s.offsets.t[side]));
        CALL(carry_grouped_linear_backward(ctx, dx.t[side], dW.t[side], dy.t[side], x.t[side], half, s.offsets.t[side],
                                           T % 2 == 0));
    }
    compare("y", &y, sums(in));
    compare("dx", &dx, sums(out));
    compare("dW", &dW, sums(rows));
    free_operands();
}

static void case_grouped(carry_dtype type) {
    one_grouped(type, 1, 1, 1, 1);
    one_grouped(type, 19, 5, 7, 33);
    one_grouped(type, 40, 40, 24, 64);
    one_grouped(type, 300, 3, 130, 200); /* more rows of an expert than a tile of 128 */
    one_grouped(type, 500, 6, 136, 264); /* rows that are multiples of 16 bytes */
    one_grouped(type, 40, 40, 64, 128);
}

/* A sum of terms in float64, and the sum of their absolute values. */
typedef struct exact {
    double sum, size;
} exact;

/* Allows one rounding to the type, and f32 sums of n terms in any order where each addition truncates (as tensor cores
   do): n 2^-23 of the sum of absolute values. */
static void judge(const char *what, carry_dtype type, double have, exact want, int64_t n) {
    if (have == want.sum) { /* both may be 0, and then the bound is 0 */
        return;
    }
    const double before = (double)(n + 1) * 0x1p-23 * want.size;
    const double least = type == CARRY_F16 ? 0x1p-24 : 0.0;
    note(what, fabs(have - want.sum) / (rounding(type) * (fabs(want.sum) + before) + before + least));
}

static void add_term(exact *to, double term) {
    to->sum += term;
    to->size += fabs(term);
}

static array fetched(const operand *o) {
    array a = poisoned(o->t[0].dtype, o->t[0].rank, o->t[0].shape);
    CALL(carry_copy(ctx, a.t, o->t[1]));
    read_back(&a);
    return a;
}

/* Checks y, and gradients that are added to earlier ones, for experts with `counts` rows. */
static void one_exact(carry_dtype type, const int64_t *counts, int64_t E, int64_t out, int64_t in, bool adds) {
    int64_t *starts = keep(calloc((size_t)E + 1, sizeof *starts));
    for (int64_t e = 0; e < E; e++) {
        starts[e + 1] = starts[e] + counts[e];
    }
    const int64_t rows = starts[E];
    const array x = random_array(type, 2, SHAPE(rows, in), -1, 1), W = random_array(type, 3, SHAPE(E, out, in), -1, 1);
    const array dy = random_array(type, 2, SHAPE(rows, out), -1, 1), dx = random_array(type, 2, SHAPE(rows, in), -9, 9);
    const array dW = random_array(CARRY_F32, 3, SHAPE(E, out, in), -9, 9);
    operand xs = spread(x.t), Ws = spread(W.t), dys = spread(dy.t), dxs = spread(dx.t), dWs = spread(dW.t);
    operand ys = wanted(type, 2, SHAPE(rows, out)), offsets = integers(starts, E + 1);
    CALL(carry_grouped_linear(ctx, ys.t[1], xs.t[1], Ws.t[1], offsets.t[1]));
    CALL(carry_grouped_linear_backward(ctx, dxs.t[1], dWs.t[1], dys.t[1], xs.t[1], Ws.t[1], offsets.t[1], adds));
    const array y_got = fetched(&ys), dx_got = fetched(&dxs), dW_got = fetched(&dWs);
    for (int64_t e = 0; e < E; e++) {
        const double *w = W.v + e * out * in;
        for (int64_t r = starts[e]; r < starts[e + 1]; r++) {
            for (int64_t o = 0; o < out; o++) {
                exact want = {0};
                for (int64_t i = 0; i < in; i++) {
                    add_term(&want, x.v[r * in + i] * w[o * in + i]);
                }
                judge("y", type, y_got.v[r * out + o], want, in);
            }
            for (int64_t i = 0; i < in; i++) {
                exact want = {0};
                add_term(&want, adds ? dx.v[r * in + i] : 0.0);
                for (int64_t o = 0; o < out; o++) {
                    add_term(&want, dy.v[r * out + o] * w[o * in + i]);
                }
                judge("dx", type, dx_got.v[r * in + i], want, out + 1);
            }
        }
        for (int64_t at = 0; at < out * in; at++) {
            exact want = {0};
            add_term(&want, dW.v[e * out * in + at]);
            for (int64_t r = starts[e]; r < starts[e + 1]; r++) {
                add_term(&want, dy.v[r * out + at / in] * x.v[r * in + at % in]);
            }
            judge("dW", CARRY_F32, dW_got.v[e * out * in + at], want, counts[e] + 1);
        }
    }
    free_operands();
}

/* Experts without rows, with one, and around the sizes of tiles (64, 128 and 192 rows) and panels. */
static void case_exact(carry_dtype type) {
    static const int64_t counts[] = {0, 1, 63, 64, 65, 127, 128, 129, 0, 192, 193, 7, 2, 257};
    static const int64_t few[] = {1, 0, 0, 2, 1, 4};
    one_exact(type, counts, 14, 72, 136, true);
    one_exact(type, counts, 14, 136, 72, false);
    static const int64_t many[] = {300, 1, 0, 191, 193, 129}; /* more than 96 rows of an expert, on average */
    one_exact(type, many, 6, 264, 328, true);
    one_exact(type, many, 6, 520, 256, false);
    one_exact(type, few, 6, 264, 128, true);
    one_exact(type, few, 6, 128, 520, false);
}

static void test_experts_on_devices(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("route", case_route, 3);
        run_case("route of NaN", case_route_nan, 3);
        run_case("rows of experts", case_rows, 3);
        run_case("grouped_linear", case_grouped, 3);
        run_case("grouped_linear exactly", case_exact, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    (void)room;
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_experts_on_devices)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
