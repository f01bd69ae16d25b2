/* Embeddings, losses and AdamW on every device except the CPU, against the CPU's result: all types and odd sizes.
   Skipped without such a device. */
/* labels: gpu */
#include <math.h>

#include "backend_support.h"

#include "ops/dropout.h"
#include "ops/muon.h"

/* Terms below 1, added in two orders: 2^-24 of a sum of k terms for each order, with slack for tf32 in three parts. */
static double sums(int64_t k) {
    return 8.0 * (double)(k + 8) * 0x1p-24;
}

static operand some_ids(int64_t tokens, int64_t vocabulary, bool left_out) {
    int64_t ids[8192];
    for (int64_t t = 0; t < tokens; t++) {
        ids[t] = left_out && t % 5 == 3 ? -100 : t * t * 7919 % vocabulary;
    }
    return integers(ids, tokens);
}

static void case_embed(carry_dtype type) {
    static const int64_t shapes[][3] = {{1, 1, 1},       {33, 7, 5},      {257, 100, 65},
                                        {1030, 9, 1027}, {257, 600, 264}, {6000, 3, 8}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++, free_operands()) {
        const int64_t T = shapes[s][0], V = shapes[s][1], n = shapes[s][2];
        operand table = given(s % 2 == 0 ? CARRY_F32 : type, 2, SHAPE(V, n), -1, 1), ids = some_ids(T, V, false);
        operand y = wanted(type, 2, SHAPE(T, n)), dy = given(type, 2, SHAPE(T, n), -1, 1);
        operand dtable = given(CARRY_F32, 2, SHAPE(V, n), -1, 1);
        EACH_SIDE {
            CALL(carry_embed(ctx, y.t[side], table.t[side], ids.t[side]));
            CALL(carry_embed_backward(ctx, dtable.t[side], dy.t[side], ids.t[side]));
        }
        compare("y", &y, 0.0);
        compare("dtable", &dtable, 0.0);
    }
}

static void case_cross_entropy(carry_dtype type) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 2}, {7, 1023}, {5, 3001}, {1030, 17}, {19, 8196}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++, free_operands()) {
        const int64_t T = shapes[s][0];
        operand logits = given(type, 2, shapes[s], -5, 5), d = wanted(type, 2, shapes[s]);
        operand losses = wanted(CARRY_F32, 1, &T), targets = some_ids(T, shapes[s][1], true);
        double numbers[2] = {1.0, 2.0};
        operand total = spread(carry_view_1d(numbers, CARRY_F64, 2));
        EACH_SIDE {
            CALL(carry_cross_entropy(ctx, losses.t[side], d.t[side], logits.t[side], targets.t[side], 0.5f));
            CALL(carry_cross_entropy(ctx, losses.t[side], logits.t[side], logits.t[side], targets.t[side], 0.5f));
            CALL(carry_sum_losses(ctx, total.t[side], losses.t[side], targets.t[side], true));
        }
        compare("losses", &losses, 0x1p-19);
        compare("dlogits", &d, 0x1p-20);
        compare("dlogits in place", &logits, 0x1p-20);
        compare("total", &total, 0x1p-19 * (double)T);
    }
}

/* On a GPU the gradient of the logits is rounded to 16 bits if x and W are 16-bit: u of the sums of its magnitudes,
   which are 2 * 0.25 over a row and 0.25 (9 T / V + 2) over a column. logits: the largest rounding error of a logit;
   it changes a loss by up to twice as much, and a probability by twice its share. */
