/* carry_matmul and carry_convert: right for every size and thread count, through OpenBLAS too; bad input refused. */
#include <math.h>

#include "support.h"

static void fill(carry_ctx *ctx, carry_tensor tensor, uint64_t stream) {
    assert_ok(ctx, carry_random_uniform(ctx, tensor, 7, stream, -1.0f, 1.0f));
}

static float *floats(int64_t count) {
    float *made = malloc((size_t)count * sizeof *made);
    assert_non_null(made);
    memset(made, 0xff, (size_t)count * sizeof *made);
    return made;
}

/* Element i of c = a b + c in float64. */
static SUPPORT_UNWATCHED double expected(const float *a, const float *b, const float *before, int64_t i, int64_t m,
                                         int64_t n, int64_t k, const carry_matmul_options *o) {
    int64_t item = i / (m * n);
    int64_t row = i / n % m;
    int64_t column = i % n;
    double sum = o->accumulate ? before[i] : 0.0;
    for (int64_t l = 0; l < k; l++) {
        double x = a[item * m * k + (o->a_transposed ? l * m + row : row * k + l)];
        double y = b[item * k * n + (o->b_transposed ? column * k + l : l * n + column)];
        sum += x * y;
    }
    return sum;
}

/* c = a b + c against float64; |sum| of k + 1 terms of at most 1 rounds k + 1 times. */
static void check_product(carry_ctx *ctx, int64_t batch, int64_t m, int64_t n, int64_t k, carry_matmul_options o) {
    float *a = floats(batch * m * k);
    float *b = floats(batch * k * n);
    float *c = floats(batch * m * n);
    float *before = floats(batch * m * n);
    carry_tensor A =
        o.a_transposed ? carry_view_3d(a, CARRY_F32, batch, k, m) : carry_view_3d(a, CARRY_F32, batch, m, k);
    carry_tensor B =
        o.b_transposed ? carry_view_3d(b, CARRY_F32, batch, n, k) : carry_view_3d(b, CARRY_F32, batch, k, n);
    carry_tensor C = carry_view_3d(c, CARRY_F32, batch, m, n);
    fill(ctx, A, 1);
    fill(ctx, B, 2);
    fill(ctx, C, 3);
    memcpy(before, c, (size_t)(batch * m * n) * sizeof *c);
    assert_ok(ctx, carry_matmul(ctx, C, A, B, &o));
    for (int64_t i = 0; i < batch * m * n; i++) {
        double sum = expected(a, b, before, i, m, n, k, &o);
        if (!(fabs(sum - (double)c[i]) <= 0x1p-24 * (double)((k + 1) * (k + 1)))) {
            fail_msg("%lldx%lldx%lld batch %lld: element %lld is %g, not %g", (long long)m, (long long)n, (long long)k,
                     (long long)batch, (long long)i, (double)c[i], sum);
        }
    }
    free(a);
    free(b);
    free(c);
    free(before);
}

static void products_are_right_for_every_size_and_form(void **unused) {
    (void)unused;
    static const int64_t sizes[][4] = {{1, 1, 1, 1},    {3, 5, 7, 2},       {100, 16, 16, 16}, {1, 33, 1, 65},
                                       {2, 65, 130, 3}, {1, 300, 270, 260}, {1, 257, 16, 300}, {40, 4, 4, 4}};
    for (int threads = 1; threads <= 3; threads += support_cases(1, 2)) {
        carry_ctx *ctx = support_ctx(threads, NULL, NULL);
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            for (int form = 0; form < 8; form++) {
                if (!support_takes((int)i * 24 + threads * 8 + form, 7)) {
                    continue;
                }
                check_product(ctx, sizes[i][0], sizes[i][1], sizes[i][2], sizes[i][3],
                              (carry_matmul_options){CARRY_INIT(carry_matmul_options), .a_transposed = form & 1,
                                                     .b_transposed = (form & 2) != 0, .accumulate = (form & 4) != 0});
            }
        }
        carry_ctx_free(ctx);
    }
}

