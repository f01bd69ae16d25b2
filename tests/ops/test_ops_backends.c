/* Every operator of carry/nn.h on every device except the CPU, against the CPU's result: all types and odd sizes.
   Embeddings, losses and AdamW are in test_ops_backends_loss. Skipped without such a device. */
/* labels: gpu */
#include <math.h>

#include "backend_support.h"

#include "ops/conv2d.h"
#include "ops/table.h"

/* Rows shorter and longer than a warp's, and around the sizes of blocks. */
static const int64_t row_shapes[][2] = {{1, 1},    {3, 5},    {65, 129}, {257, 64},  {131, 32}, {37, 128},  {19, 200},
                                        {21, 768}, {9, 1024}, {5, 1025}, {67, 2050}, {5, 1032}, {70, 2560}, {3, 4096}};
#define ROW_SHAPES(s) for (size_t s = 0; s < sizeof row_shapes / sizeof *row_shapes; s++, free_operands())

/* Terms below 1, added in two orders: 2^-24 of a sum of k terms for each order, with slack for tf32 in three parts. */
static double sums(int64_t k) {
    return 8.0 * (double)(k + 8) * 0x1p-24;
}

static void case_convert(carry_dtype type) {
    for (int i = 0; i < 3; i++) {
        operand from = given(type, 1, SHAPE(1027), -3, 3), to = wanted(types[i], 1, SHAPE(1027));
        EACH_SIDE CALL(carry_convert(ctx, to.t[side], from.t[side]));
        compare("to", &to, 0.0);
    }
}

static void case_elementwise(carry_dtype type) {
    for (int op = CARRY_ADD; op <= CARRY_MULTIPLY; op++) {
        operand x = given(type, 1, SHAPE(1027), -3, 3), y = given(type, 1, SHAPE(1027), -3, 3);
        operand to = wanted(type, 1, SHAPE(1027));
        EACH_SIDE CALL(carry_elementwise(ctx, to.t[side], x.t[side], y.t[side], (carry_elementwise_op)op));
        compare("to", &to, 0.0);
    }
}

/* cuBLASLt's kernels for Hopper round a product to 16 bits before they add it to c: half a unit of a sum of k terms
   below 1, which is below 4 sqrt(k) / 3 except for one in 10^4. */
static double twice(carry_dtype type, bool accumulate, int64_t k) {
    return accumulate && type != CARRY_F32 ? rounding(type) * 2.0 * sqrt((double)k) : 0.0;
}

static void one_linear(carry_dtype type, carry_dtype weights, const int64_t *s, bool accumulate) {
    operand x = given(type, 2, SHAPE(s[0], s[1]), -1, 1), W = given(weights, 2, SHAPE(s[2], s[1]), -1, 1);
    operand dy = given(type, 2, SHAPE(s[0], s[2]), -1, 1), y = given(type, 2, SHAPE(s[0], s[2]), -1, 1);
    operand dx = given(type, 2, SHAPE(s[0], s[1]), -1, 1), dW = given(CARRY_F32, 2, SHAPE(s[2], s[1]), -1, 1);
    EACH_SIDE {
        CALL(carry_linear(ctx, y.t[side], x.t[side], W.t[side], accumulate));
        CALL(carry_linear_backward(ctx, dx.t[side], dW.t[side], dy.t[side], x.t[side], W.t[side], accumulate));
    }
    compare("y", &y, sums(s[1]) + twice(type, accumulate, s[1]));
    compare("dx", &dx, sums(s[2]) + twice(type, accumulate, s[2]));
    compare("dW", &dW, sums(s[0]));
    free_operands();
}

static void case_linear(carry_dtype type) {
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 37, 129},   {3, 5, 7},      {65, 129, 64},
                                        {257, 64, 33}, {300, 512, 96}, {128, 256, 384}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        one_linear(type, type, shapes[s], false);
        one_linear(type, type, shapes[s], true);
        one_linear(type, CARRY_F32, shapes[s], true);
    }
}