static void linear_cross_entropy_in(carry_dtype type, carry_dtype weights, int64_t T, int64_t n, int64_t V,
                                    size_t bytes, double logits) {
    operand x = given(type, 2, SHAPE(T, n), -1, 1), W = given(weights, 2, SHAPE(V, n), -1, 1);
    operand targets = some_ids(T, V, true), losses = wanted(CARRY_F32, 1, &T);
    operand dx = wanted(type, 2, SHAPE(T, n)), dW = given(CARRY_F32, 2, SHAPE(V, n), -1, 1);
    double u = type == weights && type != CARRY_F32 ? rounding(type) : 0.0;
    EACH_SIDE {
        CALL(carry_linear_cross_entropy(ctx,
                                        &(carry_linear_cross_entropy_args){.losses = losses.t[side],
                                                                           .dx = dx.t[side],
                                                                           .dW = dW.t[side],
                                                                           .x = x.t[side],
                                                                           .W = W.t[side],
                                                                           .targets = targets.t[side],
                                                                           .scale = 0.25f},
                                        room(side, bytes), bytes));
    }
    compare("losses", &losses, sums(n) + 0x1p-18 + 2.0 * logits);
    u += 2.0 * logits;
    compare("dx", &dx, sums(n) + u * 0.5 + sqrt((double)V) * 0x1p-24); /* V roundings, up or down */
    compare("dW", &dW, sums(n) + sums(T) + u * 0.25 * (9.0 * (double)T / (double)V + 2.0));
    free_operands();
}

static void one_linear_cross_entropy(carry_dtype type, carry_dtype weights, int64_t T, int64_t n, int64_t V) {
    linear_cross_entropy_in(type, weights, T, n, V, carry_linear_cross_entropy_workspace(T, n, V), 0.0);
}

static void case_linear_cross_entropy(carry_dtype type) {
    one_linear_cross_entropy(type, type, 1, 5, 1);
    one_linear_cross_entropy(type, type, 33, 17, 259);
    one_linear_cross_entropy(type, type, 70, 64, 1000);
    one_linear_cross_entropy(type, CARRY_F32, 33, 17, 259);
    one_linear_cross_entropy(type, type, 19, 32, 8200); /* rows in registers */
}

/* A GPU computes the logits of bf16 in f16 if that leaves room for more tokens at once. Logits are below 16, so that
   2^-8 is the most they are rounded by. 512 tokens at a time, then the other 488; all tokens at once; the widest row.
 */
static void case_half_logits(carry_dtype type) {
    static const int64_t shapes[][3] = {{1000, 8, 8200}, {7, 24, 9000}, {3, 8, 32768}};
    for (size_t s = 0; type == CARRY_BF16 && s < sizeof shapes / sizeof *shapes; s++) {
        const int64_t T = shapes[s][0], n = shapes[s][1], V = shapes[s][2];
        linear_cross_entropy_in(type, type, T, n, V, carry_linear_cross_entropy_workspace(T, n, V) + 65536, 0x1p-8);
    }
}

static void case_many_ids(carry_dtype type) {
    one_linear_cross_entropy(type, type, 213, 3, 20001); /* 208 tokens at a time, then the remaining 5 */
#ifndef CARRY_EMULATED                                   /* the shape above has two blocks too */
    if (type == CARRY_F32) {
        one_linear_cross_entropy(type, type, 500, 3, 8200); /* 256 at a time (496 fit), then the other 244 */
    }
#endif
}

