/* Convolutions of bf16 pictures, pictures from and to planes and bytes, and the norm with SiLU, on every device except
   the CPU, against the CPU's result in f32: sizes that go through the fast kernels and sizes that do not. Skipped
   without such a device. */
/* labels: gpu */
#include "backend_support.h"

#include "ops/conv2d.h"
#include "ops/picture.h"

static operand widened(const operand *from) {
    operand to = wanted(CARRY_F32, from->t[0].rank, from->t[0].shape);
    EACH_SIDE CALL(carry_convert(ctx, to.t[side], from->t[side]));
    return to;
}

static int64_t side_of(carry_conv2d_form form, int64_t side) {
    return form == CARRY_CONV2D_HALF     ? (side + 1) / 2
           : form == CARRY_CONV2D_AHEAD  ? side / 2
           : form == CARRY_CONV2D_DOUBLE ? 2 * side
                                         : side;
}

/* The borders are random too: windows see them as they are, and those of y stay unchanged. */
static void one_conv2d(carry_conv2d_form form, int64_t height, int64_t width, int64_t in, int inputs, int64_t out) {
    const int64_t taps_side = form == CARRY_CONV2D_POINT ? 1 : 3, all = in * inputs;
    const int64_t *picture = SHAPE(height + 2, width + 2, in);
    const int64_t *shape = SHAPE(side_of(form, height) + 2, side_of(form, width) + 2, out);
    const int64_t packed = carry_conv2d_packed(form, out, all);
    operand from[3], wide[3], taps16 = given(CARRY_BF16, 4, SHAPE(out, all, taps_side, taps_side), -1, 1);
    for (int i = 0; i < 3; i++) {
        from[i] = i < inputs ? given(CARRY_BF16, 3, picture, -1, 1) : missing();
        wide[i] = i < inputs ? widened(&from[i]) : missing();
    }
    operand y = given(CARRY_BF16, 3, shape, -1, 1), add = given(CARRY_BF16, 3, shape, -1, 1);
    operand y32 = widened(&y), add32 = widened(&add), taps = widened(&taps16);
    operand w = wanted(CARRY_BF16, 1, &packed), w32 = wanted(CARRY_F32, 1, &packed);
    operand bias = given(CARRY_F32, 1, &out, -1, 1);
    EACH_SIDE {
        const operand *x = side == 0 ? wide : from;
        const carry_tensor weights = side == 0 ? w32.t[0] : w.t[side];
        const carry_tensor to = side == 0 ? y32.t[0] : y.t[side];
        CALL(carry_conv2d_pack(ctx, weights, taps.t[side], form, in));
        CALL(carry_conv2d(ctx, &(carry_conv2d_args){.y = to,
                                                    .x = x[0].t[side],
                                                    .past = x[1].t[side],
                                                    .older = x[2].t[side],
                                                    .w = weights,
                                                    .bias = bias.t[side],
                                                    .add = inputs > 1 ? (side == 0 ? add32.t[0] : add.t[side]) : absent,
                                                    .form = form,
                                                    .in = all,
                                                    .relu = inputs == 1}));
    }
    CALL(carry_convert(ctx, y.t[0], y32.t[0]));
    /* Products are exact and sums are f32. Weights of a doubled picture are sums of four weights, rounded by 2^-8:
       there are 4 in of them, with errors of either sign. */
    const double doubled = form == CARRY_CONV2D_DOUBLE ? 0x1p-8 * 4.0 * sqrt(4.0 * (double)all) : 0.0;
    compare("y", &y, 16.0 * (double)(9 * all + 8) * 0x1p-24 + doubled);
    free_operands();
}

static void case_conv2d(carry_dtype type) {
    (void)type;
    for (int form = CARRY_CONV2D_SAME; form <= CARRY_CONV2D_AHEAD; form++) {
        const carry_conv2d_form f = (carry_conv2d_form)form;
        one_conv2d(f, 2, 2, 1, 1, 1);
        one_conv2d(f, 5, 7, 3, 2, 5);
        one_conv2d(f, 9, 17, 16, 3, 40);
        one_conv2d(f, 17, 33, 32, 1, 64);
        one_conv2d(f, 7, 21, 64, 2, 64);
        one_conv2d(f, 18, 15, 64, 1, 3);
        one_conv2d(f, 19, 30, 96, 3, 96);
        one_conv2d(f, 8, 16, 96, 1, 3);
        one_conv2d(f, 9, 18, 128, 2, 130);
        one_conv2d(f, 17, 16, 192, 1, 96);
        one_conv2d(f, 10, 20, 192, 1, 384);
    }
    if (getenv("CARRY_CASE") != NULL) { /* large enough for a real GPU: slow on the emulated one */
        one_conv2d(CARRY_CONV2D_SAME, 240, 416, 192, 3, 192);
        one_conv2d(CARRY_CONV2D_SAME, 120, 208, 384, 3, 384);
        one_conv2d(CARRY_CONV2D_DOUBLE, 120, 208, 384, 1, 192);
    }
}

static void case_pictures(carry_dtype type) {
    static const int64_t shapes[][3] = {{1, 1, 1}, {5, 7, 3}, {6, 33, 16}};
    const carry_picture_map maps[] = {
        {.scale = 0.5f, .shift = 0.5f, .clamped = true}, {.tanh3 = true}, {.scale = 1.0f}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++, free_operands()) {
        const int64_t height = shapes[s][0], width = shapes[s][1], channels = shapes[s][2];
        const carry_dtype of = type == CARRY_F16 ? CARRY_F32 : type; /* pictures are f32 or bf16 */
        operand planes = given(type, 3, SHAPE(channels, height, width), -2, 2);
        operand picture = given(of, 3, SHAPE(height + 2, width + 2, channels), -2, 2);
        operand back = wanted(type, 3, SHAPE(channels, height, width));
        for (int m = 0; m < 3; m++) {
            EACH_SIDE {
                CALL(carry_picture_read(ctx, picture.t[side], planes.t[side], maps[m]));
                CALL(carry_picture_write(ctx, back.t[side], picture.t[side], maps[m]));
            }
            compare("picture", &picture, 0x1p-20);
            compare("planes", &back, 0x1p-20 + 2.0 * rounding(of));
        }
        const int64_t halves = (height * width * channels + 1) / 2;
        operand bytes = given(CARRY_BF16, 1, &halves, -1, 1);
        EACH_SIDE CALL(carry_picture_bytes(ctx, bytes.t[side].data, picture.t[side], maps[0]));
        compare("bytes", &bytes, 0.0);
    }
}

static void case_norm_silu(carry_dtype type) {
    static const int64_t shapes[][2] = {{1, 1}, {3, 8}, {65, 96}, {37, 192}, {21, 384}, {9, 1000}, {5, 1032}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++, free_operands()) {
        operand x = given(type, 2, shapes[s], -3, 3), y = wanted(type, 2, shapes[s]);
        operand w = given(CARRY_F32, 1, &shapes[s][1], -2, 2);
        EACH_SIDE CALL(carry_rms_norm_silu(ctx, y.t[side], x.t[side], w.t[side], 1e-30f));
        compare("y", &y, 0x1p-18 + 24.0 * rounding(type)); /* the CPU also rounds before SiLU; rows are below 6 */
    }
}

static void test_operators_of_pictures_equal_the_cpu(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("conv2d in bf16", case_conv2d, 1);
        run_case("pictures", case_pictures, 3);
        run_case("rms_norm_silu", case_norm_silu, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    (void)integers;
    (void)room;
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_operators_of_pictures_equal_the_cpu)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
