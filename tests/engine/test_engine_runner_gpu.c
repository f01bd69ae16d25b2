/* The runner of a model on a GPU against the full forward pass of the same model in f32 on the CPU: random pieces and
   single tokens, launched and recorded. */
/* labels: gpu */
#include "gpu_model_support.h"
#include "runner_support.h"

#include "engine/generator.h"

/* False: some operator of the model is for the CPU only. */
static bool is_on_device(runner_case *c) {
    const carry_run run = runner_run(c, 0, 2);
    carry_run_result result;
    const carry_status status = c->runner->ops->step(c->runner, &run, 1);
    if (status == CARRY_EUNSUPPORTED) {
        print_message("left out: %s\n", carry_ctx_error(c->ctx));
        return false;
    }
    assert_ok(c->ctx, status);
    assert_ok(c->ctx, c->runner->ops->results(c->runner, &result, 1));
    assert_ok(c->ctx, c->runner->ops->clear_slot(c->runner, run.slot));
    return true;
}

/* Devices differ in the order of sums: 2e-4 is twenty times the observed difference. */
static void mixed_steps_in_f32_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < RUNNER_MODELS - 1; i++) { /* the last is for the CPU only */
        const carry_lm_config config = runner_model(i);
        if (!carry_lm_family_describe(config.family).on_cuda) {
            continue;
        }
        carry_lm *lm = model(ctx, config);
        carry_lm *there = gpu_moved_to(ctx, lm, 1);
        runner_open(&c, there, CARRY_F32, false, 7 + (uint32_t)i);
        if (is_on_device(&c)) {
            runner_finish(&c, false);
            runner_compare(&c, lm, 2e-4);
        }
        c.runner->ops->close(c.runner);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Sequence 0 goes on in another slot and other pages, which came from host memory; those before are overwritten. */
static void states_go_through_host_memory(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *there = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    runner_open(&c, there, CARRY_F32, false, 21);
    const carry_runner_ops *ops = c.runner->ops;
    const size_t slot_bytes = c.runner->sizes.slot_bytes;
    const size_t page_bytes = c.runner->sizes.page_bytes;
    unsigned char *slot = malloc(slot_bytes);
    unsigned char *page[2] = {malloc(page_bytes), malloc(page_bytes)};
    assert_true(slot != NULL && page[0] != NULL && page[1] != NULL && page_bytes > 0);
    const int32_t to = c.slot[1];
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){70});
    assert_ok(ctx, ops->read_slot(c.runner, slot, c.slot[0]));
    for (int j = 0; j < 2; j++) {
        memset(page[1], 0x5a, page_bytes);
        assert_ok(ctx, ops->read_page(c.runner, page[0], c.pages[0][j]));
        assert_ok(ctx, ops->write_page(c.runner, c.pages[0][j], page[1]));
        assert_ok(ctx, ops->write_page(c.runner, c.pages[1][j], page[0]));
        assert_ok(ctx, ops->read_page(c.runner, page[1], c.pages[1][j]));
        assert_memory_equal(page[0], page[1], page_bytes);
    }
    assert_ok(ctx, ops->write_slot(c.runner, to, slot));
    assert_ok(ctx, ops->clear_slot(c.runner, c.slot[0]));
    c.slot[0] = to;
    memcpy(c.pages[0], c.pages[1], sizeof c.pages[0]);
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1});
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){RUNNER_TOKENS - 71});
    runner_compare(&c, lm, 2e-4);
    free(slot);
    free(page[0]);
    free(page[1]);
    ops->close(c.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* Weights are exact in bf16: only activations are rounded, to 4e-3 each. */
static void steps_in_bf16_are_recorded_and_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *there = gpu_moved_to(ctx, lm, 1);
    static runner_case c;
    runner_open(&c, there, CARRY_BF16, false, 77);
    c.wants_all = true;
    runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){63, 3, 20, 5});
    for (int i = 0; i < 24; i++) { /* one, three and four sequences: buckets of one and four */
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, i % 3 > 0, i % 3 > 0, i % 3 > 1});
    }
    runner_finish(&c, false);
    runner_compare(&c, lm, 3e-2);
    c.runner->ops->close(c.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* All steps by the chain of kernels, token by token: the results equal the CPU's up to rounding, and have the same bits
   however the tokens are split into steps and whatever runs beside them. */
static void steps_with_the_same_bits_equal_the_cpu_and_each_other(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = gpu_rounded_model(ctx, gpu_config(RUNNER_VOCABULARY, 640));
    carry_lm *there = gpu_moved_to(ctx, lm, 1);
    static runner_case together, alone;
    runner_open(&together, there, CARRY_BF16, true, 5);
    together.wants_all = true;
    runner_finish(&together, false);
    runner_compare(&together, lm, 3e-2);
    together.runner->ops->close(together.runner);
    runner_open(&alone, there, CARRY_BF16, true, 6);
    alone.wants_all = true;
    runner_finish(&alone, true);
    int compared = 0;
    for (int s = 0; s < RUNNER_SEQUENCES; s++) {
        for (int i = 0; i < RUNNER_TOKENS; i++) {
            if (together.has[s][i] && alone.has[s][i]) {
                compared++;
                assert_memory_equal(together.got[s][i], alone.got[s][i], sizeof alone.got[s][i]);
            }
        }
    }
    assert_true(compared >= RUNNER_SEQUENCES);
    alone.runner->ops->close(alone.runner);
    carry_lm_free(there);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* Steps of layers with experts, by the chain of kernels and recorded. With all experts chosen, results are near the
   CPU's. With three of 12, another expert may be chosen where two scores are nearly equal, which changes the following
   tokens: only most of a sequence's first tokens are near. */
static void experts_in_bf16_equal_the_cpu(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < 2; i++) {
        carry_lm *lm = gpu_rounded_model(ctx, gpu_config_experts(RUNNER_VOCABULARY, i == 0 ? 12 : 3));
        carry_lm *there = gpu_moved_to(ctx, lm, 1);
        int of;
        runner_open(&c, there, CARRY_BF16, false, 91);
        c.wants_all = true;
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){3, 1, 2, 5});
        for (int turn = 0; turn < 24; turn++) {
            runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1, turn % 3 > 0, turn % 3 > 0, turn % 3 > 1});
        }
        const int different = runner_differences(&c, lm, 3e-2, i == 0, &of);
        print_message("experts: %d of %d tokens differ\n", different, of);
        assert_true(different <= of / 4);
        c.runner->ops->close(c.runner);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* A step of the runner fails for the sequence, and the layer is known; so does a forward pass whose caller waits. */