static void case_adamw(carry_dtype type) {
    const int64_t n = 40003;
    operand w = given(CARRY_F32, 1, &n, -1, 1), m = given(CARRY_F32, 1, &n, -0.1f, 0.1f),
            v = given(CARRY_F32, 1, &n, 0, 1);
    operand g = given(CARRY_F32, 1, &n, -1, 1), low = wanted(type, 1, &n), factor = wanted(CARRY_F32, 1, SHAPE(1));
    double number = NAN;
    operand squares = spread(carry_view_1d(&number, CARRY_F64, 1));
    float fourth[CARRY_ADAMW_FACTORS];
    float none = 0.0f;
    assert_ok(ctx, carry_adamw_factors(ctx, fourth,
                                       &(carry_adamw){CARRY_INIT(carry_adamw), .rate = 1e-2, .b1 = 0.9, .b2 = 0.95,
                                                      .eps = 1e-8, .decay = 30, .factor = 1, .step = 4}));
    operand factors = spread(carry_view_1d(fourth, CARRY_F32, CARRY_ADAMW_FACTORS));
    operand bad = spread(carry_view_1d(&none, CARRY_F32, 1));
    int64_t ranges[] = {0, 4, 1000, 17000, 40000, n};
    operand spared = integers(ranges, 6);
    const size_t bytes = carry_sum_squares_workspace(n);
    EACH_SIDE {
        carry_adamw o = {
            CARRY_INIT(carry_adamw), .rate = 1e-2, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = 0.1, .factor = 1.0};
        o.clip = factor.t[side];
        CALL(carry_sum_squares(ctx, squares.t[side], g.t[side], false, room(side, bytes), bytes));
        CALL(carry_clip_factor(ctx, factor.t[side], squares.t[side], 1.0));
        CALL(carry_skip_guard(ctx, factor.t[side], bad.t[side], 2));
        for (o.step = 1; o.step <= 3; o.step++) {
            CALL(carry_adamw_step(ctx, w.t[side], m.t[side], v.t[side], low.t[side], g.t[side], &o));
        }
        o.factors = factors.t[side];
        o.spared = spared.t[side];
        CALL(carry_adamw_step(ctx, w.t[side], m.t[side], v.t[side], low.t[side], g.t[side], &o));
    }
    operand m16 = given(CARRY_BF16, 1, &n, -0.1f, 0.1f), v16 = given(CARRY_BF16, 1, &n, 0, 1);
    operand w16 = given(CARRY_F32, 1, &n, -1, 1), momentum = given(CARRY_BF16, 1, &n, -1, 1);
    operand u = wanted(CARRY_F32, 1, &n);
    float steps_taken = 3.0f;
    operand step = spread(carry_view_1d(&steps_taken, CARRY_F32, 1));
    EACH_SIDE {
        const carry_adamw o = {CARRY_INIT(carry_adamw), .rate = 1e-2, .b1 = 0.9, .b2 = 0.95, .eps = 1e-8, .decay = 0.1,
                               .factor = 1.0,           .step = 3};
        CALL(carry_adamw_step(ctx, w16.t[side], m16.t[side], v16.t[side], low.t[side], g.t[side], &o));
        CALL(carry_muon_momentum(ctx, u.t[side], momentum.t[side], g.t[side], (carry_tensor){0}, step.t[side], 0.9));
    }
    compare("w with bf16 means", &w16, 0x1p-20);
    compare("bf16 m", &m16, 0x1p-7); /* a last bit of the f32 number may change the direction of rounding */
    compare("bf16 v", &v16, 0x1p-7);
    compare("bf16 momentum", &momentum, 0x1p-7);
    compare("u of bf16 momentum", &u, 0x1p-22);
    compare("sum_squares", &squares, 1e-9);
    compare("clip_factor", &factor, 0x1p-26);
    compare("w", &w, 0x1p-20);
    compare("m", &m, 0x1p-22);
    compare("v", &v, 0x1p-22);
    compare("low", &low, 0x1p-20);
}

/* Muon's operators, with a matrix that is transposed and one that is not; and dropout, which drops the same elements on
   all devices. */
