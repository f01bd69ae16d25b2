/* Keys and values in fp8 and states in bf16 on a GPU: the results are those of the CPU with the same types up to
   rounding, by the chain of kernels, recorded and launched passes, and prompts beside single tokens; with same_bits
   they have the same bits beside any sequences. Types that a GPU does not support are refused by name. */
/* labels: gpu */
#include "gpu_model_support.h"
#include "runner_support.h"

static const carry_state_types all_types[] = {{CARRY_F8, CARRY_F32}, {CARRY_BF16, CARRY_BF16}, {CARRY_F8, CARRY_BF16}};
enum { TYPES = sizeof all_types / sizeof *all_types };

/* The largest relative RMS between the log probabilities of two cases, of tokens that both have. */
static double distance(const runner_case *a, const runner_case *b) {
    double most = 0.0;
    int compared = 0;
    for (int at = 0; at < RUNNER_SEQUENCES * RUNNER_TOKENS; at++) {
        const int s = at / RUNNER_TOKENS;
        const int t = at % RUNNER_TOKENS;
        if (a->has[s][t] && b->has[s][t]) {
            const double far = apart_f32(a->got[s][t], b->got[s][t], RUNNER_VOCABULARY);
            most = far > most || isnan(far) ? far : most;
            compared++;
        }
    }
    assert_true(compared >= RUNNER_SEQUENCES);
    return most;
}

/* In f32 a number that is nearly between two 8-bit floats may become the other one, which changes one element of many
   by 2^-4: the results are within 2e-2. Both run the same pieces. */
