/* The operators that a GPU does in one pass (affine, add_layer_norm, qk_norm_rotary, squared_error, relative_softmax)
   and those of a sampler on every device except the CPU, against the CPU's result: sizes that go through the fast
   kernels and sizes that do not. Skipped without such a device. */
/* labels: gpu */
#include "backend_support.h"

#include "ops/sampler.h"
#include "ops/video.h"

/* Rows that are multiples of 16 bytes, and others. */
static const int64_t shapes[][2] = {{1, 8}, {3, 10}, {65, 136}, {9, 1024}, {5, 1030}, {7, 5120}};
#define SHAPES(s) for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++, free_operands())

/* The CPU rounds after each step, a GPU once if it does all in one pass: allows a unit of the largest value for each
   step. */
static double steps(carry_dtype type, double count, double largest) {
    return count * rounding(type) * largest + 0x1p-18;
}

static void case_affine(carry_dtype type) {
    SHAPES(s) {
        const int64_t in = shapes[s][1], out = 72;
        operand x = given(type, 2, shapes[s], -1, 1), W = given(type, 2, SHAPE(out, in), -1, 1);
        operand b = given(type, 1, &out, -1, 1), y = wanted(type, 2, SHAPE(shapes[s][0], out));
        operand sum = given(type, 2, SHAPE(shapes[s][0], out), -1, 1);
        EACH_SIDE {
            CALL(carry_affine(ctx, y.t[side], x.t[side], W.t[side], b.t[side], CARRY_GELU, false));
            CALL(carry_affine(ctx, sum.t[side], x.t[side], W.t[side], b.t[side], CARRY_NO_ACTIVATION, true));
        }
        const double off = 8.0 * (double)(in + 8) * 0x1p-24 + steps(type, 3.0, 2.0 * sqrt((double)in) + 2.0);
        compare("y", &y, off);
        compare("sum", &sum, off);
    }
}

static void case_add_layer_norm(carry_dtype type) {
    SHAPES(s) {
        const int64_t n = shapes[s][1];
        operand x = given(type, 2, shapes[s], -1, 1), y = given(type, 2, shapes[s], -1, 1);
        operand h = wanted(type, 2, shapes[s]), g = given(CARRY_F32, 1, &n, -1, 1);
        operand w = given(CARRY_F32, 1, &n, -0.5f, 0.5f), b = given(CARRY_F32, 1, &n, -1, 1);
        EACH_SIDE CALL(carry_add_layer_norm(ctx, &(carry_add_layer_norm_args){.h = h.t[side],
                                                                              .x = x.t[side],
                                                                              .y = y.t[side],
                                                                              .g = g.t[side],
                                                                              .w = w.t[side],
                                                                              .b = b.t[side],
                                                                              .plus = 1.0f,
                                                                              .eps = 0.01f}));
        compare("x", &x, steps(type, 1.0, 2.0));
        compare("h", &h, steps(type, 2.0, 16.0));
    }
}

static void case_qk_norm_rotary(carry_dtype type) {
    SHAPES(s) {
        const int64_t n = shapes[s][1], head = n % 8 == 0 ? 8 : 2, T = shapes[s][0];
        operand q = given(type, 2, shapes[s], -1, 1), k = given(type, 2, shapes[s], -1, 1);
        operand v = given(type, 2, shapes[s], -1, 1), k_to = wanted(type, 2, shapes[s]);
        operand v_to = wanted(type, 2, shapes[s]), w = given(CARRY_F32, 1, &n, 0.5f, 1.5f);
        operand table = given(CARRY_F32, 3, SHAPE(T, head / 2, 2), -1, 1), sums = given(CARRY_F32, 1, &T, 1, 9);
        EACH_SIDE {
            const carry_qk_norm_rotary_args args = {
                .part = {{.to = q.t[side], .from = q.t[side], .w = w.t[side], .rotates = true},
                         {.to = k_to.t[side], .from = k.t[side], .w = w.t[side], .rotates = true},
                         {.to = v_to.t[side], .from = v.t[side]}},
                .parts = 3,
                .table = table.t[side],
                .eps = 0.01f};
            CALL(carry_qk_norm_rotary(ctx, &args));
            const carry_qk_norm_rotary_args split = {
                .part = {{.to = k.t[side], .from = k.t[side], .w = w.t[side], .sums = sums.t[side], .rotates = true}},
                .parts = 1,
                .table = table.t[side],
                .whole = 3 * n,
                .eps = 0.01f};
            CALL(carry_qk_norm_rotary(ctx, &split));
        }
        compare("q", &q, steps(type, 2.0, 16.0));
        compare("k", &k_to, steps(type, 2.0, 16.0));
        compare("v", &v_to, 0.0);
        compare("split", &k, steps(type, 2.0, 64.0));
    }
}