static void a_sum_of_nothing_is_zero_and_one_matrix_may_repeat(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    float a[6] = {1, 2, 3, 4, 5, 6};
    float b[4] = {1, 0, 0, 1};
    float c[12];
    memset(c, 0xff, sizeof c);
    assert_ok(ctx, carry_matmul(ctx, carry_view_3d(c, CARRY_F32, 2, 3, 2), carry_view_3d(a, CARRY_F32, 2, 3, 0),
                                carry_view_3d(b, CARRY_F32, 2, 0, 2), NULL));
    for (int i = 0; i < 12; i++) {
        assert_true(c[i] == 0.0f);
    }
    carry_tensor same_a = carry_view_3d(a, CARRY_F32, 2, 3, 2);
    carry_tensor same_b = carry_view_3d(b, CARRY_F32, 2, 2, 2);
    same_a.stride[0] = same_b.stride[0] = 0;
    assert_ok(ctx, carry_matmul(ctx, carry_view_3d(c, CARRY_F32, 2, 3, 2), same_a, same_b, NULL));
    assert_memory_equal(c, a, sizeof a);
    assert_memory_equal(c + 6, a, sizeof a);
    carry_tensor beside =
        carry_view_3d(c, CARRY_F32, 2, 3, 2); /* the two results side by side in one matrix of 3 rows */
    beside.stride[0] = 2;
    beside.stride[1] = 4;
    memset(c, 0xff, sizeof c);
    assert_ok(ctx, carry_matmul(ctx, beside, same_a, same_b, NULL));
    for (int i = 0; i < 12; i++) {
        assert_true(c[i] == a[i / 4 * 2 + i % 2]);
    }
    carry_ctx_free(ctx);
}

static void bad_products_are_refused_with_names_and_sizes(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    float x[64] = {0};
    carry_tensor c = carry_view_3d(x, CARRY_F32, 1, 2, 3);
    carry_tensor a = carry_view_3d(x, CARRY_F32, 1, 2, 4);
    carry_tensor b = carry_view_3d(x, CARRY_F32, 1, 5, 3);
    assert_refused(ctx, CARRY_ESHAPE, "b has shape [1, 5, 3] where [1, 4, 3] is needed",
                   carry_matmul(ctx, c, a, b, NULL));
    b = carry_view_3d(x, CARRY_BF16, 1, 4, 3);
    assert_refused(ctx, CARRY_EDTYPE, "b is bf16", carry_matmul(ctx, c, a, b, NULL));
    b = carry_view_3d(x, CARRY_F32, 1, 4, 3);
    b.stride[2] = 2;
    assert_refused(ctx, CARRY_ESTRIDE, "b has stride 2", carry_matmul(ctx, c, a, b, NULL));
    carry_tensor over = {.data = x, .rank = 3, .shape = {2, 3, 2}, .stride = {8, 4, 1}}; /* c[1, 0] is c[0, 2] */
    assert_refused(
        ctx, CARRY_ESTRIDE, "its elements would overlap",
        carry_matmul(ctx, over, carry_view_3d(x, CARRY_F32, 2, 3, 0), carry_view_3d(x, CARRY_F32, 2, 0, 2), NULL));
    b = carry_view_3d((char *)x + 1, CARRY_F32, 1, 4, 3);
    assert_refused(ctx, CARRY_EALIGN, "b is at an address", carry_matmul(ctx, c, a, b, NULL));
    assert_refused(ctx, CARRY_ESHAPE, "rank 3", carry_matmul(ctx, carry_view_2d(x, CARRY_F32, 2, 3), a, b, NULL));
    assert_refused(
        ctx, CARRY_EARGUMENT, "c has no data",
        carry_matmul(ctx, carry_view_3d(NULL, CARRY_F32, 1, 2, 3), a, carry_view_3d(x, CARRY_F32, 1, 4, 3), NULL));
    carry_ctx_free(ctx);
}

static void conversion_rounds_as_the_scalar_functions_do(void **unused) {
    (void)unused;
    enum { COUNT = 50001 };
    static float from[COUNT], back[COUNT];
    static _Alignas(8) uint16_t to[COUNT];
    carry_ctx *ctx = support_ctx(3, NULL, NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(from, CARRY_F32, COUNT), 5, 0, 0.0f, 3.0f));
    for (carry_dtype dtype = CARRY_BF16; dtype <= CARRY_F16; dtype++) {
        assert_ok(ctx, carry_convert(ctx, carry_view_1d(to, dtype, COUNT), carry_view_1d(from, CARRY_F32, COUNT)));
        assert_ok(ctx, carry_convert(ctx, carry_view_1d(back, CARRY_F32, COUNT), carry_view_1d(to, dtype, COUNT)));
        for (int i = 0; i < COUNT; i++) {
            uint16_t expected = dtype == CARRY_BF16 ? carry_bf16_from_f32(from[i]) : carry_f16_from_f32(from[i]);
            assert_int_equal(to[i], expected);
            assert_true(back[i] ==
                        (dtype == CARRY_BF16 ? carry_f32_from_bf16(expected) : carry_f32_from_f16(expected)));
        }
    }
    assert_refused(ctx, CARRY_EDTYPE, "i64",
                   carry_convert(ctx, carry_view_1d(to, CARRY_I64, 4), carry_view_1d(from, CARRY_F32, 4)));
    assert_refused(ctx, CARRY_ESHAPE, "to has shape [5]",
                   carry_convert(ctx, carry_view_1d(to, CARRY_F16, 5), carry_view_1d(from, CARRY_F32, 4)));
    carry_ctx_free(ctx);
}

