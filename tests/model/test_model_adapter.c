/* Adapters: gradients of A and B follow from those of the merged weights, in every family; files have PEFT's format. */
#include "hybrid_support.h"

#include <unistd.h>

#include "core/file.h"
#include "file/safetensors.h"
#include "model/lm/adapter.h"

#define B 1
#define T 24

static const carry_adapter_options options = {
    .rank = 3, .alpha = 4.5, .targets = "all-linear", .seed = 5}; /* a scale of 1.5 */

static void fill_ids(int64_t *ids, int64_t *labels) {
    for (int64_t i = 0; i < B * T; i++) {
        ids[i] = (i * 7 + i / 5) % SUPPORT_VOCABULARY;
        labels[i] = i % 4 == 1 ? -100 : (i * 3 + 2) % SUPPORT_VOCABULARY;
    }
}

/* An adapter whose B is not zero. */
static void adapt(carry_ctx *ctx, carry_lm *lm) {
    assert_ok(ctx, carry_lm_adapter_new(lm, &options));
    carry_parameters *own = &lm->adapter->own;
    for (int64_t i = 0; i < own->parameters; i++) {
        const carry_parameter *p = &own->parameter[i];
        for (int64_t j = 0; j < p->count; j++) {
            own->weights[p->offset + j] = 0.03f * (float)((j * 13 + i * 5) % 17 - 8);
        }
    }
}

static carry_lm *frozen(carry_ctx *ctx, carry_lm_config config) {
    carry_lm *lm = model_scaled(ctx, config, 8.0f);
    free(lm->own.gradients);
    lm->own.gradients = NULL;
    return lm;
}

static double run_loss(carry_ctx *ctx, carry_lm *lm, bool backward, bool recompute) {
    int64_t ids[B * T];
    int64_t labels[B * T];
    double loss = 0.0;
    fill_ids(ids, labels);
    const carry_lm_args args = {.ids = carry_view_2d(ids, CARRY_I64, B, T),
                                .labels = carry_view_2d(labels, CARRY_I64, B, T),
                                .loss = &loss,
                                .backward = backward,
                                .scale = 1.0f};
    const carry_lm_pass_options pass = {.batch = B, .tokens = T, .recompute = recompute};
    assert_ok(ctx, run_once(lm, &pass, &args));
    return loss;
}

/* W += scale B A, in a plain loop. */
static void merge(carry_lm *to, const carry_lm *from) {
    const carry_parameters *own = &from->adapter->own;
    for (int64_t i = 0; i < to->own.parameters; i++) {
        const int64_t a = from->adapter->a[i];
        const carry_parameter *p = &to->own.parameter[i];
        for (int64_t j = 0; a >= 0 && j < p->count; j++) {
            double sum = 0.0;
            for (int64_t k = 0; k < options.rank; k++) {
                sum += (double)own->weights[own->parameter[a + 1].offset + j / p->shape[1] * options.rank + k] *
                       (double)own->weights[own->parameter[a].offset + k * p->shape[1] + j % p->shape[1]];
            }
            to->own.weights[p->offset + j] += (float)(1.5 * sum);
        }
    }
}

/* With dW of the merged weights: dB = scale dW A^T, dA = scale B^T dW. */
static void compare_gradients(const carry_lm *lm, const carry_lm *merged, int family) {
    const carry_parameters *own = &lm->adapter->own;
    for (int64_t i = 0; i < merged->own.parameters; i++) {
        const int64_t a = lm->adapter->a[i];
        const carry_parameter *p = &merged->own.parameter[i];
        if (a < 0) {
            continue;
        }
        const float *dW = merged->own.gradients + p->offset;
        for (int which = 0; which < 2; which++) {
            const carry_parameter *of = &own->parameter[a + which];
            double *wanted = calloc((size_t)of->count, sizeof *wanted);
            assert_non_null(wanted);
            for (int64_t j = 0; j < p->count; j++) {
                for (int64_t k = 0; k < options.rank; k++) {
                    const int64_t at_a = k * p->shape[1] + j % p->shape[1];
                    const int64_t at_b = j / p->shape[1] * options.rank + k;
                    const double other = which == 0 ? (double)own->weights[own->parameter[a + 1].offset + at_b]
                                                    : (double)own->weights[own->parameter[a].offset + at_a];
                    wanted[which == 0 ? at_a : at_b] += 1.5 * (double)dW[j] * other;
                }
            }
            const double error = apart(own->gradients + of->offset, wanted, of->count);
            if (!(error < 2e-3)) {
                fail_msg("family %d: the gradient of %s is %g apart", family, of->name, error);
            }
            free(wanted);
        }
    }
}

