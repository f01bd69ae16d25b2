/* Operators in 8-bit floats on every device except the CPU, against the CPU's result: codes and scales bit by bit,
   products and losses within the roundings of their sums. Skipped without such a device. */
/* labels: gpu */
#include <math.h>

#include "backend_support.h"

#include "ops/fp8.h"
#include "ops/fp8_rows.h"

/* A matrix of codes on both sides, in a tensor of bf16 of half the columns, and its scale. */
typedef struct coded {
    operand codes, scale;
    int64_t rows, columns;
    carry_fp8_kind kind;
} coded;

static coded coded_of(int64_t rows, int64_t columns, carry_fp8_kind kind) {
    float *numbers = keep(calloc(CARRY_FP8_NUMBERS, sizeof *numbers));
    numbers[CARRY_FP8_SCALE] = 0.01f;
    numbers[CARRY_FP8_INVERSE] = 100.0f;
    numbers[CARRY_FP8_TOP] = kind == CARRY_E4M3 ? CARRY_FP8_TOP_E4M3 : CARRY_FP8_TOP_E5M2;
    return (coded){.codes = wanted(CARRY_BF16, 2, SHAPE(rows, columns / 2)),
                   .scale = spread(carry_view_1d(numbers, CARRY_F32, CARRY_FP8_NUMBERS)),
                   .rows = rows,
                   .columns = columns,
                   .kind = kind};
}

static carry_fp8 on(const coded *c, int side) {
    return (carry_fp8){.codes = c->codes.t[side].data,
                       .rows = c->rows,
                       .columns = c->columns,
                       .kind = c->kind,
                       .device = c->codes.t[side].device,
                       .scale = c->scale.t[side].data};
}