static void one_rms_norm(carry_dtype type, const int64_t *s, bool weighted, bool gated, bool accumulate) {
    const int64_t n = s[1];
    operand x = given(type, 2, s, -1, 1), dy = given(type, 2, s, -1, 1), y = wanted(type, 2, s);
    operand w = weighted ? given(accumulate ? CARRY_F32 : type, 1, &n, 0.5f, 1.5f) : missing();
    operand z = gated ? given(type, 2, s, -2, 2) : missing(), dz = gated ? wanted(type, 2, s) : missing();
    operand dx = given(type, 2, s, -1, 1), dw = given(CARRY_F32, 1, &n, -1, 1);
    const size_t bytes = carry_rms_norm_backward_workspace(s[0], n);
    EACH_SIDE {
        CALL(carry_rms_norm(ctx, y.t[side], x.t[side], w.t[side], z.t[side], 0.01f));
        CALL(carry_rms_norm_backward(ctx,
                                     &(carry_rms_norm_backward_args){.dx = dx.t[side],
                                                                     .dw = dw.t[side],
                                                                     .dz = dz.t[side],
                                                                     .dy = dy.t[side],
                                                                     .x = x.t[side],
                                                                     .w = w.t[side],
                                                                     .z = z.t[side],
                                                                     .eps = 0.01f,
                                                                     .accumulate = accumulate},
                                     room(side, bytes), bytes));
    }
    compare("y", &y, 0x1p-20);
    compare("dx", &dx, 0x1p-18);
    compare("dw", &dw, sums(s[0]) * 4.0);
    if (gated) {
        compare("dz", &dz, 0x1p-19);
    }
    free_operands();
}

static void case_rms_norm(carry_dtype type) {
    ROW_SHAPES(s) {
        one_rms_norm(type, row_shapes[s], true, true, false);
        one_rms_norm(type, row_shapes[s], true, false, true);
        one_rms_norm(type, row_shapes[s], false, false, false);
    }
}

static void case_layer_norm(carry_dtype type) {
    ROW_SHAPES(s) {
        const int64_t *shape = row_shapes[s], n = shape[1];
        const bool weighted = s % 3 != 1, accumulate = s % 2 == 0;
        operand x = given(type, 2, shape, -1, 1), dy = given(type, 2, shape, -1, 1), y = wanted(type, 2, shape);
        operand w = weighted ? given(CARRY_F32, 1, &n, -0.5f, 0.5f) : missing(), b = given(type, 1, &n, -1, 1);
        operand dx = given(type, 2, shape, -1, 1), dw = given(CARRY_F32, 1, &n, -1, 1),
                db = given(CARRY_F32, 1, &n, -1, 1);
        const size_t bytes = carry_layer_norm_backward_workspace(shape[0], n);
        EACH_SIDE {
            CALL(carry_layer_norm(ctx, y.t[side], x.t[side], w.t[side], b.t[side], 1.0f, 0.01f));
            CALL(carry_layer_norm_backward(ctx,
                                           &(carry_layer_norm_backward_args){.dx = dx.t[side],
                                                                             .dw = dw.t[side],
                                                                             .db = db.t[side],
                                                                             .dy = dy.t[side],
                                                                             .x = x.t[side],
                                                                             .w = w.t[side],
                                                                             .plus = 1.0f,
                                                                             .eps = 0.01f,
                                                                             .accumulate = accumulate},
                                           room(side, bytes), bytes));
        }
        compare("y", &y, 0x1p-19);
        compare("dx", &dx, 0x1p-17);
        compare("dw", &dw, sums(shape[0]) * 4.0);
        compare("db", &db, sums(shape[0]));
    }
}

static void case_activations(carry_dtype type) {
    for (int f = CARRY_NO_ACTIVATION; f <= CARRY_GELU; f++) {
        operand x = given(type, 2, SHAPE(33, 65), -6, 6), dy = given(type, 2, SHAPE(33, 65), -1, 1);
        operand y = wanted(type, 2, SHAPE(33, 65)), dx = wanted(type, 2, SHAPE(33, 65));
        EACH_SIDE {
            CALL(carry_activate(ctx, y.t[side], x.t[side], (carry_activation)f));
            CALL(carry_activate_backward(ctx, dx.t[side], dy.t[side], x.t[side], (carry_activation)f));
        }
        compare("y", &y, 0x1p-20);
        compare("dx", &dx, 0x1p-20);
        free_operands();
    }
}