/* Every 16-bit pattern, and f32 with the same upper halves: signalling NaNs are among them. */
static void a_type_converted_to_itself_keeps_every_bit(void **unused) {
    (void)unused;
    enum { COUNT = 65536 };
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16, CARRY_F16};
    static uint32_t from[COUNT], to[COUNT];
    for (int k = 0; carry_kernels_name(k) != NULL; k++) {
        if (!carry_kernels_usable(k)) {
            continue;
        }
        carry_ctx *ctx = support_ctx(2, carry_kernels_name(k), NULL);
        for (int type = 0; type < 3; type++) {
            for (int i = 0; i < COUNT; i++) {
                const uint16_t half = (uint16_t)i;
                from[i] = (uint32_t)i << 16 | 1u; /* exponent of all ones: signalling and quiet NaNs */
                if (types[type] != CARRY_F32) {
                    memcpy((uint16_t *)(void *)from + i, &half, sizeof half);
                }
            }
            const size_t bytes = COUNT * carry_dtype_size(types[type]);
            memset(to, 0, sizeof to);
            assert_ok(ctx, carry_convert(ctx, carry_view_1d(to, types[type], COUNT),
                                         carry_view_1d(from, types[type], COUNT)));
            assert_memory_equal(to, from, bytes);
        }
        carry_ctx_free(ctx);
    }
}

static void elementwise_operators_round_once(void **unused) {
    (void)unused;
    enum { COUNT = 2049 };
    static float x[COUNT], y[COUNT];
    static uint16_t halves[COUNT];
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(x, CARRY_F32, COUNT), 5, 0, 0.0f, 3.0f));
    assert_ok(ctx, carry_random_normal(ctx, carry_view_1d(y, CARRY_F32, COUNT), 5, 1, 0.0f, 3.0f));
    carry_tensor X = carry_view_1d(x, CARRY_F32, COUNT);
    carry_tensor Y = carry_view_1d(y, CARRY_F32, COUNT);
    for (int op = CARRY_ADD; op <= CARRY_MULTIPLY; op++) {
        assert_ok(ctx, carry_elementwise(ctx, carry_view_1d(halves, CARRY_F16, COUNT), X, Y, (carry_elementwise_op)op));
        for (int i = 0; i < COUNT; i++) {
            float expected = op == CARRY_ADD ? x[i] + y[i] : op == CARRY_SUBTRACT ? x[i] - y[i] : x[i] * y[i];
            assert_int_equal(halves[i], carry_f16_from_f32(expected));
        }
    }
    float first = x[0] - y[0];
    assert_ok(ctx, carry_elementwise(ctx, Y, X, Y, CARRY_SUBTRACT)); /* the result may be in the memory of an operand */
    assert_true(y[0] == first);
    assert_refused(ctx, CARRY_EARGUMENT, "number 3", carry_elementwise(ctx, Y, X, Y, (carry_elementwise_op)3));
    assert_refused(ctx, CARRY_EDTYPE, "x is f32 and y is f16",
                   carry_elementwise(ctx, Y, X, carry_view_1d(halves, CARRY_F16, COUNT), CARRY_ADD));
    assert_refused(ctx, CARRY_ESHAPE, "y has shape [5]",
                   carry_elementwise(ctx, Y, X, carry_view_1d(y, CARRY_F32, 5), CARRY_ADD));
    carry_tensor elsewhere = Y;
    elsewhere.device = 1;
    assert_refused(ctx, CARRY_EDEVICE, "y is on device 1", carry_elementwise(ctx, X, X, elsewhere, CARRY_ADD));
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_right_for_every_size_and_form),
        cmocka_unit_test(a_sum_of_nothing_is_zero_and_one_matrix_may_repeat),
        cmocka_unit_test(bad_products_are_refused_with_names_and_sizes),
        cmocka_unit_test(conversion_rounds_as_the_scalar_functions_do),
        cmocka_unit_test(a_type_converted_to_itself_keeps_every_bit),
        cmocka_unit_test(elementwise_operators_round_once),
    };
    return cmocka_run_group_tests_name("ops/matmul", tests, NULL, NULL);
}
