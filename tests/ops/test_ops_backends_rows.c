/* Operators whose rows may be columns of one wider array on a GPU (merged_linear, conv, rms_norm's gate, swiglu), on
   every device except the CPU, against the CPU's result for packed rows. The other columns must stay unchanged. Skipped
   without such a device. */
/* labels: gpu */
#include "backend_support.h"

static double sums(int64_t k) {
    return 8.0 * (double)(k + 8) * 0x1p-24;
}

/* Columns first .. first + width - 1 of a tensor [T, row]. */
static carry_tensor columns(carry_tensor wide, int64_t first, int64_t width) {
    wide.data = (char *)wide.data + (size_t)first * carry_dtype_size(wide.dtype);
    wide.shape[1] = width;
    return wide;
}

/* Copies x into columns of the wide array: the CPU's result, or an input of the GPU. */
static void put(operand *wide, int side, int64_t first, const operand *x) {
    CALL(carry_copy_columns(ctx, wide->t[side], first, x->t[side], 0, x->t[side].shape[1]));
}

/* Three maps whose outputs are adjacent columns; with `apart` there is a gap before the last. Weights are in one
   array. */
static void one_merged(carry_dtype type, int64_t T, int64_t in, const int64_t out[3], int64_t row, bool apart) {
    const int64_t at[3] = {1, 1 + out[0], 1 + out[0] + out[1] + (apart ? 1 : 0)}, all = out[0] + out[1] + out[2];
    operand x = given(type, 2, SHAPE(T, in), -1, 1), W = given(type, 2, SHAPE(all, in), -1, 1);
    operand y[3], wide = given(type, 2, SHAPE(T, row), -1, 1), dx = given(type, 2, SHAPE(T, in), -1, 1);
    operand dW = given(CARRY_F32, 2, SHAPE(all, in), -1, 1);
    for (int i = 0; i < 3; i++) {
        y[i] = wanted(type, 2, SHAPE(T, out[i]));
    }
    EACH_SIDE {
        carry_merged_linear_args args = {.x = x.t[side], .maps = 3};
        carry_merged_linear_backward_args back = {.dx = dx.t[side], .x = x.t[side], .maps = 3};
        for (int i = 0, first = 0; i < 3; first += (int)out[i++]) {
            args.y[i] = back.dy[i] = side == 0 ? y[i].t[0] : columns(wide.t[side], at[i], out[i]);
            args.W[i] = back.W[i] = carry_slice(W.t[side], first, out[i]);
            back.dW[i] = carry_slice(dW.t[side], first, out[i]);
        }
        CALL(carry_merged_linear(ctx, &args));
        for (int i = 0; side == 0 && i < 3; i++) {
            put(&wide, 0, at[i], &y[i]);
        }
        CALL(carry_merged_linear_backward(ctx, &back));
    }
    compare("y in wide", &wide, sums(in));
    /* dy is y, which each side has rounded for itself: of size sqrt(in), sometimes a unit apart. */
    const double size = 2.0 * sqrt((double)in);
    compare("dx", &dx, (sums(all) + 3.0 * rounding(type) * sqrt((double)all)) * size + 3.0 * rounding(type) * size);
    compare("dW", &dW, (sums(T) + rounding(type) * sqrt((double)T)) * size);
    free_operands();
}

static void case_merged_linear(carry_dtype type) {
    one_merged(type, 33, 16, (const int64_t[]){5, 8, 3}, 24, false);
    one_merged(type, 33, 16, (const int64_t[]){5, 8, 3}, 24, true);
    one_merged(type, 1, 64, (const int64_t[]){7, 1, 9}, 19, false);
    one_merged(type, 130, 128, (const int64_t[]){128, 64, 8}, 208, false);
}

static void case_linear_add(carry_dtype type) {
    for (int apart = 0; apart < 2; apart++, free_operands()) {
        operand x = given(type, 2, SHAPE(65, 72), -1, 1), W = given(type, 2, SHAPE(40, 72), -1, 1);
        operand base = given(type, 2, SHAPE(65, 40), -1, 1), y = wanted(type, 2, SHAPE(65, 40));
        EACH_SIDE CALL(carry_linear_add(ctx, apart ? y.t[side] : base.t[side], x.t[side], W.t[side], base.t[side]));
        compare("y", apart ? &y : &base, sums(72) + 2.0 * rounding(type) * sqrt(72.0));
    }
}

/* n is a multiple of a vector or not; by the plain kernel and the wide one. */
static void one_conv(carry_dtype type, int64_t B, int64_t T, int64_t C, int64_t row, int64_t at) {
    operand x = given(type, 2, SHAPE(B * T, C), -1, 1), w = given(CARRY_F32, 2, SHAPE(C, 4), -1, 1);
    operand y = wanted(type, 3, SHAPE(B, T, C)), dy = given(type, 3, SHAPE(B, T, C), -1, 1);
    operand dx = wanted(type, 2, SHAPE(B * T, C)), dw = given(CARRY_F32, 2, SHAPE(C, 4), -1, 1);
    operand wide = given(type, 2, SHAPE(B * T, row), -1, 1), dwide = given(type, 2, SHAPE(B * T, row), -1, 1);
    const size_t bytes = carry_conv_backward_workspace(B, T, C, 4);
    EACH_SIDE {
        carry_tensor from = carry_reshape_3d(x.t[side], B, T, C), to = carry_reshape_3d(dx.t[side], B, T, C);
        put(&wide, side, at, &x);
        if (side > 0) {
            from.data = columns(wide.t[side], at, C).data;
            to.data = columns(dwide.t[side], at, C).data;
            from.stride[1] = to.stride[1] = row;
            from.stride[0] = to.stride[0] = T * row;
        }
        CALL(carry_conv(ctx, &(carry_conv_args){.y = y.t[side], .x = from, .w = w.t[side], .activation = CARRY_SILU}));
        CALL(carry_conv_backward(
            ctx,
            &(carry_conv_backward_args){
                .dx = to, .dw = dw.t[side], .dy = dy.t[side], .x = from, .w = w.t[side], .activation = CARRY_SILU},
            room(side, bytes), bytes));
        if (side == 0) {
            put(&dwide, 0, at, &dx);
        }
    }
    compare("y", &y, 0x1p-18);
    compare("dx in wide", &dwide, 0x1p-17);
    compare("dw", &dw, sums(B * T) * 8.0);
    free_operands();
}