static void case_swiglu(carry_dtype type) {
    operand gate = given(type, 2, SHAPE(33, 65), -4, 4), up = given(type, 2, SHAPE(33, 65), -1, 1);
    operand dy = given(type, 2, SHAPE(33, 65), -1, 1), y = wanted(type, 2, SHAPE(33, 65));
    operand dgate = wanted(type, 2, SHAPE(33, 65)), dup = wanted(type, 2, SHAPE(33, 65));
    EACH_SIDE {
        CALL(carry_swiglu(ctx, y.t[side], gate.t[side], up.t[side]));
        CALL(carry_swiglu_backward(ctx, dgate.t[side], dup.t[side], dy.t[side], gate.t[side], up.t[side]));
    }
    compare("y", &y, 0x1p-20);
    compare("dgate", &dgate, 0x1p-20);
    compare("dup", &dup, 0x1p-20);
}

static void case_bias(carry_dtype type) {
    ROW_SHAPES(s) {
        const int64_t *shape = row_shapes[s], n = shape[1];
        operand y = given(type, 2, shape, -1, 1), b = given(CARRY_F32, 1, &n, -1, 1),
                db = given(CARRY_F32, 1, &n, -1, 1);
        operand x = given(type, 2, shape, -1, 1), g = given(type, 1, &n, -1, 1), dg = given(CARRY_F32, 1, &n, -1, 1);
        operand dx = given(type, 2, shape, -1, 1), dy = wanted(type, 2, shape);
        EACH_SIDE {
            CALL(carry_add_bias(ctx, y.t[side], b.t[side]));
            CALL(carry_add_bias_backward(ctx, db.t[side], dx.t[side]));
            CALL(carry_gated_add_backward(ctx, dy.t[side], dg.t[side], dx.t[side], x.t[side], g.t[side]));
            CALL(carry_gated_add(ctx, x.t[side], dx.t[side], g.t[side]));
        }
        compare("add_bias", &y, 0x1p-22);
        compare("db", &db, sums(shape[0]));
        compare("gated_add", &x, 0x1p-22);
        compare("dg", &dg, sums(shape[0]));
        compare("dy", &dy, 0x1p-22);
    }
}

static void case_rms_scale(carry_dtype type) {
    ROW_SHAPES(s) {
        const int64_t *shape = row_shapes[s], n = shape[1];
        operand x = given(type, 2, shape, -1, 1), squares = wanted(CARRY_F32, 1, shape), y = wanted(type, 2, shape);
        operand w = given(type, 1, &n, 0.5f, 1.5f);
        EACH_SIDE {
            CALL(carry_row_squares(ctx, squares.t[side], x.t[side]));
            CALL(carry_rms_scale(ctx, y.t[side], x.t[side], squares.t[side], w.t[side], 3 * n, 0.01f));
        }
        compare("sums", &squares, sums(n));
        compare("y", &y, 0x1p-18);
    }
}

static void case_rotary(carry_dtype type) {
    for (int inverse = 0; inverse < 2; inverse++) {
        operand x = given(type, 3, SHAPE(17, 3, 66), -1, 1), table = given(CARRY_F32, 3, SHAPE(17, 33, 2), -1, 1);
        operand y = wanted(type, 3, SHAPE(17, 3, 66));
        EACH_SIDE CALL(carry_rotary(ctx, y.t[side], x.t[side], table.t[side], inverse));
        compare("y", &y, 0x1p-21);
    }
}

/* Sizes and offsets that are multiples of 8 elements, copied 16 bytes at a time; rotated in place too. */
static void one_rotary_wide(carry_dtype type, bool inverse) {
    operand x = given(type, 3, SHAPE(37, 3, 64), -1, 1), table = given(CARRY_F32, 3, SHAPE(37, 16, 2), -1, 1);
    operand y = wanted(type, 3, SHAPE(37, 3, 64)), z = given(type, 2, SHAPE(111, 80), -1, 1);
    EACH_SIDE {
        CALL(carry_rotary_halves(ctx, y.t[side], x.t[side], table.t[side], inverse));
        CALL(carry_rotary_halves(ctx, x.t[side], x.t[side], table.t[side], inverse));
        CALL(carry_copy_columns(ctx, z.t[side], 8, carry_reshape_2d(x.t[side], 111, 64), 16, 48));
    }
    compare("y", &y, 0x1p-21);
    compare("x", &x, 0x1p-21);
    compare("z", &z, 0x1p-21);
    free_operands();
}