static void test_gradients_are_those_of_merged_weights_in_every_family(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i++) {
        carry_lm *lm = frozen(ctx, hybrid(i));
        carry_lm *merged = model_scaled(ctx, hybrid(i), 8.0f);
        adapt(ctx, lm);
        merge(merged, lm);
        const double loss = run_loss(ctx, lm, true, i % 2 == 1);
        const double wanted = run_loss(ctx, merged, true, false);
        if (!(fabs(loss - wanted) < 1e-3 * fabs(wanted))) {
            fail_msg("family %d: a loss of %.9g instead of %.9g", i, loss, wanted);
        }
        compare_gradients(lm, merged, i);
        carry_lm_free(lm);
        carry_lm_free(merged);
    }
    carry_ctx_free(ctx);
}

static void test_a_new_adapter_changes_nothing(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = frozen(ctx, hybrid(0));
    const double before = run_loss(ctx, lm, false, false);
    assert_ok(ctx, carry_lm_adapter_new(lm, &options));
    assert_true(run_loss(ctx, lm, false, false) == before);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

static void test_targets_that_do_not_exist_are_refused_with_those_that_do(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = frozen(ctx, hybrid(0));
    carry_adapter_options wrong = options;
    (void)snprintf(wrong.targets, sizeof wrong.targets, "q_proj,query_proj");
    assert_refused(ctx, CARRY_ENOTFOUND, "query_proj", carry_lm_adapter_new(lm, &wrong));
    assert_non_null(strstr(carry_ctx_error(ctx), "in_proj_qkv"));
    assert_null(lm->adapter);
    (void)snprintf(wrong.targets, sizeof wrong.targets, "self_attn.q_proj,down_proj");
    assert_ok(ctx, carry_lm_adapter_new(lm, &wrong));
    assert_int_equal(lm->adapter->own.parameters, 2 * (1 + 3)); /* one layer of attention, three feed-forwards */
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

/* qwen3_next (7) has tensors whose rows are ordered by head in files: a saved adapter merges to the same model. */
static void test_files_merge_to_the_model_that_was_trained(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    for (int i = 0; i < HYBRIDS; i += 7) {
        char folder[] = "/tmp/carry-adapter-XXXXXX";
        assert_non_null(mkdtemp(folder));
        carry_lm *lm = frozen(ctx, hybrid(i));
        carry_lm *again = frozen(ctx, hybrid(i));
        carry_lm *merged = frozen(ctx, hybrid(i));
        adapt(ctx, lm);
        const double loss = run_loss(ctx, lm, false, false);
        assert_ok(ctx, carry_lm_adapter_save(lm, folder, "a/model"));
        assert_ok(ctx, carry_lm_adapter_load(again, folder, NULL));
        assert_int_equal(again->adapter->own.count, lm->adapter->own.count);
        assert_memory_equal(again->adapter->own.weights, lm->adapter->own.weights,
                            (size_t)lm->adapter->own.count * sizeof(float));
        assert_ok(ctx, carry_lm_adapter_merge(merged, folder));
        assert_true(fabs(run_loss(ctx, merged, false, false) - loss) < 1e-4 * loss);
        carry_lm *other = frozen(ctx, hybrid(i == 0 ? 1 : 0));
        assert_int_not_equal(carry_lm_adapter_merge(other, folder), CARRY_OK);
        carry_lm_free(other);
        carry_lm_free(lm);
        carry_lm_free(again);
        carry_lm_free(merged);
        char path[64];
        static const char *const names[] = {CARRY_ADAPTER_CONFIG, CARRY_ADAPTER_WEIGHTS};
        for (int k = 0; k < 2; k++) {
            (void)snprintf(path, sizeof path, "%s/%s", folder, names[k]);
            (void)unlink(path);
        }
        (void)rmdir(folder);
    }
    carry_ctx_free(ctx);
}

/* Settings of PEFT that would give another model are refused by name. */
static void test_settings_that_change_the_model_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *setting, *message;
    } cases[] = {
        {"\"use_dora\": true", "use_dora is true"},
        {"\"fan_in_fan_out\": true", "fan_in_fan_out is true"},
        {"\"modules_to_save\": [\"lm_head\"]", "modules_to_save is"},
        {"\"rank_pattern\": {\"q_proj\": 8}", "rank_pattern is"},
        {"\"layers_to_transform\": [0]", "layers_to_transform is"},
        {"\"layer_replication\": [[0, 2]]", "layer_replication is"},
        {"\"bias\": \"all\"", "bias is \"all\""},
        {"\"init_lora_weights\": \"pissa\"", "init_lora_weights is \"pissa\", which changes"},
        {"\"init_lora_weights\": \"olora\"", "init_lora_weights is \"olora\""},
        {"\"r\": 2.5", "r is 2.5: expected a whole number from 1 to"},
        {"\"lora_alpha\": \"x\"", "lora_alpha is nan: expected a number"},
    };
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    char folder[] = "/tmp/carry-adapter-XXXXXX";
    char config[64];
    char weights[64];
    assert_non_null(mkdtemp(folder));
    (void)snprintf(config, sizeof config, "%s/%s", folder, CARRY_ADAPTER_CONFIG);
    (void)snprintf(weights, sizeof weights, "%s/%s", folder, CARRY_ADAPTER_WEIGHTS);
    carry_lm *lm = frozen(ctx, hybrid(0));
    adapt(ctx, lm);
    assert_ok(ctx, carry_lm_adapter_save(lm, folder, "a/model"));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        FILE *file = fopen(config, "w"); /* the first of two equal keys is read */
        assert_non_null(file);
        assert_true(
            fprintf(file,
                    "{%s, \"peft_type\": \"LORA\", \"r\": 3, \"lora_alpha\": 4.5, \"target_modules\": \"all-linear\"}",
                    cases[i].setting) > 0);
        assert_int_equal(fclose(file), 0);
        carry_lm *other = frozen(ctx, hybrid(0));
        assert_int_not_equal(carry_lm_adapter_load(other, folder, NULL), CARRY_OK);
        assert_non_null(strstr(carry_ctx_error(ctx), cases[i].message));
        carry_lm_free(other);
    }
    carry_lm_free(lm);
    (void)unlink(config);
    (void)unlink(weights);
    (void)rmdir(folder);
    carry_ctx_free(ctx);
}

/* The mean over many draws is the gradient without dropout; the same draw gives the same bits. */
static void test_dropout_is_a_function_of_the_draw(void **state) {
    (void)state;
    carry_ctx *ctx = support_ctx(1, NULL, NULL);
    carry_lm *lm = frozen(ctx, hybrid(0));
    adapt(ctx, lm);
    const double plain = run_loss(ctx, lm, true, false);
    lm->adapter->options.dropout = 0.5;
    const double once = run_loss(ctx, lm, true, false);
    assert_true(once != plain);
    assert_true(run_loss(ctx, lm, true, true) == once);
    assert_true(run_loss(ctx, lm, false, false) == plain);
    lm->adapter->draw++;
    assert_true(run_loss(ctx, lm, true, false) != once);
    carry_lm_free(lm);
    carry_ctx_free(ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_are_those_of_merged_weights_in_every_family),
        cmocka_unit_test(test_a_new_adapter_changes_nothing),
        cmocka_unit_test(test_targets_that_do_not_exist_are_refused_with_those_that_do),
        cmocka_unit_test(test_files_merge_to_the_model_that_was_trained),
        cmocka_unit_test(test_settings_that_change_the_model_are_refused),
        cmocka_unit_test(test_dropout_is_a_function_of_the_draw),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
