/* Other entry points of the gated delta rule on a GPU: snapshots, ranges, single tokens; the same bits in repeated runs
   and for all strides; bad input is refused by name. Without a GPU all of it is skipped. */
/* labels: gpu */
#include "delta_gpu_support.h"

#define REPEATS 50

static void snapshots_are_those_of_the_cpu(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 3, 3, 90, 150};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int form = 0; form < 4; form++) {
        carry_delta_problem p = {.batch = 1,
                                 .tokens = 150,
                                 .sequences = 4,
                                 .heads = 1,
                                 .value_heads = 2,
                                 .key = 24,
                                 .value = 40,
                                 .gate = CARRY_DELTA_HEAD_GATE,
                                 .state_transposed = form % 2 == 1,
                                 .l2norm = true};
        p.snapshot_every = form < 2 ? 37 : 0;
        p.snapshot_last = form < 2 ? 0 : 5;
        data d = make(ctx, p, borders);
        carry_delta_plan *cpu;
        assert_ok(
            ctx, carry_delta_plan_new(
                     ctx, &cpu, &p, &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "recurrent"}));
        void *workspace = malloc(carry_delta_forward_workspace(cpu));
        int64_t count = carry_tensor_count(&d.here[SNAPSHOTS]);
        double *wanted = malloc((size_t)count * sizeof *wanted);
        assert_true(workspace != NULL && wanted != NULL);
        carry_delta_forward_args args = forward_args(&d, d.here);
        assert_ok(ctx, carry_delta_forward(cpu, &args, workspace, carry_delta_forward_workspace(cpu)));
        for (int64_t i = 0; i < count; i++) {
            wanted[i] = carry_tensor_at(&d.here[SNAPSHOTS], i);
        }
        for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
            device_plan on;
            if (open_plan(&d, &on, carry_delta_name(GPU, m))) {
                args = forward_args(&d, d.there);
                poison(&d);
                assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
                fetch(&d, SNAPSHOTS);
                compare(&d, carry_delta_name(GPU, m), SNAPSHOTS, wanted, 2e-5);
                close_plan(&d, &on);
            }
        }
        free(workspace);
        free(wanted);
        carry_delta_plan_free(cpu);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* M S + L with the initial state S equals the final state. */
