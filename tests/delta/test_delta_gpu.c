/* Every method that a GPU has for the gated delta rule: outputs and states equal the float64 recurrence, gradients
   those of the CPU, over odd sizes, every option and every storage type. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "delta_gpu_support.h"

static void every_method_equals_the_recurrence_for_every_shape(void **unused) {
    (void)unused;
    static const int64_t shapes[][6] = {{1, 1, 1, 1, 1, 1},      {1, 17, 1, 2, 3, 5},     {2, 33, 2, 2, 16, 16},
                                        {1, 65, 1, 1, 60, 100},  {3, 15, 1, 3, 33, 17},   {1, 129, 2, 4, 8, 1},
                                        {1, 200, 1, 1, 64, 64},  {1, 64, 1, 2, 1, 31},    {1, 20, 1, 1, 256, 256},
                                        {2, 70, 2, 4, 128, 128}, {1, 63, 1, 2, 128, 256}, {1, 130, 1, 1, 129, 65},
                                        {1, 20, 1, 1, 256, 512}, {1, 30, 1, 1, 40, 511}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int gate = 0; gate < 3; gate++) {
            data d = make(ctx,
                          (carry_delta_problem){.batch = shapes[i][0],
                                                .tokens = shapes[i][1],
                                                .heads = shapes[i][2],
                                                .value_heads = shapes[i][3],
                                                .key = shapes[i][4],
                                                .value = shapes[i][5],
                                                .dtype = (carry_dtype)((i + (size_t)gate) % 3),
                                                .gate = (carry_delta_gate)gate,
                                                .l2norm = i % 2 == 0 && shapes[i][4] > 1, /* else no gradient is left */
                                                .state_transposed = i % 3 == 1,
                                                .scale = i % 4 == 2 ? 0.7f : 0.0f},
                          NULL);
            check_methods(&d);
            discard(&d);
        }
    }
    carry_ctx_free(ctx);
}

