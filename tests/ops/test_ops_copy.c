/* Views keep type and device; copies and constants, on the CPU and between it and every other device. */
#include "nn_support.h"

#include "carry/device.h"
#include "carry/nn.h"
#include "carry/ops.h"

static void test_views_keep_type_and_device(void **state) {
    (void)state;
    uint16_t data[24];
    carry_tensor whole = carry_view_on(3, data, CARRY_BF16, 2, SHAPE(6, 4));
    carry_tensor rows = carry_slice(whole, 2, 3);
    assert_ptr_equal(rows.data, data + 8);
    assert_true(rows.device == 3 && rows.dtype == CARRY_BF16 && rows.shape[0] == 3 && rows.shape[1] == 4);
    carry_tensor other = carry_reshape_3d(rows, 3, 2, 2);
    assert_ptr_equal(other.data, data + 8);
    assert_true(other.device == 3 && other.dtype == CARRY_BF16 && other.rank == 3 && other.stride[0] == 4);
    assert_null(carry_slice(absent, 5, 1).data);
    assert_null(carry_reshape_1d(absent, 5).data);
}

/* To each device and back: the same bits, and nothing beside them. */
static void test_copies_bring_the_same_bits(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    for (int device = 0; device < carry_device_count(); device++) {
        for (int i = 0; i < 3; i++) {
            for (int64_t n = 0; n < 70; n += 23) {
                array from = random_array(types[i], 1, &n, -1, 1), back = poisoned(types[i], 1, &n);
                carry_tensor there = from.t;
                there.device = device;
                assert_ok(ctx, carry_device_alloc(ctx, &there.data, device, (size_t)n * 4));
                assert_ok(ctx, carry_copy(ctx, there, from.t));
                assert_ok(ctx, carry_copy(ctx, back.t, there));
                assert_same("back", &back, &from);
                carry_device_free(ctx, device, there.data);
            }
        }
    }
}

static void test_constants_are_the_value_in_every_type(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    for (int device = 0; device < carry_device_count(); device++) {
        unsigned char got[5 * 8], want[5 * 8];
        for (carry_dtype type = CARRY_F32; type <= CARRY_F64; type++) {
            const size_t bytes = 5 * carry_dtype_size(type);
            const uint16_t bf16 = carry_bf16_from_f32(-3.0f), f16 = carry_f16_from_f32(-3.0f);
            for (int i = 0; i < 5; i++) {
                memcpy(want + (size_t)i * carry_dtype_size(type),
                       type == CARRY_F32    ? (const void *)&(float){-3.0f}
                       : type == CARRY_BF16 ? (const void *)&bf16
                       : type == CARRY_F16  ? (const void *)&f16
                       : type == CARRY_I64  ? (const void *)&(int64_t){-3}
                                            : (const void *)&(double){-3.0},
                       carry_dtype_size(type));
            }
            carry_tensor there = carry_view_on(device, NULL, type, 1, SHAPE(5)), here = carry_view_1d(got, type, 5);
            assert_ok(ctx, carry_device_alloc(ctx, &there.data, device, bytes));
            assert_ok(ctx, carry_fill(ctx, there, -3.0));
            assert_ok(ctx, carry_copy(ctx, here, there));
            assert_memory_equal(got, want, bytes);
            assert_ok(ctx, carry_zero(ctx, there));
            assert_ok(ctx, carry_copy(ctx, here, there));
            memset(want, 0, bytes);
            assert_memory_equal(got, want, bytes);
            carry_device_free(ctx, device, there.data);
        }
    }
}

static void test_copies_name_what_does_not_fit(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    float a[6] = {1, 2, 3, 4, 5, 6}, b[6] = {0};
    carry_tensor from = carry_view_1d(a, CARRY_F32, 6), to = carry_view_1d(b, CARRY_F32, 6);
    assert_refused(ctx, CARRY_EDTYPE, "to is i8", carry_fill(ctx, carry_view_1d(b, CARRY_I8, 6), -3.0));
    assert_refused(ctx, CARRY_ESHAPE, "to has shape [5]", carry_copy(ctx, carry_slice(to, 0, 5), from));
    assert_refused(ctx, CARRY_EDTYPE, "to is bf16", carry_copy(ctx, carry_view_1d(b, CARRY_BF16, 6), from));
    from.stride[0] = 2;
    assert_refused(ctx, CARRY_ESTRIDE, "from is not packed", carry_copy(ctx, to, from));
    int64_t id = 0;
    assert_refused(ctx, CARRY_ERANGE, "i64", carry_fill(ctx, carry_view_1d(&id, CARRY_I64, 1), NAN));
    assert_true(b[0] == 0.0f);
}

static void test_ids_and_targets_are_validated_on_the_host(void **state) {
    (void)state;
    carry_ctx *ctx = ctxs[0];
    int64_t ids[] = {0, 4, -100, 3}, counted = 0;
    carry_tensor t = carry_view_2d(ids, CARRY_I64, 2, 2);
    assert_ok(ctx, carry_check_targets(ctx, &counted, t, 5));
    assert_int_equal(counted, 3);
    assert_refused(ctx, CARRY_ERANGE, "targets[1] is 4", carry_check_targets(ctx, NULL, t, 4));
    assert_refused(ctx, CARRY_ERANGE, "ids[2] is -100", carry_check_ids(ctx, t, 5));
    ids[2] = 0;
    assert_ok(ctx, carry_check_ids(ctx, t, 5));
    t.device = 1;
    assert_refused(ctx, CARRY_EDEVICE, "ids is on device 1", carry_check_ids(ctx, t, 5));
    assert_refused(ctx, CARRY_EDTYPE, "ids is f64", carry_check_ids(ctx, carry_view_1d(ids, CARRY_F64, 4), 5));
}

#define TEST(name) cmocka_unit_test_teardown(name, free_kept)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_views_keep_type_and_device),
        TEST(test_copies_bring_the_same_bits),
        TEST(test_constants_are_the_value_in_every_type),
        TEST(test_copies_name_what_does_not_fit),
        TEST(test_ids_and_targets_are_validated_on_the_host),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