static void case_squared_error(carry_dtype type) {
    const int64_t groups = 4, one = 1, shape[] = {8, 130};
    operand y = given(type, 2, shape, -1, 1), target = given(CARRY_F32, 2, shape, -1, 1), dy = wanted(type, 2, shape);
    operand weight = given(CARRY_F32, 1, &groups, -1, 1); /* groups with a negative weight are left out */
    operand losses = spread(carry_view_1d(keep(calloc(4, sizeof(double))), CARRY_F64, groups));
    operand total = spread(carry_view_1d(keep(calloc(1, sizeof(double))), CARRY_F64, one));
    EACH_SIDE CALL(carry_squared_error(ctx, &(carry_squared_error_args){.total = total.t[side],
                                                                        .losses = losses.t[side],
                                                                        .dy = dy.t[side],
                                                                        .y = y.t[side],
                                                                        .target = target.t[side],
                                                                        .weight = weight.t[side],
                                                                        .scale = 0.5}));
    compare("dy", &dy, 0x1p-22);
    compare("losses", &losses, 0x1p-40);
    compare("total", &total, 0x1p-38);
}

/* Heads of 128 and strides that are multiples of eight go through the fast kernel: as many warps as heads, more and
   fewer. */
static void case_key_weights(carry_dtype type) {
    static const int64_t sizes[][5] = {{1, 1, 128, 1, 8},     {17, 3, 128, 6, 8},    {33, 40, 128, 21, 24},
                                       {16, 48, 128, 48, 48}, {5, 2, 128, 9, 12},    {7, 3, 10, 4, 5},
                                       {40, 12, 128, 31, 40}, {19, 49, 128, 13, 16}, {18, 17, 128, 32, 32}};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        for (int normed = 0; normed < 2; normed++, free_operands()) {
            const int64_t T = sizes[s][0], heads = sizes[s][1], n = heads * sizes[s][2], keys = sizes[s][3];
            operand q = given(type, 2, SHAPE(T, n), -1, 1), k = given(type, 2, SHAPE(keys, n), -1, 1);
            operand w = given(CARRY_F32, 1, &n, 0.5f, 1.5f), p = wanted(type, 2, SHAPE(T, heads * sizes[s][4]));
            EACH_SIDE CALL(carry_key_weights(ctx, &(carry_key_weights_args){.p = p.t[side],
                                                                            .q = q.t[side],
                                                                            .k = k.t[side],
                                                                            .w = normed ? w.t[side] : missing().t[side],
                                                                            .heads = heads,
                                                                            .keys = keys,
                                                                            .last = 1.5f,
                                                                            .eps = 0.01f}));
            /* The GPU rounds keys times weights once more: scores of up to 4 change by as many units. */
            compare("p", &p, steps(type, 8.0, 1.0));
        }
    }
}

static void case_relative_softmax(carry_dtype type) {
    const int64_t shape[][4] = {{1, 1, 1, 1}, {3, 5, 7, 6}, {2, 33, 70, 70}};
    for (size_t s = 0; s < sizeof shape / sizeof *shape; s++, free_operands()) {
        operand scores = given(CARRY_F32, 3, shape[s], -8, 8), p = wanted(type, 3, shape[s]);
        operand bias = given(CARRY_F32, 2, SHAPE(shape[s][0], shape[s][1] + shape[s][2] - 1), -4, 4);
        EACH_SIDE CALL(carry_relative_softmax(ctx, p.t[side], scores.t[side], bias.t[side], shape[s][3]));
        compare("p", &p, 0x1p-20);
    }
}

static void case_patchify(carry_dtype type) {
    static const int64_t patch[][2] = {{1, 1}, {2, 2}, {2, 3}, {3, 1}};
    for (size_t s = 0; s < sizeof patch / sizeof *patch; s++, free_operands()) {
        const int64_t p = patch[s][0], q = patch[s][1], latents[] = {5, 3, 4 * p, 7 * q};
        const int64_t rows[] = {latents[1] * 4 * 7, latents[0] * p * q};
        for (int by_head = 0; by_head < 2; by_head++) {
            operand x = given(type, 4, latents, -1, 1), patches = wanted(type, 2, rows),
                    back = wanted(type, 4, latents);
            EACH_SIDE {
                CALL(carry_patchify(ctx, patches.t[side], x.t[side], patch[s], by_head != 0));
                CALL(carry_unpatchify(ctx, back.t[side], patches.t[side], patch[s], by_head != 0));
            }
            compare("patches", &patches, 0.0);
            compare("back", &back, 0.0);
            assert_memory_equal(back.t[0].data, x.t[0].data, (size_t)carry_tensor_count(&x.t[0]) * sizeof(float));
        }
    }
}