static void case_rotary_halves(carry_dtype type) {
    one_rotary_wide(type, false);
    one_rotary_wide(type, true);
    for (int inverse = 0; inverse < 2; inverse++) {
        operand x = given(type, 3, SHAPE(17, 3, 66), -1, 1), table = given(CARRY_F32, 3, SHAPE(17, 9, 2), -1, 1);
        operand y = wanted(type, 3, SHAPE(17, 3, 66)), z = given(type, 2, SHAPE(51, 70), -1, 1);
        EACH_SIDE {
            CALL(carry_rotary_halves(ctx, y.t[side], x.t[side], table.t[side], inverse));
            CALL(carry_copy_columns(ctx, z.t[side], 3, carry_reshape_2d(x.t[side], 51, 66), 5, 60));
        }
        compare("y", &y, 0x1p-21);
        compare("z", &z, 0x1p-21);
    }
}

/* cuts: packed sequences, some of them empty or shorter than the taps. */
static void one_conv(carry_dtype type, int64_t batch, int64_t tokens, int64_t channels, int64_t width, bool before,
                     bool cuts, carry_activation f) {
    const int64_t borders[] = {0, 0, tokens / 3, tokens / 3 + 1 < tokens ? tokens / 3 + 1 : tokens, tokens};
    const int64_t *shape = SHAPE(batch, tokens, channels), *edge = SHAPE(batch, width - 1, channels);
    operand x = given(type, 3, shape, -1, 1), dy = given(type, 3, shape, -1, 1), y = wanted(type, 3, shape);
    operand w = given(cuts ? CARRY_F32 : type, 2, SHAPE(channels, width), -1, 1), dx = wanted(type, 3, shape);
    operand start = before ? given(CARRY_F32, 3, edge, -1, 1) : missing(), after = wanted(CARRY_F32, 3, edge);
    operand dw = given(CARRY_F32, 2, SHAPE(channels, width), -1, 1), dstart = wanted(CARRY_F32, 3, edge);
    operand cu = cuts ? integers(borders, 5) : missing();
    const size_t bytes = carry_conv_backward_workspace(batch, tokens, channels, width);
    EACH_SIDE {
        CALL(carry_conv(
            ctx, &(carry_conv_args){y.t[side], after.t[side], x.t[side], w.t[side], start.t[side], cu.t[side], f}));
        CALL(carry_conv_backward(ctx,
                                 &(carry_conv_backward_args){dx.t[side], dw.t[side], dstart.t[side], dy.t[side],
                                                             x.t[side], w.t[side], start.t[side], cu.t[side], f},
                                 room(side, bytes), bytes));
    }
    compare("y", &y, 0x1p-19);
    compare("after", &after, 0.0);
    compare("dx", &dx, 0x1p-18);
    compare("dbefore", &dstart, 0x1p-18);
    compare("dw", &dw, sums(batch * tokens) * 8.0);
    free_operands();
}

static void case_conv(carry_dtype type) {
    one_conv(type, 1, 1, 5, 4, true, false, CARRY_SILU);
    one_conv(type, 2, 2, 130, 4, true, false, CARRY_SILU);
    one_conv(type, 2, 67, 129, 4, false, false, CARRY_SILU);
    one_conv(type, 1, 130, 33, 4, true, true, CARRY_SILU);
    one_conv(type, 1, 3, 7, 4, true, true, CARRY_NO_ACTIVATION);
    one_conv(type, 3, 65, 5, 1, false, false, CARRY_NO_ACTIVATION);
    one_conv(type, 2, 40, 9, 2, true, false, CARRY_RELU);
    one_conv(type, 1, 97, 130, 16, true, true, CARRY_GELU);
    one_conv(type, 2, 9, 3, 7, true, false, CARRY_ELU);
    /* Whole vectors of channels, and pieces of 64 tokens. */
    one_conv(type, 2, 67, 136, 4, false, false, CARRY_SILU);
    one_conv(type, 1, 330, 24, 4, true, true, CARRY_SILU);
    one_conv(type, 1, 3, 8, 4, true, true, CARRY_NO_ACTIVATION);
    one_conv(type, 3, 1, 8, 3, true, false, CARRY_GELU);
    one_conv(type, 2, 257, 16, 2, true, false, CARRY_SILU);
    one_conv(type, 2, 65, 8, 1, false, false, CARRY_RELU);
}