static const int64_t shapes[][3] = {{16, 16, 16}, {48, 80, 16}, {272, 64, 144}, {16, 768, 48}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void compare_codes(const char *name, const coded *c) {
    compare(name, &c->codes, 0.0);
    compare(name, &c->scale, 0.0);
}

static void case_fp8_round(carry_dtype type) {
    for (int s = 0; type == CARRY_BF16 && s < 2 * SHAPES; s++, free_operands()) {
        const int64_t rows = shapes[s / 2][0], columns = shapes[s / 2][1];
        const carry_fp8_kind kind = s % 2 == 0 ? CARRY_E4M3 : CARRY_E5M2;
        operand x = given(type, 2, SHAPE(rows, columns), -8, 8);
        coded straight = coded_of(rows, columns, kind), turned = coded_of(columns, rows, kind);
        EACH_SIDE {
            const carry_tensor scales = carry_reshape_2d(straight.scale.t[side], 1, CARRY_FP8_NUMBERS);
            CALL(carry_fp8_round(ctx, on(&straight, side), x.t[side], false));
            CALL(carry_fp8_scales(ctx, scales));
            CALL(carry_fp8_measure(ctx, straight.scale.t[side], x.t[side]));
            CALL(carry_fp8_round(ctx, on(&turned, side), x.t[side], true));
        }
        compare_codes("codes", &straight);
        compare_codes("turned codes", &turned);
    }
}

/* Sums of k products of codes in f32, in two orders. */
static void case_fp8_product(carry_dtype type) {
    for (int s = 0; type != CARRY_F32 && s < 3 * SHAPES; s++, free_operands()) {
        const int64_t m = shapes[s / 3][0], k = shapes[s / 3][1], n = shapes[s / 3][2];
        operand x = given(CARRY_BF16, 2, SHAPE(m, k), -1, 1), w = given(CARRY_BF16, 2, SHAPE(n, k), -1, 1);
        coded a = coded_of(m, k, s % 3 == 1 ? CARRY_E5M2 : CARRY_E4M3), b = coded_of(n, k, CARRY_E4M3);
        operand y = wanted(type, 2, SHAPE(m, n)), base = given(type, 2, SHAPE(m, n), -1, 1);
        EACH_SIDE {
            CALL(carry_fp8_round(ctx, on(&a, side), x.t[side], false));
            CALL(carry_fp8_round(ctx, on(&b, side), w.t[side], false));
            CALL(carry_fp8_product(ctx, y.t[side], on(&a, side), on(&b, side), (carry_tensor){0}));
            CALL(carry_fp8_product(ctx, base.t[side], on(&a, side), on(&b, side), base.t[side]));
        }
        /* The tensor cores of a Hopper GPU keep 13 bits of fraction in sums of 8-bit products. */
        const double sums = (double)(k + 8) * 0x1p-13;
        compare("y", &y, sums);
        compare("base", &base, sums);
    }
}

/* The codes in host memory. */
static const unsigned char *codes_here(const coded *c, int side) {
    carry_tensor here = c->codes.t[0];
    here.data = keep(malloc((size_t)(c->rows * c->columns) + 8));
    assert_ok(ctx, carry_copy(ctx, here, c->codes.t[side]));
    return here.data;
}

/* Codes that an operator wrote are those of rounding its result, on each side. */
static void same_columns(const char *name, const coded *all, int64_t first, const coded *own) {
    for (int side = 0; side < SIDES; side++) {
        const unsigned char *a = codes_here(all, side), *b = codes_here(own, side);
        for (int64_t i = 0; i < own->rows; i++) {
            const bool same = memcmp(a + i * all->columns + first, b + i * own->columns, (size_t)own->columns) == 0;
            note(name, same ? 0.0 : INFINITY);
        }
    }
}

static void case_fp8_writers(carry_dtype type) {
    for (int s = 0; type == CARRY_BF16 && s < SHAPES; s++, free_operands()) {
        const int64_t rows = shapes[s][0], n = shapes[s][1];
        operand x = given(type, 2, SHAPE(rows, n), -2, 2), w = given(CARRY_F32, 1, &n, -1, 1);
        operand y = wanted(type, 2, SHAPE(rows, n)), z = wanted(type, 2, SHAPE(rows, n));
        operand gate = given(type, 2, SHAPE(rows, n), -2, 2), dy = given(type, 2, SHAPE(rows, n), -1, 1);
        operand dgate = wanted(type, 2, SHAPE(rows, n)), dup = wanted(type, 2, SHAPE(rows, n));
        coded normed = coded_of(rows, n, CARRY_E4M3), active = coded_of(rows, n, CARRY_E4M3);
        coded back = coded_of(rows, 2 * n, CARRY_E5M2);
        coded of_y = coded_of(rows, n, CARRY_E4M3), of_z = coded_of(rows, n, CARRY_E4M3);
        coded of_dgate = coded_of(rows, n, CARRY_E5M2), of_dup = coded_of(rows, n, CARRY_E5M2);
        EACH_SIDE {
            CALL(carry_fp8_rms_norm(ctx, y.t[side], on(&normed, side), x.t[side], w.t[side], 1e-5f));
            CALL(carry_fp8_swiglu(ctx, z.t[side], on(&active, side), gate.t[side], x.t[side]));
            CALL(carry_fp8_swiglu_backward(ctx, dgate.t[side], dup.t[side], on(&back, side), dy.t[side], gate.t[side],
                                           x.t[side]));
            CALL(carry_fp8_round(ctx, on(&of_y, side), y.t[side], false));
            CALL(carry_fp8_round(ctx, on(&of_z, side), z.t[side], false));
            CALL(carry_fp8_round(ctx, on(&of_dgate, side), dgate.t[side], false));
            CALL(carry_fp8_round(ctx, on(&of_dup, side), dup.t[side], false));
        }
        compare("norm", &y, 0x1p-7);
        compare("swiglu", &z, 0x1p-7);
        compare("dgate", &dgate, 0x1p-7);
        compare("dup", &dup, 0x1p-7);
        same_columns("codes of norm", &normed, 0, &of_y);
        same_columns("codes of swiglu", &active, 0, &of_z);
        same_columns("codes of dgate", &back, 0, &of_dgate);
        same_columns("codes of dup", &back, n, &of_dup);
    }
}

/* Logits below 4, whose exponentials a GPU computes to 2^-20. A code is the upper byte of an f16 number, and within an
   eighth of the gradient, or half of the smallest code. */
static void case_fp8_loss(carry_dtype type) {
    static const int64_t sizes[][2] = {{16, 48}, {32, 8208}};
    for (int s = 0; type == CARRY_F16 && s < 2; s++, free_operands()) {
        const int64_t T = sizes[s][0], V = sizes[s][1];
        const float scale = 0.25f;
        operand logits = given(type, 2, SHAPE(T, V), -4, 4), losses = wanted(CARRY_F32, 1, &T);
        int64_t ids[32];
        for (int64_t t = 0; t < T; t++) {
            ids[t] = t % 5 == 3 ? -100 : t * 7919 % V;
        }
        operand targets = integers(ids, T);
        coded codes = coded_of(T, V, CARRY_E5M2);
        EACH_SIDE {
            CALL(carry_fp8_loss(ctx, losses.t[side], logits.t[side], targets.t[side], on(&codes, side), scale));
            logits.t[side].dtype = CARRY_BF16;
        }
        compare("losses", &losses, 0x1p-16);
        compare("gradients", &logits, 0x1p-20);
        const double step = (double)scale / (double)CARRY_FP8_TOP_E5M2;
        for (int side = 0; side < SIDES; side++) {
            const unsigned char *code = codes_here(&codes, side);
            for (int64_t i = 0; i < T * V; i++) {
                const double value = step * (double)carry_f32_from_f16((uint16_t)(code[i] << 8));
                const double want = carry_tensor_at(&logits.t[0], i);
                note("codes of gradients", fabs(value - want) / (0.13 * fabs(want) + step * 0x1p-16));
            }
        }
    }
}

/* A matrix of codes with a scale for each row. */
typedef struct coded_rows {
    operand codes, scale;
    int64_t rows, columns;
} coded_rows;

static coded_rows coded_rows_of(int64_t rows, int64_t columns) {
    return (coded_rows){.codes = wanted(CARRY_BF16, 2, SHAPE(rows, columns / 2)),
                        .scale = wanted(CARRY_F32, 1, &rows),
                        .rows = rows,
                        .columns = columns};
}

static carry_fp8_rows rows_on(const coded_rows *c, int side) {
    return (carry_fp8_rows){.codes = c->codes.t[side].data,
                            .scale = c->scale.t[side].data,
                            .rows = c->rows,
                            .columns = c->columns,
                            .device = c->codes.t[side].device};
}

/* The last two have more columns than a thread block keeps in registers, and rows that are not a multiple of 16. */
static const int64_t row_shapes[][3] = {{16, 16, 16}, {49, 80, 16}, {271, 64, 144}, {3, 8272, 32}, {5, 17000, 48}};

static void case_fp8_rows(carry_dtype type) {
    for (int s = 0; type == CARRY_BF16 && s < 3 * 5; s++, free_operands()) {
        const int64_t m = row_shapes[s / 3][0], k = row_shapes[s / 3][1] / 16 * 16, n = row_shapes[s / 3][2];
        operand x = given(type, 2, SHAPE(m, k), -8, 8), w = given(type, 2, SHAPE(n, k), -1, 1);
        operand b = given(type, 1, &n, -1, 1), y = given(type, 2, SHAPE(m, n), -1, 1);
        coded_rows of_x = coded_rows_of(m, k), of_w = coded_rows_of(n, k);
        EACH_SIDE {
            CALL(carry_fp8_rows_round(ctx, rows_on(&of_x, side), x.t[side]));
            CALL(carry_fp8_rows_round(ctx, rows_on(&of_w, side), w.t[side]));
            CALL(carry_fp8_rows_affine(ctx, y.t[side], rows_on(&of_x, side), rows_on(&of_w, side),
                                       s % 3 == 2 ? (carry_tensor){0} : b.t[side],
                                       s % 3 == 0 ? CARRY_GELU : CARRY_NO_ACTIVATION, s % 3 == 1));
        }
        compare("codes of rows", &of_x.codes, 0.0);
        compare("scales of rows", &of_x.scale, 0.0);
        compare("y", &y, (double)(k + 8) * 0x1p-13);
    }
}

static void test_8_bit_operators_equal_the_cpu(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("fp8_round", case_fp8_round, 3);
        run_case("fp8_product", case_fp8_product, 3);
        run_case("fp8_writers", case_fp8_writers, 3);
        run_case("fp8_loss", case_fp8_loss, 3);
        run_case("fp8_rows", case_fp8_rows, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    (void)missing;
    (void)room;
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_8_bit_operators_equal_the_cpu)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