static void case_flow_step(carry_dtype type) {
    const int64_t one = 1, shape[] = {3, 700};
    for (int noisy = 0; noisy < 2; noisy++) {
        operand x = given(type, 2, shape, -2, 2), v = given(type, 2, shape, -2, 2), x0 = wanted(type, 2, shape);
        operand noise = noisy != 0 ? given(type, 2, shape, -2, 2) : missing();
        operand good = given(type, 1, &one, 0.0f, 0.0f), bad = given(type, 1, &one, 0.0f, 0.0f);
        EACH_SIDE {
            carry_flow_step_args args = {.x0 = x0.t[side],
                                         .x = x.t[side],
                                         .velocity = v.t[side],
                                         .noise = noise.t[side],
                                         .bad = good.t[side],
                                         .sigma = 0.7f,
                                         .keep = 0.4f,
                                         .scale = 0.6f};
            CALL(carry_flow_step(ctx, &args));
            args.bad = bad.t[side];
            args.noise = (carry_tensor){0};
            args.sigma = INFINITY;
            args.x0 = args.velocity; /* the results in x and x0 stay */
            CALL(carry_flow_step(ctx, &args));
        }
        compare("x0", &x0, 0x1p-21);
        compare("x", &x, 0x1p-21);
        compare("good", &good, 0.0);
        compare("bad", &bad, 0.0);
        assert_true(((const float *)good.t[0].data)[0] == 0.0f && ((const float *)bad.t[0].data)[0] == 1.0f);
    }
}

/* Both sides compute logarithms, roots and cosines in float64, so that results are equal or adjacent numbers. */
static void case_random_fill(carry_dtype type) {
    for (int64_t count = 1; count < 3000; count = 3 * count + 2) {
        operand out = wanted(type, 1, &count);
        EACH_SIDE CALL(carry_random_fill(ctx, out.t[side], 77, 1234567890123u, 0.5f, 2.0f));
        compare("out", &out, 0x1p-22);
    }
}

/* Columns of a larger array have the bits that random_fill gives to the whole array. */
static void case_random_part(carry_dtype type) {
    static const int64_t cases[][4] = {{1, 7, 21, 14}, {5, 8, 16, 8}, {9, 13, 40, 27}, {3, 64, 64, 0}, {4, 1, 3, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++, free_operands()) {
        const int64_t rows = cases[i][0], columns = cases[i][1], next = cases[i][2], first = cases[i][3];
        operand out = wanted(type, 2, SHAPE(rows, columns)), whole = wanted(type, 2, SHAPE(rows, next));
        EACH_SIDE {
            CALL(carry_random_fill(ctx, whole.t[side], 77, 5, 0.5f, 2.0f));
            CALL(carry_random_part(ctx, &(carry_random_part_args){.out = out.t[side],
                                                                  .seed = 77,
                                                                  .stream = 5,
                                                                  .mean = 0.5f,
                                                                  .deviation = 2.0f,
                                                                  .columns = columns,
                                                                  .next = next,
                                                                  .first = first}));
        }
        compare("out", &out, 0x1p-22);
        compare("whole", &whole, 0x1p-22);
        const size_t size = carry_dtype_size(type);
        for (int64_t row = 0; row < rows; row++) { /* compare has copied both sides to the host */
            assert_memory_equal((const char *)out.t[0].data + (size_t)(row * columns) * size,
                                (const char *)whole.t[0].data + (size_t)(row * next + first) * size,
                                (size_t)columns * size);
        }
    }
}

static void test_fused_operators_equal_the_cpu(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("affine", case_affine, 3);
        run_case("add_layer_norm", case_add_layer_norm, 3);
        run_case("qk_norm_rotary", case_qk_norm_rotary, 3);
        run_case("squared_error", case_squared_error, 3);
        run_case("key_weights", case_key_weights, 3);
        run_case("relative_softmax", case_relative_softmax, 3);
        run_case("patchify", case_patchify, 1);
        run_case("flow_step", case_flow_step, 1);
        run_case("random_fill", case_random_fill, 3);
        run_case("random_part", case_random_part, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    (void)missing;
    (void)integers;
    (void)room;
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fused_operators_equal_the_cpu)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
