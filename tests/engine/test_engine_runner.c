/* The runner of a model on the CPU: the log probabilities of a sequence equal those of the sequence read at once,
   whatever is read beside it and however its tokens are split into steps. Slots and pages are copied and moved whole, a
   sequence with NaN fails alone, and bad steps are refused. */
#include "runner_support.h"

#include "core/context.h"
#include "core/tensor.h"
#include "ops/kernels/kernels.h"

/* 1e-5 is some hundred roundings of 6e-8, since chunks end elsewhere. */
static void compare(runner_case *c) {
    runner_compare(c, c->lm, 1e-5);
}

static void mixed_steps_equal_the_whole(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < RUNNER_MODELS; i++) {
        carry_lm *lm = model(ctx, runner_model(i));
        runner_open(&c, lm, CARRY_F32, false, 7 + (uint32_t)i);
        runner_finish(&c, false);
        compare(&c);
        c.runner->ops->close(c.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* The log probabilities of a sequence by a forward pass, computed from its logits as the runner does. */
static void pass_logprobs(carry_lm *lm, carry_dtype dtype, const int32_t *from, float to[][RUNNER_VOCABULARY]) {
    static float values[RUNNER_TOKENS * RUNNER_VOCABULARY];
    int64_t ids[RUNNER_TOKENS];
    const carry_kernels *kernels;
    assert_ok(lm->ctx, carry_kernels_of(lm->ctx, &kernels));
    for (int i = 0; i < RUNNER_TOKENS; i++) {
        ids[i] = from[i];
    }
    const carry_tensor logits = carry_view_3d(values, dtype, 1, RUNNER_TOKENS, RUNNER_VOCABULARY);
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, 1, RUNNER_TOKENS), .logits = logits};
    const carry_lm_pass_options options = {
        .batch = 1, .tokens = RUNNER_TOKENS, .forward_only = true, .same_bits = true, .dtype = dtype};
    assert_ok(lm->ctx, run_once(lm, &options, &args));
    for (int t = 0; t < RUNNER_TOKENS; t++) {
        float row[RUNNER_VOCABULARY], most = -INFINITY;
        for (int i = 0; i < RUNNER_VOCABULARY; i++) {
            row[i] = (float)carry_tensor_at(&logits, t * RUNNER_VOCABULARY + i);
            most = row[i] > most ? row[i] : most;
        }
        const double sum = (double)most + log((double)kernels->rows->sum_exp(NULL, row, most, RUNNER_VOCABULARY));
        for (int i = 0; i < RUNNER_VOCABULARY; i++) {
            to[t][i] = (float)((double)row[i] - sum);
        }
    }
}

/* Where few cases suffice, each model runs with one type of case i: f32 for even models, bf16 for odd ones. */
static bool is_spared(int i) {
    return support_cases(0, 1) == 1 && i % 2 != i / 2 % 2;
}

/* With same_bits, prompts in pieces, single steps and the forward pass of training over the whole text give the same
   log probabilities, in layers with the delta rule and attention; other layers are refused by name. */
static void a_forward_pass_has_the_bits_of_the_engine(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    static float wanted[RUNNER_TOKENS][RUNNER_VOCABULARY];
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16};
    int compared = 0;
    for (int i = 0; i < 2 * RUNNER_MODELS; i++) {
        if (is_spared(i)) {
            continue;
        }
        carry_lm *lm = model(ctx, runner_model(i / 2));
        bool able = lm->config.delta.use_delta_rule;
        for (int64_t l = 0; l < lm->config.num_hidden_layers; l++) {
            const char *name = lm->layer[l].mixer.part->name;
            able = able && (strcmp(name, "delta") == 0 || strcmp(name, "attention") == 0);
        }
        if (able) {
            runner_open(&c, lm, types[i % 2], true, 3);
            runner_finish(&c, false);
            for (int s = 0; s < RUNNER_SEQUENCES; s++) {
                pass_logprobs(lm, types[i % 2], c.ids[s], wanted);
                for (int t = 0; t < RUNNER_TOKENS; t++) {
                    if (c.has[s][t] && memcmp(c.got[s][t], wanted[t], sizeof wanted[t]) != 0) {
                        fail_msg("model %d, %s, sequence %d, token %d: other bits", i / 2,
                                 carry_dtype_name(types[i % 2]), s, t);
                    }
                }
            }
            compared++;
            c.runner->ops->close(c.runner);
        }
        carry_lm_free(lm);
    }
    assert_true(compared >= support_cases(8, 4));
    carry_ctx_free(ctx);
}