static void one_conv2d(carry_conv2d_form form, int64_t height, int64_t width, int64_t in, int64_t past, int64_t out) {
    const int64_t side0 = form == CARRY_CONV2D_POINT ? 1 : 3, factor = form == CARRY_CONV2D_DOUBLE ? 2 : 1;
    const bool half = form == CARRY_CONV2D_HALF;
    const int64_t *shape =
        SHAPE((half ? (height + 1) / 2 : factor * height) + 2, (half ? (width + 1) / 2 : factor * width) + 2, out);
    const int64_t packed = carry_conv2d_packed(form, out, in + past);
    operand x = given(CARRY_F32, 3, SHAPE(height + 2, width + 2, in), -1, 1), y = given(CARRY_F32, 3, shape, -1, 1);
    operand before = past > 0 ? given(CARRY_F32, 3, SHAPE(height + 2, width + 2, past), -1, 1) : missing();
    operand taps = given(CARRY_F32, 4, SHAPE(out, in + past, side0, side0), -1, 1), w = wanted(CARRY_F32, 1, &packed);
    operand bias = given(CARRY_F32, 1, &out, -1, 1), add = past > 0 ? given(CARRY_F32, 3, shape, -1, 1) : missing();
    EACH_SIDE {
        CALL(carry_conv2d_pack(ctx, w.t[side], taps.t[side], form, in));
        CALL(carry_conv2d(ctx, &(carry_conv2d_args){.y = y.t[side],
                                                    .x = x.t[side],
                                                    .past = before.t[side],
                                                    .w = w.t[side],
                                                    .bias = bias.t[side],
                                                    .add = add.t[side],
                                                    .form = form,
                                                    .in = in + past,
                                                    .relu = past == 0}));
    }
    compare("y", &y, sums(9 * (in + past)));
    free_operands();
}

static void case_conv2d(carry_dtype type) {
    (void)type;
    for (int form = CARRY_CONV2D_SAME; form <= CARRY_CONV2D_POINT; form++) {
        one_conv2d((carry_conv2d_form)form, 1, 1, 1, 0, 1);
        one_conv2d((carry_conv2d_form)form, 5, 7, 3, 2, 5);
        one_conv2d((carry_conv2d_form)form, 9, 33, 16, 0, 70);
        one_conv2d((carry_conv2d_form)form, 17, 12, 24, 24, 64);
    }
}

static void test_every_operator_equals_the_cpu(void **state) {
    (void)state;
    static const struct {
        const char *name;
        backend_case function;
        int types;
    } cases[] = {{"convert", case_convert, 3},
                 {"elementwise", case_elementwise, 3},
                 {"linear", case_linear, 3},
                 {"rms_norm", case_rms_norm, 3},
                 {"layer_norm", case_layer_norm, 3},
                 {"activate", case_activations, 3},
                 {"swiglu", case_swiglu, 3},
                 {"bias, gated_add", case_bias, 3},
                 {"row_squares, rms_scale", case_rms_scale, 3},
                 {"rotary", case_rotary, 3},
                 {"rotary_halves, copy_columns", case_rotary_halves, 3},
                 {"conv", case_conv, 3},
                 {"conv2d", case_conv2d, 1}};
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            run_case(cases[i].name, cases[i].function, cases[i].types);
        }
    }
    assert_int_equal(failures, 0);
}

static void test_host_memory_is_refused_on_a_device(void **state) {
    (void)state;
    device_tested = 1;
    operand x = given(CARRY_F32, 2, SHAPE(3, 4), -1, 1), y = wanted(CARRY_F32, 2, SHAPE(3, 4));
    carry_tensor liar = x.t[0];
    liar.device = 1;
    assert_refused(ctx, CARRY_EDEVICE, "x is in host memory", carry_activate(ctx, y.t[1], liar, CARRY_SILU));
    assert_refused(ctx, CARRY_EDEVICE, "y is on device 0", carry_activate(ctx, y.t[0], x.t[1], CARRY_SILU));
    free_operands();
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operator_equals_the_cpu),
        cmocka_unit_test(test_host_memory_is_refused_on_a_device),
    };
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
