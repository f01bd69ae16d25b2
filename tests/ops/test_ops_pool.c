/* Operators on pools of states (ops/pool.h) on the CPU. */
#include "nn_support.h"

#include "carry/ops.h"
#include "core/tensor.h"
#include "ops/pool.h"

enum { CHANNELS = 20, WIDTH = 4, TOKENS = 50, SLOTS = 5 };

static carry_ctx *ctx;

static int open_all(void **state) {
    (void)open_contexts(state);
    ctx = ctxs[1];
    return 0;
}

static void zero_tails(carry_tensor tails) {
    memset(tails.data, 0, (size_t)carry_tensor_count(&tails) * sizeof(float));
}

/* Two sequences of 50 tokens, read in pieces of several lengths, equal the convolution of each whole sequence. */
static void pieces_equal_whole_sequences(void **state) {
    (void)state;
    static const int64_t cuts[][2] = {{1, 30}, {2, 1}, {30, 7}, {17, 12}};
    for (int type = 0; type < 3; type++) {
        const carry_tensor x = random_array(types[type], 3, SHAPE(2, TOKENS, CHANNELS), -1, 1).t;
        const carry_tensor w = random_array(CARRY_F32, 2, SHAPE(CHANNELS, WIDTH), -1, 1).t;
        const carry_tensor whole = poisoned(types[type], 3, SHAPE(2, TOKENS, CHANNELS)).t;
        const carry_tensor last = poisoned(CARRY_F32, 3, SHAPE(2, WIDTH - 1, CHANNELS)).t;
        const carry_tensor tails = random_array(CARRY_F32, 3, SHAPE(SLOTS, WIDTH - 1, CHANNELS), -1, 1).t;
        assert_ok(ctx, carry_conv(ctx, &(carry_conv_args){
                                           .y = whole, .after = last, .x = x, .w = w, .activation = CARRY_SILU}));
        zero_tails(tails);
        int64_t at[2] = {0, 0};
        for (int turn = 0; turn < 4; turn++) {
            const int64_t rows = cuts[turn][0] + cuts[turn][1];
            const carry_tensor in = poisoned(types[type], 2, SHAPE(rows, CHANNELS)).t;
            const carry_tensor out = poisoned(types[type], 2, SHAPE(rows, CHANNELS)).t;
            const size_t row = CHANNELS * carry_dtype_size(types[type]);
            for (int i = 0; i < 2; i++) {
                memcpy((char *)in.data + (size_t)(i * cuts[turn][0]) * row,
                       (const char *)x.data + (size_t)(i * TOKENS + at[i]) * row, (size_t)cuts[turn][i] * row);
            }
            assert_ok(ctx, carry_conv_pieces(
                               ctx, &(carry_conv_pieces_args){.map = {{out, in, w, tails, CARRY_SILU}},
                                                              .maps = 1,
                                                              .pieces = 2,
                                                              .starts = (const int64_t[]){0, cuts[turn][0], rows},
                                                              .slots = (const int32_t[]){3, 1}}));
            for (int i = 0; i < 2; i++) {
                assert_memory_equal((char *)out.data + (size_t)(i * cuts[turn][0]) * row,
                                    (const char *)whole.data + (size_t)(i * TOKENS + at[i]) * row,
                                    (size_t)cuts[turn][i] * row);
                at[i] += cuts[turn][i];
            }
        }
        const size_t tail = (size_t)(WIDTH - 1) * CHANNELS * sizeof(float);
        assert_memory_equal((char *)tails.data + 3 * tail, last.data, tail);
        assert_memory_equal((char *)tails.data + tail, (char *)last.data + tail, tail);
        (void)free_kept(NULL);
    }
}

static void wrong_pieces_are_refused(void **state) {
    (void)state;
    const carry_tensor x = random_array(CARRY_F32, 2, SHAPE(8, CHANNELS), -1, 1).t;
    const carry_tensor w = random_array(CARRY_F32, 2, SHAPE(CHANNELS, WIDTH), -1, 1).t;
    const carry_tensor tails = random_array(CARRY_F32, 3, SHAPE(SLOTS, WIDTH - 1, CHANNELS), -1, 1).t;
    const struct {
        int64_t starts[3];
        int32_t slots[2];
    } wrong[] = {{{0, 3, 9}, {0, 1}}, {{0, 0, 8}, {0, 1}}, {{-1, 3, 8}, {0, 1}}, {{0, 3, 8}, {0, SLOTS}}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        carry_conv_pieces_args args = {.map = {{x, x, w, tails, CARRY_SILU}},
                                       .maps = 1,
                                       .pieces = 2,
                                       .starts = wrong[i].starts,
                                       .slots = wrong[i].slots};
        assert_int_equal(carry_conv_pieces(ctx, &args), CARRY_ERANGE);
    }
}

static void slots_are_taken_and_put_back(void **state) {
    (void)state;
    const int32_t slots[] = {4, 0, 2};
    const carry_tensor pool = random_array(CARRY_F32, 2, SHAPE(SLOTS, 7), -1, 1).t;
    const carry_tensor other = random_array(CARRY_F32, 2, SHAPE(SLOTS, 7), -1, 1).t;
    const carry_tensor taken = poisoned(CARRY_F32, 2, SHAPE(3, 7)).t;
    assert_ok(ctx, carry_take_slots(ctx, taken, pool, slots));
    assert_ok(ctx, carry_put_slots(ctx, other, taken, slots));
    for (int i = 0; i < 3; i++) {
        const size_t bytes = 7 * sizeof(float);
        assert_memory_equal((char *)taken.data + (size_t)i * bytes, (char *)pool.data + (size_t)slots[i] * bytes,
                            bytes);
        assert_memory_equal((char *)other.data + (size_t)slots[i] * bytes, (char *)pool.data + (size_t)slots[i] * bytes,
                            bytes);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_equal_whole_sequences),
        cmocka_unit_test_teardown(wrong_pieces_are_refused, free_kept),
        cmocka_unit_test_teardown(slots_are_taken_and_put_back, free_kept),
    };
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