static void case_muon(carry_dtype type) {
    for (int turned = 0; turned < 2; turned++, free_operands()) {
        const int64_t shape[] = {37, 65};
        const int64_t other[] = {65, 37};
        const int64_t n = 37 * 65;
        operand g = given(CARRY_F32, 1, &n, -1, 1), m = given(CARRY_F32, 1, &n, -1, 1), u = wanted(CARRY_F32, 1, &n);
        operand matrix = given(CARRY_F32, 2, shape, -1, 1), x = wanted(type, 2, turned ? other : shape);
        operand z = given(type, 2, turned ? other : shape, -1, 1), y = wanted(type, 2, turned ? other : shape);
        operand w = given(CARRY_F32, 2, shape, -1, 1), low = wanted(type, 2, shape);
        operand dropped = wanted(type, 2, turned ? other : shape);
        double sum = 7.0;
        float half = 0.5f;
        float rate[] = {0.1f, 0.01f};
        operand squares = spread(carry_view_1d(&sum, CARRY_F64, 1)), clip = spread(carry_view_1d(&half, CARRY_F32, 1));
        operand rates = spread(carry_view_1d(rate, CARRY_F32, 2));
        EACH_SIDE {
            CALL(carry_muon_momentum(ctx, u.t[side], m.t[side], g.t[side], clip.t[side], (carry_tensor){0}, 0.9));
            CALL(carry_muon_normalise(ctx, x.t[side], matrix.t[side], squares.t[side], turned == 1));
            CALL(carry_blend(ctx, y.t[side], x.t[side], z.t[side], 1.5, -0.5));
            CALL(carry_muon_update(ctx, w.t[side], low.t[side], z.t[side], rates.t[side], clip.t[side], 2.0,
                                   turned == 1));
            CALL(carry_dropout(ctx, dropped.t[side], z.t[side], 0.25, 11, 5));
        }
        compare("u", &u, 0x1p-22);
        compare("m", &m, 0x1p-22);
        compare("x", &x, 0x1p-22);
        compare("blend", &y, 0x1p-20);
        compare("w", &w, 0x1p-22);
        compare("low", &low, 0x1p-20);
        compare("dropout", &dropped, 0x1p-22);
    }
}

/* An id or target outside the table is not read: its result is NaN, and its neighbours are not affected. */
static void case_bad_ids(carry_dtype type) {
    const int64_t bad[] = {0, 5, -1, 4, INT64_MIN, INT64_MAX};
    operand ids = integers(bad, 6), table = given(type, 2, SHAPE(5, 3), 1, 2), y = wanted(type, 2, SHAPE(6, 3));
    operand losses = wanted(CARRY_F32, 1, SHAPE(6)), logits = given(type, 2, SHAPE(6, 5), 1, 2);
    operand dtable = given(CARRY_F32, 2, SHAPE(5, 3), 1, 2);
    array rows = poisoned(type, 2, SHAPE(6, 3)), loss = poisoned(CARRY_F32, 1, SHAPE(6));
    CALL(carry_embed(ctx, y.t[1], table.t[1], ids.t[1]));
    CALL(carry_embed_backward(ctx, dtable.t[1], y.t[1], ids.t[1]));
    CALL(carry_cross_entropy(ctx, losses.t[1], absent, logits.t[1], ids.t[1], 1.0f));
    CALL(carry_copy(ctx, rows.t, y.t[1]));
    CALL(carry_copy(ctx, loss.t, losses.t[1]));
    for (int64_t t = 0; t < 6; t++) {
        const bool known = bad[t] >= 0 && bad[t] < 5;
        note("row", isnan(carry_tensor_at(&rows.t, 3 * t)) == known ? INFINITY : 0.0);
        note("loss", isnan(carry_tensor_at(&loss.t, t)) == known ? INFINITY : 0.0);
    }
}

static void test_losses_and_adamw_equal_the_cpu(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("embed", case_embed, 3);
        run_case("cross_entropy", case_cross_entropy, 3);
        run_case("linear_cross_entropy", case_linear_cross_entropy, 3);
        run_case("many ids", case_many_ids, 2); /* seconds each on the emulator; f16 adds nothing here */
        run_case("half logits", case_half_logits, 2);
        run_case("adamw, clip, squares", case_adamw, 3);
        run_case("muon, dropout", case_muon, 3);
        run_case("ids out of range", case_bad_ids, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    (void)missing;
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_losses_and_adamw_equal_the_cpu)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
