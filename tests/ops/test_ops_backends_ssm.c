/* State space layers on every device except the CPU, against the CPU's result: general products and tiles of tensor
   cores, steps, packed sequences, deep decays. Skipped without such a device. */
/* labels: gpu */
#include "backend_support.h"

#include <math.h>

#include "ops/decay.h"
#include "ops/ssm.h"

typedef struct shape {
    int64_t B, T, n, P, G, N;
    float low, high; /* of A_log */
    const int64_t *cuts;
    int64_t sequences;
} shape;

static carry_ssm_args args_of(const shape *s, const operand *in, int side, carry_tensor y) {
    return (carry_ssm_args){.y = y,
                            .xbc = in[0].t[side],
                            .dt = in[1].t[side],
                            .A_log = in[2].t[side],
                            .dt_bias = in[3].t[side],
                            .D = in[4].t[side],
                            .heads = s->n,
                            .groups = s->G,
                            .state = s->N,
                            .least = 0.01f,
                            .most = 5.0f};
}

/* Sums of up to T N products of numbers below 1; tiles also round scores, states and factors to 16 bits. */
static double bound(const shape *s, carry_dtype type) {
    const bool tiles = type != CARRY_F32 && s->P == 64;
    const double rounded = type == CARRY_F32 ? 0x1p-21 : type == CARRY_BF16 ? 0x1p-5 : 0x1p-8;
    return tiles ? rounded * sqrt((double)s->N) : 0x1p-19 * (double)s->N;
}

static void make(operand *in, const shape *s, carry_dtype type) {
    in[0] = given(type, 3, SHAPE(s->B, s->T, s->n * s->P + 2 * s->G * s->N), -1, 1);
    in[1] = given(type, 3, SHAPE(s->B, s->T, s->n), -3, 3);
    in[2] = given(CARRY_F32, 1, &s->n, s->low, s->high);
    in[3] = given(CARRY_F32, 1, &s->n, -1, 1);
    in[4] = given(CARRY_F32, 1, &s->n, -1, 1);
}

static void one(carry_dtype type, const shape *s) {
    const bool has_states = s->cuts == NULL;
    operand in[5], y = wanted(type, 3, SHAPE(s->B, s->T, s->n * s->P));
    make(in, s, type);
    operand cuts = has_states ? missing() : integers(s->cuts, s->sequences + 1);
    operand initial = given(CARRY_F32, 4, SHAPE(s->B, s->n, s->P, s->N), -1, 1);
    operand final = wanted(CARRY_F32, 4, SHAPE(s->B, s->n, s->P, s->N));
    operand dy = given(type, 3, SHAPE(s->B, s->T, s->n * s->P), -1, 1);
    operand dxbc = wanted(type, 3, in[0].t[0].shape), ddt = wanted(type, 3, in[1].t[0].shape);
    operand dA = given(CARRY_F32, 1, &s->n, 0, 1), dbias = given(CARRY_F32, 1, &s->n, 0, 1);
    operand dD = given(CARRY_F32, 1, &s->n, 0, 1);
    EACH_SIDE {
        carry_ssm_args args = args_of(s, in, side, y.t[side]);
        args.cu_seqlens = cuts.t[side];
        args.initial = has_states ? initial.t[side] : (carry_tensor){0};
        args.final = has_states ? final.t[side] : (carry_tensor){0};
        size_t bytes = carry_ssm_workspace(ctx, &args);
        CALL(carry_ssm(ctx, &args, room(side, bytes), bytes));
        args.initial = args.final = (carry_tensor){0};
        bytes = carry_ssm_backward_workspace(ctx, &args);
        const carry_ssm_backward_args back = {.dxbc = dxbc.t[side],
                                              .ddt = ddt.t[side],
                                              .dA_log = dA.t[side],
                                              .ddt_bias = dbias.t[side],
                                              .dD = dD.t[side],
                                              .dy = dy.t[side],
                                              .forward = args};
        CALL(carry_ssm_backward(ctx, &back, room(side, bytes), bytes));
    }
    const double most = bound(s, type), all = most * sqrt((double)(s->B * s->T));
    compare("y", &y, most);
    if (has_states) {
        compare("final", &final, most);
    }
    compare("dxbc", &dxbc, 4.0 * most);
    compare("ddt", &ddt, 8.0 * most);
    compare("dA_log", &dA, 8.0 * all);
    compare("ddt_bias", &dbias, 8.0 * all);
    compare("dD", &dD, all);
    free_operands();
}

static void case_any_shape(carry_dtype type) {
    static const int64_t cuts[] = {0, 3, 3, 70, 128, 150};
    one(type, &(shape){.B = 1, .T = 2, .n = 1, .P = 1, .G = 1, .N = 1});
    one(type, &(shape){.B = 2, .T = 131, .n = 4, .P = 5, .G = 2, .N = 3});
    one(type, &(shape){.B = 1, .T = 65, .n = 2, .P = 20, .G = 1, .N = 33, .low = -30.0f, .high = -30.0f});
    one(type, &(shape){.B = 1, .T = 65, .n = 2, .P = 8, .G = 2, .N = 6, .low = 3.0f, .high = 7.0f});
    one(type, &(shape){.B = 1, .T = 150, .n = 2, .P = 4, .G = 1, .N = 7, .cuts = cuts, .sequences = 5});
}