static void a_range_is_its_pair(void **unused) {
    (void)unused;
    enum { K = 40, W = 24 };
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (int gate = 0; gate < 3; gate++) {
        data d = make(ctx,
                      (carry_delta_problem){.batch = 2,
                                            .tokens = 70,
                                            .heads = 1,
                                            .value_heads = 2,
                                            .key = K,
                                            .value = W,
                                            .gate = (carry_delta_gate)gate,
                                            .l2norm = true},
                      NULL);
        double *o;
        double *final;
        static float here[4 * K * K];
        expected(&d, &o, &final);
        for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
            device_plan on;
            if (!open_plan(&d, &on, carry_delta_name(GPU, m))) {
                continue;
            }
            carry_delta_forward_args args = forward_args(&d, d.there);
            carry_tensor M = carry_view_4d(NULL, CARRY_F32, 2, 2, K, K);
            void *workspace;
            M.device = GPU;
            size_t bytes = carry_delta_range_workspace(on.plan);
            assert_ok(ctx, carry_device_alloc(ctx, &M.data, GPU, sizeof here));
            assert_ok(ctx, carry_device_alloc(ctx, &workspace, GPU, bytes));
            poison(&d);
            assert_ok(ctx, carry_delta_range(on.plan, M, d.there[FINAL], &args, workspace, bytes));
            fetch(&d, FINAL);
            assert_ok(ctx, carry_device_copy(ctx, here, 0, M.data, GPU, sizeof here, NULL));
            const float *S = d.here[INITIAL].data;
            float *L = d.here[FINAL].data;
            for (int64_t i = 0; i < 4 * K * W; i++) {
                int64_t state = i / (K * W);
                double sum = (double)L[i];
                for (int64_t j = 0; j < K; j++) {
                    sum += (double)here[(state * K + i / W % K) * K + j] * (double)S[(state * K + j) * W + i % W];
                }
                L[i] = (float)sum;
            }
            compare(&d, carry_delta_name(GPU, m), FINAL, final, 2e-5);
            carry_device_free(ctx, GPU, M.data);
            carry_device_free(ctx, GPU, workspace);
            close_plan(&d, &on);
        }
        free(o);
        free(final);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* carry_delta_step equals one token of the recurrence, in place; so does a forward pass, which leaves the initial state
   unchanged. */
static void a_step_is_one_token(void **unused) {
    (void)unused;
    static const int64_t shapes[][5] = {{3, 2, 4, 128, 128}, {2, 1, 1, 33, 31},   {2, 1, 3, 256, 60}, {5, 2, 2, 64, 64},
                                        {1, 1, 2, 7, 4},     {2, 1, 1, 200, 256}, {2, 1, 2, 256, 512}};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    for (size_t form = 0; form < 42; form++) {
        const int64_t *s = shapes[form % 7];
        data d = make(ctx,
                      (carry_delta_problem){.batch = s[0],
                                            .tokens = 1,
                                            .heads = s[1],
                                            .value_heads = s[2],
                                            .key = s[3],
                                            .value = s[4],
                                            .dtype = (carry_dtype)(form % 3),
                                            .gate = (carry_delta_gate)(form / 6 % 3),
                                            .gate_inside = form / 6 % 3 == 1 && form % 2 == 0,
                                            .beta_sigmoid = form % 2 == 1,
                                            .l2norm = form % 4 < 2,
                                            .state_transposed = form >= 18},
                      NULL);
        double *o;
        double *final;
        expected(&d, &o, &final);
        for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
            device_plan on;
            if (!open_plan(&d, &on, carry_delta_name(GPU, m))) {
                continue;
            }
            carry_delta_forward_args args = forward_args(&d, d.there);
            poison(&d);
            memcpy(d.here[FINAL].data, d.here[INITIAL].data, bytes_of(&d.here[FINAL]));
            send(&d, FINAL);
            assert_ok(ctx, carry_delta_step(on.plan, d.there[O], d.there[FINAL], &args, on.workspace, on.forward));
            fetch(&d, O);
            fetch(&d, FINAL);
            compare(&d, carry_delta_name(GPU, m), O, o, 2e-5);
            compare(&d, carry_delta_name(GPU, m), FINAL, final, 2e-5);
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            fetch(&d, O);
            fetch(&d, FINAL);
            compare(&d, carry_delta_name(GPU, m), O, o, d.p.dtype == CARRY_BF16 ? 1e-2 : 2e-5);
            compare(&d, carry_delta_name(GPU, m), FINAL, final, d.p.dtype == CARRY_BF16 ? 1e-2 : 2e-5);
            close_plan(&d, &on);
        }
        free(o);
        free(final);
        discard(&d);
    }
    carry_ctx_free(ctx);
}

/* The same bits in every run, and with q, k and v as parts of one wider row. */
static void runs_and_strides_do_not_matter(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx,
                  (carry_delta_problem){.batch = 2,
                                        .tokens = 100,
                                        .heads = 2,
                                        .value_heads = 4,
                                        .key = 128,
                                        .value = 128,
                                        .dtype = CARRY_BF16,
                                        .gate = CARRY_DELTA_HEAD_GATE,
                                        .l2norm = true},
                  NULL);
    int64_t q_row = d.p.heads * d.p.key;
    int64_t v_row = d.p.value_heads * d.p.value;
    carry_tensor wide = carry_view_3d(NULL, CARRY_BF16, d.p.batch, d.p.tokens, 2 * q_row + v_row);
    uint16_t *mixed = malloc(bytes_of(&wide));
    assert_non_null(mixed);
    for (int64_t i = 0; i < d.p.batch * d.p.tokens; i++) {
        uint16_t *row = mixed + i * (2 * q_row + v_row);
        memcpy(row, (uint16_t *)d.here[Q].data + i * q_row, (size_t)q_row * 2);
        memcpy(row + q_row, (uint16_t *)d.here[KEY].data + i * q_row, (size_t)q_row * 2);
        memcpy(row + 2 * q_row, (uint16_t *)d.here[V].data + i * v_row, (size_t)v_row * 2);
    }
    assert_ok(ctx, carry_device_alloc(ctx, &wide.data, GPU, bytes_of(&wide)));
    assert_ok(ctx, carry_device_copy(ctx, wide.data, GPU, mixed, 0, bytes_of(&wide), NULL));
    carry_tensor strided[ALL];
    memcpy(strided, d.there, sizeof strided);
    const int parts[] = {Q, KEY, V};
    for (int i = 0; i < 3; i++) {
        strided[parts[i]].data = (uint16_t *)wide.data + i * q_row;
        strided[parts[i]].stride[0] = wide.stride[0];
        strided[parts[i]].stride[1] = wide.stride[1];
    }
    for (int m = 0; carry_delta_name(GPU, m) != NULL; m++) {
        device_plan on;
        void *first[ALL] = {NULL};
        if (!open_plan(&d, &on, carry_delta_name(GPU, m))) {
            continue;
        }
        for (int run = 0; run < REPEATS; run++) {
            carry_delta_forward_args args = forward_args(&d, run == 1 ? strided : d.there);
            args.kept = on.kept;
            carry_delta_backward_args back = backward_args(&d, run == 1 ? strided : d.there, on.kept);
            poison(&d);
            assert_ok(ctx, carry_delta_forward(on.plan, &args, on.workspace, on.forward));
            assert_ok(ctx, carry_delta_backward(on.plan, &back, on.workspace, on.backward));
            for (int i = O; i <= DINITIAL; i++) {
                fetch(&d, i);
                if (run == 0) {
                    first[i] = malloc(bytes_of(&d.here[i]));
                    assert_non_null(first[i]);
                    memcpy(first[i], d.here[i].data, bytes_of(&d.here[i]));
                } else if (memcmp(first[i], d.here[i].data, bytes_of(&d.here[i])) != 0) {
                    fail_msg("%s by %s has other bits in run %d", names[i], carry_delta_name(GPU, m), run);
                }
            }
        }
        for (int i = 0; i < ALL; i++) {
            free(first[i]);
        }
        close_plan(&d, &on);
    }
    carry_device_free(ctx, GPU, wide.data);
    free(mixed);
    discard(&d);
    carry_ctx_free(ctx);
}