/* In every type: other splits and other neighbours give the same bits. */
static void same_bits_hold_beside_any_sequences(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case one;
    static runner_case two;
    static const carry_dtype types[] = {CARRY_F32, CARRY_BF16};
    for (int i = 0; i < 2 * RUNNER_MODELS; i++) {
        if (is_spared(i)) {
            continue;
        }
        carry_lm *lm = model(ctx, runner_model(i / 2));
        runner_open(&one, lm, types[i % 2], true, 3);
        runner_open(&two, lm, types[i % 2], true, 1000 + (uint32_t)i);
        runner_finish(&one, true);
        runner_finish(&two, false);
        for (int at = 0; at < RUNNER_SEQUENCES * RUNNER_TOKENS; at++) {
            const int s = at / RUNNER_TOKENS;
            const int t = at % RUNNER_TOKENS;
            if (one.has[s][t] && two.has[s][t] && memcmp(one.got[s][t], two.got[s][t], sizeof one.got[s][t]) != 0) {
                fail_msg("model %d, %s, sequence %d, token %d: other bits", i / 2, carry_dtype_name(types[i % 2]), s,
                         t);
            }
        }
        one.runner->ops->close(one.runner);
        two.runner->ops->close(two.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* Sequence 0 continues in another slot and other pages, after a copy or through host memory. */
static void states_go_on_where_they_are_copied_to(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < 2 * RUNNER_MODELS; i++) {
        carry_lm *lm = model(ctx, runner_model(i / 2));
        runner_open(&c, lm, CARRY_F32, false, 5);
        const carry_runner_ops *ops = c.runner->ops;
        const bool through_host = i % 2 == 1;
        const int32_t to = c.slot[1];
        unsigned char *slot = malloc(c.runner->sizes.slot_bytes + 1);
        unsigned char *page = malloc(c.runner->sizes.page_bytes + 1);
        assert_true(slot != NULL && page != NULL);
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){70});
        assert_ok(ctx, ops->clear_slot(c.runner, to));
        assert_ok(ctx,
                  through_host ? ops->read_slot(c.runner, slot, c.slot[0]) : ops->copy_slot(c.runner, to, c.slot[0]));
        for (int j = 0; j < 2 && c.runner->sizes.pages > 0; j++) {
            if (through_host) {
                assert_ok(ctx, ops->read_page(c.runner, page, c.pages[0][j]));
                assert_ok(ctx, ops->write_page(c.runner, c.pages[1][j], page));
            } else {
                assert_ok(ctx, ops->copy_page(c.runner, c.pages[1][j], c.pages[0][j]));
            }
        }
        if (through_host) {
            assert_ok(ctx, ops->write_slot(c.runner, to, slot));
        }
        assert_ok(ctx, ops->clear_slot(c.runner, c.slot[0]));
        c.slot[0] = to;
        memcpy(c.pages[0], c.pages[1], sizeof c.pages[0]);
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){1});
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){RUNNER_TOKENS - 71});
        compare(&c);
        free(slot);
        free(page);
        ops->close(c.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* A slot that was filled with NaN. */
static void a_sequence_with_nan_fails_alone(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    static runner_case c;
    for (int i = 0; i < RUNNER_MODELS; i++) {
        carry_lm *lm = model(ctx, runner_model(i));
        runner_open(&c, lm, CARRY_F32, false, 9);
        carry_run runs[3];
        carry_run_result results[3];
        unsigned char *slot = malloc(c.runner->sizes.slot_bytes);
        assert_non_null(slot);
        runner_step(&c, (const int64_t[RUNNER_SEQUENCES]){20, 30, 1});
        memset(slot, 0xff, c.runner->sizes.slot_bytes);
        assert_ok(ctx, c.runner->ops->write_slot(c.runner, c.slot[1], slot));
        for (int s = 0; s < 3; s++) {
            runs[s] = runner_run(&c, s, s == 2 ? 9 : 1);
        }
        assert_ok(ctx, c.runner->ops->step(c.runner, runs, 3));
        assert_ok(ctx, c.runner->ops->results(c.runner, results, 3));
        assert_true(results[1].is_failed && results[1].token == -1);
        c.length[0] += 1;
        c.length[2] += 9;
        runner_keep(&c, 0, &results[0]);
        runner_keep(&c, 2, &results[2]);
        memset(c.has[1], 0, sizeof c.has[1]);
        compare(&c);
        free(slot);
        c.runner->ops->close(c.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* The step fails for the sequence, and the runner knows the layer. */
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
        runner_open(&c, lm, CARRY_F32, false, 9);
        carry_run run = runner_run(&c, 0, 3);
        carry_run_result result;
        char why[80];
        run.wants_token = true;
        assert_ok(ctx, c.runner->ops->step(c.runner, &run, 1));
        assert_ok(ctx, c.runner->ops->results(c.runner, &result, 1));
        assert_true(result.is_failed);
        carry_runner_explain(c.runner, why, sizeof why);
        assert_string_equal(why, ": the router's scores are NaN in layer 1");
        carry_runner_explain(c.runner, why, sizeof why);
        assert_string_equal(why, "");
        c.runner->ops->close(c.runner);
        carry_lm_free(lm);
    }
    carry_ctx_free(ctx);
}

/* ids NULL stands for the token that was sampled last; a token that is not allowed is not sampled. */
static void sampled_tokens_are_read_by_slot(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(2, NULL, NULL);
    carry_lm *lm = model(ctx, runner_model(0));
    static runner_case c;
    static runner_case again;
    runner_open(&c, lm, CARRY_F32, false, 9);
    runner_open(&again, lm, CARRY_F32, false, 9);
    int32_t token = 0;
    for (int i = 0; i < 12; i++) {
        const uint32_t odd = 0x2aa;
        float bias[RUNNER_VOCABULARY] = {[3] = 100.0f};
        carry_run_result result;
        carry_run run = runner_run(&c, 0, i == 0 ? 5 : 1);
        run.ids = i == 0 ? run.ids : NULL;
        run.allowed = i == 5 ? &odd : NULL;
        run.bias = i == 6 ? bias : NULL;
        assert_ok(ctx, c.runner->ops->step(c.runner, &run, 1));
        assert_ok(ctx, c.runner->ops->results(c.runner, &result, 1));
        run.slot = again.slot[0];
        run.pages = again.pages[0];
        run.ids = i == 0 ? run.ids : &token;
        c.length[0] += run.count;
        assert_true(i != 5 || result.token % 2 == 1);
        assert_true(i != 6 || result.token == 3);
        carry_run_result other;
        assert_ok(ctx, again.runner->ops->step(again.runner, &run, 1));
        assert_ok(ctx, again.runner->ops->results(again.runner, &other, 1));
        assert_int_equal(other.token, result.token);
        token = result.token;
    }
    c.runner->ops->close(c.runner);
    again.runner->ops->close(again.runner);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void bad_steps_are_refused(void **unused) {
    (void)unused;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = model(ctx, runner_model(0));
    static runner_case c;
    runner_open(&c, lm, CARRY_F32, false, 9);
    static const int32_t outside[] = {0, RUNNER_VOCABULARY};
    static const int32_t no_pages[RUNNER_PAGES] = {0, RUNNER_SEQUENCES * RUNNER_PAGES, 1};
    carry_run_result results[2];
    for (int i = 0; i < 9; i++) {
        carry_run runs[] = {runner_run(&c, 0, 2), runner_run(&c, 1, 100)};
        runs[0].slot = i == 0 ? RUNNER_SEQUENCES + 1 : i == 1 ? -1 : i == 2 ? runs[1].slot : runs[0].slot;
        runs[0].ids = i == 3 ? outside : i == 4 ? NULL : runs[0].ids;
        runs[0].count = i == 4 ? 1 : i == 5 ? 0 : i == 6 ? 29 : runs[0].count;
        runs[0].length = i == 7 ? RUNNER_TOKENS - 1 : 0;
        runs[1].pages = i == 8 ? no_pages : runs[1].pages;
        assert_int_not_equal(c.runner->ops->step(c.runner, runs, 2), CARRY_OK);
        assert_int_not_equal(c.runner->ops->results(c.runner, results, 2), CARRY_OK);
    }
    const carry_runner_sizes none = {.slots = 1, .sequences = 2, .tokens = 4, .context = 8, .pages = 1};
    carry_runner *made;
    assert_int_equal(carry_model_runner_new(lm, &made, &none, CARRY_F32), CARRY_ESIZE);
    c.runner->ops->close(c.runner);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixed_steps_equal_the_whole),
        cmocka_unit_test(same_bits_hold_beside_any_sequences),
        cmocka_unit_test(a_forward_pass_has_the_bits_of_the_engine),
        cmocka_unit_test(states_go_on_where_they_are_copied_to),
        cmocka_unit_test(a_sequence_with_nan_fails_alone),
        cmocka_unit_test(nan_of_a_router_names_the_layer),
        cmocka_unit_test(sampled_tokens_are_read_by_slot),
        cmocka_unit_test(bad_steps_are_refused),
    };
    return cmocka_run_group_tests_name("engine_runner", tests, NULL, NULL);
}