static void mixed_steps_in_f32_equal_the_cpu(void **unused) {
    (void)unused;
    static const int models[] = {0, 3, 4, 5, 7, 11, 13};
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case here;
    static runner_case there;
    for (size_t i = 0; i < TYPES * sizeof models / sizeof *models; i++) {
        carry_state_types types = all_types[i % TYPES];
        const carry_lm_config config = runner_model(models[i / TYPES]);
        if (!carry_lm_family_describe(config.family).on_cuda) {
            continue;
        }
        types.kv = types.kv == CARRY_F8 ? CARRY_F8 : CARRY_F32;
        carry_lm *lm = model(ctx, config);
        carry_lm *moved = gpu_moved_to(ctx, lm, 1);
        runner_open_typed(&here, lm, CARRY_F32, false, &types, 7 + (uint32_t)i);
        runner_open_typed(&there, moved, CARRY_F32, false, &types, 7 + (uint32_t)i);
        runner_finish(&here, false);
        runner_finish(&there, false);
        const double far = distance(&there, &here);
        print_message("model %d, keys and values %s, states %s: %.2g apart\n", models[i / TYPES],
                      carry_state_types_name(types.kv), carry_state_types_name(types.state), far);
        assert_true(far <= 2e-2);
        here.runner->ops->close(here.runner);
        there.runner->ops->close(there.runner);
        carry_lm_free(moved);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Single tokens of one to four sequences by the chain, then pieces beside them, against the full pass in f32.
   Activations in bf16 alone are allowed 3e-2 (test_engine_runner_gpu); the CPU with these types is within the same
   bound. */
static void steps_in_bf16_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *moved = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    for (int i = 0; i < 2 * TYPES; i++) { /* on the CPU, then on the GPU */
        runner_open_typed(&c, i < TYPES ? lm : moved, CARRY_BF16, false, &all_types[i % TYPES], 77);
        c.wants_all = true;
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){63, 3, 20, 5});
        for (int turn = 0; turn < 24; turn++) {
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, turn % 3 > 0, turn % 3 > 0, turn % 3 > 1});
        }
        runner_finish(&c, false);
        runner_compare(&c, lm, 6e-2);
        c.runner->ops->close(c.runner);
    }
    carry_lm_free(moved);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void same_bits_hold_beside_any_sequences(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *moved = gpu_moved_to(ctx, lm, 1);
    static runner_case together;
    static runner_case alone;
    const carry_runner_sizes sizes = {.slots = 5, .pages = 12, .sequences = 4, .tokens = 128, .context = RUNNER_TOKENS};
    carry_runner *tried;
    const carry_status status = carry_model_runner_new_with(moved, &tried, &sizes, CARRY_BF16,
                                                            &(carry_model_runner_options){.same_bits = true});
    if (status == CARRY_EUNSUPPORTED) {
        print_message("left out: %s\n", carry_ctx_error(ctx));
    } else {
        assert_ok(ctx, status);
        tried->ops->close(tried);
    }
    for (int i = 0; status == CARRY_OK && i < TYPES; i++) {
        runner_open_typed(&together, moved, CARRY_BF16, true, &all_types[i], 5);
        runner_open_typed(&alone, moved, CARRY_BF16, true, &all_types[i], 6);
        together.wants_all = alone.wants_all = true;
        runner_finish(&together, false);
        runner_finish(&alone, true);
        runner_compare(&together, lm, 6e-2);
        for (int at = 0; at < RUNNER_SEQUENCES * RUNNER_TOKENS; at++) {
            const int s = at / RUNNER_TOKENS;
            const int t = at % RUNNER_TOKENS;
            if (together.has[s][t] && alone.has[s][t]) {
                assert_memory_equal(together.got[s][t], alone.got[s][t], sizeof alone.got[s][t]);
            }
        }
        together.runner->ops->close(together.runner);
        alone.runner->ops->close(alone.runner);
    }
    carry_lm_free(moved);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* A page and a slot that went through host memory are the same bytes. */
static void states_go_through_host_memory(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *moved = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    for (int i = 0; i < TYPES; i++) {
        runner_open_typed(&c, moved, CARRY_BF16, false, &all_types[i], 21);
        const carry_runner_ops *ops = c.runner->ops;
        const size_t bytes[] = {c.runner->sizes.slot_bytes, c.runner->sizes.page_bytes};
        unsigned char *memory[2][2];
        for (int j = 0; j < 4; j++) {
            memory[j / 2][j % 2] = calloc(1, bytes[j / 2]);
            assert_non_null(memory[j / 2][j % 2]);
        }
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){64});
        assert_ok(ctx, ops->read_slot(c.runner, memory[0][0], c.slot[0]));
        assert_ok(ctx, ops->write_slot(c.runner, c.slot[1], memory[0][0]));
        assert_ok(ctx, ops->read_slot(c.runner, memory[0][1], c.slot[1]));
        assert_memory_equal(memory[0][0], memory[0][1], bytes[0]);
        assert_ok(ctx, ops->read_page(c.runner, memory[1][0], c.pages[0][0]));
        assert_ok(ctx, ops->write_page(c.runner, c.pages[1][0], memory[1][0]));
        assert_ok(ctx, ops->copy_page(c.runner, c.pages[1][1], c.pages[1][0]));
        assert_ok(ctx, ops->read_page(c.runner, memory[1][1], c.pages[1][1]));
        assert_memory_equal(memory[1][0], memory[1][1], bytes[1]);
        for (int j = 0; j < 4; j++) {
            free(memory[j / 2][j % 2]);
        }
        ops->close(c.runner);
    }
    carry_lm_free(moved);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void other_types_are_refused_by_name(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, hybrid(0));
    carry_lm *moved = gpu_moved_to(ctx, lm, 1);
    carry_state_types types;
    assert_refused(ctx, CARRY_EUNSUPPORTED, "keys and values in f16 with activations in bf16 on a GPU: expected bf16",
                   carry_state_types_parse(&types, moved, CARRY_BF16, "f16", NULL));
    assert_ok(ctx, carry_state_types_parse(&types, moved, CARRY_BF16, "fp8", "bf16"));
    carry_lm_free(moved);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(other_types_are_refused_by_name),     cmocka_unit_test(states_go_through_host_memory),
        cmocka_unit_test(mixed_steps_in_f32_equal_the_cpu),    cmocka_unit_test(steps_in_bf16_equal_the_cpu),
        cmocka_unit_test(same_bits_hold_beside_any_sequences),
    };
    return cmocka_run_group_tests_name("engine_state_types_gpu", tests, NULL, NULL);
}