static void nan_of_a_router_names_the_layer(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    static const int models[] = {8, 13}; /* softmax; sigmoid with groups and a bias */
    for (int m = 0; m < 2; m++) {
        carry_lm *lm = model(ctx, hybrid(models[m]));
        const carry_parameter *router = carry_parameters_find(&lm->own, "model.layers.1.mlp.gate.weight");
        assert_non_null(router);
        lm->own.weights[router->offset + router->count - 1] = NAN; /* of the last expert */
        carry_lm *there = gpu_moved_to(ctx, lm, 1);
        runner_open(&c, there, CARRY_F32, false, 9);
        carry_run run = runner_run(&c, 0, 3);
        carry_run_result result;
        char why[80];
        assert_ok(ctx, c.runner->ops->step(c.runner, &run, 1));
        assert_ok(ctx, c.runner->ops->results(c.runner, &result, 1));
        assert_true(result.is_failed);
        carry_runner_explain(c.runner, why, sizeof why);
        assert_string_equal(why, ": the router's scores are NaN in layer 1");
        c.runner->ops->close(c.runner);

        const int64_t ids[] = {3, 1, 4};
        float logits[3 * RUNNER_VOCABULARY];
        carry_lm_generator *g;
        assert_ok(ctx, carry_lm_generator_new(there, &g, 1, CARRY_F32));
        assert_refused(ctx, CARRY_ERANGE, "layer 1, token 0: the router's scores are NaN",
                       carry_lm_generator_prompt(g, 0, ids, 3, logits));
        carry_lm_generator_free(g);
        carry_lm_free(there);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

int main(void) {
    if (carry_device_count() < 2) {
        (void)printf("skipped: no GPU\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_go_through_host_memory),
        cmocka_unit_test(mixed_steps_in_f32_equal_the_cpu),
        cmocka_unit_test(steps_in_bf16_are_recorded_and_equal_the_cpu),
        cmocka_unit_test(steps_with_the_same_bits_equal_the_cpu_and_each_other),
        cmocka_unit_test(experts_in_bf16_equal_the_cpu),
        cmocka_unit_test(nan_of_a_router_names_the_layer),
    };
    return cmocka_run_group_tests_name("engine_runner_gpu", tests, NULL, NULL);
}