static void options_inside_the_rule_equal_the_recurrence(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static const int64_t sizes[][2] = {{12, 20}, {128, 128}, {32, 32}, {64, 40}};
    for (int form = 0; form < 32; form++) {
        data d = make(ctx,
                      (carry_delta_problem){.batch = 2,
                                            .tokens = 90,
                                            .heads = 2,
                                            .value_heads = 4,
                                            .key = sizes[form / 8][0],
                                            .value = sizes[form / 8][1],
                                            .dtype = form < 16 ? CARRY_F32 : CARRY_BF16,
                                            .gate = CARRY_DELTA_HEAD_GATE,
                                            .gate_inside = (form & 1) != 0,
                                            .beta_sigmoid = (form & 2) != 0,
                                            .beta_factor = (form & 2) != 0 ? 2.0f : 0.0f,
                                            .l2norm = true,
                                            .state_transposed = (form & 4) != 0},
                      NULL);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Empty sequences, one longer than a chunk by one; 1,500 sequences of one token; 70,000, more than a grid's y or z
   allows. */
static void packed_sequences_do_not_leak(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 0, 15, 100, 100, 165, 166, 300};
    static int64_t singles[70001];
    for (int64_t i = 0; i <= 70000; i++) {
        singles[i] = i;
    }
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 5; form++) {
        const bool few = form < 2 || form == 4;
        carry_delta_problem p = {.batch = 1, .gate = CARRY_DELTA_HEAD_GATE, .l2norm = true};
        p.tokens = few ? 300 : form == 2 ? 1500 : 70000;
        p.sequences = few ? 7 : p.tokens;
        p.heads = few ? 2 : 1;
        p.value_heads = few ? 4 : 1;
        p.key = form == 0 ? 16 : form == 1 ? 128 : form == 4 ? 64 : form == 2 ? 4 : 1;
        p.value = form == 0 ? 18 : form == 1 ? 128 : form == 4 ? 64 : form == 2 ? 4 : 1;
        p.dtype = form == 1 || form == 4 ? CARRY_BF16 : CARRY_F32;
        data d = make(ctx, p, few ? borders : singles);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Gates of 0, -20, -1000 and -inf among small ones; beta of 0 and near 2. */
static void extreme_gates_and_betas_are_right(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int all = 0; all < 18; all++) {
        const int form = all % 6;
        const int64_t size = all < 6 ? 128 : all < 12 ? 32 : 64;
        carry_delta_problem p = {.batch = 1,
                                 .tokens = 150,
                                 .heads = 1,
                                 .value_heads = 2,
                                 .key = size,
                                 .value = size,
                                 .dtype = all < 6 ? CARRY_F32 : CARRY_BF16,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .l2norm = true};
        data d = make(ctx, p, NULL);
        float *g = d.here[G].data;
        float *beta = d.here[BETA].data;
        const float deep[] = {0.0f, -20.0f, -1000.0f, -INFINITY, -20.0f, -1000.0f};
        for (int64_t i = 0; i < p.tokens * p.value_heads; i++) {
            g[i] = form < 2 || i % 7 == 3 ? deep[form] : g[i];
            beta[i] = form == 4 ? 0.0f : form == 5 ? 1.99f : beta[i];
        }
        send(&d, G);
        send(&d, BETA);
        double *o;
        double *final;
        expected(&d, &o, &final);
        for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
            device_plan on;
            if (!open_plan(&d, &on, carry_delta_name(GPU, m))) {
                continue;
            }
            carry_delta_forward_args args = forward_args(&d, d.there);
            carry_delta_backward_args back = backward_args(&d, d.there, NULL);
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            assert_ok(ctx, carry_delta_backward(on.plan, &back, on.workspace, on.backward));
            for (int i = O; i <= DINITIAL; i++) {
                fetch(&d, i);
                for (int64_t j = 0; i != SNAPSHOTS && j < carry_tensor_count(&d.here[i]); j++) {
                    assert_true(isfinite(carry_tensor_at(&d.here[i], j)));
                }
            }
            compare(&d, carry_delta_name(GPU, m), O, o, 2e-5);
            compare(&d, carry_delta_name(GPU, m), FINAL, final, 2e-5);
            close_plan(&d, &on);
        }
        free(o);
        free(final);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Gates by key channel in bf16: lengths around a chunk and a block of 16, packed, channels with deep gates, and the
   memory that forward keeps for backward. */
static void key_gates_are_right_in_chunks(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 0, 15, 100, 100, 165, 166, 300};
    static const int64_t shapes[][3] = {{17, 128, 128}, {150, 128, 64}, {130, 64, 40}, {300, 32, 140}, {65, 100, 128}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        carry_delta_problem p = {.batch = 1, .heads = 1, .value_heads = 2, .dtype = CARRY_BF16};
        p.tokens = shapes[i][0];
        p.key = shapes[i][1];
        p.value = shapes[i][2];
        p.gate = CARRY_DELTA_KEY_GATE;
        p.l2norm = i % 2 == 0;
        p.state_transposed = i % 3 == 1;
        p.sequences = p.tokens == 300 ? 7 : 0;
        data d = make(ctx, p, p.sequences > 0 ? borders : NULL);
        float *g = d.here[G].data;
        const float deep[] = {0.0f, -20.0f, -1000.0f, -INFINITY};
        for (int64_t j = 0; j < p.tokens * p.value_heads * p.key; j++) {
            g[j] = i > 0 && j % 11 == 3 ? deep[j / 11 % 4] : g[j];
        }
        send(&d, G);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(key_gates_are_right_in_chunks),
        cmocka_unit_test(every_method_equals_the_recurrence_for_every_shape),
        cmocka_unit_test(options_inside_the_rule_equal_the_recurrence),
        cmocka_unit_test(packed_sequences_do_not_leak),
        cmocka_unit_test(extreme_gates_and_betas_are_right),
    };
    if (no_gpu()) {
        return 77;
    }
    if (getenv("CARRY_CASE") != NULL) { /* a pattern of test names */
        cmocka_set_test_filter(getenv("CARRY_CASE"));
    }
    return cmocka_run_group_tests_name("delta/gpu", tests, NULL, NULL);
}