static void case_tiles(carry_dtype type) {
    static const int64_t cuts[] = {0, 3, 3, 70, 128, 150};
    one(type, &(shape){.B = 2, .T = 130, .n = 4, .P = 64, .G = 2, .N = 128, .low = -3.0f});
    one(type, &(shape){.B = 1, .T = 64, .n = 3, .P = 64, .G = 1, .N = 64, .low = -30.0f, .high = -30.0f});
    one(type, &(shape){.B = 1, .T = 65, .n = 2, .P = 64, .G = 2, .N = 64, .low = 3.0f, .high = 7.0f});
    one(type, &(shape){.B = 1, .T = 150, .n = 2, .P = 64, .G = 1, .N = 128, .cuts = cuts, .sequences = 5});
    one(type, &(shape){.B = 1, .T = 2100, .n = 2, .P = 64, .G = 1, .N = 64, .low = -5.0f}); /* in segments */
    one(type, &(shape){.B = 1, .T = 2100, .n = 2, .P = 64, .G = 1, .N = 128, .low = -5.0f});
    one(type, &(shape){.B = 2, .T = 129, .n = 6, .P = 64, .G = 1, .N = 128, .low = -30.0f, .high = -30.0f});
    one(type, &(shape){.B = 2, .T = 190, .n = 8, .P = 64, .G = 2, .N = 128, .low = 3.0f, .high = 7.0f});
    one(type, &(shape){.B = 1, .T = 100, .n = 3, .P = 64, .G = 1, .N = 128, .low = -3.0f}); /* an odd number of heads */
}

/* One token for sequences whose states are in slots. */
static void case_steps(carry_dtype type) {
    const shape s = {.B = 3, .T = 1, .n = 4, .P = 6, .G = 2, .N = 37};
    static int32_t slots[] = {4, 0, 2};
    operand in[5], y = wanted(type, 3, SHAPE(s.B, s.T, s.n * s.P));
    make(in, &s, type);
    operand states = given(CARRY_F32, 4, SHAPE(5, s.n, s.P, s.N), -1, 1);
    int32_t *slots_of[SIDES] = {slots};
    slots_of[1] = slots_of[2] = room(1, sizeof slots);
    CALL(carry_device_copy(ctx, slots_of[1], device_tested, slots, 0, sizeof slots, NULL));
    EACH_SIDE {
        carry_ssm_args args = args_of(&s, in, side, y.t[side]);
        args.initial = args.final = states.t[side];
        args.slots = slots_of[side];
        const size_t bytes = carry_ssm_workspace(ctx, &args);
        CALL(carry_ssm(ctx, &args, room(side, bytes), bytes));
    }
    compare("y", &y, bound(&s, type));
    compare("states", &states, bound(&s, CARRY_F32));
    free_operands();
}

/* Decays of KDA: heads of any width, saturated gates among them. Gradients are sums over tokens and columns. */
static void case_decays(carry_dtype type) {
    static const int64_t sizes[][3] = {{1, 1, 1}, {7, 3, 5}, {130, 2, 128}, {33, 2, 300}}; /* tokens, heads, columns */
    for (int turn = 0; turn < 8; turn++) {
        const int i = turn % 4;
        const float bound = turn < 4 ? 0.0f : -5.0f;
        const int64_t T = sizes[i][0], n = sizes[i][1], width = n * sizes[i][2];
        operand a = given(type, 2, SHAPE(T, width), -30, 50), A_log = given(CARRY_F32, 1, &n, -2, 2);
        operand bias = given(CARRY_F32, 1, &width, -1, 1), g = wanted(CARRY_F32, 2, SHAPE(T, width));
        operand dg = given(CARRY_F32, 2, SHAPE(T, width), -1, 1), da = wanted(type, 2, SHAPE(T, width));
        operand dA = given(CARRY_F32, 1, &n, -1, 1), dbias = given(CARRY_F32, 1, &width, -1, 1);
        EACH_SIDE {
            CALL(carry_decay_gate(ctx, g.t[side], a.t[side], A_log.t[side], bias.t[side], bound));
            CALL(carry_decay_gate_backward(ctx, &(carry_decay_gate_backward_args){.da = da.t[side],
                                                                                  .dA_log = dA.t[side],
                                                                                  .ddt_bias = dbias.t[side],
                                                                                  .dg = dg.t[side],
                                                                                  .a = a.t[side],
                                                                                  .A_log = A_log.t[side],
                                                                                  .dt_bias = bias.t[side],
                                                                                  .bound = bound}));
        }
        /* Numbers below e^2 * 51, each off by a few roundings of f32. */
        compare("g", &g, 400.0 * 0x1p-22);
        compare("da", &da, 8.0 * 0x1p-21);
        compare("dbias", &dbias, 8.0 * 0x1p-21 * (double)T);
        compare("dA_log", &dA, 400.0 * 0x1p-21 * (double)(T * sizes[i][2]));
        free_operands();
    }
}

static void test_state_space_layers_on_devices(void **state) {
    (void)state;
    for (device_tested = 1; device_tested < carry_device_count(); device_tested++) {
        run_case("ssm", case_any_shape, 3);
        run_case("ssm of tiles", case_tiles, 3);
        run_case("ssm steps", case_steps, 3);
        run_case("decays of KDA", case_decays, 3);
    }
    assert_int_equal(failures, 0);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: there is no device but the CPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_state_space_layers_on_devices)};
    return cmocka_run_group_tests(tests, open_all, close_contexts);
}