static void case_conv(carry_dtype type) {
    one_conv(type, 2, 37, 16, 48, 8);
    one_conv(type, 1, 70, 256, 784, 512);
    one_conv(type, 2, 19, 5, 13, 3);
}

static void one_gate(carry_dtype type, int64_t T, int64_t heads, int64_t n, int64_t row, int64_t at) {
    operand x = given(type, 2, SHAPE(T * heads, n), -1, 1), w = given(CARRY_F32, 1, &n, 0.5f, 1.5f);
    operand z = given(type, 2, SHAPE(T, heads * n), -2, 2), dz = wanted(type, 2, SHAPE(T, heads * n));
    operand y = wanted(type, 2, SHAPE(T * heads, n)), dy = given(type, 2, SHAPE(T * heads, n), -1, 1);
    operand dx = wanted(type, 2, SHAPE(T * heads, n)), dw = given(CARRY_F32, 1, &n, -1, 1);
    operand wide = given(type, 2, SHAPE(T, row), -1, 1), dwide = given(type, 2, SHAPE(T, row), -1, 1);
    const size_t bytes = carry_rms_norm_backward_workspace(T * heads, n);
    EACH_SIDE {
        carry_tensor gate = carry_reshape_2d(z.t[side], T * heads, n), to = carry_reshape_2d(dz.t[side], T * heads, n);
        put(&wide, side, at, &z);
        if (side > 0) {
            gate = carry_reshape_3d(columns(wide.t[side], at, n), T, heads, n);
            to = carry_reshape_3d(columns(dwide.t[side], at, n), T, heads, n);
            gate.stride[0] = to.stride[0] = row;
        }
        CALL(carry_rms_norm(ctx, y.t[side], x.t[side], w.t[side], gate, 0.01f));
        CALL(carry_rms_norm_backward(ctx,
                                     &(carry_rms_norm_backward_args){.dx = dx.t[side],
                                                                     .dw = dw.t[side],
                                                                     .dz = to,
                                                                     .dy = dy.t[side],
                                                                     .x = x.t[side],
                                                                     .w = w.t[side],
                                                                     .z = gate,
                                                                     .eps = 0.01f},
                                     room(side, bytes), bytes));
        if (side == 0) {
            put(&dwide, 0, at, &dz);
        }
    }
    compare("y", &y, 0x1p-20);
    compare("dx", &dx, 0x1p-18);
    compare("dw", &dw, sums(T * heads) * 4.0);
    compare("dz in wide", &dwide, 0x1p-19);
    free_operands();
}

static void case_gate(carry_dtype type) {
    one_gate(type, 33, 6, 128, 784, 8);
    one_gate(type, 7, 3, 20, 70, 5);
    one_gate(type, 3, 2, 1100, 2208, 8); /* a block a row */
}

static void one_swiglu(carry_dtype type, int64_t T, int64_t n, int64_t row, int64_t up_at) {
    operand gate = given(type, 2, SHAPE(T, n), -4, 4), up = given(type, 2, SHAPE(T, n), -1, 1);
    operand y = wanted(type, 2, SHAPE(T, n)), dy = given(type, 2, SHAPE(T, n), -1, 1);
    operand wide = given(type, 2, SHAPE(T, row), -1, 1);
    EACH_SIDE {
        put(&wide, side, 0, &gate);
        put(&wide, side, up_at, &up);
        const carry_tensor g = side == 0 ? gate.t[0] : columns(wide.t[side], 0, n);
        const carry_tensor u = side == 0 ? up.t[0] : columns(wide.t[side], up_at, n);
        CALL(carry_swiglu(ctx, y.t[side], g, u));
        CALL(carry_swiglu_backward(ctx, g, u, dy.t[side], g, u));
        if (side == 0) {
            put(&wide, 0, 0, &gate);
            put(&wide, 0, up_at, &up);
        }
    }
    compare("y", &y, 0x1p-20);
    compare("dgate and dup in wide", &wide, 0x1p-20);
    free_operands();
}

static void case_swiglu(carry_dtype type) {
    one_swiglu(type, 33, 64, 136, 72);
    one_swiglu(type, 300, 256, 512, 256);
    one_swiglu(type, 5, 7, 20, 9);
}

static void test_rows_of_wider_arrays(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("merged_linear", case_merged_linear, 3);
        run_case("linear_add", case_linear_add, 3);
        run_case("conv", case_conv, 3);
        run_case("rms_norm", case_gate, 3);
        run_case("swiglu", case_swiglu, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    (void)missing;
    (void)integers;
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_of_wider_arrays)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
