/* Operators on pools of states (ops/pool.h) on every device except the CPU, against the CPU. Skipped without such a
   device. */
/* labels: gpu */
#include "backend_support.h"

#include "ops/pool.h"

enum { SLOTS = 9 };

/* Columns first .. first + width - 1 of a tensor [T, row]. */
static carry_tensor columns(carry_tensor wide, int64_t first, int64_t width) {
    wide.data = (char *)wide.data + (size_t)first * carry_dtype_size(wide.dtype);
    wide.shape[1] = width;
    return wide;
}

/* Pieces of several lengths, some of them shorter than the tail, from row `first` on. On the device x is columns of a
   wider array. */
static void one_pieces(carry_dtype type, int64_t C, int64_t width, int64_t first, carry_activation f) {
    static const int64_t lengths[] = {1, 70, 2, 33, 3, 64};
    static const int32_t slots[] = {7, 0, 3, 8, 2, 5};
    int64_t starts[7] = {first};
    for (int i = 0; i < 6; i++) {
        starts[i + 1] = starts[i] + lengths[i];
    }
    const int64_t T = starts[6] + 2;
    operand x[2], y[2], w[2], tails[2], wide = given(type, 2, SHAPE(T, 4 * C), -1, 1);
    for (int i = 0; i < 2; i++) {
        const int64_t channels = (1 + i) * C;
        x[i] = given(type, 2, SHAPE(T, channels), -1, 1);
        y[i] = given(type, 2, SHAPE(T, channels), -1, 1);
        w[i] = given(i == 0 ? CARRY_F32 : type, 2, SHAPE(channels, width), -1, 1);
        tails[i] = given(CARRY_F32, 3, SHAPE(SLOTS, width - 1, channels), -1, 1);
    }
    EACH_SIDE {
        carry_conv_pieces_args args = {.maps = 2, .pieces = 6, .starts = starts, .slots = slots};
        for (int i = 0; i < 2; i++) {
            const int64_t at = i * 2 * C;
            CALL(carry_copy_columns(ctx, wide.t[side], at, x[i].t[side], 0, (1 + i) * C));
            args.map[i] = (carry_conv_step_map){
                .y = y[i].t[side],
                .x = side == 0 ? x[i].t[0] : columns(wide.t[side], at, (1 + i) * C),
                .w = w[i].t[side],
                .tails = tails[i].t[side],
                .activation = i == 0 ? f : CARRY_SILU,
            };
        }
        CALL(carry_conv_pieces(ctx, &args));
    }
    for (int i = 0; i < 2; i++) {
        compare("y", &y[i], 8.0 * (double)(width + 8) * 0x1p-24);
        compare("tails", &tails[i], 0.0);
    }
    free_operands();
}

static void case_conv_pieces(carry_dtype type) {
    one_pieces(type, 8, 4, 0, CARRY_SILU);
    one_pieces(type, 136, 4, 5, CARRY_NO_ACTIVATION);
    one_pieces(type, 16, 3, 1, CARRY_GELU);
    one_pieces(type, 24, 2, 0, CARRY_SILU);
    one_pieces(type, 5, 4, 3, CARRY_SILU); /* not in whole vectors */
    one_pieces(type, 8, 7, 0, CARRY_SILU); /* too wide for the kernel of all pieces */
}

static operand numbers(const int32_t *from, int64_t count) {
    operand o = missing();
    EACH_SIDE {
        o.t[side].data =
            side == 0 ? keep(malloc((size_t)count * sizeof *from)) : on_device((size_t)count * sizeof *from);
        CALL(carry_device_copy(ctx, o.t[side].data, side == 0 ? 0 : device_tested, from, 0,
                               (size_t)count * sizeof *from, NULL));
        CALL(carry_stream_wait(ctx, side == 0 ? 0 : device_tested, NULL));
    }
    return o;
}

