/* Gates by key channel (KDA) in bf16 and f16, the backward pass of every method of the GPU: gradients equal those of
   the CPU over sizes and options, deep gates and betas up to 2, with optional tensors left out, in rounds of sequences,
   and have the same bits for all strides. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "delta_gpu_support.h"

static carry_delta_problem problem_of(int64_t tokens, int64_t heads, int64_t value_heads, int64_t key, int64_t value) {
    return (carry_delta_problem){.batch = 1,
                                 .tokens = tokens,
                                 .heads = heads,
                                 .value_heads = value_heads,
                                 .key = key,
                                 .value = value,
                                 .dtype = CARRY_BF16,
                                 .gate = CARRY_DELTA_KEY_GATE,
                                 .l2norm = true};
}

/* One value head for each head, and two; x inside a page (V up to twice the keys) and beside it. */
static void sizes_and_options(void **unused) {
    (void)unused;
    static const int64_t sizes[][2] = {{128, 128}, {64, 64}, {16, 16},   {100, 200}, {128, 64},
                                       {64, 256},  {33, 31}, {128, 256}, {64, 512}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        carry_delta_problem p = problem_of(i == 0 ? 200 : 70, 2, i % 2 == 0 ? 2 : 4, sizes[i][0], sizes[i][1]);
        p.batch = i % 3 == 2 ? 2 : 1;
        p.l2norm = i % 4 != 1;
        p.beta_sigmoid = i % 2 == 0;
        p.beta_factor = p.beta_sigmoid ? 2.0f : 0.0f;
        p.state_transposed = i % 3 == 0;
        p.scale = i % 3 == 1 ? 0.7f : 0.0f;
        p.dtype = i % 3 == 1 ? CARRY_F16 : CARRY_BF16;
        data d = make(ctx, p, NULL);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* All gates are deep (but e^-20 is zero in f16), or every seventh; betas of 0 and of 1.99. */
static void deep_gates_and_betas(void **unused) {
    (void)unused;
    static const float deep[] = {0.0f, -20.0f, -1000.0f, -INFINITY, -3.0f};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 10; form++) {
        carry_delta_problem p = problem_of(130, 1, 1, form % 2 == 0 ? 64 : 128, 64);
        p.dtype = form == 0 || form == 7 ? CARRY_F16 : CARRY_BF16;
        data d = make(ctx, p, NULL);
        float *g = d.here[G].data;
        float *beta = d.here[BETA].data;
        for (int64_t i = 0; i < p.tokens * p.key; i++) {
            g[i] = form < 5 || i % 7 == 3 ? deep[form % 5] : g[i];
        }
        for (int64_t i = 0; i < p.tokens; i++) {
            beta[i] = form % 3 == 1 ? 1.99f : form % 3 == 2 && i % 2 == 0 ? 0.0f : beta[i];
        }
        send(&d, G);
        send(&d, BETA);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* 290 sequences of no, one or two tokens: more chunks than fit at once; and longer sequences among short ones. */
static void packed_sequences(void **unused) {
    (void)unused;
    static int64_t borders[291];
    static const int64_t some[] = {0, 0, 1, 64, 128, 193, 193, 200};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int64_t i = 0; i < 290; i++) {
        borders[i + 1] = borders[i] + i % 3;
    }
    for (int form = 0; form < 3; form++) {
        carry_delta_problem p = problem_of(form == 0 ? borders[290] : 200, 1, form == 2 ? 2 : 1, 128, 128);
        p.sequences = form == 0 ? 290 : 7;
        data d = make(ctx, p, form == 0 ? borders : some);
        check_methods(&d);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* Without dfinal and dinitial, the other gradients equal those with a dfinal of zeros. */
static void what_is_not_given(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx, problem_of(100, 1, 1, 64, 64), NULL);
    double *wanted[ALL] = {NULL};
    device_plan on;
    memset(d.here[DFINAL].data, 0, bytes_of(&d.here[DFINAL]));
    assert_true(gradients_of_cpu(&d, wanted));
    for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
        if (!open_plan(&d, &on, carry_delta_name(GPU, m))) {
            continue;
        }
        carry_delta_backward_args back = backward_args(&d, d.there, NULL);
        back.dfinal_state.data = back.dinitial_state.data = NULL;
        poison(&d);
        assert_ok(ctx, carry_delta_backward(on.plan, &back, on.workspace, on.backward));
        for (int i = DQ; i <= DBETA; i++) {
            fetch(&d, i);
            compare(&d, carry_delta_name(GPU, m), i, wanted[i], 2e-4);
        }
        close_plan(&d, &on);
    }
    for (int i = 0; i < ALL; i++) {
        free(wanted[i]);
    }
    discard(&d);
    carry_ctx_free(ctx);
}

/* q, k, v and their gradients as parts of wider rows, one of them unaligned: the same bits. */
static void strides_do_not_matter(void **unused) {
    (void)unused;
    static const int parts[] = {Q, KEY, V, DO, DQ, DK, DV};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx, problem_of(80, 1, 1, 64, 64), NULL);
    carry_tensor strided[ALL];
    memcpy(strided, d.there, sizeof strided);
    enum { WIDE = 7 * 64 + 12, TOKENS = 80 };
    void *wide;
    static uint16_t here[TOKENS * WIDE];
    assert_ok(ctx, carry_device_alloc(ctx, &wide, GPU, sizeof here));
    for (int i = 0; i < 7; i++) {
        int64_t at = i * 64 + (i == 1 ? 1 : i == 2 ? 2 : i > 2 ? 8 : 0); /* k and v begin at odd offsets */
        const uint16_t *from = d.here[parts[i]].data;
        for (int64_t j = 0; i < 4 && j < TOKENS * 64; j++) {
            here[j / 64 * WIDE + at + j % 64] = from[j];
        }
        strided[parts[i]].data = (uint16_t *)wide + at;
        strided[parts[i]].stride[0] = TOKENS * WIDE;
        strided[parts[i]].stride[1] = WIDE;
    }
    for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
        device_plan on;
        if (!open_plan(&d, &on, carry_delta_name(GPU, m))) {
            continue;
        }
        carry_delta_backward_args plain = backward_args(&d, d.there, NULL);
        carry_delta_backward_args other = backward_args(&d, strided, NULL);
        poison(&d);
        assert_ok(ctx, carry_device_copy(ctx, wide, GPU, here, 0, sizeof here, NULL));
        assert_ok(ctx, carry_delta_backward(on.plan, &plain, on.workspace, on.backward));
        assert_ok(ctx, carry_delta_backward(on.plan, &other, on.workspace, on.backward));
        static uint16_t got[TOKENS * WIDE];
        assert_ok(ctx, carry_stream_wait(ctx, GPU, NULL));
        assert_ok(ctx, carry_device_copy(ctx, got, 0, wide, GPU, sizeof got, NULL));
        for (int i = 4; i < 7; i++) {
            fetch(&d, parts[i]);
            const uint16_t *wanted = d.here[parts[i]].data;
            for (int64_t j = 0; j < TOKENS * 64; j++) {
                assert_int_equal(got[j / 64 * WIDE + i * 64 + 8 + j % 64], wanted[j]);
            }
        }
        close_plan(&d, &on);
    }
    carry_device_free(ctx, GPU, wide);
    discard(&d);
    carry_ctx_free(ctx);
}