static void bad_input_is_refused_by_name(void **unused) {
    (void)unused;
    static const int64_t borders[] = {0, 20, 40};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    data d = make(ctx,
                  (carry_delta_problem){.batch = 1,
                                        .tokens = 40,
                                        .sequences = 2,
                                        .heads = 1,
                                        .value_heads = 2,
                                        .key = 16,
                                        .value = 16,
                                        .gate = CARRY_DELTA_HEAD_GATE},
                  borders);
    carry_delta_plan *none;
    carry_delta_problem p = d.p;
    p.device = 99;
    assert_refused(ctx, CARRY_EDEVICE, "there is no device 99", carry_delta_plan_new(ctx, &none, &p, NULL));
    assert_refused(
        ctx, CARRY_ENOTFOUND, "on GPUs: choose one of recurrent",
        carry_delta_plan_new(ctx, &none, &d.p,
                             &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk7"}));
    assert_refused(
        ctx, CARRY_EUNSUPPORTED, "chunk16 is for the CPU",
        carry_delta_plan_new(ctx, &none, &d.p,
                             &(carry_delta_options){CARRY_INIT(carry_delta_options), .algorithm = "chunk16"}));
    device_plan on;
    assert_true(open_plan(&d, &on, "recurrent"));
    carry_delta_forward_args args = forward_args(&d, d.there);
    args.k = d.here[KEY];
    assert_refused(ctx, CARRY_EDEVICE, "k is on device 0 and the problem is planned for device 1",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    args.k.device = GPU; /* claims to be on the GPU and is not */
    assert_refused(ctx, CARRY_EDEVICE, "k", carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    args = forward_args(&d, d.there);
    assert_refused(ctx, CARRY_EDEVICE, "the workspace",
                   carry_delta_forward(on.plan, &args, d.here[O].data, on.forward));
    assert_refused(ctx, CARRY_EWORKSPACE, "the plan needs",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward - 1));
    args.kept = (char *)on.kept + 4;
    assert_refused(ctx, CARRY_EALIGN, "not a multiple of 16",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    args.kept = NULL;
    carry_tensor elsewhere = d.cu_seqlens;
    elsewhere.device = GPU;
    args.cu_seqlens = elsewhere;
    assert_refused(ctx, CARRY_EDTYPE, "cu_seqlens must be packed i64 on the CPU",
                   carry_delta_forward(on.plan, &args, on.workspace, on.forward));
    close_plan(&d, &on);
    discard(&d);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snapshots_are_those_of_the_cpu),
        cmocka_unit_test(a_range_is_its_pair),
        cmocka_unit_test(a_step_is_one_token),
        cmocka_unit_test(runs_and_strides_do_not_matter),
        cmocka_unit_test(bad_input_is_refused_by_name),
    };
    if (no_gpu()) {
        return 77;
    }
    return cmocka_run_group_tests_name("delta/gpu_entries", tests, NULL, NULL);
}