static void one_move(carry_dtype type, int64_t n) {
    const operand slots = numbers((const int32_t[]){4, 0, 8}, 3);
    operand pool = given(type, 2, SHAPE(SLOTS, n), -1, 1), taken = wanted(type, 2, SHAPE(3, n));
    operand put = given(type, 2, SHAPE(3, n), -1, 1);
    EACH_SIDE {
        CALL(carry_take_slots(ctx, taken.t[side], pool.t[side], slots.t[side].data));
        CALL(carry_put_slots(ctx, pool.t[side], put.t[side], slots.t[side].data));
    }
    compare("taken", &taken, 0.0);
    compare("pool", &pool, 0.0);
    free_operands();
}

static void case_move_slots(carry_dtype type) {
    one_move(type, 1024);
    one_move(type, 6);
    one_move(type, 70000);
}

/* States in bf16: rows in f32, which are rounded the same on every device. */
static void one_narrow_move(int64_t n) {
    const operand slots = numbers((const int32_t[]){4, 0, 8}, 3);
    operand pool = given(CARRY_BF16, 2, SHAPE(SLOTS, n), -1, 1), taken = wanted(CARRY_F32, 2, SHAPE(3, n));
    operand put = given(CARRY_F32, 2, SHAPE(3, n), -1, 1);
    EACH_SIDE {
        CALL(carry_take_slots(ctx, taken.t[side], pool.t[side], slots.t[side].data));
        CALL(carry_put_slots(ctx, pool.t[side], put.t[side], slots.t[side].data));
    }
    compare("taken", &taken, 0.0);
    compare("pool", &pool, 0.0);
    free_operands();
}

static void case_narrow_slots(carry_dtype type) {
    (void)type;
    one_narrow_move(1024);
    one_narrow_move(7);
    one_narrow_move(70000);
}

/* Keys and values in 8 bits: what is read back after writing is the same on every device. */
static void one_f8(carry_dtype type, int64_t heads, int64_t width) {
    enum { COUNT = CARRY_POOL_PAGE + 9, ROWS = 3 * CARRY_POOL_PAGE };
    const operand pages = numbers((const int32_t[]){2, 0}, 2);
    int64_t list[COUNT];
    for (int64_t t = 0; t < COUNT; t++) {
        list[t] = (t < CARRY_POOL_PAGE ? 2 : 0) * CARRY_POOL_PAGE + t % CARRY_POOL_PAGE;
    }
    const operand rows = numbers((const int32_t *)(const void *)list, 2 * COUNT);
    operand from = given(type, 3, SHAPE(COUNT, heads, width), -1, 1);
    operand to = wanted(type, 3, SHAPE(COUNT, heads, width));
    const size_t bytes = (size_t)(ROWS * heads * width);
    EACH_SIDE {
        void *codes = side == 0 ? keep(malloc(bytes)) : on_device(bytes);
        void *scales = side == 0 ? keep(malloc((size_t)(ROWS * heads))) : on_device((size_t)(ROWS * heads));
        const int device = side == 0 ? 0 : device_tested;
        const carry_f8_pool pool = {
            .numbers = carry_view_on(device, codes, CARRY_F8, 3, (const int64_t[]){ROWS, heads, width}),
            .scales = carry_view_on(device, scales, CARRY_I8, 2, (const int64_t[]){ROWS, heads})};
        CALL(carry_put_rows_f8(ctx, pool, from.t[side], rows.t[side].data));
        CALL(carry_take_pages_f8(ctx, to.t[side], pool, pages.t[side].data));
    }
    compare("to", &to, 0.0);
    free_operands();
}

static void case_f8(carry_dtype type) {
    one_f8(type, 2, 256);
    one_f8(type, 1, 64);
    one_f8(type, 3, 37);
}

static void test_pools(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("conv_pieces", case_conv_pieces, 3);
        run_case("take_slots, put_slots", case_move_slots, 3);
        run_case("slots in bf16", case_narrow_slots, 1);
        run_case("put_rows_f8, take_pages_f8", case_f8, 3);
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pools)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