/* Slightly more than a chunk, for slow tools (compute-sanitizer). */
static void short_keys(int64_t key, int64_t value, int64_t value_heads) {
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx, problem_of(75, 1, value_heads, key, value), NULL);
    check_methods(&d);
    discard(&d);
    carry_ctx_free(ctx);
}
static void short_keys_of_128(void **unused) {
    (void)unused;
    short_keys(128, 128, 2);
}
static void short_keys_of_64(void **unused) {
    (void)unused;
    short_keys(64, 40, 1);
}

/* The workspace is at most one and a half times the bytes of q, k, v, do and g (f32), or at most 32 MB, for heads with
   one value head each and any number of sequences. */
static void workspace_is_bounded(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < 200; i++) {
        carry_delta_problem p = problem_of(64 << i % 10, 1 + i % 5, 1 + i % 5, i % 7 == 0 ? 64 : 128, 128);
        p.value = i % 11 == 0 ? 64 : 128;
        p.batch = 1 + i % 3 * 4;
        p.sequences = i % 4 == 0 ? (i % 8 == 0 ? 7 : p.tokens / 20) : 0;
        p.batch = p.sequences > 0 ? 1 : p.batch;
        p.device = GPU;
        carry_delta_plan *plan;
        if (carry_delta_plan_new(ctx, &plan, &p,
                                 &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "keys64"}) !=
            CARRY_OK) {
            continue; /* an older GPU */
        }
        double bytes = (double)carry_delta_backward_workspace(plan);
        double inputs = (double)(p.batch * p.tokens * 4 * p.heads * (2 * p.key + p.value));
        if (bytes > 1.5 * inputs && bytes > 32e6 + 4096.0) {
            fail_msg("%g of %g bytes of inputs (%lld x %lld tokens, heads %lld, K %lld, V %lld, packed %lld)", bytes,
                     inputs, (long long)p.batch, (long long)p.tokens, (long long)p.heads, (long long)p.key,
                     (long long)p.value, (long long)p.sequences);
        }
        carry_delta_plan_free(plan);
    }
    carry_ctx_free(ctx);
}

/* Long enough that the kernels of a Hopper GPU work in segments. Forward only, with and without memory kept for
   backward. */
static void a_long_sequence_in_segments(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx, problem_of(2600, 1, 1, 128, 64), NULL);
    device_plan on;
    double *o;
    double *final;
    if (open_plan(&d, &on, "keys64")) {
        expected(&d, &o, &final);
        for (int kept = 0; kept < 2; kept++) {
            carry_delta_forward_args args = forward_args(&d, d.there);
            args.kept = kept == 1 ? on.kept : NULL;
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            fetch(&d, O);
            fetch(&d, FINAL);
            compare(&d, "keys64", O, o, 2e-5);
            compare(&d, "keys64", FINAL, final, 2e-5);
        }
        free(o);
        free(final);
        close_plan(&d, &on);
    }
    discard(&d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_and_options),    cmocka_unit_test(deep_gates_and_betas),
        cmocka_unit_test(packed_sequences),     cmocka_unit_test(a_long_sequence_in_segments),
        cmocka_unit_test(what_is_not_given),    cmocka_unit_test(strides_do_not_matter),
        cmocka_unit_test(workspace_is_bounded), cmocka_unit_test(short_keys_of_128),
        cmocka_unit_test(short_keys_of_64),
    };
    if (no_gpu()) {
        return 77;
    }
    if (getenv("CARRY_CASE") != NULL) { /* a pattern of test names */
        cmocka_set_test_filter(getenv("CARRY_CASE"));
    }
    return cmocka_run_group_tests_name("delta/gpu_keys", tests, NULL, NULL);
}
